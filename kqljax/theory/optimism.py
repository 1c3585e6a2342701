"""Lemma est-lower-bound, watched: are the optimistic values above the optimal ones, and by how much?

watched = theory.watch_optimism(theory.chain(6), cfg, key)
watched.above.min() >= 0          # Q-tilde >= Q* at every pair and step
watched.below.min() >= 0          # and below the bound that the proof gives
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from kqljax.config import KQLConfig
from kqljax.kql import kql_act, kql_init, kql_predict, kql_step, optimistic
from kqljax.state import Transition
from kqljax.theory.mdps import MDP, solve_tabular

Array = jax.Array


class Optimism(NamedTuple):
    """What became of Lemma est-lower-bound with epsilon = 0 at every step t and every pair (s, a).

    Attributes:
      above: `[T, S, A]` Q-tilde_t - Q*: the lemma wants it at least 0.
      below: `[T, S, A]` Q* + U_t - Q-tilde_t, with U_t = 2 beta Gamma-hat_t(s, a) + gamma E max_a' U_{t-1}(s', a'): at least 0.
      below_as_printed: `[T, S, A]` the same with the paper's U_t, the discounted sum of 2 beta Gamma-hat_tau(s, a) over
        tau <= t. The paper's induction uses the width of (s, a) where that of the successor's pair stands, so this one may
        be negative (docs/theory.md).
      state: `[T]` s_t.
      action: `[T]` a_t.
      reward: `[T]`.

    Examples:
      >>> mdp = theory.chain(5)
      >>> cfg = kqljax.KQLConfig.from_theory(mdp.kernel(), obs_dim=5, num_actions=2, horizon=20, rho=mdp.rho)
      >>> seen = theory.watch_optimism(mdp, cfg, jax.random.key(0))
      >>> seen.above.shape, seen.state.shape
      ((20, 5, 2), (20,))
    """

    above: Array
    below: Array
    below_as_printed: Array
    state: Array
    action: Array
    reward: Array


def watch_optimism(mdp: MDP, cfg: KQLConfig, key: Array, num_steps: int | None = None) -> Optimism:
    """Runs KQL on a small MDP and looks at every pair at every step; jittable for a given MDP.

    Examples:
      >>> mdp = theory.chain(5)
      >>> cfg = kqljax.KQLConfig.from_theory(mdp.kernel(), obs_dim=5, num_actions=2, horizon=20, rho=mdp.rho)
      >>> seen = theory.watch_optimism(mdp, cfg, jax.random.key(0))
      >>> bool(seen.above.min() > -1e-9)
      True
    """
    num_steps = cfg.horizon if num_steps is None else num_steps
    task, best = mdp.task(), solve_tabular(mdp.transition, mdp.reward, cfg.gamma)
    transition = jnp.asarray(mdp.transition, best.q.dtype)
    every_state = jnp.eye(mdp.num_states, dtype=best.q.dtype)
    reset_key, step_key = jax.random.split(key)
    obs, env_state = task.reset(reset_key)
    state = kql_init(cfg, task.obs_dim, best.q.dtype)
    nothing = jnp.zeros_like(best.q)

    def body(carry, key):  # type: ignore[no-untyped-def]
        state, obs, env_state, bound, printed = carry
        act_key, env_key = jax.random.split(key)
        q_hat, width = jax.vmap(lambda obs: kql_predict(cfg, state, obs))(every_state)
        q_tilde = optimistic(cfg, q_hat, width**2)
        bound = 2.0 * cfg.beta * width + cfg.gamma * jnp.einsum("saz,z->sa", transition, jnp.max(bound, axis=1))
        printed = 2.0 * cfg.beta * width + cfg.gamma * printed
        action, _ = kql_act(cfg, state, obs, act_key)
        step = task.step(env_key, env_state, action)
        state, _ = kql_step(cfg, state, Transition(obs, action, step.reward, step.next_obs, step.terminated))
        seen = Optimism(
            above=q_tilde - best.q,
            below=best.q + bound - q_tilde,
            below_as_printed=best.q + printed - q_tilde,
            state=jnp.argmax(obs),
            action=action,
            reward=step.reward,
        )
        return (state, step.obs, step.env_state, bound, printed), seen

    _, seen = lax.scan(body, (state, obs, env_state, nothing, nothing), jax.random.split(step_key, num_steps))
    return seen
