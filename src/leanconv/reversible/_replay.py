"""Running a function a second time, exactly as the first: what its run depended on, kept and put
back.

Rules: the second run leaves no trace. Buffers that it would write are stand-ins, the random number
generators and the training flags are put back, hooks that only observed are not fired again. What
cannot be put back, such as a parameter changed in place since, is an error and not a wrong
gradient.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from leanconv.reversible._hooks import HookWatch

Function = Callable[..., Any]
_CPU = torch.device("cpu")
_Flags = tuple[bool, ...]

# Which buffers a function writes while it runs, by its training flags: learnt on its first run in
# them, so that later runs copy only those. Running statistics are not among them: a normalisation
# in training does not read them.
_written: weakref.WeakKeyDictionary[nn.Module, dict[_Flags, frozenset[tuple[int, str]]]] = (
    weakref.WeakKeyDictionary()
)


def modules_of(function: Function) -> list[nn.Module]:
    """The modules whose state a call of this function may read: its own, or its method's."""
    owner = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    return list(owner.modules()) if isinstance(owner, nn.Module) else []


class Replay:
    """One run of a function, and what it takes to run it again.

    Raises (on running again):
        RuntimeError: if a parameter or buffer was changed in place since.
    """

    __slots__ = (
        "autocast",
        "function",
        "hooks",
        "label",
        "modules",
        "random_states",
        "tensors",
        "training",
        "written",
    )

    def __init__(self, function: Function, label: str) -> None:
        self.function = function
        self.label = label
        self.modules = modules_of(function)
        self.training: _Flags = tuple(m.training for m in self.modules)
        self.hooks: HookWatch | None = None
        self.random_states: list[tuple[torch.device, Tensor]] = []
        self.written: dict[tuple[int, str], Tensor] = {}
        self.tensors: list[tuple[dict[str, Any], str, Tensor, int]] = []
        self.autocast = _Autocast.now(())

    def run(self, inputs: tuple[Tensor, ...], saved: Callable[[], int]) -> Any:
        """The first run, with everything noted that a second one needs.

        `saved` tells how many tensors autograd has saved so far.
        """
        devices = _devices(inputs)
        self.autocast = _Autocast.now(devices)
        buffers = {(i, name): buffer for i, name, buffer in self._buffers()}
        known = self._known_written() if buffers else frozenset()
        copied = {
            key: buffer.clone() for key, buffer in buffers.items() if known is None or key in known
        }
        versions = {key: buffer._version for key, buffer in buffers.items()}
        random_states = [(device, _random_state(device)) for device in devices]
        self.hooks = HookWatch.over(self.modules, saved)
        with self.hooks.watching() if self.hooks else nullcontext():
            result = self.function(*inputs)
        self.random_states = [
            (device, state)
            for device, state in random_states
            if not torch.equal(state, _random_state(device))
        ]
        if buffers:
            self._note_written(copied, versions, known)
        self._note_tensors(versions)
        return result

    def run_again(self, *inputs: Tensor, function: Function | None = None) -> Any:
        """The second run, or another function's, in the first one's surroundings.

        Grad mode is the caller's.
        """
        self._refuse_changed()
        undo: list[Callable[[], object]] = []
        try:
            self._enter_surroundings(undo)
            if self.random_states:
                self._enter_random_states(undo)
            self._enter_stand_in_buffers(undo)
            if self.hooks:
                silenced = self.hooks.observers_silenced()
                silenced.__enter__()
                undo.append(partial(silenced.__exit__, None, None, None))
            return (function or self.function)(*inputs)
        finally:
            for put_back in reversed(undo):
                put_back()

    def _enter_surroundings(self, undo: list[Callable[[], object]]) -> None:
        """The first run's autocast, training flags and parameters."""
        self.autocast.enter(undo)
        now = tuple(m.training for m in self.modules)
        if now != self.training:
            undo.append(lambda: _set_training(self.modules, now))
            _set_training(self.modules, self.training)
        for owner, name, tensor, _ in self.tensors:
            current = owner.get(name)
            if current is not tensor:  # functional_call, or load_state_dict(assign=True)
                undo.append(partial(owner.__setitem__, name, current))
                owner[name] = tensor

    def _enter_random_states(self, undo: list[Callable[[], object]]) -> None:
        current = [(device, _random_state(device)) for device, _ in self.random_states]
        undo.append(lambda: _set_random_states(current))
        _set_random_states(self.random_states)

    def _enter_stand_in_buffers(self, undo: list[Callable[[], object]]) -> None:
        """Copies for the buffers that the run writes, those it reads as they were before."""
        for i, module in enumerate(self.modules):
            buffers = module._buffers
            if not buffers:
                continue
            statistics = _keeps_statistics(module)
            if not statistics and not self.written:
                continue
            undo.append(partial(buffers.update, dict(buffers)))
            for name, buffer in buffers.items():
                like = self.written.get((i, name), buffer if statistics else None)
                if like is not None:
                    buffers[name] = like.clone()

    def _note_written(
        self,
        copied: dict[tuple[int, str], Tensor],
        versions: dict[tuple[int, str], int],
        known: frozenset[tuple[int, str]] | None,
    ) -> None:
        now = {(i, name): buffer._version for i, name, buffer in self._buffers()}
        changed = {key for key, version in now.items() if versions.get(key) != version}
        self.written = {key: copy for key, copy in copied.items() if key in changed}
        if known is None or not changed <= known:
            _written.setdefault(self.modules[0], {})[self.training] = frozenset(
                changed | (known or set())
            )

    def _buffers(self) -> Iterator[tuple[int, str, Tensor]]:
        for i, module in enumerate(self.modules):
            if module._buffers and not _keeps_statistics(module):
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        yield i, name, buffer

    def _known_written(self) -> frozenset[tuple[int, str]] | None:
        if not self.modules:
            return frozenset()
        return _written.get(self.modules[0], {}).get(self.training)

    def _note_tensors(self, versions: dict[tuple[int, str], int]) -> None:
        for i, module in enumerate(self.modules):
            held: list[dict[str, Any]] = [module._parameters]
            if module._buffers and not _keeps_statistics(module):
                held.append(module._buffers)
            for owner in held:
                # A buffer written unforeseen is noted as it was before: running again is refused.
                self.tensors += [
                    (owner, name, tensor, versions.get((i, name), tensor._version))
                    for name, tensor in owner.items()
                    if tensor is not None and (i, name) not in self.written
                ]

    def _refuse_changed(self) -> None:
        for _, name, tensor, version in self.tensors:
            if tensor._version != version:
                raise RuntimeError(
                    f"`{name}` of {self.label} (shape {tuple(tensor.shape)}) was changed in place "
                    f"between its forward and its backward; {self.label} is run again in the "
                    f"backward and needs it as it was: step the optimizer after the backward"
                )


