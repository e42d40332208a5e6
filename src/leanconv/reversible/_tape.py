"""What autograd saves in a run of a function, left out and filled in by a second run.

Rules: in the first run every tensor that autograd would keep is replaced by a Slot, in order; the
second run collects the same tensors in the same order. A different count, shape or dtype, or a
tensor overwritten after it was saved, is an error: a wrong gradient never passes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

Fetch = Callable[[int, int], Tensor]


class Slot:
    """What autograd holds in place of one saved tensor."""

    __slots__ = ("dtype", "fetch", "index", "part", "shape")

    def __init__(self, fetch: Fetch, part: int, index: int, tensor: Tensor) -> None:
        self.fetch = fetch
        self.part = part
        self.index = index
        self.shape = tensor.shape
        self.dtype = tensor.dtype

    def tensor(self) -> Tensor:
        """The tensor itself, rebuilt where it must be."""
        tensor = self.fetch(self.part, self.index)
        if tensor.shape != self.shape or tensor.dtype != self.dtype:
            raise RuntimeError(
                f"a reversible block saved a tensor of shape {tuple(self.shape)} and "
                f"{self.dtype} in the forward and of {tuple(tensor.shape)} and {tensor.dtype} when "
                f"run again; its functions must do the same both times"
            )
        return tensor


class Tape:
    """The slots of one part of a step: the function, or the sum that joins it to the stream."""

    __slots__ = ("bytes_saved", "count", "fetch", "part", "spy")

    def __init__(self, fetch: Fetch, part: int, spy: Callable[[Tensor], None] | None) -> None:
        self.fetch = fetch
        self.part = part
        self.count = 0
        self.spy = spy

    def recording(self) -> AbstractContextManager[Any]:
        """Autograd saves slots while this lasts."""
        return saved_tensors_hooks(self._pack, Slot.tensor)

    def _pack(self, tensor: Tensor) -> Slot:
        slot = Slot(self.fetch, self.part, self.count, tensor)
        self.count += 1
        if self.spy is not None:
            self.spy(tensor)
        return slot


class Shelf:
    """The tensors that a second run collected, each there until it is fetched."""

    __slots__ = ("_given", "_saved")

    def __init__(self) -> None:
        self._saved: dict[tuple[int, int], tuple[Tensor, int]] = {}
        # A backward of the user's own may look at one saved tensor twice.
        self._given: dict[tuple[int, int], weakref.ref[Tensor]] = {}

    def collecting(self, part: int) -> AbstractContextManager[Any]:
        """What autograd saves while this lasts is put here."""
        index = 0

        def pack(tensor: Tensor) -> None:
            nonlocal index
            self._saved[part, index] = (tensor.detach(), tensor._version)
            index += 1

        return saved_tensors_hooks(pack, _never)

    def count(self, part: int) -> int:
        """How many tensors of a part are here."""
        return sum(1 for saved_part, _ in self._saved if saved_part == part)

    def take(self, part: int, index: int) -> Tensor | None:
        """A tensor, which is not kept here any longer; None where it is not here."""
        key = (part, index)
        found = self._saved.pop(key, None)
        if found is None:
            given = self._given.get(key)
            return None if given is None else given()
        tensor, version = found
        if tensor._version != version:
            raise RuntimeError(
                f"a tensor of shape {tuple(tensor.shape)} that a gradient needs was changed "
                f"by an in-place operation inside a reversible block after it was saved"
            )
        self._given[key] = weakref.ref(tensor)
        return tensor

    def clear(self) -> None:
        """Forget all."""
        self._saved.clear()
        self._given.clear()


class Held:
    """Tensors held the way autograd holds what it saves.

    So a tensor that an inner stack holds goes through the hooks of whatever it runs inside: a block
    of an outer stack, or torch.utils.checkpoint.
    """

    __slots__ = ("_node",)

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        with torch.enable_grad():
            anchor = torch.empty(0, requires_grad=True)
            self._node: Any = _Hold.apply(anchor, *(t.detach() for t in tensors)).grad_fn

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors, detached.

        Raises:
            RuntimeError: torch's own, if one was changed in place since.
        """
        saved: tuple[Tensor, ...] = self._node.saved_tensors
        return saved


class _Hold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise AssertionError("nothing flows through what is only held")


def _never(_: Any) -> Tensor:
    raise AssertionError("the graph of a second run is never run backwards")
