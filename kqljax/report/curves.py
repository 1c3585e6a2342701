"""Learning curves over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kqljax.report.statistics import summarise
from kqljax.report.style import QUIET, RULE, finish, label, line, panels

# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#7A7A7A")


def draw_curves(
    curves: Mapping[str, Mapping[str, tuple[Any, Any]]],
    *,
    note: str = "",
    reference: Mapping[str, float] | None = None,
    columns: int = 2,
) -> Any:
    """A matplotlib figure with one panel a task.

    Thin lines are seeds, the thick one is their IQM with its 95% interval.

    Args:
      curves: task -> name -> steps `[P]` and returns `[S, P]`, of S seeds at P steps; one number a
        seed, the mean of its evaluation episodes.
      note: over the legend.
      reference: task -> a return, drawn as a dashed line.
      columns: panels in a row.

    Examples:
      >>> from kqljax.report.curves import draw_curves
      >>> returns = [[-200.0, -150.0], [-200.0, -120.0]]
      >>> figure = draw_curves({"MountainCar-v0": {"rounds": ([500, 1000], returns)}})
    """
    names = list(dict.fromkeys(name for task in curves.values() for name in task))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    figure, cells = panels(len(curves), 4.6, 3.0, share_y=False, columns=columns)
    for panel, (task, own) in zip(cells, curves.items(), strict=True):
        for name, (steps, returns) in own.items():
            returns = np.asarray(returns, np.float64)
            if returns.ndim != 2 or returns.shape[1] != np.size(steps):
                raise ValueError(
                    f"{task}, {name}: returns must be [seeds, {np.size(steps)}], one column a "
                    f"step, got shape {returns.shape}."
                )
            found = [summarise(column) for column in returns.T]
            style = {"color": colours[name]}
            panel.plot(steps, returns.T, lw=0.8, alpha=0.4, **style)
            sides = [p.low for p in found], [p.high for p in found]
            panel.fill_between(steps, *sides, alpha=0.15, linewidth=0, **style)
            panel.plot(steps, [p.iqm for p in found], lw=2.4, marker="o", ms=4, **style)
        if reference and task in reference:
            panel.axhline(reference[task], color=QUIET, lw=1.2, ls=(0, (5, 3)))
        label(panel, task, "environment steps", "return")
        panel.set_xlim(left=0)
        panel.margins(y=0.08)
        panel.grid(axis="y", color=RULE, lw=0.7)
    thick: dict[str, Any] = {"marker": "o", "ms": 4, "lw": 2.4}
    marks = [line(f"{name}: IQM, 95% interval", color=colours[name], **thick) for name in names]
    return finish(figure, [*marks, line("one seed", lw=0.8, color=QUIET)], note)
