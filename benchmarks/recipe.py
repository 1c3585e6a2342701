"""One recipe for every task: the paper's table with 100 seeds, what each part of the recipe buys, how soon, and elsewhere.

    python benchmarks/recipe.py                      # everything; writes results/recipe.json and recipe.png
    python benchmarks/recipe.py --parts table steps  # some parts; what the file holds of the others stays
    python benchmarks/recipe.py --smoke              # a minute, for the tests

A run that is stopped goes on where it was; what was run with another recipe is run again. Seeds are 1000 and above; the
recipe was tuned on seeds below 1000, on the paper's four tasks. Returns are of 100 evaluation episodes a seed, 20 in
`ablation` and `steps`.

table     recipes `robust` and `paper`, 100 seeds; `paper` with the float32 features of `kqljax table1`, whose returns are those
          of the exact engine within their intervals (docs/features.md)
ablation  `robust` whole, and with one part switched off, 8 seeds
steps     `robust` with 300, 500 and 700 steps in all, 40 seeds; beside them the 1000 of `table`; 300 also without hope, which
          matters where exploration is not over
carry     tasks that nothing was tuned on (but see docs/recipe.md for what two of them taught), `robust` and our DQN with its
          default parameters, 1000 steps, 10 seeds: MountainCarContinuous with five forces, bsuite's Catch (its board as 50
          numbers), Reacher with five torques, FourRooms
"""

import os

# One thread a product: the cores are used by running seeds side by side.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import dataclasses
import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

import kqljax
from kqljax import recipes
from kqljax.algorithms import make_algorithm
from kqljax.baselines import dqn
from kqljax.experiment import PAPER, PAPER_TASKS
from kqljax.report import records, style, summarise

FIRST_SEED = 1000
FAILED = {"MountainCar-v0": -195.0, "Pendulum-v1": -600.0, "Acrobot-v1": -300.0, "CartPole-v0": 100.0}
"""A seed whose mean return is at most this has failed."""

ROBUST = recipes.ROBUST


def _scales(share: float) -> kqljax.Kernel:
    """The recipe's kernel with another share of the narrow part."""
    return dataclasses.replace(ROBUST.kernel, kernel=dataclasses.replace(ROBUST.kernel.kernel, share=share))


def _deciding(**changes: Any) -> recipes.Recipe:
    """The recipe with another finished policy."""
    return dataclasses.replace(ROBUST, committee=ROBUST.committee._replace(**changes))


ABLATIONS = {
    "finished policy as in learning": dataclasses.replace(ROBUST, committee=None),
    "no looking ahead": _deciding(depth=0),
    "one width in place of five": _deciding(members=1, widest=1.0),
    "wide part only": dataclasses.replace(ROBUST, kernel=_scales(0.0)),
    "narrow part only": dataclasses.replace(ROBUST, kernel=_scales(1.0)),
    "gamma 0.95 in learning": dataclasses.replace(ROBUST, gamma=0.95),
    "kernel not fitted": dataclasses.replace(ROBUST, first_fit=None),
    "actions by name, not by where they lead": dataclasses.replace(ROBUST, kernel=kqljax.TwoScale(share=0.1)),
    "one backup": dataclasses.replace(ROBUST, backups=1),
}
WITHOUT_HOPE = "without hope"
VARIANTS = {"robust": ROBUST, **ABLATIONS, WITHOUT_HOPE: _deciding(hope=1.0)}


class Cell(NamedTuple):
    """One entry of a table: seeds of a variant on a task."""

    part: str
    variant: str
    task: str
    steps: int
    seeds: int


class Size(NamedTuple):
    """How much is run."""

    table: int
    ablation: int
    steps: dict[int, int]
    carry: int
    train_steps: int
    episodes: dict[str, int]
    chunk: int
    tasks: tuple[str, ...]
    carry_tasks: tuple[str, ...]
    ablations: tuple[str, ...]


