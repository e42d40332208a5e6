// The depthwise result, a tile of neighbouring output pixels with all their channels at a time.
//
// A maker of each kind has: count, the number of tiles; tile(i), where one lies; floats, the scratch of a
// thread; and a Worker, made once a thread, whose make(i) returns the tile and the distance between its
// rows: contiguous tensors give [channels][pixels], channels_last ones [pixels][channels]. announce(i) adds
// what make(i) will read.
#pragma once

#include "kernels/channels_last/source.h"
#include "kernels/contiguous/correlate.h"
#include "kernels/contiguous/lanes.h"
#include "kernels/separable/product.h"

namespace leanconv::LEANCONV_ISA {

struct Tile {
  int64_t image, first, pixels;
};
struct Middle {
  const float* at;
  int64_t stride;
};

// Pixels of a tile: enough that a tile's product is long, few enough that it stays in the second cache.
inline int64_t wanted_pixels(int64_t channels) {
  return larger(128, smaller(1024, 128 * 1024 / larger(1, channels)));
}

// No depthwise half: the input itself, as for a convolution of kernel size 1.
template <class T>
class InputTiles {
 public:
  InputTiles(const Problem& p, const T* input, const T*, const T*)
      : p_(p), input_(input), pixels_(product(p.out_size)) {
    per_tile_ = round_up(smaller(pixels_, wanted_pixels(p.channels_in)), 16);
    bands_ = ceil_div(pixels_, per_tile_);
  }
  bool ready() const { return true; }
  int64_t count() const { return p_.batch * bands_; }
  Tile tile(int64_t i) const {
    const int64_t first = i % bands_ * per_tile_;
    return {i / bands_, first, smaller(per_tile_, pixels_ - first)};
  }
  int64_t most_pixels() const { return smaller(per_tile_, pixels_); }
  bool in_place() const { return sizeof(T) == sizeof(float); }
  int64_t floats() const {
    if (in_place()) return 0;
    return p_.layout == LEANCONV_CHANNELS_LAST ? per_tile_ * p_.channels_in + 16
                                               : p_.channels_in * spread(per_tile_);
  }

  class Worker {
   public:
    Worker(const InputTiles& all, float* scratch) : all_(all), scratch_(scratch) {}
    Middle make(int64_t i) {
      const Tile tile = all_.tile(i);
      const int64_t channels = all_.p_.channels_in;
      const bool last = all_.p_.layout == LEANCONV_CHANNELS_LAST;
      const T* from = all_.input_ + tile.image * channels * all_.pixels_ + tile.first * (last ? channels : 1);
      const int64_t rows = last ? tile.pixels : channels, row = last ? channels : tile.pixels;
      const int64_t stride = last ? channels : all_.pixels_;
      if (all_.in_place()) return {reinterpret_cast<const float*>(from), stride};
      const int64_t pitch = last ? channels : spread(all_.per_tile_);
      for (int64_t r = 0; r < rows; ++r) gather_row(from + r * stride, 1, row, scratch_ + r * pitch);
      return {scratch_, pitch};
    }
    void announce(int64_t i, Upcoming& upcoming) const {
      const Tile tile = all_.tile(i);
      const int64_t channels = all_.p_.channels_in, size = int64_t(sizeof(T));
      const T* image = all_.input_ + tile.image * channels * all_.pixels_;
      if (all_.p_.layout == LEANCONV_CHANNELS_LAST)
        upcoming.add(image + tile.first * channels, tile.pixels * channels * size, 0, 1);
      else
        upcoming.add(image + tile.first, tile.pixels * size, all_.pixels_ * size, channels);
    }

   private:
    const InputTiles& all_;
    float* scratch_;
  };

