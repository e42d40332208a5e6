"""The record of a profile, and its making from what the passes took."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from leanconv.measure.circumstances import Circumstances
from leanconv.measure.limits import MachineLimits
from leanconv.measure.memory import MemoryPeak
from leanconv.measure.record import record
from leanconv.profiler.operators import OperatorPass
from leanconv.profiler.rows import NO_MODULE, LineRow, ModuleRow, OperatorRow
from leanconv.profiler.tables import all_rows, step_flops
from leanconv.profiler.timing import Timing
from leanconv.profiler.watch import PHASES


@record
@dataclass(frozen=True)
class PhaseTime:
    """A phase's wall time in each timed step."""

    name: str
    samples_seconds: tuple[float, ...]

    @property
    def mean_seconds(self) -> float:
        """The mean over steps, so that phases add up to the step."""
        return statistics.fmean(self.samples_seconds)


@record
@dataclass(frozen=True)
class Profile:
    """A training step's time by phase, operator, module and line, and its peak memory by kind.

    `step_seconds` are wall times of whole steps taken with no profiler running; `phases` are of the
    same steps, with `other` as what no phase claims. `profiled_steps` steps were run under the
    operator profiler, which made them `profiler_overhead` times as long (0: there were none).
    `step_flops` are the operations that a step asks for, as far as there are formulas; a
    multiply-add is two. `stopped` says what ended the loop early, if anything did.
    """

    name: str
    input_shape: tuple[int, ...]
    parameters: int
    step_seconds: tuple[float, ...]
    phases: tuple[PhaseTime, ...]
    operators: tuple[OperatorRow, ...]
    modules: tuple[ModuleRow, ...]
    lines: tuple[LineRow, ...]
    profiled_steps: int
    profiler_overhead: float
    step_flops: int
    memory: MemoryPeak | None
    steady: bool
    stopped: str
    circumstances: Circumstances

    @property
    def mean_step_seconds(self) -> float:
        """The mean wall time of a step, which the phases' means sum to."""
        return statistics.fmean(self.step_seconds)

    @property
    def median_step_seconds(self) -> float:
        """The median wall time of a step."""
        return statistics.median(self.step_seconds)

    @property
    def unattributed_share(self) -> float:
        """The share of profiled time in forward, recompute and backward that is no module's."""
        return sum(row.self_share for row in self.modules if row.path == NO_MODULE)


def make_profile(
    *,
    name: str,
    roots: Sequence[nn.Module],
    timing: Timing,
    operators: OperatorPass,
    memory: MemoryPeak | None,
    stopped: str = "",
    limits: MachineLimits | None = None,
    input_shape: tuple[int, ...] = (),
    steady: bool = True,
) -> Profile:
    """Put together what the passes took."""
    walls = timing.walls
    operator_table, module_table, line_table = all_rows(operators, limits)
    profiled = sum(row.self_cpu_seconds for row in operator_table) / max(1, operators.steps)
    return Profile(
        name=name,
        input_shape=input_shape,
        parameters=sum(p.numel() for root in roots for p in root.parameters()),
        step_seconds=tuple(walls),
        phases=tuple(
            PhaseTime(phase, tuple(spent.get(phase, 0.0) for spent in timing.spans))
            for phase in PHASES
        ),
        operators=operator_table,
        modules=module_table,
        lines=line_table,
        profiled_steps=operators.steps,
        profiler_overhead=profiled / statistics.fmean(walls),
        step_flops=step_flops(operators),
        memory=memory,
        steady=steady,
        stopped=stopped,
        circumstances=Circumstances.now(),
    )
