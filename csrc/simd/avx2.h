// Eight floats: AVX2 with FMA and F16C.
#pragma once

#include "simd/eight.h"

namespace leanconv::LEANCONV_ISA {

// A window of this table starting at 8 - n has its first n lanes set.
alignas(32) static const int32_t kLaneMask[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};

struct Vec {
  static constexpr int width = 8;
  __m256 v;

  static __m256i mask(int n) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kLaneMask + 8 - n));
  }

  static Vec zero() { return {_mm256_setzero_ps()}; }
  static Vec broadcast(float x) { return {_mm256_set1_ps(x)}; }
  template <class T>
  static Vec load(const T* p) {
    return {load_8(p)};
  }
  static Vec load_partial(const float* p, int n) { return {_mm256_maskload_ps(p, mask(n))}; }
  template <class T>
  static Vec load_partial(const T* p, int n) {
    alignas(16) T lanes[width] = {};
    std::memcpy(lanes, p, sizeof(T) * size_t(n));
    return load(lanes);
  }
  template <class T>
  void store(T* p) const {
    store_8(v, p);
  }
  void store_partial(float* p, int n) const { _mm256_maskstore_ps(p, mask(n), v); }
  template <class T>
  void store_partial(T* p, int n) const {
    alignas(16) T lanes[width];
    store(lanes);
    std::memcpy(p, lanes, sizeof(T) * size_t(n));
  }
};

inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// The even and the odd lanes of a followed by b, and the way back.
inline void deinterleave(Vec a, Vec b, Vec& even, Vec& odd) {
  const __m256d low = _mm256_castps_pd(_mm256_shuffle_ps(a.v, b.v, 0x88));
  const __m256d high = _mm256_castps_pd(_mm256_shuffle_ps(a.v, b.v, 0xdd));
  even = {_mm256_castpd_ps(_mm256_permute4x64_pd(low, 0xd8))};
  odd = {_mm256_castpd_ps(_mm256_permute4x64_pd(high, 0xd8))};
}
inline void interleave(Vec even, Vec odd, Vec& a, Vec& b) {
  const __m256 low = _mm256_unpacklo_ps(even.v, odd.v), high = _mm256_unpackhi_ps(even.v, odd.v);
  a = {_mm256_permute2f128_ps(low, high, 0x20)};
  b = {_mm256_permute2f128_ps(low, high, 0x31)};
}
inline float sum(Vec a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}

}  // namespace leanconv::LEANCONV_ISA
