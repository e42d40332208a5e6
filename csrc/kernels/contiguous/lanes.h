// Small planes: as many channels as two vectors have lanes are laid side by side, pixel by pixel, and served
// as channels_last tensors are. A row shorter than a few vectors would leave most lanes idle otherwise.
#pragma once

#include "kernels/channels_last/rows.h"

namespace leanconv::LEANCONV_ISA {

constexpr int64_t kLanes = 2 * Vec::width;  // two vectors share what a row costs beside arithmetic
constexpr int64_t kShortRow = 16;
constexpr int64_t kSmallPlane = 1024;

// Without a channel multiplier only: a lane is a channel of the input and of the output.
inline bool has_small_planes(const Problem& p) {
  return p.channels_in == p.groups && p.channels_out == p.groups && p.out_size[2] <= kShortRow &&
         p.in_size[2] <= 2 * kShortRow && product(p.in_size) <= kSmallPlane &&
         product(p.out_size) <= kSmallPlane && p.kernel[0] * p.kernel[1] <= RowTaps::kMost;
}

// `lanes` planes of `size` elements to [size][kLanes], lanes that do not exist being zero.
template <class T>
void to_lanes(const T* planes, int64_t size, int64_t lanes, float* to) {
  if (lanes < kLanes) fill_zero(to, size * kLanes);
  int64_t lane = 0;
#ifdef LEANCONV_TRANSPOSES
  const int64_t whole = size / 8 * 8;
  for (; lane + 8 <= lanes; lane += 8)
    for (int64_t i = 0; i < whole; i += 8)
      transpose_8x8(planes + lane * size + i, size, to + i * kLanes + lane, kLanes);
  for (int64_t l = 0; l < lane; ++l)
    for (int64_t i = whole; i < size; ++i) to[i * kLanes + l] = to_float(planes[l * size + i]);
#endif
  for (; lane < lanes; ++lane)
    for (int64_t i = 0; i < size; ++i) to[i * kLanes + lane] = to_float(planes[lane * size + i]);
}

// The way back, plane after plane at `pitch`.
template <class T>
void from_lanes(const float* from, int64_t size, int64_t lanes, T* planes, int64_t pitch) {
  int64_t lane = 0;
#ifdef LEANCONV_TRANSPOSES
  const int64_t whole = size / 8 * 8;
  for (; lane + 8 <= lanes; lane += 8) {
    for (int64_t i = 0; i < whole; i += 8)
      transpose_8x8(from + i * kLanes + lane, kLanes, planes + lane * pitch + i, pitch);
    for (int64_t l = lane; l < lane + 8; ++l)
      for (int64_t i = whole; i < size; ++i) planes[l * pitch + i] = from_float<T>(from[i * kLanes + l]);
  }
#endif
  for (; lane < lanes; ++lane)
    for (int64_t i = 0; i < size; ++i) planes[lane * pitch + i] = from_float<T>(from[i * kLanes + lane]);
}

inline View lane_view(const float* origin, const int64_t* size) {
  return {origin, size[1] * size[2] * kLanes, size[2] * kLanes, kLanes};
}

// Forward, or the gradient of the input: the result's planes from the source's.
template <class T>
int correlate_lanes(const Problem& p, const Reaches& reaches, const int64_t* source_size, const int64_t* size,
                    const T* source, const T* weight, const T* bias, T* result) {
  const Weights weights(p, weight, bias);
  if (!weights.ready()) return LEANCONV_OUT_OF_MEMORY;
  const int64_t from = product(source_size), to = product(size), blocks = ceil_div(p.channels_out, kLanes);
  int status = LEANCONV_OK;
#pragma omp parallel num_threads(p.num_threads) reduction(max : status)
  {
    Scratch scratch((from + to) * kLanes);
    if (!scratch.data()) status = LEANCONV_OUT_OF_MEMORY;
    float *in = scratch.data(), *out = in + from * kLanes;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < p.batch * blocks; ++i) {
      if (!in) continue;
      const int64_t channel = i % blocks * kLanes, lanes = smaller(kLanes, p.channels_out - channel);
      const int64_t plane = i / blocks * p.channels_out + channel;
      to_lanes(source + plane * from, from, lanes, in);
      const View view = lane_view(in, source_size);
      for (int64_t d = 0; d < size[0]; ++d)
        for (int64_t h = 0; h < size[1]; ++h)
          make_row(p, reaches, view, weights, d, h, size[2], channel, kLanes,
                   out + (d * size[1] + h) * size[2] * kLanes, kLanes);
      from_lanes(out, to, lanes, result + plane * to, to);
    }
  }
  return status;
}

template <class T>
int grad_weight_lanes(const Problem& p, const T* grad_output, const T* input, T* grad_weight, T* grad_bias) {
  const Reaches reaches = forward_reaches(p);
  const int64_t from = product(p.in_size), to = product(p.out_size), taps = product(p.kernel);
  const int64_t blocks = ceil_div(p.channels_out, kLanes);
  // Few blocks are shared by splitting the images; a part's totals are its own and are added up in order.
  const int64_t parts = smaller(p.batch, ceil_div(2 * p.num_threads, blocks));
  const int64_t part_totals = (taps + 1) * kLanes;
  Scratch totals_memory(2 * blocks * parts * part_totals);
  if (!totals_memory.data()) return LEANCONV_OUT_OF_MEMORY;
  double* totals = reinterpret_cast<double*>(totals_memory.data());
  int status = LEANCONV_OK;
#pragma omp parallel num_threads(p.num_threads) reduction(max : status)
  {
    Scratch scratch((from + to) * kLanes);
    if (!scratch.data()) status = LEANCONV_OUT_OF_MEMORY;
    float *in = scratch.data(), *grad = in + from * kLanes;
#pragma omp for schedule(static)
    for (int64_t job = 0; job < blocks * parts; ++job) {
      if (!in) continue;
      const int64_t block = job / parts, part = job % parts, channel = block * kLanes;
      const int64_t lanes = smaller(kLanes, p.channels_out - channel);
      double* own = totals + job * part_totals;
      for (int64_t i = 0; i < part_totals; ++i) own[i] = 0.0;
      const int64_t end = p.batch * (part + 1) / parts;
      for (int64_t image = p.batch * part / parts; image < end; ++image) {
        const int64_t plane = image * p.channels_out + channel;
        to_lanes(input + plane * from, from, lanes, in);
        to_lanes(grad_output + plane * to, to, lanes, grad);
        for (int64_t d = 0; d < p.out_size[0]; ++d)
          add_rows(p, reaches, lane_view(in, p.in_size), lane_view(grad, p.out_size), kLanes, d, 0,
                   p.out_size[1], grad_bias != nullptr, own, kLanes);
      }
    }
  }
  if (status != LEANCONV_OK) return status;
  for (int64_t c = 0; c < p.channels_out; ++c)
    for (int64_t tap = 0; tap <= taps; ++tap) {
      double total = 0.0;
      for (int64_t part = 0; part < parts; ++part)
        total += totals[(c / kLanes * parts + part) * part_totals + tap * kLanes + c % kLanes];
      if (tap < taps)
        grad_weight[c * taps + tap] = from_float<T>(float(total));
      else if (grad_bias)
        grad_bias[c] = from_float<T>(float(total));
    }
  return LEANCONV_OK;
}

}  // namespace leanconv::LEANCONV_ISA
