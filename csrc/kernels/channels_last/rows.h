// Rows of a result, and their part in the weight's gradient, over sources whose channels lie together.
#pragma once

#include "kernels/channels_last/correlate.h"
#include "kernels/channels_last/grad_weight.h"

namespace leanconv::LEANCONV_ISA {

constexpr int64_t kMaxStride = 8;

inline int64_t product(const int64_t* sizes) { return sizes[0] * sizes[1] * sizes[2]; }

// The reaches of all axes: one of each position modulo `count`.
struct Reaches {
  Reach axis[3][kMaxStride];
  int64_t count[3];
  const Reach& at(int d, int64_t position) const { return axis[d][position % count[d]]; }

  // Source positions [low, high) that result positions [begin, end) of an axis read.
  void span(int d, int64_t begin, int64_t end, int64_t& low, int64_t& high) const {
    low = INT64_MAX;
    high = INT64_MIN;
    for (int64_t i = begin; i < end; ++i) {
      const Reach& reach = at(d, i);
      if (reach.count == 0) continue;
      low = smaller(low, reach.source(i / count[d], 0));
      high = larger(high, reach.source(i / count[d], reach.count - 1) + 1);
    }
    if (low > high) low = high = 0;
  }
};

inline Reaches forward_reaches(const Problem& p) {
  Reaches reaches;
  for (int d = 0; d < 3; ++d) {
    reaches.count[d] = 1;
    reaches.axis[d][0] = forward_reach(p, d);
  }
  return reaches;
}

inline Reaches grad_input_reaches(const Problem& p) {
  Reaches reaches;
  for (int d = 0; d < 3; ++d) {
    reaches.count[d] = p.stride[d];
    for (int64_t i = 0; i < p.stride[d]; ++i) reaches.axis[d][i] = grad_input_reach(p, d, i);
  }
  return reaches;
}

// Where the pixels of one image are.
struct View {
  const float* origin;
  int64_t slice_stride, row_stride, pixel_stride;
  const float* slice(int64_t d) const { return origin + d * slice_stride; }
};

// The weights of one call, packed once for all threads; whole pairs of vectors of channels may be read.
class Weights {
 public:
  template <class T>
  Weights(const Problem& p, const T* weight, const T* bias)
      : stride_(round_up(p.channels_out, 2 * Vec::width)),
        kernel_row_(p.kernel[2]),
        memory_((product(p.kernel) + 1) * stride_),
        has_bias_(bias != nullptr) {
    if (!memory_.data()) return;
    const int64_t taps = product(p.kernel);
    pack_weights(weight, p.channels_out, taps, stride_, memory_.data());
    if (bias) pack_weights(bias, p.channels_out, 1, stride_, memory_.data() + taps * stride_);
    bias_ = memory_.data() + taps * stride_;
  }
  bool ready() const { return memory_.data() != nullptr; }
  int64_t stride() const { return stride_; }
  const float* bias(int64_t channel) const { return has_bias_ ? bias_ + channel : nullptr; }
  // The first tap that a reach along the row uses, of a row of the kernel.
  const float* row(int64_t kernel_row, const Reach& along, int64_t channel) const {
    return memory_.data() + (kernel_row * kernel_row_ + along.first_tap) * stride_ + channel;
  }

