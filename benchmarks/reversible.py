"""Does a reversible network train in one extra forward and without memory that grows with depth?

Beside the same network keeping everything, under torch.utils.checkpoint, in MemCNN and in RevLib
(`pip install leanconv[bench]`), all in the same run. Step times are ratios to keeping everything,
round by round in random order, each side in a process of its own; the limit is one more forward,
from the same rounds; while timed, freed memory stays with each process (glibc's MALLOC_ settings,
the same for all), as in a loop that has warmed up. Memory is what the allocator reports of one
step, gradients included (parameters and optimizer are not), and the process's peak resident memory.

    python benchmarks/reversible.py [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from _allocator import KEEP_FREED
from leanconv import AdditiveCoupling, ReversibleSequential
from leanconv.measure.memory import resident_peak_bytes
from leanconv.measure.verdict import ratio_interval

Network = Callable[[Tensor], Tensor]


def function_2d() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(2):
        layers += [nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)]
    return nn.Sequential(*layers)


def function_1d() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(2):
        layers += [nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 16, 3, padding=1)]
    return nn.Sequential(*layers)


SHAPES = {
    "2d": (function_2d, (32, 64, 32, 32)),
    "1d": (function_1d, (256, 32, 64)),
}


class Plain(nn.Module):
    """Couplings that keep everything, their halves handed on as ours are."""

    def __init__(self, functions: list[tuple[nn.Module, nn.Module]]) -> None:
        super().__init__()
        self.functions = nn.ModuleList(nn.ModuleList(pair) for pair in functions)

    def block(self, pair: nn.ModuleList, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
        y1 = x1 + pair[0](x2)
        return y1, x2 + pair[1](y1)

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = x.chunk(2, 1)
        for pair in self.functions:
            x1, x2 = self.block(pair, x1, x2)
        return torch.cat([x1, x2], 1)


class Checkpointed(Plain):
    def block(self, pair: nn.ModuleList, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
        return checkpoint(super().block, pair, x1, x2, use_reentrant=False)


def memcnn_network(functions: list[tuple[nn.Module, nn.Module]]) -> Network:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import memcnn
    blocks = [memcnn.InvertibleModuleWrapper(memcnn.AdditiveCoupling(*f)) for f in functions]
    network = nn.Sequential(*blocks)
    # It empties its input's storage, so it gets one of its own.
    return lambda x: network(x.clone())


def revlib_network(functions: list[tuple[nn.Module, nn.Module]]) -> Network:
    import revlib

    return revlib.ReversibleSequential(*(f for pair in functions for f in pair), split_dim=1)


BUILD: dict[str, Callable[[list[tuple[nn.Module, nn.Module]]], Network]] = {
    "keeps everything": Plain,
    "checkpoint": Checkpointed,
    "memcnn": memcnn_network,
    "revlib": revlib_network,
    "leanconv": lambda functions: ReversibleSequential(*(AdditiveCoupling(*f) for f in functions)),
    "leanconv, budget 0.5": lambda functions: ReversibleSequential(
        *(AdditiveCoupling(*f) for f in functions), memory_budget=0.5
    ),
}
PEERS = ("keeps everything", "checkpoint", "memcnn", "revlib")


@dataclass
class Row:
    network: str
    depth: int
    side: str
    why_missing: str = ""
    seconds: float = 0.0
    ratio: float = 0.0
    ratio_low: float = 0.0
    ratio_high: float = 0.0
    limit_ratio: float = 0.0
    peak_bytes: dict[int, int] = field(default_factory=dict)
    resident_bytes: dict[int, int] = field(default_factory=dict)


class Side:
    """One contestant with a network of its own."""

    def __init__(self, name: str, network: str, depth: int) -> None:
        make_function, shape = SHAPES[network]
        torch.manual_seed(0)
        functions = [(make_function(), make_function()) for _ in range(depth)]
        self.parameters = [p for pair in functions for f in pair for p in f.parameters()]
        self.network = BUILD[name](functions)
        # The gradient of the input too: layers come before a stack in practice, and without it
        # MemCNN would train nothing.
        self.x = torch.randn(shape, requires_grad=True)

    def forward(self) -> Tensor:
        return self.network(self.x)

    def step(self) -> None:
        self.forward().square().mean().backward()


class Process:
    """A side in a process of its own, so that no allocator's state is shared; idle but when
    asked."""

    def __init__(self, name: str, network: str, depth: int, keep_freed: bool = False) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", name, network, str(depth)],
            env={**os.environ, **(KEEP_FREED if keep_freed else {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ask(self, what: str) -> list[float]:
        assert self.process.stdin
        assert self.process.stdout
        assert self.process.stderr
        try:
            self.process.stdin.write(what + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(self.process.stderr.read().strip().splitlines()[-1])
        return [float(word) for word in answer.split()]

    def end(self) -> None:
        # Closes the pipes, which ends the loop that serves, and waits for it.
        with self.process:
            pass


def serve(name: str, network: str, depth: int) -> None:
    """Answer `step` with the seconds of a forward and a step, `peak` with bytes, until the end."""
    side = Side(name, network, depth)
    for line in sys.stdin:
        if line.strip() == "step":
            # The first after the others' turns finds their data in the caches.
            _, whole = timed_step(side)
            taken = [timed_step(side) for _ in range(max(1, round(0.3 / whole)))]
            print(*(sum(part) / len(taken) for part in zip(*taken, strict=True)), flush=True)
        else:
            print(allocated_peak(side.step), resident_peak_bytes(), flush=True)


def timed_step(side: Side) -> tuple[float, float]:
    start = time.perf_counter()
    loss = side.forward().square().mean()
    middle = time.perf_counter()
    loss.backward()
    return middle - start, time.perf_counter() - start


def memory_changes(step: Callable[[], object], mark: str = "") -> list[int]:
    """Bytes of tensors that a step allocates (+) and frees (-), in order, by the allocator's own
    events; 0 where it ran `record_function(mark)`."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()
    changes = sorted(
        (e.start_ns(), e.nbytes() if e.name() == "[memory]" else 0)
        for e in events
        if e.name() in ("[memory]", mark)
    )
    return [change for _, change in changes]


