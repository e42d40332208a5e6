// Products of matrices whose right side lies in panels: the pointwise half of a separable convolution and
// its gradients.
//
// A tile of kTileRows by kTileVectors is summed in registers over the whole depth, so nothing partial is
// written. The left side is read where it lies, an element at a time; the right side is packed into panels
// of [depth][up to kTileVectors vectors] that stay in the first cache while the rows pass.
#pragma once

#include "scratch.h"
#include "simd/vec.h"

namespace leanconv::LEANCONV_ISA {

#if defined(LEANCONV_ISA_avx512) || defined(LEANCONV_ISA_neon)
constexpr int kTileRows = 8, kTileVectors = 3;
#else
constexpr int kTileRows = 6, kTileVectors = 2;
#endif

// How `columns` are shared out to panels of about the same width.
struct Panels {
  int64_t columns, vectors, count;
  explicit Panels(int64_t columns)
      : columns(columns), vectors(ceil_div(columns, Vec::width)), count(ceil_div(vectors, kTileVectors)) {}
  int64_t first(int64_t panel) const { return vectors * panel / count * Vec::width; }
  int64_t vectors_of(int64_t panel) const { return vectors * (panel + 1) / count - vectors * panel / count; }
  // Columns of a panel that exist.
  int64_t columns_of(int64_t panel) const {
    return smaller(columns, first(panel) + vectors_of(panel) * Vec::width) - first(panel);
  }
  int64_t floats(int64_t depth) const { return vectors * Vec::width * depth; }
};

// [depth][columns] at `stride` to a panel, zeros past the columns.
template <class T>
void pack_panel(const T* from, int64_t stride, int64_t depth, int64_t columns, int64_t vectors,
                float* panel) {
  const int64_t whole = columns / Vec::width, rest = columns % Vec::width, width = vectors * Vec::width;
  for (int64_t k = 0; k < depth; ++k, from += stride, panel += width) {
    for (int64_t v = 0; v < whole; ++v) Vec::load(from + v * Vec::width).store(panel + v * Vec::width);
    if (rest) Vec::load_partial(from + whole * Vec::width, int(rest)).store(panel + whole * Vec::width);
  }
}

// [columns][depth] at `stride` to a panel.
template <class T>
void pack_panel_transposed(const T* from, int64_t stride, int64_t depth, int64_t columns, int64_t vectors,
                           float* panel) {
  const int64_t width = vectors * Vec::width;
  int64_t column = 0;
#ifdef LEANCONV_TRANSPOSES
  const int64_t whole = depth / 8 * 8;
  for (; column + 8 <= columns; column += 8) {
    for (int64_t k = 0; k < whole; k += 8)
      transpose_8x8(from + column * stride + k, stride, panel + k * width + column, width);
    for (int64_t c = column; c < column + 8; ++c)
      for (int64_t k = whole; k < depth; ++k) panel[k * width + c] = to_float(from[c * stride + k]);
  }
#endif
  for (; column < columns; ++column)
    for (int64_t k = 0; k < depth; ++k) panel[k * width + column] = to_float(from[column * stride + k]);
  for (; column < width; ++column)
    for (int64_t k = 0; k < depth; ++k) panel[k * width + column] = 0.0f;
}

// The left side: element (row, k) at row * row_stride + k * step.
struct Left {
  const float* at;
  int64_t row_stride, step;
};

// What the next tile will read, fetched a little at a time while this one's products are made: pieces of
// `bytes`, `stride` apart.
class Upcoming {
 public:
  void add(const void* from, int64_t bytes, int64_t stride, int64_t pieces) {
    if (count_ < kMost) parts_[count_++] = {static_cast<const char*>(from), bytes, stride, pieces};
    lines_ += ceil_div(bytes, 64) * pieces;
  }
  // The rest will be asked for in about `calls` calls.
  void spread_over(int64_t calls) { each_ = ceil_div(lines_, larger(1, calls)); }
  void some() {
    for (int64_t i = 0; i < each_ && part_ < count_; ++i) {
      const Part& part = parts_[part_];
      __builtin_prefetch(part.from + piece_ * part.stride + at_, 0, 2);
      at_ += 64;
      if (at_ < part.bytes) continue;
      at_ = 0;
      if (++piece_ < part.pieces) continue;
      piece_ = 0;
      ++part_;
    }
  }

 private:
  static constexpr int kMost = 2;
  struct Part {
    const char* from;
    int64_t bytes, stride, pieces;
  };
  Part parts_[kMost];
  int count_ = 0, part_ = 0;
  int64_t lines_ = 0, each_ = 0, piece_ = 0, at_ = 0;
};

// Results stored as T, with a bias of each row or of each column added.
template <class T>
struct StoreAs {
  T* at;
  int64_t row_stride;
  const float *row_bias, *column_bias;  // null where there is none; whole vectors of the latter are read
  Upcoming* upcoming;

