"""The paper's Table 1 (section 6): algorithms, tasks, many seeds, as a sweep of `kqljax.lab`.

    python benchmarks/table1.py --seeds 30 --out results/table1    # the whole table; interrupted, it goes on
    python benchmarks/table1.py --small --out results/run          # make run: two tasks, a few seeds
    python benchmarks/table1.py --page    # the table of docs/results.md and its figures from results/*.json

Writes table1.json, table1.md, seeds.png and curves.png. Seeds are the unit: each seed's episodes are averaged
first; intervals are over seeds. Seeds from 1000 on are for reporting, those below for tuning.
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
from kqljax.cli.sweep import _use_all_cores as use_all_cores
from kqljax.lab import LabError, Sweep, run_sweep
from kqljax.report import pooled, style, summarise

RESULTS = Path(__file__).parent / "results"
PAPERS = {"recipe": "paper"}
ROWS: dict[str, dict[str, Any]] = {
    "kql-rounds": {"recipe": "default"},
    "kql-rbf": PAPERS,
    "kql-linear": {**PAPERS, "kernel": "linear"},
    "kql-greedy": {**PAPERS, "beta": 0.0},
    "kql-features": {**PAPERS, "features": "nystrom"},
    "kql-features32": {**PAPERS, "features": "nystrom", "dtype": "float32"},
    "dqn": {"recipe": "dqn"},
    "kovi": {"recipe": "kovi"},
    "random": {"recipe": "random"},
}
"""Algorithm -> its setting, beside the task."""
WITH_CURVES = ("kql-rounds", "kql-rbf")
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


# The run ---------------------------------------------------------------------------------------------


def run(args: argparse.Namespace) -> Document:
    """Runs what is missing in `args.out` and returns the document."""
    places = list(itertools.product(args.algorithms, args.tasks))
    curve_places = [
        place
        for place in places
        if place[0] in WITH_CURVES and args.curve_points and args.curve_seeds
    ]

    def sweep(places, seeds, **more):
        settings = [{"task": task, **ROWS[name]} for name, task in places]
        sizes = {"first_seed": args.first_seed, "steps": args.steps, "episodes": args.episodes}
        return Sweep(settings=settings, recipes=RECIPES, seeds=seeds, **{**sizes, **more})

    def say(text):
        print(text, file=sys.stderr)

    with work_bar("runs") as bar:
        rows = run_sweep(sweep(places, args.seeds), args.out, report=bar, say=say).rows
    curves = []
    if curve_places:
        # A second training with evaluations in it: the first is timed.
        own = sweep(
            curve_places,
            min(args.seeds, args.curve_seeds),
            episodes=1,
            curve_points=args.curve_points,
        )
        with work_bar("learning curves") as bar:
            curves = run_sweep(own, Path(args.out) / "curves", report=bar, say=say).curves
    keep = ("seed", "return_mean", "return_std", "episodes", "seconds", "is_sound")
    document = {
        "settings": {
            name: getattr(args, name)
            for name in (
                "seeds",
                "first_seed",
                "algorithms",
                "tasks",
                "steps",
                "episodes",
                "curve_points",
                "curve_seeds",
            )
        },
        "versions": records.versions(),
        "device": records.device(),
        "results": [
            {"task": task, "algorithm": name, **{key: row[key] for key in keep}}
            for (name, task), own in zip(places, _parts(rows, args.seeds), strict=True)
            for row in own
        ],
        "curves": [
            {
                "task": row["task"],
                "algorithm": _name_of(row),
                **{key: row[key] for key in ("seed", "step", "return_mean", "episodes")},
            }
            for row in curves
        ],
    }
    records.write(Path(args.out) / "table1.json", document)
    return document


def _parts(rows: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _name_of(row: dict[str, Any]) -> str:
    return next(name for name in WITH_CURVES if ROWS[name]["recipe"] == row["recipe"])


# The table -------------------------------------------------------------------------------------------


def summarise_table(document: Document) -> dict[str, dict[str, dict[str, Any]]]:
    """Task -> algorithm -> statistics over seeds, pooled over episodes, seconds, and the paper's figures or None."""
    cells = defaultdict(list)
    for row in document["results"]:
        cells[row["task"], row["algorithm"]].append(row)
    summary: dict[str, dict[str, dict[str, Any]]] = {}
    for task, name in itertools.product(
        document["settings"]["tasks"], document["settings"]["algorithms"]
    ):
        sound = [
            row for row in cells[task, name] if row["is_sound"] and row["return_mean"] is not None
        ]
        if not sound:
            continue
        means, stds, episodes = (
            [row[key] for row in sound] for key in ("return_mean", "return_std", "episodes")
        )
        over_episodes, paper = pooled(means, stds, episodes), PAPER.get(name, {}).get(task)
        summary.setdefault(task, {})[name] = {
            **summarise(means, [row["seed"] for row in sound])._asdict(),
            "pooled": f"{over_episodes.mean:.2f} ± {over_episodes.std:.2f}",
            "seconds": float(np.mean([row["seconds"] for row in sound])),
            "unsound_seeds": [row["seed"] for row in cells[task, name] if row not in sound],
            "paper": paper and f"{paper[0]:.2f} ± {paper[1]:.2f}",
            "paper_mean": paper and paper[0],
        }
    return summary


