"""Is a separable network as fast as its arithmetic says, and does the promise hold?

1. The forum network, batch 32: with leanconv's separable layers, beside the same network in stock
   PyTorch in both layouts, and beside its dense twin.
2. One layer over channels and sizes in one to three dimensions: forward beside its pointwise half
   alone; forward and backward beside stock's better layout.
3. The promise: `rev_separable` at depth 24 beside the same network in stock PyTorch that keeps
   everything: step time and activation memory.

Sides take turns in random order in one process that keeps freed memory (glibc's MALLOC_ settings);
ratios are medians of rounds with their 95% interval.

    python benchmarks/separable.py [--quick] [--only forum|layers|promise] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import geometric_mean, median

import torch
from torch import Tensor, nn

import leanconv
from _allocator import keep_freed_memory
from leanconv import models
from leanconv.measure.verdict import ratio_interval
from reversible import allocated_peak, met

Step = Callable[[], object]


@dataclass
class Row:
    question: str
    setting: str
    side: str
    samples: list[float] = field(default_factory=list)
    activation_bytes: int = 0

    @property
    def seconds(self) -> float:
        return median(self.samples)


def take_turns(question: str, setting: str, sides: dict[str, Step], rounds: int) -> dict[str, Row]:
    """Every side's seconds a call, `rounds` times in random order."""
    rows = {name: Row(question, setting, name) for name in sides}
    calls = {}
    for name, step in sides.items():
        for _ in range(2):
            step()
        start = time.perf_counter()
        step()
        calls[name] = max(1, round(5e-3 / (time.perf_counter() - start)))
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(sorted(sides), len(sides)):
            # The first after the others' turns finds their data in the caches.
            sides[name]()
            start = time.perf_counter()
            for _ in range(calls[name]):
                sides[name]()
            rows[name].samples.append((time.perf_counter() - start) / calls[name])
    return rows


def ratio(base: Row, other: Row) -> tuple[float, float, float]:
    return ratio_interval(base.samples, other.samples)


def layout_of(dims: int, name: str) -> torch.memory_format:
    if name == "contiguous":
        return torch.contiguous_format
    return torch.channels_last if dims == 2 else torch.channels_last_3d


def layouts(dims: int) -> tuple[str, ...]:
    return ("contiguous",) if dims == 1 else ("contiguous", "channels_last")


# 1. The forum network.


def with_separable_layers(network: nn.Sequential) -> nn.Sequential:
    """The same network, each pair of halves as one layer with the same parameters."""
    layers = list(network)
    found: list[nn.Module] = []
    while layers:
        layer = layers.pop(0)
        if isinstance(layer, nn.Conv2d) and layer.groups > 1:
            layer = leanconv.SeparableConv2d.from_layers(layer, layers.pop(0))
        found.append(layer)
    return nn.Sequential(*found)


def training_step(network: nn.Module, x: Tensor) -> Step:
    target = torch.arange(x.shape[0]) % 10

    def step() -> None:
        network.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(network(x), target).backward()

    return step


def forum(quick: bool) -> tuple[list[Row], list[str]]:
    x = torch.randn(32, 3, 32, 32)
    sides: dict[str, Step] = {}
    for layout in layouts(2):
        where = layout_of(2, layout)
        for name, make in (
            ("leanconv", lambda: with_separable_layers(models.separable_cifar())),
            ("stock", models.separable_cifar),
            ("dense", models.dense_cifar),
        ):
            network = make().to(memory_format=where)
            sides[f"{name}, {layout}"] = training_step(network, x.contiguous(memory_format=where))
    rows = take_turns("forum", "batch 32", sides, 5 if quick else 25)
    print("\nThe forum network, a training step at batch 32")
    for name, row in rows.items():
        print(f"  {name:28}{1e3 * row.seconds:9.1f} ms")

    def best(name: str) -> Row:
        return min(
            (row for side, row in rows.items() if side.startswith(name)), key=lambda r: r.seconds
        )

    lines = []
    for peer, target in (("stock", 2.0), ("dense", 6.0)):
        for layout in layouts(2):
            middle, low, high = ratio(rows[f"leanconv, {layout}"], best(peer))
            lines.append(
                f"forum, {layout}: {middle:.2f} ({low:.2f} to {high:.2f}) times as fast as "
                f"{best(peer).side}, at least {target:g} wanted: {met(middle >= target)}"
            )
    return list(rows.values()), lines


