"""Couplings against their formulas written by hand, alone and in the engine."""

import copy
import warnings

import pytest
import torch
from torch import nn

from leanconv import (
    AdditiveCoupling,
    AffineAdapterNaive,
    AffineAdapterSigmoid,
    AffineCoupling,
    ClampedAffineCoupling,
    Invertible,
    InvertibleModuleWrapper,
    MomentumCoupling,
    ReversibleSequential,
    create_coupling,
)
from reversible.nets import DIMS, assert_same_gradients, function, series

all_dims = pytest.mark.parametrize("dims", DIMS)


class Written(nn.Module):
    """A coupling's mathematics as a plain module."""

    def __init__(self, coupling, formula):
        super().__init__()
        self.coupling = copy.deepcopy(coupling)
        self.formula = formula

    def forward(self, x):
        return torch.cat(self.formula(self.coupling, *x.chunk(2, 1)), 1)


def additive(c, x1, x2):
    y1 = x1 + c.Fm(x2)
    return y1, x2 + c.Gm(y1)


def affine(c, x1, x2):
    s, t = c.Fm(x2)
    y1 = s * x1 + t
    s, t = c.Gm(y1)
    return y1, s * x2 + t


def clamped(c, x1, x2):
    def parts(pair, x):
        return torch.exp(pair.clamp * torch.tanh(pair.scale(x) / pair.clamp)), pair.shift(x)

    s, t = parts(c.Fm, x2)
    y1 = s * x1 + t
    s, t = parts(c.Gm, y1)
    return y1, s * x2 + t


def momentum(c, x, v):
    v = c.gamma * v + (1 - c.gamma) * c.f(x)
    return x + v, v


def make(name, dims):
    def f(out=3):
        return function(dims, 3, out, dropout=0.2)

    return {
        "additive": (lambda: AdditiveCoupling(f(), f()), additive),
        "naive": (lambda: AffineCoupling(f(), f(), AffineAdapterNaive), affine),
        "sigmoid": (lambda: AffineCoupling(f(6), f(6), AffineAdapterSigmoid), affine),
        "clamped": (lambda: ClampedAffineCoupling(f(), f(), f(), f(), clamp=1.5), clamped),
        "momentum": (lambda: MomentumCoupling(f(), 0.8), momentum),
    }[name]


each_coupling = pytest.mark.parametrize(
    "name", ["additive", "naive", "sigmoid", "clamped", "momentum"]
)


@all_dims
@each_coupling
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("engine", ["alone", "stack", "wrapper"])
def test_gradients_equal_the_written_formulas(name, dims, seed, engine):
    torch.manual_seed(seed)
    build, formula = make(name, dims)
    couplings = [build().double() for _ in range(2)]
    plain = nn.Sequential(*(Written(c, formula) for c in couplings))
    if engine == "stack":
        ours = ReversibleSequential(*couplings)
    elif engine == "wrapper":
        ours = nn.Sequential(*(InvertibleModuleWrapper(c) for c in couplings))
    else:
        ours = nn.Sequential(*couplings)
    x = series(dims)
    results = []
    for model in (ours, plain):
        torch.manual_seed(seed)
        leaf = x.clone().requires_grad_()
        y = model(leaf)
        y.square().sum().backward()
        results.append((y.detach(), leaf.grad))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-9)


@all_dims
@each_coupling
def test_the_inverse_undoes_the_forward_and_has_the_written_gradient(name, dims):
    build, _ = make(name, dims)
    stack = ReversibleSequential(build(), build()).double().eval()
    x = series(dims)
    torch.testing.assert_close(stack.inverse(stack(x)), x, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(stack(stack.inverse(x)), x, rtol=1e-8, atol=1e-8)
    plain = copy.deepcopy(stack)
    stack.inverse(x).square().sum().backward()
    y = x
    for block in reversed(list(plain)):
        y = block.inverse(y)
    y.square().sum().backward()
    assert_same_gradients(stack, plain, 1e-8)


def test_a_missing_second_function_is_a_copy_of_the_first():
    coupling = AdditiveCoupling(nn.Conv1d(2, 2, 1))
    assert coupling.Gm is not coupling.Fm
    torch.testing.assert_close(coupling.Gm.weight, coupling.Fm.weight)
    assert {"Fm.weight", "Fm.bias", "Gm.weight", "Gm.bias"} == set(coupling.state_dict())


def test_adapters_say_scale_and_shift():
    f = nn.Conv1d(4, 4, 1)
    x = torch.randn(2, 4, 3)
    scale, shift = AffineAdapterNaive(f)(x)
    torch.testing.assert_close((scale, shift), (f(x).exp(), f(x)))
    scale, shift = AffineAdapterSigmoid(f)(x)
    h = f(x)
    torch.testing.assert_close((scale, shift), (torch.sigmoid(h[:, 1::2] + 2), h[:, 0::2]))
    with pytest.raises(ValueError, match="even number of channels, not 3"):
        AffineAdapterSigmoid(nn.Conv1d(4, 3, 1))(x)


def test_a_coupling_by_name():
    f = nn.Conv1d(2, 2, 1)
    assert type(create_coupling(f)) is AdditiveCoupling
    assert type(create_coupling(f, coupling="affine", adapter=AffineAdapterNaive)) is AffineCoupling
    with pytest.raises(NotImplementedError, match="'unknown'"):
        create_coupling(f, coupling="unknown")


@pytest.mark.parametrize("kind", [AdditiveCoupling, AffineCoupling])
def test_other_implementations_are_deprecated_or_refused(kind):
    with pytest.warns(DeprecationWarning, match="have no effect"):
        kind(nn.Conv1d(2, 2, 1), implementation_fwd=1)
    with pytest.raises(NotImplementedError, match=r"`implementation_bwd` \(=-2\)"):
        kind(nn.Conv1d(2, 2, 1), implementation_bwd=-2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kind(nn.Conv1d(2, 2, 1))


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: ClampedAffineCoupling(nn.Identity(), nn.Identity(), clamp=0), ValueError, "clamp"),
        (lambda: MomentumCoupling(nn.Identity(), gamma=0), ValueError, "gamma"),
        (lambda: MomentumCoupling(nn.Identity(), gamma=1.5), ValueError, "gamma"),
        (lambda: AdditiveCoupling(torch.relu), TypeError, "`Fm` must be a torch.nn.Module"),
        (
            lambda: AffineCoupling(nn.Identity())(torch.zeros(1, 4)),
            ValueError,
            "give `adapter`",
        ),
    ],
)
def test_wrong_arguments_are_named(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_any_pair_of_functions_is_a_block():
    stack = ReversibleSequential(
        Invertible(torch.sinh, torch.asinh), Invertible(lambda x: 3 * x, lambda y: y / 3)
    )
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(stack(x).sum(), x)
    torch.testing.assert_close(grad, 3 * torch.cosh(x))
    torch.testing.assert_close(stack.inverse(stack(x)), x)
