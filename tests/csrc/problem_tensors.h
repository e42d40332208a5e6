// A random problem, its tensors in memory of exactly their size, and the plain answer in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "leanconv.h"

// Storage types as the interface has them: two bytes of bf16 or f16, or a float.
inline float bf16_to_float(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}
inline float f16_to_float(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const float magnitude =
      exponent ? std::ldexp(float(mantissa + 1024), exponent - 25) : std::ldexp(float(mantissa), -24);
  return bits & 0x8000 ? -magnitude : magnitude;
}

struct Tensor {
  std::vector<unsigned char>
      bytes;  // of no element more than there are, so that a sanitizer sees every step beyond
  int dtype = 0;
  void allocate(int64_t count, int type) {
    dtype = type;
    bytes.assign(size_t(count) * (type == LEANCONV_F32 ? 4 : 2), 0xff);  // NaN until written
    bytes.shrink_to_fit();
  }
  double at(int64_t i) const {
    if (dtype == LEANCONV_F32) {
      float x;
      std::memcpy(&x, bytes.data() + 4 * i, 4);
      return double(x);
    }
    uint16_t bits;
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    return double(dtype == LEANCONV_BF16 ? bf16_to_float(bits) : f16_to_float(bits));
  }
  // Small multiples of 1/8, exact in every storage type.
  void fill(std::mt19937& random) {
    const int64_t count = int64_t(bytes.size()) / (dtype == LEANCONV_F32 ? 4 : 2);
    for (int64_t i = 0; i < count; ++i) {
      const float x = float(int(random() % 33) - 16) / 8.0f;
      if (dtype == LEANCONV_F32) {
        std::memcpy(bytes.data() + 4 * i, &x, 4);
        continue;
      }
      uint32_t wide;
      std::memcpy(&wide, &x, 4);
      uint16_t bits = uint16_t(wide >> 16);
      if (dtype == LEANCONV_F16) {
        int exponent;
        const float fraction = std::frexp(std::fabs(x), &exponent);  // in [0.5, 1)
        bits = x == 0.0f ? 0 : uint16_t(((exponent + 14) << 10) | int(std::ldexp(fraction, 11) - 1024.0f));
        if (x < 0.0f) bits |= 0x8000;
      }
      std::memcpy(bytes.data() + 2 * i, &bits, 2);
    }
  }
};

inline int64_t volume(const int64_t* size) { return size[0] * size[1] * size[2]; }

inline leanconv_problem random_problem(std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int> values) {
    return int64_t(values.begin()[random() % values.size()]);
  };
  leanconv_problem p{};
  const int dims = int(pick({1, 2, 2, 3}));
  const bool depthwise = random() % 3 != 0;
  p.batch = pick({1, 1, 2, 3});
  p.groups = pick({1, 2, 3, 5, 8, 9, 16, 17, 33});
  p.channels_in = p.groups * (depthwise ? 1 : pick({2, 3, 4, 16}));
  p.channels_out = p.groups * (depthwise ? pick({1, 1, 1, 2, 3}) : pick({1, 2, 4, 7}));
  for (int d = 0; d < 3; ++d) {
    const bool real = d >= 3 - dims;
    p.kernel[d] = real ? (dims == 1   ? pick({1, 2, 3, 7, 9, 31})
                          : dims == 2 ? pick({1, 2, 3, 3, 5, 9, 13})
                                      : pick({1, 2, 3, 3, 4}))
                       : 1;
    p.stride[d] = real ? pick({1, 1, 1, 2, 3, 9}) : 1;
    p.dilation[d] = real ? pick({1, 1, 1, 2, 3}) : 1;
    const int64_t reach = p.dilation[d] * (p.kernel[d] - 1);
    p.padding[d] = real ? int64_t(random() % uint32_t(reach / 2 + 3)) : 0;
    const int64_t after = real ? int64_t(random() % uint32_t(reach / 2 + 3)) : 0;
    const int64_t least = reach + 1 - p.padding[d] - after;
    p.in_size[d] = real ? (least > 1 ? least : 1) + int64_t(random() % (dims == 1   ? 90
                                                                        : dims == 2 ? 20
                                                                                    : 6))
                        : 1;
    p.out_size[d] = (p.in_size[d] + p.padding[d] + after - reach - 1) / p.stride[d] + 1;
  }
  if (random() % 8 == 0) {  // a dense one of kernel size 1
    p.groups = 1;
    p.channels_in = pick({1, 3, 16, 17, 40});
    p.channels_out = pick({1, 5, 16, 33, 50});
    for (int d = 0; d < 3; ++d) {
      p.kernel[d] = p.stride[d] = p.dilation[d] = 1;
      p.padding[d] = 0;
      p.out_size[d] = p.in_size[d];
    }
  }
  p.dtype = int(random() % 3);
  p.layout = int(random() % 2);
  p.num_threads = int(pick({1, 2, 3}));
  return p;
}

