"""Tabular Q-learning with epsilon-greedy exploration, for tasks whose observations are one-hot states."""

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
@dataclasses.dataclass(frozen=True, kw_only=True)
class QLearningConfig:
    """Numbers are leaves.

    Attributes:
      gamma: discount factor.
      learning_rate: how far a value moves to its target.
      epsilon: share of random actions.
      initial_value: of every pair; 1 / (1 - gamma) is optimistic, 0 the habit.
    """

    gamma: Any = 0.95
    learning_rate: Any = 0.5
    epsilon: Any = 0.1
    initial_value: Any = 0.0


class QLearningState(NamedTuple):
    """What is learned.

    Attributes:
      q: `[S, A]`.
    """

    q: Array


class QLearningRun(NamedTuple):
    """Result of `train`.

    Attributes:
      state: the table.
      log: what happened at each step.
      visited: `[N]` the state at each step.
    """

    state: QLearningState
    log: StepLog
    visited: Array


def default_config(task: Task, **overrides: Any) -> QLearningConfig:
    """The defaults, or with other numbers."""
    return QLearningConfig(**overrides)


def train(task: Task, cfg: QLearningConfig, key: Array, num_steps: int) -> QLearningRun:
    """`num_steps` steps of Q-learning; ties are broken at random. Rewards are the normalised ones."""
    checks.whole_number("num_steps", num_steps, 1, "It is the number of environment steps.")
    reset_key, step_key = jax.random.split(key)
    obs, env_state = task.reset(reset_key)
    q = jnp.full((task.obs_dim, task.num_actions), cfg.initial_value, obs.dtype)

    def body(carry: Any, key: Array) -> tuple[Any, tuple[StepLog, Array]]:
        q, obs, env_state, episode_return = carry
        explore_key, act_key, env_key = jax.random.split(key, 3)
        place = jnp.argmax(obs)
        is_best = q[place] == jnp.max(q[place])
        is_random = jax.random.bernoulli(explore_key, cfg.epsilon)
        action = jax.random.categorical(act_key, jnp.where(is_best | is_random, 0.0, -jnp.inf)).astype(jnp.int32)
        step = task.step(env_key, env_state, action)
        after = jnp.where(step.terminated, 0.0, jnp.max(q[jnp.argmax(step.next_obs)]))
        q = q.at[place, action].add(cfg.learning_rate * (step.reward + cfg.gamma * after - q[place, action]))
        episode_return = episode_return + step.raw_reward
        log = StepLog(action, step.raw_reward, step.terminated, step.truncated, episode_return)
        episode_return = jnp.where(step.terminated | step.truncated, 0.0, episode_return)
        return (q, step.obs, step.env_state, episode_return), (log, place)

    start: Any = (q, obs, env_state, jnp.zeros((), obs.dtype))
    (q, *_), (log, visited) = lax.scan(body, start, jax.random.split(step_key, num_steps))
    return QLearningRun(QLearningState(q), log, visited)


def evaluate(task: Task, cfg: QLearningConfig, state: QLearningState, key: Array, num_episodes: int = 100) -> Array:
    """Undiscounted raw returns `[num_episodes]` of the greedy policy."""
    checks.whole_number("num_episodes", num_episodes, 1, "It is the number of evaluation episodes.")

    def act(obs: Array, key: Array) -> Array:
        return jnp.argmax(state.q[jnp.argmax(obs)]).astype(jnp.int32)

    return rollout_returns(task, act, key, num_episodes)
