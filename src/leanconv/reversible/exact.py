"""Bit-for-bit inversion: a stream whose values lie on a fixed-point grid, where sums are exact.

Multiples of 2**-bits below 2**(24 - bits) are exact in float32, and so are their sums and
differences while they stay below. The stream and each update are rounded to the grid
(straight-through gradient, the rounding's own being zero), so y = x + f and x = y - f undo one
another without an error, at any depth. Fixed-point
streams for exact reversal are Maclaurin et al.'s idea (2015, section 3.1) for optimizers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from leanconv.reversible._engine import Step
from leanconv.reversible._steps import HalfStep, WholeStep

_MANTISSA_BITS = {torch.float32: 24, torch.float64: 53}


def check_bits(bits: int) -> None:
    """Raise ValueError for a grid that float32 does not hold."""
    if not (isinstance(bits, int) and 1 <= bits <= 22):
        raise ValueError(
            f"`exact` (={bits!r}) must be a whole number of fractional bits from 1 to 22; "
            f"values up to 2 ** (24 - exact) fit"
        )


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: int) -> Tensor:
        return torch.round(x * 2.0**bits) * 2.0**-bits

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


def to_grid(x: Tensor, bits: int) -> Tensor:
    """The nearest multiples of `2 ** -bits`, as float32 (float64 stays); gradient straight through.

    Args:
        x: any floating tensor.
        bits: fractional bits of the grid.
    """
    stream = x if x.dtype == torch.float64 else x.float()
    rounded: Tensor = _Round.apply(stream, bits)
    return rounded


class Grid:
    """One run's grid: rounds the stream and remembers where a value left the range."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self._spare_bits = 0
        self._largest: list[tuple[str, Tensor]] = []

    def enter(self, inputs: tuple[Tensor, ...], *, inverse: bool) -> tuple[Tensor, ...]:
        """The stack's inputs on the grid; call it after `steps`.

        An output, which an inverse begins with, may lie on a finer grid than an input.
        """
        bits = self.bits + (self._spare_bits if inverse else 0)
        rounded = tuple(to_grid(x, bits) for x in inputs)
        for x in rounded:
            self._note("the input", x)
        return rounded

    def steps(self, steps: list[Step]) -> list[Step]:
        """The same steps with exact sums.

        Raises:
            ValueError: for a step that would leave the grid.
        """
        return [self._exact(step) for step in steps]

    def check(self) -> None:
        """Raise if a value left the range.

        Raises:
            ValueError: naming the first step where one did.
        """
        for label, largest in self._largest:
            mantissa = _MANTISSA_BITS[largest.dtype]
            limit = 2.0 ** (mantissa - self.bits - self._spare_bits)
            value = float(largest)
            if not value <= limit:  # NaN too
                raise ValueError(
                    f"after {label} a value of {value:.4g} has left the range of `exact` "
                    f"(={self.bits}), {limit:.4g}; use fewer bits, or normalise the stream"
                )

    def _note(self, label: str, x: Tensor) -> None:
        if x.numel():
            self._largest.append((label, x.detach().abs().amax()))

    def _exact(self, step: Step) -> Step:
        if isinstance(step, WholeStep):
            spare = getattr(step.owner, "grid_bits", None)
            if spare is not None:
                # A Haar transform's sums need room above the values and scaling needs room below.
                self._spare_bits += spare
                return step
        if not (isinstance(step, HalfStep) and step.adds):
            raise ValueError(
                f"`exact` (={self.bits}) takes additive couplings, Squeeze, Haar and InjectivePad; "
                f"{step.label} is none of them"
            )
        sign, bits, label = step.adds, self.bits, step.label

        def rounded(half: Tensor, update: Any) -> Tensor:
            return to_grid(update, bits).to(half.dtype)

        def combine(half: Tensor, update: Any) -> Tensor:
            total = torch.add(half, rounded(half, update), alpha=sign)
            self._note(label, total)
            return total

        def uncombine(half: Tensor, update: Any) -> Tensor:
            return torch.sub(half, rounded(half, update), alpha=sign)

        return replace(step, combine=combine, uncombine=uncombine)
