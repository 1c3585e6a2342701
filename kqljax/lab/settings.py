"""Settings of a sweep: flat names and values, and the task and the learner that they stand for.

A setting is a mapping such as {"task": "MountainCar-v0", "recipe": "paper", "eta": 0.02}. What is left
out is the recipe's own default. `expand_grid` makes all combinations of lists of values.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from kqljax import features
from kqljax.config import TIE_BREAKS
from kqljax.engines import Exact, Weights
from kqljax.errors import unknown_name
from kqljax.kernels import RBF, Kernel, Linear, Matern32, Matern52
from kqljax.kql import kql_init
from kqljax.rounds import DEFAULT
from kqljax.tasks import TASKS, Task, make_task, sample_states

Setting = dict[str, Any]
Recipes = Mapping[str, Callable[..., Any]]
"""Learners of one's own by name: functions (task, num_steps, **numbers) -> learner."""


class LabError(ValueError):
    """A sweep that cannot be run; the message says what to give instead."""


KERNELS: dict[str, Any] = {"rbf": RBF, "linear": Linear, "matern32": Matern32, "matern52": Matern52}
FEATURES = ("none", "linear", "taylor", "fourier", "nystrom")
DTYPES = ("float64", "float32")
ROUNDS, PAPER = "default", "paper"
NAMES: dict[str, tuple[type, str]] = {
    "task": (str, "environment"),
    "recipe": (str, "default learns in rounds, paper is Algorithm 1 (default: default)"),
    "kernel": (str, f"one of {', '.join(KERNELS)} (default rbf)"),
    "eta": (float, "inverse squared width of the RBF kernel (default: the paper's for the task)"),
    "length_scale": (float, "of the Matern kernels (default 1)"),
    "gamma": (float, "discount factor (default 0.95)"),
    "lam": (float, "ridge parameter lambda (default 1 / (10 steps))"),
    "beta": (float, "confidence width (default sqrt(lam) / (1 - gamma))"),
    "features": (str, f"one of {', '.join(FEATURES)} (default none, the exact engine)"),
    "tolerance": (float, "largest error of the features (default 1e-6)"),
    "frequencies": (int, "number of random frequencies, with features fourier"),
    "dtype": (str, f"of the state, {' or '.join(DTYPES)} (default float64)"),
    "tie_break": (str, f"{' or '.join(TIE_BREAKS)} (default {TIE_BREAKS[0]})"),
}
PREFIXES = {
    "params.": "a parameter of the environment, such as params.gravity",
    "rounds.": "a number of kqljax.rounds.Recipe, such as rounds.bonus",
}
_CHOICES = {
    "kernel": tuple(KERNELS),
    "features": FEATURES,
    "dtype": DTYPES,
    "tie_break": TIE_BREAKS,
}
_OF_ANY = ("task", "recipe")
_OF_CONFIG = ("gamma", "lam", "beta", "tie_break")


class Case(NamedTuple):
    """What a setting stands for.

    Attributes:
      task, learner: pytrees whose numbers are leaves.
      dtype: of the state.
    """

    task: Task
    learner: Any
    dtype: str


def describe(setting: Mapping[str, Any]) -> str:
    """A setting in one line."""
    return ", ".join(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
                     for name, value in setting.items())  # fmt: skip


# Grids -----------------------------------------------------------------------------------------------


def expand_grid(grid: Mapping[str, Any], recipes: Recipes | None = None) -> list[Setting]:
    """All combinations of the values, in order; the last name varies fastest.

    A name that does not belong to a combination (eta with the linear kernel, beta with learning in
    rounds) is left out of it, and combinations that are then the same are kept once.

    Examples:
      >>> from kqljax.lab import expand_grid
      >>> grid = {"task": "CartPole-v0", "recipe": ["default", "paper"], "eta": [0.01, 0.02]}
      >>> [setting.get("eta") for setting in expand_grid(grid)]
      [None, 0.01, 0.02]
    """
    lists = {
        name: value if isinstance(value, (list, tuple)) else [value] for name, value in grid.items()
    }
    for name, values in lists.items():
        if not values:
            raise LabError(f"{name} has no values.")
    combined = [
        dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())
    ]
    kept = [
        {name: value for name, value in setting.items() if _belongs(name, setting)}
        for setting in combined
    ]
    for name in lists:
        if not any(name in setting for setting in kept):
            recipe = combined[0].get("recipe", ROUNDS)
            remedy = (
                " Add recipe paper (--recipe paper)." if recipe == ROUNDS and name in NAMES else ""
            )
            raise LabError(f"{name} means nothing beside {describe(kept[0])}.{remedy}")
    return tidy_settings(kept, recipes)