def allocated_peak(step: Callable[[], object]) -> int:
    """The most bytes of tensors that a step holds at once."""
    return max(accumulate(memory_changes(step)))


def time_network(network: str, depth: int, rounds: int) -> list[Row]:
    sides: dict[str, Process] = {}
    rows: dict[str, Row] = {}
    for name in BUILD:
        rows[name] = Row(network, depth, name)
        sides[name] = Process(name, network, depth, keep_freed=True)
        try:
            for _ in range(3):
                sides[name].ask("step")
        except RuntimeError as error:
            rows[name].why_missing = str(error)
            sides.pop(name).end()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    forwards: list[float] = []
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(sorted(sides), len(sides)):
            forward, step = sides[name].ask("step")
            seconds[name].append(step)
            if name == PEERS[0]:
                forwards.append(forward)
    base = seconds[PEERS[0]]
    limit = median((f + s) / s for f, s in zip(forwards, base, strict=True))
    for name, taken in seconds.items():
        row = rows[name]
        row.seconds = median(taken)
        row.ratio, row.ratio_low, row.ratio_high = ratio_interval(base, taken)
        row.limit_ratio = limit
        sides[name].end()
    return list(rows.values())


def measure_peaks(row: Row, depths: list[int]) -> None:
    for depth in depths:
        process = Process(row.side, row.network, depth)
        process.ask("step")
        allocated, resident = process.ask("peak")
        row.peak_bytes[depth] = int(allocated)
        row.resident_bytes[depth] = int(resident)
        process.end()


def slope(peaks: dict[int, int]) -> float:
    """Bytes a block, from the least depth to the greatest."""
    first, last = min(peaks), max(peaks)
    return (peaks[last] - peaks[first]) / (last - first)


