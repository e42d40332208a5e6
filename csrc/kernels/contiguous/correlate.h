// Forward and gradient of the input of one plane, as correlations over staged sources.
#pragma once

#include "kernels/contiguous/slide.h"
#include "kernels/contiguous/stage.h"

namespace leanconv::LEANCONV_ISA {

constexpr int64_t kMaxSlices = 64;  // of all sources and taps along the depth, in one pass

// What all jobs of one call share.
struct Plan {
  Axis axes[3];
  int64_t kernel[3], result_size[3];
  int64_t bands;
  int band_axis;
  int64_t sources;        // planes that are summed into one of the result's
  int64_t source_taps;    // from a source's weights to the next one's
  int64_t staged_floats;  // of one source, the largest band's
  int64_t piece_floats, weight_floats;

  Band band(int64_t index) const { return {band_axis, axes[band_axis].largest_piece, index, bands}; }
  int64_t scratch_floats() const { return sources * staged_floats + piece_floats + weight_floats; }
};

inline void set_bands(Plan& plan, int64_t bands) {
  plan.bands = bands;
  plan.staged_floats = 0;
  for (int64_t b = 0; b < bands; ++b) {
    const Staged staged(plan.axes, plan.band(b));
    plan.staged_floats = larger(plan.staged_floats, staged.floats());
  }
  plan.staged_floats = round_up(plan.staged_floats, 16);
}

inline void finish_plan(const Problem& p, const int64_t* result_size, int64_t planes, int64_t sources,
                        int64_t source_taps, Plan& plan) {
  plan.sources = sources;
  plan.source_taps = source_taps;
  int64_t elements = 1;
  for (int d = 0; d < 3; ++d) {
    plan.kernel[d] = p.kernel[d];
    plan.result_size[d] = result_size[d];
    elements *= result_size[d];
  }
  plan.band_axis = plan.axes[0].largest_piece > 1 ? 0 : plan.axes[1].largest_piece > 1 ? 1 : 2;
  // Enough bands for the threads to share few planes, and none larger than half a megabyte.
  const int64_t for_threads = planes < 4 * p.num_threads ? ceil_div(4 * p.num_threads, planes) : 1;
  const int64_t for_cache = ceil_div(elements * sources, 128 * 1024);
  const int64_t longest = larger(plan.axes[plan.band_axis].largest_piece, 1);
  const int64_t unit = plan.band_axis == 2 ? 256 : 4;
  set_bands(plan, larger(1, smaller(larger(for_threads, for_cache), longest / unit)));
  plan.piece_floats =
      plan.axes[2].pieces * plan.axes[1].largest_piece * round_up(plan.axes[2].largest_piece, Vec::width) +
      Vec::width;
  plan.weight_floats = round_up(
      smaller(sources * p.kernel[0] * kMaxPhases, kMaxSlices) * p.kernel[1] * p.kernel[2] + kMaxWindow, 16);
  plan.piece_floats = round_up(plan.piece_floats, 16);
}

// Row after row of pieces, interleaved into a row of the result.
template <class T>
void scatter_row(const float* piece, int64_t piece_stride, int64_t pieces, int64_t count, T* dst) {
  if (pieces == 1) {
    int64_t i = 0;
    for (; i + Vec::width <= count; i += Vec::width) Vec::load(piece + i).store(dst + i);
    if (i < count) Vec::load_partial(piece + i, int(count - i)).store_partial(dst + i, int(count - i));
  } else if (pieces == 2) {
    const float* odd = piece + piece_stride;
    int64_t i = 0;
    for (; i + Vec::width <= count / 2; i += Vec::width) {
      Vec a, b;
      interleave(Vec::load(piece + i), Vec::load(odd + i), a, b);
      a.store(dst + 2 * i);
      b.store(dst + 2 * i + Vec::width);
    }
    for (; i < count / 2; ++i) {
      dst[2 * i] = from_float<T>(piece[i]);
      dst[2 * i + 1] = from_float<T>(odd[i]);
    }
    if (count % 2) dst[count - 1] = from_float<T>(piece[count / 2]);
  } else {
    for (int64_t i = 0; i < count; ++i) dst[i] = from_float<T>(piece[i % pieces * piece_stride + i / pieces]);
  }
}

// Staged sources, each with weights of its own, summed into one result plane, stored as R.
template <class T, class R = T>
class Correlation {
 public:
  Correlation(const Plan& plan, const Band& band, float* scratch)
      : plan_(plan),
        band_(band),
        staged_(plan.axes, band),
        piece_(scratch),
        packed_(piece_ + plan.piece_floats),
        sources_(packed_ + plan.weight_floats) {
    fill_zero(sources_, plan.sources * plan.staged_floats);
  }