def tidy_settings(
    settings: Sequence[Mapping[str, Any]], recipes: Recipes | None = None
) -> list[Setting]:
    """Settings with values of the right types, each once, all in one order of names."""
    parsed = []
    for setting in settings:
        parsed.append({name: parse_value(name, value, recipes) for name, value in setting.items()})
        if "task" not in setting:
            raise LabError(f"a setting needs a task. Known: {', '.join(TASKS)}.")
        for name in setting:
            if not _belongs(name, setting):
                raise LabError(
                    f"setting {describe(setting)}: {name} means nothing beside the others."
                )
    used = {name for setting in parsed for name in setting}
    order = [*(name for name in NAMES if name in used), *sorted(used - NAMES.keys())]
    unique: dict[Any, Setting] = {}
    for each in parsed:
        in_order = {name: each[name] for name in order if name in each}
        unique.setdefault(tuple(in_order.items()), in_order)
    return list(unique.values())


def parse_value(name: str, value: Any, recipes: Recipes | None = None) -> Any:
    """The value of a setting in its own type, from a word of the command line or a number of a file."""
    kind = _kind(name, recipes or {})
    if kind is None:
        return value
    try:
        if isinstance(value, bool) or (
            kind is int and isinstance(value, float) and not value.is_integer()
        ):
            raise ValueError
        found = kind(value)
        if kind is float and not math.isfinite(found):
            raise ValueError
    except (TypeError, ValueError):
        what = {int: "a whole number", float: "a finite number", str: "a word"}[kind]
        raise LabError(f"{name} must be {what}, got {value!r}.") from None
    choices = _CHOICES.get(
        name, (ROUNDS, PAPER, *(recipes or ())) if name == "recipe" else (found,)
    )
    if found not in choices:
        raise LabError(unknown_name(name, found, choices))
    return found


def _kind(name: str, recipes: Recipes) -> Any:
    """Type of a setting's values; None where any will do."""
    prefix, _, field = name.partition(".")
    if name in NAMES:
        return NAMES[name][0]
    if prefix == "params" and field:
        return float
    if prefix == "rounds":
        numbers = {each.name: each.default for each in dataclasses.fields(DEFAULT)}
        if not isinstance(numbers.get(field), (int, float)):
            known = [
                f"rounds.{each}"
                for each, value in numbers.items()
                if isinstance(value, (int, float))
            ]
            raise LabError(unknown_name("setting", name, known))
        return type(numbers[field])
    if prefix in recipes and field:
        return None
    raise LabError(unknown_name("setting", name, [*NAMES, *(f"{each}NAME" for each in PREFIXES)]))


def _belongs(name: str, setting: Mapping[str, Any]) -> bool:
    """Whether a name means something beside the other values of a setting."""
    recipe, kernel = setting.get("recipe", ROUNDS), setting.get("kernel", "rbf")
    kind, prefix = setting.get("features", "none"), name.partition(".")[0]
    if name in _OF_ANY or prefix == "params":
        return True
    if "." in name:
        return prefix == ("rounds" if recipe == ROUNDS else recipe)
    return recipe == PAPER and {
        "eta": kernel == "rbf",
        "length_scale": kernel.startswith("matern"),
        "tolerance": kind in ("taylor", "nystrom"),
        "frequencies": kind == "fourier",
    }.get(name, True)


# From a setting to a case ----------------------------------------------------------------------------


