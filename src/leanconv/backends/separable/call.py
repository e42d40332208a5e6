"""One depthwise-separable convolution, described without its tensors' data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from leanconv.backends.call import Call, Direction, Run


@dataclass(frozen=True)
class SeparableCall:
    """A depthwise convolution, an activation ("" for none), a dense one of kernel size 1."""

    depthwise: Call
    channels_out: int
    activation: str

    @property
    def pointwise(self) -> Call:
        """The second half."""
        dims = self.depthwise.spatial_dims
        size = self.depthwise.output_size
        ones, zeros = (1,) * dims, (0,) * dims
        weight = (self.channels_out, size[1], *ones)
        return replace(
            self.depthwise,
            input_size=size,
            weight_size=weight,
            stride=ones,
            padding=zeros,
            dilation=ones,
            groups=1,
        )

    @property
    def output_size(self) -> tuple[int, ...]:
        """The result's shape `(N, C_out, *spatial)`."""
        size = self.depthwise.output_size
        return (size[0], self.channels_out, *size[2:])

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute."""
        return 0 in (*self.depthwise.input_size, *self.output_size)

    @property
    def device(self) -> str:
        """The kind of device."""
        return self.depthwise.device

    def example(self, direction: Direction) -> tuple[object, ...]:
        """Arguments for the functions that `plan` returns."""
        call, kind = self.depthwise, {"dtype": self.depthwise.dtype, "device": self.device}

        def ones(size: tuple[int, ...]) -> torch.Tensor:
            result: torch.Tensor = torch.ones(size, **kind)  # type: ignore[call-overload]
            return result

        input = ones(call.input_size).contiguous(memory_format=call.memory_format)
        weights = (ones(call.weight_size), None, ones(self.pointwise.weight_size))
        if direction == "forward":
            return (input, *weights, None)
        grad = ones(self.output_size).contiguous(memory_format=call.memory_format)
        return (grad, input, *weights, (True, True, False, True, False))


class SeparableBackend(Protocol):
    """As `leanconv.backends.call.Backend`. The functions that `plan` returns take tensors:

    forward `(input, depthwise_weight, depthwise_bias | None, pointwise_weight, pointwise_bias |
    None)`; backward `(grad_output, input, depthwise_weight, depthwise_bias | None,
    pointwise_weight, wanted)`, which returns the gradients of the five tensors that forward takes,
    None where `wanted` says so.
    """

    name: str

    def why_unavailable(self) -> str:
        """Why it cannot be used here at all; empty where it can."""

    def why_not(self, call: SeparableCall, direction: Direction) -> list[str]:
        """Why it cannot serve this call; empty where it can."""

    def why_slow(self, call: SeparableCall, direction: Direction) -> list[str]:
        """Why it should not be chosen unasked, though its result is right."""

    def plan(self, call: SeparableCall, direction: Direction) -> Run:
        """The function that runs this direction of this call."""
