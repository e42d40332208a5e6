from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings

import leanconv
from cases import CONV, Case, assert_rounded, cases, reference
from leanconv import dispatch

OURS = {1: leanconv.functional.conv1d, 2: leanconv.functional.conv2d, 3: leanconv.functional.conv3d}


def check(case, backend):
    tensors = [None if t is None else t.detach().requires_grad_() for t in case.tensors()]
    output = OURS[len(case.stride)](*tensors, *case.geometry, backend=backend)
    grad_output = case.laid_out(torch.randn(output.shape).to(case.dtype))
    leaves = [t for t in tensors if t is not None]
    results = [output, *torch.autograd.grad(output, leaves, grad_output)]
    expected = reference(case, *tensors, grad_output)
    magnitudes = reference(
        case, *[None if t is None else t.abs() for t in tensors], grad_output.abs()
    )
    names = ("output", "grad_input", "grad_weight", "grad_bias")
    for name, *triple in zip(names, results, expected, magnitudes, strict=False):
        assert triple[0].dtype == case.dtype
        assert_rounded(*triple, name)


def test_native_kernels_agree_with_float64_in_every_direction():
    @settings(max_examples=pytest.random_configurations)
    @given(cases())
    def run(case):
        check(case, "native")

    run()


@settings(max_examples=300)
@given(cases((torch.float32,)))
def test_the_chosen_backend_agrees_with_float64_in_every_direction(case):
    check(case, "")


@settings(max_examples=100)
@given(cases((torch.float32,)))
def test_the_layout_is_torchs_own(case):
    input, weight, bias = case.tensors()
    ours = OURS[len(case.stride)](input, weight, bias, *case.geometry, backend="native")
    stock = CONV[len(case.stride)](input, weight, bias, *case.geometry)
    if not input.is_contiguous() and case.view in ("dense", "offset"):
        assert ours.is_contiguous() == stock.is_contiguous()


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512", "neon"])
def test_every_instruction_set_agrees_with_float64(isa):
    from leanconv._native import library

    lib = library()
    before = lib.leanconv_isa()
    if isa.encode() not in lib.leanconv_isas().split():
        assert lib.leanconv_set_isa(isa.encode()) == 1
        return
    assert lib.leanconv_set_isa(isa.encode()) == 0
    try:

        @settings(max_examples=pytest.random_configurations // 10)
        @given(cases())
        def run(case):
            check(case, "native")

        run()
    finally:
        lib.leanconv_set_isa(before)


DEPTHWISE = Case((2, 8, 9, 9), (8, 1, 3, 3), (1, 1), (1, 1), (1, 1), 8)


# torch warns that it copies the input for an uneven "same".
@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("kernel", [2, 3, 4])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_string_padding_is_torchs(dims, kernel, padding):
    input, weight = torch.randn(2, 4, *[7] * dims), torch.randn(4, 1, *[kernel] * dims)
    for dilation in (1, 2):
        arguments = (input, weight, None, 1, padding, dilation, 4)
        expected = CONV[dims](*[a.double() if torch.is_tensor(a) else a for a in arguments])
        ours = OURS[dims](*arguments, backend="native")
        torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_an_unbatched_input_gives_an_unbatched_result(dims):
    input, weight = torch.randn(4, *[7] * dims), torch.randn(4, 1, *[3] * dims)
    ours = OURS[dims](input, weight, groups=4, backend="native")
    torch.testing.assert_close(ours, CONV[dims](input, weight, groups=4))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_an_empty_batch_gives_an_empty_result_and_zero_gradients(dims):
    input = torch.randn(0, 4, *[7] * dims)
    weight = torch.randn(4, 1, *[3] * dims, requires_grad=True)
    output = OURS[dims](input, weight, groups=4)
    assert output.shape == (0, 4, *[5] * dims)
    output.sum().backward()
    assert not weight.grad.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.int32])
def test_other_dtypes_are_served_by_torch(dtype):
    input, weight = torch.ones(1, 4, 6, 6, dtype=dtype), torch.ones(4, 1, 3, 3, dtype=dtype)
    assert torch.equal(OURS[2](input, weight, groups=4), F.conv2d(input, weight, groups=4))


def test_meta_tensors_give_shapes():
    input, weight = torch.empty(2, 4, 6, 6, device="meta"), torch.empty(4, 1, 3, 3, device="meta")
    assert OURS[2](input, weight, groups=4).shape == (2, 4, 4, 4)


