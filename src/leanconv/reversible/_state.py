"""What flows from step to step: whole tensors, or the two halves of one.

Neighbouring couplings that split alike hand the halves on; only where they do not is there a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class State:
    """Tensors between two steps: halves along `split_dim`, or whole ones where that is None."""

    tensors: tuple[Tensor, ...]
    split_dim: int | None = None

    def whole(self) -> tuple[Tensor, ...]:
        """The tensors, halves joined."""
        if self.split_dim is None:
            return self.tensors
        return (torch.cat(self.tensors, dim=self.split_dim),)

    def halves(self, split_dim: int) -> tuple[Tensor, Tensor]:
        """The two halves along a dimension, the first the longer one of an odd size."""
        if self.split_dim == split_dim:
            first, second = self.tensors
            return first, second
        whole = self.whole()
        if len(whole) != 1:
            raise ValueError(f"a coupling takes one tensor, not {len(whole)}")
        return split(whole[0], split_dim)

    def detached(self) -> State:
        """The same without a graph."""
        return State(tuple(t.detach() for t in self.tensors), self.split_dim)


def split(x: Tensor, split_dim: int) -> tuple[Tensor, Tensor]:
    """The two halves of a tensor, as views."""
    if not -x.dim() <= split_dim < x.dim():
        raise ValueError(
            f"`split_dim` (={split_dim}) must be a dimension of the input, which has {x.dim()} "
            f"(shape {tuple(x.shape)})"
        )
    size = x.shape[split_dim]
    if size < 2:
        raise ValueError(
            f"`split_dim` (={split_dim}) has size {size} in an input of shape {tuple(x.shape)}; "
            f"a coupling needs at least 2 to split"
        )
    first = (size + 1) // 2
    return x.narrow(split_dim, 0, first), x.narrow(split_dim, first, size - first)
