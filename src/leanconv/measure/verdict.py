"""From paired times to one of three words. Imports no torch: it is tested by the thousand.

The unit is the round: both sides once, one right after the other. Its ratio cancels whatever slows
both alike, the random order cancels drift within a round, the median ignores bursts, and resampling
whole rounds gives the interval. "Faster" and "slower" need the whole interval beyond the threshold;
all else is "inconclusive".
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import numpy as np

Verdict = Literal["faster", "slower", "inconclusive"]
MIN_ROUNDS = 10
CONFIDENCE = 0.95
RESAMPLES = 2000


def round_order(rounds: int, seed: int) -> tuple[str, ...]:
    """`AB` or `BA` for each round: random, and as many of one as of the other."""
    order = ["AB", "BA"] * (rounds // 2) + ["AB"] * (rounds % 2)
    random.Random(seed).shuffle(order)
    return tuple(order)


def ratio_interval(
    seconds_a: Sequence[float], seconds_b: Sequence[float], seed: int = 0
) -> tuple[float, float, float]:
    """Median of the rounds' B/A ratios, and the ends of its 95% bootstrap interval."""
    ratios = np.asarray(seconds_b, dtype=float) / np.asarray(seconds_a, dtype=float)
    generator = np.random.default_rng(seed)
    picks = generator.integers(0, len(ratios), size=(RESAMPLES, len(ratios)))
    medians = np.median(ratios[picks], axis=1)
    low, high = np.quantile(medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(np.median(ratios)), float(low), float(high)


def decide(low: float, high: float, threshold: float, rounds: int) -> Verdict:
    """What may be said of B against A when the ratio B/A lies between `low` and `high`."""
    if rounds < MIN_ROUNDS:
        return "inconclusive"
    if high < 1 - threshold:
        return "faster"
    if low > 1 + threshold:
        return "slower"
    return "inconclusive"
