"""`leanconv compare TARGET_A TARGET_B`."""

from __future__ import annotations

import click

from leanconv.cli.console import output_console, progress_bar, write_file
from leanconv.cli.options import input_option, shared_options
from leanconv.cli.target import load_target
from leanconv.measure import Circumstances, compare
from leanconv.measure.verdict import MIN_ROUNDS
from leanconv.profiler import Report
from leanconv.profiler.html import render_html
from leanconv.profiler.text import print_report


@click.command("compare")
@click.argument("target_a")
@click.argument("target_b")
@input_option
@click.option(
    "--seconds",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    help="How long to alternate.",
)
@click.option("--rounds", type=click.IntRange(MIN_ROUNDS), help="Rounds instead of seconds.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.02,
    show_default=True,
    help="Relative difference below which nothing is claimed.",
)
@click.option("--self-check", is_flag=True, help="Run A against A as well.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random order.")
@shared_options
def command(
    target_a: str,
    target_b: str,
    input: str | None,
    seconds: float,
    rounds: int | None,
    threshold: float,
    self_check: bool,
    seed: int,
    json: bool,
    html: str | None,
) -> None:
    """Say whether a training step of TARGET_B is faster than one of TARGET_A.

    The answer is faster, slower or inconclusive. `leanconv profile --help` says what a TARGET is.
    """
    sides = [load_target(target, input).step() for target in (target_a, target_b)]
    with progress_bar(f"Comparing {target_a} and {target_b}") as on_progress:
        result = compare(
            sides[0],
            sides[1],
            labels=(target_a, target_b),
            seconds=seconds,
            rounds=rounds,
            threshold=threshold,
            self_check=self_check,
            seed=seed,
            on_progress=on_progress,
        )
    report = Report("Time of a training step", Circumstances.now(), comparisons=(result,))
    if html:
        write_file(html, render_html(report))
    if json:
        print(report.to_json())
    else:
        print_report(report, output_console())
