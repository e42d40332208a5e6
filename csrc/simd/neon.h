// Four floats: Arm NEON as every aarch64 has it.
#pragma once

#include <arm_neon.h>

#include "simd/element.h"

namespace leanconv::LEANCONV_ISA {

struct Vec {
  static constexpr int width = 4;
  float32x4_t v;

  static Vec zero() { return {vdupq_n_f32(0)}; }
  static Vec broadcast(float x) { return {vdupq_n_f32(x)}; }
  static Vec load(const float* p) { return {vld1q_f32(p)}; }
  static Vec load(const bf16* p) { return {vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&p->bits), 16))}; }
  static Vec load(const f16* p) { return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)))}; }
  template <class T>
  static Vec load_partial(const T* p, int n) {
    T lanes[width] = {};
    std::memcpy(lanes, p, sizeof(T) * size_t(n));
    return load(lanes);
  }
  void store(float* p) const { vst1q_f32(p, v); }
  void store(bf16* p) const {
    const uint32x4_t bits = vreinterpretq_u32_f32(v);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
    vst1_u16(&p->bits, vmovn_u32(vbslq_u32(vceqq_f32(v, v), rounded, vdupq_n_u32(0x7fc0))));
  }
  void store(f16* p) const { vst1_u16(&p->bits, vreinterpret_u16_f16(vcvt_f16_f32(v))); }
  template <class T>
  void store_partial(T* p, int n) const {
    T lanes[width];
    store(lanes);
    std::memcpy(p, lanes, sizeof(T) * size_t(n));
  }
};

inline Vec operator+(Vec a, Vec b) { return {vaddq_f32(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {vsubq_f32(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {vmulq_f32(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
// The even and the odd lanes of a followed by b, and the way back.
inline void deinterleave(Vec a, Vec b, Vec& even, Vec& odd) {
  even = {vuzp1q_f32(a.v, b.v)};
  odd = {vuzp2q_f32(a.v, b.v)};
}
inline void interleave(Vec even, Vec odd, Vec& a, Vec& b) {
  a = {vzip1q_f32(even.v, odd.v)};
  b = {vzip2q_f32(even.v, odd.v)};
}
inline float sum(Vec a) { return vaddvq_f32(a.v); }

}  // namespace leanconv::LEANCONV_ISA
