"""Watches a training loop of any shape: when a phase begins and ends, and when a module does.

Rules: phases are a stack, and time belongs to the innermost one only; what no rule recognises is
`other`; every hook and patch is put back when the watch ends, whatever happened meanwhile. Private
names of torch are used where it offers no public hook, and left out where a version lacks them.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_hooks
from torch.utils.data import DataLoader

from leanconv.reversible import _engine

DATA, HOST_TO_DEVICE, FORWARD, RECOMPUTE = "data", "host-to-device", "forward", "recompute"
BACKWARD, GRADIENT_SYNC, OPTIMIZER, OTHER = "backward", "gradient sync", "optimizer", "other"
PHASES = (DATA, HOST_TO_DEVICE, FORWARD, RECOMPUTE, BACKWARD, GRADIENT_SYNC, OPTIMIZER, OTHER)

_COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "broadcast",
    "barrier",
)


class Listener(Protocol):
    """What a watch tells. Calls are properly nested, on the loop's thread or autograd's."""

    def enter_phase(self, phase: str) -> None:
        """A phase begins inside the current one."""

    def exit_phase(self, phase: str) -> None:
        """The innermost phase ends."""

    def enter_module(self, module: nn.Module) -> None:
        """A module's forward begins."""

    def exit_module(self, module: nn.Module) -> None:
        """The innermost module's forward ends."""


def in_backward() -> bool:
    """Whether autograd is executing a graph on this thread."""
    running: int = torch._C._current_graph_task_id()
    return running != -1


