import pytest
import torch
from torch import nn

from leanconv import (
    AdditiveCoupling,
    AffineAdapterNaive,
    AffineCoupling,
    HaarDownsample2d,
    HaarDownsample3d,
    InjectivePad,
    MomentumCoupling,
    ReversibleSequential,
    Squeeze2d,
    reconstruction_error,
)
from leanconv.reversible import to_grid
from reversible.nets import DIMS, function, plain_twin, series


def deep(depth, dims=2, exact=12, half=2):
    f = [function(dims, half, norm=False) for _ in range(4)]
    for p in nn.ModuleList(f).parameters():
        p.data *= 0.3  # or 500 blocks leave the range
    # Few functions many times: depth is what matters, not parameters.
    return ReversibleSequential(
        *(AdditiveCoupling(f[i % 4], f[(i + 1) % 4]) for i in range(depth)), exact=exact
    )


def test_500_blocks_are_undone_to_the_bit():
    stack = deep(500)
    x = series(2, channels=4, dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(stack.inverse(stack(x)), to_grid(x, 12))
    assert max(e.error for e in reconstruction_error(stack, x)) == 0.0


@pytest.mark.parametrize("dims", DIMS)
def test_every_rebuilt_input_is_exact_and_without_the_grid_it_is_not(dims):
    x = series(dims, channels=4, dtype=torch.float32)
    stack = deep(20, dims)
    assert max(e.error for e in reconstruction_error(stack, x)) == 0.0
    assert max(e.error for e in reconstruction_error(deep(20, dims, None), x)) > 0.0


def test_gradients_pass_straight_through_the_rounding():
    stack = deep(4, exact=16)
    twin = plain_twin(stack)
    x = series(2, channels=4, dtype=torch.float32).requires_grad_()
    ours = torch.autograd.grad(stack(x).sum(), [x, *stack.parameters()])
    theirs = torch.autograd.grad(twin(x).sum(), [x, *twin.parameters()])
    torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_functions_and_low_precision_inputs(dtype):
    stack = deep(50)
    x = series(2, channels=4, dtype=torch.float32)
    with torch.no_grad(), torch.autocast("cpu", dtype):
        y = stack(x.to(dtype))
        assert y.dtype == torch.float32
        assert torch.equal(stack.inverse(y), to_grid(x.to(dtype), 12))
    with torch.autocast("cpu", dtype):
        y = stack(x)
    y.sum().backward()
    assert all(p.grad.isfinite().all() for p in stack.parameters())


def test_a_training_step_with_batchnorm_on_the_grid():
    stack = ReversibleSequential(*(AdditiveCoupling(function(2, 3)) for _ in range(3)), exact=12)
    x = series(2, dtype=torch.float32)
    stack(x).square().sum().backward()
    assert stack[0].Fm[0].num_batches_tracked == 1
    assert max(e.error for e in reconstruction_error(stack, x)) == 0.0


@pytest.mark.parametrize("haar", [(2, HaarDownsample2d), (3, HaarDownsample3d)])
def test_downsampling_stays_on_the_grid(haar):
    dims, kind = haar
    stack = ReversibleSequential(
        AdditiveCoupling(function(dims, 1, norm=False)),
        kind(),
        AdditiveCoupling(function(dims, 2**dims, norm=False)),
        InjectivePad(2),
        AdditiveCoupling(function(dims, 2**dims + 1, norm=False)),
        exact=10,
    )
    x = series(dims, channels=2, size=4, dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(stack.inverse(stack(x)), to_grid(x, 10))
    squeezing = ReversibleSequential(Squeeze2d(), exact=8)
    x = series(2, size=4, dtype=torch.float32)
    assert torch.equal(squeezing.inverse(squeezing(x)), to_grid(x, 8))


def test_a_value_that_leaves_the_range_is_an_error():
    stack = ReversibleSequential(AdditiveCoupling(nn.Identity()), exact=20)
    with pytest.raises(ValueError, match=r"after the input a value of 100 .* range of `exact`"):
        stack(torch.full((1, 2), 100.0))
    with pytest.raises(ValueError, match=r"after block 0\.Fm"):
        stack(torch.full((1, 2), 12.0))
    with pytest.raises(ValueError, match="nan"):
        stack(torch.full((1, 2), float("nan")))


@pytest.mark.parametrize("bits", [0, 23, -1, 1.5, True])
def test_bits_out_of_range_are_named(bits):
    if bits is True:
        bits = "12"
    with pytest.raises(ValueError, match="`exact`"):
        ReversibleSequential(AdditiveCoupling(nn.Identity()), exact=bits)


@pytest.mark.parametrize(
    "block",
    [
        AffineCoupling(nn.Identity(), adapter=AffineAdapterNaive),
        MomentumCoupling(nn.Identity()),
    ],
)
def test_blocks_that_would_leave_the_grid_are_refused(block):
    with pytest.raises(ValueError, match="takes additive couplings"):
        ReversibleSequential(block, exact=12)(torch.zeros(1, 2))


def test_float64_streams_have_more_room():
    stack = ReversibleSequential(AdditiveCoupling(nn.Identity()), exact=20)
    x = torch.full((1, 2), 1e6, dtype=torch.float64)
    assert torch.equal(stack.inverse(stack(x)), x)
