/* The C interface of the compiled kernels.
 *
 * Rules: pointers and sizes only; nothing here knows of Python or torch. The caller has checked every
 * argument; the kernels trust it. All sizes are of three spatial dimensions [depth, height, width];
 * problems of fewer dimensions carry ones in front (padding: zeros). Tensors are dense in the layout
 * named; the weight is always contiguous (C_out, C_in / groups, kD, kH, kW).
 */
#ifndef LEANCONV_H
#define LEANCONV_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LEANCONV_ABI_VERSION 3

enum { LEANCONV_F32 = 0, LEANCONV_BF16 = 1, LEANCONV_F16 = 2 };
enum { LEANCONV_CONTIGUOUS = 0, LEANCONV_CHANNELS_LAST = 1 };
enum { LEANCONV_FORWARD = 0, LEANCONV_GRAD_INPUT = 1, LEANCONV_GRAD_WEIGHT = 2 };
enum { LEANCONV_OK = 0, LEANCONV_UNSUPPORTED = 1, LEANCONV_OUT_OF_MEMORY = 2 };

typedef struct leanconv_problem {
  int64_t batch, channels_in, channels_out, groups;
  int64_t in_size[3], out_size[3], kernel[3], stride[3], dilation[3];
  int64_t padding[3]; /* zeros before the first element; what follows the last is implied by out_size */
  int32_t dtype, layout, num_threads, reserved;
} leanconv_problem;

/* A depthwise convolution, an activation, and a dense convolution of kernel size 1 to `channels_out`. */
enum {
  LEANCONV_IDENTITY = 0,
  LEANCONV_RELU = 1,
  LEANCONV_RELU6 = 2,
  LEANCONV_SILU = 3,
  LEANCONV_GELU = 4,
  LEANCONV_HARDSWISH = 5
};
typedef struct leanconv_separable {
  leanconv_problem depthwise; /* its channels_out are those between the two */
  int64_t channels_out;
  int32_t activation, reserved;
} leanconv_separable;

/* The interface's version: the loader refuses a library of another one. */
int leanconv_abi_version(void);
/* The instruction set in use, such as "avx2"; chosen once by CPUID. */
const char* leanconv_isa(void);
/* Restricts the choice, for tests and comparisons: a name from leanconv_isas(). 0 if it can run here. */
int leanconv_set_isa(const char* name);
/* Names of the instruction sets compiled in that this CPU can run, separated by spaces, best last. */
const char* leanconv_isas(void);
/* Multiply-adds a second of `num_threads` threads in the instruction set in use, measured over `rounds`. */
double leanconv_fma_peak(int num_threads, int64_t rounds);
/* NULL where a kernel of its own (not the plain loops) serves, else one sentence saying why not. */
const char* leanconv_why_not(const leanconv_problem* problem, int direction);

/* output = conv(input, weight) + bias. `bias` may be NULL; it is of the problem's dtype. */
int leanconv_forward(const leanconv_problem* problem, const void* input, const void* weight, const void* bias,
                     void* output);
int leanconv_grad_input(const leanconv_problem* problem, const void* grad_output, const void* weight,
                        void* grad_input);
/* `grad_bias` may be NULL. Both gradients are of the problem's dtype, summed in float. */
int leanconv_grad_weight(const leanconv_problem* problem, const void* grad_output, const void* input,
                         void* grad_weight, void* grad_bias);

/* NULL where the two can be served as one, else one sentence saying why not. */
const char* leanconv_separable_why_not(const leanconv_problem* depthwise);
/* Biases may be NULL. LEANCONV_UNSUPPORTED where a depthwise weight is not finite. */
int leanconv_separable_forward(const leanconv_separable* problem, const void* input, const void* weight,
                               const void* bias, const void* pointwise_weight, const void* pointwise_bias,
                               void* output);
/* The gradients of the pointwise half, and that of the depthwise result; each may be NULL. The depthwise
 * result is made again from `input`, `weight` and `bias`. */
int leanconv_separable_backward(const leanconv_separable* problem, const void* grad_output, const void* input,
                                const void* weight, const void* bias, const void* pointwise_weight,
                                void* grad_middle, void* grad_pointwise_weight, void* grad_pointwise_bias);

#ifdef __cplusplus
}
#endif
#endif
