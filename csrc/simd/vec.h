// Vec, the vector type of the instruction set this unit is compiled for.
//
// Every Vec has: width; zero, broadcast, load(T*), load_partial(T*, n) with zeros past n and no access
// past it, store, store_partial; +, -, *, fma(a, b, c) = a * b + c, sum in a fixed order. T is float, bf16 or
// f16.
#pragma once

#include "simd/element.h"

#if defined(LEANCONV_ISA_avx512)
#include "simd/avx512.h"
#elif defined(LEANCONV_ISA_avx2)
#include "simd/avx2.h"
#elif defined(LEANCONV_ISA_neon)
#include "simd/neon.h"
#else
#include "simd/baseline.h"
#endif

#if defined(LEANCONV_ISA_avx512) || defined(LEANCONV_ISA_avx2)
#include "simd/transpose.h"
#endif
