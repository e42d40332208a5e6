// Forward and backward over tiles: make a tile's depthwise result, use it, forget it.
#pragma once

#include "kernels/separable/activation.h"
#include "kernels/separable/middle.h"

namespace leanconv::LEANCONV_ISA {

// A separable convolution: `depthwise` gives `middle` channels, of which the pointwise half makes
// `channels_out`.
struct Layer {
  const Problem& p;
  int64_t middle, channels_out;
  int32_t activation;
  bool last() const { return p.layout == LEANCONV_CHANNELS_LAST; }
  int64_t pixels() const { return product(p.out_size); }
};

// The pointwise weight (channels_out, middle) as floats, rows spread out, whole vectors readable.
template <class T>
void copy_weight(const Layer& layer, const T* weight, float* to) {
  const int64_t pitch = spread(layer.middle);
  for (int64_t o = 0; o < layer.channels_out; ++o)
    gather_row(weight + o * layer.middle, 1, layer.middle, to + o * pitch);
}
inline int64_t weight_floats(const Layer& layer) { return layer.channels_out * spread(layer.middle); }

template <class T>
void copy_padded(const T* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
  for (int64_t i = count; i < round_up(count, Vec::width); ++i) to[i] = 0.0f;
}

// Elements [0, row) of `rows` rows as floats: where they lie, or converted into scratch.
struct Floats {
  const float* at;
  int64_t stride;
};
template <class T>
Floats as_floats(const T* from, int64_t stride, int64_t rows, int64_t row, int64_t pitch, float* scratch) {
  if (sizeof(T) == sizeof(float)) return {reinterpret_cast<const float*>(from), stride};
  for (int64_t r = 0; r < rows; ++r) gather_row(from + r * stride, 1, row, scratch + r * pitch);
  return {scratch, pitch};
}

template <class Tiles, class T>
int separable_forward(const Layer& layer, const T* input, const T* weight, const T* bias,
                      const T* pointwise_weight, const T* pointwise_bias, T* output) {
  const Tiles tiles(layer.p, input, weight, bias);
  const Panels columns(layer.channels_out);
  const int64_t bias_floats = round_up(layer.channels_out, Vec::width);
  Scratch shared(weight_floats(layer) + bias_floats + columns.floats(layer.middle));
  if (!tiles.ready() || !shared.data()) return LEANCONV_OUT_OF_MEMORY;
  float *weights = shared.data(), *biases = weights + weight_floats(layer), *packed = biases + bias_floats;
  copy_weight(layer, pointwise_weight, weights);
  if (pointwise_bias) copy_padded(pointwise_bias, layer.channels_out, biases);
  if (layer.last())
    for (int64_t i = 0; i < columns.count; ++i)
      pack_panel_transposed(weights + columns.first(i) * spread(layer.middle), spread(layer.middle),
                            layer.middle, columns.columns_of(i), columns.vectors_of(i),
                            packed + columns.first(i) * layer.middle);
  const int64_t panel_floats = layer.last() ? 0 : kTileVectors * Vec::width * layer.middle;
  const int64_t activated_floats = layer.activation
                                       ? (layer.last() ? tiles.most_pixels() * spread(layer.middle)
                                                       : layer.middle * spread(tiles.most_pixels()))
                                       : 0;
  int status = LEANCONV_OK;
#pragma omp parallel num_threads(layer.p.num_threads) reduction(max : status)
  {
    Scratch scratch(panel_floats + activated_floats + tiles.floats());
    if (!scratch.data()) status = LEANCONV_OUT_OF_MEMORY;
    float *panel = scratch.data(), *activated = panel + panel_floats;
    typename Tiles::Worker worker(tiles, activated + activated_floats);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < tiles.count(); ++i) {
      if (!scratch.data()) continue;
      const Tile tile = tiles.tile(i);
      Middle middle = worker.make(i);
      const int64_t rows = layer.last() ? tile.pixels : layer.middle;
      const int64_t row = layer.last() ? layer.middle : tile.pixels;
      if (layer.activation) {
        for (int64_t r = 0; r < rows; ++r)
          activate(layer.activation, middle.at + r * middle.stride, row, activated + r * spread(row));
        middle = {activated, spread(row)};
      }
      T* out = output + tile.image * layer.pixels() * layer.channels_out;
      Upcoming upcoming;
      if (i + 1 < tiles.count()) worker.announce(i + 1, upcoming);
      upcoming.spread_over(layer.last() ? product_tiles(tile.pixels, layer.channels_out)
                                        : product_tiles(layer.channels_out, tile.pixels));
      if (layer.last()) {
        const StoreAs<T> store{out + tile.first * layer.channels_out, layer.channels_out, nullptr,
                               pointwise_bias ? biases : nullptr, &upcoming};
        product_panels({middle.at, middle.stride, 1}, tile.pixels, packed, columns, layer.middle, store);
        continue;
      }
      const StoreAs<T> store{out + tile.first, layer.pixels(), pointwise_bias ? biases : nullptr, nullptr,
                             &upcoming};
      const Panels pixels(tile.pixels);
      for (int64_t b = 0; b < pixels.count; ++b) {
        pack_panel(middle.at + pixels.first(b), middle.stride, layer.middle, pixels.columns_of(b),
                   pixels.vectors_of(b), panel);
        product_panel({weights, spread(layer.middle), 1}, layer.channels_out, panel, pixels.vectors_of(b),
                      pixels.columns_of(b), layer.middle, store, pixels.first(b));
      }
    }
  }
  return status;
}

