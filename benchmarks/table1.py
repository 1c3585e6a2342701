"""The paper's Table 1 (section 6): algorithms, tasks, many seeds, as a sweep of `kqljax.lab`.

    python benchmarks/table1.py --seeds 30 --out results/table1    # interrupted, it goes on
    python benchmarks/table1.py --small --out results/run          # make run: two tasks, few seeds
    python benchmarks/table1.py --page    # the table of docs/results.md from results/*.json

Writes table1.json, table1.md, seeds.png and curves.png. Seeds are the unit: a seed's episodes are
averaged first, intervals are over seeds. Seeds below 1000 are for tuning, others for reporting.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import records
from paper import COLOURS, FIRST_REPORTING_SEED, OTHER, PAPER, PAPER_TASKS

from kqljax.baselines import dqn, random
from kqljax.cli.base import work_bar
from kqljax.cli.sweep import use_all_cores
from kqljax.lab import LabError, Sweep, run_sweep
from kqljax.report import pooled, style, summarise
from kqljax.report.curves import draw_curves

RESULTS = Path(__file__).parent / "results"
ALGORITHM_1 = {"recipe": "paper"}
ROWS: dict[str, dict[str, Any]] = {
    "kql-rounds": {"recipe": "default"},
    "kql-rbf": ALGORITHM_1,
    "kql-linear": {**ALGORITHM_1, "kernel": "linear"},
    "kql-greedy": {**ALGORITHM_1, "beta": 0.0},
    "kql-features": {**ALGORITHM_1, "features": "nystrom"},
    "kql-features32": {**ALGORITHM_1, "features": "nystrom", "dtype": "float32"},
    "dqn": {"recipe": "dqn"},
    "kovi": {"recipe": "kovi"},
    "random": {"recipe": "random"},
}
"""Algorithm -> its setting, beside the task."""
WITH_CURVES = ("kql-rounds", "kql-rbf")
ALL_SECONDS, TRAINING = "seconds a seed, with evaluation", "seconds of training a seed"
Document = dict[str, Any]


def make_kovi(task, num_steps):
    import kovi_learner

    return kovi_learner.make_kovi(task, num_steps)


RECIPES = {
    "dqn": lambda task, num_steps: dqn.paper_config(task.name),
    "kovi": make_kovi,
    "random": lambda task, num_steps: random.Random(),
}
"""Learners beside those of the library's recipes: (task, num_steps) -> learner."""


# The run -----------------------------------------------------------------------------------------


