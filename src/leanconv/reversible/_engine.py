"""The reversible engine: runs a chain of steps, keeps only its end, and rebuilds on demand.

Rules: the graph is the user's own; only what autograd would save is left out. When the backward
first asks a step for a tensor, the step is undone from its output, and the run of its function that
undoes it is the run that saves: each function runs twice a training step. Records refer forwards
only (to the record whose rebuilt input is their output), so there is no cycle and a dropped graph
frees all.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.profiler import record_function
from torch.utils.weak import WeakTensorKeyDictionary

from leanconv.reversible._replay import Replay
from leanconv.reversible._state import State
from leanconv.reversible._tape import Held, Kinds, Shelf, Tape

RECOMPUTE = "leanconv::recompute"


class Step(Protocol):
    """One invertible step of a chain."""

    @property
    def label(self) -> str:
        """What to call it in messages."""

    @property
    def keep_input(self) -> bool:
        """Whether its input is held, so that it need not be inverted."""

    def holding_input(self) -> Step:
        """The same step, its input held."""

    def replay(self) -> Replay:
        """A new replay of its function."""

    def run(self, state: State, record: Record | None) -> State:
        """Its output; with a record, what it would save is left out."""

    def rebuild(self, output: State | None, record: Record) -> State:
        """Its input, without a graph; what it saved goes to the record's shelf.

        The output is None where the record holds the input.
        """


class Record:
    """One run of one step, for as long as its graph lives."""

    __slots__ = (
        "__weakref__",
        "feeds",
        "held",
        "held_input",
        "inputs",
        "metas",
        "on_rebuilt",
        "replay",
        "saved",
        "shelf",
        "spy",
        "step",
        "successor",
    )

    def __init__(self, step: Step, spy: Callable[[Tensor], None] | None = None) -> None:
        self.step = step
        self.replay = step.replay()
        # What each part of the step saved; not the tapes, which refer to this record.
        self.saved: list[Kinds] = []
        # Of each input tensor: dtype and whether it required a gradient.
        self.metas: list[tuple[torch.dtype, bool]] = []
        self.shelf = Shelf()
        self.spy = spy
        # Called with the rebuilt input, where somebody watches its drift.
        self.on_rebuilt: Callable[[State], None] | None = None
        self.held: tuple[Held, int | None] | None = None
        self.held_input: tuple[Held, int | None] | None = None
        self.successor: Record | None = None
        self.inputs: State | None = None
        self.feeds = False  # whether an earlier record will ask for `inputs`

    def tape(self) -> Tape:
        """The tape of the next part of the step."""
        tape = Tape(self.fetch, len(self.saved), self.spy)
        self.saved.append(tape.kinds)
        return tape

    def hold_output(self, state: State) -> None:
        """Hold the step's output; no later record will rebuild it."""
        self.held = (Held(state.tensors), state.split_dim)

    def hold_input(self, state: State) -> None:
        """Hold the step's input, so that it need not be rebuilt."""
        self.held_input = (Held(state.tensors), state.split_dim)

    def input_held(self) -> State | None:
        """The input, where it is held."""
        return None if self.held_input is None else _restored(self.held_input)

    def fetch(self, part: int, index: int) -> Tensor:
        """A tensor that the step saved, rebuilding them all where it is not here."""
        found = self.shelf.take(part, index)
        if found is None:
            self.rebuild()
            found = self.shelf.take(part, index)
        assert found is not None, "the second run saved as many tensors as the first"
        return found

    def rebuild(self) -> None:
        """Undo the step, and shelve what it saved."""
        try:
            # Entering a label costs as much as a small operator; without a profiler nobody sees it.
            labelled: bool = torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
            with record_function(RECOMPUTE) if labelled else nullcontext():
                output = self._output() if self.held_input is None else None
                state = self.step.rebuild(output, self)
            for part, kinds in enumerate(self.saved):
                self.shelf.refuse_other_than(part, kinds, self.step.label)
            if self.on_rebuilt is not None:
                self.on_rebuilt(state)
        except BaseException:
            self.shelf.clear()
            raise
        if self.feeds:
            self.inputs = state

    def _output(self) -> State:
        """The step's output, undoing later steps where it must."""
        later: list[Record] = []
        record = self
        while True:
            if record.held is not None:
                state = _restored(record.held)
                break
            following = record.successor
            assert following is not None, "a record holds its output or has a successor"
            if following.held_input is not None:
                state = _restored(following.held_input)
                break
            if following.inputs is not None:
                state = following.inputs
                if following is self.successor:
                    # Its backward is over, or it would not be our turn; if not, it is rebuilt
                    # again.
                    following.inputs = None
                    following.shelf.clear()
                break
            later.append(following)
            record = following
        for following in reversed(later):
            state = following.step.rebuild(state, following)
            following.shelf.clear()
        return state


