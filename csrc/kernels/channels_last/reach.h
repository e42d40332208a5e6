// One axis of a convolution over channels_last tensors: which source positions a result position reads.
//
// Result position start + j * step, j < size, reads source position j * stride + first + i * spacing
// through tap first_tap + i * tap_step, i < count. Forward has one reach an axis; the gradient of the
// input has one for each position modulo the stride, since each meets other taps.
#pragma once

#include "problem.h"
#include "scratch.h"

namespace leanconv::LEANCONV_ISA {

struct Reach {
  int64_t start, step, size;
  int64_t stride, first, spacing, count, first_tap, tap_step;
  int64_t source_size;

  int64_t source(int64_t j, int64_t tap) const { return j * stride + first + tap * spacing; }
  // Taps [begin, end) of position j lie inside the source.
  int64_t tap_begin(int64_t j) const {
    const int64_t at = source(j, 0);
    return at >= 0 ? 0 : smaller(count, ceil_div(-at, spacing));
  }
  int64_t tap_end(int64_t j) const {
    const int64_t at = source(j, 0);
    return at >= source_size ? 0 : smaller(count, ceil_div(source_size - at, spacing));
  }
  // Positions [begin, end) at which `tap` lies inside the source.
  int64_t position_begin(int64_t tap) const {
    const int64_t at = source(0, tap);
    return at >= 0 ? 0 : smaller(size, ceil_div(-at, stride));
  }
  int64_t position_end(int64_t tap) const {
    const int64_t at = source(0, tap);
    return at >= source_size ? 0 : smaller(size, ceil_div(source_size - at, stride));
  }
};

inline int64_t greatest_divisor(int64_t a, int64_t b) { return b == 0 ? a : greatest_divisor(b, a % b); }

inline Reach forward_reach(const Problem& p, int d) {
  return {0, 1, p.out_size[d], p.stride[d], -p.padding[d], p.dilation[d], p.kernel[d], 0, 1, p.in_size[d]};
}

// Of the input's positions that are `residue` modulo the stride; output (i + padding - k * dilation) /
// stride.
inline Reach grad_input_reach(const Problem& p, int d, int64_t residue) {
  const int64_t stride = p.stride[d], dilation = p.dilation[d], kernel = p.kernel[d];
  const int64_t tap_step = stride / greatest_divisor(stride, dilation);
  int64_t k = 0;
  while (k < kernel && k < tap_step && (residue + p.padding[d] - k * dilation) % stride != 0) ++k;
  const bool none = k >= kernel || k >= tap_step;
  const int64_t count = none ? 0 : ceil_div(kernel - k, tap_step), last = k + (count - 1) * tap_step;
  const int64_t size = residue < p.in_size[d] ? ceil_div(p.in_size[d] - residue, stride) : 0;
  return {residue,
          stride,
          size,
          1,
          none ? 0 : (residue + p.padding[d] - last * dilation) / stride,
          tap_step * dilation / stride,
          count,
          last,
          -tap_step,
          p.out_size[d]};
}

}  // namespace leanconv::LEANCONV_ISA
