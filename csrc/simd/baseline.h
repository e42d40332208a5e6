// Four floats in GCC's portable vectors: SSE2 on x86-64, plain code elsewhere.
#pragma once

#include "simd/element.h"

namespace leanconv::LEANCONV_ISA {

struct Vec {
  static constexpr int width = 4;
  typedef float Native __attribute__((vector_size(16)));
  Native v;

  static Vec zero() { return {Native{0, 0, 0, 0}}; }
  static Vec broadcast(float x) { return {Native{x, x, x, x}}; }
  static Vec load(const float* p) {
    Vec r;
    std::memcpy(&r.v, p, sizeof r.v);
    return r;
  }
  template <class T>
  static Vec load(const T* p) {
    return {Native{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])}};
  }
  template <class T>
  static Vec load_partial(const T* p, int n) {
    Vec r = zero();
    for (int i = 0; i < n; ++i) r.v[i] = to_float(p[i]);
    return r;
  }
  void store(float* p) const { std::memcpy(p, &v, sizeof v); }
  template <class T>
  void store(T* p) const {
    for (int i = 0; i < width; ++i) p[i] = from_float<T>(v[i]);
  }
  template <class T>
  void store_partial(T* p, int n) const {
    for (int i = 0; i < n; ++i) p[i] = from_float<T>(v[i]);
  }
};

inline Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
inline Vec operator-(Vec a, Vec b) { return {a.v - b.v}; }
inline Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {a.v * b.v + c.v}; }
// The even and the odd lanes of a followed by b, and the way back.
inline void deinterleave(Vec a, Vec b, Vec& even, Vec& odd) {
  even = {Vec::Native{a.v[0], a.v[2], b.v[0], b.v[2]}};
  odd = {Vec::Native{a.v[1], a.v[3], b.v[1], b.v[3]}};
}
inline void interleave(Vec even, Vec odd, Vec& a, Vec& b) {
  a = {Vec::Native{even.v[0], odd.v[0], even.v[1], odd.v[1]}};
  b = {Vec::Native{even.v[2], odd.v[2], even.v[3], odd.v[3]}};
}
inline float sum(Vec a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }

}  // namespace leanconv::LEANCONV_ISA
