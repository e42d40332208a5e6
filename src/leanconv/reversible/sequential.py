"""ReversibleSequential: a stack of invertible blocks whose activations are rebuilt, not kept."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from leanconv.reversible._chain import Stepwise, check_invertible, steps_of
from leanconv.reversible._engine import Step, run_steps
from leanconv.reversible._steps import share_learnt
from leanconv.reversible.budget import Costs, check_budget
from leanconv.reversible.check import DriftWatch
from leanconv.reversible.exact import Grid, check_bits
from leanconv.reversible.plan import Plan, measure_plan


class ReversibleSequential(nn.Sequential, Stepwise):
    """Blocks in a row, with activation memory that does not grow with their number.

    Only the last block's output is held. In the backward each block is undone from its output; a
    coupling's functions run once more for that, in the forward's own surroundings (random numbers,
    training flags, autocast), and that run provides their gradients. Any other module with
    `inverse` is undone by it and run once more.

    Args:
        blocks: couplings, or modules with `forward` and `inverse`, such as Squeeze2d or another
            ReversibleSequential.
        memory_budget: bytes (int), or a fraction (float) of what keeping everything takes, that may
            be held for the backward, rebuilding included. As many blocks as fit keep their
            activations, those first whose running again costs the most time a byte. None keeps
            nothing.
        exact: fractional bits of a fixed-point grid on which the stream is kept, so that undoing is
            exact to the bit at any depth; from 1 to 22. Values up to 2 ** (24 - exact) fit. Only
            for additive couplings, Squeeze, Haar and InjectivePad. The stream is float32 (float64
            if the input is).

    Raises:
        ValueError: if a block has no inverse, or an argument is out of range; when run, if a
            function does not keep its half's shape, a value leaves the grid, or the budget is less
            than the least that the stack needs.

    Example:
        >>> import torch
        >>> import leanconv
        >>> def block():
        ...     return leanconv.AdditiveCoupling(torch.nn.Conv2d(8, 8, 3, padding=1))
        >>> stack = leanconv.ReversibleSequential(*(block() for _ in range(4)))
        >>> stack(torch.randn(2, 16, 8, 8)).sum().backward()
    """

    def __init__(
        self, *blocks: Any, memory_budget: float | None = None, exact: int | None = None
    ) -> None:
        super().__init__(*blocks)
        for name, block in self._modules.items():
            check_invertible(block, f"block {name}")
        check_budget(memory_budget)
        if exact is not None:
            check_bits(exact)
        self.memory_budget = memory_budget
        self.exact = exact
        self._drift: DriftWatch | None = None
        self._kept: dict[Any, frozenset[int]] = {}

    def forward(self, *x: Tensor) -> Any:
        """The blocks' outputs, one after another."""
        return self._through(x, inverse=False)

    def inverse(self, *y: Tensor) -> Any:
        """The input again, with the same saving of memory."""
        return self._through(y, inverse=True)

    def steps(self, label: str = "", *, inverse: bool = False) -> list[Step]:
        """The blocks' steps in order, or the inverse's."""
        blocks = [*self._modules.items()]
        prefix = f"{label}." if label else "block "
        steps: list[Step] = []
        for name, block in reversed(blocks) if inverse else blocks:
            steps += steps_of(block, f"{prefix}{name}", inverse=inverse)
        return steps

    def watch_drift(self, every: int = 100, tolerance: float = 1e-3) -> ReversibleSequential:
        """Compare rebuilt inputs with the true ones every so many runs, and warn of a block's
        drift.

        Args:
            every: how many runs apart; the first is looked at.
            tolerance: the largest difference allowed, as a part of the largest value.

        Returns:
            This stack.

        Raises:
            ValueError: if an argument is out of range.
        """
        self._drift = DriftWatch(every, tolerance)
        return self

    def plan(self, *x: Tensor, rounds: int = 5) -> Plan:
        """The curve of memory against step time, over all budgets.

        Args:
            x: an input to measure with.
            rounds: how many training steps of each kind are timed.

        Returns:
            A Plan; print it, or look at its `points`. The stack, its gradients and the random
            number generators are left as they were.
        """
        copied = copy.deepcopy(self)
        copied.memory_budget = None
        copied.zero_grad(set_to_none=True)
        with torch.random.fork_rng(devices=[]):
            return measure_plan(
                lambda inputs: copied.prepare(inputs)[:2], tuple(t.detach() for t in x), rounds
            )

    def prepare(
        self, inputs: tuple[Tensor, ...], *, inverse: bool = False
    ) -> tuple[list[Step], tuple[Tensor, ...]]:
        """The steps and the inputs that the engine runs, on the grid where there is one."""
        steps, inputs, _ = self._on_grid(inputs, inverse)
        return steps, inputs

    def _on_grid(
        self, inputs: tuple[Tensor, ...], inverse: bool
    ) -> tuple[list[Step], tuple[Tensor, ...], Grid | None]:
        steps = self.steps(inverse=inverse)
        if self.exact is None:
            return steps, inputs, None
        grid = Grid(self.exact)
        return grid.steps(steps), grid.enter(inputs, inverse=inverse), grid

    def _through(self, x: tuple[Tensor, ...], inverse: bool) -> Any:
        steps, inputs, grid = self._on_grid(x, inverse)
        kept: frozenset[int] = frozenset()
        if self.memory_budget is not None and torch.is_grad_enabled():
            kept = self._kept_steps(steps, inputs, inverse)
        watch = None
        if self._drift is not None and torch.is_grad_enabled():
            watch = self._drift.next_run()
        outputs = run_steps(steps, inputs, kept=kept, watch=watch)
        if grid is not None:
            grid.check()
        return outputs[0] if len(outputs) == 1 else outputs

    def _kept_steps(
        self, steps: list[Step], inputs: tuple[Tensor, ...], inverse: bool
    ) -> frozenset[int]:
        key = (
            inverse,
            self.memory_budget,
            tuple((t.shape, t.dtype, t.device, t.requires_grad) for t in inputs),
            tuple(m.training for m in self.modules()),
            torch.is_autocast_enabled(inputs[0].device.type) if inputs else False,
        )
        if key not in self._kept:
            assert self.memory_budget is not None
            # Counted on a copy, so that statistics and random numbers move on once a step.
            copied = copy.deepcopy(self)
            copied.memory_budget = None
            with torch.random.fork_rng(devices=[]):
                costs = Costs.count(
                    copied.prepare(inputs, inverse=inverse)[0],
                    tuple(t.detach().requires_grad_(t.requires_grad) for t in inputs),
                )
            share_learnt(copied, self)
            self._kept[key] = costs.choose(self.memory_budget)
        return self._kept[key]