 private:
  const Problem& p_;
  const T* input_;
  int64_t pixels_, per_tile_, bands_;
};

// Contiguous tensors: a band of the planes, as the depthwise kernel makes it.
template <class T>
class PlaneTiles {
 public:
  PlaneTiles(const Problem& p, const T* input, const T* weight, const T* bias)
      : p_(p), input_(input), weight_(weight), bias_(bias), pixels_(product(p.out_size)) {
    for (int d = 0; d < 3; ++d) forward_axis(p, d, plan_.axes[d]);
    finish_plan(p, p.out_size, 4 * p.batch * p.num_threads, 1, product(p.kernel), plan_);
    set_bands(plan_, smaller(ceil_div(pixels_, wanted_pixels(p.channels_out)),
                             larger(plan_.axes[plan_.band_axis].largest_piece, 1)));
    unit_ = 1;
    for (int d = plan_.band_axis + 1; d < 3; ++d) unit_ *= p.out_size[d];
    for (int64_t b = 0; b < plan_.bands; ++b) most_ = larger(most_, tile(b).pixels);
  }
  bool ready() const { return true; }
  int64_t count() const { return p_.batch * plan_.bands; }
  Tile tile(int64_t i) const {
    const Band band = plan_.band(i % plan_.bands);
    const int64_t size = p_.out_size[plan_.band_axis], begin = band.begin(plan_.band_axis, size);
    return {i / plan_.bands, begin * unit_, (band.end(plan_.band_axis, size) - begin) * unit_};
  }
  int64_t most_pixels() const { return most_; }
  int64_t pitch() const { return spread(most_); }
  int64_t floats() const { return p_.channels_out * pitch() + plan_.scratch_floats() + Vec::width; }

  class Worker {
   public:
    Worker(const PlaneTiles& all, float* scratch)
        : all_(all), out_(scratch), staged_(scratch + all.p_.channels_out * all.pitch() + Vec::width) {}
    Middle make(int64_t i) {
      const Problem& p = all_.p_;
      const int64_t repeat = p.channels_out / p.channels_in, taps = product(p.kernel);
      const Tile tile = all_.tile(i);
      Correlation<T, float> correlation(all_.plan_, all_.plan_.band(i % all_.plan_.bands), staged_);
      for (int64_t c = 0; c < p.channels_in; ++c) {
        correlation.stage_source(all_.input_ + (tile.image * p.channels_in + c) * product(p.in_size), 0);
        for (int64_t out = c * repeat; out < (c + 1) * repeat; ++out)
          correlation.run(all_.weight_ + out * taps, all_.bias_ ? to_float(all_.bias_[out]) : 0.0f,
                          out_ + out * all_.pitch() - tile.first);
      }
      return {out_, all_.pitch()};
    }
    void announce(int64_t i, Upcoming& upcoming) const {
      const Problem& p = all_.p_;
      const int64_t size = product(p.in_size) * int64_t(sizeof(T));
      const Band band = all_.plan_.band(i % all_.plan_.bands);
      // Roughly the part of each plane that the band reads.
      const int64_t from = size / band.count * band.index / 64 * 64;
      upcoming.add(
          reinterpret_cast<const char*>(all_.input_ + i / band.count * p.channels_in * product(p.in_size)) +
              from,
          smaller(size / band.count, size - from), size, p.channels_in);
    }

   private:
    const PlaneTiles& all_;
    float *out_, *staged_;
  };

 private:
  const Problem& p_;
  const T *input_, *weight_, *bias_;
  int64_t pixels_, unit_, most_ = 0;
  Plan plan_;
};

// Contiguous tensors of small planes: a whole image, its channels laid side by side and back.
template <class T>
class LaneTiles {
 public:
  LaneTiles(const Problem& p, const T* input, const T* weight, const T* bias)
      : p_(p), input_(input), weights_(p, weight, bias), reaches_(forward_reaches(p)) {}
  bool ready() const { return weights_.ready(); }
  int64_t count() const { return p_.batch; }
  Tile tile(int64_t i) const { return {i, 0, product(p_.out_size)}; }
  int64_t most_pixels() const { return product(p_.out_size); }
  int64_t pitch() const { return spread(product(p_.out_size)); }
  int64_t floats() const {
    return p_.channels_out * pitch() + (product(p_.in_size) + product(p_.out_size)) * kLanes;
  }

  class Worker {
   public:
    Worker(const LaneTiles& all, float* scratch)
        : all_(all), out_(scratch), in_lanes_(scratch + all.p_.channels_out * all.pitch()) {}
    Middle make(int64_t image) {
      const Problem& p = all_.p_;
      const int64_t from = product(p.in_size), to = product(p.out_size);
      float* out_lanes = in_lanes_ + from * kLanes;
      for (int64_t c = 0; c < p.channels_out; c += kLanes) {
        const int64_t lanes = smaller(kLanes, p.channels_out - c);
        to_lanes(all_.input_ + (image * p.channels_out + c) * from, from, lanes, in_lanes_);
        const View view = lane_view(in_lanes_, p.in_size);
        for (int64_t d = 0; d < p.out_size[0]; ++d)
          for (int64_t h = 0; h < p.out_size[1]; ++h)
            make_row(p, all_.reaches_, view, all_.weights_, d, h, p.out_size[2], c, kLanes,
                     out_lanes + (d * p.out_size[1] + h) * p.out_size[2] * kLanes, kLanes);
        from_lanes(out_lanes, to, lanes, out_ + c * all_.pitch(), all_.pitch());
      }
      return {out_, all_.pitch()};
    }
    void announce(int64_t image, Upcoming& upcoming) const {
      const int64_t elements = all_.p_.channels_in * product(all_.p_.in_size);
      upcoming.add(all_.input_ + image * elements, elements * int64_t(sizeof(T)), 0, 1);
    }