def test_a_subclass_keeps_its_type():
    class Marked(torch.Tensor):
        pass

    result = OURS[2](torch.ones(1, 4, 6, 6).as_subclass(Marked), torch.ones(4, 1, 3, 3), groups=4)
    assert type(result) is Marked


INVALID = {
    "groups do not divide": {"groups": 3},
    "groups zero": {"groups": 0},
    "groups negative": {"groups": -1},
    "groups too many": {"groups": 16},
    "groups no integer": {"groups": 1.5},
    "stride zero": {"stride": 0},
    "stride of wrong length": {"stride": (1, 1, 1)},
    "stride no integer": {"stride": 1.5},
    "dilation zero": {"dilation": 0},
    "padding negative": {"padding": -1},
    "padding unknown": {"padding": "full"},
    "same with stride": {"padding": "same", "stride": 2},
    "kernel beyond input": {"dilation": 9},
    "bias of wrong length": {"bias": torch.zeros(3)},
    "bias of wrong dtype": {"bias": torch.zeros(8, dtype=torch.float64)},
    "weight of wrong dims": {"weight": torch.zeros(8, 1, 3)},
    "weight of wrong dtype": {"weight": torch.zeros(8, 1, 3, 3, dtype=torch.bfloat16)},
    "weight empty kernel": {"weight": torch.zeros(8, 1, 0, 3)},
    "input of wrong dims": {"input": torch.zeros(8, 9)},
    "input no tensor": {"input": [1.0]},
    "input of wrong channels": {"input": torch.zeros(2, 7, 9, 9)},
}


@pytest.mark.parametrize("name", INVALID)
def test_an_argument_error_is_torchs_own(name):
    arguments = {
        "input": torch.zeros(2, 8, 9, 9),
        "weight": torch.zeros(8, 1, 3, 3),
        "groups": 8,
        **INVALID[name],
    }
    defaults = {"bias": None, "stride": 1, "padding": 0, "dilation": 1}
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    positional = [{**defaults, **arguments}[each] for each in names]
    with pytest.raises(Exception) as stock:  # noqa: PT011  the point is that ours is the same
        F.conv2d(*positional)
    with pytest.raises(type(stock.value)) as ours:
        OURS[2](*positional)
    assert str(ours.value) == str(stock.value)


def test_more_than_two_to_the_31_elements_are_refused_with_the_reason():
    call = dispatch.Call(
        (2, 2**15, 2**8, 2**8), (2**15, 1, 1, 1), (1, 1), (0, 0), (1, 1), 2**15,
        torch.float32, "cpu", False, 2,
    )  # fmt: skip
    with pytest.raises(ValueError, match="elements, 2\\*\\*31 or more"):
        dispatch.choose(call, "forward", "native")
    assert dispatch.choose(call, "forward").name == "aten"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("channels_last", [False, True])
def test_nan_and_infinity_go_where_torch_lets_them_go(bad, channels_last):
    layout = torch.channels_last if channels_last else torch.contiguous_format
    input = torch.randn(1, 8, 12, 12)
    input[0, 3, 5, 5] = bad
    input = input.contiguous(memory_format=layout).requires_grad_()
    weight = torch.randn(8, 1, 3, 3).requires_grad_()
    grad = torch.randn(1, 8, 12, 12)
    grad[0, 2, 0, 0] = bad
    results = []
    for conv, pinned in ((F.conv2d, {}), (OURS[2], {"backend": "native"})):
        output = conv(input, weight, padding=1, groups=8, **pinned)
        results.append([output, *torch.autograd.grad(output, (input, weight), grad)])
    for stock, ours in zip(*results, strict=True):
        assert torch.equal(stock.isfinite(), ours.isfinite())


def test_grad_weight_of_ones_with_stride_counts_the_taps_inside():
    input = torch.ones(1, 24, 6, 6)
    weight = torch.ones(24, 1, 3, 3, requires_grad=True)
    OURS[2](input, weight, None, 2, 1, 1, 24, backend="native").sum().backward()
    row = torch.tensor([2.0, 3.0, 3.0])
    assert torch.equal(weight.grad, torch.outer(row, row).expand(24, 1, 3, 3))


