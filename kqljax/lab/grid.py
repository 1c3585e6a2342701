"""What a sweep is, and its settings in groups that share one compile."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kqljax.lab.settings import Case, LabError, Recipes, Setting, make_cases
from kqljax.tasks import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """Settings times seeds.

    Attributes:
      settings: names and values, see `expand_grid`.
      seeds, first_seed: the seeds are first_seed, first_seed + 1, and so on.
      steps: environment steps of training.
      episodes: evaluation episodes after training.
      curve_points: points of a learning curve, evenly spread over the steps; 0 for none.
      curve_episodes: evaluation episodes at each of them.
      chunk: runs side by side at most; by default as many as fit into the memory.
      tasks: tasks of one's own, by the name that settings call them.
      recipes: learners of one's own, by the name of their recipe: functions
        (task, num_steps, **numbers) -> learner, see `kqljax.train`. The setting "name.number"
        gives a number.
    """

    settings: Sequence[Setting]
    seeds: int = 8
    first_seed: int = 0
    steps: int = 1000
    episodes: int = 100
    curve_points: int = 0
    curve_episodes: int = 20
    chunk: int | None = None
    tasks: Mapping[str, Task] = dataclasses.field(default_factory=dict)
    recipes: Recipes = dataclasses.field(default_factory=dict)

    def validate(self) -> None:
        """Raises LabError where the sweep cannot be run."""
        if not self.settings:
            raise LabError("a sweep needs at least one setting.")
        sizes = (
            "seeds",
            "first_seed",
            "steps",
            "episodes",
            "curve_points",
            "curve_episodes",
            "chunk",
        )
        for name in sizes:
            value, least = getattr(self, name), 0 if name in ("first_seed", "curve_points") else 1
            if name == "chunk" and value is None:
                continue
            if not isinstance(value, int) or value < least:
                kind = f"at least {least}" if isinstance(value, int) else "a whole number"
                option = f"--{name.replace('_', '-')}"
                raise LabError(f"{option} must be {kind}, got {value!r}.")

    @property
    def names(self) -> list[str]:
        """Names that any setting gives."""
        return list(dict.fromkeys(name for setting in self.settings for name in setting))

    @property
    def seed_list(self) -> range:
        """The seeds of each setting."""
        return range(self.first_seed, self.first_seed + self.seeds)

    @property
    def curve_steps(self) -> tuple[int, ...]:
        """Steps after which a learning curve has a point; the last is the end."""
        points = self.curve_points
        return tuple(sorted({-(-self.steps * (i + 1) // points) for i in range(points)}))

    def run_name(self, setting: Setting, seed: int) -> str:
        """What tells a run from every other: setting, seed, steps and episodes."""
        curve = [self.curve_points, self.curve_episodes] if self.curve_points else []
        about = [setting, seed, self.steps, self.episodes, *curve]
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:20]


class Run(NamedTuple):
    """A run: the position of its setting in the group, and its seed."""

    place: int
    seed: int


@dataclasses.dataclass(frozen=True)
class Group:
    """Settings whose tasks and learners differ in numbers alone, so that one compile serves all.

    It holds names and numbers: a worker of a cluster makes tasks, learners and programs itself.

    Attributes:
      name: of this group in this call of `run_sweep`; groups of one name are the same.
      sweep: the sweep, with the settings of this group alone.
    """

    name: str
    sweep: Sweep = dataclasses.field(compare=False)

    def runs(self) -> list[Run]:
        """All runs, setting by setting."""
        places = range(len(self.sweep.settings))
        return [Run(place, seed) for place in places for seed in self.sweep.seed_list]

    def run_name(self, run: Run) -> str:
        return self.sweep.run_name(self.sweep.settings[run.place], run.seed)

    def cases(self) -> list[Case]:
        return _cases(self.sweep)


def make_groups(sweep: Sweep, name: str) -> list[Group]:
    """The settings in groups, in the order of their first members."""
    members: dict[Any, list[Setting]] = {}
    for setting, case in zip(sweep.settings, _cases(sweep), strict=True):
        leaves, tree = jax.tree.flatten((case.task, case.learner))
        shapes = tuple((np.shape(leaf), str(jnp.result_type(leaf))) for leaf in leaves)
        members.setdefault((case.dtype, tree, shapes), []).append(setting)
    return [
        Group(f"{name}-{number}", dataclasses.replace(sweep, settings=settings))
        for number, settings in enumerate(members.values())
    ]


def _cases(sweep: Sweep) -> list[Case]:
    return make_cases(sweep.settings, sweep.steps, sweep.tasks, sweep.recipes)


class Table(NamedTuple):
    """The numbers of a group's tasks and learners, what they share once.

    Attributes:
      shared: leaves that are the same in all settings; None at the places of the others.
      own: leaves that differ, `[settings, ...]`; None at the places of the others.
    """

    shared: tuple[Any, ...]
    own: tuple[Any, ...]

    @classmethod
    def of(cls, cases: Sequence[Case]) -> Table:
        """The table of the cases of a group."""
        columns = zip(*(jax.tree.leaves((case.task, case.learner)) for case in cases), strict=True)
        shared, own = [], []
        for column in columns:
            is_same = all(np.array_equal(leaf, column[0]) for leaf in column[1:])
            # As it is: a number then stays a number, as in a run of its own.
            shared.append(column[0] if is_same else None)
            own.append(None if is_same else np.stack(column))
        return cls(tuple(shared), tuple(own))

    def row(self, place: Any) -> list[Any]:
        """The leaves of one case; the place may be traced."""
        return [b[place] if a is None else a for a, b in zip(self.shared, self.own, strict=True)]
