"""Algorithm 1 in function space, exactly: O(t^2) a step.

With t stored pairs, their Gram matrix K, targets y and the kernel vector k_x of a pair x,

    mean(x)    = k_x^T (K + lam I)^-1 y                                  (the paper's Q-hat)
    width(x)^2 = (k(x, x) - k_x^T (K + lam I)^-1 k_x) / lam              (the paper's Gamma-hat^2).

The posterior keeps the inverse Cholesky factor P = L^-1, L L^T = K + lam I, the whitener. A new
pair adds a row to it, and all that a step needs are products with P and P^T: no triangular solve,
which is latency-bound on accelerators, and no inverse, whose widths are less exact by about 1 /
sqrt(lam).

    f = P k_x,  kappa = lam + k(x, x) - |f|^2,  v = e_t - P^T f,  new row of P: v^T / sqrt(kappa).

v carries every change. At a pair z with change(z) = k_z^T v the mean rises by
change(z) (y - f^T P y) / kappa, and the squared width falls by change(z)^2 / (lam kappa).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from kqljax._arrays import dot, few_columns, in_dtype, pad, register
from kqljax._checks import X64_REMEDY, is_known
from kqljax.engines.base import Sizes, Work, diagonal, pad_actions, put, put_slice, shared
from kqljax.kernels import Kernel, Pair, every_action, num_terms
from kqljax.state import Prediction, Transition

Array = jax.Array


class ExactPosterior(NamedTuple):
    """Kernel ridge regression on the pairs seen so far; zeros in slots without a pair.

    Attributes:
      kernel: the kernel.
      lam: `[]` ridge parameter.
      next_slot: `[]` int32, where the next pair goes; it moves on at every call.
      obs: `[l, T]` states of the stored pairs.
      action: `[T]` int32, their actions; -1 in empty slots, which masks them.
      next_obs: `[l, T]` the states reached from them, to which the rows belong.
      whitener: P, lower triangular, in blocks of rows `[rows_b, columns_b]`, of which the last is
        written to. A block has as many columns as there were slots when it was the last one.
      cross: `[T, J T]` the kernel's J state terms between states reached and stored pairs.
      alpha: `[T]` (K + lam I)^-1 y.
      rows: prediction `[A, T]` at the states reached.
    """

    kernel: Kernel
    lam: Array
    next_slot: Array
    obs: Array
    action: Array
    next_obs: Array
    whitener: tuple[Array, ...]
    cross: Array
    alpha: Array
    rows: Prediction

    @property
    def capacity(self) -> int:
        """T."""
        return self.alpha.shape[-1]


class Parts(NamedTuple):
    """The exact engine's part of `Work`; C columns: new pair, targets, next and query by action.

    Attributes:
      pair: the new pair.
      columns: `[T, C]` kernel vectors, and the targets.
      whitened: `[T, C]` P columns.
      overlaps: `[C, C]` whitened^T whitened.
      terms: `[J T]` state terms between the stored pairs, with the new one, and the state reached.
      query_change: `[A]` change at the query; None where none was asked.
      direction: `[T]` v, after `update`.
      gain: `[]` 1 / kappa, after `update`; 0 where nothing is stored.
    """

    pair: Pair
    columns: Array
    whitened: Array
    overlaps: Array
    terms: Array
    query_change: Array | None
    direction: Array
    gain: Array


@register
@dataclasses.dataclass(frozen=True)
class Exact:
    """The exact engine, the default: O(T^2) numbers and operations a step.

    In float32 it needs a larger lam than the paper's and refuses what would diverge.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=100)
      >>> cfg.engine
      Exact()
    """

    def validate(self, kernel: Kernel, lam: Any, sizes: Sizes) -> None:
        """Refuses float32 where lam is too small for it."""
        if sizes.dtype != np.dtype("float32"):
            return
        capacity, least = sizes.capacity, least_float32_lam(sizes.capacity)
        if lam is None:
            raise ValueError(
                f"the exact engine needs float64, or float32 with lam of at least {least:.2g} at "
                f"{capacity} transitions (docs/numerics.md), and inside jit it cannot see lam. "
                f"{X64_REMEDY} Or give dtype=jnp.float32 and watch KQLInfo.is_finite and residual."
            )
        if is_known(lam) and (smallest := float(np.min(np.asarray(lam)))) < least:
            raise ValueError(
                f"the exact engine cannot keep its factor in float32 at lam={smallest:.3g} and "
                f"{capacity} transitions: it would diverge (docs/numerics.md). Use float64, lam of "
                f"at least {least:.2g}, or engine=kqljax.Weights(features). {X64_REMEDY}"
            )

    def check(self, posterior: ExactPosterior, kernel: Kernel, num_actions: int) -> int:
        if not isinstance(posterior, ExactPosterior):
            raise ValueError(
                f"the config has the engine Exact, the state has a {type(posterior).__name__}: "
                "another engine made it. Make the state with kql_init and this config."
            )
        obs_dim = posterior.obs.shape[-2]
        stored = posterior.cross.shape[-1] // posterior.cross.shape[-2]
        terms = num_terms(kernel, obs_dim, num_actions)
        if terms != stored:
            raise ValueError(
                f"the state stores {stored} terms a pair, the kernel {type(kernel).__name__} has "
                f"{terms}: the state was made with another kernel. Make it with kql_init and this "
                "config."
            )
        return obs_dim

    def init(self, kernel: Kernel, lam: Any, sizes: Sizes) -> ExactPosterior:
        num_actions, capacity, obs_dim, dtype = sizes
        kernel, lam = in_dtype((kernel, lam), dtype)
        zeros = functools.partial(jnp.zeros, dtype=dtype)
        terms = num_terms(kernel, obs_dim, num_actions)
        return ExactPosterior(
            kernel=kernel,
            lam=lam,
            next_slot=jnp.zeros((), jnp.int32),
            obs=zeros((obs_dim, capacity)),
            action=jnp.full((capacity,), -1, jnp.int32),
            next_obs=zeros((obs_dim, capacity)),
            whitener=(zeros((capacity, capacity)),),
            cross=zeros((capacity, terms * capacity)),
            alpha=zeros((capacity,)),
            rows=Prediction(zeros((num_actions, capacity)), zeros((num_actions, capacity))),
        )

    def resize(self, posterior: ExactPosterior, capacity: int, is_full: bool) -> ExactPosterior:
        """Where no slot is free the last block of the whitener is closed: fewer zeros to read."""
        old, more = posterior.capacity, capacity - posterior.capacity
        *closed, last = posterior.whitener
        new = (
            (last, jnp.zeros((more, capacity), last.dtype)) if is_full else (pad(last, more, 0, 1),)
        )
        cross = pad(posterior.cross.reshape(old, -1, old), more, 0, 2).reshape(capacity, -1)
        obs, next_obs, rows = jax.tree.map(
            lambda array: pad(array, more, 1), (posterior.obs, posterior.next_obs, posterior.rows)
        )
        next_slot = posterior.next_slot
        return posterior._replace(
            next_slot=jnp.maximum(next_slot, old) if is_full else next_slot,
            obs=obs,
            action=pad_actions(posterior.action, more),
            next_obs=next_obs,
            whitener=(*closed, *new),
            cross=cross,
            alpha=pad(posterior.alpha, more, 0),
            rows=rows,
        )

    def prepare(
        self,
        posterior: ExactPosterior,
        transition: Transition,
        is_valid: Array,
        targets: Array,
        query: Array | None,
    ) -> tuple[ExactPosterior, Work]:
        kernel, lam, capacity = posterior.kernel, posterior.lam, posterior.capacity
        num_actions = posterior.rows.mean.shape[0]
        slot = shared(posterior.next_slot)
        is_full = slot >= capacity
        is_stored = is_valid & ~is_full
        # A full state sees its last transition again: its row and its column are made as they are,
        # so that the writes below need not read an old value to keep it.
        wanted = (transition.obs, jnp.where(is_valid, transition.action, -1), transition.next_obs)
        kept = (posterior.obs, posterior.action, posterior.next_obs)
        obs, action, next_obs = (
            jnp.where(is_full, stored[..., -1], new)
            for stored, new in zip(kept, wanted, strict=True)
        )
        chosen = jax.nn.one_hot(action, num_actions, dtype=targets.dtype)
        pair = Pair(obs, chosen)

        # The whitener has zeros where the new pair goes: the kernel vectors may have it already.
        at = jnp.minimum(slot, capacity - 1)
        posterior = posterior._replace(
            next_slot=jnp.minimum(slot + 1, capacity),
            obs=put_slice(posterior.obs, at, obs, 1),
            action=put_slice(posterior.action, at, action, 0),
            next_obs=put_slice(posterior.next_obs, at, next_obs, 1),
        )
        states = [obs, next_obs] + ([] if query is None else [query])
        terms = [state_terms(kernel, state, posterior) for state in states]
        scale, shift = mixing(posterior)
        vectors = [kernel_vectors(scale, shift, each) for each in terms]
        new = jnp.sum(vectors[0] * chosen[:, None], axis=0)
        by_action = [row for each in vectors[1:] for row in each]
        columns = jnp.stack([new, targets, *by_action], axis=1)

        # Everything that this step asks of W_t.
        whitened = whiten(posterior, columns)
        overlaps = dot(whitened.T, whitened)
        explained = diagonal(overlaps)
        own = self_kernel(kernel, jnp.stack(states), num_actions)
        of_next, of_query = (slice(2 + i * num_actions, 2 + (i + 1) * num_actions) for i in (0, 1))
        mean = dot(posterior.alpha, columns)
        next_ = Prediction(mean[of_next], variance(own[1], explained[of_next]) / lam)
        asked = change = None
        if query is not None:
            # Where nothing is stored the weights stay too, and the new targets are not used.
            updated = jnp.where(is_stored, overlaps[1, of_query], mean[of_query])
            asked = Prediction(updated, variance(own[2], explained[of_query]) / lam)
            prior = jax.vmap(lambda at: kernel.evaluate(at, pair))(every_action(query, num_actions))
            change = prior - overlaps[0, of_query]
        width_sq = variance(jnp.sum(own[0] * chosen), explained[0]) / lam
        of_row = jnp.where(jnp.sum(chosen) > 0, terms[1].ravel(), 0.0)
        parts = Parts(pair, columns, whitened, overlaps, of_row, change, targets, width_sq)
        none = jnp.zeros((), targets.dtype)
        return posterior, Work(next_, asked, slot, is_stored, width_sq, width_sq, none, parts)

    def update(
        self, posterior: ExactPosterior, work: Work, target: Array
    ) -> tuple[ExactPosterior, Work]:
        parts, lam, is_stored, slot = work.parts, posterior.lam, work.is_stored, work.slot
        kappa = lam + lam * work.width_sq
        gain = jnp.where(is_stored, 1.0 / kappa, 0.0)
        error = target - parts.overlaps[0, 1]
        # One pass over the old whitener: XLA would copy it for a second reader of the new one.
        known, alpha = unwhiten(posterior, jnp.stack([parts.whitened[:, 0], parts.whitened[:, 1]]))
        direction = (jnp.arange(posterior.capacity) == slot) - known
        alpha = jnp.where(is_stored, alpha + direction * (error * gain), posterior.alpha)
        *closed, last = posterior.whitener
        row = jnp.minimum(slot, posterior.capacity - 1) - (posterior.capacity - last.shape[0])
        old = lax.dynamic_index_in_dim(last, row, keepdims=False)
        new = jnp.where(is_stored, direction / jnp.sqrt(kappa), old)
        query = work.query
        if query is not None:
            change = parts.query_change
            query = Prediction(
                query.mean + change * (error * gain),
                jnp.maximum(query.width_sq - change**2 * gain / lam, 0.0),
            )
        # (K + lam I) alpha - y in the row of the new pair: 0 in exact arithmetic.
        residual = jnp.abs(jnp.sum(parts.columns[:, 0] * alpha) + lam * error * gain - target)
        posterior = posterior._replace(
            whitener=(*closed, put_slice(last, row, new, 0)), alpha=alpha
        )
        return posterior, work._replace(
            query=query,
            residual=jnp.where(is_stored, residual, 0.0),
            parts=parts._replace(direction=direction, gain=gain),
        )

    def refresh(self, posterior: ExactPosterior, work: Work) -> ExactPosterior:
        parts, slot, capacity = work.parts, work.slot, posterior.capacity
        kernel, rows, lam = posterior.kernel, posterior.rows, posterior.lam
        # The state just reached against all pairs, and the new pair against all states reached.
        last = jnp.minimum(slot, capacity - 1)
        cross = put_slice(posterior.cross, last, parts.terms, 0)
        column = jax.vmap(lambda obs: kernel.terms(obs, parts.pair), in_axes=1, out_axes=1)(
            posterior.next_obs
        )
        column = jnp.where(jnp.sum(parts.pair.action) > 0, column, 0.0)
        for term in range(column.shape[0]):
            cross = put_slice(cross, term * capacity + last, column[term], 1)
        scale, shift = mixing(posterior)
        vectors = jnp.stack([posterior.alpha, parts.direction])
        # Stacked along the last axis, and a barrier behind the product: a transpose on either side
        # would be folded into the product, which is slow on a CPU.
        weighted = [scale[:, a] * vector for vector in vectors for a in range(scale.shape[1])]
        columns = jnp.stack(weighted, axis=-1).reshape(cross.shape[1], -1)
        out = lax.optimization_barrier(few_columns(cross, columns)).T
        if shift is not None:
            out = out + dot(vectors, shift.T).reshape(-1, 1)
        mean, change = out.reshape(2, -1, capacity)
        before = put(rows.width_sq, slot, work.next.width_sq, work.is_stored)
        width_sq = jnp.maximum(before - change**2 * (parts.gain / lam), 0.0)
        return posterior._replace(cross=cross, rows=Prediction(mean, width_sq))

    def predictor(self, posterior: ExactPosterior, reuse: bool) -> ExactPosterior:
        return posterior

    def predict(self, predictor: ExactPosterior, obs: Array) -> Prediction:
        posterior, num_actions = predictor, predictor.rows.mean.shape[0]
        scale, shift = mixing(posterior)

        def vectors(state: Array) -> Array:
            return kernel_vectors(scale, shift, state_terms(posterior.kernel, state, posterior))

        columns = jax.vmap(vectors)(obs).reshape(-1, posterior.capacity).T
        explained = jnp.sum(whiten(posterior, columns) ** 2, axis=0).reshape(-1, num_actions)
        own = self_kernel(posterior.kernel, obs, num_actions)
        # An observation that is not a number must not go unnoticed where no pair is stored.
        own = jnp.where(jnp.isfinite(jnp.sum(obs, axis=1, keepdims=True)), own, jnp.nan)
        mean = dot(posterior.alpha, columns).reshape(-1, num_actions)
        return Prediction(mean.T, (variance(own, explained) / posterior.lam).T)


def least_float32_lam(capacity: int) -> float:
    """The smallest lam that the exact engine takes in float32, 32 T eps.

    Rounding perturbs the Gram matrix, with eigenvalues up to T, by about T eps. With lam well
    above, Q-hat stays within 1% of its range (benchmarks/numerics.py).
    """
    return 32 * capacity * float(np.finfo(np.float32).eps)


def variance(own: Array, explained: Array) -> Array:
    """k(x, x) minus what the stored pairs explain of it; rounding may say that it is negative."""
    return jnp.maximum(own - explained, 0.0)


def state_terms(kernel: Kernel, state: Array, posterior: ExactPosterior) -> Array:
    """State terms `[J, T]` between a state `[l]` and stored pairs; 0, never NaN, in empty slots."""
    num_actions = posterior.rows.mean.shape[0]
    action = jax.nn.one_hot(posterior.action, num_actions, dtype=state.dtype)
    stored = Pair(posterior.obs.T, action)
    terms = jax.vmap(lambda pair: kernel.terms(state, pair), out_axes=1)(stored)
    return jnp.where(posterior.action >= 0, terms, 0.0)


def mixing(posterior: ExactPosterior) -> tuple[Array, Array | None]:
    """Scale `[J, A, T]` and shift `[A, T]` that make state terms the kernel with stored pairs."""
    num_actions = posterior.rows.mean.shape[0]
    scale, shift = posterior.kernel.mixing(
        posterior.obs.shape[0], num_actions, posterior.alpha.dtype
    )

    def at_stored(weights: Array) -> Array:  # elementwise, so that it fuses
        parts = (
            jnp.where(posterior.action == b, weights[..., b, None], 0.0) for b in range(num_actions)
        )
        return functools.reduce(jnp.add, parts)

    return at_stored(scale), None if shift is None else at_stored(shift)


def kernel_vectors(scale: Array, shift: Array | None, terms: Array) -> Array:
    """Kernel `[A, T]` of a state with every action and the stored pairs, from terms `[J, T]`."""
    vectors = functools.reduce(jnp.add, (terms[j] * scale[j] for j in range(len(terms))))
    return vectors if shift is None else vectors + shift


def self_kernel(kernel: Kernel, states: Array, num_actions: int) -> Array:
    """k(x, x) `[n, A]` of states `[n, l]` with every action."""
    return jax.vmap(lambda state: kernel.diag(every_action(state, num_actions)))(states)


def whiten(posterior: ExactPosterior, columns: Array) -> Array:
    """P C for columns C `[T, C]`."""
    blocks = posterior.whitener
    return jnp.concatenate([few_columns(block, columns[: block.shape[1]]) for block in blocks])


def unwhiten(posterior: ExactPosterior, rows: Array) -> Array:
    """F P for rows F `[N, T]`: P^T f for each of them."""
    parts: list[Array] = []
    start = 0
    for block in posterior.whitener:
        height, width = block.shape
        part = dot(rows[:, start : start + height], block)
        parts.append(pad(part, posterior.capacity - width, 1))
        start += height
    return functools.reduce(jnp.add, parts)
