// Blocks of eight rows by eight columns, for the instruction sets that include AVX2.
#pragma once

#include <immintrin.h>

namespace leanconv::LEANCONV_ISA {

#define LEANCONV_TRANSPOSES 1

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
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, v);
  for (int i = 0; i < 8; ++i) p[i] = from_float<bf16>(lanes[i]);
}

// to[i][j] = from[j][i].
template <class From, class To>
void transpose_8x8(const From* from, int64_t from_stride, To* to, int64_t to_stride) {
  __m256 r[8], s[8];
  for (int i = 0; i < 8; ++i) r[i] = load_8(from + i * from_stride);
  for (int i = 0; i < 4; ++i) {
    s[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    s[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int half = 0; half < 2; ++half) {
    const int b = 4 * half;
    r[b] = _mm256_shuffle_ps(s[b], s[b + 2], 0x44);
    r[b + 1] = _mm256_shuffle_ps(s[b], s[b + 2], 0xee);
    r[b + 2] = _mm256_shuffle_ps(s[b + 1], s[b + 3], 0x44);
    r[b + 3] = _mm256_shuffle_ps(s[b + 1], s[b + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    store_8(_mm256_permute2f128_ps(r[i], r[i + 4], 0x20), to + i * to_stride);
    store_8(_mm256_permute2f128_ps(r[i], r[i + 4], 0x31), to + (i + 4) * to_stride);
  }
}

}  // namespace leanconv::LEANCONV_ISA
