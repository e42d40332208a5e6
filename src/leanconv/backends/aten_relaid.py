"""PyTorch's own convolution in the other layout, both conversions counted.

Stock is sometimes many times slower in one layout than in the other, more than converting costs;
which it is, only measuring tells.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from leanconv.backends.aten import Aten
from leanconv.backends.call import Call, Direction, Run


class AtenRelaid:
    """`Aten` on converted tensors; the result comes back in the call's own layout."""

    name = "aten_relaid"

    def why_unavailable(self) -> str:
        """Empty: it is always there."""
        return ""

    def why_not(self, call: Call, direction: Direction) -> list[str]:
        """In one dimension there is no other layout."""
        return ["there is no channels_last in 1d"] if call.spatial_dims == 1 else []

    def why_slow(self, call: Call, direction: Direction) -> list[str]:
        """Never chosen by rule."""
        return ["whether converting pays is only known by measuring"]

    def plan(self, call: Call, direction: Direction) -> Run:
        """The function that runs this direction of this call."""
        other = replace(call, channels_last=not call.channels_last)
        run, there, back = Aten().plan(other, direction), other.memory_format, call.memory_format

        def forward(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            # A weight in the layout to leave would pull ATen back into it.
            input, weight = input.contiguous(memory_format=there), weight.contiguous()
            result: Tensor = run(input, weight, bias)
            return result.contiguous(memory_format=back)

        def grad_input(grad_output: Tensor, weight: Tensor) -> Tensor:
            grad_output = grad_output.contiguous(memory_format=there)
            result: Tensor = run(grad_output, weight.contiguous())
            return result.contiguous(memory_format=back)

        def grad_weight(
            grad_output: Tensor, input: Tensor, with_bias: bool
        ) -> tuple[Tensor, Tensor | None]:
            grad_output = grad_output.contiguous(memory_format=there)
            input = input.contiguous(memory_format=there)
            result: tuple[Tensor, Tensor | None] = run(grad_output, input, with_bias)
            return result

        runs: dict[Direction, Run] = {
            "forward": forward,
            "grad_input": grad_input,
            "grad_weight": grad_weight,
        }
        return runs[direction]