def test_a_bfloat16_bias_gradient_of_a_large_sum_does_not_stall():
    bias = torch.zeros(4, dtype=torch.bfloat16, requires_grad=True)
    input, weight = torch.zeros(8, 4, 64, 64).bfloat16(), torch.zeros(4, 1, 1, 1).bfloat16()
    for backend in ("", "native", "aten"):
        bias.grad = None
        OURS[2](input, weight, bias, groups=4, backend=backend).sum().backward()
        assert torch.equal(bias.grad, torch.full((4,), 8.0 * 64 * 64).bfloat16())


def test_grad_weight_is_the_same_bits_from_run_to_run():
    input, weight, _ = Case((4, 16, 33, 33), (16, 1, 3, 3), (1, 1), (1, 1), (1, 1), 16).tensors()
    weight.requires_grad_()

    def gradient():
        output = OURS[2](input, weight, padding=1, groups=16, backend="native")
        return torch.autograd.grad(output.square().sum(), weight)[0]

    first = gradient()
    assert all(torch.equal(first, gradient()) for _ in range(5))


def test_a_sum_over_many_elements_keeps_float32_accuracy():
    case = Case((4, 2, 300, 300), (2, 1, 3, 3), (1, 1), (1, 1), (1, 1), 2)
    input, weight, bias = (t.requires_grad_() for t in case.tensors())
    grad = torch.rand(4, 2, 300, 300)
    output = OURS[2](input, weight, bias, *case.geometry, backend="native")
    ours = torch.autograd.grad(output, (weight, bias), grad)
    expected = reference(case, input, weight, bias, grad)[2:]
    magnitude = reference(case, input.abs(), weight, bias, grad)[2:]
    for got, want, scale in zip(ours, expected, magnitude, strict=True):
        assert ((got.double() - want).abs() <= 4 * 2**-24 * scale).all()


@pytest.mark.parametrize("backend", ["native", "aten"])
def test_autocast_runs_in_the_lower_precision(backend):
    input, weight, bias = DEPTHWISE.tensors()
    weight.requires_grad_()
    with dispatch.using(backend=backend), torch.autocast("cpu", torch.bfloat16):
        output = OURS[2](input, weight, bias, *DEPTHWISE.geometry)
        assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert weight.grad.dtype == torch.float32


# torch itself scripts its decompositions for forward-mode derivatives.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:FutureWarning")
def test_vmap_and_forward_derivatives_are_served():
    input, weight, _ = DEPTHWISE.tensors()

    def conv(x):
        return OURS[2](x, weight, padding=1, groups=8)

    many = torch.stack([input, 2 * input])
    torch.testing.assert_close(torch.vmap(conv)(many)[1], conv(2 * input))
    _, tangent = torch.func.jvp(conv, (input,), (input,))
    torch.testing.assert_close(tangent, conv(input))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_torch_compile_traces_without_a_graph_break(dynamic, channels_last):
    layout = torch.channels_last if channels_last else torch.contiguous_format
    weight = torch.randn(8, 1, 3, 3, requires_grad=True)

    def step(x):
        return OURS[2](x, weight, None, 1, "same", 1, 8).relu()

    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for size in (9, 11):
        x = torch.randn(2, 8, size, size).contiguous(memory_format=layout).requires_grad_()
        ours = torch.autograd.grad(compiled(x).sum(), (x, weight))
        torch.testing.assert_close(ours, torch.autograd.grad(step(x).sum(), (x, weight)))


@pytest.mark.parametrize("backend", ["aten", ""])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_bfloat16_gradients_are_right_where_the_window_is_as_long_as_the_input(
    dims, channels_last, backend
):
    # Those of torch 2.14.1 are not, on a CPU with AVX-512.
    sizes = ((2, 2, 1), (2, 9, 6), (4, 1, 17), (17, 1, 9), (1, 1, 9), (2, 2, 2))
    for size, (kernel, stride), groups in itertools.product(
        sizes, ((3, 1), (3, 2), (2, 1), (2, 2)), (1, 2, 8)
    ):
        case = Case(
            (1, 8, *size[-dims:]), (8, 8 // groups, *[kernel] * dims), (stride,) * dims,
            (1,) * dims, (1,) * dims, groups, dtype=torch.bfloat16, channels_last=channels_last,
        )  # fmt: skip
        # What the memory held before shows where nothing is written.
        rubbish = [torch.full((n,), 1e10, dtype=case.dtype) for n in (64, 144, 256, 432)] * 9
        del rubbish
        check(case, backend)
