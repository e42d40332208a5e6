"""The second pass: torch's profiler, with labels for phases, modules and source lines.

Rules: an operator's self time excludes the operators it calls, so self times add up and nothing is
counted twice; total time counts a nested call of the same operator once; time inside a phase but in
no operator is Python's and the framework's, in a row of its own. An operator of the backward
belongs to the module and line whose forward operator has its node's sequence number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, record_function

from leanconv.profiler.flops import Call, Work, work_of
from leanconv.profiler.owners import NOBODY, Lines, Owners
from leanconv.profiler.rows import OUTSIDE
from leanconv.profiler.watch import BACKWARD, FORWARD, GRADIENT_SYNC, OTHER, RECOMPUTE, Watch
from leanconv.reversible._engine import RECOMPUTE as ENGINE_LABEL

_PHASE, _MODULE = "leanconv phase: ", "leanconv module: "
_LINE, _GRADIENT = "leanconv line: ", "leanconv gradient: "
_NODE = "autograd::engine::evaluate_function: "
_LABELS = (_PHASE, _MODULE, _LINE, _GRADIENT, ENGINE_LABEL)
# As the profiler writes the types of floating-point tensors.
_ITEM_BYTES = {"double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2}
_SYNC = ("c10d::", "gloo:", "nccl:", "torch::distributed::reducer")


@dataclass
class Slice:
    """One operator or label as the profiler saw it. `parent` is the slice it lies in, or -1."""

    name: str
    phase: str
    module: int
    line: int
    parent: int
    start_us: float
    total_us: float
    self_us: float
    device_us: float
    thread: int
    total_device_us: float = 0.0
    work: Work | None = None

    @property
    def is_label(self) -> bool:
        """Whether it is one of ours, whose self time is Python's."""
        return self.name.startswith(_LABELS)


class _LineMode(TorchFunctionMode):
    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self.lines = lines

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "__get__":  # an attribute, as in x.shape
            return func(*args, **(kwargs or {}))
        with record_function(f"{_LINE}{self.lines.here()}"):
            return func(*args, **(kwargs or {}))


