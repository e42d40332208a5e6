// Depthwise convolutions (any channel multiplier) over contiguous tensors: vectors run along the row.
#include <new>

#include "kernels/contiguous/correlate.h"
#include "kernels/contiguous/grad_weight.h"
#include "problem.h"

namespace leanconv::LEANCONV_ISA {

extern const Family direct;

namespace {

const char* why_not(const Problem& p, Direction) {
  if (p.layout != LEANCONV_CONTIGUOUS) return "the tensors are channels_last";
  if (p.groups != p.channels_in) return "it is no depthwise convolution (groups differ from in_channels)";
  for (int d = 0; d < 3; ++d)
    if (p.stride[d] > kMaxPhases) return "a stride is above 8";
  return nullptr;
}

template <class T>
const T* as(const void* pointer) {
  return static_cast<const T*>(pointer);
}
template <class T>
T* as(void* pointer) {
  return static_cast<T*>(pointer);
}

int64_t product(const int64_t* sizes) { return sizes[0] * sizes[1] * sizes[2]; }

bool all_finite(const float* x, int64_t count) {
  float sum = 0.0f;
  for (int64_t i = 0; i < count; ++i) sum += x[i] * 0.0f;
  return sum == 0.0f;
}
template <class T>
bool all_finite(const T* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if (!(to_float(x[i]) * 0.0f == 0.0f)) return false;
  return true;
}

// Runs job(number, worker) for numbers [0, jobs) on all threads. A thread makes a worker with
// make(scratch, band) of its own `floats`, and another only where its next job is of another band.
template <class Worker, class Make, class Job>
int on_threads(const Problem& p, const Plan& plan, int64_t jobs, int64_t floats, const Make& make,
               const Job& job) {
  int status = LEANCONV_OK;
#pragma omp parallel num_threads(p.num_threads) reduction(max : status)
  {
    Scratch scratch(floats);
    if (!scratch.data()) status = LEANCONV_OUT_OF_MEMORY;
    alignas(Worker) char memory[sizeof(Worker)];
    Worker* worker = nullptr;  // trivially destructible
    int64_t band = -1;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < jobs; ++i) {
      if (!scratch.data()) continue;
      if (i % plan.bands != band) {
        band = i % plan.bands;
        worker = new (memory) Worker(make(scratch.data(), plan.band(band)));
      }
      job(i, *worker);
    }
  }
  return status;
}

template <class T>
int forward(const Problem& p, const T* input, const T* weight, const T* bias, T* output) {
  const int64_t in_plane = product(p.in_size), out_plane = product(p.out_size), taps = product(p.kernel);
  // Zeros beside the rows must meet no infinity.
  if (!all_finite(weight, p.channels_out * taps)) return direct.forward(p, input, weight, bias, output);
  Plan plan;
  for (int d = 0; d < 3; ++d) forward_axis(p, d, plan.axes[d]);
  const int64_t planes = p.batch * p.channels_in, multiplier = p.channels_out / p.channels_in;
  finish_plan(p, p.out_size, planes, 1, plan);
  return on_threads<Correlation<T>>(
      p, plan, planes * plan.bands, plan.scratch_floats(),
      [&](float* scratch, const Band& band) { return Correlation<T>(plan, band, scratch); },
      [&](int64_t job, Correlation<T>& correlation) {
        const int64_t plane = job / plan.bands;
        correlation.stage_source(input + plane * in_plane, 0);
        for (int64_t m = 0; m < multiplier; ++m) {
          const int64_t out = plane * multiplier + m, channel = out % p.channels_out;
          correlation.run(weight + channel * taps, bias ? to_float(bias[channel]) : 0.0f,
                          output + out * out_plane);
        }
      });
}

template <class T>
int grad_input(const Problem& p, const T* grad_output, const T* weight, T* grad_input) {
  const int64_t in_plane = product(p.in_size), out_plane = product(p.out_size), taps = product(p.kernel);
  if (!all_finite(weight, p.channels_out * taps))
    return direct.grad_input(p, grad_output, weight, grad_input);
  Plan plan;
  for (int d = 0; d < 3; ++d) grad_input_axis(p, d, plan.axes[d]);
  const int64_t planes = p.batch * p.channels_in, multiplier = p.channels_out / p.channels_in;
  finish_plan(p, p.in_size, planes, multiplier, plan);
  return on_threads<Correlation<T>>(
      p, plan, planes * plan.bands, plan.scratch_floats(),
      [&](float* scratch, const Band& band) { return Correlation<T>(plan, band, scratch); },
      [&](int64_t job, Correlation<T>& correlation) {
        const int64_t plane = job / plan.bands, first = plane * multiplier;
        for (int64_t m = 0; m < multiplier; ++m)
          correlation.stage_source(grad_output + (first + m) * out_plane, m);
        correlation.run(weight + first % p.channels_out * taps, 0.0f, grad_input + plane * in_plane);
      });
}

// How the channels and the images' bands are shared out; each job has sums of its own.
struct Split {
  int64_t channels, blocks;  // input channels a block, and how many blocks
  int64_t items, parts;      // (image, band) pairs, and in how many parts they are
};

Split split_for(const Problem& p, const Plan& plan, int64_t plane_bytes) {
  Split split;
  const int64_t wanted = 4 * p.num_threads;
  // Planes that lie together are read together; small ones several at a time.
  split.channels = larger(1, smaller(smaller(ceil_div(4096, plane_bytes), 16), p.channels_in / wanted));
  split.blocks = ceil_div(p.channels_in, split.channels);
  split.items = p.batch * plan.bands;
  split.parts = smaller(split.items, ceil_div(wanted, split.blocks));
  return split;
}

template <class T>
int grad_weight(const Problem& p, const T* grad_output, const T* input, T* grad_weight, T* grad_bias) {
  Plan plan;
  for (int d = 0; d < 3; ++d) forward_axis(p, d, plan.axes[d]);
  const int64_t multiplier = p.channels_out / p.channels_in, taps = product(p.kernel);
  finish_plan(p, p.out_size, p.batch * p.channels_in, 1, plan);
  const int64_t in_plane = product(p.in_size), out_plane = product(p.out_size);
  const Split split = split_for(p, plan, larger(in_plane, out_plane) * int64_t(sizeof(T)));
  // Doubles by part, output channel and tap, the bias last.
  const int64_t channel_totals = taps + 1, part_totals = p.channels_out * channel_totals;
  Scratch totals_memory(2 * split.parts * part_totals);
  if (!totals_memory.data()) return LEANCONV_OUT_OF_MEMORY;
  double* totals = reinterpret_cast<double*>(totals_memory.data());
  for (int64_t i = 0; i < split.parts * part_totals; ++i) totals[i] = 0.0;
  const int64_t sum_floats = Sums::floats(taps) * multiplier * split.channels;
  const int64_t converted_floats = 2 * kSteps * Vec::width;  // a block's gradient
  int status = LEANCONV_OK;
#pragma omp parallel num_threads(p.num_threads) reduction(max : status)
  {
    Scratch scratch(plan.staged_floats + converted_floats + sum_floats);
    if (!scratch.data()) status = LEANCONV_OUT_OF_MEMORY;
    float *staged = scratch.data(), *converted = staged + plan.staged_floats,
          *vectors = converted + converted_floats;
#pragma omp for schedule(static)
    for (int64_t job = 0; job < split.blocks * split.parts; ++job) {
      if (!scratch.data()) continue;
      const int64_t block = job / split.parts, part = job % split.parts;
      const int64_t first = block * split.channels, end = smaller(p.channels_in, first + split.channels);
      const auto sums_of = [&](int64_t out_channel) {
        return Sums(vectors + (out_channel - first * multiplier) * Sums::floats(taps),
                    totals + part * part_totals + out_channel * channel_totals, taps);
      };
      for (int64_t c = first * multiplier; c < end * multiplier; ++c) sums_of(c).clear();
      const int64_t items_end = split.items * (part + 1) / split.parts;
      // Band after band, so that each is prepared for once.
      for (int64_t band = 0; band < plan.bands; ++band) {
        int64_t item = split.items * part / split.parts;
        item += (band - item % plan.bands + plan.bands) % plan.bands;
        if (item >= items_end) continue;
        WeightGradient<T> gradient(plan, plan.band(band), grad_bias != nullptr, staged);
        for (; item < items_end; item += plan.bands)
          for (int64_t c = first; c < end; ++c) {
            const int64_t image = item / plan.bands;
            gradient.stage_input(input + (image * p.channels_in + c) * in_plane);
            for (int64_t out = c * multiplier; out < (c + 1) * multiplier; ++out)
              gradient.add(grad_output + (image * p.channels_out + out) * out_plane, converted, sums_of(out));
          }
      }
      for (int64_t c = first * multiplier; c < end * multiplier; ++c) sums_of(c).flush();
    }
  }
  if (status != LEANCONV_OK) return status;
  bool finite = true;
  for (int64_t c = 0; c < p.channels_out; ++c)
    for (int64_t tap = 0; tap <= taps; ++tap) {
      double total = 0.0;
      for (int64_t part = 0; part < split.parts; ++part)
        total += totals[part * part_totals + c * channel_totals + tap];
      finite = finite && total * 0.0 == 0.0;
      if (tap < taps)
        grad_weight[c * taps + tap] = from_float<T>(float(total));
      else if (grad_bias)
        grad_bias[c] = from_float<T>(float(total));
    }
  // An infinity may have met a zero beside a row; the plain loops know which are real.
  return finite ? LEANCONV_OK : direct.grad_weight(p, grad_output, input, grad_weight, grad_bias);
}

// Calls run with a value of the problem's storage type.
template <class Run>
int by_dtype(const Problem& p, const Run& run) {
  if (p.dtype == LEANCONV_F32) return run(float{});
  if (p.dtype == LEANCONV_BF16) return run(bf16{});
  return run(f16{});
}

}  // namespace

extern const Family contiguous;
const Family contiguous = {
    "contiguous",
    why_not,
    [](const Problem& p, const void* input, const void* weight, const void* bias, void* output) {
      return by_dtype(p, [&](auto t) {
        using T = decltype(t);
        return forward(p, as<T>(input), as<T>(weight), as<T>(bias), as<T>(output));
      });
    },
    [](const Problem& p, const void* grad_output, const void* weight, void* result) {
      return by_dtype(p, [&](auto t) {
        using T = decltype(t);
        return grad_input(p, as<T>(grad_output), as<T>(weight), as<T>(result));
      });
    },
    [](const Problem& p, const void* grad_output, const void* input, void* result, void* grad_bias) {
      return by_dtype(p, [&](auto t) {
        using T = decltype(t);
        return grad_weight(p, as<T>(grad_output), as<T>(input), as<T>(result), as<T>(grad_bias));
      });
    },
};

}  // namespace leanconv::LEANCONV_ISA
