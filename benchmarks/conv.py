"""How fast are leanconv's convolutions beside ATen's two layouts and beside the machine's limit?

    python benchmarks/conv.py                    every shape, direction, layout, fp32 and bf16
    python benchmarks/conv.py --isa avx2 --only convnext-56 --dtype float32
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 python benchmarks/conv.py --isa avx2

All candidates of a row are timed in turns, in the same process; the median over the rounds counts.
Freed memory stays with the process, as in a training loop that has warmed up (glibc's MALLOC_
settings, the same for all), so that no side's time is the kernel's zeroing of fresh pages. The
limit is the larger of copying input and output once (a copy of that size, timed in the same turns)
and the multiply-adds at the measured rate of fused multiply-adds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from _allocator import keep_freed_memory
from leanconv import _operators, dispatch
from leanconv._native import library
from leanconv.backends.call import memory_format

SHAPES = Path(__file__).with_name("conv_shapes.json")
TARGETS = {"forward": 2.5, "grad_input": 4.0, "grad_weight": 8.0}
LIMIT_TARGET, BF16_TARGET = 2.0, 1.3
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
Candidate = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One shape, direction, layout and dtype. A missing peer (no such layout in 1D) is None."""

    name: str
    direction: str
    layout: str
    dtype: str
    backend: str
    leanconv_seconds: float
    aten_contiguous_seconds: float
    aten_channels_last_seconds: float | None
    limit_seconds: float

    @property
    def speedup(self) -> float:
        peers = (self.aten_contiguous_seconds, self.aten_channels_last_seconds)
        return min(p for p in peers if p is not None) / self.leanconv_seconds

    @property
    def over_limit(self) -> float:
        return self.leanconv_seconds / self.limit_seconds


def shapes() -> list[dict]:
    table = json.loads(SHAPES.read_text())
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def tensors(shape: dict, dtype: torch.dtype, channels_last: bool) -> tuple[torch.Tensor, ...]:
    layout = memory_format(shape["dims"], channels_last)
    groups = shape["groups"]
    input = torch.randn(shape["input"]).to(dtype).contiguous(memory_format=layout)
    weight = torch.randn(shape["out_channels"], shape["input"][1] // groups, *shape["kernel"])
    spatial = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, p, d, k, s in zip(
            shape["input"][2:],
            shape["padding"],
            shape["dilation"],
            shape["kernel"],
            shape["stride"],
            strict=True,
        )
    ]
    grad = torch.randn(shape["input"][0], shape["out_channels"], *spatial).to(dtype)
    return input, weight.to(dtype), grad.contiguous(memory_format=layout)


def ours(shape: dict, direction: str, channels_last: bool, data: tuple, backend: str) -> Candidate:
    input, weight, grad = data
    rest = (shape["stride"], shape["padding"], shape["dilation"], shape["groups"], backend)
    if direction == "forward":
        return lambda: _operators.conv_forward(input, weight, None, *rest)
    if direction == "grad_input":
        size = list(input.shape)
        return lambda: _operators.conv_grad_input(grad, weight, size, channels_last, *rest)
    size = list(weight.shape)
    return lambda: _operators.conv_grad_weight(grad, input, size, channels_last, False, *rest)


def stock(shape: dict, direction: str, data: tuple) -> Candidate:
    input, weight, grad = data
    zeros = [0] * shape["dims"]
    rest = (shape["stride"], shape["padding"], shape["dilation"], False, zeros, shape["groups"])
    if direction == "forward":
        return lambda: torch.ops.aten.convolution(input, weight, None, *rest)
    mask = [direction == "grad_input", direction == "grad_weight", False]
    return lambda: torch.ops.aten.convolution_backward(grad, input, weight, None, *rest, mask)


def take_turns(candidates: dict[str, Candidate], seconds: float) -> dict[str, float]:
    """Median seconds of each; at least three rounds after one to warm up."""
    calls = {}
    for name, run in candidates.items():
        run()
        start = time.perf_counter()
        run()
        # Short calls are timed several at a time, for the clock's sake.
        calls[name] = max(1, math.ceil(5e-4 / max(time.perf_counter() - start, 1e-7)))
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples[next(iter(samples))]) < 3:
        for name, run in candidates.items():
            start = time.perf_counter()
            for _ in range(calls[name]):
                run()
            samples[name].append((time.perf_counter() - start) / calls[name])
    return {name: statistics.median(times) for name, times in samples.items()}