  void stage_source(const T* plane, int64_t number) {
    stage(plane, plan_.axes, staged_, sources_ + number * plan_.staged_floats);
  }

  // To be read ahead while the next `runs` runs compute.
  void read_ahead(const T* next, int64_t elements, int64_t runs) {
    int64_t rows = 0;
    for (int64_t j = 0; j < plan_.axes[1].pieces; ++j) rows += plan_.axes[1].piece[j].size;
    ahead_.start(next, elements * int64_t(sizeof(T)), runs * rows * plan_.result_size[0]);
  }

  // Source i goes with the taps at weight + i * source_taps.
  void run(const T* weight, float bias, R* result) {
    const Axis* axes = plan_.axes;
    for (int64_t i = 0; i < axes[0].pieces; ++i)
      for (int64_t j = 0; j < axes[1].pieces; ++j) {
        const Piece &depth = axes[0].piece[i], &height = axes[1].piece[j];
        const int64_t d_end = band_.end(0, depth.size);
        for (int64_t d = band_.begin(0, depth.size); d < d_end; ++d)
          run_slice(depth, d, height, weight, bias, result);
      }
  }

 private:
  // All rows of one piece in one slice of the result.
  void run_slice(const Piece& depth, int64_t d, const Piece& height, const T* weight, float bias, R* result) {
    const Axis& row_axis = plan_.axes[2];
    const int64_t rows_begin = band_.begin(1, height.size), rows = band_.end(1, height.size) - rows_begin;
    if (rows <= 0) return;
    const int64_t width = plan_.result_size[2];
    R* slice = result + (depth.start + d * depth.step) * plan_.result_size[1] * width;
    const bool direct = sizeof(R) == sizeof(float) && row_axis.pieces == 1;
    const int64_t pitch = round_up(row_axis.largest_piece, Vec::width);
    const int64_t piece_stride = pitch * plan_.axes[1].largest_piece;
    for (int64_t k = 0; k < row_axis.pieces; ++k) {
      const Piece& columns = row_axis.piece[k];
      const int64_t begin = band_.begin(2, columns.size), count = band_.end(2, columns.size) - begin;
      if (count <= 0) continue;
      Target target;
      target.rows_begin = rows_begin;
      target.rows = rows;
      target.columns_begin = begin;
      target.columns = count;
      if (direct) {
        target.out =
            reinterpret_cast<float*>(slice) + (height.start + rows_begin * height.step) * width + begin;
        target.stride = height.step * width;
      } else {
        target.out = piece_ + k * piece_stride;
        target.stride = pitch;
      }
      run_piece(depth, d, height, columns, weight, bias, target);
    }
    if (direct) return;
    // A band along the row has one piece or pieces of which this part is interleaved.
    const int64_t from = band_.begin(2, row_axis.piece[0].size) * row_axis.pieces;
    int64_t count = 0;
    for (int64_t k = 0; k < row_axis.pieces; ++k)
      count += band_.end(2, row_axis.piece[k].size) - band_.begin(2, row_axis.piece[k].size);
    for (int64_t r = 0; r < rows; ++r)
      scatter_row(piece_ + r * pitch, piece_stride, row_axis.pieces, count,
                  slice + (height.start + (rows_begin + r) * height.step) * width + from);
  }

  struct Target {
    float* out;
    int64_t stride, rows_begin, rows, columns_begin, columns;
  };

