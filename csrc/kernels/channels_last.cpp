// Depthwise convolutions (any channel multiplier) over channels_last tensors: vectors run over channels.
#include "kernels/channels_last/correlate.h"
#include "kernels/channels_last/grad_weight.h"
#include "kernels/channels_last/source.h"
#include "problem.h"

namespace leanconv::LEANCONV_ISA {
namespace {

constexpr int64_t kMaxStride = 8;
constexpr int64_t kStagedFloats = 128 * 1024;  // of rows converted at a time, about

const char* why_not(const Problem& p, Direction) {
  if (p.layout != LEANCONV_CHANNELS_LAST) return "the tensors are contiguous";
  if (p.groups != p.channels_in) return "it is no depthwise convolution (groups differ from in_channels)";
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

int64_t product(const int64_t* sizes) { return sizes[0] * sizes[1] * sizes[2]; }

// The reaches of all axes: one of each position modulo `count`.
struct Reaches {
  Reach axis[3][kMaxStride];
  int64_t count[3];
  const Reach& at(int d, int64_t position) const { return axis[d][position % count[d]]; }

  // Source positions [low, high) that result positions [begin, end) of an axis read.
  void span(int d, int64_t begin, int64_t end, int64_t& low, int64_t& high) const {
    low = INT64_MAX;
    high = INT64_MIN;
    for (int64_t i = begin; i < end; ++i) {
      const Reach& reach = at(d, i);
      if (reach.count == 0) continue;
      low = smaller(low, reach.source(i / count[d], 0));
      high = larger(high, reach.source(i / count[d], reach.count - 1) + 1);
    }
    if (low > high) low = high = 0;
  }
};

// A job makes rows [row, row_end) of one slice of one image.
struct Job {
  int64_t image, slice, row, row_end;
};

struct Jobs {
  int64_t slices, rows, per_job, bands;

  // Enough jobs for the threads; where rows are converted, enough rows that neighbours share them.
  Jobs(const Problem& p, const int64_t* size, int64_t least_rows, int64_t row_floats)
      : slices(size[0]), rows(size[1]) {
    const int64_t wanted = ceil_div(4 * p.num_threads, larger(1, p.batch * slices));
    per_job = larger(smaller(rows, least_rows),
                     smaller(ceil_div(rows, wanted), ceil_div(kStagedFloats, row_floats)));
    per_job = larger(1, per_job);
    bands = ceil_div(rows, per_job);
  }
  int64_t count(const Problem& p) const { return p.batch * slices * bands; }
  Job job(int64_t i) const {
    const int64_t row = i % bands * per_job, plane = i / bands;
    return {plane / slices, plane % slices, row, smaller(rows, row + per_job)};
  }
};

// The weights of one call, packed once for all threads.
template <class T>
class Weights {
 public:
  Weights(const Problem& p, const T* weight, const T* bias)
      : stride_(round_up(p.channels_out, Vec::width)),
        kernel_row_(p.kernel[2]),
        memory_((product(p.kernel) + 1) * stride_),
        has_bias_(bias != nullptr) {
    if (!memory_.data()) return;
    const int64_t taps = product(p.kernel);
    pack_weights(weight, p.channels_out, taps, stride_, memory_.data());
    if (bias) pack_weights(bias, p.channels_out, 1, stride_, memory_.data() + taps * stride_);
    bias_ = memory_.data() + taps * stride_;
  }
  bool ready() { return memory_.data() != nullptr; }
  int64_t stride() const { return stride_; }
  const float* bias() const { return has_bias_ ? bias_ : nullptr; }
  // The first tap that a reach along the row uses, of a row of the kernel.
  const float* row(int64_t kernel_row, const Reach& along) {
    return memory_.data() + (kernel_row * kernel_row_ + along.first_tap) * stride_;
  }

 private:
  int64_t stride_, kernel_row_;
  Scratch memory_;
  bool has_bias_;
  const float* bias_ = nullptr;
};

// Makes one row of the result, of `channels` channels at `out_stride` from pixel to pixel.
template <class T, class R>
void make_row(const Problem& p, const Reaches& reaches, const Source<T>& source, Weights<T>& weights,
              int64_t slice, int64_t row, int64_t width, R* out, int64_t out_stride) {
  const Reach &depth = reaches.at(0, slice), &height = reaches.at(1, row);
  const int64_t d = slice / reaches.count[0], h = row / reaches.count[1];
  for (int64_t residue = 0; residue < reaches.count[2] && residue < width; ++residue) {
    const Reach& along = reaches.axis[2][residue];
    RowTaps taps;
    if (along.count > 0)
      for (int64_t i = depth.tap_begin(d); i < depth.tap_end(d); ++i)
        for (int64_t j = height.tap_begin(h); j < height.tap_end(h); ++j) {
          const int64_t kernel_row =
              (depth.first_tap + i * depth.tap_step) * p.kernel[1] + height.first_tap + j * height.tap_step;
          taps.rows[taps.count] =
              source.slice(depth.source(d, i)) + height.source(h, j) * source.row_stride();
          taps.weights[taps.count++] = weights.row(kernel_row, along);
        }
    RowOfPixels<R> pixels{&along,
                          &taps,
                          source.pixel_stride(),
                          along.tap_step * weights.stride(),
                          weights.bias(),
                          out + along.start * out_stride,
                          along.step * out_stride,
                          false};
    all_channels(pixels, 0, along.size, p.channels_out);
  }
}

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
  Weights<T> weights(p, weight, bias);
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
      for (int64_t h = job.row; h < job.row_end; ++h) {
        T* out = result + (((job.image * size[0] + job.slice) * size[1] + h) * size[2]) * channels;
        if (repeat == 1) {
          make_row(p, reaches, here, weights, job.slice, h, size[2], out, channels);
        } else {
          make_row(p, reaches, here, weights, job.slice, h, size[2], scratch.data(), line_stride);
          sum_channels(scratch.data(), size[2], line_stride, channels, repeat, out);
        }
      }
    }
  }
  return status;
}

