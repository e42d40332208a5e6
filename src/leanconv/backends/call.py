"""What a backend is asked: one convolution, described without its tensors' data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, Protocol

import torch

Direction = Literal["forward", "grad_input", "grad_weight", "backward"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "grad_input", "grad_weight")
Run = Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """One checked convolution over `spatial_dims` dimensions, padded alike on both sides."""

    input_size: tuple[int, ...]
    weight_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    dtype: torch.dtype
    device: str
    channels_last: bool
    threads: int

    @property
    def spatial_dims(self) -> int:
        """1, 2 or 3."""
        return len(self.stride)

    @property
    def output_size(self) -> tuple[int, ...]:
        """The result's shape `(N, C_out, *spatial)`."""
        spatial = (
            (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, padding, dilation in zip(
                self.input_size[2:],
                self.weight_size[2:],
                self.stride,
                self.padding,
                self.dilation,
                strict=True,
            )
        )
        return (self.input_size[0], self.weight_size[0], *spatial)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute."""
        return 0 in (*self.input_size, *self.output_size)

    @property
    def memory_format(self) -> torch.memory_format:
        """The layout of input, output and their gradients."""
        return memory_format(self.spatial_dims, self.channels_last)

    def example(self, direction: Direction) -> tuple[object, ...]:
        """Arguments for the functions that a backend's `plan` returns."""
        kind: dict[str, object] = {"dtype": self.dtype, "device": self.device}
        layout = self.memory_format

        def ones(size: tuple[int, ...]) -> torch.Tensor:
            return torch.ones(size, **kind).contiguous(memory_format=layout)  # type: ignore[call-overload,no-any-return]

        weight = torch.ones(self.weight_size, **kind)  # type: ignore[call-overload]
        if direction == "forward":
            return ones(self.input_size), weight, None
        if direction == "grad_input":
            return ones(self.output_size), weight
        return ones(self.output_size), ones(self.input_size), False

    @property
    def largest_elements(self) -> int:
        """Elements of the largest tensor taking part."""
        return max(prod(self.input_size), prod(self.weight_size), prod(self.output_size))


def memory_format(spatial_dims: int, channels_last: bool) -> torch.memory_format:
    """torch's name for a layout."""
    if not channels_last:
        return torch.contiguous_format
    return torch.channels_last if spatial_dims == 2 else torch.channels_last_3d


class Backend(Protocol):
    """What dispatch needs of an implementation. The functions that `plan` returns take tensors:

    forward `(input, weight, bias | None)`; grad_input `(grad_output, weight)`; grad_weight
    `(grad_output, input, with_bias)`, which returns the weight's and the bias's gradient (or None).
    """

    name: str

    def why_unavailable(self) -> str:
        """Why it cannot be used here at all; empty where it can."""

    def why_not(self, call: Call, direction: Direction) -> list[str]:
        """Why it cannot serve this call; empty where it can."""

    def why_slow(self, call: Call, direction: Direction) -> list[str]:
        """Why it should not be chosen unasked, though its result is right."""

    def plan(self, call: Call, direction: Direction) -> Run:
        """The function that runs this direction of this call."""