def joined(document: Document, beside: Sequence[Path], times: Sequence[Path]) -> Document:
    """The document with further rows, and with other seconds.

    Args:
      beside: results files of algorithms that do not run in the library (sb3_dqn.py), with the same steps and episodes.
      times: results files whose seconds of training stand in place of the document's. Times are comparable only if they were
        taken in one go on a machine with nothing else to do, which the many hours of a full table rarely are: `make times`.
    """
    settings, added = document["settings"], []
    for path in beside:
        for row in records.read(path, {"results"})["results"]:
            for name in ("episodes", "steps"):
                if row[name] != settings[name]:
                    raise records.ResultsError(
                        f"{path} has {row[name]} {name} a seed, this table {settings[name]}."
                    )
            if row["seed"] < FIRST_REPORTING_SEED:
                raise records.ResultsError(
                    f"{path} has seed {row['seed']}; reported ones begin at {FIRST_REPORTING_SEED}."
                )
            if row["algorithm"] in settings["algorithms"]:
                raise records.ResultsError(
                    f"{path} has {row['algorithm']}, which is a row of this table already."
                )
            if row["task"] in settings["tasks"]:
                added.append({"is_sound": True, **row})
    names = list(dict.fromkeys(row["algorithm"] for row in added))
    seconds = defaultdict(list)
    for path in times:
        for row in records.read(path, {"results"})["results"]:
            seconds[row["task"], row["algorithm"]].append(row["seconds"])
    results = [
        {
            **row,
            "seconds": float(
                np.mean(seconds.get((row["task"], row["algorithm"]), [row["seconds"]]))
            ),
        }
        for row in [*document["results"], *added]
    ]
    return {
        **document,
        "settings": {**settings, "algorithms": [*settings["algorithms"], *names]},
        "results": results,
    }


