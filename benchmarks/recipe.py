"""Learning in rounds, one recipe for every task: how well, how soon, and what each part of the
recipe buys.

    python benchmarks/recipe.py                      # everything; writes results/recipe.json and recipe.png
    python benchmarks/recipe.py --parts table steps  # some parts; what the file holds of the others stays
    python benchmarks/recipe.py --smoke              # a minute, for the tests

  table     1000 steps, 100 seeds from 2000 on steps     300, 500 and 700 steps, 40 seeds from 2000
  on finish    other finished policies on the transitions that the recipe collected, 48 seeds from
  600 on learning  runs with another learner, the same seeds

Nothing was tuned on seeds from 2000 on; choices were made on seeds below 1000, which is where the
parts are compared. 100 evaluation episodes a seed (50 for the parts), averaged first. A run that is
stopped goes on where it was; a variant whose numbers have changed is run again.
"""

import os

# One thread a product: the cores are used by running seeds side by side. What the caller has set
# comes later and wins.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["XLA_FLAGS"] = (
    f"--xla_cpu_multi_thread_eigen=false {os.environ.get('XLA_FLAGS', '')}".strip()
)

import argparse
import dataclasses
import functools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import records
from paper import PAPER, PAPER_TASKS
from tqdm import tqdm

import kqljax
from kqljax import rounds
from kqljax.report import style, summarise

RESULTS = Path(__file__).parent / "results"
TABLE_SEED, PARTS_SEED = 2000, 600
"""First seeds of what is reported, and of what the parts were chosen on."""
FAILED = {
    "MountainCar-v0": -195.0,
    "Pendulum-v1": -600.0,
    "Acrobot-v1": -300.0,
    "CartPole-v0": 100.0,
}
"""A seed whose mean return is at most this has failed."""
MARGIN = {"MountainCar-v0": 5.0, "Pendulum-v1": 10.0, "Acrobot-v1": 5.0, "CartPole-v0": 2.0}
"""A part that is worth less than this on every task is not worth its code."""

RECIPE = "recipe"


def change(**numbers: Any) -> rounds.Recipe:
    """The recipe with other numbers."""
    return dataclasses.replace(rounds.DEFAULT, **numbers)


FINISH = {
    "no displacements": change(displaced=0.0),
    "no factor for another action": change(finish_coupling=1.0),
    "three widths": change(members=3, widest=1 / 9),
    "one width": change(members=1, widest=1.0),
    "no looking ahead": change(unclear=0.0),
    "looking ahead everywhere": change(unclear=1e9),
    "gamma 0.97": change(finish_gamma=0.97),
    "128 centres": change(finish_centres=128, model_centres=128),
}
"""Finished policies, compared on the same transitions."""

NEVER = 2**30
LEARNING = {
    "no displacements": change(displaced=0.0),
    "no factor for another action": change(coupling=1.0, finish_coupling=1.0),
    "the finished policy never acts": change(own_from=NEVER),
    "width not fitted": change(first_fit=NEVER),
    "five backups": change(backups=5),
    "rounds of n/10": change(round_share=0.1),
    "gamma 0.95": change(gamma=0.95),
    "64 centres": change(centres=64),
}
"""Runs that learn with other numbers."""


class Cell(NamedTuple):
    """One entry of a table: seeds of a variant on a task."""

    part: str
    variant: str
    task: str
    steps: int


class Size(NamedTuple):
    """How much is run."""

    recipe: rounds.Recipe
    tasks: tuple[str, ...]
    steps: int
    table: int
    fewer: dict[int, int]
    parts: int
    finish: dict[str, rounds.Recipe]
    learning: dict[str, rounds.Recipe]
    episodes: dict[str, int]
    chunk: int


