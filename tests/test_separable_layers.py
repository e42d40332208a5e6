from __future__ import annotations

import copy
import pickle
from collections import OrderedDict

import pytest
import torch
from torch import nn

import leanconv
from leanconv import AdditiveCoupling, ReversibleSequential

LAYER = {1: leanconv.SeparableConv1d, 2: leanconv.SeparableConv2d, 3: leanconv.SeparableConv3d}
CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
ACTIVATION = {"relu": nn.ReLU, "silu": nn.SiLU, None: nn.Identity}


def pair(dims, norm=True, activation="relu", bias=True, **options):
    """A layer and torch's modules in a row with the same parameters, both in float64."""
    torch.manual_seed(0)
    layer = LAYER[dims](
        3, 5, 3, depth_multiplier=2, norm="batch" if norm else None, activation=activation,
        bias=bias, **options,
    ).double()  # fmt: skip
    first = CONV[dims](3, 6, 3, groups=3, bias=bias, **options)
    parts = OrderedDict(depthwise=first)
    if norm:
        with torch.no_grad():
            layer.norm.weight.uniform_(0.5, 2)
            layer.norm.bias.uniform_(-1, 1)
        parts["norm"] = NORM[dims](6)
    parts["activation"] = ACTIVATION[activation]()
    parts["pointwise"] = CONV[dims](6, 5, 1, bias=bias)
    twin = nn.Sequential(parts).double()
    twin.load_state_dict(layer.state_dict())
    return layer, twin


def assert_same_step(layer, twin, x, atol=1e-10):
    results = []
    for module in (layer, twin):
        own = x.clone().requires_grad_()
        module.zero_grad()
        output = module(own)
        output.square().sum().backward()
        results.append((output, own.grad, dict(module.named_parameters()), module.state_dict()))
    (ours, our_input, our_parameters, our_state), (right, input, parameters, state) = results
    torch.testing.assert_close(ours, right, rtol=1e-9, atol=atol)
    torch.testing.assert_close(our_input, input, rtol=1e-8, atol=atol)
    for name, parameter in parameters.items():
        torch.testing.assert_close(our_parameters[name].grad, parameter.grad, rtol=1e-8, atol=1e-9)
    for name, value in state.items():
        torch.testing.assert_close(our_state[name], value, rtol=1e-9, atol=atol)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2}])
def test_a_layer_equals_its_halves_in_a_row(dims, norm, bias, options):
    layer, twin = pair(dims, norm, bias=bias, **options)
    x = torch.randn(4, 3, *[8] * dims, dtype=torch.float64)
    for _ in range(2):
        assert_same_step(layer, twin, x)
    layer.eval()
    twin.eval()
    assert_same_step(layer, twin, x)


