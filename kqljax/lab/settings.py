"""Settings of a sweep: names and values, and the task and the learner that they stand for.

A setting is a dict such as {"task": "MountainCar-v0", "recipe": "paper", "eta": 0.02}. What is left
out is the recipe's own default.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from kqljax import features
from kqljax._checks import unknown_name
from kqljax.config import TIE_BREAKS
from kqljax.engines import Exact, Weights
from kqljax.kernels import RBF, Kernel, Linear, Matern32, Matern52
from kqljax.kql import kql_init
from kqljax.rounds import DEFAULT
from kqljax.tasks import TASKS, Task, make_task, sample_states

Setting = dict[str, Any]
Recipes = Mapping[str, Callable[..., Any]]

ROUNDS, PAPER = "default", "paper"
MATERN: dict[str, Any] = {"matern32": Matern32, "matern52": Matern52}
APPROXIMATE = ("taylor", "nystrom")
NAMES: dict[str, Any] = {
    "task": str,
    "recipe": (ROUNDS, PAPER),
    "kernel": ("rbf", "linear", *MATERN),
    "eta": float,
    "length_scale": float,
    "gamma": float,
    "lam": float,
    "beta": float,
    "features": ("none", "linear", "fourier", *APPROXIMATE),
    "tolerance": float,
    "frequencies": int,
    "dtype": ("float64", "float32"),
    "tie_break": TIE_BREAKS,
}
"""Name -> type or choices. Names after task and recipe are of Algorithm 1, recipe paper.

