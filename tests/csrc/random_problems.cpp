// Usage: random_problems COUNT [SEED]. Every instruction set that runs here, all directions, against plain
// loops in double; then the same from several threads at once, and in a child after a fork.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>

#include "problem_tensors.h"

namespace {

bool close(const char* what, const Tensor& got, const std::vector<double>& expected, double magnitude) {
  // The inputs are small multiples of 1/8, so that sums in float are exact and only storing rounds.
  const double rounding = got.dtype == LEANCONV_F32    ? 1e-6
                          : got.dtype == LEANCONV_BF16 ? 1.0 / 128
                                                       : 1.0 / 1024;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double x = got.at(int64_t(i)), allowed = rounding * std::fabs(expected[i]) + 1e-6 * magnitude;
    if (!(std::fabs(x - expected[i]) <= allowed) &&
        !(got.dtype == LEANCONV_F16 && std::fabs(expected[i]) > 65000)) {
      std::fprintf(stderr, "%s[%zu] is %g, not %g\n", what, i, x, expected[i]);
      return false;
    }
  }
  return true;
}

void describe(const leanconv_problem& p) {
  const auto three = [](const char* name, const int64_t* v) {
    std::fprintf(stderr, " %s %ldx%ldx%ld", name, long(v[0]), long(v[1]), long(v[2]));
  };
  std::fprintf(stderr, "isa %s, batch %ld, channels %ld to %ld in %ld groups,", leanconv_isa(), long(p.batch),
               long(p.channels_in), long(p.channels_out), long(p.groups));
  three("in", p.in_size);
  three("out", p.out_size);
  three("kernel", p.kernel);
  three("stride", p.stride);
  three("padding", p.padding);
  three("dilation", p.dilation);
  std::fprintf(stderr, ", dtype %d, layout %d, threads %d\n", p.dtype, p.layout, p.num_threads);
}

bool holds(const leanconv_problem& p, std::mt19937& random) {
  const int64_t outputs = p.batch * p.channels_out * volume(p.out_size);
  const int64_t inputs = p.batch * p.channels_in * volume(p.in_size);
  const int64_t weights = p.channels_out * (p.channels_in / p.groups) * volume(p.kernel);
  Tensor input, weight, bias, grad, output, grad_input, grad_weight, grad_bias;
  input.allocate(inputs, p.dtype);
  weight.allocate(weights, p.dtype);
  bias.allocate(p.channels_out, p.dtype);
  grad.allocate(outputs, p.dtype);
  for (Tensor* t : {&input, &weight, &bias, &grad}) t->fill(random);
  output.allocate(outputs, p.dtype);
  grad_input.allocate(inputs, p.dtype);
  grad_weight.allocate(weights, p.dtype);
  grad_bias.allocate(p.channels_out, p.dtype);
  const Answer expected = plain(p, input, weight, bias, grad);
  if (leanconv_forward(&p, input.bytes.data(), weight.bytes.data(), bias.bytes.data(), output.bytes.data()) ||
      leanconv_grad_input(&p, grad.bytes.data(), weight.bytes.data(), grad_input.bytes.data()) ||
      leanconv_grad_weight(&p, grad.bytes.data(), input.bytes.data(), grad_weight.bytes.data(),
                           grad_bias.bytes.data()))
    return std::fprintf(stderr, "a call failed\n"), false;
  const double terms =
      4.0 * double(volume(p.kernel) * (p.channels_in / p.groups + p.channels_out / p.groups));
  const double sums = 4.0 * double(p.batch * volume(p.out_size));
  return close("output", output, expected.output, terms) &&
         close("grad_input", grad_input, expected.grad_input, terms) &&
         close("grad_weight", grad_weight, expected.grad_weight, sums) &&
         close("grad_bias", grad_bias, expected.grad_bias, sums);
}

