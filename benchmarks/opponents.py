"""The default agent against its opponents: return over 100 to 1000 steps, and what noise breaks.

    python benchmarks/opponents.py                        # everything; results/opponents.json, .png
    python benchmarks/opponents.py --parts default paper  # some parts; what the file holds stays
    python benchmarks/opponents.py --page                 # tables and figure from the file
    python benchmarks/opponents.py --smoke                # seconds, to see that it runs

  default   the default agent: learning in rounds, kqljax.rounds.DEFAULT
  paper     KQL with the paper's settings: Algorithm 1, RBF kernel, T = 1000
  sb3       DQN of Stable-Baselines3 with the paper's settings (needs the extra `sb3`)
  dqn       the library's DQN with the paper's settings, to see that it does what sb3 does
  search    random search for a DQN tuned to 1000 steps, on tuning seeds (tuned_dqn.py)
  tuned     the best DQN of the search on each task
  planners  two kinds of planning in a learned model, on tuning seeds (planning.py)
  planning  the better one of them, value iteration
  noise     the default agent and the tuned DQN with noisy observations, with sticky actions, and
            on slippery FrozenLake (noise.py)

Seeds below 1000 are for tuning, seeds from 1000 on for what is reported. The default agent's policy
after n steps is the one a run of n steps ends with. The others are evaluated on the way of one run
of 1000 steps, greedily and without learning: 20 episodes at a checkpoint, 100 at the end.

A run that is stopped goes on where it was. Parts may run in several processes at the same time:
they add to one file under a lock. Records made with other settings than today's are dropped.
"""

from __future__ import annotations

import os

# One thread a product: the cores are used by processes side by side.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["XLA_FLAGS"] = (
    f"--xla_cpu_multi_thread_eigen=false {os.environ.get('XLA_FLAGS', '')}".strip()
)

import argparse
import contextlib
import dataclasses
import datetime as dt
import fcntl
import functools
import time
from collections.abc import Callable, Iterator
from importlib import metadata, util
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import noise
import numpy as np
import planning
import records
import sb3_dqn
import tuned_dqn
from paper import COLOURS, PAPER, PAPER_TASKS
from tqdm import tqdm

import kqljax
from kqljax import rounds
from kqljax.report import style, summarise

RESULTS = Path(__file__).parent / "results"
PARTS = ("default", "paper", "sb3", "dqn", "search", "tuned", "planners", "planning", "noise")


class Search(NamedTuple):
    """Attributes: tuning seeds of all settings, how many settings are kept, and their seeds."""

    first_seeds: tuple[int, ...]
    kept: int
    more_seeds: tuple[int, ...]


class Size(NamedTuple):
    """How much is run.

    Attributes:
      tasks: names.
      steps: after which a policy is evaluated; the last is the end of the run.
      episodes, last_episodes: of an evaluation on the way, and of the one at the end.
      seeds: algorithm -> reporting seeds.
      noisy_seeds: algorithm -> reporting seeds with noise.
      kinds: of noise.
      lake_steps: of FrozenLake; 0 leaves it out.
      recipe: of the default agent.
      candidates: of the search for a DQN.
      search: its tuning seeds.
      planner: numbers of planning by value iteration.
      horizon: of planning by shooting; 0 leaves it out.
    """

    tasks: tuple[str, ...]
    steps: tuple[int, ...]
    episodes: int
    last_episodes: int
    seeds: dict[str, range]
    noisy_seeds: dict[str, range]
    kinds: tuple[str, ...]
    lake_steps: int
    recipe: rounds.Recipe
    candidates: tuple[tuned_dqn.Settings, ...]
    search: Search
    planner: planning.Planner
    horizon: int


