"""What all subcommands share."""

from __future__ import annotations

from rich.console import Console

INTERRUPTED = 130  # what shells report for a program ended with Ctrl-C


class UsageError(Exception):
    """Wrong input; the text is the line that the user sees."""


def console_for_tables() -> Console:
    """Standard output. A file or a pipe has no width; a table should not be folded for it."""
    console = Console()
    return console if console.is_terminal else Console(width=160)