@pytest.mark.parametrize("padding_mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("norm", [False, True])
def test_padding_modes(padding_mode, norm):
    layer, twin = pair(2, norm, padding=1, padding_mode=padding_mode)
    assert_same_step(layer, twin, torch.randn(2, 3, 8, 9, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
def test_same_padding_of_an_even_kernel_under_a_norm():
    layer = LAYER[2](3, 5, 4, padding="same", norm="batch").double()
    twin = nn.Sequential(
        OrderedDict(
            depthwise=nn.Conv2d(3, 3, 4, padding="same", groups=3),
            norm=nn.BatchNorm2d(3),
            pointwise=nn.Conv2d(3, 5, 1),
        )
    ).double()
    twin.load_state_dict(layer.state_dict())
    assert_same_step(layer, twin, torch.randn(2, 3, 7, 6, dtype=torch.float64))


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(3, affine=False),
        nn.BatchNorm2d(3, track_running_stats=False),
        nn.BatchNorm2d(3, momentum=None),
        nn.BatchNorm2d(3, momentum=0.3, eps=0.1),
    ],
)
def test_norms_of_every_kind(norm):
    layer = LAYER[2](3, 5, 3, norm=copy.deepcopy(norm), activation="silu").double()
    twin = nn.Sequential(
        OrderedDict(
            depthwise=copy.deepcopy(layer.depthwise),
            norm=copy.deepcopy(layer.norm),
            activation=nn.SiLU(),
            pointwise=copy.deepcopy(layer.pointwise),
        )
    )
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    for _ in range(3):
        assert_same_step(layer, twin, x)
    layer.eval()
    twin.eval()
    assert_same_step(layer, twin, x)


def test_a_norm_of_another_kind_sees_the_intermediate_itself():
    class Doubled(nn.BatchNorm2d):
        def forward(self, input):
            return super().forward(input) * 2

    layer = LAYER[2](3, 5, 3, norm=Doubled(3))
    x = torch.randn(2, 3, 8, 8)
    layer.eval()
    found = layer(x)
    twin = LAYER[2](3, 5, 3, norm="batch")
    twin.load_state_dict(layer.state_dict())
    twin.eval()
    bias = layer.pointwise.bias.view(-1, 1, 1)
    torch.testing.assert_close(found - bias, 2 * (twin(x) - bias), rtol=1e-4, atol=1e-4)


def test_one_value_a_channel_is_refused_in_training_as_by_torch():
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        LAYER[2](3, 5, 3, norm="batch")(torch.ones(1, 3, 3, 3))


def test_statistics_of_many_chunks_are_those_of_all(monkeypatch):
    from leanconv import _statistics

    monkeypatch.setattr(_statistics, "_CHUNK_ELEMENTS", 200)
    layer, twin = pair(2, padding=1)
    assert_same_step(layer, twin, 100 + torch.randn(7, 3, 6, 6, dtype=torch.float64), atol=1e-7)


def test_second_derivatives_go_through_the_norm():
    layer, _ = pair(1, activation="silu", padding=1)
    layer.norm.track_running_stats = False
    layer.norm.running_mean = layer.norm.running_var = None
    x = torch.randn(3, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(layer, (x,))


def test_two_stock_layers_weights_load():
    stock = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 8, 1))
    layer = LAYER[2](4, 8, 3)
    layer.load_state_dict(stock.state_dict())
    x = torch.randn(2, 4, 7, 7)
    torch.testing.assert_close(layer(x), stock(x), rtol=1e-4, atol=1e-5)
    inside = nn.Sequential(nn.ReLU(), LAYER[2](4, 8, 3))
    inside.load_state_dict({f"1.{name}": value for name, value in stock.state_dict().items()})
    torch.testing.assert_close(inside[1](x), stock(x), rtol=1e-4, atol=1e-5)


def test_from_layers_shares_the_parameters():
    first, second = nn.Conv2d(4, 8, 3, groups=4, padding=1), nn.Conv2d(8, 6, 1)
    layer = LAYER[2].from_layers(first, second)
    assert layer.depthwise is first
    assert layer.pointwise is second
    assert (layer.in_channels, layer.out_channels) == (4, 6)
    assert not any(p.is_meta for p in layer.parameters())
    x = torch.randn(2, 4, 7, 7)
    torch.testing.assert_close(layer(x), second(first(x)), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="`depthwise`"):
        LAYER[2].from_layers(second, first)
    with pytest.raises(ValueError, match="`pointwise`"):
        LAYER[2].from_layers(first, nn.Conv2d(8, 6, 3))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"depth_multiplier": 0}, r"`depth_multiplier` \(=0\)"),
        ({"activation": "tanh"}, r"`activation` \(='tanh'\)"),
        ({"norm": "layer"}, r"`norm` \(='layer'\)"),
        ({"norm": nn.BatchNorm2d(7)}, "`norm` is of 7 channels"),
    ],
)
def test_a_mistake_is_one_sentence(options, words):
    with pytest.raises(ValueError, match=words):
        LAYER[2](4, 8, 3, **options)


def test_copies_pickles_and_prints():
    layer = LAYER[2](4, 8, 3, norm="batch", activation="relu")
    x = torch.randn(2, 4, 7, 7)
    expected = layer.eval()(x)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(other(x), expected)
    assert "activation='relu'" in repr(layer)
    assert "depthwise" in repr(layer)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_inside_a_reversible_stack_statistics_and_gradients_are_right(dims):
    torch.manual_seed(0)

    def function():
        return LAYER[dims](2, 2, 3, padding=1, norm="batch", activation="relu")

    stack = ReversibleSequential(*(AdditiveCoupling(function(), function()) for _ in range(3)))
    stack = stack.double()
    twin = copy.deepcopy(stack)

    def plain(x):
        x1, x2 = x.chunk(2, 1)
        for coupling in twin:
            x1 = x1 + coupling.Fm(x2)
            x2 = x2 + coupling.Gm(x1)
        return torch.cat([x1, x2], 1)

    x = torch.randn(3, 4, *[6] * dims, dtype=torch.float64)
    grads = []
    for run in (stack, plain):
        own = x.clone().requires_grad_()
        run(own).square().sum().backward()
        grads.append(own.grad)
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-9)
    for one, other in zip(stack.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-8, atol=1e-8)
    for one, other in zip(stack.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