EPISODES = {"table": 100, "steps": 100, "finish": 50, "learning": 50}
FULL = Size(
    rounds.DEFAULT,
    PAPER_TASKS,
    1000,
    100,
    {300: 40, 500: 40, 700: 40},
    48,
    FINISH,
    LEARNING,
    EPISODES,
    4,
)
SMALL = change(centres=64, finish_centres=64, model_centres=64, fit_rows=60, own_from=40)
SMOKE = Size(
    SMALL,
    ("CartPole-v0",),
    60,
    2,
    {40: 1},
    1,
    {"no looking ahead": dataclasses.replace(SMALL, unclear=0.0)},
    {"five backups": dataclasses.replace(SMALL, backups=5)},
    dict.fromkeys(EPISODES, 2),
    2,
)
PARTS = ("table", "steps", "finish", "learning")


# Runs ---------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """Of one seed.

    Attributes:
      return_mean: `[]` mean over the evaluation episodes.
      first_end: `[]` steps until a task ended for the first time; one more than there were where
        none did.
      acts_finished: `[]` share of the rounds in which the finished policy acted.
      is_sound: `[]` bool, whether every number was finite.
    """

    return_mean: Any
    first_end: Any
    acts_finished: Any
    is_sound: Any


def trained(
    key: Any, task: kqljax.Task, recipe: rounds.Recipe, steps: int
) -> tuple[kqljax.TrainRun, Outcome]:
    """A run, and what there is to say of it before evaluation."""
    run = kqljax.train(key, task, recipe, num_steps=steps)
    log = run.log
    first_end = jnp.where(log.terminated.any(), jnp.argmax(log.terminated) + 1, steps + 1)
    begins = log.info.is_round
    share = (log.info.acts_finished & begins).sum() / (
        begins.sum() + 1
    )  # the first round is not in the log
    return run, Outcome(0.0, first_end, share, run.is_sound)


def evaluated(
    key: Any, task: kqljax.Task, policy: rounds.Policy, outcome: Outcome, episodes: int
) -> Outcome:
    """The outcome with the policy's mean return."""
    mean = kqljax.evaluate(key, task, policy, num_episodes=episodes).mean()
    return outcome._replace(return_mean=mean, is_sound=outcome.is_sound & jnp.isfinite(mean))


def compile_options() -> dict[str, Any] | None:
    return rounds.CPU_COMPILER_OPTIONS if jax.default_backend() == "cpu" else None


@functools.cache
def program(task: str, steps: int, episodes: int, shape: Any) -> Callable:
    """Trains and evaluates a recipe of the given structure: `Outcome` of arrays `[seeds]`."""
    made = kqljax.make_task(task)

    def run(key: Any, recipe: rounds.Recipe) -> Outcome:
        train_key, eval_key = jax.random.split(key)
        found, outcome = trained(train_key, made, recipe, steps)
        return evaluated(eval_key, made, found.policy, outcome, episodes)

    return jax.jit(kqljax.across_seeds(run), compiler_options=compile_options())


@functools.cache
def finish_program(task: str, steps: int, episodes: int, shapes: Any) -> Callable:
    """Trains once, and evaluates what each of many recipes makes of the transitions: `Outcome` of
    arrays `[seeds, recipes]`.
    """
    made = kqljax.make_task(task)

    def run(key: Any, recipe: rounds.Recipe, groups: list[rounds.Recipe]) -> Outcome:
        train_key, eval_key = jax.random.split(key)
        found, outcome = trained(train_key, made, recipe, steps)

        def one(variant: rounds.Recipe) -> Outcome:
            policy = rounds.fit(None, variant, found.state.transitions).policy
            return evaluated(eval_key, made, policy, outcome, episodes)

        return jax.tree.map(
            lambda *leaves: jnp.concatenate(leaves), *(jax.lax.map(one, group) for group in groups)
        )

    return jax.jit(kqljax.across_seeds(run), compiler_options=compile_options())


def grouped(variants: dict[str, rounds.Recipe]) -> tuple[list[str], list[rounds.Recipe]]:
    """The names, and recipes of one structure stacked, in the same order."""
    groups: dict[Any, dict[str, rounds.Recipe]] = {}
    for name, recipe in variants.items():
        groups.setdefault(jax.tree.structure(recipe), {})[name] = recipe
    names = [name for group in groups.values() for name in group]
    stacked = [
        jax.tree.map(
            lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *group.values()
        )
        for group in groups.values()
    ]
    return names, stacked


