"""Kernelized Q-learning: Algorithm 1 of Liu and Su, as pure functions.

    cfg   = KQLConfig(kernel=RBF(eta=0.02), num_actions=3, horizon=1000)
    state = kql_init(cfg, obs_dim=2)
    action, q_tilde = kql_act(cfg, state, obs, key)
    state, info = kql_step(cfg, state, Transition(obs, action, reward, next_obs, terminated))

Conventions that the paper leaves open (docs/conventions.md has the reasons):

* Row tau of the tables belongs to the successor s'_tau, so a reset between two transitions is harmless.
* A terminated transition's target is r + gamma * terminal_value. A time limit is not an end: give the true successor
  and terminated=False.
* Targets at step t use Q-tilde_t, before the pair of step t is stored. Algorithm 1 writes Q-tilde_t[t + 1] for the state
  just reached, without a line that fills it; it is what Q-hat_t and W_t say there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kqljax import checks
from kqljax.arrays import dot, in_dtype, pad, write
from kqljax.config import KQLConfig
from kqljax.engines.exact import ExactEngine
from kqljax.engines.weights import WeightEngine
from kqljax.errors import is_known
from kqljax.posterior import gram, weights
from kqljax.state import KQLInfo, KQLState, Transition

Array = jax.Array


def kql_init(cfg: KQLConfig, obs_dim: int, dtype: Any = None, capacity: int | None = None) -> KQLState:
    """An empty state for observations `[obs_dim]`.

    Args:
      cfg: configuration; its values are checked unless they are traced.
      obs_dim: l.
      dtype: float64 or float32; by default the widest that jax has enabled.
      capacity: room to begin with, by default `cfg.capacity`; see `kql_grow`.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=10)
      >>> kqljax.kql_init(cfg, obs_dim=2).q_tilde.shape
      (10, 3)
    """
    dtype = checks.check_init(cfg, obs_dim, dtype, capacity)
    capacity = cfg.capacity if capacity is None else capacity
    posterior, table = cfg.engine.init(obs_dim, cfg.num_actions, capacity, dtype)
    return KQLState(
        posterior=posterior,
        table=table,
        q_tilde=jnp.zeros((capacity, cfg.num_actions), dtype),
        reward=jnp.zeros((capacity,), dtype),
        terminated=jnp.zeros((capacity,), bool),
    )


def kql_grow(state: KQLState, capacity: int, is_full: bool = False) -> KQLState:
    """The same state with room for `capacity` transitions.

    A step costs O(capacity^2): a long run that starts small and grows in stages is faster than one that starts full.
    `is_full` is the caller's word that no slot is free, which makes the stages cheaper still; see `gram.grow`.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=10)
      >>> state = kqljax.kql_init(cfg, obs_dim=2, capacity=5)
      >>> kqljax.kql_grow(state, 10).q_tilde.shape
      (10, 3)
    """
    more = capacity - state.capacity
    if is_known(state.posterior.next_slot) and np.any(np.asarray(state.posterior.next_slot) > state.capacity):
        raise ValueError(
            f"the state keeps its last {state.capacity} transitions and has begun to replace them: it cannot grow now."
        )
    engine = ExactEngine if isinstance(state.posterior, gram.GramPosterior) else WeightEngine
    posterior, table = engine.grow(state.posterior, state.table, capacity, is_full)
    return KQLState(
        posterior=posterior,
        table=table,
        q_tilde=pad(state.q_tilde, more, 0),
        reward=pad(state.reward, more, 0),
        terminated=pad(state.terminated, more, 0),
    )


def kql_predict(cfg: KQLConfig, state: KQLState, obs: Any) -> tuple[Array, Array]:
    """Q-hat `[A]` and width Gamma-hat `[A]` at one observation `[l]`.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=10)
      >>> state = kqljax.kql_init(cfg, obs_dim=2)
      >>> q_hat, width = kqljax.kql_predict(cfg, state, jnp.array([0.1, -0.2]))
      >>> q_hat.tolist(), width.round(3).tolist()  # nothing is known yet: 0, and 1 / sqrt(lam)
      ([0.0, 0.0, 0.0], [10.0, 10.0, 10.0])
    """
    checks.check_state(cfg, state)
    obs = checks.check_obs(state, obs)
    return cfg.engine.predict(state.posterior, obs)


def kql_act(cfg: KQLConfig, state: KQLState, obs: Any, key: Array | None = None) -> tuple[Array, Array]:
    """The action that maximises Q-tilde (lines 5 to 9 of Algorithm 1).

    Args:
      key: random key, needed only where `cfg.tie_break` is "random".

    Returns:
      action: `[]` int32; -1 where a value is not a number, which `kql_step` refuses.
      q_tilde: `[A]`.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=10)
      >>> state = kqljax.kql_init(cfg, obs_dim=2)
      >>> action, q_tilde = kqljax.kql_act(cfg, state, jnp.array([0.1, -0.2]))
      >>> int(action), q_tilde.round(3).tolist()  # everything is worth 1 / (1 - gamma) at first
      (0, [20.0, 20.0, 20.0])
    """
    q_hat, width = kql_predict(cfg, state, obs)
    cfg = in_dtype(cfg, q_hat.dtype)
    q_tilde = optimistic(cfg, q_hat, width**2)
    return choose(cfg, q_tilde, key), q_tilde


def kql_policy(cfg: KQLConfig, state: KQLState) -> Callable[[Any, Array | None], tuple[Array, Array]]:
    """`kql_act` for many observations of a state that no longer changes: what they share is computed once.

    Returns:
      act(obs `[l]`, key) -> action `[]`, q_tilde `[A]`, as `kql_act`.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=10)
      >>> act = kqljax.kql_policy(cfg, kqljax.kql_init(cfg, obs_dim=2))
      >>> actions, q_tilde = jax.vmap(lambda obs: act(obs, None))(jnp.zeros((4, 2)))
      >>> actions.shape, q_tilde.shape
      ((4,), (4, 3))
    """
    checks.check_state(cfg, state)
    cfg = in_dtype(cfg, state.reward.dtype)
    engine = cfg.engine
    frozen = engine.freeze(state.posterior)

    def act(obs: Any, key: Array | None = None) -> tuple[Array, Array]:
        q_tilde = optimistic(cfg, *engine.ask(frozen, checks.check_obs(state, obs)))
        return choose(cfg, q_tilde, key), q_tilde

    return act


def choose(cfg: KQLConfig, q_tilde: Array, key: Array | None) -> Array:
    """Line 9: an action `[]` of maximal Q-tilde `[A]`; -1 where a value is not a number."""
    # What rounding cannot tell apart is a tie: at first all actions are worth the cap, and features sum up to it in an
    # order of their own for each action.
    margin = 32 * float(jnp.finfo(q_tilde.dtype).eps) / (1.0 - cfg.gamma)
    is_best = q_tilde >= jnp.max(q_tilde) - jnp.asarray(margin, q_tilde.dtype)
    if cfg.tie_break == "random":
        key = checks.check_key(key)
        action = jax.random.categorical(key, jnp.where(is_best, 0.0, -jnp.inf))
    else:
        action = jnp.argmax(is_best)
    return jnp.where(jnp.all(jnp.isfinite(q_tilde)), action, -1).astype(jnp.int32)


def kql_step(cfg: KQLConfig, state: KQLState, transition: Transition) -> tuple[KQLState, KQLInfo]:
    """Learns from one transition (lines 10 to 23 of Algorithm 1).

    Outside jit a transition with wrong values raises ValueError. Inside jit it is left out and `info.is_valid` says so;
    the same holds for one past the capacity, `info.is_full`.

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
    cfg: KQLConfig, state: KQLState, transition: Transition, obs: Any, key: Array | None = None
) -> tuple[KQLState, KQLInfo, Array, Array]:
    """`kql_step` and then `kql_act` at `obs` `[l]`, the observation the environment is in now, for the price of one.

    `obs` is `transition.next_obs`, or the first observation of a new episode. Both functions ask the same arrays for
    different columns; here they share the pass.

    Returns:
      state, info: as `kql_step`.
      action, q_tilde: as `kql_act` with the new state.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=10)
      >>> state, obs = kqljax.kql_init(cfg, obs_dim=2), jnp.array([0.1, -0.2])
      >>> moved = kqljax.Transition(obs, 0, 0.0, obs, False)
      >>> state, info, action, q_tilde = jax.jit(kqljax.kql_step_and_act)(cfg, state, moved, obs)
      >>> int(state.num_stored), action.shape, q_tilde.shape
      (1, (), (3,))
    """
    state, info, q_tilde = _learn(cfg, state, transition, checks.check_obs(state, obs))
    assert q_tilde is not None
    return state, info, choose(cfg, q_tilde, key), q_tilde