def markdown_table(
    document: Document, seconds: str = "seconds a seed, training and evaluation"
) -> str:
    """Rows are algorithms, columns tasks."""
    summary = summarise_table(document)
    tasks = [task for task in document["settings"]["tasks"] if task in summary]
    lines = ["| | " + " | ".join(tasks) + " |", "|---|" + "---|" * len(tasks)]
    for name in document["settings"]["algorithms"]:
        cells = [summary[task].get(name) for task in tasks]
        rows = [
            (f"**{name}**, {_seeds(filter(None, cells))}: IQM [95%]",
             lambda cell: f"**{cell['iqm']:.1f}** [{cell['low']:.1f}, {cell['high']:.1f}]"),
            ("worst .. best seed", lambda cell: f"{cell['min']:.0f} .. {cell['max']:.0f}"),
            ("paper, mean ± std of episodes", lambda cell: cell["paper"] or ""),
            (seconds, lambda cell: f"{cell['seconds']:.2f}"),
        ]  # fmt: skip
        for label, words in rows:
            texts = [words(cell) if cell else "" for cell in cells]
            if any(texts):
                lines.append(f"| {label} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def print_table(document: Document) -> None:
    """The table in the terminal, with mean and standard deviation over all episodes as the paper prints them."""
    from rich.console import Console
    from rich.table import Table

    settings, summary = document["settings"], summarise_table(document)
    tasks = [task for task in settings["tasks"] if task in summary]
    console = Console() if Console().is_terminal else Console(width=160)
    seeds = f"{_seeds(cell for cells in summary.values() for cell in cells.values())} from {settings['first_seed']}"
    title = (
        f"Table 1: {settings['steps']} steps, {settings['episodes']} evaluation episodes, {seeds}"
    )
    table = Table(title=title, title_justify="left", title_style="bold", caption_justify="left")
    table.caption = (
        "IQM over seeds with its 95% bootstrap interval; s: seconds a seed, training and evaluation"
    )
    for name in ("algorithm", "", *tasks):
        table.add_column(name, no_wrap=True, justify="right" if name in tasks else "left")
    for name in settings["algorithms"]:
        for label, words in (
            (
                r"IQM \[95%]",
                lambda cell: (
                    rf"[bold]{cell['iqm']:.1f}[/] \[{cell['low']:.1f}, {cell['high']:.1f}]"
                ),
            ),
            ("mean ± std", lambda cell: cell["pooled"]),
            ("the paper's", lambda cell: cell["paper"] or ""),
            ("s", lambda cell: f"{cell['seconds']:.2f}"),
        ):
            cells = [summary[task].get(name) for task in tasks]
            texts = [words(cell) if cell else "" for cell in cells]
            if any(texts):
                table.add_row(name if label.startswith("IQM") else "", label, *texts)
        table.add_section()
    console.print(table)
    for task, name in itertools.product(tasks, settings["algorithms"]):
        if bad := summary[task].get(name, {}).get("unsound_seeds"):
            console.print(
                f"left out, numbers not finite: {name} on {task}, seeds {', '.join(map(str, bad))}",
                style="red",
            )


def _seeds(cells: Any) -> str:
    counts = sorted({cell["num_seeds"] for cell in cells})
    if len(counts) > 1:
        return f"{counts[0]} to {counts[-1]} seeds"
    return "no seeds" if not counts else "1 seed" if counts == [1] else f"{counts[0]} seeds"


# Figures ---------------------------------------------------------------------------------------------


def save_figures(document: Document, out: Path) -> list[Path]:
    """Writes seeds.png and, where there are curves, curves.png."""
    paths = [style.save(draw_strip(document), out / "seeds.png")]
    if document["curves"]:
        paths.append(style.save(draw_curves(document), out / "curves.png"))
    return paths


def draw_strip(document: Document) -> Any:
    """One panel a task, one row an algorithm: a dot a seed, the IQM with its interval, the paper's figure."""
    summary, names = summarise_table(document), document["settings"]["algorithms"]
    tasks = [task for task in document["settings"]["tasks"] if task in summary]
    figure, cells = style.panels(len(tasks), 4.9, 1.0 + 0.52 * len(names), share_y=True)
    rng = np.random.default_rng(0)
    for panel, task in zip(cells, tasks, strict=True):
        for row, name in enumerate(names):
            cell = summary[task].get(name)
            if cell is None:
                continue
            colour = COLOURS.get(name, OTHER)
            mine = [
                r["return_mean"]
                for r in document["results"]
                if (r["task"], r["algorithm"]) == (task, name)
            ]
            values = np.array([value for value in mine if value is not None])
            # Spread over the lower part of the row, so that the IQM above them stays readable.
            heights = row + 0.16 + rng.uniform(-0.12, 0.12, values.size)
            panel.scatter(values, heights, s=14, color=colour, alpha=0.6, linewidths=0, zorder=2)
            panel.plot(
                [cell["low"], cell["high"]],
                [row - 0.16] * 2,
                color=colour,
                lw=2.4,
                solid_capstyle="butt",
            )
            panel.plot(cell["iqm"], row - 0.16, marker="D", ms=6, mfc=colour, mec="white", mew=0.9)
            if cell["paper_mean"] is not None:
                panel.plot(
                    [cell["paper_mean"]] * 2,
                    [row - 0.4, row + 0.4],
                    color=style.INK,
                    lw=1.6,
                    zorder=1,
                )
        panel.set_title(task, loc="left", fontsize=10.5, color=style.INK)
        panel.set_yticks(range(len(names)), names)
        panel.set_ylim(len(names) - 0.5, -0.5)
        panel.margins(x=0.06)
        panel.set_xlabel("mean return of a seed", fontsize=9, color=style.INK)
        panel.grid(axis="x", color="#E8E8E8", lw=0.7)
        for row in range(1, len(names)):
            panel.axhline(row - 0.5, color="#E8E8E8", lw=0.7, zorder=0)
    marks = [
        style.line("one seed", marker="o", ms=4, ls="none", color=style.QUIET),
        style.line(
            "IQM, 95% interval over seeds",
            marker="D",
            ms=5.5,
            mec="white",
            color=style.QUIET,
            lw=2.4,
        ),
        style.line("paper's mean", marker="|", ms=13, mew=1.6, ls="none", color=style.INK),
    ]
    seeds = _seeds(cell for cells in summary.values() for cell in cells.values())
    return style.finish(
        figure, marks, f"{seeds}, {document['settings']['steps']} steps of training"
    )


def draw_curves(document: Document) -> Any:
    """One panel a task: thin lines are seeds, the thick one their IQM with its interval; the paper's figure is dashed."""
    curves = document["curves"]
    tasks = [
        task for task in document["settings"]["tasks"] if any(row["task"] == task for row in curves)
    ]
    names = list(dict.fromkeys(row["algorithm"] for row in curves))
    figure, cells = style.panels(len(tasks), 4.6, 3.0, share_y=False)
    for panel, task in zip(cells, tasks, strict=True):
        for name in names:
            mine = [row for row in curves if (row["task"], row["algorithm"]) == (task, name)]
            steps = sorted({row["step"] for row in mine})
            lines = defaultdict(list)
            for row in mine:
                lines[row["seed"]].append(row["return_mean"])
            colour = COLOURS.get(name, OTHER)
            for one in lines.values():
                panel.plot(steps, one, color=colour, lw=0.8, alpha=0.4)
            points = [summarise(column) for column in np.array(list(lines.values()), float).T]
            panel.fill_between(
                steps,
                [p.low for p in points],
                [p.high for p in points],
                color=colour,
                alpha=0.15,
                linewidth=0,
            )
            panel.plot(steps, [p.iqm for p in points], color=colour, lw=2.4, marker="o", ms=4)
            if name in PAPER and task in PAPER[name]:
                panel.axhline(PAPER[name][task][0], color=style.INK, lw=1.2, ls=(0, (5, 3)))
        panel.set_title(task, loc="left", fontsize=10.5, color=style.INK)
        panel.set_xlabel("environment steps", fontsize=9, color=style.INK)
        panel.set_ylabel("return", fontsize=9, color=style.INK)
        panel.set_xlim(0, 1.03 * document["settings"]["steps"])
        panel.margins(y=0.08)
        panel.grid(axis="y", color="#E8E8E8", lw=0.7)
    words = "IQM, 95% interval"
    marks = [
        style.line(f"{name}: {words}", marker="o", ms=4, lw=2.4, color=COLOURS.get(name, OTHER))
        for name in names
    ]
    marks.append(style.line("one seed", lw=0.8, color=style.QUIET))
    marks.append(style.line("paper's mean after training", lw=1.2, ls=(0, (5, 3)), color=style.INK))
    count = len({row["seed"] for row in curves})
    note = f"{count} seed{'' if count == 1 else 's'}, {curves[0]['episodes']} evaluation episodes a point"
    return style.finish(figure, marks, note)


# The command -----------------------------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--out",
        default="results/table1",
        help="directory for results and figures (default %(default)s)",
    )
    add(
        "--small",
        action="store_true",
        help="two tasks, four algorithms, 2 seeds, 20 episodes, no curves: a minute or two",
    )
    add(
        "--page",
        action="store_true",
        help="print the table of the committed results and draw its figures",
    )
    add("--seeds", type=int, default=30, help="seeds a cell (default %(default)s)")
    add(
        "--first-seed",
        type=int,
        default=FIRST_REPORTING_SEED,
        help="default %(default)s; below 1000 for tuning alone",
    )
    add("--algorithms", nargs="+", choices=ROWS, default=["kql-rbf", "kql-linear", "dqn", "random"], metavar="NAME",
        help=f"of {', '.join(ROWS)} (default: kql-rbf kql-linear dqn random)")  # fmt: skip
    add(
        "--tasks",
        nargs="+",
        default=list(PAPER_TASKS),
        metavar="NAME",
        help="default: the paper's four",
    )
    add("--steps", type=int, default=1000, help="steps of training (default %(default)s)")
    add("--episodes", type=int, default=100, help="evaluation episodes (default %(default)s)")
    add(
        "--curve-points",
        type=int,
        default=5,
        help=f"points of the curves of {', '.join(WITH_CURVES)} (default %(default)s)",
    )
    add(
        "--curve-seeds",
        type=int,
        default=3,
        help="seeds with a learning curve (default %(default)s)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.page:
        document = joined(
            records.read(RESULTS / "table1.json"),
            [RESULTS / "sb3_dqn.json"],
            [RESULTS / "times.json", RESULTS / "times_sb3.json"],
        )
        print(markdown_table(document, TRAINING))
        save_figures(document, RESULTS)
        return 0
    if args.small:
        args.tasks, args.algorithms = (
            ["MountainCar-v0", "CartPole-v0"],
            ["kql-rounds", "kql-rbf", "dqn", "random"],
        )
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
            f"stopped; finished runs are in {args.out}, the same command goes on.", file=sys.stderr
        )
        return 130
    print_table(document)
    out = Path(args.out)
    (out / "table1.md").write_text(markdown_table(document) + "\n")
    paths = save_figures(document, out)
    print(
        f"\nwrote {', '.join(str(path) for path in (out / 'table1.json', out / 'table1.md', out / 'results.csv', *paths))}"
    )
    if args.small:
        print(
            "next: kqljax train CartPole-v1 --out pole.npz, then kqljax evaluate pole.npz; kqljax sweep --help;\n"
            "the whole table is make table1 (an hour and a half)."
        )
    return 0


TRAINING = "seconds of training a seed"

if __name__ == "__main__":
    sys.exit(main())
