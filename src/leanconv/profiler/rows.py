"""The records of a profile's tables. Imports no torch.

Times are CPU seconds summed over the profiled steps; a row's `self` time excludes what it calls, so
the self times of a table add up to the profiled time, and shares to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from leanconv.measure.record import record

OUTSIDE = "(Python, outside operators)"
NO_MODULE = "(no module)"
NO_LINE = "(no source line)"


@record
@dataclass(frozen=True)
class OperatorRow:
    """One operator in one phase, summed over the profiled steps.

    `self_cpu_share` is this row's part of all rows' self CPU time, from 0 to 1. `flops` and `bytes`
    are what the calls ask for, with what they call, as `total_cpu_seconds` is; 0 where there is no
    formula. `limit_share` is the time that they would take at the machine's limits over the time
    that they took: above 1 where tensors stayed in a cache, 0 where the limits are not known.
    """

    name: str
    phase: str
    calls: int
    self_cpu_seconds: float
    total_cpu_seconds: float
    self_device_seconds: float
    total_device_seconds: float
    self_cpu_share: float
    flops: int
    bytes: int
    limit_share: float

    @property
    def mean_cpu_seconds(self) -> float:
        """Total time a call."""
        return self.total_cpu_seconds / max(1, self.calls)


@record
@dataclass(frozen=True)
class ModuleRow:
    """One module: its own time, and with all modules below it by phase.

    A module's backward is the time of the nodes that its forward made. Time that is no module's
    stands in rows whose path is in brackets: of phases without modules, and `(no module)`.
    """

    path: str
    kind: str
    calls: int
    self_seconds: float
    total_seconds: float
    forward_seconds: float
    recompute_seconds: float
    backward_seconds: float
    self_share: float


@record
@dataclass(frozen=True)
class LineRow:
    """One line of source that called operators; its backward is that of the nodes it made.

    `total_seconds` counts what lines it called as well, `self_seconds` only what it called itself.
    """

    source: str
    text: str
    calls: int
    self_seconds: float
    total_seconds: float
    forward_seconds: float
    recompute_seconds: float
    backward_seconds: float
    self_share: float
