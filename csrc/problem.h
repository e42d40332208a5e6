// What every kernel family shares: the problem, its directions, and the table a family hands to api.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "leanconv.h"

namespace leanconv {

using Problem = leanconv_problem;

enum class Direction {
  forward = LEANCONV_FORWARD,
  grad_input = LEANCONV_GRAD_INPUT,
  grad_weight = LEANCONV_GRAD_WEIGHT
};

// One kernel family compiled for one instruction set. why_not answers nullptr for yes.
struct Family {
  const char* name;
  const char* (*why_not)(const Problem&, Direction);
  int (*forward)(const Problem&, const void* input, const void* weight, const void* bias, void* output);
  int (*grad_input)(const Problem&, const void* grad_output, const void* weight, void* grad_input);
  int (*grad_weight)(const Problem&, const void* grad_output, const void* input, void* grad_weight,
                     void* grad_bias);
};

}  // namespace leanconv