def _learn(
    cfg: KQLConfig, state: KQLState, transition: Transition, query: Array | None
) -> tuple[KQLState, KQLInfo, Array | None]:
    """One step of Algorithm 1, and Q-tilde_{t+1} `[A]` at the state `query` where there is one."""
    checks.check_transition(cfg, state, transition)
    cfg = in_dtype(cfg, state.reward.dtype)
    engine = cfg.engine

    is_valid = checks.is_valid(cfg.num_actions, transition)
    obs, next_obs, reward = (
        jnp.where(is_valid, jnp.asarray(value, state.reward.dtype), 0.0)
        for value in (transition.obs, transition.next_obs, transition.reward)
    )

    # Lines 10-14, Q-tilde_t at the states reached before, is in the table; so are the targets of those steps.
    targets = None if cfg.is_lazy else targets_of(cfg, state)
    glance = engine.glance(state.posterior, obs, transition.action, next_obs, query, targets, is_valid)

    # Lines 6-7 for the state just reached: the row Q-tilde_t[t + 1] that line 23 needs.
    next_q_tilde = optimistic(cfg, glance.next_mean, glance.next_width_sq)
    next_value = jnp.where(transition.terminated, cfg.terminal_value, jnp.max(next_q_tilde))
    target = reward + cfg.gamma * next_value

    # Lines 15-17: W_{t+1}; with the targets, the weights of Q-hat_{t+1} (line 23).
    posterior, table, learned = engine.learn(state.table, glance, target)

    # Lines 18-22: widths at all states reached; and Q-hat_{t+1} there, for lines 10-14 of the next step.
    if cfg.is_lazy:
        q_tilde = write(state.q_tilde, learned.slot, next_q_tilde, learned.slot < state.capacity)
    else:
        table = engine.refresh(posterior, table, learned)
        q_tilde = optimistic(cfg, table.mean, table.width_sq)
    has_row = learned.is_stored & (learned.slot < state.capacity)
    state = KQLState(
        posterior=posterior,
        table=table,
        q_tilde=q_tilde,
        reward=write(state.reward, learned.slot, reward, has_row),
        terminated=write(state.terminated, learned.slot, jnp.asarray(transition.terminated, bool), has_row),
    )
    if cfg.is_lazy:
        # After the new row was written: reading others before would make XLA copy the arrays at every step.
        state = _refresh_rows(cfg, state, learned.is_stored)
    for _ in range(cfg.backups - 1):
        state = _backup(cfg, state, learned.is_stored)

    info = KQLInfo(
        is_stored=learned.is_stored,
        is_full=learned.is_full,
        is_valid=is_valid,
        is_finite=_is_finite(cfg, state, next_q_tilde) & jnp.isfinite(learned.residual),
        residual=jnp.where(learned.is_stored, learned.residual, 0.0),
        width=jnp.sqrt(learned.width_sq),
        feature_error=learned.feature_error,
    )
    if query is None:
        return state, info, None
    # Lines 5-8 of the next step, at the state it will act in.
    return state, info, optimistic(cfg, *engine.asked(state.posterior, glance, learned))