CARRY = ("MountainCarContinuous-v0", "Catch-bsuite", "Reacher-misc", "FourRooms-misc")
EPISODES = {"table": 100, "carry": 100, "ablation": 20, "steps": 20}
FULL = Size(100, 8, {300: 40, 500: 40, 700: 40}, 10, 1000, EPISODES, 10, PAPER_TASKS, CARRY, tuple(ABLATIONS))
SMOKE = Size(1, 1, {}, 1, 140, dict.fromkeys(EPISODES, 2), 1, ("MountainCar-v0",), ("Catch-bsuite",), ("one backup",))

PARTS = ("table", "ablation", "steps", "carry")


def cells(size: Size, parts: Any) -> list[Cell]:
    """What there is to run, the most important first."""
    steps = size.train_steps
    found = [Cell("table", "robust", task, steps, size.table) for task in size.tasks]
    found += [Cell("carry", name, task, steps, size.carry) for task in size.carry_tasks for name in ("robust", "dqn")]
    found += [Cell("steps", "robust", task, at, seeds) for at, seeds in size.steps.items() for task in size.tasks]
    found += [Cell("steps", WITHOUT_HOPE, task, at, size.steps[at]) for at in sorted(size.steps)[:1] for task in size.tasks]
    found += [Cell("ablation", name, task, steps, size.ablation) for name in ("robust", *size.ablations) for task in size.tasks]
    found += [Cell("table", "paper", task, steps, size.table) for task in size.tasks]
    return [cell for cell in found if cell.part in parts]


# Tasks ---------------------------------------------------------------------------------------------------------------


class Flat:
    """A gymnax environment whose board is a vector."""

    def __init__(self, env: Any) -> None:
        self.env, self.name = env, env.name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, key: Any, params: Any) -> Any:
        obs, state = self.env.reset(key, params)
        return obs.ravel(), state

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        obs, state, reward, terminated, truncated, info = self.env.step(key, state, action, params)
        return obs.ravel(), state, reward, terminated, truncated, {"final_observation": info["final_observation"].ravel()}


@functools.cache
def make_task(name: str) -> kqljax.Task:
    """A task of the paper, or one of those that nothing was tuned on."""
    if name in PAPER_TASKS:
        return kqljax.make_task(name)
    import gymnax

    env, params = gymnax.make(name)
    if name == "MountainCarContinuous-v0":
        return kqljax.Task.wrap(env, params, reward_range=(-0.1, 100.0), actions=(-1.0, -0.5, 0.0, 0.5, 1.0))
    if name == "Catch-bsuite":
        ends = np.zeros(50), np.ones(50)
        return kqljax.Task.wrap(Flat(env), params, reward_range=(-1.0, 1.0), obs_bounds=ends)
    if name == "Reacher-misc":
        torques = ((0.0, 0.0), (1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0))
        # Joints start at up to 1 and gain up to 0.05 a step for 100 steps; goals lie within 2.
        high = np.array([1.0, 1.0, 1.0, 1.0, 6.0, 6.0, 2.0, 2.0])
        return kqljax.Task.wrap(env, params, reward_range=(0.0, 1.0), obs_bounds=(-high, high), actions=torques)
    return kqljax.Task.wrap(env, params, reward_range=(0.0, 1.0), obs_bounds=(np.full(4, 1.0), np.full(4, 11.0)))


# Runs ----------------------------------------------------------------------------------------------------------------


@functools.cache
def kql_program(first_fit: int | None, committee: Any, steps: int, episodes: int) -> Any:
    def run(keys: Any, task: kqljax.Task, cfg: kqljax.KQLConfig) -> Any:
        found = recipes.train(task, cfg, keys[0], steps, first_fit=first_fit)
        info = found.log.info
        returns = recipes.evaluate(task, cfg, found.state, keys[1], episodes, committee=committee)
        return returns, (info.is_stored & info.is_finite).all()

    return kqljax.across_seeds(run)


@functools.cache
def paper_program(task: str, steps: int, episodes: int) -> Any:
    algorithm = make_algorithm("kql-features32")
    cfg = algorithm.config(make_task(task), steps)

    def run(keys: Any, task: kqljax.Task, cfg: Any) -> Any:
        found = algorithm.train(task, cfg, keys[0], steps)
        return algorithm.evaluate(task, cfg, found.state, keys[1], episodes), algorithm.is_sound(found)

    program = kqljax.across_seeds(run)
    return lambda keys: program(keys, make_task(task), cfg)