def _keeps_statistics(module: nn.Module) -> bool:
    return module.training and isinstance(module, _NormBase)


def _set_training(modules: Iterable[nn.Module], flags: Iterable[bool]) -> None:
    for module, flag in zip(modules, flags, strict=True):
        if module.training != flag:
            module.training = flag


def _devices(inputs: tuple[Tensor, ...]) -> list[torch.device]:
    """The CPU, and the inputs' other devices: whose generators a function may draw from."""
    others = {x.device for x in inputs if x.device.type not in ("cpu", "meta")}
    return [_CPU, *others]


def _random_state(device: torch.device) -> Tensor:
    if device.type == "cpu":
        return torch.get_rng_state()
    state: Tensor = torch.get_device_module(device).get_rng_state(device)
    return state


def _set_random_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


def _set_random_states(states: list[tuple[torch.device, Tensor]]) -> None:
    for device, state in states:
        _set_random_state(device, state)


class _Autocast:
    """The autocast settings of some device types, as they were at one moment."""

    __slots__ = ("cached", "settings")

    def __init__(self, settings: tuple[tuple[str, bool, torch.dtype], ...], cached: bool) -> None:
        self.settings = settings
        self.cached = cached

    @classmethod
    def now(cls, devices: Iterable[torch.device]) -> _Autocast:
        kinds = sorted({device.type for device in devices})
        settings = tuple(
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in kinds
        )
        return cls(settings, torch.is_autocast_cache_enabled())

    def enter(self, undo: list[Callable[[], object]]) -> None:
        """These settings, until what is appended to `undo` is called."""
        for kind, enabled, dtype in self.settings:
            now = (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            # The backward of a run outside autocast may itself run inside one.
            if now != (enabled, dtype) and (enabled or now[0]):
                context = torch.autocast(
                    kind, dtype=dtype, enabled=enabled, cache_enabled=self.cached
                )
                context.__enter__()
                undo.append(partial(context.__exit__, None, None, None))
