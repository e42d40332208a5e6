"""Which backend serves a call, one direction at a time.

The policy: a pinned backend, or an error with all its reasons. With mode "off" ATen. Else the
choice remembered, in this process or on disk. Else, in mode "auto", a measurement within
`budget_seconds` a direction, or in mode "measure" within `tune_seconds`. Else, and always in mode
"rules", the rule: the first backend of `backends.ALL` that can serve the call and has a kernel of
its own for it. A choice comes with everything prepared: a repeated call costs a look-up.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from leanconv import _trial
from leanconv._choices import Choice, Choices, default_path
from leanconv._key import key_of
from leanconv.backends import ALL, DIRECTIONS, Backend, Call, Direction
from leanconv.backends.aten import needs_repair
from leanconv.backends.call import Run
from leanconv.backends.separable import SEPARABLE, SeparableBackend, SeparableCall

Mode = Literal["auto", "measure", "rules", "off"]
_REMEMBERED = 4096
_SEPARABLE_FOR = {"native": "fused", "aten": "aten", "aten_relaid": "aten"}
AnyCall = Call | SeparableCall
AnyBackend = Backend | SeparableBackend


@dataclass(frozen=True)
class Settings:
    """How backends are chosen.

    `mode`: "auto", "measure", "rules" or "off" (stock PyTorch); `backend` pins one by name;
    `cache` is the file of measured choices, None for the user's cache directory.
    """

    mode: Mode = "auto"
    backend: str = ""
    budget_seconds: float = 0.05
    tune_seconds: float = 2.0
    cache: Path | None = None


_settings = Settings()
_plans: dict[Any, Run] = {}
_stock: dict[Any, bool] = {}
_chosen: dict[tuple[AnyCall, Direction], Choice] = {}
_measuring = threading.Lock()


def _renew_lock() -> None:
    # Another thread may have held it when this process was forked.
    global _measuring
    _measuring = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def settings() -> Settings:
    """The settings in force."""
    return _settings


def configure(**changes: Any) -> None:
    """Changes fields of `Settings` for the whole process; what is not given stays.

    Raises:
        ValueError: for a mode or backend that does not exist.
        TypeError: for a field that does not exist.
    """
    global _settings
    new = replace(_settings, **changes)
    if new.mode not in get_args(Mode):
        raise ValueError(f"`mode` (={new.mode!r}) must be one of {', '.join(get_args(Mode))}.")
    if new.backend:
        named(new.backend)
    _settings = new
    forget()


@contextlib.contextmanager
def using(**changes: Any) -> Iterator[None]:
    """`configure` for the length of a `with` block."""
    global _settings
    before = _settings
    configure(**changes)
    try:
        yield
    finally:
        _settings = before
        forget()


def forget() -> None:
    """Drops what this process remembers, as when the instruction set in use was changed."""
    _plans.clear()
    _stock.clear()
    _chosen.clear()


@functools.lru_cache(maxsize=8)
def _choices_at(path: Path) -> Choices:
    return Choices(path)


def choices() -> Choices:
    """The file of measured choices in use."""
    return _choices_at(_settings.cache or default_path())


def chosen() -> list[Choice]:
    """The choices made or looked up since `forget`, with the candidates' times."""
    return list(_chosen.values())


def named(name: str, among: Sequence[Any] = ALL) -> Any:
    """The backend of that name.

    Raises:
        ValueError: where there is none.
    """
    for backend in among:
        if backend.name == name:
            return backend
    known = ", ".join(backend.name for backend in among)
    raise ValueError(f"`backend` (={name!r}) must be one of {known}.")


def _backends_of(call: AnyCall) -> Sequence[Any]:
    return SEPARABLE if isinstance(call, SeparableCall) else ALL


def choose(call: AnyCall, direction: Direction, pinned: str = "") -> Any:
    """The backend for one direction of a call.

    Raises:
        ValueError: where the pinned backend cannot serve it, with every reason.
    """
    among = _backends_of(call)
    # A backend pinned for the process is one of convolutions; separable ones go with its kind.
    everywhere = _settings.backend
    pinned = pinned or (_SEPARABLE_FOR.get(everywhere, "") if among is SEPARABLE else everywhere)
    if pinned:
        backend = named(pinned, among)
        if reasons := backend.why_not(call, direction):
            raise ValueError(
                f"`backend` (={pinned!r}) cannot serve {direction} of {call}: {'; '.join(reasons)}."
            )
        return backend
    if _settings.mode == "off":
        return named("aten", among)
    if _settings.mode == "rules":
        return _by_rule(call, direction)
    return named(_by_measurement(call, direction).backend, among)


def _by_rule(call: AnyCall, direction: Direction) -> Any:
    among = _backends_of(call)
    for backend in among:
        if not backend.why_not(call, direction) and not backend.why_slow(call, direction):
            return backend
    return named("aten", among)


