"""Modules over leanconv.functional: torch.nn's names, arguments and state_dict."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from leanconv import functional


def _forward(
    layer: torch.nn.modules.conv._ConvNd,
    conv: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
) -> Tensor:
    padding = layer.padding
    if layer.padding_mode != "zeros":
        input = F.pad(input, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        padding = 0  # type: ignore[assignment]
    return conv(input, weight, bias, layer.stride, padding, layer.dilation, layer.groups)


class Conv1d(torch.nn.Conv1d):
    """`torch.nn.Conv1d` on the fastest backend.

    >>> leanconv.Conv1d(8, 8, 3, groups=8)(torch.ones(1, 8, 16)).shape
    torch.Size([1, 8, 14])
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _forward(self, functional.conv1d, input, weight, bias)


class Conv2d(torch.nn.Conv2d):
    """`torch.nn.Conv2d` on the fastest backend.

    >>> leanconv.Conv2d(8, 8, 3, groups=8)(torch.ones(1, 8, 16, 16)).shape
    torch.Size([1, 8, 14, 14])
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _forward(self, functional.conv2d, input, weight, bias)


class Conv3d(torch.nn.Conv3d):
    """`torch.nn.Conv3d` on the fastest backend.

    >>> leanconv.Conv3d(8, 8, 3, groups=8)(torch.ones(1, 8, 4, 4, 4)).shape
    torch.Size([1, 8, 2, 2, 2])
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _forward(self, functional.conv3d, input, weight, bias)
