"""The key of a measured choice: written here, and read here for people.

A choice holds for one op, direction, shape, layout, dtype, thread count, machine, set of versions
and set of candidates; whatever of these changes, the choice is measured anew.
"""

from __future__ import annotations

import functools
import json

import torch

from leanconv._native import library
from leanconv.backends import Call, Direction
from leanconv.backends.separable import SeparableCall
from leanconv.measure.circumstances import accelerator_name, processor_name


@functools.cache
def _machine(device: str) -> tuple[str, str]:
    if device == "cuda":
        return accelerator_name(), str(torch.version.cuda)
    return processor_name(), torch.backends.cpu.get_cpu_capability()


def key_of(call: Call | SeparableCall, direction: Direction, candidates: list[str]) -> str:
    """What a choice holds for: shape, layout, dtype, threads, machine, versions, candidates."""
    from leanconv import __version__

    op = "conv"
    if isinstance(call, SeparableCall):
        op = f"separable to {call.channels_out} {call.activation}".rstrip()
        call = call.depthwise
    lib = library()
    isa = "" if lib is None else lib.leanconv_isa().decode()
    shape = (call.input_size, call.weight_size, call.stride, call.padding, call.dilation)
    kind = (call.groups, str(call.dtype), call.channels_last, call.threads)
    where = (call.device, _machine(call.device), isa, torch.__version__, __version__)
    return json.dumps([op, direction, *shape, *kind, *where, candidates])


def subject(key: str) -> str:
    """What a key speaks of, in one line; the key itself where it is not one of `key_of`'s.

    >>> subject("something else")
    'something else'
    """
    try:
        op, direction, size, kernel, stride, padding, dilation, groups, *rest = json.loads(key)
        dtype, channels_last, threads, device, *_ = rest
        what = direction if op == "conv" else f"{op}: {direction}"
        parts = [what, f"{_joined(size)} by {_joined(kernel)}"]
        for name, values, usual in (
            ("stride", stride, 1),
            ("padding", padding, 0),
            ("dilation", dilation, 1),
        ):
            if any(value != usual for value in values):
                parts.append(f"{name} {_joined(values)}")
        parts.append(f"groups {groups}")
        parts.append(f"{dtype.removeprefix('torch.')}")
        parts.append("channels_last" if channels_last else "contiguous")
        parts.append(f"{threads} threads" if device == "cpu" else device)
    except (ValueError, TypeError, AttributeError):
        return key
    return ", ".join(parts)


def _joined(values: list[int]) -> str:
    return "x".join(map(str, values))
