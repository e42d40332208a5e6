// Sixteen floats: AVX-512 F, BW, VL and DQ.
#pragma once

#include <immintrin.h>

#include "simd/element.h"

namespace leanconv::LEANCONV_ISA {

struct Vec {
  static constexpr int width = 16;
  __m512 v;

  static __mmask16 mask(int n) { return __mmask16((1u << n) - 1u); }
  static __m512 widen_bf16(__m256i half) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  __m256i narrow_bf16() const {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0)));
  }
  __m256i narrow_f16() const { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }

  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec load(const bf16* p) {
    return {widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static Vec load(const f16* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static Vec load_partial(const float* p, int n) { return {_mm512_maskz_loadu_ps(mask(n), p)}; }
  static Vec load_partial(const bf16* p, int n) { return {widen_bf16(_mm256_maskz_loadu_epi16(mask(n), p))}; }
  static Vec load_partial(const f16* p, int n) {
    return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask(n), p))};
  }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store(bf16* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bf16()); }
  void store(f16* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_f16()); }
  void store_partial(float* p, int n) const { _mm512_mask_storeu_ps(p, mask(n), v); }
  void store_partial(bf16* p, int n) const { _mm256_mask_storeu_epi16(p, mask(n), narrow_bf16()); }
  void store_partial(f16* p, int n) const { _mm256_mask_storeu_epi16(p, mask(n), narrow_f16()); }
};

inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// The even and the odd lanes of a followed by b, and the way back.
inline void deinterleave(Vec a, Vec b, Vec& even, Vec& odd) {
  const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  even = {_mm512_permutex2var_ps(a.v, evens, b.v)};
  odd = {_mm512_permutex2var_ps(a.v, _mm512_add_epi32(evens, _mm512_set1_epi32(1)), b.v)};
}
inline void interleave(Vec even, Vec odd, Vec& a, Vec& b) {
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  a = {_mm512_permutex2var_ps(even.v, first, odd.v)};
  b = {_mm512_permutex2var_ps(even.v, _mm512_add_epi32(first, _mm512_set1_epi32(8)), odd.v)};
}
inline float sum(Vec a) { return _mm512_reduce_add_ps(a.v); }

}  // namespace leanconv::LEANCONV_ISA