  // The lines to be written are fetched while the sums are made.
  template <int R, int V>
  void expect(int64_t row, int64_t column) const {
    upcoming->some();
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v)
        __builtin_prefetch(at + (row + r) * row_stride + column + v * Vec::width, 1, 2);
  }

  template <int R, int V>
  void take(const Vec (&acc)[R][V], int64_t row, int64_t column, int lanes) const {
    for (int r = 0; r < R; ++r) {
      T* to = at + (row + r) * row_stride + column;
      for (int v = 0; v < V; ++v) {
        Vec result = acc[r][v];
        if (row_bias) result = result + Vec::broadcast(row_bias[row + r]);
        if (column_bias) result = result + Vec::load(column_bias + column + v * Vec::width);
        if (v < V - 1 || lanes == Vec::width)
          result.store(to + v * Vec::width);
        else
          result.store_partial(to + v * Vec::width, lanes);
      }
    }
  }
};

// Results added to totals in double, whose rows hold whole vectors.
struct AddTo {
  double* at;
  int64_t row_stride;
  Upcoming* upcoming;

  template <int R, int V>
  void expect(int64_t row, int64_t column) const {
    upcoming->some();
    for (int r = 0; r < R; ++r) __builtin_prefetch(at + (row + r) * row_stride + column, 1, 2);
  }

  template <int R, int V>
  void take(const Vec (&acc)[R][V], int64_t row, int64_t column, int) const {
    float sums[V * Vec::width];
    for (int r = 0; r < R; ++r) {
      double* to = at + (row + r) * row_stride + column;
      for (int v = 0; v < V; ++v) acc[r][v].store(sums + v * Vec::width);
      for (int i = 0; i < V * Vec::width; ++i) to[i] += double(sums[i]);
    }
  }
};

template <int R, int V, class Result>
void product_tile(const Left& left, const float* panel, int64_t depth, const Result& result, int64_t row,
                  int64_t column, int lanes) {
  Vec acc[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) acc[r][v] = Vec::zero();
  result.template expect<R, V>(row, column);
  const float* a = left.at + row * left.row_stride;
  const int64_t next = left.row_stride;
  for (int64_t k = 0; k < depth; ++k, a += left.step, panel += V * Vec::width) {
    Vec b[V];
    for (int v = 0; v < V; ++v) b[v] = Vec::load(panel + v * Vec::width);
    for (int r = 0; r < R; ++r) {
      const Vec x = Vec::broadcast(a[r * next]);
      for (int v = 0; v < V; ++v) acc[r][v] = fma(x, b[v], acc[r][v]);
    }
  }
  result.take(acc, row, column, lanes);
}

template <int R, int V, class Result>
void product_rows(const Left& left, int64_t rows, const float* panel, int64_t depth, const Result& result,
                  int64_t row, int64_t column, int lanes) {
  if constexpr (R == 1) {
    product_tile<1, V>(left, panel, depth, result, row, column, lanes);
  } else {
    if (rows == R)
      product_tile<R, V>(left, panel, depth, result, row, column, lanes);
    else
      product_rows<R - 1, V>(left, rows, panel, depth, result, row, column, lanes);
  }
}

// All rows by the columns of one panel, which are the result's from `column` on.
template <int V = kTileVectors, class Result>
void product_panel(const Left& left, int64_t rows, const float* panel, int64_t vectors, int64_t columns,
                   int64_t depth, const Result& result, int64_t column) {
  if constexpr (V > 1) {
    if (vectors < V) {
      product_panel<V - 1>(left, rows, panel, vectors, columns, depth, result, column);
      return;
    }
  }
  const int lanes = int(columns - (V - 1) * Vec::width);
  // Rows in blocks of about the same height: a block of one row would wait for its own sums.
  const int64_t blocks = ceil_div(rows, kTileRows);
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t row = rows * b / blocks, end = rows * (b + 1) / blocks;
    product_rows<kTileRows, V>(left, end - row, panel, depth, result, row, column, lanes);
  }
}

// All rows by all panels.
template <class Result>
void product_panels(const Left& left, int64_t rows, const float* packed, const Panels& panels, int64_t depth,
                    const Result& result) {
  for (int64_t i = 0; i < panels.count; ++i)
    product_panel(left, rows, packed + panels.first(i) * depth, panels.vectors_of(i), panels.columns_of(i),
                  depth, result, panels.first(i));
}

// Tiles of registers that a product of so many rows and columns is made of.
inline int64_t product_tiles(int64_t rows, int64_t columns) {
  return ceil_div(rows, kTileRows) * Panels(columns).count;
}

// A row's length such that rows do not fall into the same few lines of a cache.
inline int64_t spread(int64_t floats) {
  const int64_t whole = round_up(floats, 16);
  return whole % 128 == 0 ? whole + 16 : whole;
}

}  // namespace leanconv::LEANCONV_ISA
