"""Invertible networks of additive couplings."""

from __future__ import annotations

from torch import Tensor, nn

from leanconv.models.registry import register
from leanconv.reversible import AdditiveCoupling, ReversibleSequential


def _function(channels: int) -> nn.Module:
    return nn.Sequential(
        nn.BatchNorm1d(channels),
        nn.ReLU(),
        nn.Conv1d(channels, channels, 3, padding=1),
        nn.BatchNorm1d(channels),
        nn.ReLU(),
        nn.Conv1d(channels, channels, 3, padding=1),
    )


class IRevNet1d(nn.Module):
    """Series `(N, channels, length)` to the same shape, invertibly."""

    def __init__(self, channels: int, depth: int, split_dim: int, memory_saving: bool) -> None:
        super().__init__()
        if split_dim not in (1, 2):
            raise ValueError(f"`split_dim` (={split_dim}) must be 1 (channels) or 2 (length)")
        if split_dim == 1 and channels % 2:
            raise ValueError(f"`channels` (={channels}) must be even to be split")
        self.channels = channels
        self.split_dim = split_dim
        width = channels // 2 if split_dim == 1 else channels
        self.stack = ReversibleSequential(
            *(
                AdditiveCoupling(_function(width), _function(width), split_dim=split_dim)
                for _ in range(depth)
            ),
            memory_budget=None if memory_saving else 1.0,
        )

    def forward(self, input: Tensor) -> Tensor:
        """The transformed series `(N, channels, length)`."""
        self._check(input, "input")
        output: Tensor = self.stack(input)
        return output

    def inverse(self, output: Tensor) -> Tensor:
        """The series that `forward` made `output` of."""
        self._check(output, "output")
        input: Tensor = self.stack.inverse(output)
        return input

    def _check(self, x: Tensor, name: str) -> None:
        if x.dim() != 3 or x.shape[1] != self.channels:
            raise ValueError(
                f"`{name}` has shape {tuple(x.shape)}; this network takes (N, {self.channels}, "
                f"length)"
            )
        if self.split_dim == 2 and x.shape[2] % 2:
            raise ValueError(f"the length of `{name}` (={x.shape[2]}) must be even to be split")


@register(input_shape=(256, 32, 64))
def irevnet1d(
    channels: int = 32, depth: int = 8, split_dim: int = 1, memory_saving: bool = True
) -> nn.Module:
    """Additive couplings over a 1D series, each function twice BN-ReLU-Conv of width 3.

    Args:
        channels: of the series, even where they are split.
        depth: how many couplings.
        split_dim: 1 splits the channels, 2 the length.
        memory_saving: rebuild activations in the backward; False keeps them all.

    Raises:
        ValueError: for another `split_dim` or odd `channels`.

    Example:
        >>> import torch
        >>> from leanconv import models
        >>> models.irevnet1d(split_dim=2)(torch.zeros(4, 32, 64)).shape
        torch.Size([4, 32, 64])
    """
    return IRevNet1d(channels, depth, split_dim, memory_saving)