# 2. One layer.

SIZES = {
    "1d": [(8, c, (n,)) for c, n in ((32, 4096), (64, 2048), (128, 1024), (256, 512), (512, 256))],
    "2d": [
        (8, c, (n, n))
        for c, n in ((32, 112), (64, 56), (128, 56), (128, 28), (256, 28), (256, 14), (512, 7))
    ],
    "3d": [(2, c, (n, n, n)) for c, n in ((32, 28), (64, 16), (128, 14), (256, 7))],
}
CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
SEPARABLE = {1: leanconv.SeparableConv1d, 2: leanconv.SeparableConv2d, 3: leanconv.SeparableConv3d}


def differentiated(run: Callable[[Tensor], Tensor], x: Tensor, module: nn.Module) -> Step:
    with torch.no_grad():
        grad = torch.randn_like(run(x))

    def step() -> None:
        module.zero_grad(set_to_none=True)
        x.grad = None
        run(x).backward(grad)

    return step


def without_gradients(run: Callable[[Tensor], Tensor], x: Tensor) -> Step:
    def step() -> Tensor:
        with torch.no_grad():
            return run(x)

    return step


def one_layer(quick: bool) -> tuple[list[Row], list[str]]:
    everything: list[Row] = []
    forward_ratios: dict[str, float] = {}
    step_ratios: dict[str, float] = {}
    print("\nOne layer, kernel size 3: forward over its pointwise half alone; step over stock's")
    print(f"  {'':36}{'ms':>8}{'/pointwise':>11}{'step ms':>9}{'/stock':>8}")
    for kind, sizes in SIZES.items():
        dims = int(kind[0])
        for batch, channels, size in sizes[:2] if quick else sizes:
            steps: dict[str, Step] = {}
            forwards: dict[str, Step] = {}
            for layout in layouts(dims):
                x = torch.randn(batch, channels, *size)
                x = x.contiguous(memory_format=layout_of(dims, layout)).requires_grad_()
                layer = SEPARABLE[dims](channels, channels, 3, padding=1)
                stock = nn.Sequential(
                    CONV[dims](channels, channels, 3, padding=1, groups=channels),
                    CONV[dims](channels, channels, 1),
                )
                if layout != "contiguous":
                    stock.to(memory_format=layout_of(dims, layout))
                pointwise = stock[1]
                forwards[f"separable, {layout}"] = without_gradients(layer, x)
                forwards[f"pointwise, {layout}"] = without_gradients(pointwise, x)
                steps[f"separable, {layout}"] = differentiated(layer, x, layer)
                steps[f"stock, {layout}"] = differentiated(stock, x, stock)
            name = f"{batch}x{channels}x{'x'.join(map(str, size))}"
            rounds = 5 if quick else 15
            forward = take_turns("layer forward", name, forwards, rounds)
            step = take_turns("layer step", name, steps, rounds)
            everything += [*forward.values(), *step.values()]
            stock_best = min(
                (r for side, r in step.items() if side.startswith("stock")),
                key=lambda r: r.seconds,
            )
            pointwise_best = min(
                (r for side, r in forward.items() if side.startswith("pointwise")),
                key=lambda r: r.seconds,
            )
            for layout in layouts(dims):
                ours, whole = forward[f"separable, {layout}"], step[f"separable, {layout}"]
                where = f"{name} {layout}"
                forward_ratios[where] = ratio(pointwise_best, ours)[0]
                step_ratios[where] = ratio(stock_best, whole)[0]
                print(
                    f"  {where:36}{1e3 * ours.seconds:8.2f}{forward_ratios[where]:11.2f}"
                    f"{1e3 * whole.seconds:9.2f}{step_ratios[where]:8.2f}"
                )
    slow = {where: r for where, r in forward_ratios.items() if r > 1.15}
    slower = {where: r for where, r in step_ratios.items() if r > 1.03}
    worst = max(forward_ratios, key=lambda where: forward_ratios[where])
    return everything, [
        f"layers: forward at most 1.15 x the pointwise half alone in stock's better layout: "
        f"geometric mean {geometric_mean(forward_ratios.values()):.2f}, worst "
        f"{forward_ratios[worst]:.2f} at {worst}; {len(slow)} of {len(forward_ratios)} above, "
        f"{met(not slow)}",
        f"layers: a step never slower than stock's better layout: geometric mean "
        f"{geometric_mean(step_ratios.values()):.2f}, worst {max(step_ratios.values()):.2f}; "
        f"{met(not slower, ', '.join(slower))}",
    ]