def run_cells(size: Size, cells: list[Cell], seeds: Iterable[int]) -> list[dict]:
    """Records of some seeds. Cells of the part `finish` share a run and come together; of the
    others there is one.
    """
    cell = cells[0]
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    if cell.part == "finish":
        variants = {each.variant: variant_recipes(size, "finish")[each.variant] for each in cells}
        names, groups = grouped(variants)
        shapes = tuple(jax.tree.structure(group) for group in groups)
        found = finish_program(cell.task, cell.steps, size.episodes[cell.part], shapes)(
            keys, size.recipe, groups
        )
    else:
        names, recipe = [cell.variant], variant_recipes(size, cell.part)[cell.variant]
        made = program(cell.task, cell.steps, size.episodes[cell.part], jax.tree.structure(recipe))(
            keys, recipe
        )
        found = jax.tree.map(lambda leaf: leaf[:, None], made)
    found = jax.tree.map(np.asarray, found)
    return [
        {**cell._replace(variant=name)._asdict(), "seed": seed}
        | {field: column[i, j].item() for field, column in found._asdict().items()}
        for i, seed in enumerate(seeds)
        for j, name in enumerate(names)
    ]


def variant_recipes(size: Size, part: str) -> dict[str, rounds.Recipe]:
    """Every variant of a part, the recipe itself first."""
    return {RECIPE: size.recipe} | {"finish": size.finish, "learning": size.learning}.get(part, {})


def todo(size: Size, parts: Iterable[str]) -> list[tuple[list[Cell], range]]:
    """What there is to run, the most important first: cells that run together, and their seeds."""
    table, parts_seeds = (
        range(TABLE_SEED, TABLE_SEED + size.table),
        range(PARTS_SEED, PARTS_SEED + size.parts),
    )
    found = [([Cell("table", RECIPE, task, size.steps)], table) for task in size.tasks]
    for steps, count in size.fewer.items():
        found += [
            ([Cell("steps", RECIPE, task, steps)], range(TABLE_SEED, TABLE_SEED + count))
            for task in size.tasks
        ]
    names = variant_recipes(size, "finish")
    found += [
        ([Cell("finish", name, task, size.steps) for name in names], parts_seeds)
        for task in size.tasks
    ]
    for name in variant_recipes(size, "learning"):
        found += [([Cell("learning", name, task, size.steps)], parts_seeds) for task in size.tasks]
    return [entry for entry in found if entry[0][0].part in parts]


def recipe_texts(size: Size) -> dict[str, str]:
    """What each variant was made with."""
    return {
        f"{part}: {name}": repr(recipe)
        for part in PARTS
        for name, recipe in variant_recipes(size, part).items()
    }


def is_current(record: dict, before: dict[str, str], now: dict[str, str]) -> bool:
    """Whether a record was made with the numbers of now; a finished policy also depends on the
    run's recipe.
    """
    names = {f"{record['part']}: {record['variant']}", f"{record['part']}: {RECIPE}"}
    return all(before.get(name) == now.get(name) is not None for name in names)


