"""Streaming ridge regression on features, in weight space.

With features psi(s) `[m]` of states and a feature map's root R `[A, m, D]`, a pair (s, a) has the features R[a]^T psi(s)
`[D]`. The posterior keeps a square root of the covariance W of the weights, with R folded in: S, R / sqrt(lam) at first,
such that

    width(s, a)^2 = ||S[a]^T psi(s)||^2,        mean(s, a) = (S[a]^T psi(s)) . w,     w = sum over pairs of y S[a]^T psi(s).

A new pair with f = S[a]^T psi(s), n = ||f||^2 makes it S - c (S f) f^T, c = 1 / ((1 + n) + sqrt(1 + n)). Widths are sums of
squares that cannot go negative, and float32 is enough; the covariance itself, updated in float32, ruins learning
(docs/numerics.md).

What the features leave out of the kernel at a state, `FeatureMap.residual`, is never learned: `predict` and the engine add
residual / lam to the squared width, so that a state unlike all that the features were made for is as unknown as in the exact
engine.

    post = weights.init(features, lam, capacity=1000)
    post, _ = weights.append(features, post, obs, action, target)
    mean, width = weights.predict(features, lam, post, obs)        # [A], [A]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from kqljax.arrays import dot, few_columns, in_dtype, pad, write
from kqljax.features import FeatureMap

Array = jax.Array


class WeightPosterior(NamedTuple):
    """Ridge regression on features of the pairs seen so far.

    Attributes:
      next_slot: `[]` int32, where the next pair goes: the number of calls so far, also of pairs that were not wanted, so
        that all runs of a vmap write to the same slot, in place. Without a memory it stops at T.
      psi: `[T, m]` features of the stored pairs' states; zero in empty slots.
      action: `[T, A]` one-hot; zero in empty slots, which masks them.
      targets: `[T]` y of the stored pairs; those that a lazy table has just renewed tell from the next pair on.
      root: `[m, A, D]` S; features first, so that it is a matrix both as `[m, A D]` and as `[m A, D]`.
      rest: `[m, A]` sum of y psi over pairs that are no longer stored, by action.
      moment: `[m, A]` sum of y psi over all pairs, by action.
      white: `[D]` w = S^T moment.
      weights: `[m, A]` S w, so that the mean is psi . weights[:, a].
    """

    next_slot: Array
    psi: Array
    action: Array
    targets: Array
    root: Array
    rest: Array
    moment: Array
    white: Array
    weights: Array

    @property
    def capacity(self) -> int:
        """T, the pairs there is room for."""
        return self.psi.shape[-2]

    @property
    def is_taken(self) -> Array:
        """`[T]` bool, the slots that hold a pair."""
        return jnp.sum(self.action, axis=-1) > 0

    @property
    def num_stored(self) -> Array:
        """`[]` int32, pairs in slots."""
        return jnp.sum(self.is_taken, axis=-1, dtype=jnp.int32)

    @property
    def dtype(self) -> Any:
        """Of all floating-point arrays."""
        return self.root.dtype


class Update(NamedTuple):
    """What a new pair changed.

    Attributes:
      direction: `[m, A]` S f: the squared width at (z, b) falls by (psi(z) . direction[:, b])^2 / (1 + n).
      white: `[D]` f.
      width_sq: `[]` n, the squared width of the new pair before.
      shrink: `[]` c.
      is_wanted: `[]` bool; where False nothing changed.
    """

    direction: Array
    white: Array
    width_sq: Array
    shrink: Array
    is_wanted: Array


class Table(NamedTuple):
    """Mean and squared width at a list of states, for every action.

    Attributes:
      psi: `[R, m]` features of the states.
      obs: `[R, l]` the states.
      mean: `[R, A]`.
      width_sq: `[R, A]`.
    """

    psi: Array
    obs: Array
    mean: Array
    width_sq: Array


def init(features: FeatureMap, lam: Any, capacity: int, dtype: Any = None) -> WeightPosterior:
    """An empty posterior: mean 0, width as the prior's."""
    dtype = jnp.zeros((), dtype).dtype
    features, lam = in_dtype((features, lam), dtype)
    num_actions, num_features, num_weights = features.root.shape
    return WeightPosterior(
        next_slot=jnp.zeros((), jnp.int32),
        psi=jnp.zeros((capacity, num_features), dtype),
        action=jnp.zeros((capacity, num_actions), dtype),
        targets=jnp.zeros((capacity,), dtype),
        root=jnp.swapaxes(features.root, 0, 1) / jnp.sqrt(lam),
        rest=jnp.zeros((num_features, num_actions), dtype),
        moment=jnp.zeros((num_features, num_actions), dtype),
        white=jnp.zeros((num_weights,), dtype),
        weights=jnp.zeros((num_features, num_actions), dtype),
    )


