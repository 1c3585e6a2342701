"""The uniformly random policy, the floor of every comparison."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from kqljax._arrays import register
from kqljax.tasks import Task

Array = jax.Array


@register
@dataclasses.dataclass(frozen=True)
class RandomPolicy:
    """Draws every action with the same probability.

    Attributes:
      num_actions: `[]` int32, A.
    """

    num_actions: Any

    def begin(self, key: Array) -> tuple[()]:
        """What is remembered within an episode: nothing."""
        return ()

    def act(self, key: Array, memory: Any, obs: Array) -> tuple[Array, Any]:
        """Actions `[]` or `[n]` int32 at observations `[l]` or `[n, l]`."""
        return jax.random.randint(key, obs.shape[:-1], 0, self.num_actions, jnp.int32), memory


@register
@dataclasses.dataclass(frozen=True)
class Random:
    """A learner that acts at random and learns nothing; its state is its policy."""

    def stages(self, num_steps: int) -> tuple[int, ...]:
        return (num_steps,)

    def begin(self, key: Array, task: Task, capacity: int, dtype: Any) -> RandomPolicy:
        return RandomPolicy(jnp.asarray(task.num_actions, jnp.int32))

    def act(self, key: Array, state: RandomPolicy, obs: Array) -> tuple[Array, RandomPolicy]:
        return state.act(key, (), obs)[0], state

    def observe(
        self, key: Array, state: RandomPolicy, transition: Any, truncated: Array, obs: Array
    ) -> tuple[RandomPolicy, Array, tuple[()]]:
        return state, self.act(key, state, obs)[0], ()

    def policy(self, state: RandomPolicy, is_end: bool) -> RandomPolicy:
        return state
