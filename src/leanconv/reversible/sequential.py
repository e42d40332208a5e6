"""ReversibleSequential: a stack of invertible blocks whose activations are rebuilt, not kept."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from leanconv.reversible._chain import Stepwise, check_invertible, steps_of
from leanconv.reversible._engine import Step, run_steps


class ReversibleSequential(nn.Sequential, Stepwise):
    """Blocks in a row, with activation memory that does not grow with their number."""

    def __init__(self, *blocks: Any, memory_budget: float | None = None, exact: int | None = None) -> None:
        super().__init__(*blocks)
        for name, block in self.named_children():
            check_invertible(block, f"block {name}")

    def forward(self, *x: Tensor) -> Any:
        y = run_steps(self.steps(), x)
        return y[0] if len(y) == 1 else y

    def inverse(self, *y: Tensor) -> Any:
        x = run_steps(self.steps(inverse=True), y)
        return x[0] if len(x) == 1 else x

    def steps(self, label: str = "", *, inverse: bool = False) -> list[Step]:
        blocks = [*self.named_children()]
        prefix = f"{label}." if label else "block "
        steps: list[Step] = []
        for name, block in reversed(blocks) if inverse else blocks:
            steps += steps_of(block, f"{prefix}{name}", inverse=inverse)
        return steps
