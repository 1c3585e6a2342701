"""What all subcommands share."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

INTERRUPTED = 130  # what shells report for a program ended with Ctrl-C


class UsageError(Exception):
    """Wrong input; the text is the line that the user sees."""


def console_for_tables() -> Console:
    """Standard output. A file or a pipe has no width; a table should not be folded for it."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


class WorkBar:
    """One progress bar on stderr, drawn from the first `show` on."""

    def __init__(self, console: Console | None = None, is_shown: bool = True) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("elapsed,"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=Console(stderr=True) if console is None else console,
            disable=not is_shown,
            # Compilation comes in bursts, and later steps cost more than early ones: a long average.
            speed_estimate_period=600,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._task is not None:
            self._progress.stop()

    def show(self, done: float, total: float, words: str) -> None:
        """`done` of `total`, whatever the unit; the total of the first call counts."""
        if self._task is None:
            self._task = self._progress.add_task("", total=max(total, 1e-9))
            self._progress.start()
        self._progress.update(self._task, completed=done, description=words)
