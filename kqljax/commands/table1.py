"""`kqljax table1`."""

from __future__ import annotations

import argparse
import json
import sys

from kqljax import experiment
from kqljax.algorithms import ALGORITHMS, OF_RECIPE
from kqljax.commands.base import INTERRUPTED, UsageError, WorkBar, console_for_tables
from kqljax.report import plots, records, style, table
from kqljax.tasks import TASKS


def add_options(parser: argparse.ArgumentParser) -> None:
    default = experiment.Table1Settings()
    parser.description = "Runs the paper's Table 1 with many seeds; an interrupted run goes on with the same command."
    parser.epilog = (
        "example:\n"
        "  kqljax table1 --seeds 5 --algorithms kql-rbf random --tasks MountainCar-v0 CartPole-v0 --out results\n\n"
        "algorithms:\n"
        + "\n".join(f"  {name:<12}{text}" for name, text in ALGORITHMS.items())
        + f"\n\ntasks:\n  {', '.join(TASKS)}\n\n"
        "writes table1.json, seeds.png and curves.png into the directory of --out. The same --out again takes more\n"
        "seeds, algorithms or tasks; the other settings must stay as they were."
    )
    add = parser.add_argument
    add("--out", metavar="DIR", required=True, help="directory for results and figures")
    add("--seeds", metavar="N", type=int, default=default.seeds, help="seeds a cell (default %(default)s)")
    add("--first-seed", metavar="N", type=int, help="first of them (default 1000; 0 with --tuning)")
    add("--tuning", action="store_true", help="use seeds 0..999, which no reported figure may rest on")
    names = {"nargs": "+", "metavar": "NAME"}
    add("--algorithms", **names, default=default.algorithms, help=f"default: {' '.join(default.algorithms)}")  # type: ignore[arg-type]
    add(
        "--recipe", choices=tuple(OF_RECIPE),
        help="what stands for kql-rbf: Algorithm 1 of the paper, or default, learning in rounds, kql-rounds (default paper)",
    )  # fmt: skip
    add("--tasks", **names, default=default.tasks, help=f"default: {' '.join(default.tasks)}")  # type: ignore[arg-type]
    add("--steps", metavar="N", type=int, default=default.steps, help="steps of training (default %(default)s)")
    add("--episodes", metavar="N", type=int, default=default.episodes, help="evaluation episodes (default %(default)s)")
    add(
        "--curve-points", metavar="N", type=int, default=default.curve_points,
        help="points of the learning curves of kql-rbf and kql-rounds, 0 for none (default %(default)s)",
    )  # fmt: skip
    add(
        "--curve-seeds", metavar="N", type=int, default=default.curve_seeds,
        help="seeds with a learning curve, each trained a second time (default %(default)s)",
    )  # fmt: skip
    add("--no-figures", action="store_true", help="leave the figures out")
    as_text = parser.add_mutually_exclusive_group()
    as_text.add_argument("--json", action="store_true", help="print the summary as JSON in place of the table")
    as_text.add_argument("--markdown", action="store_true", help="print the table in Markdown")


def run(options: argparse.Namespace) -> int:
    first = options.first_seed
    if first is None:
        first = 0 if options.tuning else experiment.FIRST_REPORTING_SEED
    if options.recipe and OF_RECIPE["paper"] not in options.algorithms:
        raise UsageError(
            f"--recipe says what stands for {OF_RECIPE['paper']}, which is not among --algorithms: leave it out, or name the "
            f"rows there, such as {OF_RECIPE['default']}."
        )
    row = OF_RECIPE[options.recipe or "paper"]
    settings = experiment.Table1Settings(
        seeds=options.seeds,
        first_seed=first,
        algorithms=tuple(dict.fromkeys(row if name == OF_RECIPE["paper"] else name for name in options.algorithms)),
        tasks=tuple(options.tasks),
        steps=options.steps,
        episodes=options.episodes,
        tuning=options.tuning,
        curve_points=options.curve_points,
        curve_seeds=options.curve_seeds,
    )
    if not options.no_figures:
        try:
            style.require_matplotlib()
        except ImportError as error:
            raise UsageError(f"{error} Or add --no-figures.") from error
    try:
        with _Bar() as bar:
            document = experiment.run_table1(settings, options.out, bar.update)
    except (experiment.SettingsError, records.ResultsError) as error:
        raise UsageError(str(error)) from error
    except KeyboardInterrupt:
        print(f"stopped; finished seeds are in {options.out}, and the same command goes on from there.", file=sys.stderr)
        return INTERRUPTED
    paths = [] if options.no_figures else plots.save_figures(document, options.out)
    if options.json:
        print(json.dumps(document["summary"], indent=1))
        return 0
    if options.markdown:
        print(table.markdown_table(document))
        return 0
    table.print_table(document, console_for_tables())
    written = [f"{options.out.rstrip('/')}/{experiment.RESULTS_FILE}", *map(str, paths)]
    print(f"wrote {', '.join(written)}")
    return 0


class _Bar(WorkBar):
    """The whole run, in units of expected work."""

    _total: float | None = None

    def update(self, left: list[experiment.Work], now: experiment.Work | None) -> None:
        remaining = sum(work.guess for work in left)
        if self._total is None:
            self._total = remaining
        if now is None:
            words = "done"
        else:
            words = f"{now.algorithm} {now.task} {'curve of ' if now.is_curve else ''}seed {now.seeds[0]}"
        self.show(self._total - remaining, self._total, words)