 private:
  int64_t stride_, kernel_row_;
  Scratch memory_;
  bool has_bias_;
  const float* bias_ = nullptr;
};

// Makes one row of the result, `out_stride` from pixel to pixel: channels [channel, channel + channels) of
// the weights, which are the first of the source's and of the result's.
template <class R>
void make_row(const Problem& p, const Reaches& reaches, const View& source, const Weights& weights,
              int64_t slice, int64_t row, int64_t width, int64_t channel, int64_t channels, R* out,
              int64_t out_stride) {
  const Reach &depth = reaches.at(0, slice), &height = reaches.at(1, row);
  const int64_t d = slice / reaches.count[0], h = row / reaches.count[1];
  for (int64_t residue = 0; residue < reaches.count[2] && residue < width; ++residue) {
    const Reach& along = reaches.axis[2][residue];
    RowTaps taps;
    if (along.count > 0)
      for (int64_t i = depth.tap_begin(d); i < depth.tap_end(d); ++i)
        for (int64_t j = height.tap_begin(h); j < height.tap_end(h); ++j) {
          const int64_t kernel_row =
              (depth.first_tap + i * depth.tap_step) * p.kernel[1] + height.first_tap + j * height.tap_step;
          taps.rows[taps.count] = source.slice(depth.source(d, i)) + height.source(h, j) * source.row_stride;
          taps.weights[taps.count++] = weights.row(kernel_row, along, channel);
        }
    RowOfPixels<R> pixels{&along,
                          &taps,
                          source.pixel_stride,
                          along.tap_step * weights.stride(),
                          weights.bias(channel),
                          out + along.start * out_stride,
                          along.step * out_stride,
                          false};
    all_channels(pixels, 0, along.size, channels);
  }
}

// Rows [row, row_end) of a slice, a block of channels at a time: so few that the source rows that
// neighbouring rows share stay in the first cache.
template <class R>
void make_rows(const Problem& p, const Reaches& reaches, const View& source, const Weights& weights,
               int64_t slice, int64_t row, int64_t row_end, int64_t width, int64_t channels, R* out,
               int64_t out_row, int64_t out_stride) {
  constexpr int64_t kCacheFloats = 6 * 1024, pair = 2 * Vec::width;
  const int64_t shared = (p.kernel[0] * p.kernel[1] + 1) * source.row_stride / source.pixel_stride;
  const int64_t block = row_end - row == 1 ? channels : larger(1, kCacheFloats / shared / pair) * pair;
  for (int64_t c = 0; c < channels; c += block) {
    const View from{source.origin + c, source.slice_stride, source.row_stride, source.pixel_stride};
    for (int64_t h = row; h < row_end; ++h)
      make_row(p, reaches, from, weights, slice, h, width, c, smaller(block, channels - c),
               out + (h - row) * out_row + c, out_stride);
  }
}

// Adds rows [row, row_end) of an output slice to a part's totals, [taps, then the bias][stride].
inline void add_rows(const Problem& p, const Reaches& reaches, const View& input, const View& grad,
                     int64_t channels, int64_t slice, int64_t row, int64_t row_end, bool with_bias,
                     double* totals, int64_t stride) {
  const Reach& depth = reaches.axis[0][0];
  const int64_t width = p.out_size[2], block_width = smaller(width, kBlock);
  const int64_t block_rows = larger(1, kBlock / block_width);
  PixelBlock block;
  block.down = &reaches.axis[1][0];
  block.along = &reaches.axis[2][0];
  block.input_row = input.row_stride;
  block.input_pixel = input.pixel_stride;
  block.grad = grad.slice(slice);
  block.grad_row = grad.row_stride;
  block.grad_pixel = grad.pixel_stride;
  for (block.row_begin = row; block.row_begin < row_end; block.row_begin = block.row_end)
    for (block.begin = 0, block.row_end = smaller(row_end, block.row_begin + block_rows); block.begin < width;
         block.begin = block.end) {
      block.end = smaller(width, block.begin + block_width);
      for (int64_t c = 0; c < channels; c += Vec::width) {
        const int lanes = int(smaller(Vec::width, channels - c));
        for (int64_t i = depth.tap_begin(slice); i < depth.tap_end(slice); ++i) {
          block.input = input.slice(depth.source(slice, i));
          double* at = totals + i * p.kernel[1] * p.kernel[2] * stride;
          if (lanes == Vec::width)
            all_taps<false>(block, c, lanes, at, p.kernel[2] * stride, stride);
          else
            all_taps<true>(block, c, lanes, at, p.kernel[2] * stride, stride);
        }
        if (!with_bias) continue;
        Vec sum = Vec::zero();
        for (int64_t h = block.row_begin; h < block.row_end; ++h)
          for (int64_t x = block.begin; x < block.end; ++x) {
            const float* from = block.grad + h * block.grad_row + x * block.grad_pixel + c;
            sum = sum + (lanes == Vec::width ? Vec::load(from) : Vec::load_partial(from, lanes));
          }
        float sums[Vec::width];
        sum.store(sums);
        for (int lane = 0; lane < lanes; ++lane)
          totals[product(p.kernel) * stride + c + lane] += double(sums[lane]);
      }
    }
}

}  // namespace leanconv::LEANCONV_ISA
