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

using Separable = leanconv_separable;

// Both halves as one, compiled for one instruction set; LEANCONV_UNSUPPORTED where a value stands in the way.
struct SeparableFamily {
  const char* (*why_not)(const Problem& depthwise);
  int (*forward)(const Separable&, const void* input, const void* weight, const void* bias,
                 const void* pointwise_weight, const void* pointwise_bias, void* output);
  int (*backward)(const Separable&, const void* grad_output, const void* input, const void* weight,
                  const void* bias, const void* pointwise_weight, void* grad_middle,
                  void* grad_pointwise_weight, void* grad_pointwise_bias);
};

}  // namespace leanconv
