"""Reports in a terminal: 80 columns, plain when piped. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from leanconv.measure.record import to_data
from leanconv.profiler.columns import MODULES, OPERATORS, Grouping, View
from leanconv.profiler.report import Report, Training
from leanconv.profiler.units import (
    format_bytes,
    format_rate,
    format_seconds,
    format_shape,
    format_share,
)

if TYPE_CHECKING:
    from leanconv.measure import Circumstances, Comparison, MachineLimits, MemoryPeak
    from leanconv.profiler.result import Profile

BAR_WIDTH = 30
NAME_WIDTH = 18
CELL_WIDTH = 9
MEMORY_KINDS = ("parameters", "gradients", "optimizer", "inputs", "activations", "temporary")


def printable(text: str) -> str:
    """The text with control characters shown as `?`: names come from users and their files."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _name(text: str, width: int | None = None) -> str:
    text = printable(text)
    if width is not None and len(text) > width:
        text = text[: width - 2] + ".."
    return escape(text)


def _table(console: Console, title: str) -> Table:
    console.print(f"\n[bold]{title}[/]", highlight=False)
    return Table(
        box=box.SIMPLE_HEAD if console.is_terminal else box.ASCII2,
        safe_box=True,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def _heading(text: str, console: Console) -> None:
    console.print(f"\n[bold]== {text}[/]", highlight=False)


def print_report(report: Report, console: Console, view: View | None = None) -> None:
    """Print all parts of a report."""
    console.print(f"[bold]{_name(report.title)}[/]", highlight=False)
    for training in report.trainings:
        print_training(training, console)
    for profile in report.profiles:
        print_profile(profile, console, view)
    for comparison in report.comparisons:
        print_comparison(comparison, console)
    print_circumstances(report.circumstances, console, report.limits)


def print_training(training: Training, console: Console) -> None:
    """One line: where the loss went, and the accuracy."""
    console.print(
        f"Trained {_name(training.name)} for {len(training.losses)} steps of "
        f"{training.batch_size} on {_name(training.data)} in "
        f"{format_seconds(training.seconds)}: loss {training.losses[0]:.3f} -> "
        f"{training.losses[-1]:.3f}, accuracy {training.accuracy:.1%} on held-out images.",
        highlight=False,
    )


def print_profile(profile: Profile, console: Console, view: View | None = None) -> None:
    """Phases, tables and memory of one profile."""
    view = view or View()
    _heading(f"{_name(profile.name)}, input {format_shape(profile.input_shape)}", console)
    console.print(
        f"{profile.parameters:,} parameters. A training step takes "
        f"{format_seconds(profile.median_step_seconds)} (median of "
        f"{len(profile.step_seconds)}, no profiler running).",
        highlight=False,
    )
    if profile.stopped:
        console.print(f"[yellow]The loop was stopped by {_name(profile.stopped)}[/]")
    if not profile.steady:
        console.print("[yellow]Warming up never settled: this machine is busy or throttled.[/]")
    _print_phases(profile, console)
    if profile.operators:
        for grouping in view.groupings():
            print_rows(profile, grouping, console, view)
        console.print(
            f"Under the operator profiler a step took {profile.profiler_overhead:.2f} times as "
            "long; the phases above are from steps without it.",
            highlight=False,
        )
    if profile.memory is not None:
        _print_memory(profile.memory, console)


def _bar(share: float) -> str:
    return "#" * round(share * BAR_WIDTH)


def _print_phases(profile: Profile, console: Console) -> None:
    table = _table(console, "Time of a step by phase")
    table.add_column("phase")
    for column in ("time", "share"):
        table.add_column(column, justify="right")
    table.add_column("", width=BAR_WIDTH)
    whole = profile.mean_step_seconds
    for phase in profile.phases:
        if not any(phase.samples_seconds):
            continue
        share = phase.mean_seconds / whole
        table.add_row(
            phase.name, format_seconds(phase.mean_seconds), format_share(share), _bar(share)
        )
    table.add_row("step (mean)", format_seconds(whole), format_share(1.0), "")
    console.print(table)


def _title(profile: Profile, grouping: Grouping) -> str:
    if grouping is OPERATORS:
        return f"Operators, {profile.profiled_steps} steps"
    if grouping is MODULES:
        return (
            "Modules, a step (self times sum to it; "
            f"{profile.unattributed_share:.1%} is no module's)"
        )
    return f"{grouping.title}, a step"


def print_rows(
    profile: Profile, grouping: Grouping, console: Console, view: View | None = None
) -> None:
    """One table of a profile: operators, modules or lines of source."""
    view = view or View()
    columns, steps = view.columns_of(grouping), profile.profiled_steps
    sort = view.sort_of(grouping)
    table = _table(console, f"{_title(profile, grouping)}, by {sort}")
    table.add_column(grouping.name, no_wrap=True)
    for column in columns:
        table.add_column(
            column.heading, justify="left" if column.is_text else "right", no_wrap=True
        )
    # What columns are left out of 80 characters is the name's.
    width = NAME_WIDTH + CELL_WIDTH * max(0, len(grouping.shown) - len(columns))
    rows = grouping.sorted_rows(profile, sort)
    for row in rows[: view.top]:
        cells = (_name(column.write(column.of(row, steps))) for column in columns)
        table.add_row(_shortened(grouping, grouping.label(row), width), *cells)
    rest = rows[view.top :]
    if rest:
        sums = (column.of_all(rest, steps) for column in columns)
        cells = (
            "" if value is None else column.write(value)
            for column, value in zip(columns, sums, strict=True)
        )
        table.add_row(f"({len(rest)} more)", *cells)
    console.print(table)


def _shortened(grouping: Grouping, name: str, width: int) -> str:
    # The end of a path says more than its beginning.
    if grouping is not OPERATORS and len(name) > width:
        name = ".." + name[2 - width :]
    return _name(name, width)


def _print_memory(memory: MemoryPeak, console: Console) -> None:
    table = _table(console, "Memory at the peak of a step")
    table.add_column("kind")
    for column in ("size", "share"):
        table.add_column(column, justify="right")
    table.add_column("", width=BAR_WIDTH)
    sizes = to_data(memory.peak)
    whole = memory.total_bytes or 1
    for kind in MEMORY_KINDS:
        size = sizes[f"{kind}_bytes"]
        table.add_row(kind, format_bytes(size), format_share(size / whole), _bar(size / whole))
    table.add_row("all tensors", format_bytes(memory.total_bytes), format_share(1.0), "")
    console.print(table)
    if memory.resident_peak_bytes >= 0:
        console.print(
            f"The whole process, libraries included, peaked at "
            f"{format_bytes(memory.resident_peak_bytes)} resident.",
            highlight=False,
        )


def print_comparison(comparison: Comparison, console: Console) -> None:
    """The two times, the ratio and the verdict."""
    _heading(f"{_name(comparison.label_a)} against {_name(comparison.label_b)}", console)
    table = _table(console, "Time of a step, in alternation")
    table.add_column("side")
    for column in ("median", "fastest", "slowest"):
        table.add_column(column, justify="right")
    for label, times, middle in (
        (f"A: {comparison.label_a}", comparison.seconds_a, comparison.median_seconds_a),
        (f"B: {comparison.label_b}", comparison.seconds_b, comparison.median_seconds_b),
    ):
        cells = (middle, min(times), max(times))
        table.add_row(_name(label), *map(format_seconds, cells))
    console.print(table)
    console.print(f"[bold]{_name(comparison.sentence())}[/]", highlight=False)
    if not comparison.steady:
        console.print("[yellow]Warming up never settled: this machine is busy or throttled.[/]")
    check = comparison.self_check
    if check is None:
        return
    if check.verdict == "inconclusive":
        said = "the same procedure on A against A found no difference, as it should"
    else:
        said = "the same procedure on A against A claimed a difference: do not trust this run"
    console.print(
        f"Self-check: {said} (ratio {check.ratio:.3f}, {check.ratio_low:.3f} to "
        f"{check.ratio_high:.3f}).",
        highlight=False,
    )


def print_circumstances(
    here: Circumstances, console: Console, limits: MachineLimits | None = None
) -> None:
    """The machine and the versions."""
    console.print()
    console.print(
        f"Measured {here.taken_at} on {_name(here.processor)}, {here.threads} threads on "
        f"{here.cores} cores, {here.cpu_capability}, load {here.load_average}; accelerator "
        f"{_name(here.accelerator)}; torch {here.torch}, leanconv {here.leanconv}, "
        f"Python {here.python}, {_name(here.system)}.",
        highlight=False,
    )
    if limits is not None:
        console.print(
            f"This machine's limits: copy {format_rate(limits.copy_bytes_per_second, 'B/s')}, "
            f"matrix products {format_rate(limits.gemm_f32_flops_per_second, 'FLOP/s')} in fp32, "
            f"{format_rate(limits.gemm_bf16_flops_per_second, 'FLOP/s')} in bf16.",
            highlight=False,
        )