@functools.cache
def dqn_program(steps: int, episodes: int) -> Any:
    def run(keys: Any, task: kqljax.Task, cfg: Any) -> Any:
        found = dqn.train(task, cfg, keys[0], steps)
        return dqn.evaluate(task, cfg, found.state, keys[1], episodes), found.log.is_finite.all()

    return kqljax.across_seeds(run)


def run_cell(cell: Cell, seeds: list[int], episodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns `[seeds, episodes]`, and `[seeds]` bool: whether each run was sound. The keys are those of `kqljax table1`."""
    task = make_task(cell.task)
    keys = jax.numpy.stack([jax.random.split(jax.random.key(seed)) for seed in seeds])
    if cell.variant == "dqn":
        found = dqn_program(cell.steps, episodes)(keys, task, dqn.DQNConfig())
    elif cell.variant == "paper":
        found = paper_program(cell.task, cell.steps, episodes)(keys)
    else:
        recipe = VARIANTS[cell.variant]
        cfg = recipe.config(task, cell.steps)
        found = kql_program(recipe.first_fit, recipe.committee, cell.steps, episodes)(keys, task, cfg)
    returns, is_sound = (np.asarray(each) for each in found)
    return returns, is_sound


def place(record: dict) -> Cell:
    return Cell(record["part"], record["variant"], record["task"], record["steps"], 0)


def run_all(size: Size, parts: Any, path: Path) -> dict:
    settings = {"episodes": size.episodes, "first_seed": FIRST_SEED}
    made = {name: repr(recipe) for name, recipe in VARIANTS.items()}
    document = {
        "settings": settings, "recipes": made, "versions": records.versions(), "device": records.device(), "results": []
    }  # fmt: skip
    if path.exists():
        stored = json.loads(path.read_text())
        if stored["settings"] != settings:
            raise SystemExit(f"{path} was made with {stored['settings']}, not {settings}: give another --out.")
        # What was run with other numbers is run again.
        before = stored.get("recipes", {})
        known = {"paper", "dqn"} | {name for name in made if made[name] == before.get(name)}
        document["results"] = [row for row in stored["results"] if row["variant"] in known]
    todo = cells(size, parts)
    done = {(place(record), record["seed"]) for record in document["results"]}
    left = {}
    for cell in todo:
        wanted = range(FIRST_SEED, FIRST_SEED + cell.seeds)
        left[cell] = [seed for seed in wanted if (cell._replace(seeds=0), seed) not in done]
    with tqdm(total=sum(len(seeds) for seeds in left.values()), unit="seed") as bar:
        for cell, seeds in left.items():
            for start in range(0, len(seeds), size.chunk):
                some = seeds[start : start + size.chunk]
                bar.set_description(f"{cell.part}: {cell.variant}, {cell.task}, {cell.steps} steps")
                returns, is_sound = run_cell(cell, some, size.episodes[cell.part])
                for seed, each, sound in zip(some, returns, is_sound, strict=True):
                    record = {**cell._asdict(), "seed": seed, "return_mean": float(each.mean()), "is_sound": bool(sound)}
                    del record["seeds"]
                    document["results"].append(record)
                records.write(path, document)
                bar.update(len(some))
            # No other cell has these programs, and a process can hold only so many (Linux limits its memory mappings).
            for program in (kql_program, paper_program, dqn_program):
                program.cache_clear()
            jax.clear_caches()
    document["summary"] = summary(document)
    records.write(path, document)
    return document


# Tables --------------------------------------------------------------------------------------------------------------


def summary(document: dict) -> list[dict]:
    """One entry a cell: IQM over seeds with its interval, worst decile, share of seeds that failed."""
    found = []
    for cell in dict.fromkeys(place(record) for record in document["results"]):
        rows = [record for record in document["results"] if place(record) == cell]
        means = [row["return_mean"] for row in rows]
        entry = {**cell._asdict(), "seeds": len(rows), "unsound": sum(not row["is_sound"] for row in rows)}
        entry |= summarise(means, [row["seed"] for row in rows])._asdict()
        entry["worst_decile"] = float(np.quantile(means, 0.1))
        if cell.task in FAILED:
            entry["failed"] = float(np.mean(np.array(means) <= FAILED[cell.task]))
        found.append(entry)
    return found


def table(document: dict, part: str) -> str:
    """One part in Markdown."""
    entries = [entry for entry in document["summary"] if entry["part"] == part]
    if part == "steps":
        entries += [e for e in document["summary"] if e["part"] == "table" and e["variant"] == "robust"]
    tasks = list(dict.fromkeys(entry["task"] for entry in entries))
    rows = list(dict.fromkeys((entry["variant"], entry["steps"]) for entry in entries))
    rows.sort(key=lambda row: row[0] != "robust")  # first, whenever it was run; the others in their order
    named = [_name(name, steps, part) for name, steps in rows]
    lines = ["| | " + " | ".join(tasks) + " |", "|---|" + "---|" * len(tasks)]
    if part == "table":
        lines.append("| the paper's figure | " + " | ".join(f"{PAPER['kql-rbf'][task][0]:.2f}" for task in tasks) + " |")
    for name, key in zip(named, rows, strict=True):
        cell = {e["task"]: e for e in entries if (e["variant"], e["steps"]) == key}
        lines.append(f"| {name} | " + " | ".join(_text(cell.get(task), part) for task in tasks) + " |")
    return "\n".join(lines)


def _name(variant: str, steps: int, part: str) -> str:
    if part != "steps":
        return variant
    return f"{steps} steps" if variant == "robust" else f"{steps} steps, {variant}"


def _text(entry: dict | None, part: str) -> str:
    if entry is None:
        return ""
    digits = 2 if part == "carry" else 1  # some of these return between 0 and 1
    text = f"{entry['iqm']:.{digits}f} [{entry['low']:.{digits}f}, {entry['high']:.{digits}f}]"
    if part == "table":
        text += f", decile {entry['worst_decile']:.0f}, failed {100 * entry['failed']:.0f}%"
    return text


def draw(document: dict, path: Path) -> Path:
    """Every seed of the table: the recipe beside the paper's."""
    entries = [record for record in document["results"] if record["part"] == "table"]
    tasks = list(dict.fromkeys(record["task"] for record in entries))
    figure, axes = style.panels(len(tasks), 2.6, 3.2, share_y=False, columns=4)
    rng = np.random.default_rng(0)
    for axis, task in zip(axes, tasks, strict=True):
        for at, (variant, colour) in enumerate((("paper", "#56B4E9"), ("robust", "#0072B2"))):
            means = np.array([r["return_mean"] for r in entries if r["task"] == task and r["variant"] == variant])
            axis.scatter(at + rng.uniform(-0.25, 0.25, means.size), means, s=10, alpha=0.5, color=colour, linewidths=0)
            if means.size:
                axis.hlines(summarise(means).iqm, at - 0.35, at + 0.35, color=style.INK, lw=2)
        if task in PAPER["kql-rbf"]:
            axis.axhline(PAPER["kql-rbf"][task][0], color="#D55E00", lw=1, ls="--")
        axis.set_title(task)
        axis.set_xticks([0, 1], ["paper's\nrecipe", "robust\nrecipe"])
        axis.set_xlim(-0.6, 1.6)
    axes[0].set_ylabel("mean return")
    number = max(sum(r["task"] == task and r["variant"] == "robust" for r in entries) for task in tasks)
    title = f"A dot is a seed ({number} each), the bar their IQM, dashes the paper's figure; 1000 steps"
    figure.suptitle(title, fontsize=10)
    return style.save(figure, path)


def main(argv: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    parser.add_argument("--smoke", action="store_true", help="next to nothing, to see that it runs")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results"), help="directory (default %(default)s)")
    options = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    size = SMOKE if options.smoke else FULL
    out = records.prepare_directory(options.out)
    document = run_all(size, options.parts, out / "recipe.json")
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
