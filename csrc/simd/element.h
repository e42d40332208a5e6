// Storage types and their conversion to float, in plain C++.
#pragma once

#include <cstdint>
#include <cstring>

// Everything an instruction set's unit defines lives in a namespace of its own: an inline function
// emitted twice under one name would be merged by the linker, and the baseline could run AVX-512 code.
// For the same reason units use no standard library templates that may be emitted out of line.
#ifndef LEANCONV_ISA
#error "LEANCONV_ISA names the instruction set of this unit"
#endif

namespace leanconv::LEANCONV_ISA {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

inline float bits_to_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline uint32_t float_to_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return bits_to_float(uint32_t(x.bits) << 16); }
inline float to_float(f16 x) {
  const uint32_t sign = uint32_t(x.bits & 0x8000) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1f, mantissa = x.bits & 0x3ff;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24 is exact in float
    const float magnitude = float(mantissa) * 5.9604644775390625e-08f;
    return bits_to_float(sign | float_to_bits(magnitude));
  }
  if (exponent == 31) return bits_to_float(sign | 0x7f800000u | (mantissa << 13));
  return bits_to_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// Round to nearest even, as torch does; NaN stays NaN.
template <class T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline bf16 from_float<bf16>(float x) {
  const uint32_t bits = float_to_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {uint16_t(0x7fc0)};
  return {uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
template <>
inline f16 from_float<f16>(float x) {
  const uint32_t bits = float_to_bits(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {uint16_t(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {uint16_t(sign | 0x7c00u)};  // rounds past 65504
  if (magnitude < 0x38800000u) {  // subnormal in f16: adding 0.5 leaves the rounded mantissa in the low bits
    const float shifted = bits_to_float(magnitude) + 0.5f;
    return {uint16_t(sign | (float_to_bits(shifted) - 0x3f000000u))};
  }
  return {uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13))};
}

}  // namespace leanconv::LEANCONV_ISA
