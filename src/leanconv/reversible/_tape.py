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
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

Fetch = Callable[[int, int], Tensor]
# What autograd holds: a slot's number; a parameter itself, which costs nothing, and its version.
_Packed = int | tuple[nn.Parameter, int]
# Shape and dtype of each saved tensor, in order.
Kinds = list[tuple[torch.Size, torch.dtype]]


class Tape:
    """The slots of one part of a step: the function, or the sum that joins it to the stream."""

    __slots__ = ("_fetch", "_part", "_spy", "kinds")

    def __init__(self, fetch: Fetch, part: int, spy: Callable[[Tensor], None] | None) -> None:
        self._fetch = fetch
        self._part = part
        self._spy = spy
        self.kinds: Kinds = []

    def recording(self) -> AbstractContextManager[Any]:
        """Autograd saves slots while this lasts."""
        return saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: Tensor) -> _Packed:
        if self._spy is not None:
            self._spy(tensor)
        if type(tensor) is nn.Parameter:
            return tensor, tensor._version
        self.kinds.append((tensor.shape, tensor.dtype))
        return len(self.kinds) - 1

    def _unpack(self, packed: _Packed) -> Tensor:
        if isinstance(packed, int):
            return self._fetch(self._part, packed)
        parameter, version = packed
        if parameter._version != version:
            raise RuntimeError(
                f"a parameter of shape {tuple(parameter.shape)} that a gradient needs was changed "
                f"in place after the forward; step the optimizer after the backward"
            )
        return parameter


class Shelf:
    """The tensors that a second run collected, each there until it is fetched."""

    __slots__ = ("_given", "_saved")

    def __init__(self) -> None:
        self._saved: dict[tuple[int, int], tuple[Tensor, int]] = {}
        # A backward of the user's own may look at one saved tensor twice.
        self._given: dict[tuple[int, int], weakref.ref[Tensor]] = {}

    def collecting(self, part: int) -> AbstractContextManager[Any]:
        """What autograd saves while this lasts is put here."""
        saved = self._saved
        index = 0

        def pack(tensor: Tensor) -> None:
            nonlocal index
            if type(tensor) is not nn.Parameter:
                saved[part, index] = (tensor.detach(), tensor._version)
                index += 1

        return saved_tensors_hooks(pack, _never)

    def refuse_other_than(self, part: int, kinds: Kinds, label: str) -> None:
        """Raise if the second run did not save what the first did.

        Raises:
            RuntimeError: naming the first difference.
        """
        count = sum(1 for saved_part, _ in self._saved if saved_part == part)
        if count != len(kinds):
            raise RuntimeError(
                f"{label} saved {len(kinds)} tensors for the backward in its forward and {count} "
                f"when run again; its functions must do the same both times"
            )
        for index, (shape, dtype) in enumerate(kinds):
            tensor, _ = self._saved[part, index]
            if tensor.shape != shape or tensor.dtype != dtype:
                raise RuntimeError(
                    f"{label} saved a tensor of shape {tuple(shape)} and {dtype} in its forward "
                    f"and of {tuple(tensor.shape)} and {tensor.dtype} when run again; its "
                    f"functions must do the same both times"
                )

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
