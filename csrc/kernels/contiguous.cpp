// Depthwise convolutions (any channel multiplier), and grouped ones of few channels a group, over
// contiguous tensors: vectors run along the row.
#include <new>

#include "kernels/contiguous/correlate.h"
#include "kernels/contiguous/grad_weight.h"
#include "kernels/contiguous/lanes.h"
#include "problem.h"

namespace leanconv::LEANCONV_ISA {

extern const Family direct;

namespace {

constexpr int64_t kMostAGroup = 16;

const char* why_not(const Problem& p, Direction) {
  if (p.layout != LEANCONV_CONTIGUOUS) return "the tensors are channels_last";
  if (p.channels_in > kMostAGroup * p.groups) return "a group has more than 16 input channels";
  if (p.channels_out > kMostAGroup * p.groups && p.channels_in != p.groups)
    return "a group has more than 16 output channels";
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
int on_threads([[maybe_unused]] const Problem& p, const Plan& plan, int64_t jobs, int64_t floats,
               const Make& make, const Job& job) {
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
  if (has_small_planes(p))
    return correlate_lanes(p, forward_reaches(p), p.in_size, p.out_size, input, weight, bias, output);
  const int64_t in_plane = product(p.in_size), out_plane = product(p.out_size);
  const int64_t ins = p.channels_in / p.groups, outs = p.channels_out / p.groups, taps = product(p.kernel);
  // Zeros beside the rows must meet no infinity.
  if (!all_finite(weight, p.channels_out * ins * taps)) return direct.forward(p, input, weight, bias, output);
  Plan plan;
  for (int d = 0; d < 3; ++d) forward_axis(p, d, plan.axes[d]);
  finish_plan(p, p.out_size, p.batch * p.groups, ins, taps, plan);
  return on_threads<Correlation<T>>(
      p, plan, p.batch * p.groups * plan.bands, plan.scratch_floats(),
      [&](float* scratch, const Band& band) { return Correlation<T>(plan, band, scratch); },
      [&](int64_t job, Correlation<T>& correlation) {
        const int64_t group = job / plan.bands;
        for (int64_t i = 0; i < ins; ++i) correlation.stage_source(input + (group * ins + i) * in_plane, i);
        for (int64_t o = 0; o < outs; ++o) {
          const int64_t out = group * outs + o, channel = out % p.channels_out;
          correlation.run(weight + channel * ins * taps, bias ? to_float(bias[channel]) : 0.0f,
                          output + out * out_plane);
        }
      });
}

template <class T>
int grad_input(const Problem& p, const T* grad_output, const T* weight, T* grad_input) {
  if (has_small_planes(p))
    return correlate_lanes<T>(p, grad_input_reaches(p), p.out_size, p.in_size, grad_output, weight, nullptr,
                              grad_input);
  const int64_t in_plane = product(p.in_size), out_plane = product(p.out_size);
  const int64_t ins = p.channels_in / p.groups, outs = p.channels_out / p.groups, taps = product(p.kernel);
  if (!all_finite(weight, p.channels_out * ins * taps))
    return direct.grad_input(p, grad_output, weight, grad_input);
  Plan plan;
  for (int d = 0; d < 3; ++d) grad_input_axis(p, d, plan.axes[d]);
  finish_plan(p, p.in_size, p.batch * p.groups, outs, ins * taps, plan);
  return on_threads<Correlation<T>>(
      p, plan, p.batch * p.groups * plan.bands, plan.scratch_floats(),
      [&](float* scratch, const Band& band) { return Correlation<T>(plan, band, scratch); },
      [&](int64_t job, Correlation<T>& correlation) {
        const int64_t group = job / plan.bands;
        for (int64_t o = 0; o < outs; ++o)
          correlation.stage_source(grad_output + (group * outs + o) * out_plane, o);
        if (plan.bands == 1 && group + 1 < p.batch * p.groups)
          correlation.read_ahead(grad_output + (group + 1) * outs * out_plane, outs * out_plane, ins);
        const T* weights = weight + group * outs % p.channels_out * ins * taps;
        for (int64_t i = 0; i < ins; ++i)
          correlation.run(weights + i * taps, 0.0f, grad_input + (group * ins + i) * in_plane);
      });
}

// How the groups and the images' bands are shared out; each job has sums of its own.
struct Split {
  int64_t groups, blocks;  // groups a block, and how many blocks
  int64_t items, parts;    // (image, band) pairs, and in how many parts they are
};

Split split_for(const Problem& p, const Plan& plan, int64_t group_bytes) {
  Split split;
  const int64_t wanted = 4 * p.num_threads;
  // Planes that lie together are read together; small ones several at a time.
  split.groups = larger(1, smaller(smaller(ceil_div(4096, group_bytes), 16), p.groups / wanted));
  split.blocks = ceil_div(p.groups, split.groups);
  split.items = p.batch * plan.bands;
  split.parts = smaller(split.items, ceil_div(wanted, split.blocks));
  return split;
}

template <class T>
int grad_weight(const Problem& p, const T* grad_output, const T* input, T* grad_weight, T* grad_bias) {
  if (has_small_planes(p)) return grad_weight_lanes(p, grad_output, input, grad_weight, grad_bias);
  Plan plan;
  for (int d = 0; d < 3; ++d) forward_axis(p, d, plan.axes[d]);
  const int64_t ins = p.channels_in / p.groups, outs = p.channels_out / p.groups, taps = product(p.kernel);
  finish_plan(p, p.out_size, p.batch * p.groups, 1, taps, plan);
  const int64_t in_plane = product(p.in_size), out_plane = product(p.out_size);
  const Split split = split_for(p, plan, larger(ins * in_plane, outs * out_plane) * int64_t(sizeof(T)));
  // Doubles by part, pair of channels and tap, the bias last.
  const int64_t pairs = p.channels_out * ins, pair_totals = taps + 1, part_totals = pairs * pair_totals;
  Scratch totals_memory(2 * split.parts * part_totals);
  if (!totals_memory.data()) return LEANCONV_OUT_OF_MEMORY;
  double* totals = reinterpret_cast<double*>(totals_memory.data());
  for (int64_t i = 0; i < split.parts * part_totals; ++i) totals[i] = 0.0;
  const int64_t sum_floats = Sums::floats(taps) * outs * ins * split.groups;
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
      const int64_t first = block * split.groups, end = smaller(p.groups, first + split.groups);
      const auto sums_of = [&](int64_t pair) {
        return Sums(vectors + (pair - first * outs * ins) * Sums::floats(taps),
                    totals + part * part_totals + pair * pair_totals, taps);
      };
      for (int64_t pair = first * outs * ins; pair < end * outs * ins; ++pair) sums_of(pair).clear();
      const int64_t items_end = split.items * (part + 1) / split.parts;
      // Band after band, so that each is prepared for once.
      for (int64_t band = 0; band < plan.bands; ++band) {
        int64_t item = split.items * part / split.parts;
        item += (band - item % plan.bands + plan.bands) % plan.bands;
        if (item >= items_end) continue;
        WeightGradient<T> gradient(plan, plan.band(band), staged);
        for (; item < items_end; item += plan.bands)
          for (int64_t c = first * ins; c < end * ins; ++c) {
            const int64_t image = item / plan.bands, group = c / ins;
            gradient.stage_input(input + (image * p.channels_in + c) * in_plane);
            for (int64_t out = group * outs; out < (group + 1) * outs; ++out)
              gradient.add(grad_output + (image * p.channels_out + out) * out_plane, converted,
                           sums_of(out * ins + c % ins), grad_bias && c % ins == 0);
          }
      }
      for (int64_t pair = first * outs * ins; pair < end * outs * ins; ++pair) sums_of(pair).flush();
    }
  }
  if (status != LEANCONV_OK) return status;
  bool finite = true;
  for (int64_t pair = 0; pair < pairs; ++pair)
    for (int64_t tap = 0; tap <= taps; ++tap) {
      double total = 0.0;
      for (int64_t part = 0; part < split.parts; ++part)
        total += totals[part * part_totals + pair * pair_totals + tap];
      finite = finite && total * 0.0 == 0.0;
      if (tap < taps)
        grad_weight[pair * taps + tap] = from_float<T>(float(total));
      else if (grad_bias && pair % ins == 0)
        grad_bias[pair / ins] = from_float<T>(float(total));
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
