// The correlation itself: a window of TH rows slides down V vectors of columns.
//
// The accumulators of TH output rows stay in registers; each row of the source is loaded once and used
// for all of them, so that a multiply-add takes about one load whatever the kernel's size.
#pragma once

#include "scratch.h"
#include "simd/vec.h"

namespace leanconv::LEANCONV_ISA {

constexpr int kMaxWindow = 8;
#if defined(LEANCONV_ISA_avx512) || defined(LEANCONV_ISA_neon)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif

// Accumulators, the vectors of one row and a weight must fit the registers; one row alone needs many
// vectors to hide the latency of its sums, and takes its operand from memory.
constexpr int widest(int window) {
  if (window == 1) return 8;
  const int fitting = (kRegisters - 1) / (window + 1);
  return fitting > 6 ? 6 : fitting < 1 ? 1 : fitting;
}

// What will be read next, asked for a little at a time while the arithmetic goes on: planes are too short
// for the processor's own prefetching to get going.
class Ahead {
 public:
  void start(const void* begin, int64_t bytes, int64_t turns) {
    at_ = static_cast<const char*>(begin);
    end_ = at_ + bytes;
    step_ = round_up(ceil_div(bytes, larger(turns, 1)), 64);
  }
  void some() {
    const char* stop = step_ < end_ - at_ ? at_ + step_ : end_;
    for (; at_ < stop; at_ += 64) __builtin_prefetch(at_, 0, 2);
  }

 private:
  const char *at_ = nullptr, *end_ = nullptr;
  int64_t step_ = 0;
};

struct Window {
  Ahead* ahead;
  const float* source;                // where the first column of the first row visited would be
  int64_t row_stride;                 // floats from one row visited to the next
  int64_t first_valid, end_valid;     // of the rows visited, those that exist
  int64_t outputs;                    // output rows; rows visited are outputs + window - 1
  const int64_t* slice_offsets;       // of the slices to sum over
  const float* const* slice_weights;  // of each slice: [taps][window]
  const int64_t* slice_taps;
  int64_t slices, tap_stride;
  float* out;
  int64_t out_stride;  // floats from one output row to the next
  bool accumulate;     // start from what `out` holds instead of `bias`
  float bias;
};

template <int TH, int V>
void slide(const Window& w, int64_t column, int last_lanes) {
  Vec acc[TH][V];
  const float* source = w.source + column;
  float* out = w.out + column;
  const bool whole = last_lanes == Vec::width;
  const Vec bias = Vec::broadcast(w.bias);
  const auto start = [&](Vec* row, int64_t output) {
    if (w.accumulate && output < w.outputs) {
      const float* from = out + output * w.out_stride;
      for (int v = 0; v < V - 1; ++v) row[v] = Vec::load(from + v * Vec::width);
      row[V - 1] = whole ? Vec::load(from + (V - 1) * Vec::width)
                         : Vec::load_partial(from + (V - 1) * Vec::width, last_lanes);
    } else {
      for (int v = 0; v < V; ++v) row[v] = bias;
    }
  };
  start(acc[0], 0);
  for (int h = 1; h < TH; ++h)
    for (int v = 0; v < V; ++v) acc[h][v] = bias;
  for (int64_t t = 0; t < w.outputs + TH - 1; ++t) {
    w.ahead->some();
    if (t >= w.first_valid && t < w.end_valid) {
      const float* row = source + t * w.row_stride;
      for (int64_t s = 0; s < w.slices; ++s) {
        const float* x = row + w.slice_offsets[s];
        const float* weights = w.slice_weights[s];
        for (int64_t k = w.slice_taps[s]; k > 0; --k, x += w.tap_stride, weights += TH) {
          Vec loaded[V];
          for (int v = 0; v < V; ++v) loaded[v] = Vec::load(x + v * Vec::width);
          for (int h = 0; h < TH; ++h) {
            const Vec weight = Vec::broadcast(weights[h]);
            for (int v = 0; v < V; ++v) acc[h][v] = fma(loaded[v], weight, acc[h][v]);
          }
        }
      }
    }
    const int64_t done = t - (TH - 1);
    if (done >= 0) {
      float* to = out + done * w.out_stride;
      for (int v = 0; v < V - 1; ++v) acc[TH - 1][v].store(to + v * Vec::width);
      if (whole)
        acc[TH - 1][V - 1].store(to + (V - 1) * Vec::width);
      else
        acc[TH - 1][V - 1].store_partial(to + (V - 1) * Vec::width, last_lanes);
    }
    for (int h = TH - 1; h > 0; --h)
      for (int v = 0; v < V; ++v) acc[h][v] = acc[h - 1][v];
    start(acc[0], t + 1);
  }
}

// Calls slide for `vectors` vectors, a number up to the widest known only here.
template <int TH, int V>
void slide_block(const Window& w, int64_t column, int64_t vectors, int last_lanes) {
  if constexpr (V == 1) {
    slide<TH, 1>(w, column, last_lanes);
  } else {
    if (vectors == V)
      slide<TH, V>(w, column, last_lanes);
    else
      slide_block<TH, V - 1>(w, column, vectors, last_lanes);
  }
}

// All columns [0, columns), in blocks of about the same width.
template <int TH>
void slide_columns(const Window& w, int64_t columns) {
  const int64_t vectors = ceil_div(columns, Vec::width), blocks = ceil_div(vectors, widest(TH));
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t first = vectors * b / blocks, end = vectors * (b + 1) / blocks;
    const int64_t lanes = smaller(columns, end * Vec::width) - (end - 1) * Vec::width;
    slide_block<TH, widest(TH)>(w, first * Vec::width, end - first, int(lanes));
  }
}

template <int TH>
void slide_window(const Window& w, int64_t window, int64_t columns) {
  if constexpr (TH == 1) {
    slide_columns<1>(w, columns);
  } else {
    if (window == TH)
      slide_columns<TH>(w, columns);
    else
      slide_window<TH - 1>(w, window, columns);
  }
}

}  // namespace leanconv::LEANCONV_ISA
