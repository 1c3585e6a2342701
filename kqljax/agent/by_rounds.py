"""Learning in rounds behind the agent's loop."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kqljax.agent.beliefs import Fitted, check_actions, compiled, in_float64
from kqljax.agent.history import SIZE, History
from kqljax.agent.scaling import Ranges, Scaling
from kqljax.rounds import Policy, Recipe, Transitions
from kqljax.rounds.round import Due, Player, begin, choose, nobody
from kqljax.rounds.schedule import Schedule

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


@dataclasses.dataclass(frozen=True)
class Rounds:
    """Learning in rounds; see `kqljax.agent.agent.Learner`.

    Attributes:
      numbers: the recipe.
      num_actions: A.
      end_value: what an end is worth, as a share; None for a raw reward of 0 for ever.
    """

    numbers: Recipe
    num_actions: int
    end_value: float | None

    name: ClassVar[str] = "rounds"
    acts_by: ClassVar[str] = "mean"

    @functools.cached_property
    def _recipe(self) -> Recipe:
        # As arrays once: they are arguments of every step.
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, np.float64), self.numbers)

    def sized(self, total: int, num_steps: int) -> Rounds:
        """Rounds need no room of their own."""
        return self

    def kept(self, now: Round | None) -> None:
        """A break ends the round."""

    @in_float64
    def choose(
        self,
        now: Round | None,
        history: History,
        ranges: Ranges,
        obs: np.ndarray,
        is_moved: np.ndarray,
    ) -> tuple[np.ndarray, Round]:
        """Actions `[n]` at raw observations `[n, l]`, after a fit where a round begins."""
        if now is None or history.total >= now.ends:
            now = self._begin(now, history, ranges, len(obs))
        program, player = compiled(_choose_all), now.player
        action, new = program(self._recipe, player, now.scaling.observe(obs), is_moved)
        player = player._replace(learner=player.learner._replace(**new))
        return check_actions(np.asarray(action)), now._replace(player=player)

    def learned(self, now: Round, history: History, num_steps: int) -> Round:
        """Transitions wait for the next round."""
        return now

    @in_float64
    def finished(self, now: Round | None, history: History, ranges: Ranges) -> Fitted:
        """The finished policy of all transitions: what `kqljax.rounds.fit` makes of them."""
        scaling, transitions = self._transitions(history, ranges)
        is_fitted = history.num_kept >= self.numbers.first_fit
        player = self._fit(transitions, Due(scales=is_fitted, finish=True, last=True), 1)
        ensemble, model = player.finished.ensemble, player.finished.model
        policy = Policy(self._recipe, ensemble, model, player.learner, player.scales)
        acting = dataclasses.replace(policy, learner=None, scales=None)  # type: ignore[arg-type]
        return Fitted(acting, policy, scaling)

    def _begin(
        self, before: Round | None, history: History, ranges: Ranges, num_envs: int
    ) -> Round:
        """A new round. Without one before, everything that can be is fitted."""
        scaling, transitions = self._transitions(history, ranges)
        schedule = Schedule.of(self.numbers) if before is None else before.schedule
        due, schedule = schedule.next(history.total)
        same = jax.tree.map(np.array_equal, scaling, scaling if before is None else before.scaling)
        if not jax.tree.all(same):
            # Widths and policies that were fitted with other bounds are wrong in these.
            is_fitted = history.num_kept >= self.numbers.first_fit
            due = Due(scales=is_fitted, finish=history.total >= self.numbers.own_from, last=False)
        player = self._fit(transitions, due, num_envs, None if before is None else before.player)
        ends = history.total + schedule.steps(history.num_kept)
        return Round(player, scaling, ends, schedule)

    def _fit(
        self, transitions: Transitions, due: Due, num_envs: int, last: Player | None = None
    ) -> Player:
        # Pairs that may come in a round: its last step begins with one less, and adds a few.
        least, share = self.numbers.least_round, self.numbers.round_share
        side_by_side = -num_envs % _SIDE_BY_SIDE + num_envs
        most_new = max(least, int(transitions.capacity * share)) + side_by_side
        last = nobody(self._recipe, transitions, most_new) if last is None else last
        # Not the last learner, whose size follows the capacity: another size is no other program.
        taken = last._replace(learner=None)  # type: ignore[arg-type]
        return compiled(begin, static_argnums=4)(self._recipe, transitions, taken, due, most_new)

    def _transitions(self, history: History, ranges: Ranges) -> tuple[Scaling, Transitions]:
        scaling, rows = ranges.scaling(), history.ordered()
        capacity = FIRST_CAPACITY if history.num_kept <= FIRST_CAPACITY else SIZE

        def column(values: np.ndarray, dtype: Any = np.float64) -> np.ndarray:
            made = np.zeros((capacity, *values.shape[1:]), dtype)
            made[: len(values)] = values
            return made

        end_value = scaling.end_value if self.end_value is None else self.end_value
        return scaling, Transitions(
            obs=column(scaling.observe(rows["obs"])),
            action=column(rows["action"], np.int32),
            reward=column(scaling.pay(rows["reward"])),
            next_obs=column(scaling.observe(rows["next_obs"])),
            discount=column(~rows["terminated"]),
            is_first=column(rows["is_first"], bool),
            is_last=column(rows["is_last"], bool),
            count=np.int32(history.num_kept),
            end_value=np.float64(end_value),
            num_actions=self.num_actions,
        )


def _choose_all(recipe: Recipe, player: Player, obs: jax.Array, is_moved: jax.Array) -> Any:
    """Actions `[n]`, each knowing of those before it, and what changes in the learner."""

    def one(new: dict[str, jax.Array], asked: tuple[jax.Array, jax.Array]) -> Any:
        obs, is_moved = asked
        action, after = choose(recipe, player._replace(learner=player.learner._replace(**new)), obs)
        # An action that is not taken is no pair.
        return {
            name: jnp.where(is_moved, getattr(after.learner, name), new[name]) for name in _NEW
        }, action

    now = {name: getattr(player.learner, name) for name in _NEW}
    new, action = jax.lax.scan(one, now, (obs, is_moved))
    return action, new
