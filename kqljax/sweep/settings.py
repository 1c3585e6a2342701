"""Settings of a sweep: flat names and values, and the task and config that they stand for.

A setting is a mapping such as {"task": "MountainCar-v0", "kernel": "rbf", "eta": 0.02, "gamma": 0.95}. What is left out is
as in the paper. `expand_grid` makes all combinations of lists of values.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kqljax import checks, features
from kqljax.config import EVICTIONS, TIE_BREAKS, KQLConfig
from kqljax.errors import unknown_name
from kqljax.kernels import RBF, Kernel, Linear, Matern32, Matern52
from kqljax.tasks import TASKS, Task, make_task, sample_states

Setting = dict[str, Any]

KERNELS: dict[str, Any] = {"rbf": RBF, "linear": Linear, "matern32": Matern32, "matern52": Matern52}
FEATURES = ("none", "nystrom", "linear", "taylor", "fourier")
DTYPES = ("float64", "float32")
TOLERANCE = 1e-6
PARAMS = "params."
"""Prefix of the environment's own parameters, as in params.gravity."""

NAMES: dict[str, tuple[type, str]] = {
    "task": (str, "environment"),
    "kernel": (str, f"one of {', '.join(KERNELS)} (default rbf)"),
    "eta": (float, "inverse squared width of the RBF kernel (default: the paper's for the task)"),
    "length_scale": (float, "of the Matern kernels (default 1)"),
    "gamma": (float, "discount factor (default 0.95)"),
    "lam": (float, "ridge parameter lambda (default 1 / (10 steps))"),
    "beta": (float, "confidence width (default sqrt(lam) / (1 - gamma))"),
    "features": (str, f"one of {', '.join(FEATURES)} (default none, the exact engine)"),
    "tolerance": (float, "largest error of the features, with nystrom or taylor (default 1e-6)"),
    "frequencies": (int, "number of random frequencies, with features fourier (default 256)"),
    "dtype": (str, f"of the state: {' or '.join(DTYPES)} (default float64)"),
    "backups": (int, "Bellman backups a step (default 1)"),
    "tie_break": (str, " or ".join(TIE_BREAKS)),
    "refresh_rows": (int, "with features: table rows that are renewed at a step"),
    "memory": (int, "with features: transitions kept"),
    "eviction": (str, f"with features: {' or '.join(EVICTIONS)}"),
}
_CHOICES = {"kernel": tuple(KERNELS), "features": FEATURES, "dtype": DTYPES, "tie_break": TIE_BREAKS, "eviction": EVICTIONS}
_CONFIG = ("gamma", "lam", "beta", "backups", "tie_break", "refresh_rows", "memory", "eviction")
_NEED_FEATURES = ("tolerance", "frequencies", "refresh_rows", "memory", "eviction")


class SettingError(ValueError):
    """A setting that cannot be run; the message says what to give instead."""


class Case(NamedTuple):
    """What a setting stands for.

    Attributes:
      task, cfg: pytrees whose numbers are leaves.
      dtype: of the states.
    """

    task: Task
    cfg: KQLConfig
    dtype: str


def parse_value(name: str, value: Any) -> Any:
    """The value of a setting, from a word of the command line or a number of a file, in the type that it has."""
    if not name.startswith(PARAMS) and name not in NAMES:
        raise SettingError(unknown_name("setting", name, [*NAMES, f"{PARAMS}NAME"]))
    kind = float if name.startswith(PARAMS) else NAMES[name][0]
    try:
        if isinstance(value, bool) or (kind is int and isinstance(value, float) and not value.is_integer()):
            raise ValueError
        found = kind(value)
        if kind is float and not math.isfinite(found):
            raise ValueError
    except (TypeError, ValueError):
        what = {int: "a whole number", float: "a finite number", str: "a word"}[kind]
        raise SettingError(f"{name} must be {what}, got {value!r}.") from None
    if name in _CHOICES and found not in _CHOICES[name]:
        raise SettingError(unknown_name(name, found, _CHOICES[name]))
    return found


def expand_grid(grid: Mapping[str, Sequence[Any] | Any]) -> list[Setting]:
    """All combinations of the values, in order; the last name varies fastest.

    A name that means nothing beside others (eta beside the linear kernel) is left out there, and what is then the same is
    kept once.
    """
    lists = {name: value if isinstance(value, (list, tuple)) else [value] for name, value in grid.items()}
    for name, values in lists.items():
        if not values:
            raise SettingError(f"{name} has no values.")
    combined = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    return tidy_settings([_without_meaningless(setting) for setting in combined], set(lists))


