"""What the machine can do at best: copy bandwidth and the rate of large matrix products.

Measured once for a device, thread count and torch version, and kept in the user's cache directory;
a cache that cannot be read or written costs a new measurement, never an error.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import torch

from leanconv.measure.circumstances import accelerator_name, processor_name
from leanconv.measure.clock import Progress, time_calls
from leanconv.measure.record import from_data, record, to_data

REPEATS = 7


@record
@dataclass(frozen=True)
class MachineLimits:
    """Best rates measured. A fused multiply-add counts as two floating-point operations.

    `copy_bytes_per_second` counts bytes read plus bytes written, on tensors larger than any cache.
    """

    device: str
    threads: int
    torch: str
    copy_bytes_per_second: float
    gemm_f32_flops_per_second: float
    gemm_bf16_flops_per_second: float


def _best_seconds(call: Callable[[], object], device: torch.device) -> float:
    time_calls(call, 2, device)
    return min(time_calls(call, 1, device) for _ in range(REPEATS))


def copy_bytes_per_second(size_bytes: int = 1 << 28, device: torch.device | str = "cpu") -> float:
    """Bytes read plus written a second when a tensor of `size_bytes` is copied, at best.

    A convolution over small tensors works in the caches; for its limit pass its own size.
    """
    device = torch.device(device)
    source = torch.ones(max(1, size_bytes // 4), device=device)
    target = torch.empty_like(source)
    return 2 * 4 * source.numel() / _best_seconds(lambda: target.copy_(source), device)


def gemm_flops_per_second(dtype: torch.dtype, device: torch.device | str = "cpu") -> float:
    """Operations a second of a square matrix product, at best."""
    device = torch.device(device)
    size = 8192 if device.type == "cuda" else 1024
    a = torch.randn(size, size, device=device).to(dtype)
    b = torch.randn(size, size, device=device).to(dtype)
    out = torch.empty_like(a)
    return 2 * size**3 / _best_seconds(lambda: torch.mm(a, b, out=out), device)


def _cache_file() -> Path:
    return Path(platformdirs.user_cache_dir("leanconv", appauthor=False)) / "limits.json"


def _read_cache(file: Path) -> dict[str, MachineLimits]:
    try:
        stored = json.loads(file.read_text())
        entries = {key: from_data(value) for key, value in stored.items()}
    except (OSError, ValueError, AttributeError):
        return {}
    return {key: value for key, value in entries.items() if isinstance(value, MachineLimits)}


def _write_cache(file: Path, entries: dict[str, MachineLimits]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as draft:
            json.dump(to_data(entries), draft, indent=1)
        os.replace(draft.name, file)
    except OSError:
        pass  # the next process measures again


def machine_limits(
    device: torch.device | str = "cpu",
    *,
    refresh: bool = False,
    on_progress: Progress | None = None,
) -> MachineLimits:
    """The limits of `device`, from the cache or measured now in about a second.

    Args:
        device: `"cpu"` or a CUDA device.
        refresh: measure again even if the cache has them.
        on_progress: called with the finished share, 0 to 1.
    """
    device = torch.device(device)
    name = accelerator_name() if device.type == "cuda" else processor_name()
    threads = torch.get_num_threads()
    key = f"{name}, {threads} threads, torch {torch.__version__}"
    file = _cache_file()
    cached = _read_cache(file)
    if key in cached and not refresh:
        return cached[key]
    questions: tuple[Callable[[], float], ...] = (
        lambda: copy_bytes_per_second(device=device),
        lambda: gemm_flops_per_second(torch.float32, device),
        lambda: gemm_flops_per_second(torch.bfloat16, device),
    )
    measured: list[float] = []
    for take in questions:
        measured.append(take())
        if on_progress:
            on_progress(len(measured) / 3)
    limits = MachineLimits(name, threads, torch.__version__, *measured)
    _write_cache(file, {**_read_cache(file), key: limits})
    return limits