# 3. The promise.


class Plain(nn.Module):
    """The couplings of `rev_separable` in torch's modules, keeping everything."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        half = channels // 2

        def function() -> nn.Module:
            return nn.Sequential(
                nn.BatchNorm2d(half),
                nn.ReLU(),
                nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False),
                nn.Conv2d(half, half, 1, bias=False),
            )

        self.functions = nn.ModuleList(function() for _ in range(2 * depth))

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = x.chunk(2, 1)
        for f, g in zip(self.functions[::2], self.functions[1::2], strict=True):
            x1 = x1 + f(x2)
            x2 = x2 + g(x1)
        return torch.cat([x1, x2], 1)


def promise(quick: bool) -> tuple[list[Row], list[str]]:
    depth, size = 24, (32, 128, 32, 32)
    sides: dict[str, Step] = {}
    for layout in layouts(2):
        where = layout_of(2, layout)
        x = torch.randn(size).contiguous(memory_format=where).requires_grad_()
        for name, make in (
            ("stock", lambda: Plain(size[1], depth)),
            ("leanconv", lambda: models.rev_separable(size[1], depth)),
        ):
            network = make().to(memory_format=where)

            def step(network: nn.Module = network, x: Tensor = x) -> None:
                network.zero_grad(set_to_none=True)
                x.grad = None
                network(x).square().mean().backward()

            sides[f"{name}, {layout}"] = step
    rows = take_turns("promise", "depth 24, 32x128x32x32", sides, 3 if quick else 11)
    print("\nrev_separable at depth 24, 32x128x32x32, beside the same network in stock PyTorch")
    for name, row in rows.items():
        row.activation_bytes = allocated_peak(sides[name])
        print(
            f"  {name:28}{1e3 * row.seconds:9.0f} ms{row.activation_bytes / 1e6:9.0f} MB at the "
            f"peak of a step"
        )
    stocks = [row for side, row in rows.items() if side.startswith("stock")]
    best = min(stocks, key=lambda r: r.seconds)
    least = min(row.activation_bytes for row in stocks)
    lines = []
    for layout in layouts(2):
        ours = rows[f"leanconv, {layout}"]
        middle, low, high = ratio(best, ours)
        share = least / ours.activation_bytes
        lines += [
            f"promise, {layout}: step time {middle:.3f} ({low:.3f} to {high:.3f}) of {best.side}, "
            f"at most 1 wanted: {met(middle <= 1)}",
            f"promise, {layout}: memory 1/{share:.1f} of it, at most 1/8 wanted: {met(share >= 8)}",
        ]
    return list(rows.values()), lines


QUESTIONS = {"forum": forum, "layers": one_layer, "promise": promise}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds and shapes")
    parser.add_argument("--only", choices=list(QUESTIONS), help="one of the three questions")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    everything: list[Row] = []
    summary: list[str] = []
    leanconv.dispatch.configure(mode="measure")
    for name, question in QUESTIONS.items():
        if options.only in (None, name):
            rows, lines = question(options.quick)
            everything += rows
            summary += lines
    print("\n" + "\n".join(summary))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in everything], indent=1) + "\n")


if __name__ == "__main__":
    keep_freed_memory()
    main()
