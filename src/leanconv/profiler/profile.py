"""`profile`: drives a model's training step through a recorder, and leaves all as it was."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from leanconv.measure.clock import Progress, warm_up
from leanconv.measure.limits import MachineLimits
from leanconv.profiler.owners import parameters_of
from leanconv.profiler.recorder import Recorder, Schedule
from leanconv.profiler.result import Profile
from leanconv.profiler.step import Batch, Loss, TrainingStep, endless

MIN_STEPS = 5
PROFILED_STEPS = 10


def profile(
    model: nn.Module | Callable[..., object],
    data: Iterable[Batch] | None = None,
    *,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    name: str = "",
    seconds: float = 5.0,
    limits: MachineLimits | None = None,
    on_progress: Progress | None = None,
) -> Profile:
    """Profile a training step of `model` over `data`.

    The model is trained for real while it is measured, in the mode it is in, then put back:
    parameters, buffers, gradients, the optimizer's state and the random state are as before.

    Args:
        model: the module to train, or a function that makes one training step: called with a batch
            of `data`, or without arguments where there is none. What a function trains is not put
            back, except a `TrainingStep`'s.
        data: batches `(input, target)`, iterated as often as needed.
        loss: a scalar from `(output, target)`; see `TrainingStep` for the default.
        optimizer: by default SGD with momentum.
        name: of the model in reports; by default its class's.
        seconds: how long to time steps; at least 5 are timed.
        limits: of the machine (`leanconv.measure.machine_limits()`), for the operators' share.
        on_progress: called with the finished share, 0 to 1.

    Raises:
        ValueError: if `data` yields nothing.

    Example:
        >>> import torch
        >>> import leanconv
        >>> batch = torch.randn(4, 3, 32, 32), torch.zeros(4, dtype=torch.long)
        >>> result = leanconv.profile(leanconv.models.separable_cifar(), [batch], seconds=0.1)
        >>> [phase.name for phase in result.phases if any(phase.samples_seconds)]
        ['data', 'host-to-device', 'forward', 'backward', 'optimizer', 'other']
    """
    report = on_progress or (lambda share: None)
    given = model if isinstance(model, nn.Module) else None
    step = _step_of(model, data, loss, optimizer)
    device = step.device if isinstance(step, TrainingStep) else None
    if isinstance(model, TrainingStep):
        optimizer = model.optimizer
    protected = step.model if isinstance(step, TrainingStep) else given
    with _left_as_it_was(protected, optimizer):
        warm = warm_up(step, device=device)
        report(0.2)
        timed = max(MIN_STEPS, round(seconds / warm.seconds_per_call))
        schedule = Schedule(0, timed, min(timed, PROFILED_STEPS), 1)
        recorder = Recorder(name=name, model=protected, schedule=schedule, limits=limits)
        drive(step, recorder, lambda share: report(0.2 + 0.8 * share))
    result = recorder.profile
    shape = step.input_shape if isinstance(step, TrainingStep) else ()
    return dataclasses.replace(result, input_shape=shape, steady=warm.steady)


def drive(
    step: Callable[..., object], recorder: Recorder, on_progress: Callable[[float], None]
) -> None:
    """Run the steps that a recorder asks for."""
    count = recorder.steps_left
    with recorder:
        for index in range(count):
            if isinstance(step, TrainingStep):
                step(recorder.phase)
            else:
                step()
            recorder.step()
            on_progress((index + 1) / count)


def _step_of(
    model: Any,
    data: Iterable[Any] | None,
    loss: Loss | None,
    optimizer: torch.optim.Optimizer | None,
) -> Any:
    if isinstance(model, nn.Module):
        if data is None:
            raise ValueError("a model is profiled on `data`: an iterable of (input, target)")
        return TrainingStep(model, data, loss=loss, optimizer=optimizer)
    if not callable(model):
        raise TypeError(f"cannot profile a {type(model).__name__}: pass a module or a function")
    if data is None:
        return model
    batches = endless(data)
    return lambda: model(next(batches))


@contextmanager
def _left_as_it_was(
    model: nn.Module | None, optimizer: torch.optim.Optimizer | None
) -> Iterator[None]:
    """Give back the model, the optimizer and the random state as they were, whatever happens."""
    tensors = parameters_of(model)
    modes = [] if model is None else [(module, module.training) for module in model.modules()]
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
        for module, training in modes:
            module.training = training