SEEDS = {
    "default": range(2000, 2010),
    "paper": range(2000, 2010),
    "sb3": range(1000, 1010),
    "dqn": range(1000, 1010),
    "tuned": range(2000, 2010),
    "planning": range(2000, 2010),
}
NOISY_SEEDS = {"default": range(2000, 2020), "tuned": range(2000, 2010)}
FULL = Size(
    PAPER_TASKS,
    tuple(range(100, 1001, 100)),
    20,
    100,
    SEEDS,
    NOISY_SEEDS,
    noise.KINDS,
    noise.FROZEN_LAKE_STEPS,
    rounds.DEFAULT,
    tuned_dqn.candidates(),
    Search((0, 1), 4, (2, 3, 4)),
    planning.Planner(),
    12,
)
_SMALL_DQN = tuned_dqn.Settings(1e-3, 1, 8, 20, 10, (8,), True, 2, 0.1, 0.5, 2, 0.9, True)
SMOKE = Size(
    ("CartPole-v0",),
    (110, 120),
    2,
    2,
    dict.fromkeys(SEEDS, range(1000, 1001)),
    {"tuned": range(1000, 1001)},
    noise.KINDS[:1],
    0,
    rounds.Recipe(centres=64, finish_centres=64, model_centres=64, fit_rows=60, own_from=40),
    (_SMALL_DQN,),
    Search((0,), 1, ()),
    planning.Planner(centres=128, support=64, sweeps=20),
    0,
)
CURVE, SEARCH, PLANNERS, LAKE = "curve", "search", "planners", "slippery"
"""Parts of the records beside `noise.KINDS`."""


class Job(NamedTuple):
    """One run: what a record is found by.

    Attributes:
      part: `CURVE`, `SEARCH`, `PLANNERS`, `LAKE`, or one of `noise.KINDS`.
      algorithm: a key of `RUN`; of the search, "candidate 0" and so on.
      task, seed: of the run.
    """

    part: str
    algorithm: str
    task: str
    seed: int


# Algorithms: run(size, job, settings) -> fields of a record --------------------------------------


class Clock:
    """CPU seconds of this process, and seconds on the wall."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.cpu += time.process_time() - cpu
        self.wall += time.perf_counter() - wall


def outcome(steps: Any, returns: list[Any], training: Clock) -> dict[str, Any]:
    """The fields of a record from the returns `[E]` at each checkpoint."""
    means = [float(np.mean(each)) for each in returns]
    return {
        "steps": list(steps),
        "return_mean": [mean if np.isfinite(mean) else None for mean in means],
        "episodes": [len(each) for each in returns],
        "cpu_seconds": round(training.cpu, 3),
        "seconds": round(training.wall, 3),
        "is_sound": bool(np.all(np.isfinite(means))),
    }


def plan_of(size: Size, job: Job) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Steps after which a job is evaluated, and episodes of each evaluation."""
    if job.part == CURVE:
        return size.steps, (size.episodes,) * (len(size.steps) - 1) + (size.last_episodes,)
    steps = size.lake_steps if job.task == noise.FROZEN_LAKE else size.steps[-1]
    return (steps,), (size.episodes if job.part == PLANNERS else size.last_episodes,)


def kind_of(job: Job) -> str | None:
    return job.part if job.part in noise.KINDS else None


def keys_of(job: Job, count: int) -> tuple[jax.Array, list[jax.Array]]:
    """The key of the training, and one of each evaluation."""
    train_key, eval_key = jax.random.split(jax.random.key(job.seed))
    return train_key, list(jax.random.split(eval_key, count))


@functools.cache
def compiled(make: Callable[..., Callable], *what: Any, options: bool = False) -> Callable:
    """The jitted program make(*what), once for each `what`."""
    on_cpu = options and jax.default_backend() == "cpu"
    return jax.jit(make(*what), compiler_options=rounds.CPU_COMPILER_OPTIONS if on_cpu else None)


@functools.cache
def lowered(program: Any) -> Callable:
    """The program ready to run; a training has one argument, the key."""
    return program.lower(jax.random.key(0)).compile()


def timed(program: Callable, key: jax.Array) -> tuple[Any, Clock]:
    """The program's result and its time without compilation."""
    ready, clock = lowered(program), Clock()
    with clock.running():
        found = jax.block_until_ready(ready(key))
    return found, clock


# The default agent.


def default_train(task_name: str, kind: str | None, steps: int, recipe: rounds.Recipe) -> Callable:
    task = noise.make_task(task_name, kind)
    return lambda key: kqljax.train(key, task, recipe, num_steps=steps).state.transitions


