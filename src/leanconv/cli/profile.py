"""`leanconv profile TARGET`."""

from __future__ import annotations

import click

from leanconv.cli.console import output_console, progress_bar, write_file
from leanconv.cli.options import input_option, shared_options, view_options
from leanconv.cli.target import load_target
from leanconv.measure import Circumstances, machine_limits
from leanconv.profiler import Report, profile
from leanconv.profiler.columns import View
from leanconv.profiler.html import render_html
from leanconv.profiler.text import print_report


@click.command("profile")
@click.argument("target")
@input_option
@click.option(
    "--seconds",
    type=click.FloatRange(0.1),
    default=5.0,
    show_default=True,
    help="How long to time steps.",
)
@view_options
@shared_options
def command(
    target: str,
    input: str | None,
    seconds: float,
    view: View,
    json: bool,
    html: str | None,
) -> None:
    """Show where the time and memory of a training step of TARGET go.

    TARGET is a name of leanconv's own models, torchvision:NAME, timm:NAME,
    package.module:function or file.py:function, the function returning a torch.nn.Module.
    """
    limits = machine_limits()
    loaded = load_target(target, input)
    step = loaded.step()
    with progress_bar(f"Profiling {target}") as on_progress:
        result = profile(
            loaded.model,
            step.data,
            optimizer=step.optimizer,
            name=target,
            seconds=seconds,
            limits=limits,
            on_progress=on_progress,
        )
    report = Report(
        f"Training step of {target}", Circumstances.now(), profiles=(result,), limits=limits
    )
    if html:
        write_file(html, render_html(report))
    if json:
        print(report.to_json())
    else:
        print_report(report, output_console(), view)