def show_times(rows: list[Row]) -> None:
    first = rows[0]
    print(f"\n{first.network}, depth {first.depth}, input {SHAPES[first.network][1]}")
    print(f"{'':22}{'ms a step':>10}{'ratio':>8}  {'95% interval':15}{'x limit':>8}")
    for row in rows:
        if row.why_missing:
            print(f"{row.side:22}{'not run: ' + row.why_missing:.58}")
            continue
        print(
            f"{row.side:22}{1e3 * row.seconds:10.1f}{row.ratio:8.3f}  {row.ratio_low:.3f} to "
            f"{row.ratio_high:.3f} {row.ratio / row.limit_ratio:8.3f}"
        )
    print(f"{'limit: one forward more':32}{first.limit_ratio:8.3f}")


def show_memory(rows: list[Row]) -> None:
    depths = sorted(rows[0].peak_bytes)
    print(f"\n{rows[0].network}: MB of tensors that a step holds at its peak, by depth")
    heads = "".join(f"{depth:>9}" for depth in depths)
    print(f"{'':22}{heads}{'a block':>9}{'process, ' + str(depths[-1]):>14}")
    for row in rows:
        if row.peak_bytes:
            cells = "".join(f"{row.peak_bytes[d] / 1e6:9.1f}" for d in depths)
            resident = row.resident_bytes[depths[-1]] / 1e6
            print(f"{row.side:22}{cells}{slope(row.peak_bytes) / 1e6:9.3f}{resident:14.0f}")


def verdicts(rows: list[Row], depths: list[int]) -> list[str]:
    by_side = {row.side: row for row in rows}
    ours = by_side["leanconv"]
    peers = [by_side[p] for p in PEERS[1:] if not by_side[p].why_missing]
    within = ours.ratio / ours.limit_ratio
    quickest = min(peers, key=lambda r: r.ratio)
    lines = [
        f"step time at most 1.05 x the limit: {within:.3f}, {met(within <= 1.05)}",
        f"step time below every memory-saving peer's: {ours.ratio:.3f} against "
        f"{quickest.ratio:.3f} ({quickest.side}), {met(ours.ratio < quickest.ratio)}",
    ]
    if ours.peak_bytes:
        keeping = slope(by_side[PEERS[0]].peak_bytes)
        share = slope(ours.peak_bytes) / keeping
        lines.append(
            f"memory a block 0 within noise (1% of keeping everything's): {share:.2%}, "
            f"{met(share <= 0.01)}"
        )
        worse = [
            f"{p.side} at {d}"
            for p in peers
            for d in depths
            if p.peak_bytes[d] <= ours.peak_bytes[d]
        ]
        lines.append(f"memory below every peer's at each depth: {met(not worse, ', '.join(worse))}")
    return [f"{ours.network}, depth {ours.depth}: {line}" for line in lines]


def met(yes: bool, why: str = "") -> str:
    return "met" if yes else f"MISSED {why}".strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, two depths")
    parser.add_argument("--network", choices=sorted(SHAPES), help="only this one")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        # MemCNN's use of torch's older storages, every step.
        warnings.filterwarnings("ignore", "TypedStorage is deprecated")
        name, network, depth = options.serve
        serve(name, network, int(depth))
        return
    depths = [8, 24] if options.quick else [8, 24, 48, 96]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    everything: list[Row] = []
    summary: list[str] = []
    for network, timed in (("2d", [24]), ("1d", [8, 24])):
        if options.network not in (None, network):
            continue
        for depth in timed:
            rows = time_network(network, depth, 10 if options.quick else 40)
            show_times(rows)
            if depth == timed[-1]:
                for row in rows:
                    if not row.why_missing:
                        measure_peaks(row, depths)
                show_memory(rows)
            summary += verdicts(rows, depths)
            everything += rows
    print("\n" + "\n".join(summary))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in everything], indent=1) + "\n")


if __name__ == "__main__":
    main()
