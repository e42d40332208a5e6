"""Is B really faster than A? Rounds in random AB/BA order, and a verdict of one word."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from leanconv.measure.circumstances import Circumstances
from leanconv.measure.clock import Progress, calls_per_sample, time_calls, warm_up
from leanconv.measure.record import record
from leanconv.measure.verdict import MIN_ROUNDS, Verdict, decide, ratio_interval, round_order


@record
@dataclass(frozen=True)
class Comparison:
    """Two callables timed in turn. `ratio` is B's time over A's, the median over rounds.

    `ratio_low` and `ratio_high` are the ends of its 95% bootstrap interval over rounds; `verdict`
    speaks of B: faster, slower or inconclusive, against `threshold`, the relative difference below
    which nothing is claimed. `self_check` is the same procedure run on A against A: a verdict other
    than inconclusive there means that this machine is too unsteady to believe the other one.
    """

    label_a: str
    label_b: str
    seconds_a: tuple[float, ...]
    seconds_b: tuple[float, ...]
    order: tuple[str, ...]
    ratio: float
    ratio_low: float
    ratio_high: float
    threshold: float
    verdict: Verdict
    steady: bool
    self_check: Comparison | None
    circumstances: Circumstances

    @property
    def median_seconds_a(self) -> float:
        """The median time of A."""
        return statistics.median(self.seconds_a)

    @property
    def median_seconds_b(self) -> float:
        """The median time of B."""
        return statistics.median(self.seconds_b)

    def sentence(self) -> str:
        """The verdict in words, with its interval."""
        if self.verdict == "inconclusive":
            claim = f"{self.label_b} against {self.label_a}: inconclusive"
        else:
            times = 1 / self.ratio if self.verdict == "faster" else self.ratio
            claim = f"{self.label_b} is {times:.2f}x {self.verdict} than {self.label_a}"
        return (
            f"{claim} (time ratio {self.ratio:.3f}, 95% interval {self.ratio_low:.3f} to "
            f"{self.ratio_high:.3f}, {len(self.seconds_a)} rounds, threshold {self.threshold:.0%})"
        )


def compare(
    a: Callable[[], object],
    b: Callable[[], object],
    *,
    labels: tuple[str, str] = ("A", "B"),
    seconds: float = 10.0,
    rounds: int | None = None,
    threshold: float = 0.02,
    min_sample_seconds: float = 5e-3,
    self_check: bool = False,
    seed: int = 0,
    device: torch.device | str | None = None,
    on_progress: Progress | None = None,
) -> Comparison:
    """Time `a` and `b` in alternation and say whether `b` is faster, slower, or neither for sure.

    Args:
        a: the side compared against; takes no arguments.
        b: the side the verdict speaks of.
        labels: names of the two sides.
        seconds: the time to spend on rounds, which fixes their number beforehand (10 to 200): a
            run that stops when it likes what it sees is wrong more often than it says.
        rounds: the number of rounds instead.
        threshold: relative difference below which nothing is claimed.
        min_sample_seconds: shorter calls are timed several at a time.
        self_check: run A against A as well, for as long again.
        seed: of the random order and the bootstrap.
        device: which device to synchronise; by default the current GPU if one is in use.
        on_progress: called with the finished share, 0 to 1.

    Raises:
        ValueError: if `rounds` is below 10 or `threshold` is not between 0 and 1.

    Example:
        >>> from leanconv import compare
        >>> result = compare(lambda: sum(range(9000)), lambda: sum(range(900)), rounds=20)
        >>> result.verdict
        'faster'
    """
    if rounds is not None and rounds < MIN_ROUNDS:
        raise ValueError(f"`rounds` (={rounds}) must be at least {MIN_ROUNDS}")
    if not 0 <= threshold < 1:
        raise ValueError(f"`threshold` (={threshold}) must be at least 0 and below 1")
    sides = {"A": a, "B": b}
    warm = {name: warm_up(side, device=device) for name, side in sides.items()}
    calls = {
        name: calls_per_sample(w.seconds_per_call, min_sample_seconds) for name, w in warm.items()
    }
    if rounds is None:
        round_seconds = sum(calls[name] * warm[name].seconds_per_call for name in sides)
        rounds = min(200, max(MIN_ROUNDS, round(seconds / round_seconds)))
    order = round_order(rounds, seed)
    total = rounds * (2 if self_check else 1)
    times: dict[str, list[float]] = {"A": [], "B": []}
    for index, pair in enumerate(order):
        for name in pair:
            times[name].append(time_calls(sides[name], calls[name], device))
        if on_progress:
            on_progress((index + 1) / total)
    check = None
    if self_check:
        check = compare(
            a,
            a,
            labels=(labels[0], f"{labels[0]} again"),
            rounds=rounds,
            threshold=threshold,
            min_sample_seconds=min_sample_seconds,
            seed=seed + 1,
            device=device,
            on_progress=on_progress and (lambda share: on_progress(0.5 + share / 2)),
        )
    ratio, low, high = ratio_interval(times["A"], times["B"], seed)
    return Comparison(
        label_a=labels[0],
        label_b=labels[1],
        seconds_a=tuple(times["A"]),
        seconds_b=tuple(times["B"]),
        order=order,
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        threshold=threshold,
        verdict=decide(low, high, threshold, rounds),
        steady=warm["A"].steady and warm["B"].steady,
        self_check=check,
        circumstances=Circumstances.now(),
    )
