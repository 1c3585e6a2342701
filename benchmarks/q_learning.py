"""Tabular Q-learning with epsilon-greedy exploration, a learner for tasks with one-hot states."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from kqljax._arrays import register
from kqljax.state import Transition
from kqljax.tasks import Task

Array = jax.Array


@register
@dataclasses.dataclass(frozen=True)
class GreedyTable:
    """The greedy policy of a table `[S, A]`."""

    q: Any

    def begin(self, key: Array) -> tuple[()]:
        return ()

    def act(self, key: Array, memory: Any, obs: Array) -> tuple[Array, Any]:
        """Actions `[]` or `[n]` at one-hot states `[S]` or `[n, S]`."""
        best = jnp.argmax(self.q[jnp.argmax(obs, axis=-1)], axis=-1)
        return best.astype(jnp.int32), memory


class Info(NamedTuple):
    """`state` `[]`, the state that was left, and `is_sound` `[]` bool."""

    state: Array
    is_sound: Array


@register
@dataclasses.dataclass(frozen=True, kw_only=True)
class QLearning:
    """The learner; its state is the table `[S, A]`. Rewards are the normalised ones.

    Attributes:
      gamma: discount factor.
      learning_rate: how far a value moves to its target.
      epsilon: share of random actions.
      initial_value: of every pair; 1 / (1 - gamma) is optimistic.
    """

    gamma: Any = 0.95
    learning_rate: Any = 0.5
    epsilon: Any = 0.1
    initial_value: Any = 0.0

    def stages(self, num_steps: int) -> tuple[int, ...]:
        return (num_steps,)

    def begin(self, key: Array, task: Task, capacity: int, dtype: Any) -> Array:
        shape = task.obs_dim, task.num_actions
        return jnp.full(shape, self.initial_value, jnp.zeros((), dtype).dtype)

    def act(self, key: Array, q: Array, obs: Array) -> tuple[Array, Array]:
        """Ties are broken at random."""
        explore_key, draw_key = jax.random.split(key)
        values = q[jnp.argmax(obs)]
        is_allowed = (values == jnp.max(values)) | jax.random.bernoulli(explore_key, self.epsilon)
        logits = jnp.where(is_allowed, 0.0, -jnp.inf)
        return jax.random.categorical(draw_key, logits).astype(jnp.int32), q

    def observe(
        self, key: Array, q: Array, transition: Transition, truncated: Array, obs: Array
    ) -> tuple[Array, Array, Info]:
        place, action = jnp.argmax(transition.obs), transition.action
        after = jnp.max(q[jnp.argmax(transition.next_obs)])
        target = transition.reward + jnp.where(transition.terminated, 0.0, self.gamma * after)
        q = q.at[place, action].add(self.learning_rate * (target - q[place, action]))
        return q, self.act(key, q, obs)[0], Info(place, jnp.isfinite(target))

    def policy(self, q: Array, is_end: bool) -> GreedyTable:
        return GreedyTable(q)