def tidy_settings(settings: Sequence[Mapping[str, Any]], names: set[str] | None = None) -> list[Setting]:
    """Settings with values of the right types, each once, all in one order of names."""
    parsed = [{name: parse_value(name, value) for name, value in setting.items()} for setting in settings]
    if not parsed:
        raise SettingError("a sweep needs at least one setting.")
    for setting in parsed:
        if "task" not in setting:
            raise SettingError(f"a setting needs a task. Known: {', '.join(TASKS)}.")
    used = {name for setting in parsed for name in setting}
    for name in (names or used) - used:
        raise SettingError(f"{name} means nothing beside the other settings: leave it out, or give what it belongs to.")
    order = [*(name for name in NAMES if name in used), *sorted(name for name in used if name.startswith(PARAMS))]
    unique: dict[tuple[Any, ...], Setting] = {}
    for setting in parsed:
        in_order = {name: setting[name] for name in order if name in setting}
        unique.setdefault(tuple(in_order.items()), in_order)
    return list(unique.values())


def _without_meaningless(setting: Mapping[str, Any]) -> Setting:
    kernel, kind = setting.get("kernel", "rbf"), setting.get("features", "none")
    drop = set()
    if kernel != "rbf":
        drop.add("eta")
    if kernel not in ("matern32", "matern52"):
        drop.add("length_scale")
    if kind == "none":
        drop.update(_NEED_FEATURES)
    drop.add("tolerance" if kind in ("linear", "fourier") else "frequencies")
    return {name: value for name, value in setting.items() if name not in drop}


# From a setting to a case --------------------------------------------------------------------------------------------


def make_cases(settings: Sequence[Setting], num_steps: int, tasks: Mapping[str, Task] | None = None) -> list[Case]:
    """Task and config of each setting for runs of `num_steps`; raises SettingError where one cannot be run.

    Args:
      tasks: tasks of one's own by name, beside those of `make_task`.
    """
    # Settings that differ in gamma, lam or beta alone share one map: `nystrom` explores the task, which takes seconds.
    maps: dict[Any, features.FeatureMap] = {}
    return [_make_case(setting, num_steps, tasks or {}, maps) for setting in settings]


def _make_case(setting: Setting, num_steps: int, tasks: Mapping[str, Task], maps: dict[Any, features.FeatureMap]) -> Case:
    try:
        task = _make_task(setting, tasks)
        kernel = _make_kernel(setting, task)
        own = {name: setting[name] for name in _CONFIG if name in setting}
        checks.check_gamma_and_lam(own.get("gamma", KQLConfig.gamma), own.get("lam", 1.0))
        cfg = task.config(kernel, num_steps, features=_make_features(setting, kernel, task, maps), **own)
        dtype = setting.get("dtype", DTYPES[0])
        checks.check_init(cfg, task.obs_dim, dtype, None)
    except SettingError:
        raise
    except ValueError as error:
        raise SettingError(f"setting {describe(setting)}: {error}") from error
    return Case(task, cfg, dtype)


def describe(setting: Mapping[str, Any]) -> str:
    """A setting in one line."""
    return ", ".join(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in setting.items())


def _make_task(setting: Setting, tasks: Mapping[str, Task]) -> Task:
    name = setting["task"]
    if name not in tasks and name not in TASKS:
        raise SettingError(unknown_name("task", name, [*tasks, *TASKS]))
    task = tasks[name] if name in tasks else make_task(name)
    changes: dict[str, Any] = {}
    for key, value in setting.items():
        if key.startswith(PARAMS):
            field = key.removeprefix(PARAMS)
            if field == "max_steps_in_episode":
                raise SettingError("the length of an episode is part of the task: make a task of your own for another one.")
            if not hasattr(task.params, field):
                known = [f"{PARAMS}{each}" for each in getattr(task.params, "__dataclass_fields__", {})]
                raise SettingError(unknown_name("setting", key, known))
            changes[field] = int(value) if isinstance(getattr(task.params, field), int) else value
    return dataclasses.replace(task, params=task.params.replace(**changes)) if changes else task


def _make_kernel(setting: Setting, task: Task) -> Kernel:
    name = setting.get("kernel", "rbf")
    if name == "rbf":
        return RBF(eta=setting.get("eta", task.eta))
    if name == "linear":
        return Linear()
    return KERNELS[name](length_scale=setting.get("length_scale", 1.0))


def _make_features(
    setting: Setting, kernel: Kernel, task: Task, maps: dict[Any, features.FeatureMap]
) -> features.FeatureMap | None:
    kind = setting.get("features", "none")
    if kind == "none":
        return None
    place = tuple((name, value) for name, value in setting.items() if name not in (*_CONFIG, "dtype"))
    if place not in maps:
        sizes, tolerance = (task.obs_dim, task.num_actions), setting.get("tolerance", TOLERANCE)
        if kind == "nystrom":
            maps[place] = features.nystrom(kernel, sample_states(task), task.num_actions, tolerance)
        elif kind == "linear":
            maps[place] = features.linear(kernel, *sizes)
        elif kind == "taylor":
            maps[place] = features.taylor(kernel, *sizes, tolerance)
        else:
            maps[place] = features.fourier(kernel, *sizes, setting.get("frequencies", 256))
    return maps[place]
