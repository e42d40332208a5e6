"""Which steps keep their activations under a memory budget, and what each budget costs in time.

Rules: the budget bounds the peak of what the stack holds for its backward, the rebuilding included.
Steps are kept in one fixed order, the most recompute time a byte first, as many as fit: more budget
keeps a superset, so it never costs time. Sizes are counted in a real run of the stack, by storage.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import log
from time import perf_counter

import torch
from torch import Tensor

from leanconv.reversible._engine import Record, Step
from leanconv.reversible._state import State

# Steps whose time a byte is within this factor are alike: among them the later is kept, which is
# freed before the earlier ones are rebuilt.
ALIKE = 1.25


@dataclass
class StepCost:
    """What one step saves, in bytes, and the seconds of running it again.

    `own_bytes` is what only the step needs; `entering`, `leaving` and `saved_states` are numbers of
    stream tensors, whose bytes are in the table beside.
    """

    label: str
    seconds: float = 0.0
    own_bytes: int = 0
    entering: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    saved_states: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class PlanPoint:
    """One choice: the peak bytes held, the seconds of recompute a step, and the steps kept."""

    peak_bytes: int
    recompute_seconds: float
    kept: tuple[str, ...]


class Costs:
    """The costs of a chain of steps, counted while it runs once."""

    def __init__(self) -> None:
        self.steps: list[StepCost] = []
        self.state_bytes: dict[int, int] = {}
        self._numbers: dict[int, int] = {}

    @classmethod
    def count(cls, steps: Sequence[Step], inputs: tuple[Tensor, ...]) -> Costs:
        """Run the steps twice, without keeping anything, and count in the second run.

        The first teaches which modules write to their input: until that is known a module gets a
        copy, which would be counted. Buffers and random number generators move on as in any run.
        """
        with torch.no_grad():
            state = State(inputs)
            for step in steps:
                state = step.run(state, None)
        costs = cls()
        state = State(inputs)
        with torch.enable_grad():
            for step in steps:
                state = costs._run(step, state)
        return costs

    def _run(self, step: Step, state: State) -> State:
        cost = StepCost(step.label)
        self.steps.append(cost)
        # Held until they are counted: a freed one's address would be given to the next.
        saved: list[Tensor] = []
        record = Record(step, spy=lambda tensor: saved.append(tensor.detach()))
        parameters = {
            _storage_of(t)[0]
            for module in record.replay.modules
            for t in (*module._parameters.values(), *module._buffers.values())
            if t is not None
        }
        entering = self._number(state)
        cost.entering = tuple(entering.values())
        start = _now(state)
        after = step.run(state, record)
        cost.seconds = _now(after) - start
        leaving = self._number(after, entering)
        cost.leaving = tuple(leaving.values())
        known = {**entering, **leaving}
        own: dict[int, int] = {}
        for pointer, size in map(_storage_of, saved):
            if pointer in known:
                cost.saved_states.add(known[pointer])
            elif pointer not in parameters:
                own[pointer] = size
        cost.own_bytes = sum(own.values())
        requires = [t.requires_grad for t in after.tensors]
        return State(
            tuple(
                t.detach().requires_grad_(r) for t, r in zip(after.tensors, requires, strict=True)
            ),
            after.split_dim,
        )

    def _number(self, state: State, known: dict[int, int] | None = None) -> dict[int, int]:
        """The numbers of a state's storages, by address; new ones for storages not yet known."""
        numbers: dict[int, int] = {}
        known = self._numbers if known is None else known
        for tensor in state.tensors:
            pointer, size = _storage_of(tensor)
            if pointer not in numbers:
                number = known.get(pointer, len(self.state_bytes))
                self.state_bytes.setdefault(number, size)
                numbers[pointer] = number
        self._numbers = numbers
        return numbers

    def order(self) -> list[int]:
        """The steps from the first to keep to the last."""

        def rank(number: int) -> tuple[int, int]:
            cost = self.steps[number]
            size = cost.own_bytes + sum(self.state_bytes[s] for s in cost.saved_states)
            # Of like ones the later first.
            worth = round(log(max(cost.seconds, 1e-9) / max(size, 1)) / log(ALIKE))
            return (-worth, -number)

        return sorted(range(len(self.steps)), key=rank)

    def peak_bytes(self, kept: Collection[int]) -> int:
        """The most that is held at once, from the end of the forward to that of the backward."""
        # Own bytes and states held from each step's forward to its backward.
        own = 0
        states: dict[int, int] = {}
        held: list[tuple[int, set[int]]] = []
        count = len(self.steps)
        for number, cost in enumerate(self.steps):
            needed = set(cost.saved_states) if number in kept else set()
            if number not in kept and (number + 1 == count or number + 1 in kept):
                needed |= set(cost.leaving)
            held.append((cost.own_bytes if number in kept else 0, needed))
            own += held[-1][0]
            for state in needed:
                states[state] = states.get(state, 0) + 1

        def live(extra: Collection[int] = ()) -> int:
            return own + sum(self.state_bytes[s] for s in {*states, *extra})

        peak = live()
        for number in reversed(range(count)):
            cost = self.steps[number]
            if number not in kept:
                update = max((self.state_bytes[s] for s in cost.leaving), default=0)
                peak = max(peak, cost.own_bytes + update + live((*cost.entering, *cost.leaving)))
            bytes_of_step, needed = held[number]
            own -= bytes_of_step
            for state in needed:
                states[state] -= 1
                if not states[state]:
                    del states[state]
        return peak

    def points(self) -> list[PlanPoint]:
        """The choices, from nothing kept to everything."""
        order = self.order()
        points = []
        for size in range(len(order) + 1):
            kept = set(order[:size])
            points.append(
                PlanPoint(
                    self.peak_bytes(kept),
                    sum(c.seconds for i, c in enumerate(self.steps) if i not in kept),
                    tuple(self.steps[i].label for i in sorted(kept)),
                )
            )
        return points

    def choose(self, budget: float) -> frozenset[int]:
        """The steps to keep under a budget in bytes (int) or as a fraction of keeping all (float).

        Raises:
            ValueError: if even keeping nothing takes more.
        """
        order = self.order()
        everything = self.peak_bytes(range(len(order)))
        limit = budget * everything if isinstance(budget, float) else budget
        for size in range(len(order), -1, -1):
            if self.peak_bytes(set(order[:size])) <= limit:
                return frozenset(order[:size])
        least = self.peak_bytes(())
        raise ValueError(
            f"`memory_budget` (={budget}) allows {int(limit):,} bytes, and this stack needs at "
            f"least {least:,} ({least / max(everything, 1):.3f} of the {everything:,} that keeping "
            f"everything takes)"
        )


def check_budget(budget: float | None) -> None:
    """Raise ValueError for what is neither bytes nor a fraction."""
    if budget is None:
        return
    if isinstance(budget, bool) or not isinstance(budget, (int, float)):
        raise ValueError(f"`memory_budget` (={budget!r}) must be bytes (int) or a fraction (float)")
    if isinstance(budget, float) and not 0 < budget <= 1:
        raise ValueError(f"`memory_budget` (={budget}) as a fraction must be above 0 and at most 1")
    if budget <= 0:
        raise ValueError(f"`memory_budget` (={budget}) in bytes must be above 0")


def _storage_of(tensor: Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage._cdata, storage.nbytes()


def _now(state: State) -> float:
    device = state.tensors[0].device
    if device.type not in ("cpu", "meta"):
        torch.get_device_module(device).synchronize(device)
    return perf_counter()
