"""The network of a forum thread on the speed of depthwise-separable layers, and its dense twin.

Three stages of two blocks at 32x32, 15x15 and 7x7 with 128 channels throughout. The thread's
puzzle: a separable block does 8 times less arithmetic than a dense one and was hardly faster.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from leanconv.models.registry import register

CHANNELS = 128


def _separable_block() -> list[nn.Module]:
    return [
        nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS),
        nn.Conv2d(CHANNELS, CHANNELS, 1),
    ]


def _dense_block() -> list[nn.Module]:
    return [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)]


class ForumNet(nn.Sequential):
    """Images `(N, 3, 32, 32)` to class scores `(N, classes)`."""

    def __init__(self, block: Callable[[], list[nn.Module]], classes: int) -> None:
        super().__init__(
            nn.Conv2d(3, CHANNELS, 3, padding=1),
            *block(),
            *block(),
            nn.MaxPool2d(3, 2),
            *block(),
            *block(),
            nn.MaxPool2d(3, 2),
            *block(),
            *block(),
            nn.AvgPool2d(7),
            nn.Conv2d(CHANNELS, classes, 1),
            nn.Flatten(1),
        )

    def forward(self, input: Tensor) -> Tensor:
        """Scores `(N, classes)` of images `(N, 3, 32, 32)`."""
        if input.dim() != 4 or input.shape[1:] != (3, 32, 32):
            raise ValueError(
                f"`input` has shape {tuple(input.shape)}; this network takes (N, 3, 32, 32)"
            )
        for layer in self:
            input = layer(input)
        return input


@register(input_shape=(32, 3, 32, 32))
def separable_cifar(classes: int = 10) -> nn.Module:
    """The thread's network: each block a depthwise 3x3 and a pointwise convolution.

    Example:
        >>> import torch
        >>> from leanconv import models
        >>> models.separable_cifar()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    return ForumNet(_separable_block, classes)


@register(input_shape=(32, 3, 32, 32))
def dense_cifar(classes: int = 10) -> nn.Module:
    """The same network with one dense 3x3 convolution a block."""
    return ForumNet(_dense_block, classes)
