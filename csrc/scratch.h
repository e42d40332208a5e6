// Memory that a kernel works in: aligned, one buffer a thread, freed when its owner goes.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace leanconv::LEANCONV_ISA {

class Scratch {
 public:
  // `count` floats on a cache line's boundary; `data` is null where memory is short.
  explicit Scratch(int64_t count) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, sizeof(float) * size_t(count > 0 ? count : 1)) == 0)
      data_ = static_cast<float*>(memory);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(data_); }

  float* data() const { return data_; }

 private:
  float* data_ = nullptr;
};

inline int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }
inline int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

inline void fill_zero(float* p, int64_t count) {
  for (int64_t i = 0; i < count; ++i) p[i] = 0.0f;
}

}  // namespace leanconv::LEANCONV_ISA