def run_all(size: Size, parts: Iterable[str], path: Path) -> dict:
    settings = {"episodes": size.episodes, "first_seeds": [TABLE_SEED, PARTS_SEED]}
    document: dict[str, Any] = {
        "settings": settings,
        "recipes": recipe_texts(size),
        "versions": records.versions(),
    }
    document |= {"device": records.device(), "results": []}
    if path.exists():
        stored = json.loads(path.read_text())
        if stored.get("settings") == settings:
            rows = stored["results"]
            document["results"] = [
                row for row in rows if is_current(row, stored["recipes"], document["recipes"])
            ]
    done = {(place(record), record["seed"]) for record in document["results"]}
    left = [
        (cells, [seed for seed in seeds if any((cell, seed) not in done for cell in cells)])
        for cells, seeds in todo(size, parts)
    ]
    with tqdm(total=sum(len(seeds) for _, seeds in left), unit="seed") as bar:
        for cells, seeds in left:
            wanted = set(cells)
            for start in range(0, len(seeds), size.chunk):
                some = seeds[start : start + size.chunk]
                cell = cells[0]
                bar.set_description(
                    f"{cell.part}: {cell.variant if len(cells) == 1 else len(cells)}, {cell.task}, "
                    f"{cell.steps} steps"
                )
                kept = [
                    row
                    for row in document["results"]
                    if not (place(row) in wanted and row["seed"] in some)
                ]
                document["results"] = kept + run_cells(size, cells, some)
                records.write(path, document)
                bar.update(len(some))
    document["summary"] = summary(document)
    records.write(path, document)
    return document


def place(record: dict) -> Cell:
    return Cell(*(record[name] for name in Cell._fields))


# Tables -------------------------------------------------------------------------------------------


def paired(
    means: dict[int, float], base: dict[int, float], resamples: int = 10_000
) -> tuple[float, float, float]:
    """Mean of means - base over the seeds that both have, and its 90% bootstrap interval."""
    gained = np.array([means[seed] - base[seed] for seed in sorted(means.keys() & base.keys())])
    drawn = np.random.default_rng(0).choice(gained, (resamples, gained.size)).mean(axis=1)
    return float(gained.mean()), float(np.quantile(drawn, 0.05)), float(np.quantile(drawn, 0.95))


def summary(document: dict) -> list[dict]:
    """One entry a cell: IQM over seeds with its interval, worst decile and seed, failed seeds; the
    gain against the recipe.
    """
    found = []
    rows: dict[Cell, list[dict]] = {}
    for record in document["results"]:
        rows.setdefault(place(record), []).append(record)
    for cell, each in rows.items():
        means = {row["seed"]: row["return_mean"] for row in each}
        values = np.array(list(means.values()))
        entry = {
            **cell._asdict(),
            "seeds": len(each),
            "unsound": sum(not row["is_sound"] for row in each),
        }
        entry |= summarise(values, list(means))._asdict()
        entry["worst_decile"] = float(np.quantile(values, 0.1))
        entry["failed"] = int(np.sum(values <= FAILED[cell.task]))
        ends = np.array([row["first_end"] for row in each])
        entry["first_end"] = float(np.median(ends))
        entry["found_an_end"] = int(np.sum(ends <= cell.steps))
        entry["acts_finished"] = float(np.mean([row["acts_finished"] for row in each]))
        base = rows.get(cell._replace(variant=RECIPE), [])
        if cell.variant != RECIPE and base:
            entry["gain"], entry["gain_low"], entry["gain_high"] = paired(
                means, {row["seed"]: row["return_mean"] for row in base}
            )
        found.append(entry)
    return found


def table(document: dict, part: str) -> str:
    """One part in Markdown."""
    entries = {place(entry): entry for entry in document["summary"] if entry["part"] == part}
    tasks = list(dict.fromkeys(cell.task for cell in entries))
    rows = list(dict.fromkeys((cell.variant, cell.steps) for cell in entries))
    rows.sort(key=lambda row: row[0] != RECIPE)
    lines = ["| | " + " | ".join(tasks) + " |", "|---|" + "---|" * len(tasks)]
    if part == "table":
        lines.append(
            "| the paper's figure | "
            + " | ".join(f"{PAPER['kql-rbf'][task][0]:.2f}" for task in tasks)
            + " |"
        )
    for variant, steps in rows:
        name = {"steps": f"{steps} steps", "table": "learning in rounds"}.get(part, variant)
        lines.append(
            f"| {name} | "
            + " | ".join(text(entries.get(Cell(part, variant, task, steps))) for task in tasks)
            + " |"
        )
    return "\n".join(lines)


