"""The progress bar of `learn`, on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Show = Callable[[int, Sequence[float]], None]


@contextmanager
def learning_bar(total: int, is_wanted: bool) -> Iterator[Show]:
    """A function (steps done, returns so far) that draws, or does nothing."""
    if not is_wanted:
        yield lambda done, returns: None
        return
    bar = Progress(
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("steps,"),
        TimeRemainingColumn(),
        TextColumn("left{task.description}"),
        console=Console(stderr=True),
    )
    # Drawing at every step would cost more than the step.
    every = max(1, total // 200)
    with bar:
        task = bar.add_task("", total=total)

        def show(done: int, returns: Sequence[float]) -> None:
            if done % every and done < total:
                return
            last = f"; last returns {np.mean(returns[-5:]):.1f}" if returns else ""
            bar.update(task, completed=min(done, total), description=last)

        yield show
