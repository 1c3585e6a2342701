"""Kernelized Q-learning: Algorithm 1 of Liu and Su, as pure functions.

    cfg   = KQLConfig(kernel=RBF(eta=0.02), num_actions=3, horizon=1000)
    state = kql_init(cfg, obs_dim=2)
    action, q_tilde = kql_act(key, cfg, state, obs)
    state, info = kql_step(cfg, state, Transition(obs, action, reward, next_obs, terminated))

Conventions that the paper leaves open (docs/conventions.md has the reasons):

* Row tau of a table belongs to the successor s'_tau: a reset between two transitions is harmless.
* A terminated transition's target is r + gamma * terminal_value. A time limit is not an end: give
  the true successor and terminated=False.
* Targets at step t use Q-tilde_t, before the pair of step t is stored. Algorithm 1 writes
  Q-tilde_t[t + 1] for the state just reached, without a line that fills it; it is what Q-hat_t and
  W_t say there.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kqljax._arrays import in_dtype, pad
from kqljax._checks import float_dtype, is_known, whole_number
from kqljax.config import KQLConfig
from kqljax.engines.base import Sizes, put
from kqljax.state import KQLInfo, KQLState, Prediction, Transition, check_obs, check_transition

Array = jax.Array


def kql_init(
    cfg: KQLConfig, obs_dim: int, dtype: Any = None, capacity: int | None = None
) -> KQLState:
    """An empty state for observations `[obs_dim]`.

    Args:
      cfg: configuration; its values are checked unless they are traced.
      obs_dim: l.
      dtype: float64 or float32; by default the widest that jax has enabled.
      capacity: room to begin with, by default `cfg.horizon`; see `kql_resize`.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=10)
      >>> kqljax.kql_init(cfg, obs_dim=2).q_hat.shape
      (10, 3)
    """
    whole_number("obs_dim", obs_dim, 1, "It is l, the length of an observation.")
    capacity = cfg.horizon if capacity is None else capacity
    whole_number("capacity", capacity, 1, "Leave it out for the config's horizon.")
    cfg.check(obs_dim)
    lam = cfg.lam if is_known(cfg.lam) or dtype is not None else None
    sizes = Sizes(cfg.num_actions, max(cfg.horizon, capacity), obs_dim, float_dtype(dtype))
    cfg.engine.validate(cfg.kernel, lam, sizes)
    posterior = cfg.engine.init(cfg.kernel, cfg.lam, sizes._replace(capacity=capacity))
    dtype = sizes.dtype
    return KQLState(posterior, jnp.zeros((capacity,), dtype), jnp.zeros((capacity,), bool))


def kql_resize(cfg: KQLConfig, state: KQLState, capacity: int) -> KQLState:
    """The same state with room for `capacity` transitions.

    A step costs O(capacity^2): a long run that starts small and grows is faster than one that
    starts with all its room.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=10)
      >>> state = kqljax.kql_init(cfg, obs_dim=2, capacity=5)
      >>> kqljax.kql_resize(cfg, state, 10).capacity
      10
    """
    slot = state.posterior.next_slot
    is_full = is_known(slot) and bool(np.all(np.asarray(slot) >= state.capacity))
    return resize(cfg, state, capacity, is_full)


def resize(cfg: KQLConfig, state: KQLState, capacity: int, is_full: bool) -> KQLState:
    """`kql_resize` for a caller who knows whether every slot was used, which can be faster."""
    more = capacity - state.capacity
    if more < 0:
        raise ValueError(
            f"cannot shrink a state from capacity {state.capacity} to {capacity}: transitions "
            "would be "
            "lost. Make a new state with kql_init."
        )
    if not more:
        return state
    posterior = cfg.engine.resize(state.posterior, capacity, is_full)
    return KQLState(posterior, pad(state.reward, more, 0), pad(state.terminated, more, 0))


def kql_predict(cfg: KQLConfig, state: KQLState, obs: Any) -> tuple[Array, Array]:
    """Q-hat and width Gamma-hat `[A]` at one observation `[l]`, or `[n, A]` at `[n, l]`.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=10)
      >>> state = kqljax.kql_init(cfg, obs_dim=2)
      >>> q_hat, width = kqljax.kql_predict(cfg, state, jnp.array([0.1, -0.2]))
      >>> q_hat.tolist(), width.round(3).tolist()  # nothing is known yet: 0, and 1 / sqrt(lam)
      ([0.0, 0.0, 0.0], [10.0, 10.0, 10.0])
    """
    obs = check_obs(cfg.check_state(state), obs, state.reward.dtype, most_axes=2)
    engine = in_dtype(cfg.engine, obs.dtype)
    found = engine.predict(engine.predictor(state.posterior, reuse=False), jnp.atleast_2d(obs))
    q_hat, width = found.mean.T, jnp.sqrt(found.width_sq).T
    return (q_hat, width) if obs.ndim == 2 else (q_hat[0], width[0])


def kql_act(key: Array, cfg: KQLConfig, state: KQLState, obs: Any) -> tuple[Array, Array]:
    """The action that maximises Q-tilde (lines 5 to 9 of Algorithm 1).

    Args:
      key: random key, used where `cfg.tie_break` is "random".

    Returns:
      action: `[]` int32; -1 where a value is not a number, which `kql_step` refuses.
      q_tilde: `[A]`.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=10)
      >>> state = kqljax.kql_init(cfg, obs_dim=2)
      >>> action, q_tilde = kqljax.kql_act(jax.random.key(0), cfg, state, jnp.array([0.1, -0.2]))
      >>> int(action), q_tilde.round(3).tolist()  # everything is worth 1 / (1 - gamma) at first
      (0, [20.0, 20.0, 20.0])
    """
    q_hat, width = kql_predict(cfg, state, obs)
    q_tilde = optimistic(in_dtype(cfg, q_hat.dtype), Prediction(q_hat, width**2))
    return choose(key, cfg, q_tilde), q_tilde


def kql_step(cfg: KQLConfig, state: KQLState, transition: Transition) -> tuple[KQLState, KQLInfo]:
    """Learns from one transition (lines 10 to 23 of Algorithm 1).

    Outside jit a transition with wrong values raises ValueError. Inside jit it is left out and
    `info.is_valid` says so; the same holds for one past the capacity, `info.is_full`.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=10)
      >>> state, obs = kqljax.kql_init(cfg, obs_dim=2), jnp.array([0.1, -0.2])
      >>> step = jax.jit(kqljax.kql_step)
      >>> state, info = step(cfg, state, kqljax.Transition(obs, 2, 0.5, obs, False))
      >>> int(state.num_stored), bool(info.is_stored)
      (1, True)
    """
    state, info, _ = _learn(cfg, state, transition, None)
    return state, info


def kql_step_and_act(
    key: Array, cfg: KQLConfig, state: KQLState, transition: Transition, obs: Any
) -> tuple[KQLState, KQLInfo, Array, Array]:
    """`kql_step`, then `kql_act` at `obs` `[l]`, where the environment is now, for the price of
    one.

    `obs` is `transition.next_obs`, or the first observation of a new episode. Both functions ask
    the same arrays for different columns; here they share the pass.

    Returns:
      state, info: as `kql_step`.
      action, q_tilde: as `kql_act` with the new state.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=10)
      >>> state, obs = kqljax.kql_init(cfg, obs_dim=2), jnp.array([0.1, -0.2])
      >>> moved = kqljax.Transition(obs, 0, 0.0, obs, False)
      >>> step = jax.jit(kqljax.kql_step_and_act)
      >>> state, info, action, q_tilde = step(jax.random.key(0), cfg, state, moved, obs)
      >>> int(state.num_stored), action.shape, q_tilde.shape
      (1, (), (3,))
    """
    state, info, found = _learn(cfg, state, transition, obs)
    assert found is not None
    q_tilde = optimistic(in_dtype(cfg, state.reward.dtype), found)
    # A state that holds no pair yet would not notice.
    is_number = jnp.all(jnp.isfinite(jnp.asarray(obs)))
    return state, info, jnp.where(is_number, choose(key, cfg, q_tilde), -1), q_tilde


def _learn(
    cfg: KQLConfig, state: KQLState, transition: Transition, query: Any
) -> tuple[KQLState, KQLInfo, Prediction | None]:
    """One step of Algorithm 1, and Q-hat_{t+1} and widths `[A]` at the state `query` `[l]`."""
    dtype = state.reward.dtype
    obs_dim = cfg.check_state(state)
    check_transition(cfg.num_actions, obs_dim, transition)
    if query is not None:
        query = check_obs(obs_dim, query, dtype)
    cfg = in_dtype(cfg, dtype)
    engine = cfg.engine
    # A transition that may not be learned from becomes zeros, which no slot takes.
    is_valid, transition = transition.sanitised(cfg.num_actions, dtype)

    # Lines 10-14: Q-tilde_t at the states reached before, and so the targets of those steps.
    targets = bellman(cfg, state.posterior.rows, state.reward, state.terminated)
    # Widths of unused slots are 0, where a square root has no derivative.
    is_used = jnp.arange(state.capacity) < state.posterior.next_slot
    targets = jnp.where(is_used, targets, 0.0)
    posterior, work = engine.prepare(state.posterior, transition, is_valid, targets, query)
    # Lines 6-7 for the state just reached: the row Q-tilde_t[t + 1] that line 23 needs.
    target = bellman(cfg, work.next, transition.reward, transition.terminated)
    # Lines 15-17: W_{t+1}; with the targets, the weights of Q-hat_{t+1} (line 23).
    posterior, work = engine.update(posterior, work, target)
    # Lines 18-22: widths at all states reached, and Q-hat_{t+1} there, for lines 10-14 to come.
    posterior = engine.refresh(posterior, work)

    info = KQLInfo(
        is_stored=work.is_stored,
        is_full=work.slot >= state.capacity,
        is_valid=is_valid,
        is_finite=jnp.isfinite(work.residual) & jnp.isfinite(target),
        residual=work.residual,
        width=jnp.sqrt(work.width_sq),
        feature_error=work.feature_error,
    )
    reward = put(state.reward, work.slot, transition.reward, work.is_stored)
    terminated = put(state.terminated, work.slot, transition.terminated, work.is_stored)
    return KQLState(posterior, reward, terminated), info, work.query


def optimistic(cfg: KQLConfig, at: Prediction) -> Array:
    """Q-tilde = clip(Q-hat + beta * Gamma-hat) to [0, 1 / (1 - gamma)], in the shape of `at`."""
    return jnp.clip(at.mean + cfg.beta * jnp.sqrt(at.width_sq), 0.0, 1.0 / (1.0 - cfg.gamma))


def bellman(cfg: KQLConfig, at: Prediction, reward: Array, terminated: Array) -> Array:
    """Line 23: r + gamma max_a Q-tilde of `[A, ...]`, the terminal value where the task ended."""
    value = jnp.max(optimistic(cfg, at), axis=0)
    return reward + cfg.gamma * jnp.where(terminated, cfg.terminal_value, value)


def choose(key: Array, cfg: KQLConfig, q_tilde: Array) -> Array:
    """Line 9: an action `[]` of maximal Q-tilde `[A]`; -1 where a value is not a number."""
    # What rounding cannot tell apart is a tie: at first all actions are worth the cap, and features
    # sum up to it in an order of their own for each action.
    margin = 32 * float(jnp.finfo(q_tilde.dtype).eps) / (1.0 - cfg.gamma)
    # None is best where a value is not a number: comparisons with NaN are False.
    is_best = q_tilde >= jnp.max(q_tilde) - jnp.asarray(margin, q_tilde.dtype)
    rank = jnp.arange(len(q_tilde), dtype=jnp.int32)
    if cfg.tie_break == "random":
        rank = jax.random.permutation(key, rank)
    first = jnp.min(jnp.where(is_best, rank, len(q_tilde)))
    action = first if cfg.tie_break == "first" else jnp.argmax(rank == first).astype(jnp.int32)
    return jnp.where(first < len(q_tilde), action, -1).astype(jnp.int32)
