"""What goes into a step of Algorithm 1, what it keeps and what it tells."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array


class Transition(NamedTuple):
    """One step of the environment.

    Attributes:
      obs: `[l]` normalised observation s_t.
      action: `[]` integer a_t in 0..A-1.
      reward: `[]` reward in [0, 1].
      next_obs: `[l]` the true successor, never the observation after a reset.
      terminated: `[]` bool, the task ended (a time limit is not an end).

    Examples:
      >>> obs, next_obs = jnp.array([0.1, -0.2]), jnp.array([0.2, -0.1])
      >>> kqljax.Transition(obs, action=2, reward=0.5, next_obs=next_obs, terminated=False).reward
      0.5
    """

    obs: Any
    action: Any
    reward: Any
    next_obs: Any
    terminated: Any


class KQLState(NamedTuple):
    """What the next step needs.

    Attributes:
      posterior: the stored pairs (s_tau, a_tau) and the regression on them: `gram.GramPosterior`, or
        `weights.WeightPosterior` with features.
      table: Q-hat and squared width at the successors s'_tau for every action, `[T, A]` each.
      q_tilde: `[T, A]` clipped optimistic value at the successors; rows of empty slots mean nothing.
      reward: `[T]`.
      terminated: `[T]` bool.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=10)
      >>> state = kqljax.kql_init(cfg, obs_dim=2)
      >>> state.q_tilde.shape, state.width.shape, int(state.num_stored)
      ((10, 3), (10, 3), 0)
    """

    posterior: Any
    table: Any
    q_tilde: Array
    reward: Array
    terminated: Array

    @property
    def num_stored(self) -> Array:
        """`[]` number of stored transitions."""
        return self.posterior.num_stored

    @property
    def capacity(self) -> int:
        """Transitions that the arrays have room for."""
        return self.reward.shape[-1]

    @property
    def q_hat(self) -> Array:
        """`[T, A]` ridge estimate at the successors."""
        return self.table.mean

    @property
    def width(self) -> Array:
        """`[T, A]` Gamma-hat at the successors."""
        return jnp.sqrt(self.table.width_sq)


class KQLInfo(NamedTuple):
    """Diagnostics of one step.

    Attributes:
      is_stored: `[]` bool, the transition was taken in; where False the state is as before, but for a slot left empty.
      is_full: `[]` bool, no slot was free for it.
      is_valid: `[]` bool, finite observations, reward in [0, 1], action in range.
      is_finite: `[]` bool, every Q-tilde in the table and the residual are finite numbers.
      residual: `[]` |(K + lam I) alpha - y| at the new pair, in units of value; a certificate of the arithmetic.
      width: `[]` Gamma-hat_t at the new pair before it was stored.
      feature_error: `[]` largest part of k(x, x) that the features leave out at the states of this step, which the widths count
        as not known; 0 in the exact engine.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=10)
      >>> state, obs = kqljax.kql_init(cfg, obs_dim=2), jnp.array([0.1, -0.2])
      >>> too_much = kqljax.Transition(obs, action=2, reward=7.0, next_obs=obs, terminated=False)
      >>> _, info = jax.jit(kqljax.kql_step)(cfg, state, too_much)
      >>> bool(info.is_valid), bool(info.is_stored)
      (False, False)
    """

    is_stored: Array
    is_full: Array
    is_valid: Array
    is_finite: Array
    residual: Array
    width: Array
    feature_error: Array
