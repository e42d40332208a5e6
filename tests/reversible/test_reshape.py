import itertools

import pytest
import torch

import leanconv
from leanconv import (
    HaarDownsample1d,
    HaarDownsample2d,
    HaarDownsample3d,
    InjectivePad,
    Squeeze1d,
    Squeeze2d,
    Squeeze3d,
)

SQUEEZE = {1: Squeeze1d, 2: Squeeze2d, 3: Squeeze3d}
HAAR = {1: HaarDownsample1d, 2: HaarDownsample2d, 3: HaarDownsample3d}


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("block", [1, 2, 3])
def test_squeeze_moves_each_element_where_it_says(dims, block):
    x = torch.randn(2, 3, *(2 * block for _ in range(dims)))
    y = SQUEEZE[dims](block)(x)
    assert y.shape == (2, 3 * block**dims, *(2,) * dims)
    for number, offset in enumerate(itertools.product(range(block), repeat=dims)):
        part = x[(slice(None), slice(None), *(slice(o, None, block) for o in offset))]
        assert torch.equal(y[:, number * 3 : (number + 1) * 3], part)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_squeeze_is_undone_to_the_bit_over_uneven_sizes(dims):
    squeeze = SQUEEZE[dims]()
    x = torch.randn(2, 3, *(2, 4, 6)[:dims])
    assert torch.equal(squeeze.inverse(squeeze(x)), x)
    y = torch.randn(2, 3 * 2**dims, *(1, 2, 3)[:dims])
    assert torch.equal(squeeze(squeeze.inverse(y)), y)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_haar_has_averages_first_and_is_undone(dims):
    haar = HAAR[dims]()
    x = torch.randn(2, 3, *(2, 4, 6)[:dims], dtype=torch.float64)
    y = haar(x)
    pool = [torch.nn.AvgPool1d, torch.nn.AvgPool2d, torch.nn.AvgPool3d][dims - 1](2)
    torch.testing.assert_close(y[:, :3], pool(x) * 2**dims * haar.scale)
    torch.testing.assert_close(haar.inverse(y), x)
    matrix = torch.autograd.functional.jacobian(
        lambda v: haar(v.reshape(1, 1, *(2,) * dims)).flatten(), x.flatten()[: 2**dims]
    )
    torch.testing.assert_close(
        matrix @ matrix.T, torch.eye(2**dims, dtype=torch.float64) * 2**dims * haar.scale**2
    )


def test_padding_appends_zeros_and_drops_them():
    x = torch.randn(2, 3, 4)
    y = InjectivePad(2)(x)
    assert y.shape == (2, 5, 4)
    assert not y[:, 3:].any()
    assert torch.equal(InjectivePad(2).inverse(y), x)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: Squeeze2d()(torch.zeros(1, 1, 3, 4)), "multiples of `block_size`"),
        (lambda: Squeeze2d()(torch.zeros(1, 1, 4)), "must have 4 dimensions"),
        (lambda: Squeeze2d().inverse(torch.zeros(1, 3, 2, 2)), "multiple of 4"),
        (lambda: Squeeze2d(0), "`block_size`"),
        (lambda: InjectivePad(-1), "`channels`"),
        (lambda: InjectivePad(3).inverse(torch.zeros(1, 2, 2)), "at least 3 channels"),
    ],
)
def test_wrong_shapes_are_named(run, message):
    with pytest.raises(ValueError, match=message):
        run()


def test_all_are_invertible_modules():
    for dims in (1, 2, 3):
        for module in (SQUEEZE[dims](), HAAR[dims]()):
            assert leanconv.is_invertible_module(module, (1, 2**dims, *(4,) * dims), atol=1e-5)
