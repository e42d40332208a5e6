from itertools import pairwise

import pytest
import torch
from torch import nn

from leanconv import AdditiveCoupling, AffineAdapterNaive, AffineCoupling, ReversibleSequential
from leanconv.measure import measure_memory
from leanconv.reversible.budget import Costs
from reversible.nets import DIMS, assert_same_step, function, plain_twin, series


def make(dims=2, depth=4, half=4, **options):
    return ReversibleSequential(
        *(
            AdditiveCoupling(function(dims, half, dropout=0.2))
            if i % 2
            else AffineCoupling(function(dims, half), adapter=AffineAdapterNaive)
            for i in range(depth)
        ),
        **options,
    )


def held(model, x):
    """The most that the model's step holds for its backward, the output left out."""
    sample = measure_memory(lambda: model(x).sum().backward(), model=model).peak
    return sample.activations_bytes


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("budget", [0.6, 0.8, 1.0])
def test_gradients_do_not_depend_on_the_budget(dims, budget):
    stack = ReversibleSequential(
        *(AdditiveCoupling(function(dims, 3, dropout=0.2)) for _ in range(4)), memory_budget=budget
    ).double()
    assert_same_step(stack, plain_twin(stack), series(dims))
    assert stack[0].Fm[0].num_batches_tracked == 1


def costs(stack, x):
    return Costs.count(stack.prepare((x,))[0], (x.clone().requires_grad_(),))


def test_more_budget_keeps_more_and_never_costs_time():
    points = costs(make(depth=6), series(2, channels=8, dtype=torch.float32)).points()
    seconds = [p.recompute_seconds for p in points]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] == 0
    for less, more in pairwise(points):
        assert set(less.kept) < set(more.kept)


@pytest.mark.parametrize("fraction", [0.4, 0.55, 0.7, 0.85, 1.0])
def test_the_budget_is_never_exceeded(fraction):
    x = series(2, batch=8, channels=16, size=16, dtype=torch.float32)
    stack = ReversibleSequential(
        *(AdditiveCoupling(function(2, 8)) for _ in range(6)), memory_budget=fraction
    )
    everything = costs(stack, x).peak_bytes(range(12))
    twin = plain_twin(stack)
    # Statistics of the norms count as activations of a few hundred bytes a block.
    slack = 6 * 2048
    # What the plain network holds besides: its halves' copies; ours counts the same tensors or
    # fewer.
    assert everything <= held(twin, x) * 1.05
    output_bytes = x.numel() * 4
    assert held(stack, x) - output_bytes <= fraction * everything + slack


def test_bytes_and_fractions_agree():
    x = series(2, channels=8, dtype=torch.float32)
    counted = costs(make(depth=6), x)
    everything = counted.peak_bytes(range(12))
    assert len(counted.choose(0.8)) == len(counted.choose(int(0.8 * everything)))
    assert counted.choose(1.0) == frozenset(range(12))


def test_the_dearest_bytes_are_kept_first():
    slow, fast = function(2, 4), nn.ReLU()
    stack = ReversibleSequential(
        AdditiveCoupling(fast, fast), AdditiveCoupling(slow, slow), AdditiveCoupling(fast, fast)
    )
    counted = costs(stack, series(2, batch=8, channels=8, size=16, dtype=torch.float32))
    for cost, seconds in zip(counted.steps, (1, 1, 50, 50, 1, 1), strict=True):
        cost.seconds = seconds * (cost.own_bytes + 1) * 1e-9
    assert set(counted.order()[:2]) == {2, 3}


def test_too_small_a_budget_says_how_much_is_needed():
    x = series(2, channels=8, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"`memory_budget` \(=10\) .* needs at least [\d,]+"):
        make(memory_budget=10)(x)


@pytest.mark.parametrize("budget", [0, -1, 0.0, 1.5, True, "1GB"])
def test_budgets_out_of_range_are_named(budget):
    with pytest.raises(ValueError, match="`memory_budget`"):
        make(memory_budget=budget)


def test_a_plan_shows_the_curve_and_changes_nothing():
    stack = make(depth=4)
    x = series(2, channels=8, size=8, dtype=torch.float32)
    state = {k: v.clone() for k, v in stack.state_dict().items()}
    before = torch.get_rng_state()
    plan = stack.plan(x, rounds=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(v, state[k]) for k, v in stack.state_dict().items())
    assert all(p.grad is None for p in stack.parameters())
    assert len(plan.points) == 9
    assert plan.at(1.0) is plan.points[-1]
    assert plan.step_seconds(plan.points[0]) >= plan.step_seconds(plan.points[-1]) > 0
    assert "8 of 8" in str(plan)
    with pytest.raises(ValueError, match="`budget`"):
        plan.at(10)


def test_a_budget_is_planned_once_a_shape(monkeypatch):
    counted = []
    count = Costs.count
    monkeypatch.setattr(Costs, "count", lambda *a: (counted.append(1), count(*a))[1])
    stack = make(memory_budget=0.9)
    for size in (6, 6, 8, 6):
        stack(series(2, channels=8, size=size, dtype=torch.float32)).sum().backward()
    assert len(counted) == 2


@pytest.mark.parametrize("dims", DIMS)
def test_what_the_plan_says_is_needed_is_enough_for_a_stack_that_never_ran(dims):
    x = series(dims, batch=4, channels=8, dtype=torch.float32)
    couplings = [AdditiveCoupling(function(dims, 4)) for _ in range(3)]
    point = ReversibleSequential(*couplings).plan(x, rounds=1).points[0]
    stack = ReversibleSequential(*couplings, memory_budget=point.peak_bytes)
    for _ in range(2):
        stack(x).sum().backward()
