// Rows of a channels_last tensor as floats, their channels repeated for a channel multiplier.
//
// A float tensor without a multiplier is read where it lies; otherwise the rows that a job needs are
// converted once into scratch.
#pragma once

#include "kernels/channels_last/rows.h"

namespace leanconv::LEANCONV_ISA {

template <class T>
class Source {
 public:
  // `channels` of the tensor, each to appear `repeat` times.
  Source(const int64_t* size, int64_t channels, int64_t repeat)
      : depth_(size[0]), height_(size[1]), width_(size[2]), channels_(channels), repeat_(repeat) {}

  bool direct() const { return sizeof(T) == sizeof(float) && repeat_ == 1; }
  int64_t pixel_stride() const { return direct() ? channels_ : round_up(channels_ * repeat_, Vec::width); }
  int64_t row_stride() const { return width_ * pixel_stride(); }
  int64_t floats(int64_t slices, int64_t rows) const {
    return direct() ? 0 : slices * rows * row_stride() + Vec::width;
  }

  // Prepares slices [slice, slice_end) and rows [row, row_end) of an image, clipped to it.
  void prepare(const T* image, int64_t slice, int64_t slice_end, int64_t row, int64_t row_end,
               float* scratch) {
    if (direct()) {
      origin_ = reinterpret_cast<const float*>(image);
      slice_stride_ = height_ * row_stride();
      return;
    }
    slice = larger(slice, 0);
    slice_end = smaller(slice_end, depth_);
    row = larger(row, 0);
    row_end = smaller(row_end, height_);
    const int64_t rows = larger(0, row_end - row);
    for (int64_t d = slice; d < slice_end; ++d)
      for (int64_t h = row; h < row_end; ++h)
        convert_row(image + (d * height_ + h) * width_ * channels_,
                    scratch + ((d - slice) * rows + (h - row)) * row_stride());
    slice_stride_ = rows * row_stride();
    origin_ = scratch - slice * slice_stride_ - row * row_stride();
  }

  View view() const { return {origin_, slice_stride_, row_stride(), pixel_stride()}; }

 private:
  void convert_row(const T* from, float* to) const {
    for (int64_t x = 0; x < width_; ++x, from += channels_, to += pixel_stride()) {
      if (repeat_ == 1) {
        int64_t c = 0;
        for (; c + Vec::width <= channels_; c += Vec::width) Vec::load(from + c).store(to + c);
        if (c < channels_) Vec::load_partial(from + c, int(channels_ - c)).store(to + c);
      } else if (repeat_ == 2) {
        for (int64_t c = 0; c < channels_; ++c) to[2 * c] = to[2 * c + 1] = to_float(from[c]);
      } else {
        for (int64_t c = 0; c < channels_; ++c)
          for (int64_t r = 0; r < repeat_; ++r) to[c * repeat_ + r] = to_float(from[c]);
      }
    }
  }

  int64_t depth_, height_, width_, channels_, repeat_;
  const float* origin_ = nullptr;
  int64_t slice_stride_ = 0;
};

}  // namespace leanconv::LEANCONV_ISA
