"""Timing a callable: synchronised, warmed up until it is steady, raw samples kept.

Rules: the device is synchronised before the first and after the last call of a sample; warming up
ends when two neighbouring windows of samples agree, and the result says so where they never did;
nothing is averaged away.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from leanconv.measure.circumstances import Circumstances
from leanconv.measure.record import record

WINDOW = 4
AGREEMENT = 0.05
Progress = Callable[[float], None]


@record
@dataclass(frozen=True)
class Measurement:
    """Times of one callable. Each sample is the mean of `calls_per_sample` consecutive calls."""

    label: str
    samples_seconds: tuple[float, ...]
    calls_per_sample: int
    warmup_calls: int
    steady: bool
    circumstances: Circumstances

    @property
    def median_seconds(self) -> float:
        """The median sample."""
        return statistics.median(self.samples_seconds)

    @property
    def quartiles_seconds(self) -> tuple[float, float]:
        """The first and third quartile of the samples."""
        if len(self.samples_seconds) < 2:
            return self.samples_seconds[0], self.samples_seconds[0]
        low, _, high = statistics.quantiles(self.samples_seconds, n=4, method="inclusive")
        return low, high


def synchronize(device: torch.device | str | None = None) -> None:
    """Wait for everything queued on `device`; on a CPU nothing is ever queued.

    With no device named, waits for the current GPU if one is in use.
    """
    kind = torch.device(device).type if device is not None else "cuda"
    if kind == "cuda" and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize(None if device is None else device)


def time_calls(
    call: Callable[[], object], calls: int, device: torch.device | str | None = None
) -> float:
    """Mean seconds of one of `calls` consecutive calls, synchronised before and after."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(device)
    return (time.perf_counter() - start) / calls


@dataclass(frozen=True)
class WarmUp:
    """How warming up went; `seconds_per_call` is the median of its last window."""

    calls: int
    steady: bool
    seconds_per_call: float


def warm_up(
    call: Callable[[], object],
    *,
    max_seconds: float = 3.0,
    device: torch.device | str | None = None,
) -> WarmUp:
    """Call until two neighbouring windows of four calls agree within 5%, or the time is up.

    At least four calls are made; if they take longer than `max_seconds`, windows of two serve.
    """
    times: list[float] = []
    end = time.perf_counter() + max_seconds
    while True:
        times.append(time_calls(call, 1, device))
        if len(times) >= 2 * WINDOW:
            early = statistics.median(times[-2 * WINDOW : -WINDOW])
            late = statistics.median(times[-WINDOW:])
            if abs(early - late) <= AGREEMENT * late:
                return WarmUp(len(times), True, late)
        if time.perf_counter() >= end and len(times) >= WINDOW:
            # Slow calls: what there was time for, its earlier half against its later.
            half = min(len(times) // 2, WINDOW)
            early = statistics.median(times[-2 * half : -half])
            late = statistics.median(times[-half:])
            return WarmUp(len(times), abs(early - late) <= AGREEMENT * late, late)


def calls_per_sample(seconds_per_call: float, min_sample_seconds: float) -> int:
    """How many calls make a sample long enough for the clock and the interpreter not to matter."""
    return max(1, math.ceil(min_sample_seconds / max(seconds_per_call, 1e-9)))


def measure(
    call: Callable[[], object],
    *,
    label: str = "",
    seconds: float = 2.0,
    samples: int | None = None,
    min_sample_seconds: float = 1e-3,
    warmup_seconds: float = 3.0,
    device: torch.device | str | None = None,
    on_progress: Progress | None = None,
) -> Measurement:
    """Time `call`, after warming it up.

    Args:
        call: what to time; takes no arguments, its result is dropped.
        label: a name to carry.
        seconds: how long to sample; at least five samples are taken whatever they last.
        samples: how many samples instead.
        min_sample_seconds: shorter calls are timed several at a time.
        warmup_seconds: the longest time to spend warming up.
        device: which device to synchronise; by default the current GPU if one is in use.
        on_progress: called with the finished share, 0 to 1.

    Raises:
        ValueError: if `samples` is not positive.

    Example:
        >>> from leanconv.measure import measure
        >>> result = measure(lambda: sum(range(1000)), samples=10)
        >>> len(result.samples_seconds)
        10
    """
    if samples is not None and samples < 1:
        raise ValueError(f"`samples` (={samples}) must be at least 1")
    warm = warm_up(call, max_seconds=warmup_seconds, device=device)
    calls = calls_per_sample(warm.seconds_per_call, min_sample_seconds)
    count = samples or max(5, round(seconds / (calls * warm.seconds_per_call)))
    taken: list[float] = []
    for index in range(count):
        taken.append(time_calls(call, calls, device))
        if on_progress:
            on_progress((index + 1) / count)
    return Measurement(label, tuple(taken), calls, warm.calls, warm.steady, Circumstances.now())
