"""What the commands share in printing: the console, progress bars, JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from leanconv.errors import LeanconvError
from leanconv.measure.clock import Progress as Report
from leanconv.profiler.text import printable

WIDTH = 80


def output_console() -> Console:
    """Standard output; 80 columns where it is no terminal."""
    return Console(width=None if sys.stdout.isatty() else WIDTH, emoji=False)


@contextmanager
def progress_bar(title: str) -> Iterator[Report]:
    """A bar on standard error, gone when done; where that is no terminal, one line as it starts."""
    console = Console(stderr=True, emoji=False)
    title = printable(title)
    if not console.is_terminal:
        print(f"{title} ...", file=sys.stderr, flush=True)
        yield lambda share: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda share: bar.update(task, completed=share)


def write_file(path: str, text: str) -> None:
    """Write a result file, or say in a sentence why that cannot be.

    Raises:
        LeanconvError: if the file cannot be written.
    """
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise LeanconvError(f"cannot write {path}: {error.strerror}") from None
