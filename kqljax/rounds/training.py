"""Training in rounds on a task, and evaluation: pure functions that run whole inside jit and vmap."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from kqljax.checks import whole_number
from kqljax.errors import describe
from kqljax.rounds.fit import Fit, check_recipe, make_fit, require_float64
from kqljax.rounds.policy import Policy
from kqljax.rounds.recipe import Recipe
from kqljax.rounds.round import begin, choose, nobody
from kqljax.rounds.schedule import Round, schedule
from kqljax.rounds.transitions import Transitions
from kqljax.tasks import Task

Array = jax.Array


class RoundLog(NamedTuple):
    """What happened in each of K rounds, and in the fit at the end.

    Attributes:
      begins_at: `[K]` int32, transitions stored when the round began.
      backups: `[K]` int32, of the learner.
      acts_finished: `[K]` bool, the finished policy acted for this round.
      optimism_gap: `[K]` of the finished policy that was fitted last; infinite before the first.
      is_finite: `[K]` bool, whether every number of the round's fit was finite.
    """

    begins_at: Array
    backups: Array
    acts_finished: Array
    optimism_gap: Array
    is_finite: Array


class RunLog(NamedTuple):
    """What happened at each of N steps.

    Attributes:
      action: `[N]`; -1 where a value was not finite (the environment was given 0).
      raw_reward: `[N]` the environment's own rewards.
      terminated: `[N]` bool.
      truncated: `[N]` bool.
      episode_return: `[N]` sum of raw rewards of the episode up to and with this step.
      rounds: `RoundLog`.
    """

    action: Array
    raw_reward: Array
    terminated: Array
    truncated: Array
    episode_return: Array
    rounds: RoundLog


class Run(NamedTuple):
    """Result of `train`.

    Attributes:
      policy: the finished policy.
      transitions: everything that happened, `[N]` rows in order.
      log: step by step and round by round.
      fit: the fit at the end; `fit.policy` is `policy`.
    """

    policy: Policy
    transitions: Transitions
    log: RunLog
    fit: Fit


class _Acting(NamedTuple):
    """A run between two steps: `obs` `[l]`, `env_state`, `episode_steps` `[]`, `episode_return` `[]`."""

    obs: Array
    env_state: Any
    episode_steps: Array
    episode_return: Array


def train(key: Array, task: Task, recipe: Recipe, num_steps: int = 1000) -> Run:
    """Learns on a task in rounds: keep the transitions, fit everything anew now and then, act until the next round.

    Pure: jit it, vmap it over keys and over the numbers of the recipe. One compiled body serves all rounds; its work grows with
    the transitions that are stored and with the rank of the kernel. On a CPU run seeds one after the other
    (`kqljax.across_seeds` does), and compile with `jax.jit(..., compiler_options=rounds.CPU_COMPILER_OPTIONS)`.

    Args:
      task: a `kqljax.Task`.
      num_steps: steps of the environment, static.

    Examples:
      >>> from kqljax import rounds
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> run = jax.jit(lambda key: rounds.train(key, task, rounds.DEFAULT, num_steps=40))(jax.random.key(0))
      >>> run.transitions.obs.shape, run.log.raw_reward.shape, bool(run.log.rounds.is_finite.all())
      ((40, 2), (40,), True)
    """
    require_float64()
    check_recipe(recipe)
    if not isinstance(task, Task):
        raise ValueError(
            f"task must be a kqljax.Task, got {describe(task)}. Make one with kqljax.make_task or kqljax.Task.wrap."
        )
    num_steps = whole_number("num_steps", num_steps, 1, "It is the number of environment steps.")
    plan = schedule(recipe, num_steps)
    most_new = max(each.steps for each in plan)
    keys = jax.random.split(key, num_steps + 1)
    obs, env_state = task.reset(keys[-1])
    end_value = (0.0 - task.reward_low) / (task.reward_high - task.reward_low)
    transitions = Transitions.empty(num_steps, task.obs_dim, task.num_actions, end_value)
    rounds = jax.tree.map(lambda *column: jnp.asarray(np.array(column)), *plan)

    def one_round(carry: Any, this: Round) -> Any:
        transitions, player, acting, log = carry
        player = begin(recipe, transitions, player, this.due, most_new=most_new)

        def step(i: Array, carry: Any) -> Any:
            transitions, player, acting, log = carry
            at = jnp.int32(this.begins_at + i)
            action, player = choose(recipe, player, acting.obs)
            taken = jnp.maximum(action, 0)
            after = task.step(keys[at], acting.env_state, taken)
            is_over = after.terminated | after.truncated
            row = {
                "obs": acting.obs,
                "action": taken,
                "reward": after.reward,
                "next_obs": after.next_obs,
                "discount": jnp.where(after.terminated, 0.0, 1.0),
                "is_first": acting.episode_steps == 0,
                "is_last": is_over,
            }
            transitions = dataclasses.replace(
                transitions, count=at + 1, **{name: _put(getattr(transitions, name), each, at) for name, each in row.items()}
            )
            episode_return = acting.episode_return + after.raw_reward
            told = (action, after.raw_reward, after.terminated, after.truncated, episode_return)
            log = tuple(_put(column, each, at) for column, each in zip(log, told, strict=True))
            acting = _Acting(
                after.obs.astype(acting.obs.dtype),
                after.env_state,
                jnp.where(is_over, 0, acting.episode_steps + 1),
                jnp.where(is_over, 0.0, episode_return),
            )
            return transitions, player, acting, log

        carry = lax.fori_loop(0, this.steps, step, (transitions, player, acting, log))
        gap = player.finished.optimism_gap
        told = RoundLog(jnp.int32(this.begins_at), player.backups, player.acts_finished & ~this.due.last, gap, player.is_finite)
        return carry, told

    log = (jnp.zeros(num_steps, jnp.int32), jnp.zeros(num_steps), *(jnp.zeros(num_steps, bool),) * 2, jnp.zeros(num_steps))
    acting = _Acting(obs, env_state, jnp.int32(0), jnp.zeros(()))
    carry = transitions, nobody(recipe, transitions, most_new), acting, log
    (transitions, player, _, log), told = lax.scan(one_round, carry, rounds)
    found = make_fit(recipe, player)
    return Run(found.policy, transitions, RunLog(*log, told), found)


def _put(column: Array, value: Any, at: Array) -> Array:
    return lax.dynamic_update_index_in_dim(column, jnp.asarray(value, column.dtype), at, 0)


def evaluate(key: Array, task: Task, policy: Policy, num_episodes: int = 100) -> Array:
    """Undiscounted raw returns `[num_episodes]` of a policy, without learning; NaN where it answered -1.

    All episodes run side by side, in float32, until the last one is over.

    Examples:
      >>> from kqljax import rounds
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> run = jax.jit(lambda key: rounds.train(key, task, rounds.DEFAULT, num_steps=40))(jax.random.key(0))
      >>> rounds.evaluate(jax.random.key(1), task, run.policy, num_episodes=2).shape
      (2,)
    """
    num_episodes = whole_number("num_episodes", num_episodes, 1, "It is the number of evaluation episodes.")
    if not hasattr(policy, "act") or not hasattr(policy, "begin"):
        raise ValueError(
            f"policy must have begin and act, as kqljax.rounds.Policy, got {describe(policy)}. A run has one: run.policy."
        )
    if isinstance(policy, Policy):
        policy = policy.astype(jnp.float32)
    keys = jax.random.split(key, num_episodes + 2)
    obs, env_state = jax.vmap(task.reset)(keys[2:])

    def step(carry: Any) -> Any:
        at, obs, env_state, memory, returns, is_over = carry
        step_keys = jax.random.split(jax.random.fold_in(keys[0], at), num_episodes + 1)
        # An episode that is over has nothing to look ahead for: no gap of values is small at NaN.
        action, memory = policy.act(step_keys[-1], memory, jnp.where(is_over[:, None], jnp.nan, obs))
        after = jax.vmap(task.step)(step_keys[:-1], env_state, jnp.maximum(action, 0))
        reward = jnp.where(action < 0, jnp.nan, after.raw_reward)
        returns = returns + jnp.where(is_over, 0.0, reward)
        return at + 1, after.obs, after.env_state, memory, returns, is_over | after.terminated | after.truncated

    def is_going(carry: Any) -> Array:
        return (carry[0] < task.max_steps) & ~jnp.all(carry[-1])

    nothing = jnp.zeros(num_episodes), jnp.zeros(num_episodes, bool)
    return lax.while_loop(is_going, step, (jnp.int32(0), obs, env_state, policy.begin(keys[1]), *nothing))[-2]
