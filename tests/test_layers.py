from __future__ import annotations

import pytest
import torch

import leanconv

PAIRS = {
    1: (leanconv.Conv1d, torch.nn.Conv1d),
    2: (leanconv.Conv2d, torch.nn.Conv2d),
    3: (leanconv.Conv3d, torch.nn.Conv3d),
}


@pytest.mark.parametrize("padding_mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [0, 1, 2, "same"])
@pytest.mark.parametrize("backend", ["", "native"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_layer_gives_what_torchs_gives_from_the_same_state(dims, backend, padding, padding_mode):
    # torch.nn's deterministic replicate and reflect pads are not written for every dimension.
    torch.use_deterministic_algorithms(False)
    ours, stock = (
        layer(4, 8, 3, padding=padding, dilation=1, groups=4, padding_mode=padding_mode)
        for layer in PAIRS[dims]
    )
    ours.load_state_dict(stock.state_dict())
    assert repr(ours) == repr(stock)
    input = torch.randn(2, 4, *[6] * dims)
    with leanconv.dispatch.using(backend=backend):
        result = ours(input)
    torch.testing.assert_close(result, stock(input), rtol=1e-5, atol=1e-5)


def test_backends_names_what_is_here():
    assert set(leanconv.backends()) == {"native", "aten", "aten_relaid"}
    assert leanconv.backends()["aten"] == ""
