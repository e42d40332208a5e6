// What may stand between the depthwise and the pointwise half, and its derivative; torch's definitions.
#pragma once

#include <math.h>

#include "problem.h"
#include "simd/element.h"

namespace leanconv::LEANCONV_ISA {

// e^x to about one unit in the last place: 2^n times a Taylor sum over at most half of ln 2.
inline float exponential(float x) {
  x = x > 88.0f ? 88.0f : x < -87.0f ? -87.0f : x;
  const float scaled = x * 1.44269504f;
  const int n = int(scaled + (scaled < 0.0f ? -0.5f : 0.5f));
  const float r = (x - float(n) * 0.693359375f) + float(n) * 2.12194440e-4f;
  float sum = 1.0f / 5040.0f;
  sum = sum * r + 1.0f / 720.0f;
  sum = sum * r + 1.0f / 120.0f;
  sum = sum * r + 1.0f / 24.0f;
  sum = sum * r + 1.0f / 6.0f;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  return sum * bits_to_float(uint32_t(n + 127) << 23);
}
// NaN stays NaN.
inline float sigmoid(float x) { return x == x ? 1.0f / (1.0f + exponential(-x)) : x; }

inline float activated(float x, int32_t activation) {
  switch (activation) {
    case LEANCONV_RELU:
      return x < 0.0f ? 0.0f : x;
    case LEANCONV_RELU6:
      return x < 0.0f ? 0.0f : x > 6.0f ? 6.0f : x;
    case LEANCONV_SILU:
      return x * sigmoid(x);
    case LEANCONV_GELU:
      return 0.5f * x * (1.0f + erff(x * 0.707106781f));
    case LEANCONV_HARDSWISH: {
      const float shifted = x + 3.0f;
      return x * (shifted < 0.0f ? 0.0f : shifted > 6.0f ? 6.0f : shifted) * (1.0f / 6.0f);
    }
    default:
      return x;
  }
}

inline float derivative(float x, int32_t activation) {
  switch (activation) {
    case LEANCONV_RELU:
      return x <= 0.0f ? 0.0f : 1.0f;
    case LEANCONV_RELU6:
      return x <= 0.0f || x >= 6.0f ? 0.0f : 1.0f;
    case LEANCONV_SILU: {
      const float s = sigmoid(x);
      return s * (1.0f + x * (1.0f - s));
    }
    case LEANCONV_GELU:
      return 0.5f * (1.0f + erff(x * 0.707106781f)) + x * 0.39894228f * exponential(-0.5f * x * x);
    case LEANCONV_HARDSWISH:
      return x <= -3.0f ? 0.0f : x >= 3.0f ? 1.0f : x * (1.0f / 3.0f) + 0.5f;
    default:
      return 1.0f;
  }
}

template <int32_t Activation>
void activate(const float* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = activated(from[i], Activation);
}
template <int32_t Activation>
void multiply_by_derivative(const float* before, int64_t count, float* grad) {
  for (int64_t i = 0; i < count; ++i) grad[i] *= derivative(before[i], Activation);
}

// The activation is a constant in each loop, which is then made of vectors.
#define LEANCONV_BY_ACTIVATION(run, ...)           \
  switch (activation) {                            \
    case LEANCONV_RELU:                            \
      return run<LEANCONV_RELU>(__VA_ARGS__);      \
    case LEANCONV_RELU6:                           \
      return run<LEANCONV_RELU6>(__VA_ARGS__);     \
    case LEANCONV_SILU:                            \
      return run<LEANCONV_SILU>(__VA_ARGS__);      \
    case LEANCONV_GELU:                            \
      return run<LEANCONV_GELU>(__VA_ARGS__);      \
    case LEANCONV_HARDSWISH:                       \
      return run<LEANCONV_HARDSWISH>(__VA_ARGS__); \
    default:                                       \
      return run<LEANCONV_IDENTITY>(__VA_ARGS__);  \
  }

inline void activate(int32_t activation, const float* from, int64_t count, float* to) {
  LEANCONV_BY_ACTIVATION(activate, from, count, to)
}
inline void multiply_by_derivative(int32_t activation, const float* before, int64_t count, float* grad) {
  LEANCONV_BY_ACTIVATION(multiply_by_derivative, before, count, grad)
}

}  // namespace leanconv::LEANCONV_ISA
