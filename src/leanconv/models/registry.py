"""Models by name. A family's file registers its models with a decorator; nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class ModelEntry:
    """A model function and the input shape, batch first, that it is measured with by default."""

    name: str
    function: Callable[..., nn.Module]
    input_shape: tuple[int, ...]


_ENTRIES: dict[str, ModelEntry] = {}


def register(
    input_shape: tuple[int, ...],
) -> Callable[[Callable[..., nn.Module]], Callable[..., nn.Module]]:
    """Decorate a function that returns a module, to make it known by its own name."""

    def add(function: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        name = function.__name__
        _ENTRIES[name] = ModelEntry(name, function, input_shape)
        return function

    return add


def names() -> tuple[str, ...]:
    """All registered names, sorted."""
    return tuple(sorted(_ENTRIES))


def entry(name: str) -> ModelEntry:
    """The entry of a name.

    Raises:
        KeyError: if there is none.
    """
    return _ENTRIES[name]