class Watch:
    """Recognises phases and modules while it is entered, and tells its listener."""

    def __init__(self, listener: Listener) -> None:
        self.optimizers: dict[int, Optimizer] = {}
        self.loaders: dict[int, DataLoader[Any]] = {}
        self.zeroed_in_place = 0
        self._listener = listener
        self._phases: list[str] = []
        self._modules: list[tuple[nn.Module, int | None]] = []
        self._optimizer_depths: list[int] = []
        self._thread = threading.get_ident()
        self._undo = ExitStack()

    def __enter__(self) -> Watch:
        self._thread = threading.get_ident()
        try:
            self._watch_modules()
            self._watch_autograd()
            self._watch_optimizers()
            self._watch_data()
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()
        self._leave_modules(0)
        self._leave_phases(0)

    @property
    def phase_now(self) -> str:
        """The innermost phase."""
        return self._phases[-1] if self._phases else OTHER

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark a phase by hand."""
        depth = len(self._phases)
        self._enter_phase(name)
        try:
            yield
        finally:
            self._leave_phases(depth)

    def end_step(self) -> None:
        """Close what a step left open, as an optimizer that raised leaves its phase."""
        self._leave_modules(0)
        self._leave_phases(0)
        self._optimizer_depths.clear()

    def _enter_phase(self, name: str) -> None:
        self._phases.append(name)
        self._listener.enter_phase(name)

    def _leave_phases(self, depth: int) -> None:
        while len(self._phases) > depth:
            self._listener.exit_phase(self._phases.pop())

    def _leave_modules(self, depth: int) -> None:
        while len(self._modules) > depth:
            module, phase_depth = self._modules.pop()
            self._listener.exit_module(module)
            if phase_depth is not None:
                self._leave_phases(phase_depth)

    def _ours(self) -> bool:
        return threading.get_ident() == self._thread or in_backward()

    def _watch_modules(self) -> None:
        def before(module: nn.Module, arguments: Any) -> None:
            if not self._ours():
                return
            now, depth = self.phase_now, None
            # A module called while autograd runs is being run again, whoever asked for it.
            wanted = RECOMPUTE if in_backward() else FORWARD
            if now != wanted and not (wanted == FORWARD and now == DATA):
                depth = len(self._phases)
                self._enter_phase(wanted)
            self._modules.append((module, depth))
            self._listener.enter_module(module)

        def after(module: nn.Module, arguments: Any, output: Any) -> None:
            if not self._ours():
                return
            for index in range(len(self._modules) - 1, -1, -1):
                if self._modules[index][0] is module:
                    self._leave_modules(index)
                    return

        self._undo.callback(hooks.register_module_forward_pre_hook(before).remove)
        # Checkpointing stops its second run early by raising through the module.
        self._undo.callback(hooks.register_module_forward_hook(after, always_call=True).remove)

    def _watch_autograd(self) -> None:
        self._patch(torch.autograd, "_engine_run_backward", self._in_phase(BACKWARD))
        self._patch(_engine.Record, "rebuild", self._in_phase(RECOMPUTE))
        checkpoint = importlib.import_module("torch.utils.checkpoint")
        second_run = getattr(checkpoint, "_recomputation_hook", None)
        if second_run is None:
            return
        depths: list[int] = []

        def enter(original: Any) -> Any:
            def entered(hook: Any) -> Any:
                depths.append(len(self._phases))
                self._enter_phase(RECOMPUTE)
                return original(hook)

            return entered

        def leave(original: Any) -> Any:
            def left(hook: Any, *error: Any) -> Any:
                try:
                    return original(hook, *error)
                finally:
                    if depths:
                        self._leave_phases(depths.pop())

            return left

        self._patch(second_run, "__enter__", enter)
        self._patch(second_run, "__exit__", leave)

    def _watch_optimizers(self) -> None:
        depths = self._optimizer_depths

        def before(optimizer: Optimizer, arguments: Any, options: Any) -> None:
            self.optimizers[id(optimizer)] = optimizer
            depths.append(len(self._phases))
            self._enter_phase(OPTIMIZER)

        def after(optimizer: Optimizer, arguments: Any, options: Any) -> None:
            if depths:
                self._leave_phases(depths.pop())

        def zero_grad(original: Any) -> Any:
            @functools.wraps(original)
            def timed(optimizer: Optimizer, set_to_none: bool = True) -> None:
                self.zeroed_in_place += not set_to_none
                with self.phase(OPTIMIZER):
                    original(optimizer, set_to_none)

            return timed

        self._undo.callback(optimizer_hooks.register_optimizer_step_pre_hook(before).remove)
        self._undo.callback(optimizer_hooks.register_optimizer_step_post_hook(after).remove)
        self._patch(Optimizer, "zero_grad", zero_grad)

    def _watch_data(self) -> None:
        def begin(original: Any) -> Any:
            @functools.wraps(original)
            def timed(loader: DataLoader[Any]) -> Any:
                self.loaders[id(loader)] = loader
                with self.phase(DATA):
                    return original(loader)

            return timed

        self._patch(DataLoader, "__iter__", begin)
        iterators = importlib.import_module("torch.utils.data.dataloader")
        for cls in {iterators._BaseDataLoaderIter, iterators._MultiProcessingDataLoaderIter}:
            if "__next__" in vars(cls):
                self._patch(cls, "__next__", self._in_phase(DATA))
        if torch.cuda.is_available():
            self._patch(torch.Tensor, "to", self._copying)
            self._patch(torch.Tensor, "cuda", self._copying)
        if torch.distributed.is_available():
            for name in _COLLECTIVES:
                self._patch(torch.distributed, name, self._in_phase(GRADIENT_SYNC))

    def _in_phase(self, phase: str) -> Callable[[Any], Any]:
        def wrap(original: Any) -> Any:
            @functools.wraps(original)
            def timed(*arguments: Any, **options: Any) -> Any:
                if not self._ours():
                    return original(*arguments, **options)
                with self.phase(phase):
                    return original(*arguments, **options)

            return timed

        return wrap

    def _copying(self, original: Any) -> Any:
        @functools.wraps(original)
        def timed(tensor: Any, *arguments: Any, **options: Any) -> Any:
            if self.phase_now != OTHER or tensor.device.type != "cpu" or not self._ours():
                return original(tensor, *arguments, **options)
            with self.phase(HOST_TO_DEVICE):
                return original(tensor, *arguments, **options)

        return timed

    def _patch(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return
        own = name in vars(owner)
        setattr(owner, name, wrap(original))
        self._undo.callback(setattr if own else _forget, owner, name, *([original] if own else []))


def _forget(owner: Any, name: str) -> None:
    delattr(owner, name)
