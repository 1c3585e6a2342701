"""Regret and optimism of a run, measured where the optimal values are known.

    regret = theory.measured_regret(optimal[visited], run.log.raw_reward, gamma=0.9)
    found = theory.watch_optimism(key, cfg, task, transition, optimal_q)
    found.above.min() >= 0          # Q-tilde >= Q* at every pair and step (Lemma est-lower-bound)
    found.below.min() >= 0          # and below the bound that the proof gives

benchmarks/mdps.py has finite MDPs and their optimal values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from kqljax._checks import check_gamma_and_lam, describe, is_known
from kqljax.config import KQLConfig
from kqljax.kql import kql_act, kql_init, kql_predict, kql_step, optimistic
from kqljax.state import Prediction, Transition
from kqljax.tasks import Task

Array = jax.Array


class GammaRegret(NamedTuple):
    """Cumulative gamma-regret after each step, between two bounds.

    V_t is the discounted sum of ALL later rewards, and a run has an end: the rewards after it are
    taken as 1 each for `lower` and as 0 for `upper`. The two differ by at most gamma / (1 - gamma)
    however long the run is, and hardly at all a few 1 / (1 - gamma) steps before its end.

    Attributes:
      lower: `[N]`.
      upper: `[N]`.
    """

    lower: Array
    upper: Array


def measured_regret(optimal: Any, rewards: Any, gamma: Any) -> GammaRegret:
    """(1 - gamma) sum over steps of V*(s_t) - V_t; jittable.

    Args:
      optimal: `[N]` V* at the states that the run visited.
      rewards: `[N]` rewards in [0, 1] that it got there.

    Examples:
      >>> regret = theory.measured_regret(optimal=[10.0, 10.0], rewards=[0.0, 1.0], gamma=0.9)
      >>> regret.lower.round(3).tolist(), regret.upper.round(3).tolist()
      ([0.1, 0.1], [0.91, 1.81])
    """
    if np.ndim(optimal) != 1 or np.shape(optimal) != np.shape(rewards):
        raise ValueError(
            f"optimal and rewards must both be [N], got {describe(optimal)} and "
            f"{describe(rewards)}."
        )
    if is_known(gamma):
        check_gamma_and_lam(gamma, 1.0)
    dtype = jnp.zeros(()).dtype
    best, rewards = jnp.asarray(optimal, dtype), jnp.asarray(rewards, dtype)

    def back(after: Array, reward: Array) -> tuple[Array, Array]:
        value = reward + gamma * after
        return value, value

    def regret(rest: Any) -> Array:
        _, values = lax.scan(back, jnp.asarray(rest, dtype), rewards, reverse=True)
        return (1.0 - gamma) * jnp.cumsum(best - values)

    return GammaRegret(lower=regret(1.0 / (1.0 - gamma)), upper=regret(0.0))


class Optimism(NamedTuple):
    """Lemma est-lower-bound with epsilon = 0, checked at every step t and every pair (s, a).

    Attributes:
      above: `[T, S, A]` Q-tilde_t - Q*: the lemma wants it at least 0.
      below: `[T, S, A]` Q* + U_t - Q-tilde_t, at least 0, with
        U_t = 2 beta Gamma-hat_t(s, a) + gamma E max_a' U_{t-1}(s', a').
      below_as_printed: `[T, S, A]` the same with the paper's U_t, the discounted sum of
        2 beta Gamma-hat_tau(s, a) over tau <= t. The paper's induction uses the width of (s, a)
        in place of that of the successor's pair, so this one may be negative (docs/theory.md).
      state: `[T]` s_t.
      action: `[T]` a_t.
      reward: `[T]`.
    """

    above: Array
    below: Array
    below_as_printed: Array
    state: Array
    action: Array
    reward: Array


def watch_optimism(
    key: Array,
    cfg: KQLConfig,
    task: Task,
    transition: Any,
    optimal: Any,
    num_steps: int | None = None,
) -> Optimism:
    """Runs KQL on a finite MDP and compares values with Q* at every pair and step; jittable.

    Args:
      task: the MDP, with one-hot states `[S]` as observations.
      transition: `[S, A, S]` probabilities of its successors.
      optimal: `[S, A]` Q*.
      num_steps: by default `cfg.horizon`.

    Examples:
      >>> from mdps import chain, solve_tabular  # benchmarks/mdps.py
      >>> mdp = chain(5)
      >>> sizes = {"obs_dim": 5, "num_actions": 2, "horizon": 20}
      >>> cfg = theory.from_theory(mdp.kernel(), **sizes, rho=mdp.rho)
      >>> optimal = solve_tabular(mdp.transition, mdp.reward, cfg.gamma).q
      >>> key = jax.random.key(0)
      >>> found = theory.watch_optimism(key, cfg, mdp.task(), mdp.transition, optimal)
      >>> bool(found.above.min() > -1e-9), found.above.shape
      (True, (20, 5, 2))
    """
    num_steps = cfg.horizon if num_steps is None else num_steps
    best = jnp.asarray(optimal)
    transition = jnp.asarray(transition, best.dtype)
    every_state = jnp.eye(task.obs_dim, dtype=best.dtype)
    reset_key, step_key = jax.random.split(key)
    obs, env_state = task.reset(reset_key)
    state = kql_init(cfg, task.obs_dim, best.dtype)
    nothing = jnp.zeros_like(best)

    def body(carry: Any, key: Array) -> tuple[Any, Optimism]:
        state, obs, env_state, bound, printed = carry
        act_key, env_key = jax.random.split(key)
        q_hat, width = kql_predict(cfg, state, every_state)
        q_tilde = optimistic(cfg, Prediction(q_hat, width**2))
        expected = jnp.einsum("saz,z->sa", transition, jnp.max(bound, axis=1))
        bound = 2.0 * cfg.beta * width + cfg.gamma * expected
        printed = 2.0 * cfg.beta * width + cfg.gamma * printed
        action, _ = kql_act(act_key, cfg, state, obs)
        step = task.step(env_key, env_state, action)
        row = Transition(obs, action, step.reward, step.next_obs, step.terminated)
        state, _ = kql_step(cfg, state, row)
        found = Optimism(
            above=q_tilde - best,
            below=best + bound - q_tilde,
            below_as_printed=best + printed - q_tilde,
            state=jnp.argmax(obs),
            action=action,
            reward=step.reward,
        )
        return (state, step.obs, step.env_state, bound, printed), found

    carry = state, obs, env_state, nothing, nothing
    return lax.scan(body, carry, jax.random.split(step_key, num_steps))[1]