def text(entry: dict | None) -> str:
    """A cell of a table. What a variant gains is marked where a whole interval lies beyond the
    margin.
    """
    if entry is None:
        return ""
    if "gain" in entry:
        margin = MARGIN[entry["task"]]
        is_large = entry["gain_high"] < -margin or entry["gain_low"] > margin
        is_small = -margin <= entry["gain_low"] and entry["gain_high"] <= margin
        gain = f"{entry['gain']:+.1f} [{entry['gain_low']:+.1f}, {entry['gain_high']:+.1f}]"
        return f"**{gain}**" if is_large else f"{gain} =" if is_small else gain
    found = f"{entry['iqm']:.1f} [{entry['low']:.1f}, {entry['high']:.1f}]"
    if entry["part"] in ("table", "steps"):
        found += f", decile {entry['worst_decile']:.0f}, worst {entry['min']:.0f}, failed {entry['failed']} of {entry['seeds']}"
        if entry["task"] == "MountainCar-v0":
            found += f", goal at {entry['first_end']:.0f}, found by {entry['found_an_end']}"
    return found


def draw(document: dict, path: Path) -> Path:
    """Every seed of the table and of fewer steps, with the paper's figure after 1000 steps."""
    entries = [record for record in document["results"] if record["part"] in ("table", "steps")]
    tasks = list(dict.fromkeys(record["task"] for record in entries))
    lengths = sorted({record["steps"] for record in entries})
    figure, axes = style.panels(len(tasks), 2.8, 3.2, share_y=False, columns=4)
    rng = np.random.default_rng(0)
    dot, bar = {"color": "#0072B2", "alpha": 0.4, "linewidths": 0}, {"color": style.INK, "lw": 2}
    for axis, task in zip(axes, tasks, strict=True):
        axis.axhline(PAPER["kql-rbf"][task][0], color="#D55E00", lw=1, ls="--")
        for at, steps in enumerate(lengths):
            means = np.array(
                [r["return_mean"] for r in entries if r["task"] == task and r["steps"] == steps]
            )
            if means.size:
                axis.scatter(at + rng.uniform(-0.25, 0.25, means.size), means, s=10, **dot)
                axis.hlines(summarise(means).iqm, at - 0.35, at + 0.35, **bar)
        axis.set(title=task, xlabel="steps of training", xlim=(-0.6, len(lengths) - 0.4))
        axis.set_xticks(range(len(lengths)), [str(steps) for steps in lengths])
    axes[0].set_ylabel("mean return of a seed")
    marks = [
        style.line("a seed", marker="o", linestyle="", color="#0072B2", alpha=0.6),
        style.line("interquartile mean", **bar),
        style.line("the paper's figure, after 1000 steps", color="#D55E00", lw=1, ls="--"),
    ]
    counts = " and ".join(
        str(n)
        for n in sorted(
            {
                entry["seeds"]
                for entry in document["summary"]
                if entry["part"] in ("table", "steps")
            },
            reverse=True,
        )
    )
    return style.save(style.finish(figure, marks, f"learning in rounds, {counts} seeds"), path)


def main(argv: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    parser.add_argument("--smoke", action="store_true", help="next to nothing, to see that it runs")
    parser.add_argument(
        "--out",
        default=str(RESULTS),
        help="directory for recipe.json and recipe.png (default %(default)s)",
    )
    options = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    out = records.prepare_directory(options.out)
    document = run_all(SMOKE if options.smoke else FULL, options.parts, out / "recipe.json")
    for part in PARTS:
        if any(entry["part"] == part for entry in document["summary"]):
            print(f"\n{part}\n\n{table(document, part)}")
    if any(entry["part"] == "table" for entry in document["summary"]):
        print(f"\nwrote {out / 'recipe.json'} and {draw(document, out / 'recipe.png')}")
    return document


if __name__ == "__main__":
    # Seeds are shared out over CPU devices; they must be asked for before jax is first used.
    jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
    main()
