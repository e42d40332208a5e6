"""The two halves one after the other: the intermediate exists, but only during the call."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from leanconv.backends.call import Backend, Direction, Run
from leanconv.backends.separable.activation import activate, activation_backward
from leanconv.backends.separable.call import SeparableCall

Gradients = tuple[Tensor | None, ...]


class TwoStep:
    """Convolutions of two backends; in the backward the first runs once more."""

    def __init__(self, name: str, first: Backend, second: Backend) -> None:
        self.name, self.first, self.second = name, first, second

    def why_unavailable(self) -> str:
        """Why one of the two is not there."""
        return self.first.why_unavailable() or self.second.why_unavailable()

    def why_not(self, call: SeparableCall, direction: Direction) -> list[str]:
        """Why one of the two cannot serve its half."""
        return [
            reason
            for backend, half in ((self.first, call.depthwise), (self.second, call.pointwise))
            for reason in backend.why_not(half, "forward")
        ]

    def why_slow(self, call: SeparableCall, direction: Direction) -> list[str]:
        """Why one of the two serves its half only slowly."""
        directions: Sequence[Direction] = ("forward", "grad_input", "grad_weight")
        return [
            reason
            for backend, half in ((self.first, call.depthwise), (self.second, call.pointwise))
            for each in (directions if direction == "backward" else directions[:1])
            for reason in backend.why_slow(half, each)
        ]

    def plan(self, call: SeparableCall, direction: Direction) -> Run:
        """The function that runs this direction of this call."""
        activation = call.activation
        depthwise = self.first.plan(call.depthwise, "forward")
        pointwise = self.second.plan(call.pointwise, "forward")

        def forward(
            input: Tensor,
            weight: Tensor,
            bias: Tensor | None,
            pointwise_weight: Tensor,
            pointwise_bias: Tensor | None,
        ) -> Tensor:
            middle = activate(activation, depthwise(input, weight, bias))
            result: Tensor = pointwise(middle, pointwise_weight, pointwise_bias)
            return result

        if direction == "forward":
            return forward
        depthwise_input = self.first.plan(call.depthwise, "grad_input")
        depthwise_weight = self.first.plan(call.depthwise, "grad_weight")
        pointwise_input = self.second.plan(call.pointwise, "grad_input")
        pointwise_grad = self.second.plan(call.pointwise, "grad_weight")

        def backward(
            grad_output: Tensor,
            input: Tensor,
            weight: Tensor,
            bias: Tensor | None,
            pointwise_weight: Tensor,
            wanted: tuple[bool, ...],
        ) -> Gradients:
            first = any(wanted[:3])
            second = wanted[3] or wanted[4]
            grads: list[Tensor | None] = [None] * 5
            if second or (first and activation):
                before: Tensor = depthwise(input, weight, bias)
            if second:
                middle = activate(activation, before)
                grads[3], grads[4] = pointwise_grad(grad_output, middle, wanted[4])
                del middle
            if first:
                grad = pointwise_input(grad_output, pointwise_weight)
                if activation:
                    grad = activation_backward(activation, grad, before)
                if wanted[0]:
                    grads[0] = depthwise_input(grad, weight)
                if wanted[1] or wanted[2]:
                    grads[1], grads[2] = depthwise_weight(grad, input, wanted[2])
            return tuple(grads)

        return backward