def init_table(post: WeightPosterior, obs_dim: int, rows: int) -> Table:
    """A table with room for `rows` states, all empty."""
    num_features, num_actions, _ = post.root.shape
    return Table(
        psi=jnp.zeros((rows, num_features), post.dtype),
        obs=jnp.zeros((rows, obs_dim), post.dtype),
        mean=jnp.zeros((rows, num_actions), post.dtype),
        width_sq=jnp.zeros((rows, num_actions), post.dtype),
    )


def grow(post: WeightPosterior, capacity: int) -> WeightPosterior:
    """The same posterior with room for `capacity` pairs."""
    more = capacity - post.capacity
    if more < 0:
        raise ValueError(f"cannot shrink a posterior from capacity {post.capacity} to {capacity}: stored pairs would be lost.")
    return post._replace(psi=pad(post.psi, more, 0), action=pad(post.action, more, 0), targets=pad(post.targets, more, 0))


def grow_table(table: Table, rows: int) -> Table:
    """The same table with room for more states."""
    return Table(*(pad(column, rows - column.shape[0], 0) for column in table))


# Prediction ----------------------------------------------------------------------------------------------------------


def whiten(post: WeightPosterior, psi: Array) -> Array:
    """S[a]^T psi `[..., A, D]` for every action, from features `[..., m]`."""
    return _by_action(psi, post.root)


def _by_action(psi: Array, matrices: Array) -> Array:
    """`[..., m]` with `[m, A, K]` -> `[..., A, K]`, as one product of two matrices: batched ones are slow on CPU."""
    num_features, num_actions, width = matrices.shape
    return dot(psi, matrices.reshape(num_features, -1)).reshape(*psi.shape[:-1], num_actions, width)


def predict(features: FeatureMap, lam: Any, post: WeightPosterior, obs: Array) -> tuple[Array, Array]:
    """Mean `[A]` and width `[A]` at one state `[l]` with every action."""
    (features, lam), obs = in_dtype((features, lam), post.dtype), jnp.asarray(obs, post.dtype)
    psi = features.psi(obs)
    whitened = whiten(post, psi)
    return dot(whitened, post.white), jnp.sqrt(jnp.sum(whitened**2, axis=-1) + features.residual(obs, psi) / lam)


class Condensed(NamedTuple):
    """What many predictions of one posterior share.

    Attributes:
      factor: `[m, A, K]` C with ||psi C[:, a]|| the width at (s, a).
      white: `[A, K]` u with (psi C[:, a]) . u[a] the mean there.
    """

    factor: Array
    white: Array


@jax.custom_batching.sequential_vmap
def _qr_of_transpose(root: Array) -> tuple[Array, Array]:
    """QR of one matrix transposed, and of many one after the other: LAPACK's batched call waits for ever (jax 0.10) where two
    CPU devices make it at once."""
    turn, factor = jnp.linalg.qr(root.T)
    return turn, factor


def condense(post: WeightPosterior) -> Condensed:
    """The posterior in triangular form, K = m where S has K = D: fewer operations for many predictions."""
    # A QR of S^T keeps float32's digits; a Cholesky factor of S S^T would lose half of them.
    turn, factor = jax.vmap(_qr_of_transpose, in_axes=1)(post.root)
    return Condensed(jnp.transpose(factor, (2, 0, 1)), jnp.einsum("adk,d->ak", turn, post.white, precision="highest"))


def as_it_is(post: WeightPosterior) -> Condensed:
    """The posterior for a few predictions, not worth a factorisation."""
    return Condensed(post.root, jnp.broadcast_to(post.white, post.root.shape[1:]))


def at_features(condensed: Condensed, psi: Array) -> tuple[Array, Array]:
    """Mean and squared width `[..., A]` at states with features `[..., m]`, as far as these go."""
    whitened = _by_action(psi, condensed.factor)
    return jnp.sum(whitened * condensed.white, axis=-1), jnp.sum(whitened**2, axis=-1)


# Learning ------------------------------------------------------------------------------------------------------------


