"""Which backend serves a call, one direction at a time.

The policy: a pinned backend, or an error with all its reasons; with mode "off" ATen; else the rule:
the first backend of `backends.ALL` that can serve the call and has a kernel of its own for it. The
choice is made once a shape and remembered in this process with everything prepared, so that a
repeated call costs a dictionary look-up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from leanconv.backends import ALL, DIRECTIONS, Backend, Call, Direction
from leanconv.backends.call import Run

Mode = Literal["rules", "off"]
_REMEMBERED = 4096


@dataclass(frozen=True)
class Settings:
    """How backends are chosen: `mode` "rules", or "off" for stock; `backend` pins one by name."""

    mode: Mode = "rules"
    backend: str = ""


_settings = Settings()
_plans: dict[Any, Run] = {}
_stock: dict[Any, bool] = {}


def settings() -> Settings:
    """The settings in force."""
    return _settings


def configure(mode: Mode | None = None, backend: str | None = None) -> None:
    """Changes the settings for the whole process; what is not given stays.

    Raises:
        ValueError: for a mode or backend that does not exist.
    """
    global _settings
    new = _settings
    if mode is not None:
        if mode not in ("rules", "off"):
            raise ValueError(f"`mode` (={mode!r}) must be 'rules' or 'off'.")
        new = replace(new, mode=mode)
    if backend is not None:
        if backend:
            named(backend)
        new = replace(new, backend=backend)
    _settings = new
    forget()


@contextlib.contextmanager
def using(mode: Mode | None = None, backend: str | None = None) -> Iterator[None]:
    """`configure` for the length of a `with` block."""
    before = _settings
    configure(mode, backend)
    try:
        yield
    finally:
        configure(before.mode, before.backend)


def forget() -> None:
    """Drops what was chosen, as when the instruction set in use was changed."""
    _plans.clear()
    _stock.clear()


def named(name: str) -> Backend:
    """The backend of that name.

    Raises:
        ValueError: where there is none.
    """
    for backend in ALL:
        if backend.name == name:
            return backend
    known = ", ".join(backend.name for backend in ALL)
    raise ValueError(f"`backend` (={name!r}) must be one of {known}.")


def choose(call: Call, direction: Direction, pinned: str = "") -> Backend:
    """The backend for one direction of a call.

    Raises:
        ValueError: where the pinned backend cannot serve it, with every reason.
    """
    pinned = pinned or _settings.backend
    if pinned:
        backend = named(pinned)
        if reasons := backend.why_not(call, direction):
            raise ValueError(
                f"`backend` (={pinned!r}) cannot serve {direction} of {call}: {'; '.join(reasons)}."
            )
        return backend
    if _settings.mode == "off":
        return named("aten")
    for backend in ALL:
        if not backend.why_not(call, direction) and not backend.why_slow(call, direction):
            return backend
    return named("aten")


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
    run = choose(call, direction, pinned).plan(call, direction)
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
) -> bool:
    """Whether ATen serves all three directions of a call on a CPU, remembered like a plan."""
    threads = torch.get_num_threads()
    geometry = (*stride, *padding, *dilation, groups)
    key = (input_size, weight_size, geometry, dtype, channels_last, pinned, threads)
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
        found = all(choose(call, each, pinned).name == "aten" for each in DIRECTIONS)
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