inline double activated(double x, int activation) {
  const double inner = x + 3 < 0 ? 0 : x + 3 > 6 ? 6 : x + 3;
  switch (activation) {
    case LEANCONV_RELU:
      return x < 0 ? 0 : x;
    case LEANCONV_RELU6:
      return x < 0 ? 0 : x > 6 ? 6 : x;
    case LEANCONV_SILU:
      return x / (1 + std::exp(-x));
    case LEANCONV_GELU:
      return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5)));
    case LEANCONV_HARDSWISH:
      return x * inner / 6;
    default:
      return x;
  }
}

// By the difference quotient, or the one-sided value that torch has where there is none.
inline double derivative(double x, int activation) {
  if (activation == LEANCONV_RELU) return x > 0;
  if (activation == LEANCONV_RELU6) return x > 0 && x < 6;
  if (activation == LEANCONV_HARDSWISH) return x <= -3 ? 0 : x >= 3 ? 1 : x / 3 + 0.5;
  const double step = 1e-5;
  return (activated(x + step, activation) - activated(x - step, activation)) / (2 * step);
}

struct Answer {
  std::vector<double> output, grad_input, grad_weight, grad_bias;
};

inline int64_t place(const leanconv_problem& p, int64_t channels, const int64_t* size, int64_t n, int64_t c,
                     int64_t pixel) {
  return p.layout == LEANCONV_CHANNELS_LAST ? (n * volume(size) + pixel) * channels + c
                                            : (n * channels + c) * volume(size) + pixel;
}

// All four results in one sweep over the products.
inline Answer plain(const leanconv_problem& p, const Tensor& input, const Tensor& weight, const Tensor& bias,
                    const Tensor& grad) {
  const int64_t ins = p.channels_in / p.groups, outs = p.channels_out / p.groups, taps = volume(p.kernel);
  Answer a;
  a.output.resize(size_t(p.batch * p.channels_out * volume(p.out_size)));
  a.grad_input.resize(size_t(p.batch * p.channels_in * volume(p.in_size)));
  a.grad_weight.resize(size_t(p.channels_out * ins * taps));
  a.grad_bias.resize(size_t(p.channels_out));
  int64_t o[3], k[3], i[3];
  for (int64_t n = 0; n < p.batch; ++n)
    for (int64_t co = 0; co < p.channels_out; ++co)
      for (o[0] = 0; o[0] < p.out_size[0]; ++o[0])
        for (o[1] = 0; o[1] < p.out_size[1]; ++o[1])
          for (o[2] = 0; o[2] < p.out_size[2]; ++o[2]) {
            const int64_t out = place(p, p.channels_out, p.out_size, n, co,
                                      (o[0] * p.out_size[1] + o[1]) * p.out_size[2] + o[2]);
            const double g = grad.at(out);
            a.grad_bias[size_t(co)] += g;
            double total = bias.at(co);
            for (k[0] = 0; k[0] < p.kernel[0]; ++k[0])
              for (k[1] = 0; k[1] < p.kernel[1]; ++k[1])
                for (k[2] = 0; k[2] < p.kernel[2]; ++k[2]) {
                  bool inside = true;
                  for (int d = 0; d < 3; ++d) {
                    i[d] = o[d] * p.stride[d] - p.padding[d] + k[d] * p.dilation[d];
                    inside = inside && i[d] >= 0 && i[d] < p.in_size[d];
                  }
                  if (!inside) continue;
                  for (int64_t c = 0; c < ins; ++c) {
                    const int64_t w =
                        (co * ins + c) * taps + (k[0] * p.kernel[1] + k[1]) * p.kernel[2] + k[2];
                    const int64_t in = place(p, p.channels_in, p.in_size, n, co / outs * ins + c,
                                             (i[0] * p.in_size[1] + i[1]) * p.in_size[2] + i[2]);
                    total += input.at(in) * weight.at(w);
                    a.grad_input[size_t(in)] += g * weight.at(w);
                    a.grad_weight[size_t(w)] += g * input.at(in);
                  }
                }
            a.output[size_t(out)] = total;
          }
  return a;
}
