"""The uniformly random policy, the floor of every comparison."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from kqljax import checks
from kqljax.pytrees import register
from kqljax.rollout import StepLog, rollout_returns
from kqljax.tasks import Task

Array = jax.Array


@register
@dataclasses.dataclass(frozen=True)
class RandomConfig:
    """A random policy has nothing to set."""


class RandomState(NamedTuple):
    """A random policy learns nothing.

    Attributes:
      num_steps: `[]` int32, steps taken.
    """

    num_steps: Array


class RandomRun(NamedTuple):
    """Result of `train`.

    Attributes:
      state: steps taken.
      log: what happened at each step.
    """

    state: RandomState
    log: StepLog


def default_config(task: Task) -> RandomConfig:
    """The only config there is."""
    return RandomConfig()


def act(num_actions: int, key: Array) -> Array:
    """A uniformly drawn action `[]`."""
    return jax.random.randint(key, (), 0, num_actions, jnp.int32)


def train(task: Task, cfg: RandomConfig, key: Array, num_steps: int) -> RandomRun:
    """Takes `num_steps` random steps; the log is a learning curve without learning."""
    checks.whole_number("num_steps", num_steps, 1, "It is the number of environment steps.")
    reset_key, step_key = jax.random.split(key)
    _, env_state = task.reset(reset_key)

    def body(carry: Any, key: Array) -> tuple[Any, StepLog]:
        env_state, episode_return = carry
        act_key, env_key = jax.random.split(key)
        action = act(task.num_actions, act_key)
        step = task.step(env_key, env_state, action)
        episode_return = episode_return + step.raw_reward
        log = StepLog(action, step.raw_reward, step.terminated, step.truncated, episode_return)
        return (step.env_state, jnp.where(step.terminated | step.truncated, 0.0, episode_return)), log

    _, log = lax.scan(body, (env_state, jnp.zeros(())), jax.random.split(step_key, num_steps))
    return RandomRun(RandomState(jnp.asarray(num_steps, jnp.int32)), log)


def evaluate(task: Task, cfg: RandomConfig, state: RandomState, key: Array, num_episodes: int = 100) -> Array:
    """Undiscounted raw returns `[num_episodes]` of the random policy."""
    checks.whole_number("num_episodes", num_episodes, 1, "It is the number of evaluation episodes.")
    return rollout_returns(task, lambda obs, key: act(task.num_actions, key), key, num_episodes)
