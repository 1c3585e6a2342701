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

from kqljax.checks import whole_number
from kqljax.lab.settings import Case, LabError, Recipes, Setting, make_cases
from kqljax.tasks import Task

_REMEDIES = {
    "seeds": "It is the number of seeds of each setting.",
    "first_seed": "It is the first seed.",
    "steps": "It is the number of environment steps of training.",
    "episodes": "It is the number of evaluation episodes.",
    "curve_points": "0 makes no learning curves.",
    "curve_episodes": "It is the number of evaluation episodes at each point of a curve.",
    "chunk": "It is the number of runs side by side.",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """Settings times seeds.

    Attributes:
      settings: flat names and values, see `expand_grid`.
      seeds, first_seed: the seeds are first_seed, first_seed + 1, and so on.
      steps: environment steps of training.
      episodes: evaluation episodes after training.
      curve_points: points of a learning curve, evenly spread over the steps; 0 for none.
      curve_episodes: evaluation episodes at each of them.
      chunk: runs side by side at most; by default as many as fit into the memory.
      tasks: tasks of one's own, by the name that settings call them.
      recipes: learners of one's own, by the name that settings call their recipe: functions
        (task, num_steps, **numbers) -> learner. The setting "name.number" gives a number.
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
        for name, remedy in _REMEDIES.items():
            value, least = getattr(self, name), 0 if name in ("first_seed", "curve_points") else 1
            if value is not None:
                try:
                    whole_number(f"--{name.replace('_', '-')}", value, least, remedy)
                except ValueError as error:
                    raise LabError(str(error)) from None

    @property
    def names(self) -> list[str]:
        """Names that any setting gives."""
        return list(dict.fromkeys(name for setting in self.settings for name in setting))

    @property
    def curve_steps(self) -> tuple[int, ...]:
        """Steps after which a learning curve has a point; the last is the end."""
        points = self.curve_points
        return tuple(sorted({-(-self.steps * (i + 1) // points) for i in range(points)}))

    @property
    def seed_list(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)

    def run_name(self, setting: Setting, seed: int) -> str:
        """What tells a run from every other: its setting, its seed, and the sizes of the sweep."""
        curve = [self.curve_points, self.curve_episodes] if self.curve_points else []
        sizes = [self.steps, self.episodes, *curve]
        return hashlib.sha256(
            json.dumps([setting, seed, sizes], sort_keys=True).encode()
        ).hexdigest()[:20]


class Run(NamedTuple):
    """One run: the position of its setting in the group, and its seed."""

    place: int
    seed: int


@dataclasses.dataclass(frozen=True)
class Job:
    """A group of settings whose tasks and learners differ in numbers alone, so that one compile serves all.

    Only names and numbers: a process of a cluster makes tasks, learners and programs itself.

    Attributes:
      name: of this group in this call of `run_sweep`; jobs of one name are the same job.
      positions: of its settings in the sweep.
      sweep: the sweep with the settings of this group alone.
    """

    name: str
    positions: tuple[int, ...] = dataclasses.field(compare=False)
    sweep: Sweep = dataclasses.field(compare=False)

    def cases(self) -> list[Case]:
        return make_cases(
            self.sweep.settings, self.sweep.steps, self.sweep.tasks, self.sweep.recipes
        )

    def all_runs(self) -> list[Run]:
        return [
            Run(place, seed)
            for place in range(len(self.positions))
            for seed in self.sweep.seed_list
        ]


def make_jobs(sweep: Sweep, name: str) -> list[Job]:
    """The settings in groups, in the order of their first members."""
    members: dict[Any, list[int]] = {}
    for position, case in enumerate(
        make_cases(sweep.settings, sweep.steps, sweep.tasks, sweep.recipes)
    ):
        leaves, tree = jax.tree.flatten((case.task, case.learner))
        shapes = tuple((np.shape(leaf), str(jnp.result_type(leaf))) for leaf in leaves)
        members.setdefault((case.dtype, tree, shapes), []).append(position)
    return [
        Job(
            f"{name}-{number}",
            tuple(positions),
            dataclasses.replace(
                sweep, settings=[sweep.settings[position] for position in positions]
            ),
        )
        for number, positions in enumerate(members.values())
    ]


class Stacked(NamedTuple):
    """The cases of a group as one: what they share once, what differs in a table with a row a setting.

    Attributes:
      tree: structure of (task, learner).
      fixed: leaves that are the same in all settings; None at the places of the others.
      varying: leaves that differ, `[settings, ...]`; None at the places of the others.
      dtype: of the states.
    """

    tree: Any
    fixed: tuple[Any, ...]
    varying: tuple[Any, ...]
    dtype: str

    def case(self, fixed: Sequence[Any], varying: Sequence[Any], place: Any) -> tuple[Any, Any]:
        """(task, learner) at a place of the group, from the leaves, which may be traced."""
        leaves = [
            table[place] if same is None else same
            for same, table in zip(fixed, varying, strict=True)
        ]
        return jax.tree.unflatten(self.tree, leaves)


def stack(cases: Sequence[Case]) -> Stacked:
    """Cases of one group as one."""
    columns = list(
        zip(*(jax.tree.leaves((case.task, case.learner)) for case in cases), strict=True)
    )
    # As they are where they are the same: a number then stays a number, as in a run of its own.
    is_same = [all(np.array_equal(leaf, column[0]) for leaf in column[1:]) for column in columns]
    return Stacked(
        jax.tree.structure((cases[0].task, cases[0].learner)),
        tuple(column[0] if same else None for column, same in zip(columns, is_same, strict=True)),
        tuple(
            None if same else np.stack(column)
            for column, same in zip(columns, is_same, strict=True)
        ),
        cases[0].dtype,
    )