def _restored(held: tuple[Held, int | None]) -> State:
    tensors, split_dim = held
    return State(tensors.tensors(), split_dim)


# Which record made a tensor that a user holds: its place among the outputs, how many there are, and
# the version it had. A chain that begins with it takes over from that record.
_source: Any = WeakTensorKeyDictionary()


def run_steps(
    steps: Sequence[Step],
    inputs: tuple[Tensor, ...],
    *,
    kept: Collection[int] = (),
    watch: Callable[[int, Record, State], None] | None = None,
) -> tuple[Tensor, ...]:
    """Run a chain.

    Args:
        steps: the steps, in order.
        inputs: the chain's input tensors.
        kept: numbers of the steps that autograd may save as usual, to save their second run.
        watch: called with each recorded step's number, record and input, before it runs.

    Returns:
        The chain's output tensors.
    """
    if torch.compiler.is_compiling():
        # A clean break: the engine runs as it is, between the graphs before and after it. Imported
        # and wrapped here because that takes a second which only torch.compile's users owe.
        outputs: tuple[Tensor, ...] = torch.compiler.disable(_run_steps)(steps, inputs, kept, watch)
        return outputs
    return _run_steps(steps, inputs, kept, watch)


def _run_steps(
    steps: Sequence[Step],
    inputs: tuple[Tensor, ...],
    kept: Collection[int],
    watch: Callable[[int, Record, State], None] | None,
) -> tuple[Tensor, ...]:
    state = State(inputs)
    if not torch.is_grad_enabled():
        for step in steps:
            state = step.run(state, None)
        return state.whole()
    previous = None if not steps or 0 in kept else _maker_of(inputs)
    for number, step in enumerate(steps):
        if number in kept:
            if previous is not None:
                previous.hold_output(state)
                previous = None
            state = step.run(state, None)
            continue
        record = Record(step)
        if step.keep_input:
            record.hold_input(state)
        if watch is not None:
            watch(number, record, state)
        state = step.run(state, record)
        if previous is not None:
            previous.successor = record
            previous.held = None
            record.feeds = True
        previous = record
    outputs = state.whole()
    if previous is None or not any(t.requires_grad for t in outputs):
        return outputs
    if not (previous.held or previous.successor):
        previous.hold_output(state)
        if state.split_dim is None:
            # What is held must not change when the caller writes to what it gets.
            outputs = tuple(t.clone() for t in outputs)
    for place, tensor in enumerate(outputs):
        if tensor.requires_grad:
            _source[tensor] = (weakref.ref(previous), place, len(outputs), tensor._version)
    return outputs


def _maker_of(inputs: tuple[Tensor, ...]) -> Record | None:
    """The record whose outputs these tensors are, all and unchanged; None if there is none."""
    maker: Record | None = None
    for place, tensor in enumerate(inputs):
        found = _source.get(tensor)
        if found is None or found[1:] != (place, len(inputs), tensor._version):
            return None
        record = found[0]()
        if record is None or (maker is not None and record is not maker):
            return None
        maker = record
    return maker if maker is not None and maker.successor is None else None