def _by_measurement(call: AnyCall, direction: Direction) -> Choice:
    """The remembered choice, else a new one; the rule's, unstored, if the budget is too short."""
    known = _chosen.get((call, direction))
    if known is not None:
        return known
    with _measuring:
        known = _chosen.get((call, direction))
        if known is not None:
            return known
        candidates = [each for each in _backends_of(call) if _is_candidate(each, call, direction)]
        key = key_of(call, direction, [each.name for each in candidates])
        rule = _by_rule(call, direction).name
        if len(candidates) == 1 or call.is_empty:
            choice = Choice(key, rule, {})
        else:
            choice = choices().get(key) or _measured(key, call, direction, candidates, rule)
        if choice.backend not in [each.name for each in candidates]:
            choice = Choice(key, rule, {})
        _remember(_chosen, (call, direction), choice)
        return choice


def _measured(
    key: str, call: AnyCall, direction: Direction, candidates: Sequence[Any], rule: str
) -> Choice:
    in_full = _settings.mode == "measure"
    budget = _settings.tune_seconds if in_full else _settings.budget_seconds
    seconds = _trial.trial(call, direction, candidates, budget)
    if seconds is None:
        return Choice(key, rule, {})
    choice = Choice(key, _trial.winner(seconds), seconds)
    choices().put([choice])
    return choice


def _is_candidate(backend: Any, call: AnyCall, direction: Direction) -> bool:
    if backend.why_not(call, direction):
        return False
    # The plain loops are there to be right; timing them would only spend the budget.
    plain = backend.name in ("native", "fused", "two_step", "native_aten")
    return not plain or not backend.why_slow(call, direction)


def plan(
    direction: Direction,
    input_size: tuple[int, ...],
    weight_size: tuple[int, ...],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    dtype: torch.dtype,
    device: torch.device,
    channels_last: bool,
    pinned: str,
) -> Run:
    """The prepared function for one direction of a call, remembered from the first time on."""
    threads = torch.get_num_threads()
    geometry = (*stride, *padding, *dilation, groups)
    key = (
        direction,
        input_size,
        weight_size,
        geometry,
        dtype,
        device,
        channels_last,
        pinned,
        threads,
    )
    found = _plans.get(key)
    if found is not None:
        return found
    call = Call(
        tuple(input_size),
        tuple(weight_size),
        tuple(stride),
        tuple(padding),
        tuple(dilation),
        groups,
        dtype,
        device.type,
        channels_last,
        threads,
    )
    run: Run = choose(call, direction, pinned).plan(call, direction)
    _remember(_plans, key, run)
    return run


def plan_separable(
    direction: Direction,
    input_size: tuple[int, ...],
    weight_size: tuple[int, ...],
    channels_out: int,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    activation: str,
    dtype: torch.dtype,
    device: torch.device,
    channels_last: bool,
    pinned: str,
) -> Run:
    """As `plan`, of a separable convolution; `weight_size` is the depthwise weight's."""
    threads = torch.get_num_threads()
    geometry = (*stride, *padding, *dilation, channels_out)
    kind = (activation, dtype, device, channels_last, pinned, threads)
    key = (direction, input_size, weight_size, geometry, *kind)
    found = _plans.get(key)
    if found is not None:
        return found
    depthwise = Call(
        tuple(input_size),
        tuple(weight_size),
        tuple(stride),
        tuple(padding),
        tuple(dilation),
        input_size[1],
        dtype,
        device.type,
        channels_last,
        threads,
    )
    call = SeparableCall(depthwise, channels_out, activation)
    run: Run = choose(call, direction, pinned).plan(call, direction)
    _remember(_plans, key, run)
    return run


def is_stock(
    input_size: tuple[int, ...],
    weight_size: tuple[int, ...],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    dtype: torch.dtype,
    channels_last: bool,
    pinned: str,
    differentiated: bool,
) -> bool:
    """Whether ATen serves all directions needed of a call on a CPU, remembered like a plan."""
    threads = torch.get_num_threads()
    geometry = (*stride, *padding, *dilation, groups)
    key = (
        input_size,
        weight_size,
        geometry,
        dtype,
        channels_last,
        pinned,
        threads,
        differentiated,
    )
    found = _stock.get(key)
    if found is None:
        call = Call(
            tuple(input_size),
            tuple(weight_size),
            tuple(stride),
            tuple(padding),
            tuple(dilation),
            groups,
            dtype,
            "cpu",
            channels_last,
            threads,
        )
        directions = DIRECTIONS if differentiated else DIRECTIONS[:1]
        # Every direction is chosen here, whichever is the first that ATen does not serve.
        found = {choose(call, each, pinned).name for each in directions} == {"aten"}
        found = found and (_settings.mode == "off" or not needs_repair(call))
        _remember(_stock, key, found)
    return found


def _remember(memory: dict[Any, Any], key: Any, value: Any) -> None:
    if len(memory) >= _REMEMBERED:
        # Popping with a default: another thread may have been first.
        memory.pop(next(iter(list(memory)), None), None)
    memory[key] = value


def backends() -> dict[str, str]:
    """Every backend's name, with why it cannot be used here; empty where it can.

    >>> leanconv.backends()["aten"]
    ''
    """
    return {backend.name: backend.why_unavailable() for backend in ALL}