// The same depthwise problem as the first half of a separable one.
bool holds_separably(const leanconv_problem& p, std::mt19937& random) {
  leanconv_separable s{p, 1 + int64_t(random() % 40), int32_t(random() % 6), 0};
  if (leanconv_separable_why_not(&p)) return true;
  const int64_t pixels = volume(p.out_size), middle = p.channels_out, channels_out = s.channels_out;
  Tensor input, weight, bias, pointwise, pointwise_bias, grad, unused, output, grad_middle, grad_weight,
      grad_bias;
  input.allocate(p.batch * p.channels_in * volume(p.in_size), p.dtype);
  weight.allocate(middle * volume(p.kernel), p.dtype);
  bias.allocate(middle, p.dtype);
  pointwise.allocate(channels_out * middle, p.dtype);
  pointwise_bias.allocate(channels_out, p.dtype);
  grad.allocate(p.batch * channels_out * pixels, p.dtype);
  unused.allocate(p.batch * middle * pixels, p.dtype);
  for (Tensor* t : {&input, &weight, &bias, &pointwise, &pointwise_bias, &grad, &unused}) t->fill(random);
  output.allocate(p.batch * channels_out * pixels, p.dtype);
  grad_middle.allocate(p.batch * middle * pixels, p.dtype);
  grad_weight.allocate(channels_out * middle, p.dtype);
  grad_bias.allocate(channels_out, p.dtype);
  if (leanconv_separable_forward(&s, input.bytes.data(), weight.bytes.data(), bias.bytes.data(),
                                 pointwise.bytes.data(), pointwise_bias.bytes.data(), output.bytes.data()) ||
      leanconv_separable_backward(&s, grad.bytes.data(), input.bytes.data(), weight.bytes.data(),
                                  bias.bytes.data(), pointwise.bytes.data(), grad_middle.bytes.data(),
                                  grad_weight.bytes.data(), grad_bias.bytes.data()))
    return std::fprintf(stderr, "a separable call failed\n"), false;
  const std::vector<double> before = plain(p, input, weight, bias, unused).output;
  std::vector<double> right(output.bytes.size()), right_middle(before.size()),
      right_weight(size_t(channels_out * middle)), right_bias(static_cast<size_t>(channels_out));
  right.resize(size_t(p.batch * channels_out * pixels));
  double largest = 1;
  for (int64_t n = 0; n < p.batch; ++n)
    for (int64_t i = 0; i < pixels; ++i)
      for (int64_t o = 0; o < channels_out; ++o) {
        const size_t out = size_t(place(p, channels_out, p.out_size, n, o, i));
        const double g = grad.at(int64_t(out));
        right[out] = pointwise_bias.at(o);
        right_bias[size_t(o)] += g;
        for (int64_t m = 0; m < middle; ++m) {
          const size_t at = size_t(place(p, middle, p.out_size, n, m, i));
          const double x = activated(before[at], s.activation);
          largest = std::fmax(largest, std::fabs(before[at]));
          right[out] += pointwise.at(o * middle + m) * x;
          right_weight[size_t(o * middle + m)] += g * x;
          right_middle[at] += g * pointwise.at(o * middle + m);
        }
      }
  for (size_t i = 0; i < before.size(); ++i) right_middle[i] *= derivative(before[i], s.activation);
  const double wide = 4 * largest;
  return close("separable output", output, right, wide * double(middle)) &&
         close("grad_middle", grad_middle, right_middle, 64 * double(channels_out)) &&
         close("grad_pointwise_weight", grad_weight, right_weight, wide * double(p.batch * pixels)) &&
         close("grad_pointwise_bias", grad_bias, right_bias, 4 * double(p.batch * pixels));
}

bool all_hold(int64_t count, unsigned seed, int threads) {
  std::mt19937 random(seed);
  for (int64_t i = 0; i < count; ++i) {
    leanconv_problem p = random_problem(random);
    if (threads) p.num_threads = threads;
    if (!holds(p, random) || !holds_separably(p, random)) {
      describe(p);
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t count = argc > 1 ? std::atol(argv[1]) : 100;
  const unsigned seed = argc > 2 ? unsigned(std::atol(argv[2])) : 0;
  std::istringstream names(leanconv_isas());
  for (std::string name; names >> name;) {
    leanconv_set_isa(name.c_str());
    if (!all_hold(count, seed, 0)) return 1;
    std::printf("%s: %ld random problems hold in every direction\n", name.c_str(), long(count));
  }
  // Several threads at once, each of its own.
  std::atomic<bool> held{true};
  std::thread threads[3];
  for (unsigned i = 0; i < 3; ++i)
    threads[i] = std::thread([&, i] { held = all_hold(count / 10 + 1, seed + i, 1) && held; });
  for (auto& thread : threads) thread.join();
  if (!held) return 1;
  std::printf("three threads at once hold\n");
  // A child of a process that has used its threads, as a data loader's worker is.
  const pid_t child = fork();
  if (child == 0) _exit(all_hold(count / 10 + 1, seed, 2) ? 0 : 1);
  int status = 1;
  waitpid(child, &status, 0);
  if (status != 0) return std::fprintf(stderr, "the forked child failed (%d)\n", status), 1;
  std::printf("a forked child holds\n");
  return 0;
}
