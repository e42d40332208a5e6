"""PyTorch's own convolution: serves everything, and is what others are compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from leanconv.backends.call import Call, Direction, Run


def needs_repair(call: Call) -> bool:
    """Whether ATen's gradient of the weight is to be computed in float32 instead.

    In bfloat16, where the window is as long as the input along some axis, torch 2.14.1 with oneDNN
    on AVX-512 leaves taps unwritten or sums the wrong products, depthwise or not.
    """
    short = any(
        size <= dilation * (kernel - 1)
        for size, kernel, dilation in zip(
            call.input_size[2:], call.weight_size[2:], call.dilation, strict=True
        )
    )
    return call.dtype == torch.bfloat16 and call.device == "cpu" and short


class Aten:
    """`torch.ops.aten.convolution` and its backward, one direction at a time."""

    name = "aten"

    def why_unavailable(self) -> str:
        """Empty: it is always there."""
        return ""

    def why_not(self, call: Call, direction: Direction) -> list[str]:
        """Empty: it takes every call."""
        return []

    def why_slow(self, call: Call, direction: Direction) -> list[str]:
        """Empty: it is the yardstick."""
        return []

    def plan(self, call: Call, direction: Direction) -> Run:
        """The function that runs this direction of this call."""
        layout = call.memory_format
        in_float32 = needs_repair(call)
        geometry = (
            call.stride,
            call.padding,
            call.dilation,
            False,
            (0,) * call.spatial_dims,
            call.groups,
        )

        def forward(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            result: Tensor = torch.ops.aten.convolution.default(input, weight, bias, *geometry)
            return result.contiguous(memory_format=layout)

        def backward(
            grad_output: Tensor, input: Tensor, weight: Tensor, mask: tuple[bool, bool, bool]
        ) -> tuple[Tensor, ...]:
            bias_size = [call.weight_size[0]]
            result: tuple[Tensor, ...] = torch.ops.aten.convolution_backward.default(
                grad_output, input, weight, bias_size, *geometry, mask
            )
            return result

        def grad_input(grad_output: Tensor, weight: Tensor) -> Tensor:
            # Only the shape and layout of the input are read; its memory is never touched.
            input = torch.empty(
                call.input_size,
                dtype=grad_output.dtype,
                device=grad_output.device,
                memory_format=layout,
            )
            result = backward(grad_output, input, weight, (True, False, False))[0]
            return result.contiguous(memory_format=layout)

        def grad_weight(
            grad_output: Tensor, input: Tensor, with_bias: bool
        ) -> tuple[Tensor, Tensor | None]:
            dtype = input.dtype
            if in_float32:
                grad_output, input = grad_output.float(), input.float()
            weight = input.new_empty(call.weight_size)
            # Some of ATen's half-precision paths add the bias gradient up in the storage type.
            half = input.dtype in (torch.bfloat16, torch.float16)
            result = backward(grad_output, input, weight, (False, True, with_bias and not half))
            bias: Tensor | None = result[2] if with_bias else None
            if with_bias and half:
                over = [0, *range(2, grad_output.dim())]
                bias = grad_output.sum(over, dtype=torch.float32)
            bias = None if bias is None else bias.to(dtype)
            return result[1].to(dtype).contiguous(), bias

        runs: dict[Direction, Run] = {
            "forward": forward,
            "grad_input": grad_input,
            "grad_weight": grad_weight,
        }
        return runs[direction]
