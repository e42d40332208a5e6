"""The two kinds of step: half of a coupling, and any module with an inverse."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from leanconv.reversible._engine import Record
from leanconv.reversible._replay import Function, Replay
from leanconv.reversible._state import State

Join = Callable[[Tensor, Any], Tensor]

# Whether a module writes to its input (an in-place ReLU in front does). Learnt on its first run,
# which gets a copy; a half that is still needed must not change.
_writes_input: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()


def share_learnt(source: nn.Module, target: nn.Module) -> None:
    """What runs of a module taught of its parts holds for those of its copy."""
    for known, other in zip(source.modules(), target.modules(), strict=True):
        if known in _writes_input:
            _writes_input[other] = _writes_input[known]


@dataclass(frozen=True)
class HalfStep:
    """Joins one half with a function of the other: `combine(half, function(other))`.

    `uncombine` undoes `combine` given the same second argument, so undoing the step runs `function`
    once, on the half that the step left alone. `check` raises ValueError for an unfit update.
    """

    function: Function
    target: int
    combine: Join
    uncombine: Join
    check: Callable[[Any, Tensor, str], None]
    split_dim: int
    label: str
    keep_input: bool = False
    adds: int = 0  # 1 or -1 where `combine` is a plain sum or difference

    def inverted(self) -> HalfStep:
        """The step that undoes this one."""
        return replace(self, combine=self.uncombine, uncombine=self.combine, adds=-self.adds)

    def holding_input(self) -> HalfStep:
        """The same step, its input held."""
        return replace(self, keep_input=True)

    def replay(self) -> Replay:
        """A new replay of the function."""
        return Replay(self.function, self.label)

    def run(self, state: State, record: Record | None) -> State:
        """The halves, one of them joined with the function of the other."""
        halves = list(state.halves(self.split_dim))
        source, target = halves[1 - self.target], halves[self.target]
        if record is None:
            update = self._call(self.function, source)
            self.check(update, target, self.label)
            halves[self.target] = self.combine(target, update)
            return State(tuple(halves), self.split_dim)
        record.metas = [(half.dtype, half.requires_grad) for half in halves]
        tape = record.tape()
        replay = record.replay
        with tape.recording():
            update = self._call(lambda x: replay.run((x,), lambda: len(tape.kinds)), source)
        self.check(update, target, self.label)
        with record.tape().recording():
            halves[self.target] = self.combine(target, update)
        return State(tuple(halves), self.split_dim)

    def rebuild(self, output: State | None, record: Record) -> State:
        """The halves before; the function's run that undoes the step saves for its backward."""
        with torch.no_grad():
            held = record.input_held()
            state = output if held is None else held
            assert state is not None
            halves = list(state.halves(self.split_dim))
        source = _reborn(halves[1 - self.target], record.metas[1 - self.target])
        with torch.enable_grad(), record.shelf.collecting(0):
            update = self._call(record.replay.run_again, source)
        target = halves[self.target]
        if held is None:
            with torch.no_grad():
                target = self.uncombine(target, _plain(update))
        target = _reborn(target, record.metas[self.target])
        if record.saved[1]:
            with torch.enable_grad(), record.shelf.collecting(1):
                self.combine(target, _cut(update))
        halves[self.target] = target.detach()
        halves[1 - self.target] = source.detach()
        return State(tuple(halves), self.split_dim)

    def _call(self, function: Function, source: Tensor) -> Any:
        module = self.function if isinstance(self.function, nn.Module) else None
        known = _writes_input.get(module) if module is not None else None
        given = source if known is False else source.clone()
        if given.is_inference():
            return function(given)
        version = given._version
        result = function(given)
        wrote = given._version != version
        if wrote and known is False:
            raise RuntimeError(
                f"{self.label} changed its input in place, which it did not do before; make its "
                f"first operation out of place (such as ReLU(inplace=False))"
            )
        if module is not None and known is None:
            _writes_input[module] = wrote
        return result


@dataclass(frozen=True)
class WholeStep:
    """Any function with an inverse. Undoing it runs the inverse, then the function once more."""

    function: Function
    inverse: Function
    label: str
    keep_input: bool = False

    @property
    def owner(self) -> object:
        """The module whose forward or inverse the function is."""
        return getattr(self.function, "__self__", self.function)

    def holding_input(self) -> WholeStep:
        """The same step, its input held."""
        return replace(self, keep_input=True)

    def replay(self) -> Replay:
        """A new replay of the function."""
        return Replay(self.function, self.label)

    def run(self, state: State, record: Record | None) -> State:
        """The function of the whole tensors."""
        inputs = state.whole()
        if record is None:
            return State(self._tensors(self.function(*inputs)))
        record.metas = [(x.dtype, x.requires_grad) for x in inputs]
        tape = record.tape()
        with tape.recording():
            result = record.replay.run(inputs, lambda: len(tape.kinds))
        return State(self._tensors(result))

    def rebuild(self, output: State | None, record: Record) -> State:
        """The inverse of the whole tensors, or the held ones, and the function's second run."""
        held = record.input_held()
        with torch.no_grad():
            outputs = () if output is None else output.whole()
            if held is None:
                inputs = self._tensors(record.replay.run_again(*outputs, function=self.inverse))
            else:
                inputs = held.whole()
        if len(inputs) != len(record.metas):
            raise ValueError(
                f"the inverse of {self.label} returned {len(inputs)} tensors where its forward "
                f"takes {len(record.metas)}"
            )
        inputs = tuple(_reborn(x, meta) for x, meta in zip(inputs, record.metas, strict=True))
        if record.saved[0] or record.replay.random_states:
            with torch.enable_grad(), record.shelf.collecting(0):
                again = self._tensors(record.replay.run_again(*inputs))
            if record.replay.random_states and held is None:
                self._refuse_if_different(again, outputs)
        return State(tuple(x.detach() for x in inputs))

    def _tensors(self, result: Any) -> tuple[Tensor, ...]:
        results = result if isinstance(result, tuple) else (result,)
        for item in results:
            if not isinstance(item, Tensor):
                raise ValueError(
                    f"{self.label} must return a tensor or a tuple of tensors, not {type(item)}"
                )
        return results

    def _refuse_if_different(self, again: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
        # A module that draws random numbers in another order when inverted cannot be undone.
        for new, old in zip(again, outputs, strict=True):
            if not old.numel():
                continue
            if not torch.allclose(new, old, rtol=1e-2, atol=1e-2 * float(old.detach().abs().max())):
                raise RuntimeError(
                    f"{self.label} draws random numbers and its inverse did not undo its forward; "
                    f"use a coupling of the functions that draw them, or keep_input=True"
                )


def _reborn(x: Tensor, meta: tuple[torch.dtype, bool]) -> Tensor:
    """The tensor as a leaf, as the forward had it."""
    dtype, requires_grad = meta
    return x.detach().to(dtype).requires_grad_(requires_grad)


def _cut(x: Any) -> Any:
    """The same as leaves."""
    if isinstance(x, Tensor):
        return x.detach().requires_grad_(x.requires_grad)
    return type(x)(_cut(item) for item in x) if isinstance(x, (tuple, list)) else x


def _plain(x: Any) -> Any:
    """The same without a graph."""
    if isinstance(x, Tensor):
        return x.detach()
    return type(x)(_plain(item) for item in x) if isinstance(x, (tuple, list)) else x
