// Depthwise-separable convolutions whose intermediate never reaches memory, and dense ones of kernel size 1,
// in both layouts.
#include <type_traits>

#include "kernels/separable/passes.h"
#include "problem.h"

namespace leanconv::LEANCONV_ISA {
namespace {

template <class T>
bool all_finite(const T* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if (!(to_float(x[i]) * 0.0f == 0.0f)) return false;
  return true;
}

const char* separable_why_not(const Problem& p) {
  if (p.groups != p.channels_in) return "its first half is no depthwise convolution";
  if (p.layout == LEANCONV_CHANNELS_LAST && p.kernel[0] * p.kernel[1] > RowTaps::kMost)
    return "the kernel has more than 256 rows";
  for (int d = 0; d < 3; ++d)
    if (p.stride[d] > kMaxPhases) return "a stride is above 8";
  return nullptr;
}

// Calls run with tiles of the kind that the problem takes.
template <class T, class Run>
int by_tiles(const Problem& p, const T* weight, const Run& run) {
  if (!weight) return run(static_cast<InputTiles<T>*>(nullptr));
  if (p.layout == LEANCONV_CHANNELS_LAST) return run(static_cast<RowTiles<T>*>(nullptr));
  if (has_small_planes(p)) return run(static_cast<LaneTiles<T>*>(nullptr));
  // Zeros beside the rows must meet no infinity.
  if (!all_finite(weight, p.channels_out * product(p.kernel))) return LEANCONV_UNSUPPORTED;
  return run(static_cast<PlaneTiles<T>*>(nullptr));
}

template <class T>
int forward(const Layer& layer, const void* input, const void* weight, const void* bias,
            const void* pointwise_weight, const void* pointwise_bias, void* output) {
  const T* depthwise = static_cast<const T*>(weight);
  return by_tiles(layer.p, depthwise, [&](auto* tiles) {
    using Tiles = std::remove_pointer_t<decltype(tiles)>;
    return separable_forward<Tiles>(layer, static_cast<const T*>(input), depthwise,
                                    static_cast<const T*>(bias), static_cast<const T*>(pointwise_weight),
                                    static_cast<const T*>(pointwise_bias), static_cast<T*>(output));
  });
}

template <class T>
int backward(const Layer& layer, const void* grad_output, const void* input, const void* weight,
             const void* bias, const void* pointwise_weight, void* grad_middle, void* grad_weight,
             void* grad_bias) {
  const T* depthwise = static_cast<const T*>(weight);
  return by_tiles(layer.p, depthwise, [&](auto* tiles) {
    using Tiles = std::remove_pointer_t<decltype(tiles)>;
    return separable_backward<Tiles>(
        layer, static_cast<const T*>(grad_output), static_cast<const T*>(input), depthwise,
        static_cast<const T*>(bias), static_cast<const T*>(pointwise_weight),
        Gradients<T>{static_cast<T*>(grad_middle), static_cast<T*>(grad_weight), static_cast<T*>(grad_bias)});
  });
}

#define LEANCONV_BY_DTYPE(run, p, ...)                    \
  ((p).dtype == LEANCONV_F32    ? run<float>(__VA_ARGS__) \
   : (p).dtype == LEANCONV_BF16 ? run<bf16>(__VA_ARGS__)  \
                                : run<f16>(__VA_ARGS__))

// A convolution of kernel size 1 is a separable one without its first half.
const char* pointwise_why_not(const Problem& p, Direction) {
  if (p.groups != 1) return "it is no dense convolution";
  for (int d = 0; d < 3; ++d)
    if (p.kernel[d] != 1 || p.stride[d] != 1 || p.padding[d] != 0) return "its kernel size is not 1";
  return nullptr;
}

Layer pointwise_layer(const Problem& p) { return {p, p.channels_in, p.channels_out, LEANCONV_IDENTITY}; }

}  // namespace

extern const Family pointwise;
const Family pointwise = {
    "pointwise",
    pointwise_why_not,
    [](const Problem& p, const void* input, const void* weight, const void* bias, void* output) {
      return LEANCONV_BY_DTYPE(forward, p, pointwise_layer(p), input, nullptr, nullptr, weight, bias, output);
    },
    [](const Problem& p, const void* grad_output, const void* weight, void* result) {
      return LEANCONV_BY_DTYPE(backward, p, pointwise_layer(p), grad_output, nullptr, nullptr, nullptr,
                               weight, result, nullptr, nullptr);
    },
    [](const Problem& p, const void* grad_output, const void* input, void* result, void* grad_bias) {
      return LEANCONV_BY_DTYPE(backward, p, pointwise_layer(p), grad_output, input, nullptr, nullptr, nullptr,
                               nullptr, result, grad_bias);
    },
};

extern const SeparableFamily separable;
const SeparableFamily separable = {
    separable_why_not,
    [](const Separable& s, const void* input, const void* weight, const void* bias,
       const void* pointwise_weight, const void* pointwise_bias, void* output) {
      const Layer layer{s.depthwise, s.depthwise.channels_out, s.channels_out, s.activation};
      return LEANCONV_BY_DTYPE(forward, s.depthwise, layer, input, weight, bias, pointwise_weight,
                               pointwise_bias, output);
    },
    [](const Separable& s, const void* grad_output, const void* input, const void* weight, const void* bias,
       const void* pointwise_weight, void* grad_middle, void* grad_weight, void* grad_bias) {
      const Layer layer{s.depthwise, s.depthwise.channels_out, s.channels_out, s.activation};
      return LEANCONV_BY_DTYPE(backward, s.depthwise, layer, grad_output, input, weight, bias,
                               pointwise_weight, grad_middle, grad_weight, grad_bias);
    },
};

}  // namespace leanconv::LEANCONV_ISA
