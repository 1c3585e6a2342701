"""The paper's experiment (section 6, Table 1) as code: settings, the paper's figures, and a run that can be interrupted.

    settings = Table1Settings(seeds=30, algorithms=("kql-rbf", "dqn"), tasks=("MountainCar-v0",))
    document = run_table1(settings, "results/")

Seeds 0..999 are for tuning and 1000 and up for reporting: a figure that was tuned on is not evidence.
KQL runs in float64, so jax must have it enabled: `jax.config.update("jax_enable_x64", True)`.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kqljax import checks
from kqljax.algorithms import ALGORITHMS, CURVE_EPISODES, OF_RECIPE, Algorithm, curve_steps, make_algorithm
from kqljax.errors import unknown_name
from kqljax.report import records
from kqljax.report.statistics import pooled, summarise
from kqljax.tasks import TASKS, Task, make_task

Array = jax.Array

FIRST_REPORTING_SEED = 1000
RESULTS_FILE = "table1.json"
PAPER_TASKS = ("MountainCar-v0", "Pendulum-v1", "Acrobot-v1", "CartPole-v0")


def _row(*figures: tuple[float, float]) -> dict[str, tuple[float, float]]:
    return dict(zip(PAPER_TASKS, figures, strict=True))


PAPER = {
    "dqn": _row((-200.00, 0.00), (-274.67, 393.03), (-161.31, 96.13), (149.68, 4.75)),
    "kql-linear": _row((-200.00, 0.00), (-1413.57, 202.19), (-500.00, 0.00), (9.32, 0.70)),
    "kql-rbf": _row((-132.55, 17.02), (-167.01, 97.32), (-107.23, 35.20), (200.00, 0.00)),
}
PAPER["sb3-dqn"] = PAPER["dqn"]
PAPER["kql-rounds"] = PAPER["kql-rbf"]
"""Table 1: algorithm -> task -> mean and standard deviation over 100 episodes."""


class SettingsError(ValueError):
    """Settings that cannot be run; the message says what to give instead."""


# Settings ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table1Settings:
    """What to run.

    Attributes:
      seeds: seeds for each algorithm and task.
      first_seed: the seeds are first_seed, first_seed + 1, and so on.
      algorithms, tasks: names.
      steps: environment steps of training.
      episodes: evaluation episodes after training.
      tuning: allows seeds below 1000.
      curve_points: points of a learning curve; 0 for none. Only kql-rbf and kql-rounds have curves.
      curve_seeds: how many of the seeds get a curve. A curve costs a second, untimed training with evaluations in it.
    """

    seeds: int = 30
    first_seed: int = FIRST_REPORTING_SEED
    algorithms: tuple[str, ...] = ("kql-rbf", "kql-linear", "dqn", "random")
    tasks: tuple[str, ...] = PAPER_TASKS
    steps: int = 1000
    episodes: int = 100
    tuning: bool = False
    curve_points: int = 5
    curve_seeds: int = 3

    def validate(self) -> Table1Settings:
        """Raises SettingsError where something cannot be run; returns the settings."""
        least = {"seeds": 1, "first_seed": 0, "steps": 1, "episodes": 1, "curve_points": 0, "curve_seeds": 0}
        for name, smallest in least.items():
            try:
                checks.whole_number(f"--{name.replace('_', '-')}", getattr(self, name), smallest, _REMEDIES[name])
            except ValueError as error:
                raise SettingsError(str(error)) from None
        for kind, names, known in (
            ("algorithm", self.algorithms, tuple(ALGORITHMS)),
            ("task", self.tasks, tuple(TASKS)),
        ):
            if not names:
                raise SettingsError(f"no {kind} given. Known: {', '.join(known)}.")
            for name in names:
                if name not in known:
                    raise SettingsError(unknown_name(kind, name, known))
                if names.count(name) > 1:
                    raise SettingsError(f"{kind} {name} is given twice.")
        last = self.first_seed + self.seeds - 1
        if not self.tuning and self.first_seed < FIRST_REPORTING_SEED:
            raise SettingsError(
                f"seeds below {FIRST_REPORTING_SEED} are for tuning, got --first-seed {self.first_seed}. Report on "
                f"--first-seed {FIRST_REPORTING_SEED} or above, or add --tuning."
            )
        if self.tuning and last >= FIRST_REPORTING_SEED:
            raise SettingsError(
                f"--tuning keeps to seeds 0..{FIRST_REPORTING_SEED - 1}, so that reported seeds stay unseen; got seeds up "
                f"to {last}. Lower --first-seed or --seeds."
            )
        return self

    def as_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in dataclasses.asdict(self).items()}


_REMEDIES = {
    "seeds": "It is the number of seeds for each algorithm and task.",
    "first_seed": "It is the number of the first seed.",
    "steps": "It is the number of environment steps of training.",
    "episodes": "It is the number of evaluation episodes.",
    "curve_points": "0 makes no learning curves.",
    "curve_seeds": "0 makes no learning curves.",
}


# The run -------------------------------------------------------------------------------------------------------------


class Programs:
    """Compiled programs, each made once and its compile time kept.

    Configs are arguments, not constants: KQL-RBF and KQL with beta = 0 share one program.
    """

    def __init__(self) -> None:
        self._programs: dict[Any, Any] = {}

    def get(
        self, name: Any, function: Callable[..., Any], *args: Any, options: dict[str, Any] | None = None
    ) -> tuple[Any, float]:
        """The program of `function` for arguments like `args`, and the seconds it took to make (0 where it was there)."""
        leaves, tree = jax.tree.flatten(args)
        place = (name, tree, tuple((np.shape(leaf), str(jnp.result_type(leaf))) for leaf in leaves))
        if place in self._programs:
            return self._programs[place], 0.0
        start = time.perf_counter()
        self._programs[place] = jax.jit(function).lower(*args).compile(options)
        return self._programs[place], time.perf_counter() - start


class ChunkResult(NamedTuple):
    """Some seeds of one algorithm on one task.

    Attributes:
      returns: `[C, episodes]` raw returns.
      is_sound: `[C]` bool, see `Algorithm.train`.
      seconds: of training, a seed.
      evaluation_seconds: a seed.
      compile_seconds: of both programs.
    """

    returns: np.ndarray
    is_sound: np.ndarray
    seconds: float
    evaluation_seconds: float
    compile_seconds: float


def run_chunk(
    algorithm: Algorithm, task: Task, seeds: Sequence[int], num_steps: int, num_episodes: int, programs: Programs
) -> ChunkResult:
    """Trains and evaluates some seeds side by side. Training and evaluation are timed apart, and compilation from both."""
    cfg = algorithm.config(task, num_steps)
    keys = jnp.stack([jax.random.split(jax.random.key(seed)) for seed in seeds])  # [C, 2]
    train_keys, eval_keys = keys[:, 0], keys[:, 1]

    def train(task: Task, cfg: Any, keys: Array) -> Any:
        return _over_seeds(lambda key: algorithm.train(task, cfg, key, num_steps), keys)

    def evaluate(task: Task, cfg: Any, states: Any, keys: Array) -> Array:
        return _over_seeds(lambda state, key: algorithm.evaluate(task, cfg, state, key, num_episodes), states, keys)

    options = algorithm.compiler_options
    train_program, compile_train = programs.get((algorithm.train, num_steps), train, task, cfg, train_keys, options=options)
    (states, is_sound), train_seconds = _timed(train_program, task, cfg, train_keys)
    args = (task, cfg, states, eval_keys)
    eval_program, compile_eval = programs.get((algorithm.evaluate, num_episodes), evaluate, *args, options=options)
    returns, eval_seconds = _timed(eval_program, *args)
    return ChunkResult(
        returns=np.asarray(returns, np.float64),
        is_sound=np.asarray(is_sound),
        seconds=train_seconds / len(seeds),
        evaluation_seconds=eval_seconds / len(seeds),
        compile_seconds=compile_train + compile_eval,
    )


def _over_seeds(function: Callable[..., Any], *args: Any) -> Any:
    """`jax.vmap`, except that a single seed runs as it would alone: a batch of one costs more than none."""
    if jax.tree.leaves(args)[0].shape[0] > 1:
        return jax.vmap(function)(*args)
    alone = function(*jax.tree.map(lambda leaf: leaf[0], args))
    return jax.tree.map(lambda leaf: leaf[None], alone)


def _timed(program: Any, *args: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    result = jax.block_until_ready(program(*args))
    return result, time.perf_counter() - start


class Work(NamedTuple):
    """One thing to do: seeds of an algorithm on a task, or their learning curves.

    Attributes:
      guess: seconds that it may take; only good enough to share out a progress bar.
    """

    algorithm: str
    task: str
    seeds: tuple[int, ...]
    is_curve: bool
    guess: float


_COMPILE_GUESS = 10.0


def plan(settings: Table1Settings, document: records.Document) -> list[Work]:
    """What is left to do, in order: results before curves of each algorithm and task."""
    done = {(r["algorithm"], r["task"], r["seed"]) for r in document["results"]}
    drawn = {(c["algorithm"], c["task"], c["seed"]) for c in document["curves"]}
    seeds = range(settings.first_seed, settings.first_seed + settings.seeds)
    work = []
    for name in settings.algorithms:
        algorithm = make_algorithm(name)
        for task in settings.tasks:
            left = [seed for seed in seeds if (name, task, seed) not in done]
            batches = [(part, False) for part in _parts(left, algorithm.chunk)]
            if name in OF_RECIPE.values() and settings.curve_points:
                left = [seed for seed in seeds[: settings.curve_seeds] if (name, task, seed) not in drawn]
                batches += [((seed,), True) for seed in left]
            length = make_task(task).max_steps / 200
            guess = algorithm.training * settings.steps / 1000 + algorithm.evaluation * length * settings.episodes / 100
            for index, (part, is_curve) in enumerate(batches):
                is_first = index == 0 or batches[index - 1][1] != is_curve
                work.append(Work(name, task, part, is_curve, guess * len(part) + _COMPILE_GUESS * is_first))
    return work


def _parts(seeds: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """Parts of nearly one size, so that few sizes have to be compiled."""
    count = -(-len(seeds) // size)
    for part in np.array_split(np.asarray(seeds, int), count) if count else []:
        yield tuple(int(seed) for seed in part)


def run_table1(
    settings: Table1Settings,
    out: str | os.PathLike[str],
    report: Callable[[list[Work], Work | None], None] = lambda left, now: None,
) -> records.Document:
    """Runs what is not yet in `out`/table1.json and returns the document.

    The file is replaced after every chunk of seeds: the same call again goes on where an interrupted one stopped.

    Args:
      report: called before each piece of work with all that is left and the piece, and at the end with None.
    """
    settings.validate()
    if not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise SettingsError("KQL runs in float64 here: jax.config.update('jax_enable_x64', True) before anything else.")
    path = records.prepare_directory(out) / RESULTS_FILE
    document = _open(settings, path)
    programs = Programs()
    left = plan(settings, document)
    while left:
        report(left, left[0])
        (_do_curve if left[0].is_curve else _do_results)(left.pop(0), settings, document, programs)
        records.write(path, document)
    report(left, None)
    document["summary"] = summarise_document(document)
    records.write(path, document)
    return document


def _open(settings: Table1Settings, path: Path) -> records.Document:
    now = records.versions()
    document: records.Document = {
        "settings": settings.as_json(),
        "versions": now,
        "earlier_versions": [],
        "device": records.device(),
        "dtype": "float64",
        "results": [],
        "curves": [],
        "compile_seconds": {},
        "summary": {},
    }
    if path.exists():
        stored = records.read(path)
        records.check_same_settings(path, stored["settings"], document["settings"])
        for name in ("results", "curves", "compile_seconds", "earlier_versions"):
            document[name] = stored.get(name, document[name])
        before = stored.get("versions", now)
        if before != now and before not in document["earlier_versions"]:
            document["earlier_versions"].append(before)
    records.write(path, document)
    return document


def _do_results(work: Work, settings: Table1Settings, document: records.Document, programs: Programs) -> None:
    algorithm, task = make_algorithm(work.algorithm), make_task(work.task)
    chunk = run_chunk(algorithm, task, work.seeds, settings.steps, settings.episodes, programs)
    compile_seconds = document["compile_seconds"].setdefault(work.task, {})
    compile_seconds[work.algorithm] = compile_seconds.get(work.algorithm, 0.0) + chunk.compile_seconds
    for seed, returns, is_sound in zip(work.seeds, chunk.returns, chunk.is_sound, strict=True):
        # A policy whose values are not numbers has no return: NaN, which JSON does not know.
        has_return = bool(np.all(np.isfinite(returns)))
        document["results"].append(
            {
                "task": work.task,
                "algorithm": work.algorithm,
                "seed": seed,
                "return_mean": float(np.mean(returns)) if has_return else None,
                "return_std": float(np.std(returns)) if has_return else None,
                "episodes": settings.episodes,
                "seconds": chunk.seconds,
                "evaluation_seconds": chunk.evaluation_seconds,
                "is_sound": bool(is_sound) and has_return,
            }
        )


def _do_curve(work: Work, settings: Table1Settings, document: records.Document, programs: Programs) -> None:
    algorithm, task = make_algorithm(work.algorithm), make_task(work.task)
    assert algorithm.curve is not None
    make_curve = algorithm.curve
    cfg = algorithm.config(task, settings.steps)
    # The key of the timed training: the curve belongs to the same run.
    key = jax.random.split(jax.random.key(work.seeds[0]))[0]
    steps, points = settings.steps, settings.curve_points
    program, _ = programs.get(
        (make_curve, steps, points),
        lambda task, cfg, key: make_curve(task, cfg, key, steps, points),
        *(task, cfg, key),
        options=algorithm.compiler_options,
    )
    returns = np.asarray(program(task, cfg, key), np.float64)
    document["curves"].append(
        {
            "task": work.task,
            "algorithm": work.algorithm,
            "seed": work.seeds[0],
            "steps": list(curve_steps(steps, points)),
            "return_mean": returns.mean(axis=1).tolist(),
            "return_std": returns.std(axis=1).tolist(),
            "episodes": CURVE_EPISODES,
        }
    )


def summarise_document(document: records.Document) -> dict[str, dict[str, dict[str, Any]]]:
    """Task -> algorithm -> the fields of `Summary`, the pooled figures, times, and the paper's figures or None."""
    summary: dict[str, dict[str, dict[str, Any]]] = {}
    for task in document["settings"]["tasks"]:
        for algorithm in document["settings"]["algorithms"]:
            cell = [r for r in document["results"] if (r["task"], r["algorithm"]) == (task, algorithm)]
            unsound = [r["seed"] for r in cell if not r["is_sound"]]
            cell = [r for r in cell if r["return_mean"] is not None]
            if not cell:
                continue
            means, stds, episodes = ([r[name] for r in cell] for name in ("return_mean", "return_std", "episodes"))
            over_episodes = pooled(means, stds, episodes)
            paper = PAPER.get(algorithm, {}).get(task)
            summary.setdefault(task, {})[algorithm] = {
                **summarise(means, [r["seed"] for r in cell])._asdict(),
                "pooled_mean": over_episodes.mean,
                "pooled_std": over_episodes.std,
                "seconds_a_seed": float(np.mean([r["seconds"] for r in cell])),
                "evaluation_seconds_a_seed": float(np.mean([r["evaluation_seconds"] for r in cell])),
                "compile_seconds": document["compile_seconds"].get(task, {}).get(algorithm, 0.0),
                "unsound_seeds": unsound,
                "paper_mean": paper[0] if paper else None,
                "paper_std": paper[1] if paper else None,
            }
    return summary
