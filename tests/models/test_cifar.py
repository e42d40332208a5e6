import pytest
import torch
from torch import nn

from leanconv import models


def shapes_through(model, x):
    found = []
    for layer in model:
        x = layer(x)
        if isinstance(layer, (nn.MaxPool2d, nn.AvgPool2d)):
            found.append(tuple(x.shape))
    return found


@pytest.mark.parametrize("make", [models.separable_cifar, models.dense_cifar])
def test_the_maps_shrink_as_the_thread_says(make):
    assert shapes_through(make(), torch.zeros(1, 3, 32, 32)) == [
        (1, 128, 15, 15),
        (1, 128, 7, 7),
        (1, 128, 1, 1),
    ]


def test_parameters_are_the_threads():
    stem, head = 3 * 128 * 9 + 128, 128 * 10 + 10
    depthwise, pointwise, dense = 128 * 9 + 128, 128 * 128 + 128, 128 * 128 * 9 + 128

    def count(model):
        return sum(p.numel() for p in model.parameters())

    assert count(models.separable_cifar()) == stem + 6 * (depthwise + pointwise) + head
    assert count(models.dense_cifar()) == stem + 6 * dense + head


def test_a_wrong_input_is_one_clear_sentence():
    with pytest.raises(ValueError, match=r"takes \(N, 3, 32, 32\)"):
        models.dense_cifar()(torch.zeros(1, 3, 31, 32))


def test_models_are_known_by_name():
    assert {"dense_cifar", "separable_cifar"} <= set(models.names())
    entry = models.entry("dense_cifar")
    assert entry.function(3)(torch.zeros(entry.input_shape)).shape == (32, 3)