def default_fit(recipe: rounds.Recipe) -> Callable:
    """The policy of a run of `count` steps, which are the first ones of a longer run."""
    return lambda transitions, count: (
        rounds.fit(None, recipe, dataclasses.replace(transitions, count=count)).policy
    )


def default_evaluate(task_name: str, kind: str | None, episodes: int) -> Callable:
    task = noise.make_task(task_name, kind)
    return lambda key, policy: kqljax.evaluate(key, task, policy, num_episodes=episodes)


def run_default(size: Size, job: Job, recipe: rounds.Recipe) -> dict[str, Any]:
    steps, episodes = plan_of(size, job)
    train_key, eval_keys = keys_of(job, len(steps))
    kind = kind_of(job)
    program = compiled(default_train, job.task, kind, steps[-1], recipe, options=True)
    transitions, training = timed(program, train_key)
    fit = compiled(default_fit, recipe, options=True)
    returns = []
    for key, count, number in zip(eval_keys, steps, episodes, strict=True):
        policy = fit(transitions, jnp.int32(count))
        evaluate = compiled(default_evaluate, job.task, kind, number, options=True)
        returns.append(np.asarray(evaluate(key, policy)))
    return outcome(steps, returns, training)


# KQL with the paper's settings: the only functions that know how Algorithm 1 is called.


def paper_train(task_name: str, num_steps: int, steps: tuple[int, ...], episodes: int) -> Callable:
    """key -> the policy, and returns `[S, episodes]` after each of `steps`."""
    task = kqljax.make_task(task_name)
    cfg = task.config(kernel=kqljax.RBF(eta=task.eta), horizon=num_steps)

    def program(key: jax.Array) -> Any:
        run = kqljax.train(key, task, cfg, num_steps, eval_at=steps, eval_episodes=episodes)
        return run.policy, run.curve

    return program


def paper_evaluate(task_name: str, num_steps: int, episodes: int) -> Callable:
    """key, what `paper_train` gave -> returns `[episodes]`."""
    task = kqljax.make_task(task_name)
    return lambda key, found: kqljax.evaluate(key, task, found[0], num_episodes=episodes)


def run_paper(size: Size, job: Job, settings: Any) -> dict[str, Any]:
    train_key, (*_, eval_key) = keys_of(job, 1)
    num_steps, early = size.steps[-1], size.steps[:-1]
    # Twice the same run: once for the time, once with evaluations on the way.
    found, training = timed(compiled(paper_train, job.task, num_steps, (), 1), train_key)
    _, curve = compiled(paper_train, job.task, num_steps, early, size.episodes)(train_key)
    evaluate = compiled(paper_evaluate, job.task, num_steps, size.last_episodes)
    return outcome(
        size.steps, [*np.asarray(curve), np.asarray(evaluate(eval_key, found))], training
    )


# DQN of the library, with the paper's settings, of the search, and tuned.


def dqn_train(
    task_name: str, kind: str | None, settings: tuned_dqn.Settings, steps: Any
) -> Callable:
    task = noise.make_task(task_name, kind)
    return lambda key: tuned_dqn.train(key, task, settings, steps)


def dqn_evaluate(task_name: str, kind: str | None, settings: Any, episodes: int) -> Callable:
    task = noise.make_task(task_name, kind)
    return lambda key, params: tuned_dqn.evaluate(key, task, settings, params, episodes)


def run_dqn(size: Size, job: Job, settings: tuned_dqn.Settings) -> dict[str, Any]:
    steps, episodes = plan_of(size, job)
    train_key, eval_keys = keys_of(job, len(steps))
    kind = kind_of(job)
    run, training = timed(compiled(dqn_train, job.task, kind, settings, steps), train_key)
    returns = []
    for i, (key, number) in enumerate(zip(eval_keys, episodes, strict=True)):
        params = jax.tree.map(lambda leaf, i=i: leaf[i], run.params)
        evaluate = compiled(dqn_evaluate, job.task, kind, settings, number)
        returns.append(np.asarray(evaluate(key, params)))
    return outcome(steps, returns, training)