// Where the backward's results go; null for those not wanted.
template <class T>
struct Gradients {
  T *middle, *pointwise_weight, *pointwise_bias;
};

// The totals of one thread's tiles: [channels_out][middle, in whole vectors], then the bias's.
struct Totals {
  int64_t row, floats;
  explicit Totals(const Layer& layer)
      : row(Panels(layer.middle).vectors * Vec::width), floats(layer.channels_out * (row + 1)) {}
};

// Adds a tile's gradient to the bias's totals.
inline void add_bias(const Layer& layer, const Floats& grad, int64_t pixels, double* totals) {
  for (int64_t o = 0; o < layer.channels_out; o += layer.last() ? Vec::width : 1) {
    Vec total = Vec::zero();
    if (!layer.last()) {
      const float* from = grad.at + o * grad.stride;
      int64_t i = 0;
      for (; i + Vec::width <= pixels; i += Vec::width) total = total + Vec::load(from + i);
      if (i < pixels) total = total + Vec::load_partial(from + i, int(pixels - i));
      totals[o] += double(sum(total));
      continue;
    }
    const int lanes = int(smaller(Vec::width, layer.channels_out - o));
    for (int64_t i = 0; i < pixels; ++i)
      total = total + Vec::load_partial(grad.at + i * grad.stride + o, lanes);
    float sums[Vec::width];
    total.store(sums);
    for (int lane = 0; lane < lanes; ++lane) totals[o + lane] += double(sums[lane]);
  }
}

template <class T>
void announce_gradient(const Layer& layer, const T* grad_output, const Tile& tile, Upcoming& upcoming) {
  const T* image = grad_output + tile.image * layer.pixels() * layer.channels_out;
  const int64_t size = int64_t(sizeof(T));
  if (layer.last())
    upcoming.add(image + tile.first * layer.channels_out, tile.pixels * layer.channels_out * size, 0, 1);
  else
    upcoming.add(image + tile.first, tile.pixels * size, layer.pixels() * size, layer.channels_out);
}