def measure(
    shape: dict, direction: str, dtype: str, layouts: list[str], fma_rate: float, options
) -> list[Row]:
    flat = shape["dims"] == 1
    every = {
        layout: tensors(shape, DTYPES[dtype], layout == "channels_last")
        for layout in (["contiguous"] if flat else ["contiguous", "channels_last"])
    }
    wanted = [layout for layout in layouts if layout in every]
    candidates: dict[str, Candidate] = {
        f"aten {layout}": stock(shape, direction, data) for layout, data in every.items()
    }
    for layout in wanted:
        candidates[layout] = ours(
            shape, direction, layout == "channels_last", every[layout], options.backend
        )
    input, weight, grad = every["contiguous"]
    source = torch.zeros((input.numel() + grad.numel()) // 2, dtype=input.dtype)
    target = torch.zeros_like(source)
    candidates["copy"] = lambda: target.copy_(source)
    seconds = take_turns(candidates, options.seconds)
    multiply_adds = grad.numel() * weight[0].numel()
    limit = max(seconds["copy"], multiply_adds / fma_rate)
    rows = []
    for layout in wanted:
        call = dispatch.Call(
            tuple(input.shape),
            tuple(weight.shape),
            *(tuple(shape[name]) for name in ("stride", "padding", "dilation")),
            shape["groups"],
            input.dtype,
            "cpu",
            layout == "channels_last",
            torch.get_num_threads(),
        )
        rows.append(
            Row(
                shape["name"],
                direction,
                layout,
                dtype,
                dispatch.choose(call, direction, options.backend).name,
                seconds[layout],
                seconds["aten contiguous"],
                seconds.get("aten channels_last"),
                limit,
            )
        )
    return rows


def show(row: Row) -> None:
    last = row.aten_channels_last_seconds
    print(
        f"{row.name:18} {row.direction:11} {row.layout:13} {row.dtype:8} {row.backend:11}"
        f"{row.leanconv_seconds * 1e3:9.3f}{row.aten_contiguous_seconds * 1e3:10.3f}"
        f"{'-' if last is None else f'{last * 1e3:.3f}':>10}{row.limit_seconds * 1e3:9.3f}"
        f"{row.speedup:9.2f}{row.over_limit:9.2f}",
        flush=True,
    )


def geomean(values: list[float]) -> float:
    return statistics.geometric_mean(values)


def summarise(rows: list[Row]) -> list[str]:
    """Geometric means beside their targets, and every miss."""
    lines = []

    def verdict(what: str, value: float, good: bool, target: str) -> None:
        lines.append(f"{'ok  ' if good else 'MISS'} {what}: {value:.2f} (target {target})")

    for direction, target in TARGETS.items():
        fp32 = [r for r in rows if r.direction == direction and r.dtype == "float32"]
        if not fp32:
            continue
        speedup = geomean([r.speedup for r in fp32])
        verdict(f"{direction} speedup, geometric mean", speedup, speedup >= target, f">= {target}")
        over = geomean([r.over_limit for r in fp32])
        good = over <= LIMIT_TARGET
        verdict(f"{direction} time over limit, geometric mean", over, good, f"<= {LIMIT_TARGET}")
    for r in rows:
        if r.speedup < 1.0:
            what = f"{r.name} {r.direction} {r.layout} {r.dtype} speedup"
            verdict(what, r.speedup, False, ">= 1.0")
    fp32_seconds = {
        (r.name, r.direction, r.layout): r.leanconv_seconds for r in rows if r.dtype == "float32"
    }
    for r in rows:
        key = (r.name, r.direction, r.layout)
        if r.dtype == "bfloat16" and key in fp32_seconds:
            ratio = r.leanconv_seconds / fp32_seconds[key]
            if ratio > BF16_TARGET:
                what = f"{' '.join(key)} bfloat16 time over float32"
                verdict(what, ratio, False, f"<= {BF16_TARGET}")
    return lines


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isa", help="hold our kernels to one instruction set, such as avx2")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", action="append", help="a shape's name; may be repeated")
    parser.add_argument("--direction", action="append", choices=list(TARGETS))
    parser.add_argument("--dtype", action="append", choices=list(DTYPES))
    parser.add_argument("--layout", action="append", choices=["contiguous", "channels_last"])
    parser.add_argument("--backend", default="", help="pins a backend instead of dispatching")
    parser.add_argument(
        "--mode", default="measure", choices=["auto", "measure", "rules", "off"], help="of dispatch"
    )
    parser.add_argument("--seconds", type=float, default=0.6, help="time for a row's rounds")
    parser.add_argument("--quick", action="store_true", help="three rounds a row")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seconds = 0.0
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parsed(arguments)
    torch.manual_seed(0)
    dispatch.configure(mode=options.mode)
    if options.threads:
        torch.set_num_threads(options.threads)
    threads, lib = torch.get_num_threads(), library()
    if lib is None:
        raise SystemExit("The compiled kernels are not here; see leanconv.backends().")
    if options.isa and lib.leanconv_set_isa(options.isa.encode()):
        raise SystemExit(f"`--isa` (={options.isa}) must be one of {lib.leanconv_isas().decode()}.")
    isa = lib.leanconv_isa().decode()
    fma_rate = max(lib.leanconv_fma_peak(threads, 2_000_000) for _ in range(5))
    capability = torch.backends.cpu.get_cpu_capability()
    print(
        f"torch {torch.__version__} ({capability}), leanconv kernels {isa}, {threads} threads, "
        f"{fma_rate / 1e9:.1f} G multiply-adds/s; times in ms"
    )
    print(
        f"{'shape':18} {'direction':11} {'layout':13} {'dtype':8} {'backend':11}{'leanconv':>9}"
        f"{'aten':>10}{'aten cl':>10}{'limit':>9}{'speedup':>9}{'x limit':>9}"
    )
    rows: list[Row] = []
    for shape in shapes():
        if options.only and shape["name"] not in options.only:
            continue
        for direction in options.direction or TARGETS:
            for dtype in options.dtype or ["float32", "bfloat16"]:
                layouts = options.layout or ["contiguous", "channels_last"]
                for row in measure(shape, direction, dtype, layouts, fma_rate, options):
                    rows.append(row)
                    show(row)
    print("\n".join(summarise(rows)))
    if options.json:
        circumstances = {"torch": torch.__version__, "aten": capability, "isa": isa}
        circumstances |= {"threads": threads, "multiply_adds_per_second": fma_rate}
        data = {"circumstances": circumstances, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        # Choices of its own: what was measured before is not what is asked here.
        dispatch.configure(cache=Path(folder) / "choices.sqlite", tune_seconds=0.5)
        main()
