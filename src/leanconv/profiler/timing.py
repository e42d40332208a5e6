"""The first pass: how long each phase of each step takes, with nothing else running.

The phases of a step sum to its wall time, because time passes from one to the next at each change
and what no phase claims is `other`. A GPU is synchronised at each change.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import nn

from leanconv.measure.clock import synchronize
from leanconv.profiler.watch import OTHER

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


@dataclass
class Timing:
    """A listener that keeps the time; `begin` and `end` bound a step."""

    device: torch.device | None = None
    walls: list[float] = field(default_factory=list)
    spans: list[dict[str, float]] = field(default_factory=list)
    page_faults: list[int] = field(default_factory=list)
    roots: dict[int, nn.Module] = field(default_factory=dict)
    _stack: list[str] = field(default_factory=list)
    _spent: dict[str, float] = field(default_factory=dict)
    _start: float = 0.0
    _last: float = 0.0
    _faults: int = 0
    _depth: int = 0

    def begin(self) -> None:
        """A step begins now."""
        self._stack, self._spent, self._depth = [OTHER], {}, 0
        self._faults = page_faults()
        synchronize(self.device)
        self._start = self._last = time.perf_counter()

    def end(self) -> None:
        """The step ends now."""
        self._pass_time()
        self.walls.append(self._last - self._start)
        self.spans.append(self._spent)
        self.page_faults.append(page_faults() - self._faults)

    def enter_phase(self, phase: str) -> None:
        """Time so far was the outer phase's."""
        self._pass_time()
        self._stack.append(phase)

    def exit_phase(self, phase: str) -> None:
        """Time so far was this phase's."""
        self._pass_time()
        if len(self._stack) > 1:
            self._stack.pop()

    def enter_module(self, module: nn.Module) -> None:
        """Only the outermost modules are of interest."""
        if self._depth == 0:
            self.roots[id(module)] = module
        self._depth += 1

    def exit_module(self, module: nn.Module) -> None:
        """The inverse of `enter_module`."""
        self._depth -= 1

    def _pass_time(self) -> None:
        synchronize(self.device)
        now = time.perf_counter()
        phase = self._stack[-1]
        self._spent[phase] = self._spent.get(phase, 0.0) + now - self._last
        self._last = now


def page_faults() -> int:
    """Pages the system has given this process so far without reading a disk; 0 if it cannot say."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_minflt
