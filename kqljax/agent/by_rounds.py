"""Learning in rounds behind the agent's loop.

Everything runs in float64, whatever jax has enabled: the calls are made inside `jax.enable_x64(True)`, which holds for this
thread and these calls alone.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kqljax.agent.beliefs import Beliefs, check_actions, padded
from kqljax.agent.history import SIZE, History
from kqljax.agent.scaling import Ranges, Scaling
from kqljax.rounds import CPU_COMPILER_OPTIONS, Policy, Recipe, Transitions
from kqljax.rounds.ensemble import Ensemble
from kqljax.rounds.learner import Learner
from kqljax.rounds.model import Model
from kqljax.rounds.policy import finished_action
from kqljax.rounds.round import Due, Player, begin, choose, nobody
from kqljax.rounds.schedule import Schedule
from kqljax.rounds.widths import Scales

FIRST_CAPACITY = 1024
"""Rows of the first compiled fit; the second has room for all that a history keeps."""

_SIDE_BY_SIDE = 16
"""Environments side by side come in multiples of this: fewer share the programs of one."""

_NEW = ("new_place", "new_action", "new_features", "new_whiten", "num_new")
"""What of a learner changes from step to step."""


class Round(NamedTuple):
    """What there is between two rounds.

    Attributes:
      player: what acts.
      scaling: the scaling that it was fitted with.
      ends: transitions in all at which the next round begins.
      schedule: what of a fit is due when.
    """

    player: Player
    scaling: Scaling
    ends: int
    schedule: Schedule


class Fitted(NamedTuple):
    """A finished policy.

    Attributes:
      ensemble, model: what acts.
      optimism: the recipe's optimistic learner and its scales; None after a file was read.
      scaling: the scaling that all was fitted with.
    """

    ensemble: Ensemble
    model: Model
    optimism: tuple[Learner, Scales] | None
    scaling: Scaling


class Rounds:
    """Learning in rounds. Nothing in it changes; what is learned are `Round` and `Fitted`."""

    name = "rounds"
    acts_by = "mean"

    def __init__(self, recipe: Recipe, obs_dim: int, num_actions: int, ranges: Ranges, end_value: float | None) -> None:
        recipe.validate()
        self.numbers, self.obs_dim, self.num_actions, self.end_value = recipe, obs_dim, num_actions, end_value
        if ranges.is_reward_fixed:
            self._end_value(ranges.scaling())
        with jax.enable_x64(True):
            # As arrays once: they are arguments of every step.
            self._recipe = jax.tree.map(jnp.asarray, recipe)

    def _end_value(self, scaling: Scaling) -> float:
        return scaling.end_value if self.end_value is None else self.end_value

    def start(self, total: int, num_steps: int) -> None:
        """A run needs no room of its own."""

    def resumed(self, now: Round | None) -> None:
        """Nothing is left of the round before: an agent goes on after a break as it does after a file."""

    def choose(
        self, now: Round | None, history: History, ranges: Ranges, obs: np.ndarray, is_moved: np.ndarray
    ) -> tuple[np.ndarray, Round]:
        """Actions `[n]` at raw observations `[n, l]`, after a fit where a round begins."""
        with jax.enable_x64(True):
            if now is None or history.total >= now.ends:
                now = self._begin(now, history, ranges, len(obs))
            player = now.player
            action, new = _programs().choose(self._recipe, player, now.scaling.observe(obs), is_moved)
            player = player._replace(learner=player.learner._replace(**new))
            return check_actions(np.asarray(action)), now._replace(player=player)

    def learned(self, now: Round, history: History, num_steps: int) -> Round:
        """Transitions wait for the next round."""
        return now

    def _begin(self, before: Round | None, history: History, ranges: Ranges, num_envs: int) -> Round:
        """A new round. Without one before, everything that can be is fitted."""
        scaling, transitions = self._transitions(history, ranges)
        schedule = Schedule.of(self.numbers) if before is None else before.schedule
        due, schedule = schedule.next(history.total)
        most_new = self._most_new(transitions.capacity, num_envs)
        if before is not None and not _same(before.scaling, scaling):
            # Widths and policies that were fitted with other bounds are wrong in these.
            due = Due(
                scales=history.num_kept >= self.numbers.first_fit, finish=history.total >= self.numbers.own_from, last=False
            )
        last = nobody(self._recipe, transitions, most_new) if before is None else before.player
        player = _programs().begin(self._recipe, transitions, _taken_over(last), due, most_new)
        steps = schedule.steps(history.num_kept)
        return Round(player, scaling, history.total + steps, schedule)

    def _most_new(self, capacity: int, num_envs: int) -> int:
        """Pairs that may come in a round. The last step of it begins with one less than there are steps, and adds a few."""
        side_by_side = -num_envs % _SIDE_BY_SIDE + num_envs
        return max(self.numbers.least_round, int(capacity * self.numbers.round_share)) + side_by_side

    def _transitions(self, history: History, ranges: Ranges) -> tuple[Scaling, Transitions]:
        scaling, rows = ranges.scaling(), history.ordered()
        capacity = FIRST_CAPACITY if history.num_kept <= FIRST_CAPACITY else SIZE

        def column(values: np.ndarray, dtype: Any = np.float64) -> np.ndarray:
            made = np.zeros((capacity, *values.shape[1:]), dtype)
            made[: len(values)] = values
            return made

        return scaling, Transitions(
            obs=column(scaling.observe(rows["obs"])),
            action=column(rows["action"], np.int32),
            reward=column(scaling.pay(rows["reward"])),
            next_obs=column(scaling.observe(rows["next_obs"])),
            discount=column(~rows["terminated"]),
            is_first=column(rows["is_first"], bool),
            is_last=column(rows["is_last"], bool),
            count=np.int32(history.num_kept),
            end_value=np.float64(self._end_value(scaling)),
            num_actions=self.num_actions,
        )

    def finished(self, now: Round | None, history: History, ranges: Ranges) -> Fitted:
        """The finished policy of all transitions: what `kqljax.rounds.fit` makes of them."""
        with jax.enable_x64(True):
            scaling, transitions = self._transitions(history, ranges)
            most_new = self._most_new(transitions.capacity, 1)
            due = Due(scales=history.num_kept >= self.numbers.first_fit, finish=True, last=True)
            last = nobody(self._recipe, transitions, most_new)
            player = _programs().begin(self._recipe, transitions, _taken_over(last), due, most_new)
            found = player.finished
            return Fitted(found.ensemble, found.model, (player.learner, player.scales), scaling)

    def act(self, fitted: Fitted, obs: np.ndarray, is_random: bool, number: int) -> np.ndarray:
        """Actions `[n]` of the finished policy at raw observations `[n, l]`. It has no randomness."""
        with jax.enable_x64(True):
            rows = padded(fitted.scaling.observe(obs))
            action = _programs().act(self._recipe, fitted.ensemble, fitted.model, rows)
            return check_actions(np.asarray(action)[: len(obs)])

    def completed(self, fitted: Fitted, history: History, ranges: Ranges) -> Fitted:
        """With its optimism, which no file keeps: it is ten times as large as what acts."""
        if fitted.optimism is not None:
            return fitted
        return fitted._replace(optimism=self.finished(None, history, ranges).optimism)

    def beliefs(self, fitted: Fitted, obs: np.ndarray) -> Beliefs:
        """`[n, A]` each at raw observations `[n, l]`."""
        assert fitted.optimism is not None
        with jax.enable_x64(True):
            policy = Policy(self._recipe, fitted.ensemble, fitted.model, *fitted.optimism)
            found = _programs().values(policy, padded(fitted.scaling.observe(obs)))
            return Beliefs(*(np.asarray(each)[: len(obs)] for each in found))

    def as_dict(self) -> dict[str, Any]:
        """What `learners.of_file` makes it from."""
        return {"numbers": self.numbers, "end_value": self.end_value}

    def kept(self, fitted: Fitted) -> Fitted:
        """What acts."""
        return fitted._replace(optimism=None)

    def restored(self, kept: Fitted | None) -> tuple[Fitted | None, None]:
        """What acts, and no round: learning goes on with a new one."""
        return kept, None


class _Programs(NamedTuple):
    begin: Any
    choose: Any
    act: Any
    values: Any


@functools.cache
def _programs() -> _Programs:
    """Compiled once in a process for each shape of the arguments, whatever agent asks."""
    options = CPU_COMPILER_OPTIONS if jax.default_backend() == "cpu" else None
    jit = functools.partial(jax.jit, compiler_options=options)

    def choose_all(
        recipe: Recipe, player: Player, obs: jax.Array, is_moved: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        def one(new: dict[str, jax.Array], asked: tuple[jax.Array, jax.Array]) -> tuple[dict[str, jax.Array], jax.Array]:
            obs, is_moved = asked
            action, after = choose(recipe, player._replace(learner=player.learner._replace(**new)), obs)
            # An action that is not taken is no pair.
            return {name: jnp.where(is_moved, getattr(after.learner, name), new[name]) for name in _NEW}, action

        new, action = jax.lax.scan(one, {name: getattr(player.learner, name) for name in _NEW}, (obs, is_moved))
        return action, new

    return _Programs(
        begin=jit(begin, static_argnums=4),
        choose=jit(choose_all),
        act=jit(finished_action),
        values=jit(lambda policy, obs: policy.values(obs)),
    )


def _taken_over(player: Player) -> Player:
    """What a round takes over: not the learner, whose size follows the capacity, so that another size is no other program."""
    return player._replace(learner=None)  # type: ignore[arg-type]


def _same(one: Scaling, other: Scaling) -> bool:
    return bool(jax.tree.all(jax.tree.map(np.array_equal, one, other)))
