"""Does a memory budget cost the time that the plan says, and is it never exceeded?

The networks of benchmarks/reversible.py under a range of budgets: what `plan()` predicts beside
what a step takes. The budgets are timed in turns, in random order, in one process that keeps freed
memory (glibc's MALLOC_ settings). The bytes held are the allocator's, whenever a function has run,
in the forward or to be rebuilt, without the output or, in the backward, its gradient.

    python benchmarks/memory_budget.py [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from _allocator import keep_freed_memory
from leanconv import AdditiveCoupling, ReversibleSequential
from leanconv.measure.verdict import ratio_interval
from reversible import SHAPES, memory_changes, met

FRACTIONS = (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
WITHIN = 0.15
# Keeping more is slower when the interval of the rounds' ratios says so by more than this.
NOISE = 0.03
MARK = "memory_budget: a function has run"


@dataclass
class Row:
    network: str
    depth: int
    budget: float
    kept: int
    budget_bytes: int
    held_bytes: int
    expected_seconds: float
    samples: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return median(self.samples)

    @property
    def error(self) -> float:
        return self.expected_seconds / self.seconds - 1


def step(stack: ReversibleSequential, x: Tensor) -> float:
    start = time.perf_counter()
    stack(x).square().mean().backward()
    return time.perf_counter() - start


class Marked(nn.Module):
    """Marks in a profile when it has run."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        y = self.function(x)
        with record_function(MARK):
            return y


def held_bytes(stack: ReversibleSequential, x: Tensor) -> int:
    """The most held for the backward. Parameters and `x` have their gradients already."""
    held = most = 0
    for change in memory_changes(lambda: step(stack, x), MARK):
        held += change
        if not change:
            most = max(most, held)
    return most - x.numel() * x.element_size()


def measure(network: str, depth: int, rounds: int) -> list[Row]:
    make_function, shape = SHAPES[network]
    torch.manual_seed(0)
    couplings = [
        AdditiveCoupling(Marked(make_function()), Marked(make_function())) for _ in range(depth)
    ]
    x = torch.randn(shape, requires_grad=True)
    plan = ReversibleSequential(*couplings).plan(x, rounds=rounds)
    most = plan.points[-1].peak_bytes
    stacks: list[ReversibleSequential] = []
    rows: list[Row] = []
    least = plan.points[0].peak_bytes
    for fraction in FRACTIONS:
        budget = least if fraction == 0 else int(fraction * most)
        if budget < least:
            continue
        point = plan.at(budget)
        stack = ReversibleSequential(*couplings, memory_budget=budget)
        for _ in range(2):
            step(stack, x)
        rows.append(
            Row(
                network,
                depth,
                budget / most,
                len(point.kept),
                budget,
                held_bytes(stack, x),
                plan.step_seconds(point),
            )
        )
        stacks.append(stack)
    order = random.Random(0)
    for _ in range(rounds):
        for number in order.sample(range(len(rows)), len(rows)):
            step(stacks[number], x)
            rows[number].samples.append(step(stacks[number], x))
    return rows


def show(rows: list[Row]) -> None:
    first = rows[0]
    print(f"\n{first.network}, depth {first.depth}, input {SHAPES[first.network][1]}")
    print("  budget   kept   budget MB    held MB   expected ms     ms  expected/measured")
    for row in rows:
        print(
            f"{row.budget:8.2f}{row.kept:7d}{row.budget_bytes / 1e6:12.1f}"
            f"{row.held_bytes / 1e6:11.1f}{1e3 * row.expected_seconds:14.1f}"
            f"{1e3 * row.seconds:7.1f}{1 + row.error:14.3f}"
        )


def verdicts(rows: list[Row]) -> list[str]:
    worst = max(rows, key=lambda r: abs(r.error))
    # Statistics of the norms, a few hundred bytes a block, are not in the plan.
    fullest = max(rows, key=lambda r: r.held_bytes / r.budget_bytes)
    share = fullest.held_bytes / fullest.budget_bytes
    ratio, low, high = max(
        (ratio_interval(less.samples, more.samples) for less, more in pairwise(rows)),
        key=lambda interval: interval[1],
    )
    where = f"{rows[0].network}, depth {rows[0].depth}: "
    return [
        where + f"expected within {WITHIN:.0%} of measured: {worst.error:+.1%} at budget "
        f"{worst.budget:.2f}, {met(abs(worst.error) <= WITHIN)}",
        where + f"the budget is never exceeded: at most {share:.1%} of it, {met(share <= 1.005)}",
        where
        + f"more budget never costs time: at worst {ratio:.3f} of the next smaller's, {low:.3f} "
        f"to {high:.3f}, {met(low <= 1 + NOISE)}",
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, shallow networks")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    options = parser.parse_args(arguments)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    everything: list[Row] = []
    summary: list[str] = []
    for network in SHAPES:
        rows = measure(network, 6 if options.quick else 24, 3 if options.quick else 15)
        show(rows)
        summary += verdicts(rows)
        everything += rows
    print("\n" + "\n".join(summary))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in everything], indent=1) + "\n")


if __name__ == "__main__":
    keep_freed_memory()
    main()
