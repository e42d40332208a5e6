"""Separable convolutions against torch's own two halves in float64."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st

import leanconv
from cases import CONV
from leanconv import _separable, _statistics, dispatch
from leanconv.functional import separable_conv1d, separable_conv2d, separable_conv3d
from leanconv.measure import measure_memory

SEPARABLE = {1: separable_conv1d, 2: separable_conv2d, 3: separable_conv3d}
ACTIVATION = {
    None: lambda x: x,
    "relu": F.relu,
    "relu6": F.relu6,
    "silu": F.silu,
    "gelu": F.gelu,
    "hardswish": F.hardswish,
}
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
BACKENDS = ("fused", "two_step", "native_aten", "aten")


@dataclass(frozen=True)
class Case:
    size: tuple[int, ...]
    multiplier: int
    channels_out: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    activation: str | None
    biases: tuple[bool, bool]
    dtype: torch.dtype
    channels_last: bool
    seed: int

    @property
    def dims(self):
        return len(self.kernel)

    def tensors(self):
        generator = torch.Generator().manual_seed(self.seed)

        def random(*size, scale=1.0):
            return (torch.randn(size, generator=generator) * scale).to(self.dtype)

        input = random(*self.size)
        if self.channels_last and self.dims > 1:
            layout = torch.channels_last if self.dims == 2 else torch.channels_last_3d
            input = input.contiguous(memory_format=layout)
        middle = self.size[1] * self.multiplier
        taps = torch.Size(self.kernel).numel()
        weight = random(middle, 1, *self.kernel, scale=taps**-0.5)
        pointwise = random(self.channels_out, middle, *[1] * self.dims, scale=middle**-0.5)
        bias = random(middle) if self.biases[0] else None
        pointwise_bias = random(self.channels_out) if self.biases[1] else None
        return [input, weight, pointwise, bias, pointwise_bias]


@st.composite
def cases(draw, dtypes=(torch.float32, torch.bfloat16, torch.float16)):
    dims = draw(st.sampled_from([1, 2, 2, 3]))
    largest = {1: 40, 2: 21, 3: 7}[dims]
    kernel, stride, padding, dilation, spatial = [], [], [], [], []
    for _ in range(dims):
        kernel.append(draw(st.sampled_from([1, 2, 3, 3, 5] if dims < 3 else [1, 2, 3])))
        stride.append(draw(st.sampled_from([1, 1, 1, 2, 3])))
        dilation.append(draw(st.sampled_from([1, 1, 2])))
        reach = dilation[-1] * (kernel[-1] - 1) + 1
        padding.append(draw(st.integers(0, reach)))
        least = max(1, reach - 2 * padding[-1])
        spatial.append(draw(st.integers(least, max(least, largest))))
    channels = draw(st.sampled_from([1, 2, 3, 8, 17, 32]))
    return Case(
        (draw(st.integers(1, 3)), channels, *spatial),
        draw(st.sampled_from([1, 1, 2, 3])),
        draw(st.sampled_from([1, 4, 7, 16, 33, 50])),
        *(tuple(each) for each in (kernel, stride, padding, dilation)),
        draw(st.sampled_from([None, *ACTIVATION])),
        (draw(st.booleans()), draw(st.booleans())),
        draw(st.sampled_from(dtypes)),
        draw(st.booleans()),
        draw(st.integers(0, 1000)),
    )


def reference(case, tensors):
    """The output, and a function giving its gradients, by ATen in float64."""
    wide = [None if t is None else t.detach().double().requires_grad_() for t in tensors]
    input, weight, pointwise, bias, pointwise_bias = wide
    geometry = (case.stride, case.padding, case.dilation)
    middle = CONV[case.dims](input, weight, bias, *geometry, groups=case.size[1])
    output = CONV[case.dims](ACTIVATION[case.activation](middle), pointwise, pointwise_bias)
    given = [t for t in wide if t is not None]
    return output, lambda grad: torch.autograd.grad(output, given, grad.double())


def assert_near(found, expected, tolerance):
    assert found.shape == expected.shape
    scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    difference = (found.double() - expected).abs().max().item() if expected.numel() else 0.0
    assert difference <= tolerance * scale


def check(case, backend):
    tensors = case.tensors()
    given = [t.requires_grad_() for t in tensors if t is not None]
    expected, expected_grads = reference(case, tensors)
    geometry = (case.stride, case.padding, case.dilation, case.activation)
    output = SEPARABLE[case.dims](*tensors, *geometry, backend=backend)
    assert output.dtype == case.dtype
    assert_near(output, expected, TOLERANCE[case.dtype])
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(case.dtype)
    found = torch.autograd.grad(output, given, grad)
    for each, right in zip(found, expected_grads(grad), strict=True):
        assert each.dtype == case.dtype
        # bf16 and fp16 round the gradient between the halves once more.
        assert_near(each, right, 2 * TOLERANCE[case.dtype])


FORUM = Case(
    (2, 128, 32, 32), 1, 128, (3, 3), (1, 1), (1, 1), (1, 1), None, (True, True),
    torch.float32, False, 0,
)  # fmt: skip
VOLUME = Case(
    (1, 64, 9, 14, 14), 1, 64, (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), "relu", (False, True),
    torch.float32, True, 0,
)  # fmt: skip
SERIES = Case(
    (2, 48, 3000), 2, 40, (7,), (2,), (3,), (1,), "silu", (True, False), torch.bfloat16, False, 0
)


@settings(max_examples=300, deadline=None)
@example(FORUM)
@example(VOLUME)
@example(SERIES)
@given(cases())
def test_the_fused_kernel_equals_the_two_halves(case):
    check(case, "fused")


@settings(max_examples=40, deadline=None)
@given(cases(), st.sampled_from(BACKENDS[1:]))
def test_every_other_backend_equals_the_two_halves(case, backend):
    check(case, backend)


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512", "neon"])
def test_every_instruction_set_gives_the_same(isa):
    from leanconv._native import library

    lib = library()
    if isa not in lib.leanconv_isas().decode().split():
        pytest.skip(f"this CPU has no {isa}")
    before = lib.leanconv_isa()
    lib.leanconv_set_isa(isa.encode())
    dispatch.forget()
    try:
        for case in (FORUM, VOLUME, SERIES):
            check(case, "fused")
    finally:
        lib.leanconv_set_isa(before)
        dispatch.forget()


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("activation", list(ACTIVATION))
def test_first_and_second_derivatives_are_right(dims, activation):
    torch.manual_seed(0)
    input = torch.randn(2, 2, *[4] * dims, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 1, *[3] * dims, dtype=torch.float64, requires_grad=True)
    pointwise = torch.randn(3, 4, *[1] * dims, dtype=torch.float64, requires_grad=True)
    biases = [torch.randn(n, dtype=torch.float64, requires_grad=True) for n in (4, 3)]

    def function(*tensors):
        return SEPARABLE[dims](*tensors, padding=1, activation=activation)

    assert torch.autograd.gradcheck(function, (input, weight, pointwise, *biases))
    if activation not in ("relu", "relu6", "hardswish"):
        assert torch.autograd.gradgradcheck(function, (input, weight, pointwise, *biases))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("backend", ["fused", "aten"])
def test_opcheck_passes(dims, backend):
    input = torch.randn(2, 4, *[6] * dims, requires_grad=True)
    weight = torch.randn(8, 1, *[3] * dims, requires_grad=True)
    pointwise = torch.randn(5, 8, *[1] * dims, requires_grad=True)
    biases = [torch.randn(n, requires_grad=True) for n in (8, 5)]
    rest = ([1] * dims, [1] * dims, [1] * dims, "relu", backend)
    forward = (input, weight, biases[0], pointwise, biases[1], *rest)
    torch.library.opcheck(_separable.separable_forward, forward)
    grad = torch.randn(2, 5, *[6] * dims)
    plain = [t.detach() for t in (grad, input, weight, biases[0], pointwise)]
    torch.library.opcheck(_separable.separable_backward, (*plain, [True] * 5, *rest))
    torch.library.opcheck(_statistics.depthwise_statistics, (input, weight, *rest[:3]))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_forward_allocates_its_output_and_saves_its_input_only(dims, channels_last):
    layer = getattr(leanconv, f"SeparableConv{dims}d")(16, 16, 3, padding=1, activation="relu")
    x = torch.randn(4, 16, *[{1: 4096, 2: 64, 3: 16}[dims]] * dims, requires_grad=True)
    if channels_last and dims > 1:
        layout = torch.channels_last if dims == 2 else torch.channels_last_3d
        x = x.detach().contiguous(memory_format=layout).requires_grad_()
    saved = []

    def pack(tensor):
        saved.append(tensor)
        return tensor

    with dispatch.using(backend="native"):
        layer(x)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = layer(x)
        ours = {p.untyped_storage().data_ptr() for p in (*layer.parameters(), x)}
        assert {t.untyped_storage().data_ptr() for t in saved} <= ours
        del output
        with torch.no_grad():
            events = []
            with torch.profiler.profile(profile_memory=True) as profiler:
                layer(x)
            events = profiler.profiler.kineto_results.events()
            allocated = [e.nbytes() for e in events if e.name() == "[memory]" and e.nbytes() > 0]
        assert sum(allocated) <= x.numel() * 4 + 4096
        peak = measure_memory(lambda: layer(x).sum().backward(), model=layer).peak
        assert peak.activations_bytes <= x.numel() * 4 + 4096


def test_results_are_the_same_to_the_bit_from_run_to_run():
    tensors = FORUM.tensors()
    given = [t.requires_grad_() for t in tensors if t is not None]

    def run():
        output = separable_conv2d(*tensors, padding=1, backend="fused")
        return [output, *torch.autograd.grad(output.square().sum(), given)]

    for one, other in zip(run(), run(), strict=True):
        assert torch.equal(one, other)


def test_a_weight_that_is_not_finite_gives_what_torch_gives():
    tensors = FORUM.tensors()
    tensors[1][3, 0, 1, 1] = float("inf")
    expected, _ = reference(FORUM, tensors)
    output = separable_conv2d(*tensors, padding=1, backend="fused")
    assert torch.equal(output.isnan(), expected.isnan())
    assert torch.equal(output.isinf(), expected.isinf())


def test_an_input_that_is_not_finite_spoils_the_pixels_it_reaches_and_no_others():
    tensors = FORUM.tensors()
    tensors[0][0, 5, 0, 7] = float("nan")
    tensors[0][1, 5, 31, 31] = float("inf")
    for channels_last in (False, True):
        if channels_last:
            tensors[0] = tensors[0].contiguous(memory_format=torch.channels_last)
        expected, _ = reference(FORUM, tensors)
        output = separable_conv2d(*tensors, padding=1, backend="fused")
        assert torch.equal(output.isfinite(), expected.isfinite())


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize("padding", [0, 1, "same", "valid"])
def test_padding_words_and_unbatched_input(padding):
    x = torch.randn(3, 9, 10)
    weight, pointwise = torch.randn(3, 1, 4, 3), torch.randn(5, 3, 1, 1)
    found = separable_conv2d(x, weight, pointwise, padding=padding)
    middle = F.conv2d(x, weight, padding=padding, groups=3)
    torch.testing.assert_close(found, F.conv2d(middle, pointwise), rtol=1e-4, atol=1e-4)


def test_an_empty_batch_has_empty_results_and_zero_gradients():
    layer = leanconv.SeparableConv2d(3, 5, 3)
    x = torch.randn(0, 3, 8, 8, requires_grad=True)
    output = layer(x)
    assert output.shape == (0, 5, 6, 6)
    output.sum().backward()
    assert x.grad.shape == x.shape
    assert not layer.depthwise.weight.grad.any()
    assert not layer.pointwise.bias.grad.any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input": torch.ones(8)}, "`input` has shape"),
        ({"depthwise_weight": torch.ones(6, 1, 3, 3)}, "`depthwise_weight` has shape (6, 1, 3, 3)"),
        ({"pointwise_weight": torch.ones(4, 5, 1, 1)}, "it must be (C_out, 4, 1, 1)"),
        ({"pointwise_weight": torch.ones(4, 4, 3, 3)}, "`pointwise_weight` has shape"),
        ({"depthwise_bias": torch.ones(3)}, "`depthwise_bias` has shape (3,); it must be (4,)"),
        ({"pointwise_bias": torch.ones(3)}, "`pointwise_bias` has shape (3,); it must be (2,)"),
        ({"activation": "swoosh"}, "`activation` (='swoosh')"),
        ({"backend": "quick"}, "`backend` (='quick')"),
    ],
)
def test_a_mistake_is_one_sentence(change, words):
    arguments = {
        "input": torch.ones(1, 4, 8, 8),
        "depthwise_weight": torch.ones(4, 1, 3, 3),
        "pointwise_weight": torch.ones(2, 4, 1, 1),
    }
    with pytest.raises(ValueError, match=re.escape(words)):
        separable_conv2d(**{**arguments, **change})


def test_what_torch_refuses_is_torchs_error():
    with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        separable_conv2d(torch.ones(1, 4, 2, 2), torch.ones(4, 1, 3, 3), torch.ones(2, 4, 1, 1))


def test_autocast_runs_in_bfloat16_and_gradients_come_back_in_float32():
    layer = leanconv.SeparableConv2d(8, 8, 3, padding=1)
    x = torch.randn(2, 8, 12, 12, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(x)
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert x.grad.dtype == torch.float32
    assert layer.depthwise.weight.grad.dtype == torch.float32


def test_the_whole_layer_compiles_without_a_break():
    layer = leanconv.SeparableConv2d(8, 8, 3, padding=1, activation="relu")
    x = torch.randn(2, 8, 12, 12)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))
    grads = []
    for each in (layer, compiled):
        layer.zero_grad()
        each(x).square().sum().backward()
        grads.append([p.grad.clone() for p in layer.parameters()])
    torch.testing.assert_close(*grads)


def test_vmap_is_composed_of_torchs_own():
    x, weight = torch.randn(3, 2, 4, 8, 8), torch.randn(4, 1, 3, 3)
    pointwise = torch.randn(5, 4, 1, 1)
    found = torch.vmap(lambda each: separable_conv2d(each, weight, pointwise))(x)
    expected = torch.stack([separable_conv2d(each, weight, pointwise) for each in x])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
