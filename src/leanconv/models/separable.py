"""Reversible networks of separable convolutions: the two halves of the library in one."""

from __future__ import annotations

from torch import Tensor, nn

from leanconv.models.registry import register
from leanconv.reversible import AdditiveCoupling, ReversibleSequential
from leanconv.separable_layers import SeparableConv1d, SeparableConv2d, SeparableConv3d

_LAYERS = {
    1: (nn.BatchNorm1d, SeparableConv1d),
    2: (nn.BatchNorm2d, SeparableConv2d),
    3: (nn.BatchNorm3d, SeparableConv3d),
}


class RevSeparable(nn.Module):
    """Tensors `(N, channels, *spatial)` to the same shape, invertibly."""

    def __init__(
        self, channels: int, depth: int, kernel_size: int, spatial_dims: int, memory_saving: bool
    ) -> None:
        super().__init__()
        if channels < 2 or channels % 2:
            raise ValueError(f"`channels` (={channels}) must be even to be split")
        if kernel_size % 2 == 0:
            raise ValueError(f"`kernel_size` (={kernel_size}) must be odd to keep the size")
        if spatial_dims not in _LAYERS:
            raise ValueError(f"`spatial_dims` (={spatial_dims}) must be 1, 2 or 3")
        self.channels = channels
        norm, conv = _LAYERS[spatial_dims]
        half = channels // 2

        def function() -> nn.Module:
            layer = conv(half, half, kernel_size, padding=kernel_size // 2, bias=False)
            return nn.Sequential(norm(half), nn.ReLU(), layer)

        self.stack = ReversibleSequential(
            *(AdditiveCoupling(function(), function()) for _ in range(depth)),
            memory_budget=None if memory_saving else 1.0,
        )

    def forward(self, input: Tensor) -> Tensor:
        """The transformed tensor."""
        self._check(input, "input")
        output: Tensor = self.stack(input)
        return output

    def inverse(self, output: Tensor) -> Tensor:
        """The tensor that `forward` made `output` of."""
        self._check(output, "output")
        input: Tensor = self.stack.inverse(output)
        return input

    def _check(self, x: Tensor, name: str) -> None:
        if x.dim() < 2 or x.shape[1] != self.channels:
            raise ValueError(
                f"`{name}` has shape {tuple(x.shape)}; this network takes {self.channels} channels"
            )


@register(input_shape=(32, 128, 32, 32))
def rev_separable(
    channels: int = 128,
    depth: int = 24,
    kernel_size: int = 3,
    spatial_dims: int = 2,
    memory_saving: bool = True,
) -> nn.Module:
    """Additive couplings whose functions are BN-ReLU-separable convolution.

    Args:
        channels: of input and output, even.
        depth: how many couplings.
        kernel_size: of the depthwise convolutions, odd.
        spatial_dims: 1, 2 or 3.
        memory_saving: rebuild activations in the backward; False keeps them all.

    Raises:
        ValueError: naming the argument and the value.

    Example:
        >>> import torch
        >>> from leanconv import models
        >>> models.rev_separable(channels=8, depth=2)(torch.zeros(2, 8, 6, 6)).shape
        torch.Size([2, 8, 6, 6])
    """
    return RevSeparable(channels, depth, kernel_size, spatial_dims, memory_saving)