class OperatorPass:
    """Runs torch's profiler from `begin` to `close`, and listens for phases and modules."""

    def __init__(self, lines: bool = True) -> None:
        self.owners = Owners()
        self.lines = Lines()
        self.steps = 0
        self.slices: list[Slice] = []
        self.watch: Watch | None = None
        self._mode = _LineMode(self.lines) if lines else None
        self._labels: list[Any] = []
        self._bases: list[int] = []
        self._hooked: set[int] = set()
        self._open = ExitStack()
        self._profiler: Any = None

    def begin(self) -> None:
        """A step begins; the first starts the profiler."""
        if self._profiler is None:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                activities.append(ProfilerActivity.CUDA)
            self._open.enter_context(_quiet())
            self._profiler = torch.profiler.profile(
                activities=activities, acc_events=True, record_shapes=True
            )
            self._open.enter_context(self._profiler)
            if self._mode is not None:
                self._open.enter_context(self._mode)
        self._enter(_PHASE + OTHER)

    def end(self) -> None:
        """The step ends."""
        while self._labels:
            self._exit()
        self.steps += 1

    def close(self) -> None:
        """Stop the profiler and read it."""
        while self._labels:
            self._exit()
        self._open.close()
        if self._profiler is not None and self.steps:
            self.slices = _slices(_whole_steps(list(self._profiler.events() or []), self.steps))
        self._profiler = None

    def enter_phase(self, phase: str) -> None:
        """Label the phase."""
        if phase == BACKWARD:
            self._bases.append(self.owners.begin_backward())
        self._enter(_PHASE + phase)

    def exit_phase(self, phase: str) -> None:
        """End the label."""
        if phase == BACKWARD and self._bases:
            self.owners.end_backward(self._bases.pop())
        self._exit()

    def enter_module(self, module: nn.Module) -> None:
        """Label the module, and its parameters' accumulation."""
        number = self.owners.enter(module)
        if id(module) not in self._hooked:
            self._hooked.add(id(module))
            for parameter in module.parameters(recurse=False):
                self._label_gradient(parameter, number)
        self._enter(f"{_MODULE}{number}")

    def exit_module(self, module: nn.Module) -> None:
        """End the label."""
        self.owners.exit()
        self._exit()

    def _label_gradient(self, parameter: Tensor, number: int) -> None:
        if not (parameter.is_leaf and parameter.requires_grad):
            return

        def label(parameter: Tensor) -> None:
            with record_function(f"{_GRADIENT}{number}"):
                pass

        self._open.callback(parameter.register_post_accumulate_grad_hook(label).remove)

    def _enter(self, name: str) -> None:
        label = record_function(name)
        label.__enter__()
        self._labels.append(label)

    def _exit(self) -> None:
        if self._labels:
            self._labels.pop().__exit__(None, None, None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the profiler's library from logging to standard error, unless the user set its level."""
    name = "KINETO_LOG_LEVEL"
    if name in os.environ:
        yield
        return
    os.environ[name] = "99"
    try:
        yield
    finally:
        os.environ.pop(name, None)


def _number(name: str) -> int:
    return int(name.rpartition(" ")[2])


def _whole_steps(events: list[Any], steps: int) -> list[Any]:
    """The events of steps that ended; the last one's begin may be of a step that raised."""
    ends = sorted(
        e.time_range.end for e in events if e.name == _PHASE + OTHER and e.cpu_parent is None
    )
    return [e for e in events if e.time_range.start < ends[steps - 1]]


def _slices(events: list[Any]) -> list[Slice]:
    """The CPU's slices, each attributed; parents come before their children."""
    kept = [e for e in events if e.device_type == DeviceType.CPU and not e.is_async]
    kept.sort(key=lambda e: (e.thread, e.time_range.start, -e.time_range.end))
    place = {id(e): index for index, e in enumerate(kept)}
    # The last forward operator to start before a node was made is the one that made it.
    makers: dict[tuple[int, int], int] = {}
    slices: list[Slice] = []
    known: dict[tuple[str, str], Work | None] = {}
    for index, event in enumerate(kept):
        parent = place.get(id(event.cpu_parent), -1) if event.cpu_parent is not None else -1
        over = slices[parent] if 0 <= parent < index else None
        phase, module, line = (over.phase, over.module, over.line) if over else ("", NOBODY, NOBODY)
        name = event.name
        if name.startswith(_PHASE):
            phase = name[len(_PHASE) :]
            if phase == BACKWARD:
                module = NOBODY
        elif name.startswith(_MODULE):
            module = _number(name)
        elif name.startswith(_LINE):
            line = _number(name)
        elif name.startswith(ENGINE_LABEL):
            phase = RECOMPUTE
        elif name.startswith(_NODE):
            # A GPU's backward runs in autograd's own threads, below no phase of the main one.
            phase = BACKWARD
        elif name.startswith(_SYNC):
            phase = GRADIENT_SYNC
        slices.append(
            Slice(
                name=name,
                phase=phase or OTHER,
                module=module,
                line=line,
                parent=parent,
                start_us=event.time_range.start,
                total_us=event.time_range.elapsed_us(),
                self_us=max(0.0, event.self_cpu_time_total),
                device_us=max(0.0, float(event.self_device_time_total)),
                thread=event.thread,
                total_device_us=max(0.0, float(event.device_time_total)),
                work=_work(event, known),
            )
        )
        if event.sequence_nr >= 0 and event.scope != 1 and not name.startswith(_NODE):
            makers[event.thread, event.sequence_nr] = index
    _attribute_backward(kept, slices, makers)
    return slices


def _work(event: Any, known: dict[tuple[str, str], Work | None]) -> Work | None:
    if "::" not in event.name or not event.input_shapes:
        return None
    types = getattr(event, "input_dtypes", None) or []
    size = next((_ITEM_BYTES[t] for t in types if t in _ITEM_BYTES), 4)
    key = event.name, f"{event.input_shapes} {event.concrete_inputs} {size}"
    if key not in known:
        known[key] = work_of(Call(event.name, event.input_shapes, event.concrete_inputs, size))
    return known[key]


def _attribute_backward(
    events: list[Any], slices: list[Slice], makers: dict[tuple[int, int], int]
) -> None:
    """Give each node, and what it runs, to the module and line that made it."""
    nodes: dict[int, int] = {}  # slice -> the node it lies in
    given: dict[int, tuple[int, int]] = {}
    for index, (event, slice_) in enumerate(zip(events, slices, strict=True)):
        if slice_.name.startswith(_NODE):
            nodes[index] = index
            maker = makers.get((event.fwd_thread, event.sequence_nr))
            if event.sequence_nr >= 0 and maker is not None:
                given[index] = slices[maker].module, slices[maker].line
        elif slice_.parent in nodes and not slice_.name.startswith(_MODULE):
            nodes[index] = nodes[slice_.parent]
        if slice_.name.startswith(_GRADIENT) and index in nodes:
            given[nodes[index]] = _number(slice_.name), NOBODY
    for index, node in nodes.items():
        if node in given:
            slices[index].module, slices[index].line = given[node]


def shown_name(slice_: Slice) -> str:
    """The operator's name in tables."""
    return OUTSIDE if slice_.is_label else slice_.name.removeprefix(_NODE)


def module_phase(phase: str) -> bool:
    """Whether a phase's time can be a module's."""
    return phase in (FORWARD, RECOMPUTE, BACKWARD)
