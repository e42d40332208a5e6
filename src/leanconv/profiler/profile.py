"""`profile`: three passes over a training step, one record."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from leanconv.measure.circumstances import Circumstances
from leanconv.measure.clock import Progress, synchronize, warm_up
from leanconv.measure.memory import MemoryPeak, measure_memory
from leanconv.measure.record import record
from leanconv.profiler.operators import OperatorRow, profile_operators
from leanconv.profiler.step import PHASES, Batch, Loss, TrainingStep

MIN_STEPS = 5


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
    """A training step's time by phase and operator, and its peak memory by kind.

    `step_seconds` are wall times of whole steps taken with no profiler running; `phases` are of the
    same steps, with `other` as what lies between them. `profiled_steps` steps were run under the
    operator profiler, which made them `profiler_overhead` times as long.
    """

    name: str
    input_shape: tuple[int, ...]
    parameters: int
    step_seconds: tuple[float, ...]
    phases: tuple[PhaseTime, ...]
    operators: tuple[OperatorRow, ...]
    profiled_steps: int
    profiler_overhead: float
    memory: MemoryPeak
    steady: bool
    circumstances: Circumstances

    @property
    def mean_step_seconds(self) -> float:
        """The mean wall time of a step, which the phases' means sum to."""
        return statistics.fmean(self.step_seconds)

    @property
    def median_step_seconds(self) -> float:
        """The median wall time of a step."""
        return statistics.median(self.step_seconds)


def profile(
    model: nn.Module,
    data: Iterable[Batch],
    *,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    name: str = "",
    seconds: float = 5.0,
    on_progress: Progress | None = None,
) -> Profile:
    """Profile a training step of `model` over `data`.

    The model is trained for real while it is measured, in the mode it is in, then put back:
    parameters, buffers, gradients, the optimizer's state and the random state are as before.

    Args:
        model: the module to train.
        data: batches `(input, target)`, iterated as often as needed.
        loss: a scalar from `(output, target)`; see `TrainingStep` for the default.
        optimizer: by default SGD with momentum.
        name: of the model in reports; by default its class's.
        seconds: how long to time steps; at least 5 are timed.
        on_progress: called with the finished share, 0 to 1.

    Raises:
        ValueError: if `data` yields nothing.

    Example:
        >>> import torch
        >>> import leanconv
        >>> batch = torch.randn(4, 3, 32, 32), torch.zeros(4, dtype=torch.long)
        >>> result = leanconv.profile(leanconv.models.separable_cifar(), [batch], seconds=0.1)
        >>> [phase.name for phase in result.phases]
        ['data', 'forward', 'backward', 'optimizer', 'other']
    """
    report = on_progress or (lambda share: None)
    with _left_as_it_was(model, optimizer):
        step = TrainingStep(model, data, loss=loss, optimizer=optimizer)
        warm = warm_up(step, device=step.device)
        report(0.2)
        steps = max(MIN_STEPS, round(seconds / warm.seconds_per_call))
        walls, phases = _time_phases(step, steps, lambda share: report(0.2 + 0.5 * share))
        profiled = min(steps, 10)
        step()  # the page faults of freshly grown tables are not the operators' time
        operators, profiled_seconds = profile_operators(step, profiled)
        report(0.85)
        memory = measure_memory(
            step, model=model, optimizer=step.optimizer, device=step.device.type
        )
        report(1.0)
        shape = step.input_shape
    return Profile(
        name=name or type(model).__name__,
        input_shape=shape,
        parameters=sum(p.numel() for p in model.parameters()),
        step_seconds=walls,
        phases=phases,
        operators=operators,
        profiled_steps=profiled,
        profiler_overhead=profiled_seconds / statistics.fmean(walls),
        memory=memory,
        steady=warm.steady,
        circumstances=Circumstances.now(),
    )


def _time_phases(
    step: TrainingStep, steps: int, on_progress: Callable[[float], None]
) -> tuple[tuple[float, ...], tuple[PhaseTime, ...]]:
    spans: dict[str, list[float]] = {name: [] for name in (*PHASES, "other")}

    @contextmanager
    def clocked(phase: str) -> Iterator[None]:
        synchronize(step.device)
        start = time.perf_counter()
        yield
        synchronize(step.device)
        spans[phase].append(time.perf_counter() - start)

    walls = []
    for index in range(steps):
        synchronize(step.device)
        start = time.perf_counter()
        step(clocked)
        synchronize(step.device)
        walls.append(time.perf_counter() - start)
        spans["other"].append(walls[-1] - sum(spans[phase][-1] for phase in PHASES))
        on_progress((index + 1) / steps)
    return tuple(walls), tuple(PhaseTime(name, tuple(taken)) for name, taken in spans.items())


@contextmanager
def _left_as_it_was(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
    """Give back the model, the optimizer and the random state as they were, whatever happens."""
    tensors = [*model.parameters(), *model.buffers()]
    values = [t.detach().clone() for t in tensors]
    gradients = [t.grad for t in tensors]
    optimizer_state: Any = copy.deepcopy(optimizer.state_dict()) if optimizer else None
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    # Gradients are set aside, not emptied: the user's may be in use elsewhere.
    for tensor in tensors:
        tensor.grad = None
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        for tensor, gradient in zip(tensors, gradients, strict=True):
            tensor.grad = gradient
        if optimizer is not None:
            optimizer.load_state_dict(optimizer_state)
