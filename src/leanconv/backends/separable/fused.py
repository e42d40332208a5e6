"""The compiled kernel that makes the intermediate a tile at a time and forgets it."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from leanconv._native import Separable, library
from leanconv.backends.call import Direction, Run
from leanconv.backends.native import Native, check, problem_of
from leanconv.backends.separable.activation import NAMES
from leanconv.backends.separable.call import SeparableCall
from leanconv.backends.separable.two_step import Gradients, TwoStep

_UNSUPPORTED = 1


class Fused:
    """Forward: only the output is allocated. Backward: the gradient of the intermediate is, too."""

    name = "fused"

    def why_unavailable(self) -> str:
        """Why the compiled library is not here; empty where it is."""
        return Native().why_unavailable()

    def why_not(self, call: SeparableCall, direction: Direction) -> list[str]:
        """Why the kernels cannot serve this call."""
        native = Native()
        reasons = native.why_not(call.depthwise, "forward")
        return reasons or native.why_not(call.pointwise, "forward")

    def why_slow(self, call: SeparableCall, direction: Direction) -> list[str]:
        """Why the kernel does not take this call, which is then served in two steps."""
        lib = library()
        if lib is None:
            return [self.why_unavailable()]
        reason = lib.leanconv_separable_why_not(ctypes.byref(problem_of(call.depthwise)))
        return [] if reason is None else [reason.decode()]

    def plan(self, call: SeparableCall, direction: Direction) -> Run:
        """The function that runs this direction of this call."""
        in_two_steps = TwoStep("", Native(), Native()).plan(call, direction)
        if self.why_slow(call, direction):
            return in_two_steps
        lib = library()
        assert lib is not None
        problem = Separable(
            depthwise=problem_of(call.depthwise),
            channels_out=call.channels_out,
            activation=NAMES.index(call.activation),
        )
        address = ctypes.byref(problem)
        layout, dtype = call.depthwise.memory_format, call.depthwise.dtype
        output_size, middle_size = call.output_size, call.depthwise.output_size
        weight_size, channels_out = call.pointwise.weight_size, call.channels_out
        run_forward, run_backward = lib.leanconv_separable_forward, lib.leanconv_separable_backward

        def forward(
            input: Tensor,
            weight: Tensor,
            bias: Tensor | None,
            pointwise_weight: Tensor,
            pointwise_bias: Tensor | None,
        ) -> Tensor:
            input = input.contiguous(memory_format=layout)
            weight, pointwise_weight = weight.contiguous(), pointwise_weight.contiguous()
            bias, pointwise_bias = _dense(bias), _dense(pointwise_bias)
            output = torch.empty(output_size, dtype=dtype, memory_format=layout)
            status = run_forward(
                address,
                input.data_ptr(),
                weight.data_ptr(),
                _pointer(bias),
                pointwise_weight.data_ptr(),
                _pointer(pointwise_bias),
                output.data_ptr(),
            )
            if status == _UNSUPPORTED:
                result: Tensor = in_two_steps(input, weight, bias, pointwise_weight, pointwise_bias)
                return result
            check(status)
            return output

        if direction == "forward":
            return forward
        depthwise_input = Native().plan(call.depthwise, "grad_input")
        depthwise_weight = Native().plan(call.depthwise, "grad_weight")

        def backward(
            grad_output: Tensor,
            input: Tensor,
            weight: Tensor,
            bias: Tensor | None,
            pointwise_weight: Tensor,
            wanted: tuple[bool, ...],
        ) -> Gradients:
            grad_output = grad_output.contiguous(memory_format=layout)
            input = input.contiguous(memory_format=layout)
            weight, pointwise_weight = weight.contiguous(), pointwise_weight.contiguous()
            bias = _dense(bias)
            grads: list[Tensor | None] = [None] * 5
            grad = None
            if any(wanted[:3]):
                grad = torch.empty(middle_size, dtype=dtype, memory_format=layout)
            if wanted[3]:
                grads[3] = torch.empty(weight_size, dtype=dtype)
            if wanted[4]:
                grads[4] = torch.empty(channels_out, dtype=dtype)
            status = run_backward(
                address,
                grad_output.data_ptr(),
                input.data_ptr(),
                weight.data_ptr(),
                _pointer(bias),
                pointwise_weight.data_ptr(),
                _pointer(grad),
                _pointer(grads[3]),
                _pointer(grads[4]),
            )
            if status == _UNSUPPORTED:
                result: Gradients = in_two_steps(
                    grad_output, input, weight, bias, pointwise_weight, wanted
                )
                return result
            check(status)
            if wanted[0]:
                grads[0] = depthwise_input(grad, weight)
            if wanted[1] or wanted[2]:
                grads[1], grads[2] = depthwise_weight(grad, input, wanted[2])
            return tuple(grads)

        return backward


def _dense(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
