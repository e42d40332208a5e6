// The machine's multiply-add rate, for the limits that benchmarks compare with: independent chains, no
// memory traffic.
#include <chrono>

#include "simd/vec.h"

namespace leanconv::LEANCONV_ISA {

// Multiply-adds a second over `threads` threads; `rounds` sets how long it takes.
double fma_peak(int threads, int64_t rounds);

double fma_peak(int threads, int64_t rounds) {
  constexpr int chains = 12;  // latency times issue width, and still within 16 registers
  float total = 0.0f;
  const auto start = std::chrono::steady_clock::now();
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : total)
  for (int thread = 0; thread < threads; ++thread) {
    Vec sums[chains];
    for (int c = 0; c < chains; ++c) sums[c] = Vec::broadcast(float(c + thread));
    const Vec factor = Vec::broadcast(0.5f), term = Vec::broadcast(0.5f);
    for (int64_t round = 0; round < rounds; ++round)
      for (int c = 0; c < chains; ++c) sums[c] = fma(sums[c], factor, term);
    for (int c = 0; c < chains; ++c) {
      float lanes[Vec::width];
      sums[c].store(lanes);
      total += lanes[0];
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  // The sums end near one each; using them keeps the chains from being dropped.
  const double done = total > 0.0f ? double(rounds) * chains * Vec::width * threads : 0.0;
  return done / seconds.count();
}

}  // namespace leanconv::LEANCONV_ISA
