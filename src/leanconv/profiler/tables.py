"""From the profiler's slices to rows by operator, by module and by source line."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from leanconv.measure.limits import MachineLimits
from leanconv.profiler.flops import Work
from leanconv.profiler.operators import OperatorPass, Slice, module_phase, shown_name
from leanconv.profiler.owners import NOBODY, Lines, Owners, line_name, line_text
from leanconv.profiler.rows import (
    NO_LINE,
    NO_MODULE,
    OUTSIDE,
    LineRow,
    ModuleRow,
    OperatorRow,
)


@dataclass
class _Load:
    """What a slice asks for, with all that it calls, and how long the limits say that must take."""

    flops: int = 0
    bytes: int = 0
    least_seconds: float = 0.0

    def add(self, other: _Load) -> None:
        self.flops += other.flops
        self.bytes += other.bytes
        self.least_seconds += other.least_seconds


@dataclass
class _Sum:
    calls: int = 0
    self_us: float = 0.0
    total_us: float = 0.0
    device_us: float = 0.0
    total_device_us: float = 0.0
    load: _Load = field(default_factory=_Load)
    by_phase: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def limit_share(self) -> float:
        # A GPU's kernels run while the CPU goes on, so that their own time is what counts.
        taken = self.total_device_us or self.total_us
        return self.load.least_seconds / (taken / 1e6) if taken else 0.0


def _loads(slices: list[Slice], limits: MachineLimits | None) -> list[_Load]:
    """A slice with a formula has that; any other has the sum of what lies in it."""
    loads = [_Load() for _ in slices]
    for index in range(len(slices) - 1, -1, -1):
        work = slices[index].work
        if work is not None:
            loads[index] = _Load(work.flops, work.bytes, _least_seconds(work, limits))
        if slices[index].parent >= 0:
            loads[slices[index].parent].add(loads[index])
    return loads


def _least_seconds(work: Work, limits: MachineLimits | None) -> float:
    if limits is None:
        return 0.0
    rate = (
        limits.gemm_bf16_flops_per_second
        if work.low_precision
        else limits.gemm_f32_flops_per_second
    )
    return max(work.flops / rate, work.bytes / limits.copy_bytes_per_second)


def step_flops(taken: OperatorPass) -> int:
    """The operations of one profiled step that there are formulas for."""
    loads = _loads(taken.slices, None)
    roots = (
        load.flops for load, slice_ in zip(loads, taken.slices, strict=True) if slice_.parent < 0
    )
    return round(sum(roots) / max(1, taken.steps))


def operator_rows(
    slices: list[Slice], limits: MachineLimits | None = None
) -> tuple[OperatorRow, ...]:
    """Rows by operator and phase, the longest first."""
    sums: dict[tuple[str, str], _Sum] = defaultdict(_Sum)
    for slice_, load in zip(slices, _loads(slices, limits), strict=True):
        name = shown_name(slice_)
        row = sums[slice_.phase, name]
        row.self_us += slice_.self_us
        row.device_us += slice_.device_us
        if name == OUTSIDE:
            row.total_us += slice_.self_us
            row.calls += 1
        elif not _inside_same(slices, slice_, name):
            row.calls += 1
            row.total_us += slice_.total_us
            row.total_device_us += slice_.total_device_us
            row.load.add(load)
    everything = sum(row.self_us for row in sums.values()) or 1.0
    rows = [
        OperatorRow(
            name=name,
            phase=phase,
            calls=row.calls,
            self_cpu_seconds=row.self_us / 1e6,
            total_cpu_seconds=row.total_us / 1e6,
            self_device_seconds=row.device_us / 1e6,
            total_device_seconds=row.total_device_us / 1e6,
            self_cpu_share=row.self_us / everything,
            flops=row.load.flops,
            bytes=row.load.bytes,
            limit_share=row.limit_share,
        )
        for (phase, name), row in sums.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.self_cpu_seconds))


def _inside_same(slices: list[Slice], slice_: Slice, name: str) -> bool:
    parent = slice_.parent
    while parent >= 0:
        if shown_name(slices[parent]) == name:
            return True
        parent = slices[parent].parent
    return False


def module_rows(slices: list[Slice], owners: Owners) -> tuple[ModuleRow, ...]:
    """A row a module in the tree's order, then what is no module's."""
    own: dict[str, _Sum] = defaultdict(_Sum)
    below: dict[str, _Sum] = defaultdict(_Sum)
    for slice_ in slices:
        path = owners.path(slice_.module) if module_phase(slice_.phase) else f"({slice_.phase})"
        path = path or NO_MODULE
        own[path].self_us += slice_.self_us
        for above in [path] if path.startswith("(") else _and_above(path):
            below[above].total_us += slice_.self_us
            below[above].by_phase[slice_.phase] += slice_.self_us
    everything = sum(row.self_us for row in own.values()) or 1.0
    known = dict(zip(owners.paths, zip(owners.kinds, owners.calls, strict=True), strict=True))
    others = sorted(path for path in below if path not in known)
    rows = []
    for path in [*(path for path in owners.paths if path in below), *others]:
        kind, calls = known.get(path, ("", 0))
        rows.append(
            ModuleRow(
                path=path,
                kind=kind,
                calls=calls,
                self_seconds=own[path].self_us / 1e6,
                total_seconds=below[path].total_us / 1e6,
                **_phases(below[path]),
                self_share=own[path].self_us / everything,
            )
        )
    return tuple(rows)


def _and_above(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def line_rows(slices: list[Slice], lines: Lines) -> tuple[LineRow, ...]:
    """A row a line of source, the longest first; what no line called is in one of its own."""
    sums: dict[tuple[str, int], _Sum] = defaultdict(_Sum)
    nowhere = ("", 0)
    for slice_ in slices:
        chain = lines.chains[slice_.line] if slice_.line != NOBODY else ()
        chain = chain or (nowhere,)
        sums[chain[0]].self_us += slice_.self_us
        if not slice_.is_label and (slice_.parent < 0 or slices[slice_.parent].is_label):
            sums[chain[0]].calls += 1
        for line in set(chain):
            sums[line].total_us += slice_.self_us
            sums[line].by_phase[slice_.phase] += slice_.self_us
    everything = sum(row.self_us for row in sums.values()) or 1.0
    rows = [
        LineRow(
            source=NO_LINE if line == nowhere else line_name(*line),
            text="" if line == nowhere else line_text(*line),
            calls=row.calls,
            self_seconds=row.self_us / 1e6,
            total_seconds=row.total_us / 1e6,
            **_phases(row),
            self_share=row.self_us / everything,
        )
        for line, row in sums.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.self_seconds))


def _phases(row: _Sum) -> dict[str, float]:
    return {
        f"{phase}_seconds": row.by_phase.get(phase, 0.0) / 1e6
        for phase in ("forward", "recompute", "backward")
    }


def all_rows(
    taken: OperatorPass, limits: MachineLimits | None = None
) -> tuple[tuple[OperatorRow, ...], tuple[ModuleRow, ...], tuple[LineRow, ...]]:
    """The three tables of a pass."""
    slices = taken.slices
    return (
        operator_rows(slices, limits),
        module_rows(slices, taken.owners),
        line_rows(slices, taken.lines),
    )
