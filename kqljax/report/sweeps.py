"""What came of a sweep: the best settings as a table, and one figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kqljax.report.statistics import summarise
from kqljax.report.style import INK, finish, line, panels

Row = dict[str, Any]
_DOTS = "#0072B2"


def summarise_rows(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """One row a setting: the statistics of its sound seeds, and the seeds whose numbers were bad.

    Args:
      rows: of `kqljax.lab.Results`.
      names: of the settings, `Sweep.names`.
    """
    cells: dict[Any, list[Row]] = {}
    for row in rows:
        cells.setdefault(tuple(row[name] for name in names), []).append(row)
    summary = []
    for values, own in cells.items():
        setting = {
            name: value for name, value in zip(names, values, strict=True) if value is not None
        }
        sound = [row for row in own if row["is_sound"]]
        found = (
            summarise([row["return_mean"] for row in sound])._asdict()
            if sound
            else {"num_seeds": 0}
        )
        bad = [row["seed"] for row in own if not row["is_sound"]]
        summary.append({"setting": setting, **found, "unsound_seeds": bad})
    return summary


def print_best(rows: Sequence[Row], names: Sequence[str], top: int = 10) -> None:
    """Prints the best settings of every task with intervals, and the runs with bad numbers."""
    from rich.console import Console
    from rich.table import Table

    # A file or a pipe has no width; a table should not be folded for it.
    console = Console() if Console().is_terminal else Console(width=160)
    summary, shown = summarise_rows(rows, names), _swept(rows, names)
    for task in dict.fromkeys(row["task"] for row in rows):
        cells = [cell for cell in summary if cell["setting"]["task"] == task]
        cells.sort(key=lambda cell: -cell.get("iqm", -np.inf))
        title = (
            f"{task}: {rows[0]['steps']} steps, {rows[0]['episodes']} evaluation episodes a seed"
        )
        table = Table(title=title, title_justify="left", title_style="bold", caption_justify="left")
        table.caption = "IQM over seeds with its 95% bootstrap interval"
        for name in (*shown, r"IQM \[95%]", "mean", "worst .. best seed", "seeds"):
            table.add_column(name, justify="right", no_wrap=True)
        for cell in cells[:top]:
            values = [_word(cell["setting"].get(name)) for name in shown]
            if not cell["num_seeds"]:
                table.add_row(*values, "none", "", "", "0")
                continue
            interval = rf"{cell['iqm']:.1f} \[{cell['low']:.1f}, {cell['high']:.1f}]"
            spread = f"{cell['min']:.1f} .. {cell['max']:.1f}"
            table.add_row(*values, interval, f"{cell['mean']:.1f}", spread, str(cell["num_seeds"]))
        console.print(table)
        if len(cells) > top:
            console.print(
                f"and {len(cells) - top} more in results.csv", style="dim", highlight=False
            )
    for cell in summary:
        if cell["unsound_seeds"]:
            setting = ", ".join(f"{name}={_word(value)}" for name, value in cell["setting"].items())
            seeds = ", ".join(map(str, cell["unsound_seeds"]))
            words = f"left out, numbers not finite: {setting}, seeds {seeds}"
            console.print(words, style="red", highlight=False, markup=False, soft_wrap=True)


def draw_sweep(rows: Sequence[Row], names: Sequence[str]) -> Any:
    """One panel a task and swept name: a dot a run, at each value the IQM with its interval."""
    shown = _swept(rows, names) or ["task"]
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    places = [(task, name) for task in tasks for name in shown]
    figure, cells = panels(len(places), 4.6, 2.9, share_y=False)
    rng = np.random.default_rng(0)
    for panel, (task, name) in zip(cells, places, strict=True):
        own = [row for row in rows if row["task"] == task and row["is_sound"]]
        # A setting without the name has the default, apart from those with a value.
        values = sorted({row[name] for row in own if row[name] is not None})
        labels = [_word(value) for value in values]
        if any(row[name] is None for row in own):
            values, labels = [*values, None], [*labels, "default"]
        for at, value in enumerate(values):
            returns = np.array([row["return_mean"] for row in own if row[name] == value])
            wide = at + rng.uniform(-0.12, 0.12, returns.size)
            panel.scatter(wide, returns, s=12, color=_DOTS, alpha=0.5, linewidths=0)
            found = summarise(returns)
            panel.plot(
                [at + 0.25] * 2, [found.low, found.high], color=INK, lw=2.0, solid_capstyle="butt"
            )
            panel.plot(at + 0.25, found.iqm, marker="D", ms=5.5, mfc=INK, mec="white", mew=0.9)
        panel.set_title(task, loc="left", fontsize=10.5, color=INK)
        panel.set_xticks(range(len(values)), labels)
        if len(labels) > 6:
            panel.tick_params(axis="x", rotation=45)
        panel.set_xlim(-0.5, max(len(values), 1) - 0.3)
        panel.set_xlabel("" if name == "task" else name, fontsize=9, color=INK)
        panel.set_ylabel("mean return of a seed", fontsize=9, color=INK)
        panel.margins(y=0.08)
        panel.grid(axis="y", color="#E8E8E8", lw=0.7)
    words = "IQM, 95% interval over all runs with this value"
    marks = [
        line("one seed of one setting", marker="o", ms=4, ls="none", color=_DOTS, alpha=0.5),
        line(words, marker="D", ms=5.5, mec="white", color=INK, lw=2.0),
    ]
    return finish(figure, marks, f"{len(rows)} runs of {rows[0]['steps']} steps")


def _swept(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Names beside the task whose values differ."""
    return [name for name in names if name != "task" and len({row[name] for row in rows}) > 1]


def _word(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