def sum_targets(post: WeightPosterior, targets: Array) -> Array:
    """`[m, A]` sum of y psi over all pairs, by action, with new targets `[T]` for the stored ones."""
    # As a product [A, T] [T, m]. The barriers keep XLA from folding the small transposes into it: with psi read by columns it
    # takes seven times as long on CPU, half of a whole step.
    by_action = lax.optimization_barrier((post.action * targets[:, None]).T)
    return post.rest + lax.optimization_barrier(dot(by_action, post.psi)).T


def append(
    features: FeatureMap, post: WeightPosterior, obs: Array, action: Array, target: Array
) -> tuple[WeightPosterior, Update]:
    """Takes in one pair `(obs [l], action [])` with its target `[]`; past the capacity it is learned from but not stored."""
    features = in_dtype(features, post.dtype)
    obs, target = jnp.asarray(obs, post.dtype), jnp.asarray(target, post.dtype)
    psi = features.psi(obs)
    chosen = jax.nn.one_hot(action, post.action.shape[-1], dtype=post.dtype)
    white = dot(chosen, whiten(post, psi))
    slot = post.next_slot
    new, update = absorb(post, psi, chosen, white, post.white, target, True)
    rest = post.rest + jnp.where(slot < post.capacity, 0.0, target) * psi[:, None] * chosen
    new = put_pair(new._replace(rest=rest), slot, psi, chosen, slot < post.capacity)
    return new._replace(targets=write(new.targets, slot, target, slot < post.capacity)), update


def absorb(
    post: WeightPosterior, psi: Array, chosen: Array, white: Array, white_moment: Array, target: Array, is_wanted: Any
) -> tuple[WeightPosterior, Update]:
    """The regression after one more pair; it is not put into a slot yet.

    Args:
      psi: `[m]` features of its state.
      chosen: `[A]` its action, one-hot.
      white: `[D]` f = S[a]^T psi.
      white_moment: `[D]` S^T moment, with whatever targets the stored pairs have now.
      target: `[]` its target.
      is_wanted: `[]` bool; False leaves the posterior as it is.
    """
    n = jnp.sum(white**2)
    root_n = jnp.sqrt(1.0 + n)
    shrink = 1.0 / ((1.0 + n) + root_n)
    # S_new^T v = S^T v - c f (f . S^T v), for the moment and, times the target, for the pair itself.
    moved = white_moment - shrink * jnp.dot(white, white_moment) * white + (target / root_n) * white
    both = few_columns(post.root.reshape(-1, white.shape[0]), jnp.stack([white, moved], axis=1))
    direction, before = (both[:, i].reshape(post.weights.shape) for i in range(2))
    weights = before - shrink * jnp.dot(white, moved) * direction
    step = jnp.where(is_wanted, shrink, 0.0)
    return post._replace(
        next_slot=post.next_slot + 1,
        root=post.root - step * direction[..., None] * white,
        moment=jnp.where(is_wanted, post.moment + target * psi[:, None] * chosen, post.moment),
        white=jnp.where(is_wanted, moved, post.white),
        weights=jnp.where(is_wanted, weights, post.weights),
    ), Update(direction, white, n, shrink, jnp.asarray(is_wanted))


def put_pair(post: WeightPosterior, slot: Array, psi: Array, chosen: Array, is_wanted: Any) -> WeightPosterior:
    """Puts a pair into a slot, without its target."""
    return post._replace(psi=write(post.psi, slot, psi, is_wanted), action=write(post.action, slot, chosen, is_wanted))


def refresh(post: WeightPosterior, table: Table, update: Update) -> Table:
    """Brings a table up to date after `absorb` (`post` is the posterior after it): one pass over its features."""
    mean, change = jnp.split(few_columns(table.psi, jnp.concatenate([post.weights, update.direction], axis=1)), 2, axis=-1)
    fallen = jnp.maximum(table.width_sq - change**2 / (1.0 + update.width_sq), 0.0)
    return table._replace(
        mean=jnp.where(update.is_wanted, mean, table.mean),
        width_sq=jnp.where(update.is_wanted, fallen, table.width_sq),
    )


def whiten_moment(post: WeightPosterior, moment: Array) -> Array:
    """S^T moment `[D]` for a sum of targets `[m, A]`."""
    return dot(moment.ravel(), post.root.reshape(-1, post.white.shape[0]))


def solve(post: WeightPosterior, moment: Array) -> WeightPosterior:
    """The posterior of the same pairs with another sum of targets `[m, A]`."""
    white = whiten_moment(post, moment)
    return post._replace(moment=moment, white=white, weights=dot(post.root, white))