def run(args: argparse.Namespace) -> Document:
    """Runs what is missing in `args.out` and returns the document."""

    def sweep(places, seeds, out, words, **more):
        settings = [{"task": task, **ROWS[name]} for name, task in places]
        sizes = {"first_seed": args.first_seed, "steps": args.steps, "episodes": args.episodes}
        wanted = Sweep(settings=settings, recipes=RECIPES, seeds=seeds, **{**sizes, **more})
        with work_bar(words) as bar:
            found = run_sweep(
                wanted, out, report=bar, say=lambda text: print(text, file=sys.stderr)
            )
        # Rows come setting by setting, so each place has as many as any other.
        return found, lambda rows: zip(np.repeat(np.arange(len(places)), len(rows) // len(places)),
                                       rows, strict=True)  # fmt: skip

    places = list(itertools.product(args.algorithms, args.tasks))
    found, with_place = sweep(places, args.seeds, args.out, "runs")
    results = [_record(*places[i], row) for i, row in with_place(found.rows)]
    curves, drawn = [], [place for place in places if place[0] in WITH_CURVES]
    if drawn and args.curve_points and args.curve_seeds:
        # A second training with evaluations in it: the first is timed.
        seeds, out = min(args.seeds, args.curve_seeds), Path(args.out) / "curves"
        more = {"episodes": 1, "curve_points": args.curve_points}
        found, with_place = sweep(drawn, seeds, out, "learning curves", **more)
        curves = [_record(*drawn[i], row) for i, row in with_place(found.curves)]
    names = ("seeds", "first_seed", "algorithms", "tasks", "steps", "episodes")
    document = {
        "settings": {name: getattr(args, name) for name in names},
        "versions": records.versions(),
        "device": records.device(),
        "results": results,
        "curves": curves,
    }
    records.write(Path(args.out) / "table1.json", document)
    return document


def _record(algorithm: str, task: str, row: dict[str, Any]) -> dict[str, Any]:
    names = ("seed", "step", "return_mean", "return_std", "episodes", "seconds", "is_sound")
    return {"task": task, "algorithm": algorithm, **{n: row[n] for n in names if n in row}}


# The table ---------------------------------------------------------------------------------------


def summarise_table(document: Document) -> dict[str, dict[str, dict[str, Any]]]:
    """Task -> algorithm -> statistics over seeds, seconds, the paper's figures or None."""
    cells = defaultdict(list)
    for row in document["results"]:
        cells[row["task"], row["algorithm"]].append(row)
    summary: dict[str, dict[str, dict[str, Any]]] = {}
    settings = document["settings"]
    for task, name in itertools.product(settings["tasks"], settings["algorithms"]):
        sound = [row for row in cells[task, name] if row["is_sound"]]
        if not sound:
            continue
        means = [row["return_mean"] for row in sound]
        all_episodes = pooled(
            means, *([row[n] for row in sound] for n in ("return_std", "episodes"))
        )
        paper = PAPER.get(name, {}).get(task)
        summary.setdefault(task, {})[name] = {
            **summarise(means, [row["seed"] for row in sound])._asdict(),
            "pooled": all_episodes,
            "paper": paper,
            "seconds": float(np.mean([row["seconds"] for row in sound])),
            "unsound_seeds": [row["seed"] for row in cells[task, name] if not row["is_sound"]],
        }
    return summary


def joined(document: Document, beside: Sequence[Path], times: Sequence[Path]) -> Document:
    """The document with further rows, and with other seconds.

    Args:
      beside: results files of algorithms that do not run in the library (sb3_dqn.py).
      times: results files whose seconds stand in place of the document's. Times are comparable only
        if they were taken in one go on a machine with nothing else to do, `make times`.
    """
    settings, added, seconds = document["settings"], [], defaultdict(list)
    for path in beside:
        for row in records.read(path, {"results"})["results"]:
            for name in ("episodes", "steps"):
                if row[name] != settings[name]:
                    words = f"{path} has {row[name]} {name} a seed, this table {settings[name]}."
                    raise records.ResultsError(words)
            if row["seed"] < FIRST_REPORTING_SEED:
                first = f"reported ones begin at {FIRST_REPORTING_SEED}"
                raise records.ResultsError(f"{path} has seed {row['seed']}; {first}.")
            if row["algorithm"] in settings["algorithms"]:
                words = f"{path} has {row['algorithm']}, which is a row of this table already."
                raise records.ResultsError(words)
            if row["task"] in settings["tasks"]:
                added.append({"is_sound": True, **row})
    for path in times:
        for row in records.read(path, {"results"})["results"]:
            seconds[row["task"], row["algorithm"]].append(row["seconds"])
    results = [*document["results"], *added]
    for i, row in enumerate(results):
        own = seconds.get((row["task"], row["algorithm"]), [row["seconds"]])
        results[i] = {**row, "seconds": float(np.mean(own))}
    names = [*settings["algorithms"], *dict.fromkeys(row["algorithm"] for row in added)]
    return {**document, "settings": {**settings, "algorithms": names}, "results": results}


def table_rows(document: Document, seconds: str) -> list[tuple[str, str, list[str]]]:
    """(algorithm, what the row tells, a text for each task)."""

    def spread(pair):
        return "" if pair is None else f"{pair[0]:.2f} ± {pair[1]:.2f}"

    kinds = {
        "IQM [95%]": lambda cell: f"**{cell['iqm']:.1f}** [{cell['low']:.1f}, {cell['high']:.1f}]",
        "worst .. best seed": lambda cell: f"{cell['min']:.0f} .. {cell['max']:.0f}",
        "paper, mean ± std of episodes": lambda cell: spread(cell["paper"]),
        seconds: lambda cell: f"{cell['seconds']:.2f}",
    }
    summary, rows = summarise_table(document), []
    for name in document["settings"]["algorithms"]:
        cells = [
            summary[task].get(name) for task in document["settings"]["tasks"] if task in summary
        ]
        for kind, words in kinds.items():
            texts = [words(cell) if cell else "" for cell in cells]
            label = f"**{name}**, {_seeds(filter(None, cells))}: {kind}" if "IQM" in kind else kind
            if any(texts):
                rows.append((name, label, texts))
    return rows


def markdown_table(document: Document, seconds: str = ALL_SECONDS) -> str:
    """Rows are algorithms, columns tasks."""
    tasks = [task for task in document["settings"]["tasks"] if task in summarise_table(document)]
    lines = ["| | " + " | ".join(tasks) + " |", "|---|" + "---|" * len(tasks)]
    rows = table_rows(document, seconds)
    return "\n".join(
        [*lines, *(f"| {label} | " + " | ".join(texts) + " |" for _, label, texts in rows)]
    )


def print_table(document: Document) -> None:
    """The same in the terminal, and the seeds that were left out."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    summary, settings = summarise_table(document), document["settings"]
    console = Console() if Console().is_terminal else Console(width=160)
    title = f"Table 1: {settings['steps']} steps, {settings['episodes']} evaluation episodes a seed"
    table = Table(title=title, title_justify="left", title_style="bold", caption_justify="left")
    table.caption = "IQM over seeds with its 95% bootstrap interval"
    table.add_column("")
    for task in summary:
        table.add_column(task, justify="right", no_wrap=True)
    rows = table_rows(document, ALL_SECONDS)
    for i, (name, label, texts) in enumerate(rows):
        is_last = i == len(rows) - 1 or rows[i + 1][0] != name
        plain = [escape(text.replace("**", "")) for text in (label, *texts)]
        table.add_row(*plain, end_section=is_last, style="bold" if "IQM" in label else None)
    console.print(table)
    for task, cells in summary.items():
        for name, cell in cells.items():
            if bad := ", ".join(map(str, cell["unsound_seeds"])):
                words = f"left out, numbers not finite: {name} on {task}, seeds {bad}"
                console.print(words, style="red")


def _seeds(cells: Any) -> str:
    counts = sorted({cell["num_seeds"] for cell in cells})
    if len(counts) > 1:
        return f"{counts[0]} to {counts[-1]} seeds"
    return "1 seed" if counts == [1] else f"{counts[0]} seeds"


# Figures -----------------------------------------------------------------------------------------


def save_curves(document: Document, path: Path) -> Path:
    """Learning curves of the seeds that have one, and the paper's figure after training."""
    curves: dict[str, dict[str, Any]] = {}
    cells = defaultdict(list)
    for row in document["curves"]:
        cells[row["task"], row["algorithm"]].append(row)
    for (task, name), rows in cells.items():
        steps = sorted({row["step"] for row in rows})
        returns = np.array([row["return_mean"] for row in rows], float).reshape(-1, len(steps))
        curves.setdefault(task, {})[name] = steps, returns[np.all(np.isfinite(returns), axis=1)]
    reference = {task: PAPER["kql-rbf"][task][0] for task in curves if task in PAPER_TASKS}
    note = "thin: one seed, thick: IQM with 95% interval; dashed: the paper's mean after training"
    return style.save(draw_curves(curves, note=note, reference=reference), path)


def draw_strip(document: Document) -> Any:
    """One panel a task, one row an algorithm: a dot a seed, the IQM, the paper's figure."""
    summary, names = summarise_table(document), document["settings"]["algorithms"]
    figure, panels = style.panels(len(summary), 4.9, 1.0 + 0.52 * len(names), share_y=True)
    rng = np.random.default_rng(0)
    for panel, task in zip(panels, summary, strict=True):
        for row, name in enumerate(names):
            if row:
                panel.axhline(row - 0.5, color="#E8E8E8", lw=0.7, zorder=0)
            if name not in summary[task]:
                continue
            cell, colour = summary[task][name], COLOURS.get(name, OTHER)
            mine = [r for r in document["results"] if (r["task"], r["algorithm"]) == (task, name)]
            values = [r["return_mean"] for r in mine if r["is_sound"]]
            # Spread over the lower part of the row, so that the IQM above them stays readable.
            heights = row + 0.16 + rng.uniform(-0.12, 0.12, len(values))
            panel.scatter(values, heights, s=14, color=colour, alpha=0.6, linewidths=0, zorder=2)
            bar = {"lw": 2.4, "solid_capstyle": "butt"}
            panel.plot([cell["low"], cell["high"]], [row - 0.16] * 2, color=colour, **bar)
            diamond = {"marker": "D", "ms": 6, "mec": "white", "mew": 0.9}
            panel.plot(cell["iqm"], row - 0.16, mfc=colour, **diamond)
            if cell["paper"]:
                mean = cell["paper"][0]
                panel.plot([mean] * 2, [row - 0.4, row + 0.4], color=style.INK, lw=1.6, zorder=1)
        style.label(panel, task, "mean return of a seed", "")
        panel.set_yticks(range(len(names)), names)
        panel.set_ylim(len(names) - 0.5, -0.5)
        panel.margins(x=0.06)
        panel.grid(axis="x", color="#E8E8E8", lw=0.7)
    words = "IQM, 95% interval over seeds"
    marks = [
        style.line("one seed", marker="o", ms=4, ls="none", color=style.QUIET),
        style.line(words, marker="D", ms=5.5, mec="white", color=style.QUIET, lw=2.4),
        style.line("paper's mean", marker="|", ms=13, mew=1.6, ls="none", color=style.INK),
    ]
    seeds = _seeds(cell for cells in summary.values() for cell in cells.values())
    return style.finish(
        figure, marks, f"{seeds}, {document['settings']['steps']} steps of training"
    )


# The command -------------------------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    add, default = parser.add_argument, ["kql-rbf", "kql-linear", "dqn", "random"]
    add("--out", default="results/table1", help="directory for results (default %(default)s)")
    add("--small", action="store_true", help="two tasks, four algorithms, 2 seeds, 20 episodes")
    add("--page", action="store_true", help="print the table of the committed results")
    add("--seeds", type=int, default=30, help="seeds a cell (default %(default)s)")
    add("--first-seed", type=int, default=FIRST_REPORTING_SEED, help="default %(default)s")
    names = {"nargs": "+", "metavar": "NAME"}
    add("--algorithms", **names, choices=ROWS, default=default, help=f"of {', '.join(ROWS)}")
    add("--tasks", **names, default=list(PAPER_TASKS), help="default: the paper's four")
    add("--steps", type=int, default=1000, help="steps of training (default %(default)s)")
    add("--episodes", type=int, default=100, help="evaluation episodes (default %(default)s)")
    words = f"points of the learning curves of {', '.join(WITH_CURVES)} (default %(default)s)"
    add("--curve-points", type=int, default=5, help=words)
    add("--curve-seeds", type=int, default=3, help="seeds with a curve (default %(default)s)")
    return parser


def print_page() -> None:
    """The table of docs/results.md, and its figure."""
    times = [RESULTS / "times.json", RESULTS / "times_sb3.json"]
    document = joined(records.read(RESULTS / "table1.json"), [RESULTS / "sb3_dqn.json"], times)
    print(markdown_table(document, TRAINING))
    style.save(draw_strip(document), RESULTS / "seeds.png")


def main(argv: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    if args.page:
        print_page()
        return 0
    if args.small:
        args.tasks = ["MountainCar-v0", "CartPole-v0"]
        args.algorithms = ["kql-rounds", "kql-rbf", "dqn", "random"]
        args.seeds, args.episodes, args.curve_points = 2, 20, 0
    use_all_cores()
    try:
        with jax.enable_x64(True):
            document = run(args)
    except LabError as error:
        print(f"table1.py: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            f"stopped; finished runs are in {args.out}: the same command goes on", file=sys.stderr
        )
        return 130
    print_table(document)
    out = Path(args.out)
    (out / "table1.md").write_text(markdown_table(document) + "\n")
    files = ["table1.json", "table1.md", "results.csv"]
    if summarise_table(document):
        files.append(style.save(draw_strip(document), out / "seeds.png").name)
    if document["curves"]:
        files.append(save_curves(document, out / "curves.png").name)
    print(f"\nwrote {', '.join(str(out / name) for name in files)}")
    if args.small:
        print(
            "next: kqljax train CartPole-v1 --out pole.npz, then kqljax evaluate pole.npz;\n"
            "kqljax sweep --help; the whole table is make table1 (an hour and a half)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
