// Depthwise convolutions (any channel multiplier) over channels_last tensors: vectors run over channels.
#include "kernels/channels_last/source.h"
#include "problem.h"

namespace leanconv::LEANCONV_ISA {
namespace {

constexpr int64_t kStagedFloats = 128 * 1024;  // of rows converted at a time, about

const char* why_not(const Problem& p, Direction) {
  if (p.layout != LEANCONV_CHANNELS_LAST) return "the tensors are contiguous";
  if (p.groups != p.channels_in) return "it is no depthwise convolution, and the tensors are channels_last";
  if (p.kernel[0] * p.kernel[1] > RowTaps::kMost) return "the kernel has more than 256 rows";
  for (int d = 0; d < 3; ++d)
    if (p.stride[d] > kMaxStride) return "a stride is above 8";
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

// A job makes rows [row, row_end) of one slice of one image.
struct Job {
  int64_t image, slice, row, row_end;
};

struct Jobs {
  int64_t slices, rows, per_job, bands;

  // Enough jobs for the threads. Where rows are converted, as many rows a job as scratch should hold, and not
  // fewer than `least_rows`, since neighbouring jobs convert the rows between them twice.
  Jobs(const Problem& p, const int64_t* size, int64_t least_rows, int64_t row_floats)
      : slices(size[0]), rows(size[1]) {
    const int64_t for_threads = ceil_div(4 * p.num_threads, larger(1, p.batch * slices));
    per_job = smaller(ceil_div(rows, for_threads), larger(1, kStagedFloats / larger(1, row_floats)));
    per_job = larger(per_job, smaller(rows, least_rows));
    if (per_job > rows / 2) per_job = for_threads > 1 ? per_job : rows;
    per_job = larger(1, smaller(per_job, rows));
    bands = ceil_div(rows, per_job);
  }
  int64_t count(const Problem& p) const { return p.batch * slices * bands; }
  Job job(int64_t i) const {
    const int64_t row = i % bands * per_job, plane = i / bands;
    return {plane / slices, plane % slices, row, smaller(rows, row + per_job)};
  }
};

// Result channel c is the sum of channels [c * repeat, (c + 1) * repeat).
template <class T>
void sum_channels(const float* from, int64_t pixels, int64_t stride, int64_t channels, int64_t repeat,
                  T* to) {
  for (int64_t x = 0; x < pixels; ++x, from += stride, to += channels)
    for (int64_t c = 0; c < channels; ++c) {
      float total = 0.0f;
      for (int64_t r = 0; r < repeat; ++r) total += from[c * repeat + r];
      to[c] = from_float<T>(total);
    }
}

// The rows of `size`, from a source tensor's; the result has `channels`, each a sum of `repeat`.
template <class T>
int correlate(const Problem& p, const Reaches& reaches, const int64_t* source_size, int64_t source_channels,
              int64_t source_repeat, const int64_t* size, int64_t channels, int64_t repeat, const T* source,
              const T* weight, const T* bias, T* result) {
  const Weights weights(p, weight, bias);
  if (!weights.ready()) return LEANCONV_OUT_OF_MEMORY;
  const Source<T> shape(source_size, source_channels, source_repeat);
  const Jobs jobs(p, size, shape.direct() ? 1 : 2 * p.kernel[1], shape.row_stride());
  int64_t slices = 0, rows = 0;
  for (int64_t i = 0; i < size[0]; ++i) {
    int64_t low, high;
    reaches.span(0, i, i + 1, low, high);
    slices = larger(slices, high - low);
  }
  for (int64_t b = 0; b < jobs.bands; ++b) {
    int64_t low, high;
    reaches.span(1, b * jobs.per_job, smaller(jobs.rows, (b + 1) * jobs.per_job), low, high);
    rows = larger(rows, high - low);
  }
  slices = smaller(slices, source_size[0]);
  rows = smaller(rows, source_size[1]);
  const int64_t line_stride = round_up(p.channels_out, Vec::width);
  const int64_t line = repeat == 1 ? 0 : size[2] * line_stride, staged = shape.floats(slices, rows);
  int status = LEANCONV_OK;
#pragma omp parallel num_threads(p.num_threads) reduction(max : status)
  {
    Scratch scratch(line + staged);
    if (!scratch.data()) status = LEANCONV_OUT_OF_MEMORY;
    Source<T> here = shape;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < jobs.count(p); ++i) {
      if (!scratch.data()) continue;
      const Job job = jobs.job(i);
      int64_t slice, slice_end, row, row_end;
      reaches.span(0, job.slice, job.slice + 1, slice, slice_end);
      reaches.span(1, job.row, job.row_end, row, row_end);
      here.prepare(source + job.image * product(source_size) * source_channels, slice, slice_end, row,
                   row_end, scratch.data() + line);
      const auto row_at = [&](int64_t h) {
        return result + (((job.image * size[0] + job.slice) * size[1] + h) * size[2]) * channels;
      };
      if (repeat == 1) {
        make_rows(p, reaches, here.view(), weights, job.slice, job.row, job.row_end, size[2], p.channels_out,
                  row_at(job.row), size[2] * channels, channels);
      } else {
        for (int64_t h = job.row; h < job.row_end; ++h) {
          make_row(p, reaches, here.view(), weights, job.slice, h, size[2], 0, p.channels_out, scratch.data(),
                   line_stride);
          sum_channels(scratch.data(), size[2], line_stride, channels, repeat, row_at(h));
        }
      }
    }
  }
  return status;
}

template <class T>
int forward(const Problem& p, const T* input, const T* weight, const T* bias, T* output) {
  const Reaches reaches = forward_reaches(p);
  return correlate(p, reaches, p.in_size, p.channels_in, p.channels_out / p.channels_in, p.out_size,
                   p.channels_out, 1, input, weight, bias, output);
}

template <class T>
int grad_input(const Problem& p, const T* grad_output, const T* weight, T* grad_input) {
  const Reaches reaches = grad_input_reaches(p);
  return correlate<T>(p, reaches, p.out_size, p.channels_out, 1, p.in_size, p.channels_in,
                      p.channels_out / p.channels_in, grad_output, weight, nullptr, grad_input);
}

template <class T>
int grad_weight(const Problem& p, const T* grad_output, const T* input, T* grad_weight, T* grad_bias) {
  const Reaches reaches = forward_reaches(p);
  const Source<T> input_shape(p.in_size, p.channels_in, p.channels_out / p.channels_in);
  const Source<T> grad_shape(p.out_size, p.channels_out, 1);
  const Jobs jobs(p, p.out_size, input_shape.direct() ? 1 : 2 * p.kernel[1], input_shape.row_stride());
  const int64_t taps = product(p.kernel), stride = round_up(p.channels_out, Vec::width);
  // As many parts as threads: a part's totals are its own, and are added up in order.
  const int64_t parts = smaller(jobs.count(p), p.num_threads), part_totals = (taps + 1) * stride;
  Scratch totals_memory(2 * parts * part_totals);
  if (!totals_memory.data()) return LEANCONV_OUT_OF_MEMORY;
  double* totals = reinterpret_cast<double*>(totals_memory.data());
  const int64_t input_rows =
      smaller(p.in_size[1], (jobs.per_job - 1) * p.stride[1] + (p.kernel[1] - 1) * p.dilation[1] + 1);
  const int64_t input_slices = smaller(p.in_size[0], (p.kernel[0] - 1) * p.dilation[0] + 1);
  const int64_t input_floats = input_shape.floats(input_slices, input_rows);
  int status = LEANCONV_OK;
#pragma omp parallel num_threads(p.num_threads) reduction(max : status)
  {
    Scratch scratch(input_floats + grad_shape.floats(1, jobs.per_job));
    if (!scratch.data()) status = LEANCONV_OUT_OF_MEMORY;
    Source<T> in = input_shape, grad = grad_shape;
#pragma omp for schedule(static)
    for (int64_t part = 0; part < parts; ++part) {
      if (!scratch.data()) continue;
      double* own = totals + part * part_totals;
      for (int64_t i = 0; i < part_totals; ++i) own[i] = 0.0;
      const int64_t end = jobs.count(p) * (part + 1) / parts;
      for (int64_t i = jobs.count(p) * part / parts; i < end; ++i) {
        const Job job = jobs.job(i);
        int64_t slice, slice_end, row, row_end;
        reaches.span(0, job.slice, job.slice + 1, slice, slice_end);
        reaches.span(1, job.row, job.row_end, row, row_end);
        in.prepare(input + job.image * product(p.in_size) * p.channels_in, slice, slice_end, row, row_end,
                   scratch.data());
        grad.prepare(grad_output + job.image * product(p.out_size) * p.channels_out, job.slice, job.slice + 1,
                     job.row, job.row_end, scratch.data() + input_floats);
        add_rows(p, reaches, in.view(), grad.view(), p.channels_out, job.slice, job.row, job.row_end,
                 grad_bias != nullptr, own, stride);
      }
    }
  }
  if (status != LEANCONV_OK) return status;
  for (int64_t tap = 0; tap <= taps; ++tap)
    for (int64_t c = 0; c < p.channels_out; ++c) {
      double total = 0.0;
      for (int64_t part = 0; part < parts; ++part) total += totals[part * part_totals + tap * stride + c];
      if (tap < taps)
        grad_weight[c * taps + tap] = from_float<T>(float(total));
      else if (grad_bias)
        grad_bias[c] = from_float<T>(float(total));
    }
  return LEANCONV_OK;
}

// Calls run with a value of the problem's storage type.
template <class Run>
int by_dtype(const Problem& p, const Run& run) {
  if (p.dtype == LEANCONV_F32) return run(float{});
  if (p.dtype == LEANCONV_BF16) return run(bf16{});
  return run(f16{});
}

}  // namespace

extern const Family channels_last;
const Family channels_last = {
    "channels_last",
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
