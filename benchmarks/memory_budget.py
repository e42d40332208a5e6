"""Does a memory budget cost the time that the plan says, and is it never exceeded?

The networks of benchmarks/reversible.py under a range of budgets: what `plan()` predicts beside
what a step takes. The budgets are timed in turns, in random order, in one process that keeps freed
memory (glibc's MALLOC_ settings); memory is the peak of activations by `measure_memory`, the
output left out.

    python benchmarks/memory_budget.py [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from _allocator import keep_freed_memory
from leanconv import AdditiveCoupling, ReversibleSequential
from leanconv.measure import measure_memory
from reversible import SHAPES, met

FRACTIONS = (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
WITHIN = 0.15
# Fewer activations kept must not be quicker by more than the clock can tell.
NOISE = 0.03


@dataclass
class Row:
    network: str
    depth: int
    budget: float
    kept: int
    budget_bytes: int
    held_bytes: int
    expected_seconds: float
    seconds: float = 0.0

    @property
    def error(self) -> float:
        return self.expected_seconds / self.seconds - 1


def step(stack: ReversibleSequential, x: Tensor) -> float:
    start = time.perf_counter()
    stack(x).square().mean().backward()
    return time.perf_counter() - start


def held_bytes(stack: ReversibleSequential, x: Tensor) -> int:
    """The most held for the backward, but for the output."""
    peak = measure_memory(lambda: stack(x).square().mean().backward(), model=stack).peak
    return peak.activations_bytes - x.numel() * x.element_size()


def measure(network: str, depth: int, rounds: int) -> list[Row]:
    make_function, shape = SHAPES[network]
    torch.manual_seed(0)
    couplings = [AdditiveCoupling(make_function(), make_function()) for _ in range(depth)]
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
    taken: list[list[float]] = [[] for _ in rows]
    order = random.Random(0)
    for _ in range(rounds):
        for number in order.sample(range(len(rows)), len(rows)):
            step(stacks[number], x)
            taken[number].append(step(stacks[number], x))
    for row, seconds in zip(rows, taken, strict=True):
        row.seconds = median(seconds)
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
    rise = max(more.seconds / less.seconds for less, more in pairwise(rows))
    where = f"{rows[0].network}, depth {rows[0].depth}: "
    return [
        where + f"expected within {WITHIN:.0%} of measured: {worst.error:+.1%} at budget "
        f"{worst.budget:.2f}, {met(abs(worst.error) <= WITHIN)}",
        where + f"the budget is never exceeded: at most {share:.1%} of it, {met(share <= 1.005)}",
        where + f"more budget never costs time, within {NOISE:.0%}: {rise - 1:+.1%} at worst, "
        f"{met(rise <= 1 + NOISE)}",
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
