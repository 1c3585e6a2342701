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

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from kqljax import checks
from kqljax.errors import is_known
from kqljax.kernels import Kernel, Pair
from kqljax.posterior import gram
from kqljax.pytrees import register

Array = jax.Array

TIE_BREAKS = ("first", "random")


@functools.partial(register, static=("num_actions", "horizon", "backups", "tie_break"))
@dataclasses.dataclass(frozen=True, kw_only=True)
class KQLConfig:
    """What Algorithm 1 takes as parameters.

    Numbers and the kernel's parameters are pytree leaves: changing or vmapping them does not recompile. Defaults of
    `lam` and `beta` are the paper's and are computed when the config is made; to change gamma or the horizon and keep
    them, make a new config.

    Attributes:
      kernel: kernel on (state, action) pairs.
      num_actions: A (static).
      horizon: T, transitions that the state can hold (static).
      gamma: discount factor in [0, 1).
      lam: ridge parameter, by default 1 / (10 T).
      beta: confidence width, by default sqrt(lam) / (1 - gamma).
      terminal_value: value of the absorbing state after termination.
      backups: Bellman backups a step; the paper makes one (static).
      tie_break: "first" or "random", which of several maximal actions is taken (static).
    """

    kernel: Kernel
    num_actions: int
    horizon: int
    gamma: Any = 0.95
    lam: Any = None
    beta: Any = None
    terminal_value: Any = 0.0
    backups: int = 1
    tie_break: str = "first"

    def __post_init__(self) -> None:
        # Defaults, and of values only what they need: leaves may be tracers. The rest is for validate().
        checks.check_static(self)
        if self.lam is None:
            object.__setattr__(self, "lam", 1.0 / (10 * self.horizon))
        if self.beta is None:
            if is_known(self.gamma, self.lam):
                checks.check_gamma_and_lam(self.gamma, self.lam)
            object.__setattr__(self, "beta", self.lam**0.5 / (1 - self.gamma))

    def validate(self, obs_dim: int | None = None) -> KQLConfig:
        """Raises ValueError where a value is out of range; returns the config.

        With `obs_dim`, also warns (`NormalisationWarning`) where the kernel leaves the paper's normalisation
        ||K_x|| in [1/2, 1] on observations in [-1, 1]^l. Call it outside jit.
        """
        checks.check_config(self, obs_dim)
        return self


class Transition(NamedTuple):
    """One step of the environment.

    Attributes:
      obs: `[l]` normalised observation s_t.
      action: `[]` integer a_t in 0..A-1.
      reward: `[]` reward in [0, 1].
      next_obs: `[l]` the true successor, never the observation after a reset.
      terminated: `[]` bool, the task ended (a time limit is not an end).
    """

    obs: Any
    action: Any
    reward: Any
    next_obs: Any
    terminated: Any


