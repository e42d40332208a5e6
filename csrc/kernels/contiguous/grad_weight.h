// The gradient of the weight: for each channel, over all images, every tap's sum of products.
//
// Sums are kept per tap in vectors of floats for at most kSteps additions, then in doubles, so that the
// error does not grow with the number of pixels; a job's sums are its own and are added up in order, so
// that the result is the same to the bit for a given number of threads.
#pragma once

#include "kernels/contiguous/correlate.h"
#include "kernels/contiguous/tile.h"

namespace leanconv::LEANCONV_ISA {

constexpr int64_t kSteps = 96;

// The sums of one output channel: its taps', then its bias's.
class Sums {
 public:
  // A vector each, and one more whose first element counts the additions since the last flush.
  static int64_t floats(int64_t taps) { return (taps + 2) * Vec::width; }

  Sums(float* vectors, double* totals, int64_t taps) : vectors_(vectors), totals_(totals), taps_(taps) {}

  float* vectors() { return vectors_; }
  void clear() { fill_zero(vectors_, floats(taps_)); }
  // To be called before `steps` additions to each vector.
  void make_room(int64_t steps) {
    float& pending = vectors_[(taps_ + 1) * Vec::width];
    if (pending > 0.0f && pending + float(steps) > float(kSteps)) flush();
    pending += float(steps);
  }
  void flush() {
    for (int64_t tap = 0; tap <= taps_; ++tap) {
      double total = 0.0;
      for (int lane = 0; lane < Vec::width; ++lane) total += double(vectors_[tap * Vec::width + lane]);
      totals_[tap] += total;
    }
    clear();
  }

 private:
  float* vectors_;
  double* totals_;
  int64_t taps_;
};

// Adds one plane's band to its channel's sums.
template <class T>
class WeightGradient {
 public:
  WeightGradient(const Plan& plan, const Band& band, float* staged)
      : plan_(plan), band_(band), staged_(plan.axes, band), source_(staged) {
    fill_zero(source_, plan.staged_floats);
  }

  void stage_input(const T* plane) { stage(plane, plan_.axes, staged_, source_); }

  void add(const T* grad_plane, float* converted, Sums sums, bool with_bias) {
    const int64_t* size = plan_.result_size;
    const int64_t d_end = band_.end(0, size[0]), h_begin = band_.begin(1, size[1]),
                  h_end = band_.end(1, size[1]);
    const int64_t column = band_.begin(2, size[2]), columns = band_.end(2, size[2]) - column;
    if (columns <= 0) return;
    // Blocks of rows, and of columns where rows are long, of at most kSteps vectors.
    const int64_t block_columns = smaller(columns, kSteps * Vec::width);
    const int64_t block_rows = larger(1, kSteps / ceil_div(block_columns, Vec::width));
    for (int64_t d = band_.begin(0, size[0]); d < d_end; ++d) {
      for (int64_t h = h_begin; h < h_end; h += block_rows)
        for (int64_t c = column; c < column + columns; c += block_columns) {
          const Block block{d, h, smaller(h_end, h + block_rows), c,
                            smaller(block_columns, column + columns - c)};
          sums.make_room((block.h_end - block.h) * ceil_div(block.columns, Vec::width));
          add_block(grad_plane, converted, block, sums.vectors(), with_bias);
        }
    }
  }

 private:
  struct Block {
    int64_t d, h, h_end, column, columns;
  };

  void add_block(const T* grad_plane, float* converted, const Block& block, float* sums, bool with_bias) {
    const int64_t width = plan_.result_size[2], rows = block.h_end - block.h;
    const T* from = grad_plane + (block.d * plan_.result_size[1] + block.h) * width + block.column;
    const float* grad = reinterpret_cast<const float*>(from);
    int64_t stride = width;
    if (sizeof(T) != sizeof(float)) {
      stride = round_up(block.columns, Vec::width);
      for (int64_t r = 0; r < rows; ++r)
        gather_row(from + r * width, 1, block.columns, converted + r * stride);
      grad = converted;
    }
    if (with_bias) add_bias(grad, stride, rows, block.columns, sums);
    const Piece &depth = plan_.axes[0].piece[0], &height = plan_.axes[1].piece[0],
                &row = plan_.axes[2].piece[0];
    for (int64_t i = 0; i < depth.group_count; ++i)
      for (int64_t tap = 0; tap < depth.groups[i].count; ++tap) {
        const TapGroup& group = depth.groups[i];
        const int64_t at = block.d + group.first + tap * group.step;
        if (at < 0 || at >= phase_size(plan_.axes[0], group.phase)) continue;
        const int64_t depth_tap = group.first_tap + tap * group.tap_step;
        for (int64_t j = 0; j < height.group_count; ++j)
          for (int64_t k = 0; k < row.group_count; ++k)
            add_taps(group.phase, at, depth_tap, height.groups[j], row.groups[k], grad, stride, block, sums);
      }
  }

  void add_taps(int64_t depth_phase, int64_t slice, int64_t depth_tap, const TapGroup& down,
                const TapGroup& along, const float* grad, int64_t grad_stride, const Block& block,
                float* sums) {
    const Extent* extent = staged_.extent;
    const int64_t available = phase_size(plan_.axes[1], down.phase), rows = block.h_end - block.h;
    const float* source = source_ + staged_.phase_start(depth_phase, down.phase, along.phase) +
                          (slice - extent[0].low) * staged_.slice + block.column + along.first -
                          extent[2].low;
    TileRows r;
    r.input_stride = down.step * staged_.pitch;
    r.grad_stride = down.step * grad_stride;
    r.columns = block.columns;
    r.tap_stride = along.step;
    r.sum_down = down.tap_step * plan_.kernel[2] * Vec::width;
    r.sum_along = along.tap_step * Vec::width;
    const int64_t tiles = ceil_div(down.count, kTileHeight);
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t first = down.count * i / tiles, end = down.count * (i + 1) / tiles;
      r.sums =
          sums + ((depth_tap * plan_.kernel[1] + down.first_tap + first * down.tap_step) * plan_.kernel[2] +
                  along.first_tap) *
                     Vec::width;
      // Output rows a tap step apart meet the same input rows; the others are another set.
      for (int64_t residue = 0; residue < down.step && residue < rows; ++residue) {
        const int64_t row = block.h + residue + down.first + first * down.step;
        r.begin = 0;
        r.end = ceil_div(rows - residue, down.step);
        r.first_valid = row >= 0 ? 0 : ceil_div(-row, down.step);
        r.end_valid = available > row ? ceil_div(available - row, down.step) : 0;
        r.input = source + (row - extent[1].low) * staged_.pitch;
        r.grad = grad + residue * grad_stride;
        add_tiles<kTileHeight>(r, end - first, along.count);
      }
    }
  }

  void add_bias(const float* grad, int64_t stride, int64_t rows, int64_t columns, float* sums) {
    float* at = sums + plan_.kernel[0] * plan_.kernel[1] * plan_.kernel[2] * Vec::width;
    Vec total = Vec::load(at);
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = grad + r * stride;
      int64_t c = 0;
      for (; c + Vec::width <= columns; c += Vec::width) total = total + Vec::load(row + c);
      if (c < columns) total = total + Vec::load_partial(row + c, int(columns - c));
    }
    total.store(at);
  }

  const Plan& plan_;
  const Band band_;
  const Staged staged_;
  float* source_;
};

}  // namespace leanconv::LEANCONV_ISA
