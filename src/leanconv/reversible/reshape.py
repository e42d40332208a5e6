"""Invertible changes of shape, so that down-sampling stays inside one reversible stack.

One implementation carries 1D, 2D and 3D; each is exact to the bit except Haar's, which is exact
where its sums are (see `exact=` of ReversibleSequential).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class _SpatialBlocks(nn.Module):
    """Moves between (N, C, *spatial) and (N, block ** dims, C, *spatial / block)."""

    spatial_dims: int
    # Room that its sums need on the fixed-point grid of a stack with exact=; it stays on the grid.
    grid_bits = 0

    def __init__(self, block_size: int) -> None:
        super().__init__()
        if block_size < 1:
            raise ValueError(f"`block_size` (={block_size}) must be at least 1")
        self.block_size = block_size

    def extra_repr(self) -> str:
        """The block size."""
        return f"block_size={self.block_size}"

    def _to_blocks(self, x: Tensor) -> Tensor:
        dims, size = self.spatial_dims, self.block_size
        if x.dim() != dims + 2:
            raise ValueError(
                f"`x` must have {dims + 2} dimensions (N, C, and {dims} of space), "
                f"not shape {tuple(x.shape)}"
            )
        if any(extent % size for extent in x.shape[2:]):
            raise ValueError(
                f"the spatial sizes of `x` {tuple(x.shape[2:])} must be multiples of `block_size` "
                f"(={size})"
            )
        n, c = x.shape[:2]
        split = x.reshape(n, c, *(v for extent in x.shape[2:] for v in (extent // size, size)))
        offsets = range(3, 3 + 2 * dims, 2)
        places = range(2, 2 + 2 * dims, 2)
        return split.permute(0, *offsets, 1, *places).reshape(
            n, size**dims, c, *(extent // size for extent in x.shape[2:])
        )

    def _from_blocks(self, y: Tensor) -> Tensor:
        dims, size = self.spatial_dims, self.block_size
        n, _, c, *spatial = y.shape
        split = y.reshape(n, *(size,) * dims, c, *spatial)
        order = [0, 1 + dims]
        for d in range(dims):
            order += [2 + dims + d, 1 + d]
        return split.permute(*order).reshape(n, c, *(extent * size for extent in spatial))

    def _blocks_of_channels(self, y: Tensor) -> Tensor:
        count = self.block_size**self.spatial_dims
        if y.dim() != self.spatial_dims + 2 or y.shape[1] % count:
            raise ValueError(
                f"`y` must have shape (N, C, *spatial) with {self.spatial_dims} spatial dimensions "
                f"and C a multiple of {count}, not {tuple(y.shape)}"
            )
        return y.reshape(y.shape[0], count, y.shape[1] // count, *y.shape[2:])


class _Squeeze(_SpatialBlocks):
    def __init__(self, block_size: int = 2) -> None:
        super().__init__(block_size)

    def forward(self, x: Tensor) -> Tensor:
        """`(N, C * block ** dims, *spatial / block)`."""
        return self._to_blocks(x).flatten(1, 2)

    def inverse(self, y: Tensor) -> Tensor:
        """`(N, C, *spatial)` again."""
        return self._from_blocks(self._blocks_of_channels(y))


class Squeeze1d(_Squeeze):
    """Space to channels in 1D: neighbours become channels and nothing is lost.

    The down-sampling of i-RevNet (Jacobsen et al. 2018, section 3.1). Output channel
    `offset * C + c` holds the elements of channel `c` at that offset in each block, offsets in
    row-major order.

    Args:
        block_size: how many neighbours along each dimension become channels.

    Raises:
        ValueError: when run, if a spatial size is not a multiple of `block_size`.
    """

    spatial_dims = 1


class Squeeze2d(_Squeeze):
    """Space to channels in 2D: neighbours become channels and nothing is lost.

    The down-sampling of i-RevNet (Jacobsen et al. 2018, section 3.1). Output channel
    `offset * C + c` holds the elements of channel `c` at that offset in each block, offsets in
    row-major order.

    Args:
        block_size: how many neighbours along each dimension become channels.

    Raises:
        ValueError: when run, if a spatial size is not a multiple of `block_size`.
    """

    spatial_dims = 2


class Squeeze3d(_Squeeze):
    """Space to channels in 3D: neighbours become channels and nothing is lost.

    The down-sampling of i-RevNet (Jacobsen et al. 2018, section 3.1). Output channel
    `offset * C + c` holds the elements of channel `c` at that offset in each block, offsets in
    row-major order.

    Args:
        block_size: how many neighbours along each dimension become channels.

    Raises:
        ValueError: when run, if a spatial size is not a multiple of `block_size`.
    """

    spatial_dims = 3


class _Haar(_SpatialBlocks):
    def __init__(self) -> None:
        super().__init__(2)
        dims = self.spatial_dims
        # Powers of two nearest to the orthonormal 2 ** (-dims / 2) lose no bit.
        self.scale = 0.5 ** ((dims + 1) // 2)

    def forward(self, x: Tensor) -> Tensor:
        """`(N, C * 2 ** dims, *spatial / 2)`: the averages first, then the differences."""
        return (self._transform(self._to_blocks(x)) * self.scale).flatten(1, 2)

    def inverse(self, y: Tensor) -> Tensor:
        """`(N, C, *spatial)` again."""
        undo = 1 / (self.scale * 2**self.spatial_dims)
        return self._from_blocks(self._transform(self._blocks_of_channels(y)) * undo)

    def _transform(self, blocks: Tensor) -> Tensor:
        # A Hadamard transform over the offsets, one dimension of space at a time.
        parts = list(blocks.unbind(1))
        for d in range(self.spatial_dims):
            bit = 1 << (self.spatial_dims - 1 - d)
            for i in range(len(parts)):
                if not i & bit:
                    parts[i], parts[i | bit] = parts[i] + parts[i | bit], parts[i] - parts[i | bit]
        return torch.stack(parts, 1)


class HaarDownsample1d(_Haar):
    """Haar wavelet down-sampling by two in 1D: averages and differences of 2 neighbours.

    Output channel `band * C + c`; band 0 is the low-pass one. Scaled by a power of two (1/2; the
    orthonormal transform's scale is 0.71), so that scaling rounds nothing.

    Raises:
        ValueError: when run, if a spatial size is odd.
    """

    spatial_dims = grid_bits = 1


class HaarDownsample2d(_Haar):
    """Haar wavelet down-sampling by two in 2D: averages and differences of 2 x 2 neighbours.

    Output channel `band * C + c`; band 0 is the low-pass one. Scaled by a power of two (1/2; the
    orthonormal transform's scale is 1/2), so that scaling rounds nothing.

    Raises:
        ValueError: when run, if a spatial size is odd.
    """

    spatial_dims = grid_bits = 2


class HaarDownsample3d(_Haar):
    """Haar wavelet down-sampling by two in 3D: averages and differences of 2 x 2 x 2 neighbours.

    Output channel `band * C + c`; band 0 is the low-pass one. Scaled by a power of two (1/4; the
    orthonormal transform's scale is 0.35), so that scaling rounds nothing.

    Raises:
        ValueError: when run, if a spatial size is odd.
    """

    spatial_dims = grid_bits = 3


class InjectivePad(nn.Module):
    """Appends channels of zeros; its inverse drops them (i-RevNet's injective variant, section
    3.1).

    Args:
        channels: how many to append, at least 0.

    Undoing is exact for what the forward made, which is all a reversible stack asks.
    """

    grid_bits = 0

    def __init__(self, channels: int) -> None:
        super().__init__()
        if channels < 0:
            raise ValueError(f"`channels` (={channels}) must be at least 0")
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        """`(N, C + channels, *spatial)`."""
        shape = (x.shape[0], self.channels, *x.shape[2:])
        return torch.cat((x, x.new_zeros(shape)), dim=1)

    def inverse(self, y: Tensor) -> Tensor:
        """`(N, C, *spatial)`: the first channels."""
        if y.dim() < 2 or y.shape[1] < self.channels:
            raise ValueError(
                f"`y` must have at least {self.channels} channels to drop, not shape "
                f"{tuple(y.shape)}"
            )
        return y.narrow(1, 0, y.shape[1] - self.channels)

    def extra_repr(self) -> str:
        """The number of channels."""
        return f"channels={self.channels}"


__all__ = [
    "HaarDownsample1d",
    "HaarDownsample2d",
    "HaarDownsample3d",
    "InjectivePad",
    "Squeeze1d",
    "Squeeze2d",
    "Squeeze3d",
]
