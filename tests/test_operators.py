from __future__ import annotations

import pytest
import torch

from leanconv import _operators

SAMPLES = {
    1: ((2, 4, 9), (8, 1, 3), [2], [1], [2], 4),
    2: ((2, 4, 6, 5), (4, 2, 3, 2), [1, 2], [1, 0], [1, 1], 2),
    3: ((1, 2, 4, 5, 3), (2, 1, 2, 3, 1), [1, 1, 1], [1, 1, 0], [1, 1, 1], 2),
}


def sample(dims, dtype, channels_last=False):
    size, weight_size, *geometry = SAMPLES[dims]
    input, weight = torch.randn(size, dtype=dtype), torch.randn(weight_size, dtype=dtype)
    if channels_last and dims > 1:
        layout = torch.channels_last if dims == 2 else torch.channels_last_3d
        input = input.contiguous(memory_format=layout)
    bias = torch.randn(weight_size[0], dtype=dtype)
    output = _operators.conv_forward(input, weight, bias, *geometry, "")
    return [t.requires_grad_() for t in (input, weight, bias, torch.randn_like(output))], geometry


# opcheck itself reads .grad of tensors that are no leaves.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("backend", ["native", "aten"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_opcheck_passes(dims, backend, channels_last):
    (input, weight, bias, grad), geometry = sample(dims, torch.float32, channels_last)
    layout = _operators.is_channels_last(input, weight)
    rest = (*geometry, backend)
    torch.library.opcheck(_operators.conv_forward, (input, weight, bias, *rest))
    torch.library.opcheck(_operators.conv_forward, (input, weight, None, *rest))
    torch.library.opcheck(
        _operators.conv_grad_input, (grad, weight, list(input.shape), layout, *rest)
    )
    for with_bias in (False, True):
        arguments = (grad, input, list(weight.shape), layout, with_bias, *rest)
        torch.library.opcheck(_operators.conv_grad_weight, arguments)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_first_and_second_derivatives_are_right(dims):
    (input, weight, bias, grad), geometry = sample(dims, torch.float64)

    def forward(input, weight, bias):
        return _operators.conv_forward(input, weight, bias, *geometry, "")

    def grad_input(grad, weight):
        return _operators.conv_grad_input(grad, weight, input.shape, False, *geometry, "")

    def grad_weight(grad, input):
        return _operators.conv_grad_weight(grad, input, weight.shape, False, True, *geometry, "")

    for function, arguments in (
        (forward, (input, weight, bias)),
        (grad_input, (grad, weight)),
        (grad_weight, (grad, input)),
    ):
        assert torch.autograd.gradcheck(function, arguments)
        assert torch.autograd.gradgradcheck(function, arguments)
