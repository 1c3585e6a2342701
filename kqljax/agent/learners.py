"""Which learner an agent has, and what each of them can be told."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from kqljax.agent.beliefs import Beliefs
from kqljax.agent.by_rounds import Rounds
from kqljax.agent.by_steps import Steps
from kqljax.agent.history import History
from kqljax.agent.scaling import Ranges
from kqljax.config import KQLConfig
from kqljax.errors import describe
from kqljax.kernels import RBF
from kqljax.rounds import DEFAULT, Recipe

_FIRST_HORIZON = 1000
"""What lam and beta are set for before the first call of `learn`."""


class Learner(Protocol):
    """What the agent's loop asks of a learner. `now` is what it holds between two steps, `fitted` what answers.

    Attributes:
      name: for people.
      acts_by: the field of `Beliefs` that decides in `act`.
      numbers: its `Recipe` or `KQLConfig`.
    """

    name: str
    acts_by: str

    @property
    def numbers(self) -> Any: ...

    def start(self, total: int, num_steps: int) -> None:
        """Room for `num_steps` steps after `total`."""
        ...

    def resumed(self, now: Any) -> Any:
        """What `now` becomes when `learn` is called again."""
        ...

    def choose(
        self, now: Any, history: History, ranges: Ranges, obs: np.ndarray, is_moved: np.ndarray
    ) -> tuple[np.ndarray, Any]:
        """Actions `[n]` that explore, at raw observations `[n, l]`; `is_moved` `[n]` says which of them will be taken."""
        ...

    def learned(self, now: Any, history: History, num_steps: int) -> Any:
        """What becomes of `now` by the newest `num_steps` transitions."""
        ...

    def finished(self, now: Any, history: History, ranges: Ranges) -> Any:
        """What answers when learning is over."""
        ...

    def act(self, fitted: Any, obs: np.ndarray, is_random: bool, number: int) -> np.ndarray:
        """Actions `[n]` that do not explore."""
        ...

    def completed(self, fitted: Any, history: History, ranges: Ranges) -> Any:
        """`fitted` with all that `beliefs` needs: a file keeps less."""
        ...

    def beliefs(self, fitted: Any, obs: np.ndarray) -> Beliefs:
        """`[n, A]` each, of a completed `fitted`."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """What `of_file` makes it from."""
        ...

    def kept(self, fitted: Any) -> Any:
        """What a file keeps of `fitted`."""
        ...

    def restored(self, kept: Any) -> tuple[Any, Any]:
        """`fitted` and `now` from what a file kept."""
        ...


def make_learner(
    recipe: Any,
    *,
    obs_dim: int,
    num_actions: int,
    ranges: Ranges,
    end_value: float | None,
    eta: float,
    seed: int,
    given: Mapping[str, Any],
) -> Learner:
    """The learner that `recipe` names.

    Args:
      eta: width of the paper's kernel.
      given: arguments of Algorithm 1 that the user gave.
    """
    if isinstance(recipe, str) and recipe == "default":
        recipe = DEFAULT
    if isinstance(recipe, Recipe):
        if given:
            raise ValueError(f"{' and '.join(given)}: {_INSTEAD[next(iter(given))]}")
        return Rounds(recipe, obs_dim, num_actions, ranges, end_value)
    if isinstance(recipe, KQLConfig):
        taken = [*given, *(["end_value"] if end_value is not None else [])]
        if taken:
            where = "terminal_value" if taken == ["end_value"] else "the config"
            raise ValueError(f"{' and '.join(taken)}: a KQLConfig says these itself; set them in {where}.")
        if recipe.num_actions != num_actions:
            raise ValueError(f"the KQLConfig has num_actions={recipe.num_actions}, the agent has {num_actions} actions.")
        return Steps(recipe, obs_dim, ranges, seed, is_sized=True)
    if not (isinstance(recipe, str) and recipe == "paper"):
        raise ValueError(
            f"recipe must be 'default', 'paper', a kqljax.rounds.Recipe or a kqljax.KQLConfig, got {describe(recipe)}."
        )
    Steps.check_ranges(ranges)
    share = ranges.scaling().end_value if end_value is None else end_value
    numbers: dict[str, Any] = {"kernel": RBF(eta=eta), "num_actions": num_actions, "horizon": _FIRST_HORIZON, **given}
    config = KQLConfig(**numbers)
    # Only now is it known that gamma is a number below 1.
    config = dataclasses.replace(config, terminal_value=share / (1 - config.gamma))
    return Steps(config, obs_dim, ranges, seed, is_sized="horizon" in given)


def of_file(found: dict[str, Any], obs_dim: int, num_actions: int, ranges: Ranges, seed: int) -> Learner:
    """The learner of a saved agent."""
    if isinstance(found["numbers"], Recipe):
        return Rounds(found["numbers"], obs_dim, num_actions, ranges, found["end_value"])
    return Steps(found["numbers"], obs_dim, ranges, seed, found["is_sized"])


_REPLACE = "recipe=dataclasses.replace(kqljax.rounds.DEFAULT, "
_INSTEAD = {
    "kernel": "learning in rounds fits its kernel to the transitions. Give recipe='paper' too, or leave it out.",
    "gamma": f"learning in rounds has two discounts: give {_REPLACE}gamma=0.95, finish_gamma=0.98), or recipe='paper' too.",
    "features": f"learning in rounds chooses its own centres: give {_REPLACE}centres=256), or recipe='paper' too.",
    "horizon": "no number of rounds depends on the length of a run: leave it out, or give recipe='paper' too.",
}
"""What to say to who gives rounds an argument of Algorithm 1."""
