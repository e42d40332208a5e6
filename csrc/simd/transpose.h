// Blocks of eight rows by eight columns, for the instruction sets that include AVX2.
#pragma once

#include "simd/eight.h"

namespace leanconv::LEANCONV_ISA {

#define LEANCONV_TRANSPOSES 1

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
