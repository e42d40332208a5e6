"""Whether a module is invertible, and how far a stack's rebuilt inputs drift from the true ones."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanconv.reversible._chain import Stepwise, steps_of
from leanconv.reversible._engine import Record
from leanconv.reversible._replay import Function
from leanconv.reversible._state import State
from leanconv.reversible.wrapper import InvertibleModuleWrapper

SAMPLES = 1024


def is_invertible_module(
    module_in: nn.Module,
    test_input_shape: Sequence[Any],
    test_input_dtype: torch.dtype = torch.float32,
    atol: float = 1e-6,
    random_seed: int = 42,
) -> bool:
    """Whether forward and inverse undo each other, both ways round, on one random input.

    Args:
        module_in: the module; an InvertibleModuleWrapper is looked into.
        test_input_shape: a shape, or a tuple of shapes for several inputs.
        test_input_dtype: the inputs' dtype.
        atol: the tolerance.
        random_seed: of the inputs. The global generator is left as it was.

    Raises:
        ValueError: if `test_input_shape` is no shape and no tuple of shapes.

    Warns UserWarning where inputs and outputs share tensors, or are all zeros: the answer may then
    say little.
    """
    shapes = _shapes(test_input_shape)
    module = module_in._fn if isinstance(module_in, InvertibleModuleWrapper) else module_in
    if not hasattr(module, "inverse"):
        return False
    undo: Function = module.inverse  # type: ignore[assignment]  # torch types it as a tensor
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(random_seed)
        inputs = tuple(torch.rand(shape, dtype=test_input_dtype) for shape in shapes)
        outputs = _tuple(module(*inputs))
        rebuilt = _tuple(undo(*outputs))
        again = _tuple(module(*rebuilt))
    for name, tensors in (("inputs", inputs), ("outputs", outputs)):
        if any(t.numel() and not t.any() for t in tensors):
            warnings.warn(f"some {name} are all zeros; try another `random_seed`", stacklevel=2)
    if not (_close(rebuilt, inputs, atol) and _close(again, outputs, atol)):
        return False
    _warn_shared(inputs, outputs, "forward")
    _warn_shared(outputs, rebuilt, "inverse")
    return True


def _shapes(value: Any) -> tuple[tuple[int, ...], ...]:
    def is_shape(item: Any) -> bool:
        return isinstance(item, (tuple, list)) and all(type(size) is int for size in item)

    if is_shape(value):
        return (tuple(value),)
    if isinstance(value, (tuple, list)) and all(is_shape(item) for item in value):
        return tuple(tuple(item) for item in value)
    raise ValueError(
        f"`test_input_shape` (={value!r}) must be a shape such as (1, 3, 8, 8), or several"
    )


def _tuple(x: Any) -> tuple[Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)


def _close(a: tuple[Tensor, ...], b: tuple[Tensor, ...], atol: float) -> bool:
    return len(a) == len(b) and all(
        x.shape == y.shape and torch.allclose(x, y, atol=atol) for x, y in zip(a, b, strict=True)
    )


def _warn_shared(inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], direction: str) -> None:
    if len({id(t) for t in outputs}) < len(outputs):
        warnings.warn(f"some outputs of {direction} are the same tensor", stacklevel=3)
    if {id(t) for t in inputs} & {id(t) for t in outputs}:
        warnings.warn(
            f"{direction} returns a tensor that it was given; there is nothing to save in that",
            stacklevel=3,
        )


@dataclass(frozen=True)
class StepError:
    """How far the rebuilt input of one step is from the true one.

    `error` is the largest absolute difference over the largest absolute value.
    """

    label: str
    error: float


def reconstruction_error(stack: nn.Module, *x: Tensor) -> tuple[StepError, ...]:
    """The drift of every step's rebuilt input, from the last step back to the first.

    Args:
        stack: a ReversibleSequential, coupling or wrapper; left as it is, buffers included.
        x: its input. All steps' inputs are kept for this, so it takes the memory of no saving.

    Returns:
        One StepError a step in the order of rebuilding; the last is the whole stack's.

    Example:
        >>> import torch
        >>> import leanconv
        >>> block = leanconv.AdditiveCoupling(torch.nn.Conv1d(2, 2, 3, padding=1))
        >>> stack = leanconv.ReversibleSequential(block)
        >>> [e.label for e in leanconv.reconstruction_error(stack, torch.randn(1, 4, 8))]
        ['block 0.Gm', 'block 0.Fm']
    """
    copied = copy.deepcopy(stack)
    if isinstance(copied, Stepwise):
        steps, x = copied.prepare(x)
    else:
        steps = steps_of(copied, type(stack).__name__)
    inputs: list[State] = []
    records: list[Record] = []
    with torch.random.fork_rng(devices=[]):
        state = State(tuple(t.detach() for t in x))
        for step in steps:
            record = Record(step)
            inputs.append(state)
            records.append(record)
            with torch.enable_grad():
                state = step.run(state, record).detached()
    errors = []
    for record, true in zip(reversed(records), reversed(inputs), strict=True):
        state = record.step.rebuild(state, record)
        record.shelf.clear()
        errors.append(StepError(record.step.label, _difference(state, true)))
    return tuple(errors)


def _difference(state: State, true: State) -> float:
    if state.split_dim is None:
        pairs = zip(state.tensors, true.whole(), strict=True)
    else:
        pairs = zip(state.tensors, true.halves(state.split_dim), strict=True)
    return max((_relative(a, b) for a, b in pairs), default=0.0)


def _relative(a: Tensor, true: Tensor) -> float:
    if not true.numel():
        return 0.0
    scale = float(true.abs().max())
    difference = float((a - true).abs().max())
    return difference / scale if scale else difference


class DriftWatch:
    """Every so many steps, compares a sample of each rebuilt input with the true one's.

    A sample is at most 1,024 elements of each half, spread over it.
    """

    def __init__(self, every: int, tolerance: float) -> None:
        if every < 1:
            raise ValueError(f"`every` (={every}) must be at least 1")
        if not tolerance > 0:
            raise ValueError(f"`tolerance` (={tolerance}) must be above 0")
        self.every = every
        self.tolerance = tolerance
        self._runs = 0

    def next_run(self) -> Callable[[int, Record, State], None] | None:
        """What is to be called before each step of this run; None where it is not looked at."""
        self._runs += 1
        return self._watch if (self._runs - 1) % self.every == 0 else None

    def _watch(self, number: int, record: Record, state: State) -> None:
        samples = [_sample(t) for t in state.detached().tensors]
        split_dim, label, tolerance = state.split_dim, record.step.label, self.tolerance

        def compare(rebuilt: State) -> None:
            with torch.no_grad():
                tensors = rebuilt.whole() if split_dim is None else rebuilt.halves(split_dim)
                error = max(
                    (_relative(_sample(t), true) for t, true in zip(tensors, samples, strict=True)),
                    default=0.0,
                )
            if not error <= tolerance:
                warnings.warn(
                    f"the rebuilt input of {label} differs from the true one by {error:.1e} of its "
                    f"largest value, more than the tolerance {tolerance:.1e}; use `exact`, a "
                    f"`memory_budget`, or float64 there",
                    stacklevel=2,
                )

        record.on_rebuilt = compare


def _sample(t: Tensor) -> Tensor:
    flat = t.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLES)][:SAMPLES].clone()
