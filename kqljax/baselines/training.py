"""The training loop of the baselines: any learner that learns at every step, on any task."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from kqljax.checks import whole_number
from kqljax.state import Transition
from kqljax.tasks import Task

Array = jax.Array


class Log(NamedTuple):
    """What happened at each of N steps.

    Attributes:
      action: `[N]`.
      raw_reward: `[N]` the environment's own rewards.
      terminated: `[N]` bool.
      truncated: `[N]` bool.
      episode_return: `[N]` sum of raw rewards of the episode up to and with this step.
      info: the learner's diagnostics, `[N]` fields.
    """

    action: Array
    raw_reward: Array
    terminated: Array
    truncated: Array
    episode_return: Array
    info: Any


class Run(NamedTuple):
    """Result of `train`.

    Attributes:
      state: of the learner after the last step.
      policy: to evaluate, without exploration.
      log: what happened at each step.
      is_sound: `[]` bool, every number that the learner decided by was finite.
    """

    state: Any
    policy: Any
    log: Log
    is_sound: Array


def train(key: Array, task: Task, learner: Any, num_steps: int) -> Run:
    """Runs a learner for `num_steps` environment steps.

    Pure: jit it (with `num_steps` static), vmap it over keys and over the learner's numbers.

    Args:
      learner: with `begin(key, task, capacity, dtype) -> state`, `act(key, state, obs) -> action`,
        `observe(key, state, transition, obs) -> state, action, info` and `policy(state)`.
    """
    whole_number("num_steps", num_steps, 1, "It is the number of environment steps.")
    reset_key, begin_key, act_key, step_key = jax.random.split(key, 4)
    obs, env_state = task.reset(reset_key)
    state = learner.begin(begin_key, task, num_steps, None)
    action = learner.act(act_key, state, obs)

    def body(carry: Any, key: Array) -> tuple[Any, Log]:
        state, env_state, obs, action, episode_return = carry
        env_key, learn_key = jax.random.split(key)
        step = task.step(env_key, env_state, jnp.maximum(action, 0))
        row = Transition(obs, action, step.reward, step.next_obs, step.terminated)
        state, after, info = learner.observe(learn_key, state, row, step.obs)
        total = episode_return + step.raw_reward
        log = Log(action, step.raw_reward, step.terminated, step.truncated, total, info)
        total = jnp.where(step.terminated | step.truncated, 0.0, total)
        return (state, step.env_state, step.obs, after, total), log

    carry: Any = (state, env_state, obs, action, jnp.zeros(()))
    (state, *_), log = lax.scan(body, carry, jax.random.split(step_key, num_steps))
    return Run(state, learner.policy(state), log, jnp.all(log.info.is_finite))
