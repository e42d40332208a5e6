"""Options that several commands take, written once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click
import torch

from leanconv.errors import LeanconvError
from leanconv.measure.circumstances import available_cores
from leanconv.profiler.columns import GROUPINGS, View

F = TypeVar("F", bound=Callable[..., Any])


def _use_threads(context: click.Context, option: click.Parameter, threads: int | None) -> None:
    cores = available_cores()
    if threads is not None:
        if not 1 <= threads <= cores:
            raise LeanconvError(
                f"`--threads` (={threads}) must be between 1 and {cores}, the cores there are"
            )
        torch.set_num_threads(threads)


def _writable(context: click.Context, option: click.Parameter, path: str | None) -> str | None:
    # Asked before anything is measured, so that no measurement is lost to a misspelt folder.
    if path is not None and not Path(path).resolve().parent.is_dir():
        raise LeanconvError(f"`--{option.name}` (={path}): there is no folder to write it in")
    return path


threads_option = click.option(
    "--threads",
    type=int,
    metavar="N",
    callback=_use_threads,
    expose_value=False,
    help="How many threads torch may use.",
)


def shared_options(command: F) -> F:
    """`--threads`, `--json` and `--html`."""
    for option in (
        click.option("--html", metavar="FILE", callback=_writable, help="Write an HTML report."),
        click.option("--json", is_flag=True, help="Print JSON instead of tables."),
        threads_option,
    ):
        command = option(command)
    return command


input_option = click.option(
    "--input", metavar="SHAPE", help="Input shape, batch first, as in 32x3x32x32."
)


def view_options(command: F) -> F:
    """`--group-by`, `--sort`, `--top` and `--columns`, handed on as one `view`."""

    @functools.wraps(command)
    def viewed(
        *arguments: Any, group_by: str | None, sort: str, top: int, columns: str, **options: Any
    ) -> Any:
        chosen = tuple(key.strip().lower() for key in columns.split(",") if key.strip())
        view = View(group_by or "", sort.lower(), top, chosen)
        for reason in view.why_not():
            raise LeanconvError(reason.replace("`", "`--", 1))
        return command(*arguments, view=view, **options)

    result: Any = viewed
    for option in (
        click.option("--columns", metavar="KEYS", default="", help="Columns, as in self,flops."),
        click.option("--top", type=click.IntRange(1), default=15, show_default=True, help="Rows."),
        click.option("--sort", metavar="KEY", default="", help="Column to sort by, or name."),
        click.option("--group-by", type=click.Choice(list(GROUPINGS)), help="Only this table."),
    ):
        result = option(result)
    return cast(F, result)
