"""How often the verdict is wrong, over many synthetic noisy series."""

import numpy as np
import pytest

from leanconv.measure.verdict import decide, ratio_interval, round_order

ROUNDS = 30
SERIES = 300


def noisy_pair(kind, true_ratio, generator):
    """Times of A and B as a machine with that kind of noise would give them, in measured order."""
    noise = generator.lognormal(0, 0.04, 2 * ROUNDS)
    if kind == "drift":
        noise *= np.linspace(1.0, 1.5, 2 * ROUNDS)
    elif kind == "bursts":
        for start in generator.integers(0, 2 * ROUNDS, 4):
            noise[start : start + 3] *= generator.uniform(1.5, 4.0)
    elif kind == "heavy":
        noise = generator.lognormal(0, 0.08, 2 * ROUNDS)
    a, b = np.empty(ROUNDS), np.empty(ROUNDS)
    for index, order in enumerate(round_order(ROUNDS, int(generator.integers(1 << 30)))):
        first, second = noise[2 * index], noise[2 * index + 1]
        a[index], b[index] = (first, second) if order == "AB" else (second, first)
    return a, b * true_ratio


def verdicts(kind, true_ratio):
    generator = np.random.default_rng(7)
    for seed in range(SERIES):
        a, b = noisy_pair(kind, true_ratio, generator)
        _, low, high = ratio_interval(a, b, seed)
        yield decide(low, high, 0.02, ROUNDS)


@pytest.mark.parametrize("kind", ["lognormal", "drift", "bursts", "heavy"])
def test_two_equal_sides_are_told_apart_in_at_most_one_run_of_twenty(kind):
    wrong = sum(verdict != "inconclusive" for verdict in verdicts(kind, 1.0))
    assert wrong / SERIES <= 0.05


@pytest.mark.parametrize("kind", ["lognormal", "drift", "bursts"])
@pytest.mark.parametrize(("ratio", "word"), [(0.9, "faster"), (1.1, "slower")])
def test_a_true_difference_of_a_tenth_is_found_nine_times_in_ten(kind, ratio, word):
    found = sum(verdict == word for verdict in verdicts(kind, ratio))
    assert found / SERIES >= 0.9


def test_the_order_is_random_and_balanced():
    orders = {round_order(20, seed) for seed in range(5)}
    assert len(orders) == 5
    assert all(order.count("AB") == 10 for order in orders)


def test_few_rounds_never_claim_anything():
    assert decide(0.1, 0.2, 0.02, rounds=9) == "inconclusive"
