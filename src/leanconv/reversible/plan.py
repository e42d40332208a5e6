"""The measured curve of memory against step time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from leanconv.reversible._engine import Step, run_steps
from leanconv.reversible.budget import Costs, PlanPoint

Prepare = Callable[[tuple[Tensor, ...]], tuple[list[Step], tuple[Tensor, ...]]]


@dataclass(frozen=True)
class Plan:
    """What each budget takes and costs.

    `points` go from nothing kept to everything; `kept_seconds` is the time of a training step of
    the stack (forward and backward) with everything kept, to which a point's recompute is added.
    """

    points: tuple[PlanPoint, ...]
    kept_seconds: float

    def step_seconds(self, point: PlanPoint) -> float:
        """The expected time of a training step of the stack at a point."""
        return self.kept_seconds + point.recompute_seconds

    def at(self, budget: float) -> PlanPoint:
        """The point that a `memory_budget` in bytes (int), or as a fraction (float), gives.

        Raises:
            ValueError: if the budget is less than the least.
        """
        limit = budget * self.points[-1].peak_bytes if isinstance(budget, float) else budget
        fitting = [p for p in self.points if p.peak_bytes <= limit]
        if not fitting:
            raise ValueError(
                f"`budget` (={budget}) allows {int(limit):,} bytes; this stack needs at least "
                f"{min(p.peak_bytes for p in self.points):,}"
            )
        return fitting[-1]

    def __str__(self) -> str:
        most = self.points[-1].peak_bytes
        lines = ["  memory   of all  step time  kept"]
        last = -1
        for point in self.points:
            tenth = int(10 * point.peak_bytes / max(most, 1))
            if tenth == last and point is not self.points[-1]:
                continue
            last = tenth
            lines.append(
                f"{point.peak_bytes / 2**20:8.1f}M {100 * point.peak_bytes / max(most, 1):6.1f}% "
                f"{1e3 * self.step_seconds(point):8.1f}ms  {len(point.kept)} of "
                f"{len(self.points) - 1}"
            )
        return "\n".join(lines)


def measure_plan(prepare: Prepare, inputs: tuple[Tensor, ...], rounds: int) -> Plan:
    """Time the two ends of the curve in turn, and share their difference among the steps.

    Args:
        prepare: gives the steps and the inputs that the engine runs.
        inputs: of the stack.
        rounds: how many training steps of each kind are timed, at least 1.
    """
    if rounds < 1:
        raise ValueError(f"`rounds` (={rounds}) must be at least 1")
    steps, ready = prepare(inputs)
    runs = [Costs.count(steps, _leaves(ready)) for _ in range(rounds)]
    costs = runs[0]
    for number, cost in enumerate(costs.steps):
        cost.seconds = median(run.steps[number].seconds for run in runs)
    everything = frozenset(range(len(steps)))
    kept, rebuilt = [], []
    for turn in range(rounds + 1):
        a, b = _step_seconds(prepare, inputs, everything), _step_seconds(prepare, inputs, ())
        if turn:
            kept.append(a)
            rebuilt.append(b - a)
    # What a second run costs beside the first one's time: overheads, and the undoing itself.
    first_runs = sum(cost.seconds for cost in costs.steps)
    factor = max(median(rebuilt), 0.0) / first_runs if first_runs else 0.0
    points = tuple(
        replace(point, recompute_seconds=point.recompute_seconds * factor)
        for point in costs.points()
    )
    return Plan(points, median(kept))


def _leaves(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(
        t.detach().requires_grad_(t.is_floating_point() or t.is_complex()) for t in tensors
    )


def _step_seconds(
    prepare: Prepare, inputs: tuple[Tensor, ...], kept: Sequence[int] | frozenset[int]
) -> float:
    leaves = _leaves(inputs)
    start = _now(leaves)
    with torch.enable_grad():
        steps, ready = prepare(leaves)
        outputs = [t for t in run_steps(steps, ready, kept=kept) if t.requires_grad]
        torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
    return _now(leaves) - start


def _now(tensors: tuple[Tensor, ...]) -> float:
    device = tensors[0].device
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)
    return perf_counter()
