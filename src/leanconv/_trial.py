"""Times the candidates for one direction of a call, in turns, within a budget.

Rules: nothing is recorded by autograd or by any active mode; no random state is touched; a backend
displaces ATen only where its median is faster by more than NOISE.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from leanconv.backends import Call, Direction
from leanconv.backends.separable import SeparableCall

AnyCall = Call | SeparableCall

NOISE = 0.05
_ROUNDS = (3, 25)


def trial(
    call: AnyCall, direction: Direction, candidates: Sequence[Any], budget_seconds: float
) -> dict[str, float] | None:
    """Median seconds of each candidate; None where the budget did not suffice to tell."""
    end = time.perf_counter() + budget_seconds
    with torch.no_grad(), _disable_current_modes():
        arguments = call.example(direction)
        runs = {each.name: each.plan(call, direction) for each in candidates}
        for run in runs.values():
            _seconds(run, arguments, call.device)
            if time.perf_counter() > end:
                return None
        samples: dict[str, list[float]] = {name: [] for name in runs}
        for count in range(_ROUNDS[1]):
            if time.perf_counter() > end:
                if count < _ROUNDS[0]:
                    return None
                break
            # Every other round backwards, so that no candidate always follows the same one.
            order = list(runs) if count % 2 == 0 else list(runs)[::-1]
            for name in order:
                samples[name].append(_seconds(runs[name], arguments, call.device))
    return {name: statistics.median(times) for name, times in samples.items()}


def winner(seconds: dict[str, float]) -> str:
    """The fastest, or "aten" where that is within the noise."""
    best = min(seconds, key=lambda name: seconds[name])
    return best if seconds[best] < (1 - NOISE) * seconds["aten"] else "aten"


def _seconds(run: Callable[..., object], arguments: tuple[object, ...], device: str) -> float:
    start = time.perf_counter()
    run(*arguments)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
