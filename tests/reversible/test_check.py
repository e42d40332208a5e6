import pytest
import torch
from torch import nn

from leanconv import (
    AdditiveCoupling,
    Invertible,
    InvertibleModuleWrapper,
    ReversibleSequential,
    is_invertible_module,
    reconstruction_error,
)
from reversible.nets import function, series


def test_invertible_modules_are_told_from_others():
    assert is_invertible_module(AdditiveCoupling(function(2, 2)).eval(), (1, 4, 6, 6), atol=1e-5)
    assert not is_invertible_module(nn.Conv2d(4, 4, 1), (1, 4, 6, 6))
    assert not is_invertible_module(Invertible(lambda x: 4 * x, lambda y: 8 * y), (3, 3))


def test_a_wrapper_is_looked_into():
    coupling = AdditiveCoupling(function(2, 2)).eval()
    assert is_invertible_module(InvertibleModuleWrapper(coupling), (1, 4, 6, 6), atol=1e-5)
    assert not is_invertible_module(
        InvertibleModuleWrapper(Invertible(lambda x: 4 * x, lambda y: 8 * y)), (3, 3)
    )


@pytest.mark.parametrize("seed", [1, 42, 900000])
def test_any_seed_serves_and_the_global_generator_is_left(seed):
    before = torch.get_rng_state()
    assert is_invertible_module(
        Invertible(lambda x: 3 * x, lambda y: y / 3), (1,), random_seed=seed
    )
    assert torch.equal(torch.get_rng_state(), before)


def test_several_inputs():
    swap = Invertible(lambda a, b: (b * 2, a * 1), lambda a, b: (b * 1, a / 2))
    assert is_invertible_module(swap, ((2, 3), (2, 3)))


def test_shared_tensors_warn():
    with pytest.warns(UserWarning, match="returns a tensor that it was given"):
        assert is_invertible_module(Invertible(lambda x: x, lambda y: y), (2, 3))

    def twice(x):
        y = x * 2
        return y, y

    with pytest.warns(UserWarning, match="are the same tensor"):
        assert is_invertible_module(Invertible(twice, lambda a, b: a / 2), (2, 3))


def test_zeros_warn():
    with pytest.warns(UserWarning, match="outputs are all zeros"):
        is_invertible_module(Invertible(lambda x: x * 0, lambda y: y), (2, 3))


@pytest.mark.parametrize(
    "shape", ["string", (2.3, 1.4), None, True, ((1, 3), 12.4), ((1, 3), False)]
)
def test_what_is_no_shape_is_an_error(shape):
    with pytest.raises(ValueError, match="`test_input_shape`"):
        is_invertible_module(Invertible(lambda x: x * 1, lambda y: y * 1), shape)


def lossy(label_scale):
    return Invertible(lambda x: x * 1.0, lambda y: y * label_scale)


def test_the_reconstruction_error_names_the_block():
    stack = ReversibleSequential(lossy(1.0), lossy(1.01), lossy(1.0))
    errors = reconstruction_error(stack, series(2))
    assert [e.label for e in errors] == ["block 2", "block 1", "block 0"]
    assert errors[0].error == 0.0
    assert errors[1].error == pytest.approx(0.01)
    assert errors[2].error == pytest.approx(0.01)


def test_measuring_the_error_changes_nothing():
    stack = ReversibleSequential(AdditiveCoupling(function(2, 3, dropout=0.3))).double()
    x = series(2)
    state = {k: v.clone() for k, v in stack.state_dict().items()}
    before = torch.get_rng_state()
    errors = reconstruction_error(stack, x)
    assert max(e.error for e in errors) < 1e-12
    assert torch.equal(torch.get_rng_state(), before)
    for key, value in stack.state_dict().items():
        assert torch.equal(value, state[key])


def test_the_drift_watch_warns_every_so_many_runs():
    def block():
        return Invertible(lambda x: torch.sinh(x), lambda y: torch.asinh(y) * 1.01)

    stack = ReversibleSequential(block(), block()).watch_drift(every=2, tolerance=1e-3)
    x = series(2).requires_grad_()
    with pytest.warns(UserWarning, match=r"rebuilt input of block [01] differs .* 1\.[03]e-02"):
        stack(x).sum().backward()
    stack(x).sum().backward()  # not looked at: warnings are errors here
    with pytest.warns(UserWarning, match="rebuilt input"):
        stack(x).sum().backward()


def test_a_good_stack_is_silent_under_watch():
    stack = ReversibleSequential(*(AdditiveCoupling(function(2, 3)) for _ in range(3)))
    stack.watch_drift(every=1)
    for _ in range(3):
        stack(series(2, dtype=torch.float32)).sum().backward()


@pytest.mark.parametrize(("arguments", "name"), [((0, 1e-3), "every"), ((1, 0.0), "tolerance")])
def test_watch_arguments_are_named(arguments, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        ReversibleSequential().watch_drift(*arguments)