def _is_finite(cfg: KQLConfig, state: KQLState, next_q_tilde: Array) -> Array:
    """`[]` bool: all values of the table are numbers. A lazy table changes in a few rows a step: the weights stand for it."""
    if cfg.is_lazy:
        return jnp.all(jnp.isfinite(next_q_tilde)) & jnp.all(jnp.isfinite(state.posterior.weights))
    return jnp.all(jnp.isfinite(state.q_tilde))


def _backup(cfg: KQLConfig, state: KQLState, is_wanted: Array) -> KQLState:
    """One more Bellman backup on the stored transitions: new targets, weights and values, same widths."""
    solved = cfg.engine.solve(state.posterior, state.table, targets_of(cfg, state))

    def pick(new: Array, old: Array) -> Array:
        # Most arrays are the same object before and after: a select over them could become a copy.
        return old if new is old else jnp.where(is_wanted, new, old)

    posterior, table = jax.tree.map(pick, solved, (state.posterior, state.table))
    return state._replace(posterior=posterior, table=table, q_tilde=optimistic(cfg, table.mean, table.width_sq))


def optimistic(cfg: KQLConfig, q_hat: Array, width_sq: Array) -> Array:
    """Q-tilde = clip(Q-hat + beta * Gamma-hat) to [0, 1 / (1 - gamma)]."""
    return jnp.clip(q_hat + cfg.beta * jnp.sqrt(width_sq), 0.0, 1.0 / (1.0 - cfg.gamma))