`params.NAME` is a parameter of the environment, `rounds.NAME` a number of `kqljax.rounds.Recipe`,
and `RECIPE.NAME` a number of a learner of one's own.
"""
_OF_CONFIG = ("gamma", "lam", "beta", "tie_break")


class LabError(ValueError):
    """A sweep that cannot be run; the message says what to give instead."""


class Case(NamedTuple):
    """What a setting stands for.

    Attributes:
      task, learner: pytrees whose numbers are leaves.
      dtype: of the state of Algorithm 1, None for other learners.
    """

    task: Task
    learner: Any
    dtype: str | None


def describe(setting: Mapping[str, Any]) -> str:
    """A setting in one line."""
    return ", ".join(f"{name}={value}" for name, value in setting.items())


# Grids -------------------------------------------------------------------------------------------


def expand_grid(grid: Mapping[str, Any], recipes: Recipes | None = None) -> list[Setting]:
    """All combinations of the values, in order; the last name varies fastest.

    A name that does not belong to a combination (eta with the linear kernel, beta with learning in
    rounds) is left out of it, and combinations that are then the same are kept once.

    Args:
      grid: name -> value or list of values.
      recipes: as in `Sweep`.

    Examples:
      >>> from kqljax.lab import expand_grid
      >>> grid = {"task": "CartPole-v0", "recipe": ["default", "paper"], "eta": [0.01, 0.02]}
      >>> [setting.get("eta") for setting in expand_grid(grid)]
      [None, 0.01, 0.02]
    """
    lists = {n: list(v) if isinstance(v, (list, tuple)) else [v] for n, v in grid.items()}
    if empty := [name for name, values in lists.items() if not values]:
        raise LabError(f"{empty[0]} has no values.")
    every = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    kept = [{name: each[name] for name in each if _belongs(name, each)} for each in every]
    for name in lists:
        if not any(name in each for each in kept):
            remedy = " Add recipe paper (--recipe paper)." if name in NAMES else ""
            raise LabError(f"{name} means nothing beside {describe(kept[0])}.{remedy}")
    return tidy_settings(kept, recipes)


def tidy_settings(
    settings: Sequence[Mapping[str, Any]], recipes: Recipes | None = None
) -> list[Setting]:
    """Settings with values of the right types, each once, all in one order of names."""
    used = {name for setting in settings for name in setting}
    order = [*(name for name in NAMES if name in used), *sorted(used - NAMES.keys())]
    tidy: list[Setting] = []
    for setting in settings:
        if "task" not in setting:
            raise LabError(f"a setting needs a task. Known: {', '.join(TASKS)}.")
        if wrong := [name for name in setting if not _belongs(name, setting)]:
            raise LabError(f"{wrong[0]} means nothing in the setting {describe(setting)}.")
        found = {n: _parse(n, setting[n], recipes or {}) for n in order if n in setting}
        if found not in tidy:
            tidy.append(found)
    return tidy


def _belongs(name: str, setting: Mapping[str, Any]) -> bool:
    """Whether a name means something beside the other values of a setting."""
    recipe, kernel = setting.get("recipe", ROUNDS), setting.get("kernel", "rbf")
    prefix, dot, _ = name.partition(".")
    if dot:
        return prefix in ("params", "rounds" if recipe == ROUNDS else recipe)
    of_paper = {
        "eta": kernel == "rbf",
        "length_scale": kernel in MATERN,
        "tolerance": setting.get("features") in APPROXIMATE,
        "frequencies": setting.get("features") == "fourier",
    }
    return name in ("task", "recipe") or (recipe == PAPER and of_paper.get(name, True))


def _parse(name: str, value: Any, recipes: Recipes) -> Any:
    """The value of a setting in its own type, from a word or a number."""
    prefix, dot, field = name.partition(".")
    numbers = {each.name: each.default for each in dataclasses.fields(DEFAULT)}
    numbers = {f"rounds.{each}": type(d) for each, d in numbers.items() if not isinstance(d, tuple)}
    kinds = {**NAMES, **numbers, **({name: float} if prefix == "params" and field else {})}
    kinds["recipe"] = (*kinds["recipe"], *recipes)
    if dot and prefix in recipes:
        return value
    if name not in kinds:
        raise LabError(unknown_name("setting", name, [*kinds, "params.NAME"]))
    kind = kinds[name]
    if isinstance(kind, tuple):
        if value not in kind:
            raise LabError(unknown_name(name, str(value), kind))
        return value
    try:
        found = kind(value)
        if kind is not str and (not math.isfinite(found) or found != float(value)):
            raise ValueError
    except (TypeError, ValueError):
        what = {int: "a whole number", float: "a finite number", str: "a word"}[kind]
        raise LabError(f"{name} must be {what}, got {value!r}.") from None
    return found


# From a setting to a case ------------------------------------------------------------------------


def make_cases(
    settings: Sequence[Setting],
    num_steps: int,
    tasks: Mapping[str, Task] | None = None,
    recipes: Recipes | None = None,
) -> list[Case]:
    """Task and learner of each setting for `num_steps` steps; LabError where one cannot be run."""
    # Settings that differ in gamma, lam or beta alone share one feature map.
    cases, maps = [], dict[Any, Any]()
    for setting in settings:
        try:
            task = _make_task(setting, tasks or {})
            cases.append(_make_case(setting, task, num_steps, recipes or {}, maps))
        except LabError:
            raise
        except ValueError as error:
            raise LabError(f"setting {describe(setting)}: {error}") from error
    return cases


def _make_case(
    setting: Setting, task: Task, num_steps: int, recipes: Recipes, maps: dict[Any, Any]
) -> Case:
    recipe = setting.get("recipe", ROUNDS)
    if recipe != PAPER:
        prefix = "rounds." if recipe == ROUNDS else f"{recipe}."
        own = {n.removeprefix(prefix): setting[n] for n in setting if n.startswith(prefix)}
        if recipe in recipes:
            return Case(task, recipes[recipe](task, num_steps, **own), None)
        learner = dataclasses.replace(DEFAULT, **own)
        learner.validate()
        return Case(task, learner, None)
    own = {name: setting[name] for name in _OF_CONFIG if name in setting}
    if not 0 <= own.get("gamma", 0) < 1:
        raise ValueError(f"gamma must be in [0, 1), got {own['gamma']}.")
    kernel, dtype = _make_kernel(setting, task), setting.get("dtype", "float64")
    engine: Any = Exact()
    if setting.get("features", "none") != "none":
        place = describe({n: v for n, v in setting.items() if n not in (*_OF_CONFIG, "dtype")})
        if place not in maps:
            maps[place] = _make_features(setting, kernel, task)
        engine = Weights(maps[place])
    cfg = task.config(kernel, num_steps, engine=engine, **own)
    # Says what is wrong with a config, and takes no memory.
    jax.eval_shape(lambda: kql_init(cfg, task.obs_dim, dtype))
    return Case(task, cfg, dtype)


def _make_task(setting: Setting, tasks: Mapping[str, Task]) -> Task:
    name = setting["task"]
    if name not in tasks and name not in TASKS:
        raise LabError(unknown_name("task", name, [*tasks, *TASKS]))
    task = tasks[name] if name in tasks else make_task(name)
    own = {n.removeprefix("params."): setting[n] for n in setting if n.startswith("params.")}
    if not own:
        return task
    if "max_steps_in_episode" in own:
        raise LabError("the length of an episode is part of the task: make a task of your own.")
    before = {
        field.name: getattr(task.params, field.name) for field in dataclasses.fields(task.params)
    }
    for name in own:
        if name not in before:
            raise LabError(
                unknown_name("setting", f"params.{name}", [f"params.{n}" for n in before])
            )
    changed = {n: int(v) if isinstance(before[n], int) else v for n, v in own.items()}
    return dataclasses.replace(task, params=task.params.replace(**changed))


def _make_kernel(setting: Setting, task: Task) -> Kernel:
    name = setting.get("kernel", "rbf")
    if name in MATERN:
        return MATERN[name](length_scale=setting.get("length_scale", 1.0))
    return Linear() if name == "linear" else RBF(eta=setting.get("eta", task.eta))


def _make_features(setting: Setting, kernel: Kernel, task: Task) -> Any:
    kind, tolerance = setting["features"], setting.get("tolerance", 1e-6)
    sizes = task.obs_dim, task.num_actions
    if kind == "linear":
        return features.linear(kernel, *sizes)
    if kind == "taylor":
        return features.taylor(kernel, *sizes, tolerance)
    if kind == "nystrom":
        return features.nystrom(kernel, sample_states(task), task.num_actions, tolerance)
    return features.fourier(kernel, *sizes, setting.get("frequencies", 256))
