"""Figures of a results document: every seed as a dot, and learning curves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from kqljax.report.records import Document
from kqljax.report.statistics import summarise
from kqljax.report.style import INK, QUIET, finish, line, panels, save
from kqljax.report.table import seeds_of

# Okabe and Ito's palette, which colour-blind readers can tell apart; an algorithm keeps its colour in every figure.
COLOURS = {
    "kql-rbf": "#0072B2",
    "kql-rounds": "#003D66",
    "kql-features": "#009E73",
    "kql-features32": "#4DB99A",
    "kql-linear": "#E69F00",
    "kql-greedy": "#56B4E9",
    "dqn": "#D55E00",
    "kovi": "#B8A200",
    "random": "#7A7A7A",
}
_OTHER = "#CC79A7"


def save_figures(document: Document, out: str | os.PathLike[str]) -> list[Path]:
    """Writes `seeds.png` and, where there are curves, `curves.png`; returns their paths."""
    paths = [save(draw_strip(document), Path(out) / "seeds.png")]
    if document["curves"]:
        paths.append(save(draw_curves(document), Path(out) / "curves.png"))
    return paths


def draw_strip(document: Document, columns: int = 2) -> Any:
    """One panel a task, one row an algorithm: a dot a seed, the IQM with its interval, the paper's figure."""
    tasks = [task for task in document["settings"]["tasks"] if task in document["summary"]]
    algorithms = document["settings"]["algorithms"]
    figure, cells = panels(len(tasks), 4.9, 1.0 + 0.52 * len(algorithms), share_y=True, columns=columns)
    rng = np.random.default_rng(0)
    for panel, task in zip(cells, tasks, strict=True):
        for row, algorithm in enumerate(algorithms):
            cell = document["summary"][task].get(algorithm)
            if cell is None:
                continue
            colour = COLOURS.get(algorithm, _OTHER)
            values = _returns(document, task, algorithm)
            # Spread over the lower part of the row, so that the IQM above them stays readable.
            heights = row + 0.16 + rng.uniform(-0.12, 0.12, values.size)
            panel.scatter(values, heights, s=14, color=colour, alpha=0.6, linewidths=0, zorder=2)
            panel.plot([cell["low"], cell["high"]], [row - 0.16] * 2, color=colour, lw=2.4, solid_capstyle="butt")
            panel.plot(cell["iqm"], row - 0.16, marker="D", ms=6, mfc=colour, mec="white", mew=0.9)
            if cell["paper_mean"] is not None:
                panel.plot([cell["paper_mean"]] * 2, [row - 0.4, row + 0.4], color=INK, lw=1.6, zorder=1)
        panel.set_title(task, loc="left", fontsize=10.5, color=INK)
        panel.set_yticks(range(len(algorithms)), algorithms)
        panel.set_ylim(len(algorithms) - 0.5, -0.5)
        panel.margins(x=0.06)
        panel.set_xlabel("mean return of a seed", fontsize=9, color=INK)
        panel.grid(axis="x", color="#E8E8E8", lw=0.7)
        for row in range(1, len(algorithms)):
            panel.axhline(row - 0.5, color="#E8E8E8", lw=0.7, zorder=0)
        panel.tick_params(axis="y", length=0)
    marks = [
        line("one seed", marker="o", ms=4, ls="none", color=QUIET),
        line("IQM, 95% interval over seeds", marker="D", ms=5.5, mec="white", color=QUIET, lw=2.4),
        line("paper's mean", marker="|", ms=13, mew=1.6, ls="none", color=INK),
    ]
    return finish(figure, marks, f"{seeds_of(document)}, {document['settings']['steps']} steps of training")


