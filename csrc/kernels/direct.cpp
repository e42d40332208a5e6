// The plain loops: any problem, any size, correct before fast. The other families are tested against
// these, and what no other family takes is served here.
#include "problem.h"
#include "simd/element.h"

namespace leanconv::LEANCONV_ISA {
namespace {

// Where element (n, c, z, y, x) of a tensor of `channels` and `size` lies.
struct Index {
  int64_t channels, size[3];
  bool channels_last;
  int64_t operator()(int64_t n, int64_t c, const int64_t at[3]) const {
    const int64_t plane = size[0] * size[1] * size[2];
    const int64_t pixel = (at[0] * size[1] + at[1]) * size[2] + at[2];
    return channels_last ? (n * plane + pixel) * channels + c : (n * channels + c) * plane + pixel;
  }
};

Index index_of(const Problem& p, int64_t channels, const int64_t* size) {
  return {channels, {size[0], size[1], size[2]}, p.layout == LEANCONV_CHANNELS_LAST};
}

// Calls visit(at) for every point of a box of the given size.
template <class Visit>
void for_each(const int64_t* size, Visit visit) {
  int64_t at[3];
  for (at[0] = 0; at[0] < size[0]; ++at[0])
    for (at[1] = 0; at[1] < size[1]; ++at[1])
      for (at[2] = 0; at[2] < size[2]; ++at[2]) visit(at);
}

// Calls visit(tap_number, input_position) for the taps of output position `out` that lie inside the input.
template <class Visit>
void for_each_tap(const Problem& p, const int64_t* out, Visit visit) {
  int64_t tap = 0;
  for_each(p.kernel, [&](const int64_t* k) {
    int64_t in[3];
    bool inside = true;
    for (int d = 0; d < 3; ++d) {
      in[d] = out[d] * p.stride[d] - p.padding[d] + k[d] * p.dilation[d];
      inside = inside && in[d] >= 0 && in[d] < p.in_size[d];
    }
    if (inside) visit(tap, in);
    ++tap;
  });
}

int64_t taps(const Problem& p) { return p.kernel[0] * p.kernel[1] * p.kernel[2]; }

template <class T>
void forward(const Problem& p, const T* input, const T* weight, const T* bias, T* output) {
  const int64_t per_group_in = p.channels_in / p.groups, per_group_out = p.channels_out / p.groups;
  const Index in_index = index_of(p, p.channels_in, p.in_size),
              out_index = index_of(p, p.channels_out, p.out_size);
#pragma omp parallel for num_threads(p.num_threads) schedule(static)
  for (int64_t job = 0; job < p.batch * p.channels_out; ++job) {
    const int64_t n = job / p.channels_out, co = job % p.channels_out,
                  first = co / per_group_out * per_group_in;
    for_each(p.out_size, [&](const int64_t* out) {
      float total = bias ? to_float(bias[co]) : 0.0f;
      for_each_tap(p, out, [&](int64_t tap, const int64_t* in) {
        for (int64_t ci = 0; ci < per_group_in; ++ci)
          total += to_float(input[in_index(n, first + ci, in)]) *
                   to_float(weight[(co * per_group_in + ci) * taps(p) + tap]);
      });
      output[out_index(n, co, out)] = from_float<T>(total);
    });
  }
}

template <class T>
void grad_input(const Problem& p, const T* grad_output, const T* weight, T* grad_input) {
  const int64_t per_group_in = p.channels_in / p.groups, per_group_out = p.channels_out / p.groups;
  const Index in_index = index_of(p, p.channels_in, p.in_size),
              out_index = index_of(p, p.channels_out, p.out_size);
#pragma omp parallel for num_threads(p.num_threads) schedule(static)
  for (int64_t job = 0; job < p.batch * p.channels_in; ++job) {
    const int64_t n = job / p.channels_in, ci = job % p.channels_in,
                  first = ci / per_group_in * per_group_out;
    for_each(p.in_size, [&](const int64_t* in) {
      float total = 0.0f;
      int64_t tap = 0;
      for_each(p.kernel, [&](const int64_t* k) {
        int64_t out[3];
        bool inside = true;
        for (int d = 0; d < 3; ++d) {
          const int64_t scaled = in[d] + p.padding[d] - k[d] * p.dilation[d];
          out[d] = scaled / p.stride[d];
          inside = inside && scaled >= 0 && scaled % p.stride[d] == 0 && out[d] < p.out_size[d];
        }
        if (inside)
          for (int64_t co = first; co < first + per_group_out; ++co)
            total += to_float(grad_output[out_index(n, co, out)]) *
                     to_float(weight[(co * per_group_in + ci % per_group_in) * taps(p) + tap]);
        ++tap;
      });
      grad_input[in_index(n, ci, in)] = from_float<T>(total);
    });
  }
}

template <class T>
void grad_weight(const Problem& p, const T* grad_output, const T* input, T* grad_weight, T* grad_bias) {
  const int64_t per_group_in = p.channels_in / p.groups, per_group_out = p.channels_out / p.groups;
  const Index in_index = index_of(p, p.channels_in, p.in_size),
              out_index = index_of(p, p.channels_out, p.out_size);
#pragma omp parallel for num_threads(p.num_threads) schedule(static)
  for (int64_t job = 0; job < p.channels_out * per_group_in; ++job) {
    const int64_t co = job / per_group_in, ci = co / per_group_out * per_group_in + job % per_group_in;
    int64_t tap = 0;
    for_each(p.kernel, [&](const int64_t* k) {
      double total = 0.0;
      for (int64_t n = 0; n < p.batch; ++n)
        for_each(p.out_size, [&](const int64_t* out) {
          int64_t in[3];
          for (int d = 0; d < 3; ++d) {
            in[d] = out[d] * p.stride[d] - p.padding[d] + k[d] * p.dilation[d];
            if (in[d] < 0 || in[d] >= p.in_size[d]) return;
          }
          total +=
              double(to_float(grad_output[out_index(n, co, out)])) * to_float(input[in_index(n, ci, in)]);
        });
      grad_weight[job * taps(p) + tap++] = from_float<T>(float(total));
    });
    if (grad_bias && job % per_group_in == 0) {
      double total = 0.0;
      for (int64_t n = 0; n < p.batch; ++n)
        for_each(p.out_size,
                 [&](const int64_t* out) { total += to_float(grad_output[out_index(n, co, out)]); });
      grad_bias[co] = from_float<T>(float(total));
    }
  }
}

// Calls run with pointers of the problem's storage type.
template <class Run>
int by_dtype(const Problem& p, Run run) {
  if (p.dtype == LEANCONV_F32)
    run(float{});
  else if (p.dtype == LEANCONV_BF16)
    run(bf16{});
  else
    run(f16{});
  return LEANCONV_OK;
}

template <class T>
const T* as(const void* pointer) {
  return static_cast<const T*>(pointer);
}
template <class T>
T* as(void* pointer) {
  return static_cast<T*>(pointer);
}

}  // namespace

extern const Family direct;
const Family direct = {
    "direct",
    [](const Problem&, Direction) -> const char* { return nullptr; },
    [](const Problem& p, const void* input, const void* weight, const void* bias, void* output) {
      return by_dtype(p, [&](auto t) {
        using T = decltype(t);
        forward(p, as<T>(input), as<T>(weight), as<T>(bias), as<T>(output));
      });
    },
    [](const Problem& p, const void* grad_output, const void* weight, void* result) {
      return by_dtype(p, [&](auto t) {
        using T = decltype(t);
        grad_input(p, as<T>(grad_output), as<T>(weight), as<T>(result));
      });
    },
    [](const Problem& p, const void* grad_output, const void* input, void* result, void* grad_bias) {
      return by_dtype(p, [&](auto t) {
        using T = decltype(t);
        grad_weight(p, as<T>(grad_output), as<T>(input), as<T>(result), as<T>(grad_bias));
      });
    },
};

}  // namespace leanconv::LEANCONV_ISA
