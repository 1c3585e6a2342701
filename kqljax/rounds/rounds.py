"""Learning in rounds as a learner of `kqljax.train`."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from kqljax._arrays import register
from kqljax.rounds.fit import check_recipe, fit, make_fit, require_float64
from kqljax.rounds.learner import append, query
from kqljax.rounds.policy import Policy
from kqljax.rounds.recipe import Recipe
from kqljax.rounds.round import Due, Player, begin, choose, nobody
from kqljax.rounds.schedule import schedule
from kqljax.rounds.transitions import Transitions
from kqljax.state import Transition
from kqljax.tasks import Task

Array = jax.Array


class RoundsInfo(NamedTuple):
    """What happened at a step of learning in rounds.

    Attributes:
      is_round: `[]` bool, a round began after this step: everything was fitted anew.
      backups: `[]` int32, of the learner's last fit.
      acts_finished: `[]` bool, the next action is the finished policy's, not optimism's.
      optimism_gap: `[]` of the finished policy that was fitted last; infinite before the first.
      is_finite: `[]` bool, every number of the last fit was finite.
    """

    is_round: Array
    backups: Array
    acts_finished: Array
    optimism_gap: Array
    is_finite: Array

    @property
    def is_sound(self) -> Array:
        """The step was learned from and every number was finite."""
        return self.is_finite


class Plan(NamedTuple):
    """What is due after each number of transitions, known before the run; `[N + 1]` bool each.

    Attributes:
      begins: a round begins.
      due: `Due`, what it fits.
    """

    begins: Array
    due: Due


class RoundsState(NamedTuple):
    """What learning in rounds holds between two steps.

    Attributes:
      transitions: everything that happened, in order.
      player: what acts in this round.
      plan: of the run.
    """

    transitions: Transitions
    player: Player
    plan: Plan


@register
@dataclasses.dataclass(frozen=True)
class Rounds:
    """Keep the transitions, fit everything anew now and then, act until the next round.

    `kqljax.train` makes it of a `Recipe`. One compiled body serves all rounds; its work grows with
    the transitions that are stored and with the rank of the kernel. On a CPU compile with
    `jax.jit(..., compiler_options=rounds.CPU_COMPILER_OPTIONS)`.

    Examples:
      >>> from kqljax import rounds
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> run = jax.jit(lambda key: kqljax.train(key, task, rounds.DEFAULT, 40))(jax.random.key(0))
      >>> run.state.transitions.obs.shape, run.log.info.is_round.sum().item(), bool(run.is_sound)
      ((40, 2), 8, True)
    """

    recipe: Recipe

    def stages(self, num_steps: int) -> tuple[int, ...]:
        return (num_steps,)

    def begin(self, key: Array, task: Task, capacity: int, dtype: Any) -> RoundsState:
        require_float64()
        check_recipe(self.recipe)
        if dtype is not None and np.dtype(dtype) != np.dtype("float64"):
            raise ValueError(
                f"learning in rounds is done in float64, got dtype={dtype}. Leave it out."
            )
        rounds = schedule(self.recipe, capacity)
        begins, scales, finish, last = np.zeros((4, capacity + 1), bool)
        for each in rounds:
            at, due = each.begins_at, each.due
            begins[at], scales[at], finish[at], last[at] = True, due.scales, due.finish, due.last
        plan = Plan(jnp.asarray(begins), Due(*map(jnp.asarray, (scales, finish, last))))
        end_value = (0.0 - task.reward_low) / (task.reward_high - task.reward_low)
        transitions = Transitions.empty(capacity, task.obs_dim, task.num_actions, end_value)
        most_new = max(each.steps for each in rounds)
        # A fit to no transitions: it knows nothing, as the arrays of zeros do.
        return RoundsState(transitions, nobody(self.recipe, transitions, most_new), plan)

    def act(self, key: Array, state: RoundsState, obs: Array) -> tuple[Array, RoundsState]:
        # All actions are worth the same, and the first of them is taken.
        action, player = jnp.int32(0), state.player
        asked = query(self.recipe, player.learner, player.scales, obs)
        player = player._replace(learner=append(self.recipe, player.learner, asked, action))
        return action, state._replace(player=player)

    def observe(
        self, key: Array, state: RoundsState, transition: Transition, truncated: Array, obs: Array
    ) -> tuple[RoundsState, Array, RoundsInfo]:
        recipe, before = self.recipe, state.player
        transitions = state.transitions.append(transition, truncated)
        is_due, due = jax.tree.map(lambda flags: flags[transitions.count], state.plan)
        most_new = before.learner.new_action.shape[0]
        player = lax.cond(
            is_due,
            lambda: begin(recipe, transitions, before, due, most_new),
            lambda: before,
        )
        action, player = choose(recipe, player, obs)
        info = RoundsInfo(
            is_due,
            player.backups,
            player.acts_finished & ~due.last,
            player.finished.optimism_gap,
            player.is_finite,
        )
        return RoundsState(transitions, player, state.plan), action, info

    def policy(self, state: RoundsState, is_end: bool) -> Policy:
        """The finished policy; before the end of the run everything is fitted for it once more."""
        if is_end:
            return make_fit(self.recipe, state.player).policy
        return fit(None, self.recipe, state.transitions).policy