  // The sum over all groups of taps, one pass each.
  void run_piece(const Piece& depth, int64_t d, const Piece& height, const Piece& columns, const T* weight,
                 float bias, const Target& target) {
    bool started = false;
    for (int64_t i = 0; i < depth.group_count; ++i)
      for (int64_t j = 0; j < height.group_count; ++j) {
        const TapGroup& rows = height.groups[j];
        const int64_t chunks = ceil_div(rows.count, kMaxWindow);
        for (int64_t c = 0; c < chunks; ++c) {
          const Taps taps{depth.groups[i], rows, columns, rows.count * c / chunks,
                          rows.count * (c + 1) / chunks};
          const int64_t slices = plan_.sources * taps.depth.count * columns.group_count;
          for (int64_t s = 0; s < slices; s += kMaxSlices)
            started |= pass(taps, d, s, smaller(slices, s + kMaxSlices), weight, bias, started, target);
        }
      }
    if (started) return;
    for (int64_t r = 0; r < target.rows; ++r)
      for (int64_t c = 0; c < target.columns; ++c) target.out[r * target.stride + c] = bias;
  }

  // All taps of a group along the depth and of the row's groups, [h0, h1) of one along the height.
  struct Taps {
    const TapGroup &depth, &height;
    const Piece& row;
    int64_t h0, h1;
  };

  // Slices [begin, end): a source, a tap along the depth and a group along the row each. False where none
  // of them exists.
  bool pass(const Taps& taps, int64_t d, int64_t begin, int64_t end, const T* weight, float bias,
            bool accumulate, const Target& target) {
    const TapGroup &groups_d = taps.depth, &groups_h = taps.height;
    const int64_t h0 = taps.h0, h1 = taps.h1;
    const Extent* extent = staged_.extent;
    const int64_t window = h1 - h0;
    const int64_t depth_size = phase_size(plan_.axes[0], groups_d.phase);
    const int64_t height_size = phase_size(plan_.axes[1], groups_h.phase);
    int64_t offsets[kMaxSlices], slice_taps[kMaxSlices];
    const float* weights[kMaxSlices];
    int64_t slices = 0;
    float* packed = packed_;
    for (int64_t s = begin; s < end; ++s) {
      const TapGroup& groups_w = taps.row.groups[s % taps.row.group_count];
      const int64_t tap = s / taps.row.group_count % groups_d.count;
      const int64_t source = s / taps.row.group_count / groups_d.count;
      const int64_t at = d + groups_d.first + tap * groups_d.step;
      if (at < 0 || at >= depth_size || groups_w.count == 0) continue;
      offsets[slices] = source * plan_.staged_floats +
                        staged_.phase_start(groups_d.phase, groups_h.phase, groups_w.phase) +
                        (at - extent[0].low) * staged_.slice + groups_w.first - extent[2].low;
      slice_taps[slices] = groups_w.count;
      weights[slices++] = packed;
      const T* plane = weight + source * plan_.source_taps +
                       (groups_d.first_tap + tap * groups_d.tap_step) * plan_.kernel[1] * plan_.kernel[2];
      for (int64_t k = 0; k < groups_w.count; ++k)
        for (int64_t h = h0; h < h1; ++h)
          *packed++ = to_float(plane[(groups_h.first_tap + h * groups_h.tap_step) * plan_.kernel[2] +
                                     groups_w.first_tap + k * groups_w.tap_step]);
    }
    if (slices == 0) return false;
    const int64_t step = groups_h.step, first_row = target.rows_begin + groups_h.first + h0 * step;
    Window w;
    w.ahead = &ahead_;
    w.row_stride = step * staged_.pitch;
    w.slice_offsets = offsets;
    w.slice_weights = weights;
    w.slice_taps = slice_taps;
    w.slices = slices;
    w.tap_stride = taps.row.groups[0].step;  // the same of all its groups
    w.accumulate = accumulate;
    w.bias = bias;
    w.out_stride = step * target.stride;
    const float* source = sources_ + target.columns_begin;
    // Rows that a tap step apart are windows of their own.
    for (int64_t r = 0; r < step && r < target.rows; ++r) {
      const int64_t row = first_row + r;
      w.outputs = ceil_div(target.rows - r, step);
      w.first_valid = row >= 0 ? 0 : ceil_div(-row, step);
      w.end_valid = height_size > row ? ceil_div(height_size - row, step) : 0;
      w.source = source + (row - extent[1].low) * staged_.pitch;
      w.out = target.out + r * target.stride;
      slide_window<kMaxWindow>(w, window, target.columns);
    }
    return true;
  }

  const Plan& plan_;
  const Band band_;
  const Staged staged_;
  float *piece_, *packed_, *sources_;
  Ahead ahead_;
};

}  // namespace leanconv::LEANCONV_ISA
