"""`record`: profile a loop of any shape, a pass for each question on steps that follow each other.

The first steps warm up; the next are timed with nothing else running; then some run under torch's
profiler, and one has its memory watched. A loop that ends early, or raises, has the passes that it
got to. Whatever happens, nothing is left behind in torch or in the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from leanconv.measure.limits import MachineLimits
from leanconv.measure.memory import MemoryPeak, watch_memory
from leanconv.profiler.operators import OperatorPass
from leanconv.profiler.result import Profile, make_profile
from leanconv.profiler.timing import Timing
from leanconv.profiler.watch import DATA, Listener, Watch

T = TypeVar("T")


@dataclass(frozen=True)
class Schedule:
    """How many steps each pass takes."""

    warmup: int = 2
    timed: int = 5
    profiled: int = 2
    memory: int = 1


class _Pass(Protocol):
    def begin(self) -> None: ...
    def end(self) -> None: ...
    def close(self) -> None: ...


class _TimingPass(Timing):
    def close(self) -> None:
        """Nothing to stop."""


class _MemoryPass:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._open = ExitStack()
        self.found: list[MemoryPeak] = []
        self._whole = False

    def begin(self) -> None:
        roots = self._recorder.roots()
        model = roots[0] if len(roots) == 1 else nn.ModuleList(roots) if roots else None
        optimizers = self._recorder.optimizers()
        device = self._recorder.device or torch.device("cpu")
        self.found = self._open.enter_context(
            watch_memory(
                model=model, optimizer=optimizers[0] if optimizers else None, device=device.type
            )
        )

    def end(self) -> None:
        self._whole = True
        self._open.close()

    def close(self) -> None:
        # A context that is left by an exception of its own would hide what the loop raised.
        self._open.close()
        if not self._whole:
            self.found = []


class Recorder:
    """Profiles the steps of a loop; made by `record`.

    Args:
        name: of the model in reports; by default the class of the first module that runs.
        model: if given, its module names are used whatever part of it runs first.
        schedule: how many steps each pass takes.
        lines: whether to attribute operators to lines of source, which costs some overhead.
        limits: of the machine, for the operators' share of them.
    """

    def __init__(
        self,
        *,
        name: str = "",
        model: nn.Module | None = None,
        schedule: Schedule | None = None,
        lines: bool = True,
        limits: MachineLimits | None = None,
    ) -> None:
        self.name = name
        self.device: torch.device | None = None
        self.stopped = ""
        self._schedule = schedule or Schedule()
        self._model = model
        self._limits = limits
        self._warming = _TimingPass()
        self._timing = _TimingPass()
        self._operators = OperatorPass(lines)
        if model is not None:
            self._operators.owners.add(model)
            self._find_device(model)
        self._memory = _MemoryPass(self)
        counts = self._schedule
        self._passes: list[tuple[Any, int]] = [
            (self._warming, counts.warmup),
            (self._timing, counts.timed),
            (self._operators, counts.profiled),
            (self._memory, counts.memory),
        ]
        self._current: Any = None
        self._left = 0
        self._watch: Watch | None = None
        self._optimizers: dict[int, torch.optim.Optimizer] = {}

    def __enter__(self) -> Recorder:
        self._next_pass()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        if kind is not None:
            self.stopped = f"{kind.__name__}: {error}".rstrip(": ")
        self._close_pass()
        self._passes.clear()

    def step(self) -> None:
        """Say that a training step has ended here, and the next begins."""
        if self._current is None:
            return
        if self._watch is not None:
            self._watch.end_step()
        self._current.end()
        self._left -= 1
        if self._left > 0:
            self._current.begin()
        else:
            self._close_pass()
            self._next_pass()

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Mark a phase by hand, where it is not recognised."""
        return nullcontext() if self._watch is None else self._watch.phase(name)

    def data(self, batches: Iterable[T]) -> Iterator[T]:
        """Iterate over `batches`, the wait for each being `data`; a DataLoader needs it not."""
        iterator = iter(batches)
        while True:
            try:
                with self.phase(DATA):
                    batch = next(iterator)
            except StopIteration:
                return
            yield batch

    @property
    def steps_left(self) -> int:
        """How many steps the passes still want."""
        return max(0, self._left) + sum(max(0, count) for _, count in self._passes)

    @property
    def finished(self) -> bool:
        """Whether every pass has had its steps."""
        return self._current is None and not self._passes

    def roots(self) -> list[nn.Module]:
        """The outermost modules that ran."""
        if self._model is not None:
            return [self._model]
        return list({**self._warming.roots, **self._timing.roots}.values())

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers that made a step."""
        return list(self._optimizers.values())

    @property
    def profile(self) -> Profile:
        """What has been measured so far.

        Raises:
            ValueError: if no step has been timed.
        """
        if not self._timing.walls:
            raise ValueError(
                "no step has been timed: the loop must call `step()` more than "
                f"{self._schedule.warmup} times while it is recorded"
            )
        roots = self.roots()
        name = self.name or (type(roots[0]).__name__ if roots else "training step")
        return make_profile(
            name=name,
            roots=roots,
            timing=self._timing,
            operators=self._operators,
            memory=self._memory.found[0] if self._memory.found else None,
            stopped=self.stopped,
            limits=self._limits,
        )

    def _find_device(self, model: nn.Module) -> None:
        tensor = next(iter([*model.parameters(), *model.buffers()]), None)
        if tensor is not None:
            self.device = tensor.device

    def _next_pass(self) -> None:
        while self._passes:
            current, self._left = self._passes.pop(0)
            if self._left > 0:
                break
        else:
            return
        for root in self.roots():
            if self.device is None:
                self._find_device(root)
        if isinstance(current, _TimingPass):
            current.device = self.device
        listener: Listener = _Deaf() if current is self._memory else current
        self._watch = Watch(listener)
        self._watch.__enter__()
        self._current = current
        current.begin()

    def _close_pass(self) -> None:
        watch, current = self._watch, self._current
        self._watch = self._current = None
        try:
            if watch is not None:
                watch.__exit__(None, None, None)
                self._optimizers.update(watch.optimizers)
        finally:
            if current is not None:
                current.close()


class _Deaf:
    """A listener for a pass that needs no phases."""

    def enter_phase(self, phase: str) -> None:
        pass

    def exit_phase(self, phase: str) -> None:
        pass

    def enter_module(self, module: nn.Module) -> None:
        pass

    def exit_module(self, module: nn.Module) -> None:
        pass


def record(
    *,
    name: str = "",
    model: nn.Module | None = None,
    schedule: Schedule | None = None,
    lines: bool = True,
    limits: MachineLimits | None = None,
) -> Recorder:
    """Profile a training loop of your own, of any shape.

    Modules, `backward`, optimizers, DataLoaders, recomputation and collectives are recognised; call
    `step()` at the end of each training step. With the default schedule ten steps suffice; further
    ones run as if nothing was there.

    Args:
        name: of the model in reports.
        model: if given, its module names are used whatever part of it runs first.
        schedule: how many steps each pass takes.
        lines: whether to attribute operators to lines of source.
        limits: of the machine (`leanconv.measure.machine_limits()`), for the operators' share.

    Example:
        >>> import torch
        >>> import leanconv
        >>> model = torch.nn.Linear(4, 2)
        >>> with leanconv.profiler.record() as r:
        ...     for _ in range(10):
        ...         model(torch.ones(3, 4)).sum().backward()
        ...         r.step()
        >>> r.profile.name
        'Linear'
    """
    return Recorder(name=name, model=model, schedule=schedule, lines=lines, limits=limits)
