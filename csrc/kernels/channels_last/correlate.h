// Forward and gradient of the input over channels_last tensors: a vector holds neighbouring channels.
//
// A tile is P pixels along the row by V vectors of channels, all in registers; a tap's weights are loaded
// once for the P pixels and the source is an operand from memory. Taps outside the source are left out,
// never multiplied by zero.
#pragma once

#include "kernels/channels_last/reach.h"
#include "simd/vec.h"

namespace leanconv::LEANCONV_ISA {

// One row of the result: what it reads, a list of source rows with the weights of their taps.
struct RowTaps {
  static constexpr int64_t kMost = 256;
  const float* rows[kMost];     // pixel 0 of a source row
  const float* weights[kMost];  // [taps][weight_stride]
  int64_t count = 0;
};

template <class T>
struct RowOfPixels {
  const Reach* reach;  // along the row
  const RowTaps* taps;
  int64_t source_stride, weight_stride;  // floats from pixel to pixel, from tap to tap
  const float* bias;                     // of every channel, or null
  T* out;                                // pixel 0
  int64_t out_stride;
  bool accumulate;  // add to what `out` holds
};

template <int P, int V, bool Tail, class T>
void pixel_tile(const RowOfPixels<T>& row, int64_t pixel, int64_t tap_begin, int64_t tap_end, int64_t channel,
                int lanes) {
  const auto load = [&](const auto* from) { return Tail ? Vec::load_partial(from, lanes) : Vec::load(from); };
  T* out = row.out + pixel * row.out_stride + channel;
  Vec acc[P][V];
  for (int p = 0; p < P; ++p)
    for (int v = 0; v < V; ++v) {
      if (row.accumulate)
        acc[p][v] = load(out + p * row.out_stride + v * Vec::width);
      else
        acc[p][v] = row.bias ? Vec::load(row.bias + channel + v * Vec::width) : Vec::zero();
    }
  const Reach& reach = *row.reach;
  const int64_t next = reach.stride * row.source_stride;
  for (int64_t r = 0; r < row.taps->count; ++r) {
    const float* x = row.taps->rows[r] + reach.source(pixel, tap_begin) * row.source_stride + channel;
    const float* w = row.taps->weights[r] + tap_begin * row.weight_stride + channel;
    for (int64_t k = tap_begin; k < tap_end; ++k) {
      Vec weight[V];
      for (int v = 0; v < V; ++v) weight[v] = Vec::load(w + v * Vec::width);
      for (int p = 0; p < P; ++p)
        for (int v = 0; v < V; ++v)
          acc[p][v] = fma(load(x + p * next + v * Vec::width), weight[v], acc[p][v]);
      x += reach.spacing * row.source_stride;
      w += row.weight_stride;
    }
  }
  for (int p = 0; p < P; ++p)
    for (int v = 0; v < V; ++v) {
      T* to = out + p * row.out_stride + v * Vec::width;
      if constexpr (Tail)
        acc[p][v].store_partial(to, lanes);
      else
        acc[p][v].store(to);
    }
}

// Pixels [begin, end) of one block of channels.
template <int V, bool Tail, class T>
void pixels_of_row(const RowOfPixels<T>& row, int64_t begin, int64_t end, int64_t channel, int lanes) {
  const Reach& reach = *row.reach;
  // Where every tap lies inside the source.
  int64_t inner_begin = reach.count ? reach.position_begin(0) : 0;
  int64_t inner_end = reach.count ? reach.position_end(reach.count - 1) : reach.size;
  inner_begin = smaller(larger(inner_begin, begin), end);
  inner_end = larger(smaller(inner_end, end), inner_begin);
  const auto single = [&](int64_t from, int64_t to) {
    for (int64_t j = from; j < to; ++j)
      pixel_tile<1, V, Tail>(row, j, reach.tap_begin(j), reach.tap_end(j), channel, lanes);
  };
  single(begin, inner_begin);
  int64_t j = inner_begin;
  for (; j + 6 <= inner_end; j += 6) pixel_tile<6, V, Tail>(row, j, 0, reach.count, channel, lanes);
  if (j + 4 <= inner_end) {
    pixel_tile<4, V, Tail>(row, j, 0, reach.count, channel, lanes);
    j += 4;
  }
  if (j + 2 <= inner_end) {
    pixel_tile<2, V, Tail>(row, j, 0, reach.count, channel, lanes);
    j += 2;
  }
  if (j < inner_end) pixel_tile<1, V, Tail>(row, j, 0, reach.count, channel, lanes);
  single(inner_end, end);
}

// Pixels [begin, end) of all channels.
template <class T>
void all_channels(const RowOfPixels<T>& row, int64_t begin, int64_t end, int64_t channels) {
  int64_t c = 0;
  for (; c + 2 * Vec::width <= channels; c += 2 * Vec::width)
    pixels_of_row<2, false>(row, begin, end, c, Vec::width);
  if (c + Vec::width <= channels) {
    pixels_of_row<1, false>(row, begin, end, c, Vec::width);
    c += Vec::width;
  }
  if (c < channels) pixels_of_row<1, true>(row, begin, end, c, int(channels - c));
}

// Weights as [taps][channels rounded up], as floats, so that a vector of channels is one load.
template <class T>
void pack_weights(const T* weight, int64_t channels, int64_t taps, int64_t stride, float* packed) {
  for (int64_t tap = 0; tap < taps; ++tap) {
    float* to = packed + tap * stride;
    for (int64_t c = 0; c < channels; ++c) to[c] = to_float(weight[c * taps + tap]);
    for (int64_t c = channels; c < stride; ++c) to[c] = 0.0f;
  }
}

}  // namespace leanconv::LEANCONV_ISA
