// Staging: part of a source plane as floats, split into phases, with zeros beside its rows.
#pragma once

#include "kernels/contiguous/axis.h"
#include "simd/vec.h"

namespace leanconv::LEANCONV_ISA {

// The part of the result that one job makes: some of every piece's positions along `axis`, the same of
// each, so that pieces still interleave.
struct Band {
  int axis;
  int64_t largest, index, count;  // of the axis's pieces the largest; which band of how many
  int64_t begin(int d, int64_t size) const { return d == axis ? smaller(size, largest * index / count) : 0; }
  int64_t end(int d, int64_t size) const {
    return d == axis ? smaller(size, largest * (index + 1) / count) : size;
  }
};

// Source positions [low, high) of an axis, in each phase; along the row also those outside the source.
struct Extent {
  int64_t low, high;
  int64_t size() const { return high > low ? high - low : 0; }
};

inline Extent extent_of(const Axis& axis, const Band& band, int d, bool padded) {
  int64_t begin = axis.largest_piece, end = 0;
  for (int64_t i = 0; i < axis.pieces; ++i) {
    begin = smaller(begin, band.begin(d, axis.piece[i].size));
    end = larger(end, band.end(d, axis.piece[i].size));
  }
  Extent extent{begin + axis.lowest_tap, end + axis.highest_tap};
  if (!padded) {
    extent.low = larger(extent.low, 0);
    extent.high = smaller(extent.high, phase_size(axis, 0));
  }
  return extent;
}

struct Staged {
  Extent extent[3];
  int64_t pitch, slice, phase;  // floats from row to row, slice to slice, phase to phase
  int64_t phases[3];

  Staged(const Axis* axes, const Band& band) {
    for (int d = 0; d < 3; ++d) {
      extent[d] = extent_of(axes[d], band, d, d == 2);
      phases[d] = axes[d].phases;
    }
    // The last vector of a row may reach past what is needed, in reading and in gathering.
    pitch = round_up(extent[2].size() + Vec::width, Vec::width);
    slice = pitch * extent[1].size();
    phase = slice * extent[0].size();
  }
  int64_t floats() const { return phase * phases[0] * phases[1] * phases[2] + Vec::width; }
  int64_t phase_start(int64_t d, int64_t h, int64_t w) const {
    return ((d * phases[1] + h) * phases[2] + w) * phase;
  }
};

// Elements [0, count) of src, every `step`-th, as floats; up to a vector's end, zeros.
template <class T>
void gather_row(const T* src, int64_t step, int64_t count, float* dst) {
  if (step == 1) {
    int64_t i = 0;
    for (; i + Vec::width <= count; i += Vec::width) Vec::load(src + i).store(dst + i);
    if (i < count) Vec::load_partial(src + i, int(count - i)).store(dst + i);
  } else {
    for (int64_t i = 0; i < count; ++i) dst[i] = to_float(src[step * i]);
  }
}

// The even elements to one row and the odd ones to another; `pairs` of both, then perhaps one even more.
template <class T>
void split_row(const T* src, int64_t pairs, bool one_more, float* even, float* odd) {
  int64_t i = 0;
  for (; i + Vec::width <= pairs; i += Vec::width) {
    Vec a, b;
    deinterleave(Vec::load(src + 2 * i), Vec::load(src + 2 * i + Vec::width), a, b);
    a.store(even + i);
    b.store(odd + i);
  }
  for (; i < pairs; ++i) {
    even[i] = to_float(src[2 * i]);
    odd[i] = to_float(src[2 * i + 1]);
  }
  if (one_more) even[pairs] = to_float(src[2 * pairs]);
}

// Fills `out` with the source plane's part that the band needs; what lies beside the rows stays as it is,
// zeros if it was zeroed once.
template <class T>
void stage(const T* plane, const Axis* axes, const Staged& staged, float* out) {
  const int64_t height = axes[1].source_size, width = axes[2].source_size;
  const Extent* extent = staged.extent;
  const int64_t step = staged.phases[2], first = larger(0, extent[2].low);
  const auto count = [&](int64_t pw) {
    return larger(0, smaller(phase_size(axes[2], pw), extent[2].high) - first);
  };
  // In the order of memory, whatever phases the rows belong to.
  const int64_t depth_end = smaller(axes[0].source_size, extent[0].high * staged.phases[0]);
  const int64_t height_end = smaller(height, extent[1].high * staged.phases[1]);
  for (int64_t z = extent[0].low * staged.phases[0]; z < depth_end; ++z)
    for (int64_t y = extent[1].low * staged.phases[1]; y < height_end; ++y) {
      const T* from = plane + (z * height + y) * width;
      float* to = out + staged.phase_start(z % staged.phases[0], y % staged.phases[1], 0) +
                  (z / staged.phases[0] - extent[0].low) * staged.slice +
                  (y / staged.phases[1] - extent[1].low) * staged.pitch + first - extent[2].low;
      if (step == 2)
        split_row(from + first * 2, count(1), count(0) > count(1), to, to + staged.phase);
      else
        for (int64_t pw = 0; pw < step; ++pw)
          gather_row(from + first * step + pw, step, count(pw), to + pw * staged.phase);
    }
}

}  // namespace leanconv::LEANCONV_ISA