template <class Tiles, class T>
int separable_backward(const Layer& layer, const T* grad_output, const T* input, const T* weight,
                       const T* bias, const T* pointwise_weight, const Gradients<T>& wanted) {
  const Tiles tiles(layer.p, input, weight, bias);
  const Panels columns(layer.middle);
  Scratch shared(weight_floats(layer) + columns.floats(layer.channels_out));
  if (!tiles.ready() || !shared.data()) return LEANCONV_OUT_OF_MEMORY;
  float *weights = shared.data(), *packed = weights + weight_floats(layer);
  if (wanted.middle) {
    copy_weight(layer, pointwise_weight, weights);
    if (layer.last())
      for (int64_t i = 0; i < columns.count; ++i)
        pack_panel(weights + columns.first(i), spread(layer.middle), layer.channels_out,
                   columns.columns_of(i), columns.vectors_of(i),
                   packed + columns.first(i) * layer.channels_out);
  }
  const bool with_totals = wanted.pointwise_weight || wanted.pointwise_bias;
  const bool with_middle = wanted.pointwise_weight || (wanted.middle && layer.activation);
  const int64_t parts = larger(1, smaller(tiles.count(), layer.p.num_threads));
  const Totals each(layer);
  Scratch totals_memory(with_totals ? 2 * parts * each.floats : 0);
  if (!totals_memory.data()) return LEANCONV_OUT_OF_MEMORY;
  double* totals = reinterpret_cast<double*>(totals_memory.data());

  const int64_t tile_floats =
      layer.last() ? tiles.most_pixels() * spread(layer.middle) : layer.middle * spread(tiles.most_pixels());
  const int64_t grad_row = layer.last() ? layer.channels_out : spread(tiles.most_pixels());
  const int64_t grad_floats =
      sizeof(T) == sizeof(float)
          ? 0
          : round_up((layer.last() ? tiles.most_pixels() : layer.channels_out) * grad_row + Vec::width, 16);
  const int64_t deepest = larger(layer.last() ? 0 : layer.channels_out, tiles.most_pixels());
  const int64_t panel_floats = kTileVectors * Vec::width * deepest;
  const int64_t activation_floats = layer.activation ? tile_floats : 0;
  int status = LEANCONV_OK;
#pragma omp parallel num_threads(layer.p.num_threads) reduction(max : status)
  {
    Scratch scratch(panel_floats + grad_floats + 2 * activation_floats + tiles.floats());
    if (!scratch.data()) status = LEANCONV_OUT_OF_MEMORY;
    float *panel = scratch.data(), *grads = panel + panel_floats, *activated = grads + grad_floats,
          *grad_middle = activated + activation_floats;
    typename Tiles::Worker worker(tiles, grad_middle + activation_floats);
#pragma omp for schedule(static)
    for (int64_t part = 0; part < parts; ++part) {
      if (!scratch.data()) continue;
      double* own = totals + part * each.floats;
      if (with_totals)
        for (int64_t i = 0; i < each.floats; ++i) own[i] = 0.0;
      const int64_t end = tiles.count() * (part + 1) / parts;
      for (int64_t i = tiles.count() * part / parts; i < end; ++i) {
        const Tile tile = tiles.tile(i);
        const int64_t rows = layer.last() ? tile.pixels : layer.middle;
        const int64_t row = layer.last() ? layer.middle : tile.pixels;
        Middle before{nullptr, 0}, middle{nullptr, 0};
        if (with_middle) before = middle = worker.make(i);
        if (with_middle && layer.activation) {
          for (int64_t r = 0; r < rows; ++r)
            activate(layer.activation, before.at + r * before.stride, row, activated + r * spread(row));
          middle = {activated, spread(row)};
        }
        const T* grad_here = grad_output + tile.image * layer.pixels() * layer.channels_out +
                             tile.first * (layer.last() ? layer.channels_out : 1);
        const Floats grad =
            layer.last()
                ? as_floats(grad_here, layer.channels_out, tile.pixels, layer.channels_out, grad_row, grads)
                : as_floats(grad_here, layer.pixels(), layer.channels_out, tile.pixels, grad_row, grads);
        Upcoming upcoming;
        if (i + 1 < end) {
          if (with_middle) worker.announce(i + 1, upcoming);
          announce_gradient(layer, grad_output, tiles.tile(i + 1), upcoming);
        }
        const int64_t of_weight =
            wanted.pointwise_weight ? product_tiles(layer.channels_out, layer.middle) : 0;
        const int64_t of_middle = !wanted.middle ? 0
                                  : layer.last() ? product_tiles(tile.pixels, layer.middle)
                                                 : product_tiles(layer.middle, tile.pixels);
        upcoming.spread_over(of_weight + of_middle);
        if (wanted.middle) {
          T* out = wanted.middle + tile.image * layer.pixels() * layer.middle +
                   tile.first * (layer.last() ? layer.middle : 1);
          const int64_t out_stride = layer.last() ? layer.middle : layer.pixels();
          const auto make = [&](const auto& store) {
            if (layer.last()) {
              product_panels({grad.at, grad.stride, 1}, tile.pixels, packed, columns, layer.channels_out,
                             store);
              return;
            }
            const Panels pixels(tile.pixels);
            for (int64_t b = 0; b < pixels.count; ++b) {
              pack_panel(grad.at + pixels.first(b), grad.stride, layer.channels_out, pixels.columns_of(b),
                         pixels.vectors_of(b), panel);
              product_panel({weights, 1, spread(layer.middle)}, layer.middle, panel, pixels.vectors_of(b),
                            pixels.columns_of(b), layer.channels_out, store, pixels.first(b));
            }
          };
          if (layer.activation) {
            make(StoreAs<float>{grad_middle, spread(row), nullptr, nullptr, &upcoming});
            for (int64_t r = 0; r < rows; ++r) {
              float* from = grad_middle + r * spread(row);
              multiply_by_derivative(layer.activation, before.at + r * before.stride, row, from);
              scatter_row(from, 0, 1, row, out + r * out_stride);
            }
          } else {
            make(StoreAs<T>{out, out_stride, nullptr, nullptr, &upcoming});
          }
        }
        if (wanted.pointwise_weight) {
          for (int64_t b = 0; b < columns.count; ++b) {
            const AddTo add{own, each.row, &upcoming};
            if (layer.last()) {
              pack_panel(middle.at + columns.first(b), middle.stride, tile.pixels, columns.columns_of(b),
                         columns.vectors_of(b), panel);
              product_panel({grad.at, 1, grad.stride}, layer.channels_out, panel, columns.vectors_of(b),
                            columns.columns_of(b), tile.pixels, add, columns.first(b));
            } else {
              pack_panel_transposed(middle.at + columns.first(b) * middle.stride, middle.stride, tile.pixels,
                                    columns.columns_of(b), columns.vectors_of(b), panel);
              product_panel({grad.at, grad.stride, 1}, layer.channels_out, panel, columns.vectors_of(b),
                            columns.columns_of(b), tile.pixels, add, columns.first(b));
            }
          }
        }
        if (wanted.pointwise_bias) add_bias(layer, grad, tile.pixels, own + layer.channels_out * each.row);
      }
    }
  }
  if (status != LEANCONV_OK || !with_totals) return status;
  for (int64_t o = 0; o < layer.channels_out; ++o)
    for (int64_t k = 0; k <= layer.middle; ++k) {
      const bool of_bias = k == layer.middle;
      if (!(of_bias ? wanted.pointwise_bias : wanted.pointwise_weight)) continue;
      const int64_t at = of_bias ? layer.channels_out * each.row + o : o * each.row + k;
      double total = 0.0;
      for (int64_t part = 0; part < parts; ++part) total += totals[part * each.floats + at];
      (of_bias ? wanted.pointwise_bias[o] : wanted.pointwise_weight[o * layer.middle + k]) =
          from_float<T>(float(total));
    }
  return LEANCONV_OK;
}

}  // namespace leanconv::LEANCONV_ISA