   private:
    const LaneTiles& all_;
    float *out_, *in_lanes_;
  };

 private:
  const Problem& p_;
  const T* input_;
  Weights weights_;
  Reaches reaches_;
};

// channels_last tensors: some rows of a slice.
template <class T>
class RowTiles {
 public:
  RowTiles(const Problem& p, const T* input, const T* weight, const T* bias)
      : p_(p),
        input_(input),
        weights_(p, weight, bias),
        reaches_(forward_reaches(p)),
        source_(p.in_size, p.channels_in, p.channels_out / p.channels_in) {
    rows_ = larger(1, smaller(p.out_size[1], wanted_pixels(p.channels_out) / p.out_size[2]));
    bands_ = ceil_div(p.out_size[1], rows_);
    int64_t slices = 0, rows = 0, low, high;
    for (int64_t i = 0; i < p.out_size[0]; ++i) {
      reaches_.span(0, i, i + 1, low, high);
      slices = larger(slices, high - low);
    }
    for (int64_t b = 0; b < bands_; ++b) {
      reaches_.span(1, b * rows_, smaller(p.out_size[1], (b + 1) * rows_), low, high);
      rows = larger(rows, high - low);
    }
    staged_ = source_.floats(smaller(slices, p.in_size[0]), smaller(rows, p.in_size[1]));
  }
  bool ready() const { return weights_.ready(); }
  int64_t count() const { return p_.batch * p_.out_size[0] * bands_; }
  Tile tile(int64_t i) const {
    const int64_t row = i % bands_ * rows_, slice = i / bands_ % p_.out_size[0];
    const int64_t rows = smaller(rows_, p_.out_size[1] - row);
    return {i / bands_ / p_.out_size[0], (slice * p_.out_size[1] + row) * p_.out_size[2],
            rows * p_.out_size[2]};
  }
  int64_t most_pixels() const { return rows_ * p_.out_size[2]; }
  int64_t pitch() const { return spread(p_.channels_out); }
  int64_t floats() const { return most_pixels() * pitch() + round_up(staged_, 16); }

  class Worker {
   public:
    Worker(const RowTiles& all, float* scratch)
        : all_(all),
          source_(all.source_),
          out_(scratch),
          staged_(scratch + all.most_pixels() * all.pitch()) {}
    Middle make(int64_t i) {
      const Problem& p = all_.p_;
      const Tile tile = all_.tile(i);
      const int64_t slice = tile.first / (p.out_size[1] * p.out_size[2]);
      const int64_t row = tile.first / p.out_size[2] % p.out_size[1];
      const int64_t row_end = row + tile.pixels / p.out_size[2];
      int64_t from_slice, to_slice, from_row, to_row;
      all_.reaches_.span(0, slice, slice + 1, from_slice, to_slice);
      all_.reaches_.span(1, row, row_end, from_row, to_row);
      source_.prepare(all_.input_ + tile.image * product(p.in_size) * p.channels_in, from_slice, to_slice,
                      from_row, to_row, staged_);
      make_rows(p, all_.reaches_, source_.view(), all_.weights_, slice, row, row_end, p.out_size[2],
                p.channels_out, out_, p.out_size[2] * all_.pitch(), all_.pitch());
      return {out_, all_.pitch()};
    }
    void announce(int64_t i, Upcoming& upcoming) const {
      const Problem& p = all_.p_;
      const Tile tile = all_.tile(i);
      const int64_t pixels = product(p.in_size), out = product(p.out_size);
      const int64_t first = tile.first * pixels / out, count = tile.pixels * pixels / out;
      upcoming.add(all_.input_ + (tile.image * pixels + first) * p.channels_in,
                   count * p.channels_in * int64_t(sizeof(T)), 0, 1);
    }

   private:
    const RowTiles& all_;
    Source<T> source_;
    float *out_, *staged_;
  };

 private:
  const Problem& p_;
  const T* input_;
  Weights weights_;
  Reaches reaches_;
  Source<T> source_;
  int64_t rows_, bands_, staged_;
};

}  // namespace leanconv::LEANCONV_ISA
