// Eight floats: AVX2 with FMA and F16C.
#pragma once

#include <immintrin.h>

#include "simd/element.h"

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
  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Vec load(const bf16* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))};
  }
  static Vec load(const f16* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  static Vec load_partial(const float* p, int n) { return {_mm256_maskload_ps(p, mask(n))}; }
  template <class T>
  static Vec load_partial(const T* p, int n) {
    alignas(16) T lanes[width] = {};
    std::memcpy(lanes, p, sizeof(T) * size_t(n));
    return load(lanes);
  }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void store(bf16* p) const {
    // Round to nearest even in integers; NaN lanes become the quiet NaN.
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
  }
  void store(f16* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
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
