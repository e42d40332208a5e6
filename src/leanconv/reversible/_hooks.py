"""Which of a module's hooks only observe, so that a second run of the module need not fire them.

A hook is an observer if, in the first run, it returned nothing and had autograd save nothing. One
that computes a weight (torch.nn.utils.weight_norm) or replaces an output is fired in both runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

Hooks = dict[int, Callable[..., Any]]


class HookWatch:
    """The hooks of some modules that have any."""

    def __init__(self, tables: list[Hooks], saved: Callable[[], int]) -> None:
        self._tables = tables
        self._saved = saved
        self._effective: set[tuple[int, int]] = set()

    @classmethod
    def over(cls, modules: Sequence[nn.Module], saved: Callable[[], int]) -> HookWatch | None:
        """A watch over these modules' forward hooks; None where there are none.

        `saved` tells how many tensors autograd has saved so far.
        """
        tables: list[Hooks] = []
        for module in modules:
            if module._forward_pre_hooks:
                tables.append(module._forward_pre_hooks)
            if module._forward_hooks:
                tables.append(module._forward_hooks)
        if not tables:
            return None
        return cls(tables, saved)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note which hooks have an effect while this lasts."""

        def watched(table: int, key: int, hook: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                before = self._saved()
                result = hook(*args, **kwargs)
                if result is not None or self._saved() != before:
                    self._effective.add((table, key))
                return result

            return run

        with self._replaced(watched):
            yield

    @contextmanager
    def observers_silenced(self) -> Iterator[None]:
        """Hooks without an effect do nothing while this lasts."""

        def silenced(table: int, key: int, hook: Callable[..., Any]) -> Callable[..., Any]:
            return hook if (table, key) in self._effective else _nothing

        with self._replaced(silenced):
            yield

    @contextmanager
    def _replaced(
        self, replace: Callable[[int, int, Callable[..., Any]], Callable[..., Any]]
    ) -> Iterator[None]:
        with ExitStack() as stack:
            for i, table in enumerate(self._tables):
                for key, hook in list(table.items()):
                    table[key] = replace(i, key, hook)
                    stack.callback(_put_back, table, key, hook)
            yield


def _put_back(table: Hooks, key: int, hook: Callable[..., Any]) -> None:
    if key in table:  # else the hook removed itself
        table[key] = hook


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None
