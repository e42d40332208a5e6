// The gradient of the weight over channels_last tensors: each lane sums for a channel of its own.
//
// A tile of taps is kept in registers over a block of rows; a vector of the output's gradient is loaded
// once for all of them and the input is an operand from memory. After at most kBlock pixels the sums go
// into doubles.
#pragma once

#include "kernels/channels_last/reach.h"
#include "simd/vec.h"

namespace leanconv::LEANCONV_ISA {

constexpr int64_t kBlock = 96;
#if defined(LEANCONV_ISA_avx512) || defined(LEANCONV_ISA_neon)
constexpr int kTapsAlong = 7;
constexpr int kTapsDown = 3;
#else
constexpr int kTapsAlong = 4;
constexpr int kTapsDown = 3;
#endif

struct PixelBlock {
  const Reach* down;
  const Reach* along;
  const float* input;  // pixel (0, 0) of a source slice
  int64_t input_row, input_pixel;
  const float* grad;  // pixel (0, 0) of an output slice
  int64_t grad_row, grad_pixel;
  int64_t row_begin, row_end, begin, end;  // output pixels
};

// Adds the products of taps [h, h + TH) x [w, w + TW) to sums[tap * tap_stride].
template <int TH, int TW, bool Tail>
void tap_tile(const PixelBlock& b, int64_t h0, int64_t w0, int64_t channel, int lanes, double* totals,
              int64_t down_stride, int64_t along_stride) {
  const auto load = [&](const float* from) {
    return Tail ? Vec::load_partial(from, lanes) : Vec::load(from);
  };
  Vec acc[TH][TW];
  for (int h = 0; h < TH; ++h)
    for (int w = 0; w < TW; ++w) acc[h][w] = Vec::zero();
  const Reach &down = *b.down, &along = *b.along;
  const int64_t step = along.stride * b.input_pixel, spacing = along.spacing * b.input_pixel;
  const int64_t inner_begin = smaller(b.end, larger(b.begin, along.position_begin(w0)));
  const int64_t inner_end = larger(inner_begin, smaller(b.end, along.position_end(w0 + TW - 1)));
  for (int64_t row = b.row_begin; row < b.row_end; ++row) {
    const float* grad = b.grad + row * b.grad_row + channel;
    const float* input[TH];
    bool valid[TH], all = true;
    for (int h = 0; h < TH; ++h) {
      const int64_t at = down.source(row, h0 + h);
      valid[h] = at >= 0 && at < down.source_size;
      all = all && valid[h];
      input[h] = b.input + at * b.input_row + along.source(0, w0) * b.input_pixel + channel;
    }
    if (all) {
      for (int64_t j = inner_begin; j < inner_end; ++j) {
        const Vec g = load(grad + j * b.grad_pixel);
        for (int h = 0; h < TH; ++h)
          for (int w = 0; w < TW; ++w) acc[h][w] = fma(load(input[h] + j * step + w * spacing), g, acc[h][w]);
      }
    }
    // What the tile as a whole does not reach: rows beside the source, and the ends of the row.
    for (int h = 0; h < TH; ++h) {
      if (!valid[h]) continue;
      for (int w = 0; w < TW; ++w) {
        const int64_t from = larger(b.begin, along.position_begin(w0 + w));
        const int64_t to = smaller(b.end, along.position_end(w0 + w));
        const auto add = [&](int64_t j) {
          acc[h][w] = fma(load(input[h] + j * step + w * spacing), load(grad + j * b.grad_pixel), acc[h][w]);
        };
        for (int64_t j = from; j < (all ? smaller(to, inner_begin) : to); ++j) add(j);
        if (all)
          for (int64_t j = larger(from, inner_end); j < to; ++j) add(j);
      }
    }
  }
  for (int h = 0; h < TH; ++h)
    for (int w = 0; w < TW; ++w) {
      float sums[Vec::width];
      acc[h][w].store(sums);
      double* total = totals + h * down_stride + w * along_stride + channel;
      for (int lane = 0; lane < (Tail ? lanes : Vec::width); ++lane) total[lane] += double(sums[lane]);
    }
}

template <int TH, int TW, bool Tail>
void tiles_along(const PixelBlock& b, int64_t h, int64_t w, int64_t width, int64_t channel, int lanes,
                 double* totals, int64_t down_stride, int64_t along_stride) {
  if constexpr (TW == 1) {
    tap_tile<TH, 1, Tail>(b, h, w, channel, lanes, totals, down_stride, along_stride);
  } else {
    if (width == TW)
      tap_tile<TH, TW, Tail>(b, h, w, channel, lanes, totals, down_stride, along_stride);
    else
      tiles_along<TH, TW - 1, Tail>(b, h, w, width, channel, lanes, totals, down_stride, along_stride);
  }
}

// All taps of one slice of the kernel; totals[(tap down) * down_stride + (tap along) * along_stride].
template <bool Tail>
void all_taps(const PixelBlock& b, int64_t channel, int lanes, double* totals, int64_t down_stride,
              int64_t along_stride) {
  const int64_t rows = ceil_div(b.down->count, kTapsDown), columns = ceil_div(b.along->count, kTapsAlong);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t h = b.down->count * i / rows, height = b.down->count * (i + 1) / rows - h;
      const int64_t w = b.along->count * j / columns, width = b.along->count * (j + 1) / columns - w;
      double* at = totals + h * down_stride + w * along_stride;
      if (height == 1)
        tiles_along<1, kTapsAlong, Tail>(b, h, w, width, channel, lanes, at, down_stride, along_stride);
      else if (height == 2)
        tiles_along<2, kTapsAlong, Tail>(b, h, w, width, channel, lanes, at, down_stride, along_stride);
      else
        tiles_along<3, kTapsAlong, Tail>(b, h, w, width, channel, lanes, at, down_stride, along_stride);
    }
}

}  // namespace leanconv::LEANCONV_ISA
