"""What the commands share: wrong input, results in words or JSON, and a progress bar."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tyro.conf import arg

INTERRUPTED = 130  # what shells report for a program ended with Ctrl-C
NO_DEFAULT = arg(help_behavior_hint="")
"""An option whose docstring says its default."""


class UsageError(Exception):
    """Wrong input; the text is the line that the user sees."""


@contextmanager
def errors_for_people() -> Iterator[None]:
    """What the library says of wrong input becomes one line for the user, not a traceback."""
    import jax

    try:
        # This is a program of its own: here float64 is ours to choose.
        with jax.enable_x64(True):
            yield
    except (ValueError, TypeError, ImportError) as error:
        raise UsageError(str(error)) from error


def check_at_least_1(**numbers: int | None) -> None:
    """Raises UsageError for a number below 1, with the name of its option."""
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, got {value}.")


def tell(as_json: bool, about: Any, words: str) -> None:
    """Prints what a command found."""
    print(json.dumps(about, indent=1) if as_json else words)


@contextmanager
def work_bar(words: str) -> Iterator[Callable[[int, int], None]]:
    """A function (done, total) that draws a progress bar on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = "{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), "left"
    # Compilation comes in bursts, so the estimate is over a long time.
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=600) as bar:
        task = bar.add_task(words, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
