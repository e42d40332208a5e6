"""The wrapper with MemCNN's arguments, contracts and state-dict keys."""

import copy

import pytest
import torch
from torch import nn

from leanconv import (
    AdditiveCoupling,
    AffineAdapterNaive,
    AffineAdapterSigmoid,
    AffineCoupling,
    InvertibleModuleWrapper,
    ReversibleBlock,
    ReversibleSequential,
)
from leanconv.measure import measure_memory
from leanconv.reversible import _engine
from reversible.nets import assert_same_gradients, function, series


class Multiply(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.7, dtype=torch.float64))

    def forward(self, x):
        return x * self.factor

    def inverse(self, y):
        return y / self.factor


FUNCTIONS = {
    "additive": lambda: AdditiveCoupling(function(2, 3)),
    "naive": lambda: AffineCoupling(function(2, 3), adapter=AffineAdapterNaive),
    "sigmoid": lambda: AffineCoupling(function(2, 3, 6), adapter=AffineAdapterSigmoid),
    "multiply": Multiply,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("keep_input", [False, True])
@pytest.mark.parametrize("keep_input_inverse", [False, True])
@pytest.mark.parametrize("disable", [False, True])
def test_every_flag_gives_the_plain_modules_step(
    name, inverse, keep_input, keep_input_inverse, disable
):
    plain = FUNCTIONS[name]().double()
    wrapped = InvertibleModuleWrapper(
        copy.deepcopy(plain),
        keep_input=keep_input,
        keep_input_inverse=keep_input_inverse,
        disable=disable,
    )
    x = series(2)
    results = []
    for model in (wrapped, plain):
        leaf = x.clone().requires_grad_()
        inner = leaf * 1
        y = model.inverse(inner) if inverse else model(inner)
        y.square().sum().backward()
        results.append((y.detach(), leaf.grad, inner.detach()))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)
    for a, b in zip(wrapped.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_and_inverse_undo_each_other(name):
    wrapped = InvertibleModuleWrapper(FUNCTIONS[name]().double()).eval()
    x = series(2)
    torch.testing.assert_close(wrapped.inverse(wrapped(x)), x, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(wrapped(wrapped.inverse(x)), x, rtol=1e-9, atol=1e-9)


def chain(depth, **options):
    return nn.Sequential(
        *(
            InvertibleModuleWrapper(AdditiveCoupling(function(2, 8)), **options)
            for _ in range(depth)
        )
    )


def test_chained_wrappers_equal_disabled_ones():
    ours, plain = chain(4).double(), chain(4, disable=True).double()
    plain.load_state_dict(ours.state_dict())
    x = series(2, channels=16)
    for model in (ours, plain):
        model(x).square().sum().backward()
    assert_same_gradients(ours, plain)


def test_chained_wrappers_hold_one_output(monkeypatch):
    def peak(depth):
        model = chain(depth)
        x = series(2, batch=4, channels=16, size=16, dtype=torch.float32)
        sample = measure_memory(lambda: model(x).sum().backward(), model=model).peak
        return sample.activations_bytes + sample.temporary_bytes

    assert peak(20) - peak(4) < 16 * 4000


def test_an_operation_between_wrappers_breaks_no_gradient():
    ours, plain = chain(2).double(), chain(2, disable=True).double()
    plain.load_state_dict(ours.state_dict())
    x = series(2, channels=16)
    for model in (ours, plain):
        y = model[0](x)
        torch.relu_(y)
        z = model[1](y) + model[1](y * 2)
        (z.square().sum() + y.sum()).backward()
    assert_same_gradients(ours, plain)


def test_one_output_feeding_two_wrappers():
    ours, plain = chain(3).double(), chain(3, disable=True).double()
    plain.load_state_dict(ours.state_dict())
    x = series(2, channels=16)
    for model in (ours, plain):
        y = model[0](x)
        (model[1](y) * model[2](y)).sum().backward()
    assert_same_gradients(ours, plain)


def test_forward_then_several_inverses_then_two_backwards():
    ours, plain = chain(3).double(), chain(3, disable=True).double()
    plain.load_state_dict(ours.state_dict())
    x = series(2, channels=16)

    def inverse(model, y):
        for block in reversed(model):
            y = block.inverse(y)
        return y

    for model in (ours, plain):
        y = model(x)
        first, second = inverse(model, y), inverse(model, y)
        first.square().sum().backward(retain_graph=True)
        second.sum().backward()
    assert_same_gradients(ours, plain, 1e-8)


def test_a_held_input_is_not_inverted(monkeypatch):
    wrapped = InvertibleModuleWrapper(Multiply(), keep_input=True)
    wrapped._fn.inverse = lambda y: pytest.fail("inverted")
    x = series(2).requires_grad_()
    wrapped(x).square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * x * 1.7**2)


def test_a_module_that_is_not_invertible_works_when_its_input_is_held():
    class Square(nn.Module):
        def forward(self, x):
            return x * x

        def inverse(self, y):
            raise NotImplementedError

    x = series(2).requires_grad_()
    InvertibleModuleWrapper(Square(), keep_input=True)(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x)


def test_memory_is_saved_when_the_inverse_is_trained():
    def peak(depth):
        stack = ReversibleSequential(*(AdditiveCoupling(function(2, 8)) for _ in range(depth)))
        x = series(2, batch=4, channels=16, size=16, dtype=torch.float32)
        sample = measure_memory(lambda: stack.inverse(x).sum().backward(), model=stack).peak
        return sample.activations_bytes + sample.temporary_bytes

    assert peak(20) - peak(4) < 16 * 4000


def test_split_and_join_with_several_tensors():
    class Split(nn.Module):
        def forward(self, x):
            return x[:, :2], x[:, 2:]

        def inverse(self, a, b):
            return torch.cat([a, b], 1)

    class Join(nn.Module):
        def forward(self, a, b):
            return torch.cat([a, b], 1)

        def inverse(self, x):
            return x[:, :2], x[:, 2:]

    conv_a, conv_b = nn.Conv2d(2, 2, 3).double(), nn.Conv2d(1, 1, 3).double()
    results = []
    for disable in (False, True):
        x = torch.ones(1, 3, 8, 8, dtype=torch.float64, requires_grad=True)
        split = InvertibleModuleWrapper(Split(), disable=disable)
        join = InvertibleModuleWrapper(Join(), disable=disable)
        a, b = split(x)
        join(conv_a(a), conv_b(b)).square().sum().backward()
        results.append(x.grad)
    torch.testing.assert_close(*results)


def test_the_callers_tensors_are_left_alone():
    wrapped = InvertibleModuleWrapper(AdditiveCoupling(function(2, 3))).double()
    x = series(2).requires_grad_()
    inner = x * 1
    before = inner.detach().clone()
    y = wrapped(inner)
    assert inner.untyped_storage().nbytes() == before.untyped_storage().nbytes()
    y.sum().backward()
    assert torch.equal(inner.detach(), before)
    assert inner.is_leaf is False
    with pytest.warns(UserWarning, match="not a leaf"):
        assert inner.grad is None


def test_memcnn_state_dicts_load():
    fm = function(2, 3)
    keys = {f"_fn.{part}.{name}" for part in ("Fm", "Gm") for name in fm.state_dict()}
    wrapped = InvertibleModuleWrapper(AdditiveCoupling(fm))
    assert set(wrapped.state_dict()) == keys
    adapted = InvertibleModuleWrapper(AffineCoupling(function(2, 3), adapter=AffineAdapterNaive))
    assert all(key.startswith(("_fn.Fm.f.", "_fn.Gm.f.")) for key in adapted.state_dict())
    state = {key: torch.full_like(value, 2) for key, value in wrapped.state_dict().items()}
    wrapped.load_state_dict(state)
    assert wrapped._fn.Gm[1 + 1].weight.eq(2).all()


def test_the_older_name_warns_and_works():
    with pytest.warns(DeprecationWarning, match="InvertibleModuleWrapper"):
        block = ReversibleBlock(function(2, 3), coupling="affine", adapter=AffineAdapterNaive)
    assert isinstance(block, InvertibleModuleWrapper)
    assert isinstance(block._fn, AffineCoupling)
    with (
        pytest.warns(DeprecationWarning, match="create_coupling"),
        pytest.raises(NotImplementedError, match="`coupling`"),
    ):
        ReversibleBlock(function(2, 3), coupling="unknown")


def test_wrong_use_is_named():
    with pytest.raises(ValueError, match=r"`num_bwd_passes` \(=0\)"):
        InvertibleModuleWrapper(Multiply(), num_bwd_passes=0)
    with pytest.raises(ValueError, match="has no `inverse`"):
        InvertibleModuleWrapper(nn.Conv2d(1, 1, 1))(torch.zeros(1, 1, 2, 2))


def test_random_modules_without_a_coupling_are_refused_not_wrong():
    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x) + 10 * torch.rand_like(x)

        def inverse(self, y):
            return y - 10 * torch.rand_like(y) - torch.rand_like(y)

    x = series(2).requires_grad_()
    y = InvertibleModuleWrapper(Noisy())(torch.sinh(x))
    assert _engine._source.get(y) is not None
    y.sum().backward()  # saves nothing, so nothing is rebuilt
    wrapped = ReversibleSequential(Noisy(), Multiply())
    with pytest.raises(RuntimeError, match="draws random numbers"):
        ReversibleSequential(Multiply(), *wrapped)(x).sum().backward()