def make_cases(
    settings: Sequence[Setting],
    num_steps: int,
    tasks: Mapping[str, Task] | None = None,
    recipes: Recipes | None = None,
) -> list[Case]:
    """Task and learner of each setting for runs of `num_steps`; LabError where one cannot be run."""
    # Settings that differ in gamma, lam or beta alone share one feature map.
    maps: dict[Any, Any] = {}
    return [
        _make_case(setting, num_steps, tasks or {}, recipes or {}, maps) for setting in settings
    ]


def _make_case(
    setting: Setting,
    num_steps: int,
    tasks: Mapping[str, Task],
    recipes: Recipes,
    maps: dict[Any, Any],
) -> Case:
    recipe, dtype = setting.get("recipe", ROUNDS), setting.get("dtype", DTYPES[0])
    try:
        task = _make_task(setting, tasks)
        if recipe in recipes:
            numbers = {
                name.partition(".")[2]: setting[name]
                for name in setting
                if name.startswith(f"{recipe}.")
            }
            return Case(task, recipes[recipe](task, num_steps, **numbers), dtype)
        if recipe == ROUNDS:
            numbers = {
                name.removeprefix("rounds."): setting[name]
                for name in setting
                if name.startswith("rounds.")
            }
            learner = dataclasses.replace(DEFAULT, **numbers)
            learner.validate()
            return Case(task, learner, dtype)
        kernel = _make_kernel(setting, task)
        own = {name: setting[name] for name in _OF_CONFIG if name in setting}
        if not 0 <= own.get("gamma", 0) < 1:
            raise ValueError(f"gamma must be in [0, 1), got {own['gamma']}.")
        found = _make_features(setting, kernel, task, maps)
        engine: Any = Exact() if found is None else Weights(found)
        cfg = task.config(kernel, num_steps, engine=engine, **own)
        # Says what is wrong with a config, and takes no memory.
        jax.eval_shape(lambda: kql_init(cfg, task.obs_dim, dtype))
        return Case(task, cfg, dtype)
    except LabError:
        raise
    except ValueError as error:
        raise LabError(f"setting {describe(setting)}: {error}") from error


def _make_task(setting: Setting, tasks: Mapping[str, Task]) -> Task:
    name = setting["task"]
    if name not in tasks and name not in TASKS:
        raise LabError(unknown_name("task", name, [*tasks, *TASKS]))
    task = tasks[name] if name in tasks else make_task(name)
    changes: dict[str, Any] = {}
    for key, value in setting.items():
        if key.startswith("params."):
            field = key.removeprefix("params.")
            if field == "max_steps_in_episode":
                raise LabError(
                    f"{key}: the length of an episode is part of the task: make a task of your own."
                )
            if not hasattr(task.params, field):
                known = [
                    f"params.{each}" for each in getattr(task.params, "__dataclass_fields__", {})
                ]
                raise LabError(unknown_name("setting", key, known))
            changes[field] = int(value) if isinstance(getattr(task.params, field), int) else value
    return dataclasses.replace(task, params=task.params.replace(**changes)) if changes else task


def _make_kernel(setting: Setting, task: Task) -> Kernel:
    name = setting.get("kernel", "rbf")
    if name == "rbf":
        return RBF(eta=setting.get("eta", task.eta))
    return (
        Linear()
        if name == "linear"
        else KERNELS[name](length_scale=setting.get("length_scale", 1.0))
    )


def _make_features(setting: Setting, kernel: Kernel, task: Task, maps: dict[Any, Any]) -> Any:
    kind = setting.get("features", "none")
    if kind == "none":
        return None
    place = tuple(item for item in setting.items() if item[0] not in (*_OF_CONFIG, "dtype"))
    if place not in maps:
        sizes, tolerance = (task.obs_dim, task.num_actions), setting.get("tolerance", 1e-6)
        if kind == "linear":
            maps[place] = features.linear(kernel, *sizes)
        elif kind == "taylor":
            maps[place] = features.taylor(kernel, *sizes, tolerance)
        elif kind == "nystrom":
            states = sample_states(task)
            maps[place] = features.nystrom(kernel, states, task.num_actions, tolerance)
        else:
            maps[place] = features.fourier(kernel, *sizes, setting.get("frequencies", 256))
    return maps[place]
