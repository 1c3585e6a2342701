"""Learning in rounds behind the agent's loop."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kqljax.agent.beliefs import Fitted, check_actions, compiled, in_float64
from kqljax.agent.history import SIZE, Memory
from kqljax.agent.scaling import Scaling
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
      scaling: that it was fitted with.
      ends: transitions in all at which the next round begins.
      schedule: what of a fit is due when.
    """

    player: Player
    scaling: Scaling
    ends: int
    schedule: Schedule


@dataclasses.dataclass(frozen=True)
class Rounds:
    """Learning in rounds. Like every learner it holds numbers alone; what is learned is `now`.

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
    """The field of `Beliefs` that decides when learning is over."""

    @functools.cached_property
    def _recipe(self) -> Recipe:
        # As arrays once: they are arguments of every step.
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, np.float64), self.numbers)

    def sized(self, total: int, num_steps: int) -> Rounds:
        """The learner for `num_steps` steps after `total`: itself, it needs no room."""
        return self

    def kept(self, now: Round | None) -> None:
        """What of `now` outlasts a break, or goes into a file: nothing, a new round begins."""

    @in_float64
    def choose(self, memory: Memory, obs: np.ndarray, is_moved: np.ndarray) -> Any:
        """Actions `[n]` that explore, after a fit where a round begins, and the new `now`.

        Args:
          obs: `[n, l]` raw observations.
          is_moved: `[n]` bool, whether the action will be taken.
        """
        now = memory.now
        if now is None or memory.history.total >= now.ends:
            now = self._begin(memory, len(obs))
        program, player = compiled(_choose_all), now.player
        action, new = program(self._recipe, player, now.scaling.observe(obs), is_moved)
        player = player._replace(learner=player.learner._replace(**new))
        return check_actions(np.asarray(action)), now._replace(player=player)

    def learned(self, memory: Memory, num_steps: int) -> Round:
        """`now` with the newest `num_steps` transitions: they wait for the next round."""
        return memory.now

    @in_float64
    def finished(self, memory: Memory) -> Fitted:
        """The finished policy of all transitions: what `kqljax.rounds.fit` makes of them."""
        scaling, transitions = self._transitions(memory)
        due = Due(scales=self._is_fitted(memory), finish=True, last=True)
        player = self._fit(transitions, due, 1)
        parts = player.finished.ensemble, player.finished.model
        whole = Policy(self._recipe, *parts, player.learner, player.scales)
        return Fitted(Policy(self._recipe, *parts, None, None), whole, scaling)  # type: ignore

    def _is_fitted(self, memory: Memory) -> bool:
        return memory.history.num_kept >= self.numbers.first_fit

    def _begin(self, memory: Memory, num_envs: int) -> Round:
        """A new round. Without one before, everything that can be is fitted."""
        before, count = memory.now, memory.history.total
        scaling, transitions = self._transitions(memory)
        schedule = before.schedule if before else Schedule.of(self.numbers)
        due, schedule = schedule.next(count)
        if before and not np.array_equal(np.hstack(scaling), np.hstack(before.scaling)):
            # Widths and policies that were fitted with other bounds are wrong in these.
            due = Due(self._is_fitted(memory), count >= self.numbers.own_from, last=False)
        player = self._fit(transitions, due, num_envs, before and before.player)
        return Round(player, scaling, count + schedule.steps(memory.history.num_kept), schedule)

    def _fit(
        self, transitions: Transitions, due: Due, num_envs: int, last: Player | None = None
    ) -> Player:
        # Pairs that may come in a round: its last step begins with one less, and adds a few.
        share = int(transitions.capacity * self.numbers.round_share)
        side_by_side = -num_envs % _SIDE_BY_SIDE + num_envs
        most_new = max(self.numbers.least_round, share) + side_by_side
        last = last or nobody(self._recipe, transitions, most_new)
        # Not the last learner, whose size follows the capacity: another size is no other program.
        last = last._replace(learner=None)  # type: ignore[arg-type]
        return compiled(begin, static_argnums=4)(self._recipe, transitions, last, due, most_new)

    def _transitions(self, memory: Memory) -> tuple[Scaling, Transitions]:
        scaling, rows = memory.ranges.scaling(), memory.history.ordered()
        count = memory.history.num_kept
        capacity = FIRST_CAPACITY if count <= FIRST_CAPACITY else SIZE

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
            count=np.int32(count),
            end_value=np.float64(end_value),
            num_actions=self.num_actions,
        )


def _choose_all(recipe: Recipe, player: Player, obs: jax.Array, is_moved: jax.Array) -> Any:
    """Actions `[n]`, each knowing of those before it, and what changes in the learner."""

    def one(new: dict[str, jax.Array], asked: tuple[jax.Array, jax.Array]) -> Any:
        obs, is_moved = asked
        action, after = choose(recipe, player._replace(learner=player.learner._replace(**new)), obs)
        # An action that is not taken is no pair.
        appended = {name: getattr(after.learner, name) for name in _NEW}
        return jax.tree.map(lambda x, y: jnp.where(is_moved, x, y), appended, new), action

    now = {name: getattr(player.learner, name) for name in _NEW}
    new, action = jax.lax.scan(one, now, (obs, is_moved))
    return action, new
