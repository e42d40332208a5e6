"""The peak memory of a step, split by what holds it.

Rules: a pass of its own, never timed. Every tensor storage the step makes is counted from the
operator that made it until it is freed, each once however many views it has; what an operator
allocates and frees inside itself is not seen on a CPU, so the process's peak resident memory stands
beside it. On a GPU the total is the caching allocator's own peak.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from leanconv.measure.circumstances import Circumstances
from leanconv.measure.record import record

CURVE_POINTS = 200


@record
@dataclass(frozen=True)
class MemorySample:
    """Live bytes by kind at one moment.

    `parameters` includes buffers; `activations` is what the forward made and the backward found
    alive; `inputs` existed before the step; `temporary` is all else.
    """

    parameters_bytes: int = 0
    gradients_bytes: int = 0
    optimizer_bytes: int = 0
    inputs_bytes: int = 0
    activations_bytes: int = 0
    temporary_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """The sum of all kinds."""
        return sum(getattr(self, f.name) for f in fields(self))


@record
@dataclass(frozen=True)
class MemoryPeak:
    """Memory of one step. `curve` holds up to 200 moments of it, the peak among them.

    `resident_peak_bytes` is the whole process's during the step, libraries and allocator's slack
    included; -1 where the system does not tell.
    """

    peak: MemorySample
    curve: tuple[MemorySample, ...]
    resident_peak_bytes: int
    device: str
    circumstances: Circumstances

    @property
    def total_bytes(self) -> int:
        """Live bytes at the peak."""
        return self.peak.total_bytes


@dataclass
class _Storage:
    size: int
    kind: str
    watch: weakref.ref[torch.UntypedStorage]


@dataclass
class _Log:
    """Allocations (+) and frees (-) in order, by storage; kinds may be learnt later."""

    events: list[tuple[int, _Storage]] = field(default_factory=list)

    def curve(self) -> Iterator[dict[str, int]]:
        live: dict[str, int] = {}
        for change, storage in self.events:
            live[storage.kind] = live.get(storage.kind, 0) + change
            yield live


def _storages(tensors: Iterable[Any]) -> Iterator[torch.UntypedStorage]:
    for tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.device.type != "meta":
            # Sparse tensors and wrapper subclasses have no storage of their own.
            with suppress(NotImplementedError, RuntimeError):
                yield tensor.untyped_storage()


class _Tracker(TorchDispatchMode):
    """Sees every operator of the step, and through weak references every storage's end."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own lacks hints
        self.device = device
        self.log = _Log()
        self.live: dict[int, _Storage] = {}
        self.in_backward = False

    def note(self, tensors: Iterable[Any], kind: str, *, relabel: bool = False) -> None:
        for storage in _storages(tensors):
            known = self.live.get(storage._cdata)
            if known is None:
                if storage.device.type == self.device.type and storage.nbytes():
                    self._start(storage, kind)
                continue
            if relabel:
                known.kind = kind
            if known.size != storage.nbytes():
                self.log.events.append((storage.nbytes() - known.size, known))
                known.size = storage.nbytes()

    def _start(self, storage: torch.UntypedStorage, kind: str) -> None:
        key = storage._cdata
        entry = _Storage(storage.nbytes(), kind, weakref.ref(storage, lambda _: self._end(key)))
        self.live[key] = entry
        self.log.events.append((entry.size, entry))

    def _end(self, key: int) -> None:
        entry = self.live.pop(key, None)
        if entry is not None:
            self.log.events.append((-entry.size, entry))

    def _follow_phase(self) -> None:
        in_backward = torch._C._current_graph_task_id() != -1
        if in_backward and not self.in_backward:
            for entry in self.live.values():
                if entry.kind == "forward":
                    entry.kind = "activations"
        self.in_backward = in_backward

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._follow_phase()
        self.note(tree_iter((args, kwargs)), "inputs")
        result = func(*args, **(kwargs or {}))
        self.note(tree_iter(result), "temporary" if self.in_backward else "forward")
        return result


def _sample(live: dict[str, int]) -> MemorySample:
    # What the forward made and freed before any backward began was temporary.
    temporary = live.get("temporary", 0) + live.get("forward", 0)
    kinds = ("parameters", "gradients", "optimizer", "inputs", "activations")
    return MemorySample(
        **{f"{kind}_bytes": live.get(kind, 0) for kind in kinds}, temporary_bytes=temporary
    )


def _optimizer_tensors(optimizer: torch.optim.Optimizer | None) -> list[Any]:
    return [] if optimizer is None else list(tree_iter(list(optimizer.state.values())))


def reset_resident_peak() -> bool:
    """Forget the process's peak resident memory so far; False where the system cannot."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def resident_peak_bytes() -> int:
    """The process's peak resident memory, since the last reset where there was one."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # Windows
        return -1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def measure_memory(
    step: Callable[[], object],
    *,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    device: torch.device | str = "cpu",
) -> MemoryPeak:
    """The peak memory of one call of `step`, by kind.

    Args:
        step: one training step (or any callable); runs once.
        model: whose parameters and buffers count as such, and whose gradients are told apart.
        optimizer: whose state is told apart.
        device: only tensors of this kind of device count.

    Example:
        >>> import torch
        >>> from leanconv.measure import measure_memory
        >>> layer, x = torch.nn.Linear(256, 256, bias=False), torch.ones(64, 256)
        >>> peak = measure_memory(lambda: layer(x).sum().backward(), model=layer).peak
        >>> peak.parameters_bytes, peak.gradients_bytes
        (262144, 262144)
    """
    with watch_memory(model=model, optimizer=optimizer, device=device) as found:
        step()
    return found[0]


@contextmanager
def watch_memory(
    *,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[list[MemoryPeak]]:
    """`measure_memory` of a `with` block; the list has the result once the block has ended."""
    device = torch.device(device)
    tracker = _Tracker(device)
    parameters = [] if model is None else [*model.parameters(), *model.buffers()]
    tracker.note(parameters, "parameters")
    tracker.note((p.grad for p in parameters), "gradients")
    tracker.note(_optimizer_tensors(optimizer), "optimizer")

    def gradient_ready(parameter: Tensor) -> None:
        tracker.note([parameter.grad], "gradients", relabel=True)

    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    reset_resident_peak()
    found: list[MemoryPeak] = []
    with ExitStack() as hooks:
        for parameter in parameters:
            if parameter.requires_grad and parameter.is_leaf:
                handle = parameter.register_post_accumulate_grad_hook(gradient_ready)
                hooks.callback(handle.remove)
        with tracker:
            yield found
    tracker.note(_optimizer_tensors(optimizer), "optimizer", relabel=True)
    resident = resident_peak_bytes()

    samples = [_sample(live) for live in tracker.log.curve()] or [MemorySample()]
    at_peak = max(range(len(samples)), key=lambda i: samples[i].total_bytes)
    peak = samples[at_peak]
    if device.type == "cuda":
        unseen = max(0, torch.cuda.max_memory_allocated(device) - peak.total_bytes)
        known = {f.name: getattr(peak, f.name) for f in fields(peak)}
        peak = MemorySample(**{**known, "temporary_bytes": peak.temporary_bytes + unseen})
    stride = max(1, -(-len(samples) // CURVE_POINTS))
    kept = sorted({*range(0, len(samples), stride), at_peak})
    curve = tuple(peak if i == at_peak else samples[i] for i in kept)
    found.append(MemoryPeak(peak, curve, resident, str(device), Circumstances.now()))
