"""The results as a table, in the terminal or in Markdown, beside the paper's figures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from kqljax.report.records import Document


def print_table(document: Document, console: Console) -> None:
    """Rows are algorithms, columns tasks."""
    settings, summary = document["settings"], document["summary"]
    tasks = [task for task in settings["tasks"] if task in summary]
    seeds = f"{seeds_of(document)} from {settings['first_seed']}"
    title = f"Table 1: {settings['steps']} steps, {settings['episodes']} episodes, {seeds}"
    table = Table(title=title, title_justify="left", title_style="bold", caption_justify="left", show_lines=False)
    table.caption = (
        "IQM over seeds with its 95% bootstrap interval; mean ± std over all episodes, as the paper prints it; "
        "seconds of training a seed, compilation apart."
    )
    table.add_column("algorithm", no_wrap=True)
    table.add_column("", no_wrap=True, style="dim")
    for task in tasks:
        table.add_column(task, justify="right", no_wrap=True)
    for algorithm in settings["algorithms"]:
        cells = [summary[task].get(algorithm) for task in tasks]
        rows: list[tuple[str, Any]] = [
            ("IQM [95%]", _interval),
            ("mean ± std", lambda cell: _spread(cell["pooled_mean"], cell["pooled_std"])),
        ]
        if any(cell and cell["paper_mean"] is not None for cell in cells):
            rows.append(("paper", lambda cell: _spread(cell["paper_mean"], cell["paper_std"])))
        rows.append(("s a seed", lambda cell: f"{cell['seconds_a_seed']:.2f}"))
        for index, (label, words) in enumerate(rows):
            style = "bold" if index == 0 else "dim" if index == len(rows) - 1 else None
            texts = [words(cell) if cell else "" for cell in cells]
            table.add_row(algorithm if index == 0 else "", label, *texts, style=style)
        table.add_section()
    console.print(table)
    for task in tasks:
        for algorithm, cell in summary[task].items():
            if cell["unsound_seeds"]:
                numbers = ", ".join(map(str, cell["unsound_seeds"]))
                console.print(f"numerical trouble: {algorithm} on {task}, seeds {numbers}", style="red")


def markdown_table(document: Document) -> str:
    """The same figures for a page in Markdown, with the worst and the best seed."""
    settings, summary = document["settings"], document["summary"]
    tasks = [task for task in settings["tasks"] if task in summary]
    lines = ["| | " + " | ".join(tasks) + " |", "|---|" + "---|" * len(tasks)]
    for algorithm in settings["algorithms"]:
        cells = [summary[task].get(algorithm) for task in tasks]
        seeds = _seeds(cell for cell in cells if cell)
        rows: list[tuple[str, Any]] = [
            (
                f"**{algorithm}**, {seeds}: IQM [95%]",
                lambda cell: f"**{cell['iqm']:.1f}** [{cell['low']:.1f}, {cell['high']:.1f}]",
            ),
            ("worst .. best seed", lambda cell: f"{cell['min']:.0f} .. {cell['max']:.0f}"),
        ]
        if any(cell and cell["paper_mean"] is not None for cell in cells):
            rows.append(("paper, mean ± std of episodes", lambda cell: _spread(cell["paper_mean"], cell["paper_std"])))
        rows.append(("seconds of training a seed", lambda cell: f"{cell['seconds_a_seed']:.2f}"))
        lines += [f"| {label} | " + " | ".join(words(cell) if cell else "" for cell in cells) + " |" for label, words in rows]
    return "\n".join(lines)


def seeds_of(document: Document) -> str:
    """How many seeds the cells of the table have."""
    return _seeds(cell for cells in document["summary"].values() for cell in cells.values())


def _seeds(cells: Iterable[dict[str, Any]]) -> str:
    counts = sorted({cell["num_seeds"] for cell in cells})
    if len(counts) > 1:
        return f"{counts[0]} to {counts[-1]} seeds"
    return "no seeds" if not counts else "1 seed" if counts == [1] else f"{counts[0]} seeds"


def _interval(cell: dict[str, Any]) -> str:
    return f"{cell['iqm']:.1f} [{cell['low']:.1f}, {cell['high']:.1f}]".replace("[", r"\[")


def _spread(mean: float | None, std: float | None) -> str:
    return "" if mean is None else f"{mean:.2f} ± {std:.2f}"