def targets_of(cfg: KQLConfig, state: KQLState) -> Array:
    """y_tau = r_tau + gamma max_a Q-tilde[tau][a] `[T]`, the terminal value where the task ended; 0 in empty slots."""
    return jnp.where(state.posterior.is_taken, targets_from(cfg, state.reward, state.terminated, state.q_tilde), 0.0)


def targets_from(cfg: KQLConfig, reward: Array, terminated: Array, q_tilde: Array) -> Array:
    """y `[T]` from rewards, ends and values `[T, A]` of the states reached."""
    return reward + cfg.gamma * jnp.where(terminated, cfg.terminal_value, jnp.max(q_tilde, axis=-1))


# Lazy tables ---------------------------------------------------------------------------------------------------------


def _refresh_rows(cfg: KQLConfig, state: KQLState, is_wanted: Array) -> KQLState:
    """Lines 10-14 and 18-22 for some neighbouring rows of the table, drawn at random, from the posterior as it is."""
    assert cfg.features is not None
    assert cfg.refresh_rows is not None
    posterior, table, rows = state.posterior, state.table, min(cfg.refresh_rows, state.capacity)
    if rows < state.capacity:
        stored = jnp.minimum(posterior.next_slot, state.capacity)
        # A key of the library's own: which rows are looked at has nothing to do with the run's random numbers. The block may
        # hang over either end, where it is pushed back, so that the first and last rows have their turn as often as others.
        drawn = jax.random.randint(jax.random.fold_in(jax.random.key(0), posterior.next_slot), (), 1 - rows, stored)
        start = jnp.clip(drawn, 0, jnp.maximum(stored - rows, 0))
        condensed = weights.as_it_is(posterior)
    else:
        start, condensed = jnp.zeros((), jnp.int32), weights.condense(posterior)

    def cut(array: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(array, start, rows)

    def take(array: Array) -> Array:
        # A gather: XLA would merge a slice with the write before it, and copy the large array for that.
        return jnp.take(array, start + jnp.arange(rows), axis=0, mode="clip")

    def put(array: Array, part: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(array, jnp.where(is_wanted, part, cut(array)), start, 0)

    psi = take(table.psi)
    mean, width_sq = weights.at_features(condensed, psi)
    width_sq = width_sq + jax.vmap(cfg.features.residual)(take(table.obs), psi) / cfg.lam
    q_tilde = optimistic(cfg, mean, width_sq)
    action = cut(posterior.action)
    is_taken = jnp.sum(action, axis=-1) > 0
    targets = jnp.where(is_taken, targets_from(cfg, cut(state.reward), cut(state.terminated), q_tilde), 0.0)
    change = jnp.where(is_wanted, targets - cut(posterior.targets), 0.0)[:, None] * action
    return state._replace(
        posterior=posterior._replace(
            targets=put(posterior.targets, targets), moment=posterior.moment + dot(take(posterior.psi).T, change)
        ),
        table=table._replace(mean=put(table.mean, mean), width_sq=put(table.width_sq, width_sq)),
        q_tilde=put(state.q_tilde, q_tilde),
    )