# DQN of Stable-Baselines3.


def sb3_returns(model: Any, task: str, episodes: int, seed: int) -> list[float]:
    """Returns of the greedy policy; the episodes run side by side and ask the network together."""
    envs = [sb3_dqn.make_env(task) for _ in range(episodes)]
    obs = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(envs)])
    returns, going = np.zeros(episodes), np.ones(episodes, bool)
    while going.any():
        actions, _ = model.predict(obs, deterministic=True)
        for i in np.flatnonzero(going):
            obs[i], reward, terminated, truncated, _ = envs[i].step(actions[i])
            returns[i] += reward
            going[i] = not (terminated or truncated)
    return returns.tolist()


def run_sb3(size: Size, job: Job, given: dict[str, Any]) -> dict[str, Any]:
    """Stable-Baselines3's DQN on gymnasium's environment: raw observations, raw rewards."""
    import torch
    from stable_baselines3 import DQN

    torch.set_num_threads(1)
    settings, task = dict(given), job.task
    model = DQN(
        "MlpPolicy",
        sb3_dqn.make_env(task),
        seed=job.seed,
        device="cpu",
        policy_kwargs={"net_arch": settings.pop("net_arch")},
        **settings,
    )
    evaluating, training, returns = Clock(), Clock(), []
    first = 100_000 + 1000 * job.seed  # of the evaluation's environments

    def at_step(scope: dict[str, Any], _: Any) -> bool:
        # Called before the updates of a step, so step n + 1 sees the network after n steps.
        done = scope["self"].num_timesteps - 1
        if done in size.steps:
            with evaluating.running():
                returns.append(sb3_returns(model, task, size.episodes, first))
        return True

    with training.running():
        model.learn(total_timesteps=size.steps[-1], callback=at_step)
    training.cpu -= evaluating.cpu
    training.wall -= evaluating.wall
    returns.append(sb3_returns(model, task, size.last_episodes, first))
    return outcome(size.steps, returns, training)


# Planning.


def planning_train(task_name: str, planner: planning.Planner, num_steps: int) -> Callable:
    task = noise.make_task(task_name)
    return lambda key: planning.train(key, task, planner, num_steps)


def planning_fit(planner: planning.Planner) -> Callable:
    return lambda transitions, count: planning.finish(
        planner, dataclasses.replace(transitions, count=count)
    )


def run_planning(size: Size, job: Job, planner: planning.Planner) -> dict[str, Any]:
    steps, episodes = plan_of(size, job)
    train_key, eval_keys = keys_of(job, len(steps))
    program = compiled(planning_train, job.task, planner, steps[-1], options=True)
    transitions, training = timed(program, train_key)
    returns = []
    for key, count, number in zip(eval_keys, steps, episodes, strict=True):
        policy = compiled(planning_fit, planner, options=True)(transitions, jnp.int32(count))
        evaluate = compiled(default_evaluate, job.task, None, number, options=True)
        returns.append(np.asarray(evaluate(key, policy)))
    return outcome(steps, returns, training)


CANDIDATE = "candidate "
RUN = {
    "default": run_default,
    "paper": run_paper,
    "sb3": run_sb3,
    "dqn": run_dqn,
    "tuned": run_dqn,
    "planning": run_planning,
    "shooting": run_planning,
}
"""Algorithm -> run(size, job, settings); the candidates of the search are run as `dqn`."""


def settings_of(size: Size, algorithm: str, task: str, document: records.Document) -> Any:
    """What an algorithm is run with on a task; None for a tuned DQN before the search is over."""
    if algorithm.startswith(CANDIDATE):
        return size.candidates[int(algorithm.removeprefix(CANDIDATE))]
    if algorithm == "sb3":
        return {**sb3_dqn.SHARED, **sb3_dqn.TASKS[task]}
    if algorithm == "tuned":
        at = best(size, task, document)
        return None if at is None else size.candidates[at]
    return {
        "default": lambda: size.recipe,
        "paper": lambda: kqljax.make_task(task).config(horizon=size.steps[-1]),
        "dqn": lambda: tuned_dqn.paper_settings(task),
        "planning": lambda: size.planner,
        "shooting": lambda: dataclasses.replace(size.planner, horizon=size.horizon, hold=4),
    }[algorithm]()