class KQLState(NamedTuple):
    """What the next step needs.

    Attributes:
      posterior: the stored pairs (s_tau, a_tau) and the regression on them.
      table: Q-hat and squared width at the successors s'_tau for every action, `[T, A]` each.
      q_tilde: `[T, A]` clipped optimistic value at the successors; rows of empty slots mean nothing.
      reward: `[T]`.
      terminated: `[T]` bool.
    """

    posterior: gram.GramPosterior
    table: gram.Table
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
      is_stored: `[]` bool, the transition was taken in; where False the state is unchanged.
      is_full: `[]` bool, no slot was free for it.
      is_valid: `[]` bool, finite observations, reward in [0, 1], action in range.
      is_finite: `[]` bool, every Q-tilde in the table and the residual are finite numbers.
      residual: `[]` |(K + lam I) alpha - y| at the new pair, in units of value; a certificate of the arithmetic.
      width: `[]` Gamma-hat_t at the new pair before it was stored.
    """

    is_stored: Array
    is_full: Array
    is_valid: Array
    is_finite: Array
    residual: Array
    width: Array


def kql_init(cfg: KQLConfig, obs_dim: int, dtype: Any = None, capacity: int | None = None) -> KQLState:
    """An empty state for observations `[obs_dim]`.

    Args:
      cfg: configuration; its values are checked unless they are traced.
      obs_dim: l.
      dtype: float64 or float32; by default the widest that jax has enabled.
      capacity: room to begin with, by default `cfg.horizon`; see `kql_grow`.
    """
    dtype = checks.check_init(cfg, obs_dim, dtype, capacity)
    capacity = cfg.horizon if capacity is None else capacity
    posterior = gram.init(obs_dim, cfg.num_actions, capacity, dtype)
    return KQLState(
        posterior=posterior,
        table=gram.init_table(cfg.kernel, posterior, capacity),
        q_tilde=jnp.zeros((capacity, cfg.num_actions), dtype),
        reward=jnp.zeros((capacity,), dtype),
        terminated=jnp.zeros((capacity,), bool),
    )


def kql_grow(state: KQLState, capacity: int, is_full: bool = False) -> KQLState:
    """The same state with room for `capacity` transitions.

    A step costs O(capacity^2): a long run that starts small and grows in stages is faster than one that starts full.
    `is_full` is the caller's word that no slot is free, which makes the stages cheaper still; see `gram.grow`.
    """
    posterior = gram.grow(state.posterior, capacity, is_full)
    more = capacity - state.capacity
    return KQLState(
        posterior=posterior,
        table=gram.grow_table(state.table, capacity, state.capacity, capacity),
        q_tilde=jnp.pad(state.q_tilde, ((0, more), (0, 0))),
        reward=jnp.pad(state.reward, (0, more)),
        terminated=jnp.pad(state.terminated, (0, more)),
    )


def kql_predict(cfg: KQLConfig, state: KQLState, obs: Any) -> tuple[Array, Array]:
    """Q-hat `[A]` and width Gamma-hat `[A]` at one observation `[l]`."""
    checks.check_state(cfg, state)
    obs = checks.check_obs(state, obs)
    return gram.predict(cfg.kernel, cfg.lam, state.posterior, obs)


def kql_act(cfg: KQLConfig, state: KQLState, obs: Any, key: Array | None = None) -> tuple[Array, Array]:
    """The action that maximises Q-tilde (lines 5 to 9 of Algorithm 1).

    Args:
      key: random key, needed only where `cfg.tie_break` is "random".

    Returns:
      action: `[]` int32; -1 where a value is not a number, which `kql_step` refuses.
      q_tilde: `[A]`.
    """
    q_hat, width = kql_predict(cfg, state, obs)
    cfg = gram.in_dtype(cfg, q_hat.dtype)
    q_tilde = _optimistic(cfg, q_hat, width)
    return _choose(cfg, q_tilde, key), q_tilde


def _choose(cfg: KQLConfig, q_tilde: Array, key: Array | None) -> Array:
    """Line 9: an action `[]` of maximal Q-tilde `[A]`; -1 where a value is not a number."""
    if cfg.tie_break == "random":
        key = checks.check_key(key)
        is_best = q_tilde == jnp.max(q_tilde)
        action = jax.random.categorical(key, jnp.where(is_best, 0.0, -jnp.inf))
    else:
        action = jnp.argmax(q_tilde)
    return jnp.where(jnp.all(jnp.isfinite(q_tilde)), action, -1).astype(jnp.int32)


def kql_step(cfg: KQLConfig, state: KQLState, transition: Transition) -> tuple[KQLState, KQLInfo]:
    """Learns from one transition (lines 10 to 23 of Algorithm 1).

    Outside jit a transition with wrong values raises ValueError. Inside jit it is left out and `info.is_valid` says so;
    the same holds for one past the capacity, `info.is_full`.
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
    """
    state, info, q_tilde = _learn(cfg, state, transition, checks.check_obs(state, obs))
    assert q_tilde is not None
    return state, info, _choose(cfg, q_tilde, key), q_tilde


def _learn(
    cfg: KQLConfig, state: KQLState, transition: Transition, query: Array | None
) -> tuple[KQLState, KQLInfo, Array | None]:
    """One step of Algorithm 1, and Q-tilde_{t+1} `[A]` at the state `query` where there is one."""
    checks.check_transition(cfg, state, transition)
    cfg = gram.in_dtype(cfg, state.reward.dtype)
    kernel, lam = cfg.kernel, cfg.lam
    posterior = state.posterior

    is_valid = checks.is_valid(cfg.num_actions, transition)
    obs, next_obs, reward = (
        jnp.where(is_valid, jnp.asarray(value, state.reward.dtype), 0.0)
        for value in (transition.obs, transition.next_obs, transition.reward)
    )
    pair = gram.one_pair(posterior, obs, transition.action)

    # Lines 10-14, Q-tilde_t at the states reached before, is in the table; so are the targets of those steps.
    targets = _targets(cfg, state)

    # Everything this step asks of W_t in one pass: the new pair, the targets, and the state just reached.
    mixing = gram.stored_mixing(kernel, posterior.pairs)
    next_terms = gram.state_terms(kernel, posterior.pairs, next_obs)
    next_vectors = gram.kernel_vectors(mixing, next_terms)
    vectors = gram.kernel_vectors(mixing, gram.state_terms(kernel, posterior.pairs, obs))
    pair_vector = jnp.sum(vectors * pair.action, axis=1)
    parts = [pair_vector[:, None], targets[:, None], next_vectors]
    if query is not None:
        query_vectors = gram.kernel_vectors(mixing, gram.state_terms(kernel, posterior.pairs, query))
        parts.append(query_vectors)
    columns = jnp.concatenate(parts, axis=1)
    whitened = gram.whiten(posterior, columns)
    overlaps = jnp.matmul(whitened.T, whitened, precision=jax.lax.Precision.HIGHEST)

    # Lines 6-7 for the state just reached: the row Q-tilde_t[t + 1] that line 23 needs.
    of_next = slice(2, 2 + cfg.num_actions)
    explained = jnp.diagonal(overlaps)
    next_q_hat = jnp.matmul(posterior.weights, columns, precision=jax.lax.Precision.HIGHEST)[of_next]
    next_own = gram.self_kernel(kernel, next_obs, cfg.num_actions)
    next_width_sq = jnp.maximum(next_own - explained[of_next], 0.0) / lam
    next_value = jnp.max(_optimistic(cfg, next_q_hat, jnp.sqrt(next_width_sq)))
    target = reward + cfg.gamma * jnp.where(transition.terminated, cfg.terminal_value, next_value)

    # Lines 15-17: u, s and W_{t+1}; with the targets, the weights of Q-hat_{t+1} (line 23).
    own = kernel.evaluate(pair, pair)
    posterior, update = gram.border(
        lam, posterior, pair, own, whitened[:, 0], explained[0], targets, whitened[:, 1], overlaps[0, 1], target,
        is_valid,
    )  # fmt: skip
    slot, is_stored = state.posterior.next_slot, update.is_stored

    # Lines 18-22: widths at all states reached; and Q-hat_{t+1} there, for lines 10-14 of the next step.
    table = gram.put_row(state.table, slot, next_obs, next_terms, next_q_hat, next_width_sq, is_stored)
    table = gram.refresh(kernel, lam, posterior, table, update)
    is_written = (jnp.arange(state.capacity) == slot) & is_stored
    state = KQLState(
        posterior=posterior,
        table=table,
        q_tilde=_optimistic(cfg, table.mean, jnp.sqrt(table.width_sq)),
        reward=jnp.where(is_written, reward, state.reward),
        terminated=jnp.where(is_written, transition.terminated, state.terminated),
    )
    for _ in range(cfg.backups - 1):
        state = _backup(cfg, state, is_stored)

    # (K + lam I) alpha - y in the row of the new pair: 0 in exact arithmetic.
    fitted = jnp.matmul(posterior.weights, columns, precision=jax.lax.Precision.HIGHEST)[0]
    newest = jnp.minimum(slot, state.capacity - 1)
    residual = jnp.abs(fitted + (own + lam) * posterior.weights[newest] - target)
    info = KQLInfo(
        is_stored=is_stored,
        is_full=slot >= state.capacity,
        is_valid=is_valid,
        is_finite=jnp.all(jnp.isfinite(state.q_tilde)) & jnp.isfinite(residual),
        residual=jnp.where(is_stored, residual, 0.0),
        width=jnp.sqrt(update.width_sq),
    )
    if query is None:
        return state, info, None

    # Lines 5-8 of the next step, at the state it will act in.
    every_action = jnp.eye(cfg.num_actions, dtype=query.dtype)
    of_newest = jax.vmap(lambda action: kernel.evaluate(Pair(query, action), pair))(every_action)
    query_vectors = jnp.where(is_written[:, None], of_newest, query_vectors)
    both = jnp.stack([state.posterior.weights, update.direction])
    q_hat, change = jnp.matmul(both, query_vectors, precision=jax.lax.Precision.HIGHEST)
    query_own = gram.self_kernel(kernel, query, cfg.num_actions)
    before = jnp.maximum(query_own - explained[2 + cfg.num_actions :], 0.0) / lam
    after = jnp.maximum(before - change**2 / (lam * update.kappa), 0.0)
    width_sq = jnp.where(is_stored, after, before)
    return state, info, _optimistic(cfg, q_hat, jnp.sqrt(width_sq))


def _optimistic(cfg: KQLConfig, q_hat: Array, width: Array) -> Array:
    """Q-tilde = clip(Q-hat + beta * Gamma-hat) to [0, 1 / (1 - gamma)]."""
    return jnp.clip(q_hat + cfg.beta * width, 0.0, 1.0 / (1.0 - cfg.gamma))


def _targets(cfg: KQLConfig, state: KQLState) -> Array:
    """y_tau = r_tau + gamma max_a Q-tilde[tau][a] `[T]`, the terminal value where the task ended; 0 in empty slots."""
    value = jnp.where(state.terminated, cfg.terminal_value, jnp.max(state.q_tilde, axis=1))
    return jnp.where(state.posterior.is_taken, state.reward + cfg.gamma * value, 0.0)


def _backup(cfg: KQLConfig, state: KQLState, is_wanted: Array) -> KQLState:
    """One more Bellman backup on the stored transitions: new targets, weights and values, same widths."""
    old = state.posterior
    new = gram.solve(old, _targets(cfg, state))
    targets, weights = jnp.where(is_wanted, new.targets, old.targets), jnp.where(is_wanted, new.weights, old.weights)
    (q_hat,) = gram.product(gram.stored_mixing(cfg.kernel, old.pairs), state.table.cross, weights)
    table = state.table._replace(mean=jnp.where(is_wanted, q_hat, state.table.mean))
    return state._replace(
        posterior=old._replace(targets=targets, weights=weights),
        table=table,
        q_tilde=_optimistic(cfg, table.mean, jnp.sqrt(table.width_sq)),
    )
