// One axis of a convolution as sums over evenly spaced taps.
//
// Both directions become the same thing, a correlation of stride 1. Forward: the source is the input,
// split into `stride` phases (every stride-th element); an output reads each phase through a group of
// evenly spaced taps. Gradient of the input: the source is the output's gradient, of one phase; the
// input's positions fall into `stride` pieces, each of which reads through one group of taps.
#pragma once

#include "problem.h"
#include "scratch.h"

namespace leanconv::LEANCONV_ISA {

// Taps first_tap + i * tap_step, i < count, read source phase `phase` at position + first + i * step.
// `step` is at least 1; `tap_step` may be negative.
struct TapGroup {
  int64_t phase, first_tap, tap_step, count, first, step;
};

// Positions piece_start + j * piece_step of the result, j < size, read through `groups`.
struct Piece {
  int64_t start, step, size, group_count;
  const TapGroup* groups;
};

constexpr int64_t kMaxPhases = 8;  // larger strides are served by the plain loops

struct Axis {
  int64_t source_size, phases, pieces;
  TapGroup groups[kMaxPhases];
  Piece piece[kMaxPhases];
  // Over all pieces: the largest size, and the lowest and highest that a tap adds to a position.
  int64_t largest_piece, lowest_tap, highest_tap;
};

inline int64_t gcd(int64_t a, int64_t b) { return b == 0 ? a : gcd(b, a % b); }
inline int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

inline void measure(Axis& axis) {
  axis.largest_piece = axis.lowest_tap = axis.highest_tap = 0;
  bool none = true;
  for (int64_t i = 0; i < axis.pieces; ++i) {
    axis.largest_piece = larger(axis.largest_piece, axis.piece[i].size);
    for (int64_t g = 0; g < axis.piece[i].group_count; ++g) {
      const TapGroup& group = axis.piece[i].groups[g];
      if (group.count == 0) continue;
      const int64_t last = group.first + (group.count - 1) * group.step;
      axis.lowest_tap = none ? group.first : smaller(axis.lowest_tap, group.first);
      axis.highest_tap = none ? last : larger(axis.highest_tap, last);
      none = false;
    }
  }
}

// Output o reads input o * stride - padding + k * dilation: of its phase r, element o + (.. - r) / stride.
inline void forward_axis(const Problem& p, int d, Axis& axis) {
  const int64_t stride = p.stride[d], dilation = p.dilation[d], kernel = p.kernel[d];
  const int64_t tap_step = stride / gcd(stride, dilation);
  axis.source_size = p.in_size[d];
  axis.phases = stride;
  axis.pieces = 1;
  int64_t count = 0;
  for (int64_t k = 0; k < kernel && k < tap_step; ++k) {
    const int64_t at = k * dilation - p.padding[d], first = floor_div(at, stride);
    axis.groups[count++] = {at - first * stride,         k, tap_step, ceil_div(kernel - k, tap_step), first,
                            tap_step * dilation / stride};
  }
  axis.piece[0] = {0, 1, p.out_size[d], count, axis.groups};
  measure(axis);
}

// Input i gets from output (i + padding - k * dilation) / stride where that is whole.
inline void grad_input_axis(const Problem& p, int d, Axis& axis) {
  const int64_t stride = p.stride[d], dilation = p.dilation[d], kernel = p.kernel[d];
  const int64_t tap_step = stride / gcd(stride, dilation);
  axis.source_size = p.out_size[d];
  axis.phases = 1;
  axis.pieces = smaller(stride, p.in_size[d]);
  for (int64_t i = 0; i < axis.pieces; ++i) {
    int64_t k = 0;
    while (k < kernel && k < tap_step && (i + p.padding[d] - k * dilation) % stride != 0) ++k;
    const bool none = k >= kernel || k >= tap_step;
    // From the last tap to the first, so that the source is read forwards.
    const int64_t count = none ? 0 : ceil_div(kernel - k, tap_step), last = k + (count - 1) * tap_step;
    axis.groups[i] = {0,
                      last,
                      -tap_step,
                      count,
                      none ? 0 : (i + p.padding[d] - last * dilation) / stride,
                      tap_step * dilation / stride};
    axis.piece[i] = {i, stride, ceil_div(p.in_size[d] - i, stride), 1, axis.groups + i};
  }
  measure(axis);
}

// What a phase of a source axis holds: elements phase, phase + phases, ...
inline int64_t phase_size(const Axis& axis, int64_t phase) {
  return phase >= axis.source_size ? 0 : ceil_div(axis.source_size - phase, axis.phases);
}

}  // namespace leanconv::LEANCONV_ISA