# The search for a DQN ----------------------------------------------------------------------------


def searched_tasks(size: Size) -> tuple[str, ...]:
    return (*size.tasks, noise.FROZEN_LAKE) if size.lake_steps else size.tasks


def searched(size: Size, task: str, document: records.Document) -> dict[int, dict[int, float]]:
    """candidate -> tuning seed -> return."""
    found: dict[int, dict[int, float]] = {at: {} for at in range(len(size.candidates))}
    for row in document["results"]:
        if row["part"] == SEARCH and row["task"] == task:
            # A network that has diverged is worth less than any other.
            value = row["return_mean"][-1]
            at = int(row["algorithm"].removeprefix(CANDIDATE))
            found[at][row["seed"]] = -np.inf if value is None else value
    return found


def kept(size: Size, found: dict[int, dict[int, float]]) -> list[int] | None:
    """The candidates that are run on more seeds; None before all were run on the first ones."""
    first = size.search.first_seeds
    if any(seed not in each for each in found.values() for seed in first):
        return None
    means = {at: np.mean([each[seed] for seed in first]) for at, each in found.items()}
    return sorted(means, key=means.get, reverse=True)[: size.search.kept]


def best(size: Size, task: str, document: records.Document) -> int | None:
    """The candidate with the best mean over all tuning seeds; None before the search is over."""
    found = searched(size, task, document)
    few = kept(size, found)
    if few is None or any(seed not in found[at] for at in few for seed in size.search.more_seeds):
        return None
    return max(few, key=lambda at: np.mean(list(found[at].values())))


