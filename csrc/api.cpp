// The C interface: picks the instruction set once by CPUID, then the first kernel family that takes a
// problem.
#include <pthread.h>

#include <atomic>
#include <cstring>

#include "leanconv.h"
#include "problem.h"

namespace leanconv {

#define LEANCONV_DECLARE(isa)                                       \
  namespace isa {                                                   \
  extern const Family contiguous, channels_last, pointwise, direct; \
  extern const SeparableFamily separable;                           \
  double fma_peak(int threads, int64_t rounds);                     \
  }
LEANCONV_DECLARE(baseline)
#ifdef LEANCONV_HAVE_avx2
LEANCONV_DECLARE(avx2)
#endif
#ifdef LEANCONV_HAVE_avx512
LEANCONV_DECLARE(avx512)
#endif
#ifdef LEANCONV_HAVE_neon
LEANCONV_DECLARE(neon)
#endif

namespace {

struct InstructionSet {
  const char* name;
  const Family* families[4];  // the first that takes a problem serves it; `direct` takes all
  const SeparableFamily* separable;
  double (*fma_peak)(int threads, int64_t rounds);
  bool (*runs_here)();
};

#define LEANCONV_FAMILIES(isa) \
  {&isa::contiguous, &isa::channels_last, &isa::pointwise, &isa::direct}, &isa::separable

const InstructionSet kSets[] = {
    {"baseline", LEANCONV_FAMILIES(baseline), baseline::fma_peak, [] { return true; }},
#ifdef LEANCONV_HAVE_avx2
    {"avx2", LEANCONV_FAMILIES(avx2), avx2::fma_peak,
     [] {
       return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("f16c");
     }},
#endif
#ifdef LEANCONV_HAVE_avx512
    {"avx512", LEANCONV_FAMILIES(avx512), avx512::fma_peak,
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
     }},
#endif
#ifdef LEANCONV_HAVE_neon
    {"neon", LEANCONV_FAMILIES(neon), neon::fma_peak, [] { return true; }},
#endif
};

const InstructionSet* best_set() {
  const InstructionSet* best = &kSets[0];
  for (const auto& set : kSets)
    if (set.runs_here()) best = &set;
  return best;
}

std::atomic<const InstructionSet*>& current_set() {
  static std::atomic<const InstructionSet*> set{best_set()};
  return set;
}

// libgomp's threads do not survive a fork, and its next parallel region in the child would wait for them.
std::atomic<bool> forked{false};
const int fork_watch = pthread_atfork(nullptr, nullptr, [] { forked = true; });

Problem with_usable_threads(const Problem& problem) {
  Problem p = problem;
  if (forked || p.num_threads < 1) p.num_threads = 1;
  return p;
}

const Family& family_for(const Problem& p, Direction direction) {
  const InstructionSet& set = *current_set();
  for (const Family* family : set.families)
    if (!family->why_not(p, direction)) return *family;
  return *set.families[3];
}

}  // namespace
}  // namespace leanconv

#define LEANCONV_API extern "C" __attribute__((visibility("default")))
using namespace leanconv;

LEANCONV_API int leanconv_abi_version(void) { return LEANCONV_ABI_VERSION; }
LEANCONV_API const char* leanconv_isa(void) { return current_set().load()->name; }

LEANCONV_API int leanconv_set_isa(const char* name) {
  for (const auto& set : kSets)
    if (!std::strcmp(set.name, name) && set.runs_here()) {
      current_set() = &set;
      return 0;
    }
  return 1;
}

LEANCONV_API const char* leanconv_isas(void) {
  static const struct Names {
    char text[64] = "";
    Names() {
      for (const auto& set : kSets)
        if (set.runs_here()) {
          if (*text) std::strcat(text, " ");
          std::strcat(text, set.name);
        }
    }
  } names;
  return names.text;
}

LEANCONV_API double leanconv_fma_peak(int num_threads, int64_t rounds) {
  return current_set().load()->fma_peak(num_threads, rounds);
}

LEANCONV_API const char* leanconv_why_not(const leanconv_problem* problem, int direction) {
  const InstructionSet& set = *current_set();
  if (!set.families[2]->why_not(*problem, Direction(direction))) return nullptr;
  // Each other family serves one layout, so the answer is that of the problem's own.
  const Family& family = *set.families[problem->layout == LEANCONV_CHANNELS_LAST ? 1 : 0];
  return family.why_not(*problem, Direction(direction));
}

LEANCONV_API int leanconv_forward(const leanconv_problem* problem, const void* input, const void* weight,
                                  const void* bias, void* output) {
  const Problem p = with_usable_threads(*problem);
  return family_for(p, Direction::forward).forward(p, input, weight, bias, output);
}

LEANCONV_API int leanconv_grad_input(const leanconv_problem* problem, const void* grad_output,
                                     const void* weight, void* grad_input) {
  const Problem p = with_usable_threads(*problem);
  return family_for(p, Direction::grad_input).grad_input(p, grad_output, weight, grad_input);
}

LEANCONV_API int leanconv_grad_weight(const leanconv_problem* problem, const void* grad_output,
                                      const void* input, void* grad_weight, void* grad_bias) {
  const Problem p = with_usable_threads(*problem);
  return family_for(p, Direction::grad_weight).grad_weight(p, grad_output, input, grad_weight, grad_bias);
}

LEANCONV_API const char* leanconv_separable_why_not(const leanconv_problem* depthwise) {
  return current_set().load()->separable->why_not(*depthwise);
}

LEANCONV_API int leanconv_separable_forward(const leanconv_separable* problem, const void* input,
                                            const void* weight, const void* bias,
                                            const void* pointwise_weight, const void* pointwise_bias,
                                            void* output) {
  Separable s = *problem;
  s.depthwise = with_usable_threads(s.depthwise);
  return current_set().load()->separable->forward(s, input, weight, bias, pointwise_weight, pointwise_bias,
                                                  output);
}

LEANCONV_API int leanconv_separable_backward(const leanconv_separable* problem, const void* grad_output,
                                             const void* input, const void* weight, const void* bias,
                                             const void* pointwise_weight, void* grad_middle,
                                             void* grad_pointwise_weight, void* grad_pointwise_bias) {
  Separable s = *problem;
  s.depthwise = with_usable_threads(s.depthwise);
  return current_set().load()->separable->backward(s, grad_output, input, weight, bias, pointwise_weight,
                                                   grad_middle, grad_pointwise_weight, grad_pointwise_bias);
}