def draw_curves(document: Document, columns: int = 2) -> Any:
    """One panel a task: thin lines are seeds, the thick one their IQM with its interval; the paper's figure is dashed."""
    curves = document["curves"]
    tasks = [task for task in document["settings"]["tasks"] if any(curve["task"] == task for curve in curves)]
    algorithms = list(dict.fromkeys(curve["algorithm"] for curve in curves))
    figure, cells = panels(len(tasks), 4.6, 3.0, share_y=False, columns=columns)
    marks = []
    for panel, task in zip(cells, tasks, strict=True):
        for algorithm in algorithms:
            mine = [curve for curve in curves if (curve["task"], curve["algorithm"]) == (task, algorithm)]
            if not mine:
                continue
            colour = COLOURS.get(algorithm, _OTHER)
            steps = mine[0]["steps"]
            returns = np.array([curve["return_mean"] for curve in mine])  # [S, points]
            for one in returns:
                panel.plot(steps, one, color=colour, lw=0.8, alpha=0.4)
            points = [summarise(column) for column in returns.T]
            panel.fill_between(steps, [p.low for p in points], [p.high for p in points], color=colour, alpha=0.15, linewidth=0)
            panel.plot(steps, [p.iqm for p in points], color=colour, lw=2.4, marker="o", ms=4)
            paper = document["summary"].get(task, {}).get(algorithm, {}).get("paper_mean")
            if paper is not None:
                panel.axhline(paper, color=INK, lw=1.2, ls=(0, (5, 3)))
        panel.set_title(task, loc="left", fontsize=10.5, color=INK)
        panel.set_xlabel("environment steps", fontsize=9, color=INK)
        panel.set_ylabel("return", fontsize=9, color=INK)
        panel.set_xlim(0, 1.03 * document["settings"]["steps"])
        panel.margins(y=0.08)
        panel.grid(axis="y", color="#E8E8E8", lw=0.7)
    for algorithm in algorithms:
        marks.append(line(f"{algorithm}: IQM, 95% interval", marker="o", ms=4, lw=2.4, color=COLOURS.get(algorithm, _OTHER)))
    marks.append(line("one seed", lw=0.8, color=QUIET))
    marks.append(line("paper's mean after training", lw=1.2, ls=(0, (5, 3)), color=INK))
    count = len({curve["seed"] for curve in curves})
    note = f"{count} seed{'' if count == 1 else 's'}, {curves[0]['episodes']} evaluation episodes a point"
    return finish(figure, marks, note)


def draw_sweep(document: Document) -> Any:
    """One panel a task and swept name: a dot a seed, and at each value the IQM of all its runs with its interval."""
    names = [name for name in document["swept"] if name != "task"]
    tasks = list(dict.fromkeys(setting["task"] for setting in document["sweep"]["settings"]))
    places = [(task, name) for task in tasks for name in names or ["task"]]
    figure, cells = panels(len(places), 4.6, 2.9, share_y=False)
    rng = np.random.default_rng(0)
    for panel, (task, name) in zip(cells, places, strict=True):
        rows = [row for row in document["rows"] if row["task"] == task and row["is_sound"]]
        # A setting without the name has the default; it stands apart from those that were given a value.
        values = sorted({row[name] for row in rows if row[name] is not None})
        labels = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
        if any(row[name] is None for row in rows):
            values, labels = [*values, None], [*labels, "default"]
        for at, value in enumerate(values):
            returns = np.array([row["return_mean"] for row in rows if row[name] == value])
            panel.scatter(
                at + rng.uniform(-0.12, 0.12, returns.size), returns, s=12, color=COLOURS["kql-rbf"], alpha=0.5, linewidths=0
            )
            found = summarise(returns)
            panel.plot([at + 0.25] * 2, [found.low, found.high], color=INK, lw=2.0, solid_capstyle="butt")
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
    marks = [
        line("one seed of one setting", marker="o", ms=4, ls="none", color=COLOURS["kql-rbf"], alpha=0.5),
        line("IQM, 95% interval over all runs with this value", marker="D", ms=5.5, mec="white", color=INK, lw=2.0),
    ]
    sweep = document["sweep"]
    return finish(figure, marks, f"{len(sweep['settings'])} settings, {sweep['seeds']} seeds, {sweep['steps']} steps")


def _returns(document: Document, task: str, algorithm: str) -> np.ndarray:
    """`[S]` mean returns of the seeds that have one."""
    cell = [r["return_mean"] for r in document["results"] if (r["task"], r["algorithm"]) == (task, algorithm)]
    return np.array([value for value in cell if value is not None])