# The file ----------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    found = records.versions()
    for package in ("stable-baselines3", "torch"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def opened(path: Path, size: Size) -> records.Document:
    """The document, without records of other settings; a new one where there is none."""
    shared = {
        "tasks": list(size.tasks),
        "steps": list(size.steps),
        "episodes": size.episodes,
        "last_episodes": size.last_episodes,
    }
    if not path.exists():
        return {"settings": shared, "made_with": {}, "results": []}
    document = records.read(path)
    if document["settings"] != shared:
        raise records.ResultsError(
            f"{path} was made with {document['settings']}, this is {shared}. Give another --out."
        )
    document.setdefault("made_with", {})
    for name, made in document["made_with"].items():
        for task, before in list(made["settings"].items()):
            now = settings_of(size, name, task, document)
            if now is not None and repr(now) != before:
                rows = document["results"]
                is_stale = [(row["algorithm"], row["task"]) == (name, task) for row in rows]
                document["results"] = [r for r, bad in zip(rows, is_stale, strict=True) if not bad]
                del made["settings"][task]
    return document


def add(path: Path, size: Size, new: dict[str, Any]) -> records.Document:
    """Adds a record to the file, which other processes may add to at the same time."""
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        document = opened(path, size)
        name, task = new["algorithm"], new["task"]
        made = document["made_with"].setdefault(name, {"settings": {}})
        made["settings"][task] = repr(settings_of(size, name, task, document))
        date = dt.datetime.now(dt.UTC).date().isoformat()
        made |= {"versions": versions(), "device": records.device(), "date": date}
        others = [row for row in document["results"] if job_of(row) != job_of(new)]
        document["results"] = sorted([*others, new], key=job_of)
        records.write(path, document)
    return document


def job_of(row: dict[str, Any]) -> Job:
    return Job(*(row[field] for field in Job._fields))


# What there is to run ----------------------------------------------------------------------------


def jobs(size: Size, part: str, document: records.Document) -> list[Job]:
    """Everything of a part, seed by seed, so that a run that is stopped has all tasks.

    Of the search only what can be said already: the kept candidates follow when the others are in.
    """
    if part == SEARCH:
        found = []
        for task in searched_tasks(size):
            few = kept(size, searched(size, task, document))
            again = [(at, seed) for at in few or () for seed in size.search.more_seeds]
            first = [
                (at, seed) for at in range(len(size.candidates)) for seed in size.search.first_seeds
            ]
            found += [Job(SEARCH, f"{CANDIDATE}{at}", task, seed) for at, seed in first + again]
        return found
    if part == PLANNERS:
        names = ("planning", "shooting")[: 2 if size.horizon else 1]
        seeds = size.search.first_seeds
        return [
            Job(part, name, task, seed) for seed in seeds for task in size.tasks for name in names
        ]
    if part == "noise":
        places = [(kind, task) for kind in size.kinds for task in size.tasks]
        places += [(LAKE, noise.FROZEN_LAKE)] * bool(size.lake_steps)
        seeds = sorted({seed for some in size.noisy_seeds.values() for seed in some})
        return [
            Job(kind, algorithm, task, seed)
            for seed in seeds
            for kind, task in places
            for algorithm, some in size.noisy_seeds.items()
            if seed in some
        ]
    return [Job(CURVE, part, task, seed) for seed in size.seeds[part] for task in size.tasks]


def run_all(size: Size, parts: list[str], tasks: list[str], path: Path) -> records.Document:
    document = opened(path, size)
    for part in parts:
        if part == "sb3" and not has_sb3():
            tqdm.write(sb3_dqn.MISSING.format(error="part sb3 is left out"))
            continue
        with tqdm(unit="run", desc=part) as bar:
            while True:
                done = {job_of(row) for row in document["results"]}
                left = [
                    job
                    for job in jobs(size, part, document)
                    if job not in done and job.task in tasks
                ]
                if not left:
                    break
                bar.total = bar.n + len(left)
                bar.set_description(
                    f"{part}: {left[0].algorithm}, {left[0].task}, seed {left[0].seed}"
                )
                document = add(path, size, run_job(size, left[0], document))
                bar.update()
    return document


def run_job(size: Size, job: Job, document: records.Document) -> dict[str, Any]:
    """The record of a job."""
    settings = settings_of(size, job.algorithm, job.task, document)
    if settings is None:
        raise SystemExit(
            f"The search for a DQN on {job.task} is not over: --parts search comes first."
        )
    run = run_dqn if job.algorithm.startswith(CANDIDATE) else RUN[job.algorithm]
    return {**job._asdict(), **run(size, job, settings)}


def has_sb3() -> bool:
    return util.find_spec("stable_baselines3") is not None


# Tables and the figure ---------------------------------------------------------------------------

NAMES = {
    "default": "KQL, default",
    "paper": "KQL, paper's settings",
    "tuned": "DQN, tuned",
    "planning": "planning in a learned model",
    "shooting": "the same by shooting",
    "sb3": "DQN of Stable-Baselines3, paper's settings",
    "dqn": "DQN of this library, paper's settings",
}
PUBLISHED = "Published (one run)"
KIND_NAMES = {
    CURVE: "without noise",
    "observations": "noisy observations",
    "sticky": "sticky actions",
}
NOTE = "Interquartile mean over seeds [95% interval] of the mean return over {episodes} episodes"


def returns_of(
    document: records.Document, part: str, algorithm: str, task: str
) -> dict[int, list[float]]:
    """seed -> mean return after each number of steps; runs that are left out are printed."""
    rows = [row for row in document["results"] if job_of(row)[:3] == (part, algorithm, task)]
    for row in rows:
        if not row["is_sound"]:
            print(f"not finite, left out: {job_of(row)}")
    return {row["seed"]: row["return_mean"] for row in rows if row["is_sound"]}


def cell(found: dict[int, list[float]], task: str) -> str:
    """The last returns as IQM [low, high]; a dash where nothing was run."""
    if not found:
        return "-"
    all_of = summarise([each[-1] for each in found.values()], list(found))
    digits = 2 if task == noise.FROZEN_LAKE else 1
    return f"{all_of.iqm:.{digits}f} [{all_of.low:.{digits}f}, {all_of.high:.{digits}f}]"


def seeds_text(seeds: Any) -> str:
    """ "20 seeds from 2000 on"; the fewest and the most where tasks differ."""
    some = [each for each in seeds if each]
    if not some:
        return "no seeds yet"
    counts = sorted({len(each) for each in some})
    numbers = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    first = min(min(each) for each in some)
    return f"{numbers} seed{'s'[: counts[-1] > 1]} from {first} on"


def table(document: records.Document, part: str, algorithms: tuple[str, ...], tasks: Any) -> str:
    """A row a task, a column an algorithm, with the published figures before them for a curve."""
    is_curve = part == CURVE
    heads = ([PUBLISHED] if is_curve else []) + [NAMES[name] for name in algorithms]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for task in tasks:
        cells = [f"{PAPER['kql-rbf'][task][0]:.2f}"] if is_curve else []
        cells += [cell(returns_of(document, part, name, task), task) for name in algorithms]
        lines.append(f"| {task} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def readme_table(document: records.Document) -> str:
    """The table of the README, and the sentence under it."""
    settings = document["settings"]
    names = ("paper", "default", "tuned")
    found = table(document, CURVE, names, settings["tasks"])
    seeds = seeds_text(
        returns_of(document, CURVE, name, task) for name in names for task in settings["tasks"]
    )
    note = NOTE.format(episodes=settings["last_episodes"])
    return f"{found}\n\n{note} after {settings['steps'][-1]} steps; {seeds}."


def others_table(document: records.Document) -> str:
    """The opponents that are not in the README."""
    settings = document["settings"]
    names = ("planning", "sb3", "dqn")
    seeds = [
        f"{NAMES[name]}: "
        + seeds_text(returns_of(document, CURVE, name, task) for task in settings["tasks"])
        for name in names
    ]
    return table(document, CURVE, names, settings["tasks"]) + "\n\n" + "; ".join(seeds) + "."


def noise_table(document: records.Document) -> str:
    """A row a task and kind, the default agent and the tuned DQN without and with noise."""
    names = ("default", "tuned")
    lines = ["| | | " + " | ".join(NAMES[name] for name in names) + " |", "|---" * 4 + "|"]
    places = [(kind, task) for task in document["settings"]["tasks"] for kind in KIND_NAMES]
    for kind, task in [*places, (LAKE, noise.FROZEN_LAKE)]:
        cells = [cell(returns_of(document, kind, name, task), task) for name in names]
        lines.append(f"| {task} | {KIND_NAMES.get(kind, kind)} | " + " | ".join(cells) + " |")
    seeds = [
        f"{NAMES[name]}: "
        + seeds_text(returns_of(document, kind, name, task) for kind, task in places)
        for name in names
    ]
    return "\n".join(lines) + "\n\n" + "; ".join(seeds) + "."


def planners_table(document: records.Document) -> str:
    """The two planners on tuning seeds, with CPU seconds of a training: means."""
    tasks = document["settings"]["tasks"]
    lines = ["| | " + " | ".join(tasks) + " |", "|---" * (len(tasks) + 1) + "|"]
    for name in ("planning", "shooting"):
        cells = []
        for task in tasks:
            wanted = (PLANNERS, name, task)
            rows = [row for row in document["results"] if job_of(row)[:3] == wanted]
            means = [row["return_mean"][-1] for row in rows if row["is_sound"]]
            seconds = [row["cpu_seconds"] for row in rows]
            cells.append(f"{np.mean(means):.1f}, {np.mean(seconds):.0f} s" if means else "-")
        lines.append(f"| {NAMES[name]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def seconds_table(document: records.Document) -> str:
    """CPU seconds of a training, evaluations and compilation apart: the median over seeds."""
    tasks = document["settings"]["tasks"]
    lines = ["| | " + " | ".join(tasks) + " |", "|---" * (len(tasks) + 1) + "|"]
    for name, words in NAMES.items():
        if name == "shooting":
            continue
        cells = []
        for task in tasks:
            wanted = (CURVE, name, task)
            times = [row["cpu_seconds"] for row in document["results"] if job_of(row)[:3] == wanted]
            cells.append(f"{np.median(times):.1f}" if times else "-")
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def search_table(document: records.Document, size: Size) -> str:
    """What the search found for each task."""
    lines = ["| | mean over tuning seeds | settings |", "|---|---|---|"]
    for task in searched_tasks(size):
        at = best(size, task, document)
        if at is not None:
            values = list(searched(size, task, document)[at].values())
            fields = dataclasses.asdict(size.candidates[at]).items()
            words = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in fields)
            digits = 2 if task == noise.FROZEN_LAKE else 1
            lines.append(f"| {task} | {np.mean(values):.{digits}f} | {words} |")
    return "\n".join(lines)


SERIES = {
    "default": {"color": COLOURS["kql-rounds"], "marker": "o", "lw": 2.6},
    "paper": {"color": COLOURS["kql-rbf"], "marker": "s", "lw": 1.6, "ls": (0, (4, 2))},
    "tuned": {"color": COLOURS["dqn"], "marker": "^", "lw": 1.6},
    "planning": {"color": COLOURS["kql-features"], "marker": "D", "lw": 1.6},
}


def draw(document: records.Document) -> Any:
    """Return over steps, a panel a task: IQM over seeds, its interval, the published figure."""
    settings = document["settings"]
    steps = settings["steps"]
    figure, panels = style.panels(len(settings["tasks"]), 4.1, 2.3, share_y=False)
    drawn: dict[str, list[dict[int, list[float]]]] = {}
    for panel, task in zip(panels, settings["tasks"], strict=True):
        for order, (name, look) in enumerate(SERIES.items()):
            found = returns_of(document, CURVE, name, task)
            if not found:
                continue
            drawn.setdefault(name, []).append(found)
            points = [summarise(column) for column in np.array(list(found.values())).T]
            band = [p.low for p in points], [p.high for p in points]
            panel.fill_between(steps, *band, color=look["color"], alpha=0.15, linewidth=0)
            panel.plot(steps, [p.iqm for p in points], ms=3.8, zorder=9 - order, **look)
        published = PAPER["kql-rbf"][task][0]
        panel.plot(1.05 * steps[-1], published, marker="*", ms=11, color=style.INK, clip_on=False)
        panel.set_title(task, loc="left", fontsize=10.5, color=style.INK)
        panel.set_xlim(0, 1.08 * steps[-1])
        panel.margins(y=0.08)
        panel.grid(axis="y", color="#E8E8E8", lw=0.7)
    for panel in panels[-2:]:
        panel.set_xlabel("environment steps", fontsize=9, color=style.INK)
    for panel in panels[::2]:
        panel.set_ylabel("return", fontsize=9, color=style.INK)
    marks = [style.line(NAMES[name], ms=5, **SERIES[name]) for name in drawn]
    marks.append(style.line("published (one run)", marker="*", ms=10, ls="none", color=style.INK))
    seeds = seeds_text(each for found in drawn.values() for each in found)
    return style.finish(figure, marks, f"interquartile mean and 95% interval, {seeds}")


def page(document: records.Document, size: Size) -> str:
    """All tables in Markdown, as docs/opponents.md has them."""
    parts = (readme_table, others_table, planners_table, seconds_table, noise_table)
    return "\n\n".join([*(part(document) for part in parts), search_table(document, size)])


def main(argv: list[str] | None = None) -> records.Document:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all"
    )
    parser.add_argument(
        "--task", action="append", help="repeatable; the paper's and FrozenLake-v1 by default"
    )
    parser.add_argument("--page", action="store_true", help="run nothing; tables and figure")
    parser.add_argument("--smoke", action="store_true", help="next to nothing, to see that it runs")
    parser.add_argument(
        "--out", default=str(RESULTS), help="directory of the file and the figure (%(default)s)"
    )
    options = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    size = SMOKE if options.smoke else FULL
    path = records.prepare_directory(options.out) / "opponents.json"
    tasks = options.task or [*size.tasks, noise.FROZEN_LAKE]
    document = run_all(size, [] if options.page else options.parts, tasks, path)
    print(page(document, size))
    if util.find_spec("matplotlib"):
        print(f"wrote {path} and {style.save(draw(document), path.with_suffix('.png'))}")
    return document


if __name__ == "__main__":
    main()
