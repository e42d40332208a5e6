"""Which module, and which line of source, a moment of a training step belongs to.

Rules: in the forward it is the innermost module whose forward runs; in the backward it is the
module whose forward made the node that autograd is executing, found by the node's sequence number;
a parameter's accumulation is its own module's. What belongs to none has no owner.
"""

from __future__ import annotations

import bisect
import linecache
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from leanconv.profiler.watch import in_backward

NOBODY = -1
_TORCH = os.path.dirname(torch.__file__) + os.sep
_LEANCONV = str(Path(__file__).resolve().parent.parent) + os.sep
_MODELS = _LEANCONV + "models" + os.sep
_OURS = os.path.join(_LEANCONV, "profiler", "")


class Owners:
    """Modules by number, in the order met, and the module that is running now."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.kinds: list[str] = []
        self.calls: list[int] = []
        self._numbers: dict[int, int] = {}
        self._of_parameter: dict[int, int] = {}
        self._kept: list[nn.Module] = []  # so that no number is used again while we run
        self._stack: list[int] = []
        self._base = 0  # how deep the stack was when the current backward began
        # A node made while number `_log_owner[i]` ran has a sequence number from `_log_from[i]` on.
        self._log_from: list[int] = []
        self._log_owner: list[int] = []

    def add(self, root: nn.Module) -> None:
        """Name a model's modules, below its class's name."""
        name = type(root).__name__
        taken = sum(path.partition("#")[0] == name and "." not in path for path in self.paths)
        name = f"{name}#{taken + 1}" if taken else name
        for path, module in root.named_modules():
            if id(module) in self._numbers:
                continue
            number = len(self.paths)
            self._numbers[id(module)] = number
            self._kept.append(module)
            self.paths.append(f"{name}.{path}" if path else name)
            self.kinds.append(type(module).__name__)
            self.calls.append(0)
            for parameter in module.parameters(recurse=False):
                self._of_parameter.setdefault(id(parameter), number)

    def enter(self, module: nn.Module) -> int:
        """A module's forward begins; its number."""
        number = self._numbers.get(id(module))
        if number is None:
            self.add(module)
            number = self._numbers[id(module)]
        self.calls[number] += 1
        self._stack.append(number)
        self._note()
        return number

    def exit(self) -> None:
        """The innermost module's forward ends."""
        if self._stack:
            self._stack.pop()
            self._note()

    def begin_backward(self) -> int:
        """From now on modules below do not own what runs; returns what `end_backward` takes."""
        before, self._base = self._base, len(self._stack)
        return before

    def end_backward(self, before: int) -> None:
        """The inverse of `begin_backward`."""
        self._base = before

    def of_parameter(self, parameter: Tensor) -> int:
        """The module that holds a parameter itself."""
        return self._of_parameter.get(id(parameter), NOBODY)

    def of_node(self, sequence_number: int) -> int:
        """The module whose forward made the node of that number."""
        index = bisect.bisect_right(self._log_from, sequence_number) - 1
        return self._log_owner[index] if index >= 0 else NOBODY

    def now(self) -> int:
        """The module that the running operator belongs to."""
        if len(self._stack) > self._base:
            return self._stack[-1]
        if not in_backward():
            return NOBODY
        node: Any = torch._C._current_autograd_node()
        if node is None:
            return NOBODY
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            return self.of_parameter(variable)
        return self.of_node(node._sequence_nr())

    def path(self, number: int) -> str:
        """The path of a module, empty for none."""
        return self.paths[number] if number >= 0 else ""

    def _note(self) -> None:
        start = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        owner = self._stack[-1] if self._stack else NOBODY
        if self._log_from and self._log_from[-1] == start:
            self._log_owner[-1] = owner
        else:
            self._log_from.append(start)
            self._log_owner.append(owner)


class Lines:
    """Chains of source lines by number; the innermost line comes first."""

    def __init__(self) -> None:
        self.chains: list[tuple[tuple[str, int], ...]] = []
        self._numbers: dict[tuple[tuple[str, int], ...], int] = {}
        self._wanted: dict[str, bool] = {}

    def here(self) -> int:
        """The lines outside torch and leanconv's machinery that led to the caller."""
        frame: FrameType | None = sys._getframe(1)
        chain: list[tuple[str, int]] = []
        while frame is not None:
            file = frame.f_code.co_filename
            wanted = self._wanted.get(file)
            if wanted is None:
                wanted = self._wanted[file] = _is_users(file)
            if wanted:
                chain.append((file, frame.f_lineno))
            elif frame.f_code.co_name == "drive" and file.startswith(_OURS):
                break  # what lies outside called the profiler, not the step
            frame = frame.f_back
        key = tuple(chain)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.chains)
            self.chains.append(key)
        return number


def _is_users(file: str) -> bool:
    if file.startswith(_TORCH) or file.startswith("<frozen"):
        return False
    return not file.startswith(_LEANCONV) or file.startswith(_MODELS)


def line_name(file: str, line: int) -> str:
    """`resnet.py:92`, with the folder before it."""
    path = Path(file)
    return f"{path.parent.name}/{path.name}:{line}" if path.parent.name else f"{path.name}:{line}"


def line_text(file: str, line: int) -> str:
    """The line's text, where the file can be read."""
    return linecache.getline(file, line).strip()


def parameters_of(model: Any) -> list[Tensor]:
    """Parameters and buffers of a module; none for anything else."""
    if not isinstance(model, nn.Module):
        return []
    return [*model.parameters(), *model.buffers()]
