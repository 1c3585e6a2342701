"""A state of Algorithm 1 as a policy and as tables: what it believes of states."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from kqljax._arrays import in_dtype, register
from kqljax.config import KQLConfig
from kqljax.kql import choose, optimistic
from kqljax.state import KQLState

Array = jax.Array


class Values(NamedTuple):
    """What Algorithm 1 believes of states, with every action.

    Attributes:
      q_hat: `[..., A]` ridge estimate.
      width: `[..., A]` Gamma-hat.
      q_tilde: `[..., A]` clipped optimistic value, which decides.
    """

    q_hat: Array
    width: Array
    q_tilde: Array


@register
@dataclasses.dataclass(frozen=True)
class KQLPolicy:
    """`kql_act` for a state that no longer changes: what many observations share is computed once.

    A pytree: jit it, vmap it, pass it through scan. Observations are `[l]`, or `[n, l]` for n at
    once.

    Attributes:
      cfg: the config, with numbers in the state's dtype.
      predictor: what the engine's predictions share.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=10)
      >>> policy = kqljax.kql_policy(cfg, kqljax.kql_init(cfg, obs_dim=2))
      >>> memory = policy.begin(jax.random.key(0))
      >>> actions, memory = policy.act(jax.random.key(1), memory, jnp.zeros((4, 2)))
      >>> actions.shape, policy.values(jnp.zeros((4, 2))).q_tilde.shape
      ((4,), (4, 3))
    """

    cfg: KQLConfig
    predictor: Any

    def begin(self, key: Array) -> tuple[()]:
        """What is remembered within an episode: nothing."""
        return ()

    def act(self, key: Array, memory: Any, obs: Array) -> tuple[Array, Any]:
        """The action `[]` or `[n]`, int32, -1 where a value is not a number; and the memory."""
        q_tilde = self.values(obs).q_tilde
        if obs.ndim == 1:
            return choose(key, self.cfg, q_tilde), memory
        if self.cfg.tie_break == "first":
            return jax.vmap(lambda row: choose(key, self.cfg, row))(q_tilde), memory
        keys = jax.random.split(key, len(obs))
        return jax.vmap(lambda key, row: choose(key, self.cfg, row))(keys, q_tilde), memory

    def values(self, obs: Array) -> Values:
        """Q-hat, width and Q-tilde, `[A]` or `[n, A]`."""
        found = self.cfg.engine.predict(self.predictor, jnp.atleast_2d(obs))
        tables = Values(found.mean, jnp.sqrt(found.width_sq), optimistic(self.cfg, found))
        return jax.tree.map(lambda leaf: leaf.T if obs.ndim == 2 else leaf[:, 0], tables)


def kql_policy(cfg: KQLConfig, state: KQLState) -> KQLPolicy:
    """The policy of a state, for many observations; see `KQLPolicy`."""
    cfg.check_state(state)
    cfg = in_dtype(cfg, state.reward.dtype)
    return KQLPolicy(cfg, cfg.engine.predictor(state.posterior, reuse=True))


def kql_tables(cfg: KQLConfig, state: KQLState) -> Values:
    """The tables of Algorithm 1: `[T, A]` at the states reached; rows of empty slots mean nothing.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=10)
      >>> kqljax.kql_tables(cfg, kqljax.kql_init(cfg, obs_dim=2)).q_tilde.shape
      (10, 3)
    """
    rows = state.posterior.rows
    q_tilde = optimistic(in_dtype(cfg, state.reward.dtype), rows)
    return Values(state.q_hat, state.width, jnp.swapaxes(q_tilde, -1, -2))
