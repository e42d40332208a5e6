// Eight floats from and to each storage type, for the instruction sets that include AVX2.
#pragma once

#include <immintrin.h>

#include "simd/element.h"

namespace leanconv::LEANCONV_ISA {

inline __m256 load_8(const float* p) { return _mm256_loadu_ps(p); }
inline __m256 load_8(const bf16* p) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline __m256 load_8(const f16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void store_8(__m256 v, float* p) { _mm256_storeu_ps(p, v); }
inline void store_8(__m256 v, f16* p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
inline void store_8(__m256 v, bf16* p) {
  // Round to nearest even in integers; NaN lanes become the quiet NaN.
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i words =
      _mm256_blendv_epi8(_mm256_srli_epi32(_mm256_add_epi32(bits, up), 16), _mm256_set1_epi32(0x7fc0), nan);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

}  // namespace leanconv::LEANCONV_ISA
