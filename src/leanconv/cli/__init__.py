"""The command `leanconv`: parsing and printing only; one file a command."""

from leanconv.cli.app import main

__all__ = ["main"]