template <class T>
int forward(const Problem& p, const T* input, const T* weight, const T* bias, T* output) {
  Reaches reaches;
  for (int d = 0; d < 3; ++d) {
    reaches.count[d] = 1;
    reaches.axis[d][0] = forward_reach(p, d);
  }
  return correlate(p, reaches, p.in_size, p.channels_in, p.channels_out / p.channels_in, p.out_size,
                   p.channels_out, 1, input, weight, bias, output);
}

template <class T>
int grad_input(const Problem& p, const T* grad_output, const T* weight, T* grad_input) {
  Reaches reaches;
  for (int d = 0; d < 3; ++d) {
    reaches.count[d] = p.stride[d];
    for (int64_t i = 0; i < p.stride[d]; ++i) reaches.axis[d][i] = grad_input_reach(p, d, i);
  }
  return correlate<T>(p, reaches, p.out_size, p.channels_out, 1, p.in_size, p.channels_in,
                      p.channels_out / p.channels_in, grad_output, weight, nullptr, grad_input);
}

// Adds rows [row, row_end) of an output slice to a part's totals, [taps, then the bias][stride].
template <class T>
void add_rows(const Problem& p, const Reaches& reaches, const Source<T>& input, const Source<T>& grad,
              int64_t slice, int64_t row, int64_t row_end, bool with_bias, double* totals, int64_t stride) {
  const Reach& depth = reaches.axis[0][0];
  const int64_t width = p.out_size[2], block_width = smaller(width, kBlock);
  const int64_t block_rows = larger(1, kBlock / block_width);
  PixelBlock block;
  block.down = &reaches.axis[1][0];
  block.along = &reaches.axis[2][0];
  block.input_row = input.row_stride();
  block.input_pixel = input.pixel_stride();
  block.grad = grad.slice(slice);
  block.grad_row = grad.row_stride();
  block.grad_pixel = grad.pixel_stride();
  for (block.row_begin = row; block.row_begin < row_end; block.row_begin = block.row_end)
    for (block.begin = 0, block.row_end = smaller(row_end, block.row_begin + block_rows); block.begin < width;
         block.begin = block.end) {
      block.end = smaller(width, block.begin + block_width);
      for (int64_t c = 0; c < p.channels_out; c += Vec::width) {
        const int lanes = int(smaller(Vec::width, p.channels_out - c));
        for (int64_t i = depth.tap_begin(slice); i < depth.tap_end(slice); ++i) {
          block.input = input.slice(depth.source(slice, i));
          double* at = totals + i * p.kernel[1] * p.kernel[2] * stride;
          if (lanes == Vec::width)
            all_taps<false>(block, c, lanes, at, p.kernel[2] * stride, stride);
          else
            all_taps<true>(block, c, lanes, at, p.kernel[2] * stride, stride);
        }
        if (!with_bias) continue;
        Vec sum = Vec::zero();
        for (int64_t h = block.row_begin; h < block.row_end; ++h)
          for (int64_t x = block.begin; x < block.end; ++x) {
            const float* from = block.grad + h * block.grad_row + x * block.grad_pixel + c;
            sum = sum + (lanes == Vec::width ? Vec::load(from) : Vec::load_partial(from, lanes));
          }
        float sums[Vec::width];
        sum.store(sums);
        for (int lane = 0; lane < lanes; ++lane)
          totals[product(p.kernel) * stride + c + lane] += double(sums[lane]);
      }
    }
}

template <class T>
int grad_weight(const Problem& p, const T* grad_output, const T* input, T* grad_weight, T* grad_bias) {
  Reaches reaches;
  for (int d = 0; d < 3; ++d) {
    reaches.count[d] = 1;
    reaches.axis[d][0] = forward_reach(p, d);
  }
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
        add_rows(p, reaches, in, grad, job.slice, job.row, job.row_end, grad_bias != nullptr, own, stride);
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
