"""Reports as one HTML file that needs nothing else: no network, no scripts. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from leanconv.measure.record import to_data
from leanconv.profiler import units
from leanconv.profiler.report import Report
from leanconv.profiler.text import MEMORY_KINDS, printable

PHASE_COLOURS = {
    "data": "#8d8d8d",
    "host-to-device": "#6c6c8f",
    "forward": "#2f6fb3",
    "recompute": "#8a6fb0",
    "backward": "#b3502f",
    "gradient sync": "#c9a227",
    "optimizer": "#5f8f3f",
    "other": "#c9c9c9",
}
MEMORY_COLOURS = dict(
    zip(
        MEMORY_KINDS,
        ("#4a7a3a", "#b3502f", "#8a6fb0", "#8d8d8d", "#2f6fb3", "#c9a227"),
        strict=True,
    )
)


def render_html(report: Report, top: int = 40) -> str:
    """The report as a complete HTML document; every name in it is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("leanconv.profiler"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        seconds=units.format_seconds,
        size=units.format_bytes,
        share=units.format_share,
        shape=units.format_shape,
        printable=printable,
    )
    template = environment.get_template("report.html.j2")
    return template.render(
        report=report,
        top=top,
        rate=units.format_rate,
        phase_colours=PHASE_COLOURS,
        memory_colours=MEMORY_COLOURS,
        memory_kinds=MEMORY_KINDS,
        sizes=_sizes,
        dots=_dots,
        loss_line=_loss_line,
    )


def write_html(report: Report, path: Path | str) -> None:
    """Write `render_html` to a file."""
    Path(path).write_text(render_html(report), encoding="utf-8")


def _sizes(sample: Any) -> dict[str, int]:
    data = to_data(sample)
    return {kind: data[f"{kind}_bytes"] for kind in MEMORY_KINDS}


def _dots(comparison: Any) -> list[dict[str, float]]:
    """Where each round's ratio lies on a strip 600 wide, whose ends are the extremes and 1."""
    ratios = [b / a for a, b in zip(comparison.seconds_a, comparison.seconds_b, strict=True)]
    low, high = (
        min([*ratios, 1.0, comparison.ratio_low]),
        max([*ratios, 1.0, comparison.ratio_high]),
    )
    width = (high - low) or 1.0

    def place(ratio: float) -> float:
        return 20 + 560 * float((ratio - low) / width)

    return [
        {"x": place(ratio), "y": 22 + 4 * (index % 5), "ratio": ratio}
        for index, ratio in enumerate(ratios)
    ] + [
        {"x": place(comparison.ratio_low), "y": 0, "ratio": comparison.ratio_low},
        {"x": place(comparison.ratio_high), "y": 0, "ratio": comparison.ratio_high},
        {"x": place(1.0), "y": 0, "ratio": 1.0},
    ]


def _loss_line(losses: tuple[float, ...], lowest: float, highest: float) -> str:
    """An SVG polyline's points on a field 600 by 120."""
    span = (highest - lowest) or 1.0
    steps = max(1, len(losses) - 1)
    return " ".join(
        f"{40 + 540 * index / steps:.1f},{110 - 100 * (loss - lowest) / span:.1f}"
        for index, loss in enumerate(losses)
    )
