"""The operator table: which operators a step spends its time in, phase by phase.

Rules: an operator's self time excludes the operators it calls, so self times add up and nothing is
counted twice; total time counts a nested call of the same operator once; time inside a phase but in
no operator is Python's and the framework's, in a row of its own.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, record_function

from leanconv.measure.record import record

PHASE_PREFIX = "leanconv phase: "
OUTSIDE = "(Python, outside operators)"
BACKWARD_NODE = "autograd::engine::evaluate_function: "


@record
@dataclass(frozen=True)
class OperatorRow:
    """One operator in one phase, summed over `steps` profiled steps.

    `self_cpu_share` is this row's part of all rows' self CPU time, from 0 to 1.
    """

    name: str
    phase: str
    calls: int
    self_cpu_seconds: float
    total_cpu_seconds: float
    self_device_seconds: float
    self_cpu_share: float

    @property
    def mean_cpu_seconds(self) -> float:
        """Total time a call."""
        return self.total_cpu_seconds / max(1, self.calls)


@dataclass
class _Sum:
    calls: int = 0
    self_us: float = 0.0
    total_us: float = 0.0
    device_us: float = 0.0


def profile_operators(
    step: Callable[..., object], steps: int
) -> tuple[tuple[OperatorRow, ...], float]:
    """Run `step(mark)` under torch's profiler; rows by operator and phase, and seconds a step.

    The seconds are with the profiler running; over the unprofiled time they give its overhead.
    """
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        activities.append(ProfilerActivity.CUDA)
    with _quiet(), torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        for _ in range(steps):
            step(lambda phase: record_function(PHASE_PREFIX + phase))
    events: list[FunctionEvent] = list(profiler.events() or [])
    phase_us = sum(e.time_range.elapsed_us() for e in events if e.name.startswith(PHASE_PREFIX))
    return _rows(events), phase_us / steps / 1e6


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the profiler's library from logging to standard error, unless the user set its level."""
    name = "KINETO_LOG_LEVEL"
    if name in os.environ:
        yield
        return
    os.environ[name] = "99"
    try:
        yield
    finally:
        del os.environ[name]


def _rows(events: list[FunctionEvent]) -> tuple[OperatorRow, ...]:
    sums: dict[tuple[str, str], _Sum] = defaultdict(_Sum)
    for event in events:
        if event.device_type != DeviceType.CPU or event.is_async:
            continue
        ancestors = _ancestors(event)
        if event.name.startswith(PHASE_PREFIX):
            name, phase = OUTSIDE, event.name[len(PHASE_PREFIX) :]
        else:
            name, phase = event.name.removeprefix(BACKWARD_NODE), _phase(ancestors)
        row = sums[phase, name]
        row.self_us += max(0.0, event.self_cpu_time_total)
        row.device_us += max(0.0, float(event.self_device_time_total))
        if name == OUTSIDE:
            row.calls += 1
            row.total_us += max(0.0, event.self_cpu_time_total)
        elif all(a.name.removeprefix(BACKWARD_NODE) != name for a in ancestors):
            row.calls += 1
            row.total_us += event.cpu_time_total
    everything = sum(row.self_us for row in sums.values()) or 1.0
    rows = [
        OperatorRow(
            name=name,
            phase=phase,
            calls=row.calls,
            self_cpu_seconds=row.self_us / 1e6,
            total_cpu_seconds=row.total_us / 1e6,
            self_device_seconds=row.device_us / 1e6,
            self_cpu_share=row.self_us / everything,
        )
        for (phase, name), row in sums.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.self_cpu_seconds))


def _ancestors(event: FunctionEvent) -> list[Any]:
    found, parent = [], event.cpu_parent
    while parent is not None:
        found.append(parent)
        parent = parent.cpu_parent
    return found


def _phase(ancestors: list[Any]) -> str:
    for ancestor in ancestors:
        if ancestor.name.startswith(PHASE_PREFIX):
            return str(ancestor.name[len(PHASE_PREFIX) :])
    # A GPU's backward runs in autograd's own threads, below no phase of the main one.
    return "backward" if any("autograd::" in a.name for a in ancestors) else "other"
