// Products of an output's gradient with the input, summed for a tile of taps.
//
// Each vector of the input is loaded once for TH taps down and each of the gradient once for TW taps
// along: TH + TW loads for TH * TW multiply-adds, all sums in registers until the rows are done.
#pragma once

#include "scratch.h"
#include "simd/vec.h"

namespace leanconv::LEANCONV_ISA {

#if defined(LEANCONV_ISA_avx512) || defined(LEANCONV_ISA_neon)
constexpr int kTileHeight = 4;
constexpr int tile_width(int height) { return height == 1 ? 12 : height == 2 ? 8 : height == 3 ? 7 : 5; }
#else
constexpr int kTileHeight = 3;
constexpr int tile_width(int height) { return height == 1 ? 8 : height == 2 ? 5 : 4; }
#endif

struct TileRows {
  const float* input;  // for the first tap of the first row visited, first column
  int64_t input_stride;
  int64_t first_valid, end_valid;  // of the input rows visited, those that exist
  const float* grad;
  int64_t grad_stride;
  int64_t begin, end;  // output rows; input row t meets output rows t, t - 1, ... t - TH + 1
  int64_t columns, tap_stride;
  float* sums;  // a vector for each tap
  int64_t sum_down, sum_along;
};

template <int TH, int TW>
void add_tile(const TileRows& r) {
  Vec acc[TH][TW];
  for (int h = 0; h < TH; ++h)
    for (int w = 0; w < TW; ++w) acc[h][w] = Vec::load(r.sums + h * r.sum_down + w * r.sum_along);
  const int64_t whole = r.columns / Vec::width * Vec::width;
  const int rest = int(r.columns - whole);
  const int64_t first = larger(r.begin, r.first_valid), last = smaller(r.end + TH - 1, r.end_valid);
  for (int64_t t = first; t < last; ++t) {
    const float* x = r.input + t * r.input_stride;
    const float* g = r.grad + t * r.grad_stride;
    if (t >= r.begin + TH - 1 && t < r.end) {
      for (int64_t c = 0; c < whole; c += Vec::width) {
        Vec grad[TH];
        for (int h = 0; h < TH; ++h) grad[h] = Vec::load(g - h * r.grad_stride + c);
        for (int w = 0; w < TW; ++w) {
          const Vec in = Vec::load(x + c + w * r.tap_stride);
          for (int h = 0; h < TH; ++h) acc[h][w] = fma(grad[h], in, acc[h][w]);
        }
      }
      // Only the lanes that exist: an infinity beside them must not meet a zero.
      if (rest) {
        Vec grad[TH];
        for (int h = 0; h < TH; ++h) grad[h] = Vec::load_partial(g - h * r.grad_stride + whole, rest);
        for (int w = 0; w < TW; ++w) {
          const Vec in = Vec::load_partial(x + whole + w * r.tap_stride, rest);
          for (int h = 0; h < TH; ++h) acc[h][w] = fma(grad[h], in, acc[h][w]);
        }
      }
      continue;
    }
    // At the ends some of the output rows do not exist.
    for (int h = 0; h < TH; ++h) {
      if (t - h < r.begin || t - h >= r.end) continue;
      const float* row = g - h * r.grad_stride;
      for (int64_t c = 0; c < whole; c += Vec::width) {
        const Vec grad = Vec::load(row + c);
        for (int w = 0; w < TW; ++w) acc[h][w] = fma(grad, Vec::load(x + c + w * r.tap_stride), acc[h][w]);
      }
      if (rest) {
        const Vec grad = Vec::load_partial(row + whole, rest);
        for (int w = 0; w < TW; ++w)
          acc[h][w] = fma(grad, Vec::load_partial(x + whole + w * r.tap_stride, rest), acc[h][w]);
      }
    }
  }
  for (int h = 0; h < TH; ++h)
    for (int w = 0; w < TW; ++w) acc[h][w].store(r.sums + h * r.sum_down + w * r.sum_along);
}

template <int TH, int TW>
void tile_along(const TileRows& r, int64_t width) {
  if constexpr (TW == 1) {
    add_tile<TH, 1>(r);
  } else {
    if (width == TW)
      add_tile<TH, TW>(r);
    else
      tile_along<TH, TW - 1>(r, width);
  }
}

template <int TH>
void tile_row(TileRows r, int64_t taps) {
  const int64_t tiles = ceil_div(taps, tile_width(TH));
  const float* input = r.input;
  float* sums = r.sums;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t first = taps * i / tiles, end = taps * (i + 1) / tiles;
    r.input = input + first * r.tap_stride;
    r.sums = sums + first * r.sum_along;
    tile_along<TH, tile_width(TH)>(r, end - first);
  }
}

// All taps of `height` rows, at most kTileHeight, by `taps` along.
template <int TH>
void add_tiles(const TileRows& r, int64_t height, int64_t taps) {
  if constexpr (TH == 1) {
    tile_row<1>(r, taps);
  } else {
    if (height == TH)
      tile_row<TH>(r, taps);
    else
      add_tiles<TH - 1>(r, height, taps);
  }
}

}  // namespace leanconv::LEANCONV_ISA
