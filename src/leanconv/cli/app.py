"""Gathers the commands, and turns a user's mistake into one sentence and exit code 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from leanconv import __version__
from leanconv.cli import compare, doctor, profile, tune
from leanconv.errors import LeanconvError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="leanconv %(version)s")
def app() -> None:
    """Train convolutional networks in less memory and less time, and measure it honestly."""


for command in (profile.command, compare.command, tune.command, doctor.command):
    app.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 2 a mistake, 130 interrupted."""
    try:
        result = app.main(
            args=None if arguments is None else list(arguments),
            prog_name="leanconv",
            standalone_mode=False,
        )
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except LeanconvError as error:
        return _complain(str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.ClickException as error:
        return _complain(error.format_message())
    except (KeyboardInterrupt, click.exceptions.Abort):
        _complain("interrupted")
        return 130
    except BrokenPipeError:
        # The reader (`head`, say) has gone; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _complain(sentence: str) -> int:
    print(f"leanconv: {sentence}", file=sys.stderr)
    return 2
