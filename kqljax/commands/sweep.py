"""`kqljax sweep` and `kqljax sweep show`."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kqljax.commands.base import INTERRUPTED, UsageError, WorkBar, console_for_tables
from kqljax.report import plots, records, style
from kqljax.sweep import Progress, SettingError, Sweep, SweepError, expand_grid, run_sweep, tidy_settings
from kqljax.sweep.hosts import PATIENCE, connect
from kqljax.sweep.results import read_results
from kqljax.sweep.run import CHECKPOINT_SECONDS
from kqljax.sweep.segments import SHARDS
from kqljax.sweep.settings import NAMES, PARAMS, describe
from kqljax.tasks import TASKS

FIGURE = "sweep.png"
_FLAGS = ("task", "kernel", "eta", "length_scale", "gamma", "lam", "beta", "features", "tolerance", "dtype")
_NUMBERS = ("seeds", "first_seed", "steps", "episodes", "stages", "every", "curve_episodes", "shard", "chunk", "keep_states")
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def add_options(parser: argparse.ArgumentParser) -> None:
    default = Sweep(settings=())
    parser.usage = "kqljax sweep [options] --out DIR\n       kqljax sweep show DIR"
    parser.description = (
        "Runs every setting with every seed and leaves one tidy table, results.csv and results.json, in the directory.\n"
        "A sweep that was interrupted, in whatever way, goes on with the same command. `kqljax sweep show DIR` prints the\n"
        "best settings with intervals and draws the return against each swept number."
    )
    parser.epilog = (
        "examples:\n"
        "  kqljax sweep --task MountainCar-v0 --seeds 4 --steps 400 --out results/one\n"
        "  kqljax sweep --task MountainCar-v0 CartPole-v0 --eta 0.01 0.02 0.05 --gamma 0.9 0.95 --seeds 8 --out results/grid\n"
        "  kqljax sweep --file grid.toml --out results/grid\n"
        "  kqljax sweep show results/grid\n\n"
        "several values of a setting, after one flag or after the same flag again, make a grid: all combinations. A file,\n"
        "TOML or JSON, has the same names:\n"
        "  seeds = 8\n"
        "  steps = 1000\n"
        "  [grid]                      # or [[settings]], a list without combinations\n"
        '  task = ["MountainCar-v0"]\n'
        "  eta = [0.01, 0.02, 0.05]\n"
        '  "params.gravity" = [0.0025, 0.003]\n\n'
        "settings for --set and for files:\n"
        + "\n".join(f"  {name:<14}{text}" for name, (_, text) in NAMES.items())
        + f"\n  {PARAMS}NAME   a parameter of the environment, such as {PARAMS}gravity\n\ntasks:\n  {', '.join(TASKS)}\n\n"
        "several hosts: the same command on each with --coordinator, --num-processes and --process-id; on Slurm, Open MPI and\n"
        "TPU pods without them. See docs/scaling.md."
    )
    parser.add_argument("words", nargs="*", metavar="show DIR", help="print and draw the results in a directory")
    add = parser.add_argument
    add("--out", metavar="DIR", help="directory for checkpoints and results")
    add("--file", metavar="FILE", help="settings from a TOML or JSON file; flags add to its grid")
    for name in _FLAGS:
        flag, text = f"--{name.replace('_', '-')}", NAMES[name][1].replace("%", "%%")
        add(flag, dest=f"set_{name}", nargs="+", action="extend", metavar="VALUE", help=text)
    add("--set", dest="others", nargs="+", action="extend", metavar="NAME=VALUE", help="any other setting, see below")
    sizes = parser.add_argument_group("size")
    size = sizes.add_argument
    size("--seeds", metavar="N", type=int, help=f"seeds of each setting (default {default.seeds})")
    size("--first-seed", metavar="N", type=int, help=f"first of them (default {default.first_seed})")
    size("--steps", metavar="N", type=int, help=f"steps of training (default {default.steps})")
    size("--episodes", metavar="N", type=int, help=f"evaluation episodes (default {default.episodes})")
    size("--curve-episodes", metavar="N", type=int, help="evaluate at every visit of the host too, for learning curves")
    size("--stages", metavar="N", type=int, help="capacities to grow through (default: one for 200 steps, at most 5)")
    size("--every", metavar="N", type=int, help="steps between two visits of the host (default: a stage)")
    size("--keep-states", action="store_true", default=None, help="keep the trained states, for kqljax.load_state")
    devices = parser.add_argument_group("devices and hosts")
    device = devices.add_argument
    device("--memory", metavar="BYTES", help="what a device may use, such as 8GB (default: most of what it has)")
    device("--chunk", metavar="N", type=int, help="runs side by side at most (default: as many as fit)")
    device("--shard", choices=SHARDS, help="spread seeds over devices, or the rows of each run's large arrays (default seeds)")
    device("--coordinator", metavar="HOST:PORT", help="address of the first process")
    device("--num-processes", metavar="N", type=int, help="number of processes")
    device("--process-id", metavar="I", type=int, help="which of them this is, from 0")
    device(
        "--patience", metavar="SECONDS", type=float, default=PATIENCE,
        help="a process that is silent for so long counts as lost (default %(default)g)",
    )  # fmt: skip
    device(
        "--checkpoint-seconds", metavar="SECONDS", type=float, default=CHECKPOINT_SECONDS,
        help="time between two checkpoints, at least (default %(default)g)",
    )  # fmt: skip
    add("--no-figures", action="store_true", help="draw no figure")
    add("--top", metavar="N", type=int, default=10, help="settings to print (default %(default)s)")


def run(options: argparse.Namespace) -> int:
    if options.words:
        if options.words[0] != "show" or len(options.words) != 2:
            raise UsageError(f"unexpected {' '.join(options.words)!r}. Give options, or: kqljax sweep show DIR.")
        return _show(Path(options.words[1]), options)
    if options.out is None:
        raise UsageError("--out is missing: the directory for checkpoints and results. See kqljax sweep --help.")
    try:
        sweep = make_sweep(options)
        memory = parse_bytes(options.memory) if options.memory else None
        console = Console(stderr=True)
        with (
            connect(options.coordinator, options.num_processes, options.process_id, options.patience) as hosts,
            _Bar(console, is_shown=hosts.index == 0) as bar,
        ):
            document = run_sweep(
                sweep,
                options.out,
                memory=memory,
                hosts=hosts,
                checkpoint_seconds=options.checkpoint_seconds,
                say=lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True),
                report=bar.update,
            )
    except (SweepError, SettingError) as error:
        raise UsageError(str(error)) from error
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on from the last checkpoint in {options.out}.", file=sys.stderr)
        return INTERRUPTED
    return 0 if document is None else _show(Path(options.out), options)


# What to run ---------------------------------------------------------------------------------------------------------


def make_sweep(options: argparse.Namespace) -> Sweep:
    """The sweep that flags and file ask for; flags win over numbers of the file and add to its grid."""
    document = _read_file(Path(options.file)) if options.file else {}
    unknown = set(document) - {*_NUMBERS, "grid", "settings"}
    if unknown:
        raise SweepError(f"{options.file}: unknown {', '.join(sorted(unknown))}. Known: grid, settings, {', '.join(_NUMBERS)}.")
    grid: dict[str, Any] = dict(document.get("grid", {}))
    for name in _FLAGS:
        if (values := getattr(options, f"set_{name}")) is not None:
            grid[name] = values
    for word in options.others or ():
        name, sign, value = word.partition("=")
        if not sign:
            raise SweepError(f"--set takes NAME=VALUE, got {word!r}.")
        grid.setdefault(name, [])
        grid[name] = [*(grid[name] if isinstance(grid[name], list) else [grid[name]]), value]
    if "settings" in document:
        common = {name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in grid.items()}
        if any(isinstance(value, list) for value in common.values()):
            raise SweepError(f"{options.file} lists its settings: flags may add one value to all of them, not a grid.")
        settings = tidy_settings([{**common, **setting} for setting in document["settings"]])
    else:
        if "task" not in grid:
            raise SweepError(f"--task is missing. Known: {', '.join(TASKS)}.")
        settings = expand_grid(grid)
    numbers = {name: document[name] for name in _NUMBERS if name in document}
    numbers |= {name: value for name in _NUMBERS if (value := getattr(options, name)) is not None}
    return Sweep(settings=settings, **numbers)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
        document = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise SweepError(f"cannot read {path}: {error}. It must be TOML, or JSON with the ending .json.") from error
    if not isinstance(document, dict):
        raise SweepError(f"{path} must hold a table with grid or settings.")
    return document


def parse_bytes(text: str) -> int:
    """A number of bytes from words such as 8GB or 500MiB."""
    found = re.fullmatch(r"\s*([0-9.]+)\s*([a-zA-Z]*)\s*", text)
    try:
        if found and (unit := _UNITS[found[2].lower()]) and (size := int(float(found[1]) * unit)) > 0:
            return size
    except (KeyError, ValueError):
        pass
    raise SweepError(f"--memory must be a number of bytes such as 8GB, 500MB or 2GiB, got {text!r}.")


# What came of it -----------------------------------------------------------------------------------------------------


def _show(directory: Path, options: argparse.Namespace) -> int:
    try:
        document = read_results(directory)
    except records.ResultsError as error:
        raise UsageError(str(error)) from error
    console = console_for_tables()
    print_best(document, console, options.top)
    files = [directory / "results.csv", directory / "results.json"]
    if not options.no_figures:
        try:
            files.append(style.save(plots.draw_sweep(document), directory / FIGURE))
        except ImportError as error:
            console.print(f"no figure: {error}", highlight=False)
    console.print(f"all of it: {', '.join(map(str, files))}", highlight=False, markup=False, soft_wrap=True)
    return 0


def print_best(document: records.Document, console: Console, top: int) -> None:
    """The best settings of every task, with intervals; and the runs that were stopped."""
    sweep = document["sweep"]
    names = [name for name in document["swept"] if name != "task"]
    tasks = dict.fromkeys(setting["task"] for setting in sweep["settings"])
    for task in tasks:
        cells = [cell for cell in document["summary"] if cell["values"]["task"] == task]
        cells.sort(key=lambda cell: (cell["iqm"] is None, -(cell["iqm"] or 0.0)))
        seeds = f"{sweep['seeds']} seed{'' if sweep['seeds'] == 1 else 's'} from {sweep['first_seed']}"
        title = f"{task}: {sweep['steps']} steps, {sweep['episodes']} episodes, {seeds}"
        table = Table(title=title, title_justify="left", title_style="bold", caption_justify="left")
        table.caption = "IQM over seeds with its 95% bootstrap interval; seeds that were stopped are left out."
        for name in names:
            table.add_column(name, justify="right", no_wrap=True)
        for name in ("IQM [95%]", "mean", "worst .. best seed", "seeds"):
            table.add_column(name.replace("[", r"\["), justify="right", no_wrap=True)
        for cell in cells[:top]:
            values = [_word(cell["values"].get(name)) for name in names]
            if cell["iqm"] is None:
                table.add_row(*values, "none", "", "", "0")
                continue
            interval = f"{cell['iqm']:.1f} [{cell['low']:.1f}, {cell['high']:.1f}]".replace("[", r"\[")
            spread = f"{cell['min']:.1f} .. {cell['max']:.1f}"
            table.add_row(*values, interval, f"{cell['mean']:.1f}", spread, str(cell["num_seeds"]))
        console.print(table)
        if len(cells) > top:
            console.print(f"and {len(cells) - top} more in results.json", style="dim", highlight=False)
    for cell in document["summary"]:
        if cell["stopped_seeds"]:
            seeds = ", ".join(map(str, cell["stopped_seeds"]))
            words = f"stopped, numbers not finite: {describe(cell['values'])}, seeds {seeds}"
            console.print(words, style="red", highlight=False, markup=False, soft_wrap=True)


def _word(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


class _Bar(WorkBar):
    """The steps of all runs."""

    def update(self, progress: Progress) -> None:
        words = f"chunk {progress.chunk}/{progress.chunks}, step {progress.step}/{progress.steps}, {progress.going} seeds"
        if progress.going < progress.runs:
            words += f" ({progress.runs - progress.going} stopped)"
        if progress.returns is not None:
            words += f", return {progress.returns:.1f}"
        self.show(progress.done, progress.total, words)
