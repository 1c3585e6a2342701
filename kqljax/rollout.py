"""Training and evaluation on a task: pure functions that run whole inside jit and vmap."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from kqljax import checks
from kqljax.arrays import in_dtype
from kqljax.config import KQLConfig
from kqljax.kql import kql_act, kql_grow, kql_init, kql_policy, kql_step_and_act
from kqljax.state import KQLInfo, KQLState, Transition
from kqljax.tasks import Task

Array = jax.Array

STAGES = 5
"""Capacities a run goes through: more cost compile time, fewer cost run time (benchmarks/step_time.py)."""


class StepLog(NamedTuple):
    """What happened at each of N steps, for learners without diagnostics of their own.

    Attributes:
      action: `[N]`.
      raw_reward: `[N]` the environment's own rewards.
      terminated: `[N]` bool.
      truncated: `[N]` bool.
      episode_return: `[N]` sum of raw rewards of the episode up to and with this step.
    """

    action: Array
    raw_reward: Array
    terminated: Array
    truncated: Array
    episode_return: Array


class TrainLog(NamedTuple):
    """What happened at each of N steps.

    Attributes:
      action: `[N]`.
      raw_reward: `[N]` the environment's own rewards.
      terminated: `[N]` bool.
      truncated: `[N]` bool.
      episode_return: `[N]` sum of raw rewards of the episode up to and with this step.
      info: `KQLInfo` with `[N]` fields.

    Examples:
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> cfg = task.config(horizon=20)
      >>> log = jax.jit(kqljax.train)(task, cfg, jax.random.key(0)).log
      >>> log.action.shape, float(log.episode_return[-1]), log.info.width.shape
      ((20,), -20.0, (20,))
    """

    action: Array
    raw_reward: Array
    terminated: Array
    truncated: Array
    episode_return: Array
    info: KQLInfo


class TrainRun(NamedTuple):
    """Result of `train`.

    Attributes:
      state: the state after the last step.
      log: what happened at each step.
      curve: `[E, num_episodes]` returns at the steps of `eval_at`; `[0, num_episodes]` where there are none.

    Examples:
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> run = jax.jit(kqljax.train)(task, task.config(horizon=20), jax.random.key(0))
      >>> run.state.q_tilde.shape, run.log.raw_reward.shape, run.curve.shape
      ((20, 3), (20,), (0, 20))
    """

    state: KQLState
    log: TrainLog
    curve: Array


class Carry(NamedTuple):
    """A run between two steps.

    Attributes:
      state: what was learned so far.
      env_state: the environment's state.
      obs: `[l]` the observation to act on.
      action: `[]` the action chosen for it.
      episode_return: `[]` raw rewards of the episode so far.
    """

    state: KQLState
    env_state: Any
    obs: Array
    action: Array
    episode_return: Array


class RunKeys(NamedTuple):
    """The random keys of a run.

    Attributes:
      reset: of the first episode.
      act: of the first action.
      step: step t takes `fold_in(step, t)`, so that a run in pieces draws what it draws in one go.
      evaluate: an evaluation after step t takes `fold_in(evaluate, t)`.
    """

    reset: Array
    act: Array
    step: Array
    evaluate: Array


def split_key(key: Array) -> RunKeys:
    """The keys of a run from one."""
    return RunKeys(*jax.random.split(key, 4))


def stage_capacities(cfg: KQLConfig, num_steps: int, stages: int) -> list[int]:
    """The capacities that a run grows through; but for the last, each is full when the next begins."""
    most = min(num_steps, cfg.capacity)
    return sorted({-(-most * (stage + 1) // stages) for stage in range(stages)})


def check_run(cfg: KQLConfig, num_steps: int, eval_at: tuple[int, ...]) -> None:
    """Raises ValueError where a run of `num_steps` with evaluations at `eval_at` does not fit the config."""
    checks.whole_number("num_steps", num_steps, 1, "It is the number of environment steps.")
    if num_steps > cfg.horizon:
        raise ValueError(
            f"num_steps={num_steps} is more than the config's horizon={cfg.horizon}, the transitions it can hold. "
            "Make the config with a larger horizon."
        )
    if list(eval_at) != sorted({step for step in eval_at if 1 <= step <= num_steps}):
        raise ValueError(f"eval_at must be increasing steps in 1..{num_steps}, got {eval_at}.")


def begin(task: Task, cfg: KQLConfig, keys: RunKeys, dtype: Any, capacity: int) -> Carry:
    """A run before its first step."""
    obs, env_state = task.reset(keys.reset)
    state = kql_init(cfg, task.obs_dim, dtype, capacity=capacity)
    action, _ = kql_act(in_dtype(cfg, state.reward.dtype), state, obs, keys.act)
    return Carry(state, env_state, obs, action, jnp.zeros(()))


def advance(task: Task, cfg: KQLConfig, carry: Carry, key: Array) -> tuple[Carry, TrainLog]:
    """One step of the environment and of Algorithm 1, and the next action. `cfg` is in the dtype of the state."""
    env_key, act_key = jax.random.split(key)
    # An action of -1 says that a value was not a number. The environment cannot take it; kql_step will refuse it.
    step = task.step(env_key, carry.env_state, jnp.maximum(carry.action, 0))
    transition = Transition(carry.obs, carry.action, step.reward, step.next_obs, step.terminated)
    state, info, action, _ = kql_step_and_act(cfg, carry.state, transition, step.obs, act_key)
    episode_return = carry.episode_return + step.raw_reward
    log = TrainLog(carry.action, step.raw_reward, step.terminated, step.truncated, episode_return, info)
    is_over = step.terminated | step.truncated
    return Carry(state, step.env_state, step.obs, action, jnp.where(is_over, 0.0, episode_return)), log


def step_keys(keys: RunKeys, start: Any, count: int) -> Array:
    """`[count]` keys of the steps from `start` on."""
    return jax.vmap(lambda step: jax.random.fold_in(keys.step, step))(start + jnp.arange(count))


def train(
    task: Task,
    cfg: KQLConfig,
    key: Array,
    num_steps: int | None = None,
    *,
    dtype: Any = None,
    stages: int = STAGES,
    eval_at: tuple[int, ...] = (),
    eval_episodes: int = 20,
) -> TrainRun:
    """Runs Algorithm 1 on a task.

    Pure: jit it, vmap it over keys and over the numbers in `cfg`. One jit holds the whole run; the state grows through
    `stages` capacities inside.

    Args:
      num_steps: steps of the environment, by default `cfg.horizon`.
      dtype: of the state, see `kql_init`.
      eval_at: steps after which the policy is evaluated on `eval_episodes` episodes, for a learning curve.

    Examples:
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> run = jax.jit(kqljax.train)(task, task.config(horizon=20), jax.random.key(0))
      >>> int(run.state.num_stored), bool(run.log.info.is_finite.all())
      (20, True)
    """
    num_steps = cfg.horizon if num_steps is None else num_steps
    checks.whole_number("stages", stages, 1, "One stage is a fixed capacity.")
    check_run(cfg, num_steps, eval_at)
    keys = split_key(key)
    capacities = stage_capacities(cfg, num_steps, stages)
    carry = begin(task, cfg, keys, dtype, capacities[0])
    # Once here, not at every step: a feature map may hold large arrays.
    cfg = in_dtype(cfg, carry.state.reward.dtype)

    logs, curve, done = [], [], 0
    for stop in sorted({*capacities, *eval_at, num_steps}):
        capacity = next((size for size in capacities if size >= stop), capacities[-1])
        if capacity > carry.state.capacity:
            carry = carry._replace(state=kql_grow(carry.state, capacity, is_full=True))
        carry, log = lax.scan(lambda carry, key: advance(task, cfg, carry, key), carry, step_keys(keys, done, stop - done))
        logs.append(log)
        done = stop
        if stop in eval_at:
            curve.append(evaluate(task, cfg, carry.state, jax.random.fold_in(keys.evaluate, stop), eval_episodes))
    log = jax.tree.map(lambda *parts: jnp.concatenate(parts), *logs)
    return TrainRun(carry.state, log, jnp.stack(curve) if curve else jnp.zeros((0, eval_episodes)))


def evaluate(task: Task, cfg: KQLConfig, state: KQLState, key: Array, num_episodes: int = 100) -> Array:
    """Undiscounted raw returns `[num_episodes]` of the policy that maximises Q-tilde, without learning.

    All episodes run side by side, until the last one is over.

    Examples:
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> cfg = task.config(horizon=20)
      >>> run = jax.jit(kqljax.train)(task, cfg, jax.random.key(0))
      >>> kqljax.evaluate(task, cfg, run.state, jax.random.key(1), num_episodes=2).shape
      (2,)
    """
    checks.whole_number("num_episodes", num_episodes, 1, "It is the number of evaluation episodes.")

    policy = kql_policy(cfg, state)
    return rollout_returns(task, lambda obs, key: policy(obs, key)[0], key, num_episodes)


def rollout_returns(task: Task, act: Any, key: Array, num_episodes: int) -> Array:
    """Raw returns `[num_episodes]` of any policy `act(obs [l], key) -> action []`.

    An episode in which the policy answers with a negative action, the mark of a value that is not a number, returns NaN.

    Examples:
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> stay = lambda obs, key: jnp.int32(1)
      >>> kqljax.rollout_returns(task, stay, jax.random.key(0), num_episodes=2).tolist()
      [-200.0, -200.0]
    """
    reset_key, step_key = jax.random.split(key)
    obs, env_state = jax.vmap(task.reset)(jax.random.split(reset_key, num_episodes))

    def is_going(carry: Any) -> Array:
        step, _, _, _, is_over = carry
        return (step < task.max_steps) & ~jnp.all(is_over)

    def advance(carry: Any) -> Any:
        step, obs, env_state, returns, is_over = carry
        act_key, env_key = jax.random.split(jax.random.fold_in(step_key, step))
        action = jax.vmap(act)(obs, jax.random.split(act_key, num_episodes))
        after = jax.vmap(task.step)(jax.random.split(env_key, num_episodes), env_state, jnp.maximum(action, 0))
        reward = jnp.where(action < 0, jnp.nan, after.raw_reward)
        returns = returns + jnp.where(is_over, 0.0, reward)
        return step + 1, after.obs, after.env_state, returns, is_over | after.terminated | after.truncated

    start = (jnp.zeros((), jnp.int32), obs, env_state, jnp.zeros(num_episodes), jnp.zeros(num_episodes, bool))
    return lax.while_loop(is_going, advance, start)[3]
