"""Exact streaming kernel ridge regression, in function space.

With t stored pairs x_1..x_t, their Gram matrix K, targets y and the kernel vector k_x of a pair x:

    mean(x)  = k_x^T (K + lam I)^-1 y                              (the paper's Q-hat)
    width(x) = sqrt((k(x, x) - k_x^T (K + lam I)^-1 k_x) / lam)    (the paper's Gamma-hat)

The posterior keeps the inverse Cholesky factor P = L^-1, L L^T = K + lam I, called the whitener. A new pair adds one
row to it, and all that a step needs are products with P and P^T: no triangular solve, which is latency-bound on
accelerators, and no explicit inverse, whose widths are less exact by a factor of about 1/sqrt(lam).

    f = P k_x,   kappa = lam + k(x, x) - ||f||^2,   v = e_t - P^T f,   new row of P: v^T / sqrt(kappa).

The direction v also carries every change: (K + lam I)^-1 gains v v^T / kappa, and the squared width at any pair z falls
by (k_z^T v)^2 / (lam kappa). Capacity is fixed (empty slots are zero) and grows by `grow`.

    post = gram.init(obs_dim=2, num_actions=3, capacity=100)
    post, _ = gram.append(kernel, lam, post, obs, action, target)
    mean, width = gram.predict(kernel, lam, post, obs)             # [A], [A]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from kqljax.arrays import dot, few_columns, in_dtype, pad, write
from kqljax.kernels import Kernel, Mixing, Pair, every_action, num_terms

Array = jax.Array


class GramPosterior(NamedTuple):
    """Kernel ridge regression on the pairs seen so far.

    Attributes:
      next_slot: `[]` int32, where the next pair goes. It moves on at every call, also where a pair was not wanted: the slot
        stays empty then, and all runs of a vmap write to the same one, in place.
      pairs: stored pairs, obs `[T, l]` and one-hot action `[T, A]`; zero in empty slots, which masks them.
      whitener: P, lower triangular, as blocks of rows `[rows_b, columns_b]` with rows adding up to T. A block has as many
        columns as the capacity was when it was the last one, so most of the zeros above the diagonal are not stored.
        Only the last block is written to; rows and columns of empty slots are zero.
      targets: `[T]` y.
      weights: `[T]` alpha = (K + lam I)^-1 y.
    """

    next_slot: Array
    pairs: Pair
    whitener: tuple[Array, ...]
    targets: Array
    weights: Array

    @property
    def capacity(self) -> int:
        """T, the pairs there is room for."""
        return self.whitener[-1].shape[-1]

    @property
    def is_taken(self) -> Array:
        """`[T]` bool, the slots that hold a pair."""
        return jnp.sum(self.pairs.action, axis=-1) > 0

    @property
    def num_stored(self) -> Array:
        """`[]` int32, t, the number of stored pairs."""
        return jnp.sum(self.is_taken, axis=-1, dtype=jnp.int32)

    @property
    def num_closed(self) -> int:
        """Slots in blocks that are no longer written to."""
        return self.capacity - self.whitener[-1].shape[-2]

    @property
    def dtype(self) -> Any:
        return self.weights.dtype


class Update(NamedTuple):
    """What one appended pair changes.

    Attributes:
      direction: `[T]` v.
      kappa: `[]` lam (1 + width^2) of the new pair before it was stored.
      width_sq: `[]` squared width of the new pair before it was stored.
      is_stored: `[]` bool; False where the capacity was spent or the caller said no.
    """

    direction: Array
    kappa: Array
    width_sq: Array
    is_stored: Array


class Table(NamedTuple):
    """Mean and width at a list of states, for every action, kept up to date.

    Attributes:
      obs: `[R, l]` the states.
      cross: `[R, J T]` state terms of the kernel between the states and the stored pairs. Two axes, not three: a reshape
        between the write and the product makes XLA copy the array at every step.
      mean: `[R, A]`.
      width_sq: `[R, A]` squared widths.
    """

    obs: Array
    cross: Array
    mean: Array
    width_sq: Array


def init(obs_dim: int, num_actions: int, capacity: int, dtype: Any = None) -> GramPosterior:
    """An empty posterior: mean 0, width sqrt(k(x, x) / lam)."""
    dtype = jnp.zeros((), dtype).dtype
    return GramPosterior(
        next_slot=jnp.zeros((), jnp.int32),
        pairs=Pair(jnp.zeros((capacity, obs_dim), dtype), jnp.zeros((capacity, num_actions), dtype)),
        whitener=(jnp.zeros((capacity, capacity), dtype),),
        targets=jnp.zeros((capacity,), dtype),
        weights=jnp.zeros((capacity,), dtype),
    )


def init_table(kernel: Kernel, post: GramPosterior, rows: int) -> Table:
    """A table with room for `rows` states, all empty."""
    (capacity, obs_dim), num_actions = post.pairs.obs.shape, post.pairs.action.shape[-1]
    dtype = post.dtype
    return Table(
        obs=jnp.zeros((rows, obs_dim), dtype),
        cross=jnp.zeros((rows, num_terms(kernel, obs_dim, num_actions) * capacity), dtype),
        mean=jnp.zeros((rows, num_actions), dtype),
        width_sq=jnp.zeros((rows, num_actions), dtype),
    )


def grow(post: GramPosterior, capacity: int, is_full: bool = False) -> GramPosterior:
    """The same posterior with room for `capacity` pairs; nothing stored is touched.

    Args:
      is_full: the caller's word that every slot is taken. Then the blocks stored so far are closed and new rows go to a
        block of their own, which stores and reads fewer of the zeros above the diagonal. Where slots are free all the
        same, they stay empty.
    """
    more = capacity - post.capacity
    if more < 0:
        raise ValueError(f"cannot shrink a posterior from capacity {post.capacity} to {capacity}: stored pairs would be lost.")
    *closed, last = post.whitener
    closes = is_full and more
    added = (last, jnp.zeros((more, capacity), post.dtype)) if closes else (pad(last, more, 0, 1),)
    return GramPosterior(
        next_slot=jnp.maximum(post.next_slot, post.capacity) if closes else post.next_slot,
        pairs=Pair(pad(post.pairs.obs, more, 0), pad(post.pairs.action, more, 0)),
        whitener=(*closed, *added),
        targets=pad(post.targets, more, 0),
        weights=pad(post.weights, more, 0),
    )


def grow_table(table: Table, rows: int, old_capacity: int, capacity: int) -> Table:
    """The same table with room for more states and, as its posterior grew, for more stored pairs."""
    old_rows = table.obs.shape[0]
    more = rows - old_rows
    by_term = table.cross.reshape(old_rows, -1, old_capacity)
    return Table(
        obs=pad(table.obs, more, 0),
        cross=pad(pad(by_term, more, 0), capacity - old_capacity, 2).reshape(rows, -1),
        mean=pad(table.mean, more, 0),
        width_sq=pad(table.width_sq, more, 0),
    )


# Kernel vectors ------------------------------------------------------------------------------------------------------


def state_terms(kernel: Kernel, pairs: Pair, obs: Array) -> Array:
    """State terms `[J, T]` between one state `[l]` and all stored pairs; zero in empty slots."""
    terms = jax.vmap(lambda stored: kernel.terms(obs, stored), out_axes=1)(pairs)
    # An empty slot is no point of the kernel's domain: whatever comes out, NaN too, must not get further.
    return jnp.where(jnp.sum(pairs.action, axis=-1) > 0, terms, 0.0)


def stored_mixing(kernel: Kernel, pairs: Pair) -> Mixing:
    """The kernel's mixing seen from each stored pair: scale `[J, T, A]`, shift `[T, A]` or None; zero in empty slots."""
    scale, shift = kernel.mixing(pairs.obs.shape[-1], pairs.action.shape[-1], pairs.obs.dtype)
    return Mixing(_at_stored(scale, pairs.action), None if shift is None else _at_stored(shift, pairs.action))


def _at_stored(weights: Array, action: Array) -> Array:
    """sum_b weights[..., a, b] action[t, b] -> `[..., T, a]`; elementwise, so that it fuses into its consumers."""
    return sum(weights[..., None, :, b] * action[:, b, None] for b in range(action.shape[-1]))  # type: ignore[return-value]


def kernel_vectors(mixing: Mixing, terms: Array) -> Array:
    """Kernel `[T, A]` between every stored pair and one state with every action, from its `[J, T]` terms."""
    vectors = sum(terms[j, :, None] * mixing.scale[j] for j in range(terms.shape[0]))
    return vectors if mixing.shift is None else vectors + mixing.shift  # type: ignore[return-value]


# Products with the whitener ------------------------------------------------------------------------------------------


def whiten(post: GramPosterior, columns: Array, is_few: bool = True) -> Array:
    """P C for columns C `[T, C]`; `is_few` is False where a vmap around it will make them many."""
    product = few_columns if is_few else dot
    return jnp.concatenate([product(block, columns[: block.shape[1]]) for block in post.whitener])


def unwhiten(post: GramPosterior, rows: Array) -> Array:
    """F P for rows F `[N, T]`: P^T f for each of them."""
    parts, start = [], 0
    for block in post.whitener:
        height, width = block.shape
        part = dot(rows[:, start : start + height], block)
        parts.append(pad(part, post.capacity - width, 1))
        start += height
    return sum(parts[1:], parts[0])


# Learning ------------------------------------------------------------------------------------------------------------


def append(
    kernel: Kernel, lam: Any, post: GramPosterior, obs: Array, action: Array, target: Array
) -> tuple[GramPosterior, Update]:
    """Stores one pair `(obs [l], action [])` with its target `[]`, in O(t^2).

    At capacity nothing changes and `Update.is_stored` is False.
    """
    kernel, lam = in_dtype((kernel, lam), post.dtype)
    pair = one_pair(post, obs, action)
    vectors = kernel_vectors(stored_mixing(kernel, post.pairs), state_terms(kernel, post.pairs, pair.obs))
    whitened = whiten(post, jnp.stack([vectors @ pair.action, post.targets], axis=1))
    overlaps = dot(whitened.T, whitened)
    own = kernel.evaluate(pair, pair)
    return border(
        lam, post, pair, own, whitened[:, 0], overlaps[0, 0], post.targets, whitened[:, 1], overlaps[0, 1], target, True
    )


def one_pair(post: GramPosterior, obs: Array, action: Array) -> Pair:
    """A pair in the posterior's dtype from an observation `[l]` and an action index `[]`."""
    dtype = post.dtype
    return Pair(jnp.asarray(obs, dtype), jax.nn.one_hot(action, post.pairs.action.shape[-1], dtype=dtype))


def border(
    lam: Any,
    post: GramPosterior,
    pair: Pair,
    own: Array,
    whitened: Array,
    explained: Array,
    targets: Array,
    whitened_targets: Array,
    expected: Array,
    target: Array,
    is_wanted: Any,
) -> tuple[GramPosterior, Update]:
    """`append` for a caller that has made the products with the whitener itself, with others in the same pass.

    Args:
      own: `[]` k(x, x) of the new pair.
      whitened: `[T]` f = P k_x.
      explained: `[]` ||f||^2.
      targets: `[T]` targets y of the stored pairs, which may differ from the ones before; zero in empty slots.
      whitened_targets: `[T]` P y.
      expected: `[]` f^T P y, what the stored pairs say of the new one.
      target: `[]` target of the new pair.
      is_wanted: `[]` bool; False leaves the posterior as it is.
    """
    slot = post.next_slot
    is_stored = (slot < post.capacity) & is_wanted
    in_slot = jnp.arange(post.capacity) == slot
    is_written = in_slot & is_stored

    # The posterior variance is never negative; rounding may say otherwise near duplicates.
    variance = jnp.maximum(own - explained, 0.0)
    kappa = lam + variance
    # One pass over the old whitener, and none over the new: a second reader would make XLA copy it at every step.
    known, weights = unwhiten(post, jnp.stack([whitened, whitened_targets]))
    direction = in_slot - known
    weights = weights + direction * ((target - expected) / kappa)

    *closed, last = post.whitener
    row = direction / jnp.sqrt(kappa)
    return GramPosterior(
        next_slot=jnp.minimum(slot + 1, post.capacity),
        pairs=Pair(*(jnp.where(is_written[:, None], new, old) for new, old in zip(pair, post.pairs, strict=True))),
        whitener=(*closed, write(last, slot - post.num_closed, row, is_stored)),
        targets=jnp.where(is_stored, jnp.where(in_slot, target, targets), post.targets),
        weights=jnp.where(is_stored, weights, post.weights),
    ), Update(direction, kappa, variance / lam, is_stored)


def solve(post: GramPosterior, targets: Array) -> GramPosterior:
    """The posterior of the same pairs with new targets `[T]`, in two products."""
    targets = jnp.where(post.is_taken, targets, 0.0)
    return post._replace(targets=targets, weights=unwhiten(post, whiten(post, targets[:, None]).T)[0])


# Prediction ----------------------------------------------------------------------------------------------------------


def predict(kernel: Kernel, lam: Any, post: GramPosterior, obs: Array) -> tuple[Array, Array]:
    """Mean `[A]` and width `[A]` at one state `[l]` with every action."""
    kernel, lam = in_dtype((kernel, lam), post.dtype)
    obs = jnp.asarray(obs, post.dtype)
    vectors = kernel_vectors(stored_mixing(kernel, post.pairs), state_terms(kernel, post.pairs, obs))
    own = kernel.diag(every_action(obs, post.pairs.action.shape[-1]))
    return dot(post.weights, vectors), jnp.sqrt(width_sq(lam, own, whiten(post, vectors)))


def width_sq(lam: Any, own: Array, whitened: Array) -> Array:
    """Squared widths `[A]` from k(x, x) `[A]` and whitened kernel vectors `[T, A]`."""
    return jnp.maximum(own - jnp.sum(whitened**2, axis=0), 0.0) / lam


# Tables --------------------------------------------------------------------------------------------------------------


def put_row(table: Table, row: Array, obs: Array, terms: Array, mean: Array, squared: Array, is_wanted: Any) -> Table:
    """Puts a state `obs` `[l]` into a row, with its `[J, T]` terms, `[A]` mean and `[A]` squared width."""
    is_written = ((jnp.arange(table.obs.shape[0]) == row) & is_wanted)[:, None]
    return Table(
        obs=jnp.where(is_written, obs, table.obs),
        cross=write(table.cross, row, terms.ravel(), is_wanted),
        mean=jnp.where(is_written, mean, table.mean),
        width_sq=jnp.where(is_written, squared, table.width_sq),
    )


def refresh(kernel: Kernel, lam: Any, post: GramPosterior, table: Table, update: Update) -> Table:
    """Brings a table up to date after `append` (`post` is the posterior after it): one pass over `cross`."""
    # The newest pair's column, written whether or not the pair is new: where nothing was stored it is there already, and an
    # empty slot's is zero. Reading the old column to choose took twice as long at T = 2000.
    slot = jnp.maximum(post.next_slot - 1, 0)
    dtype = post.dtype
    kernel, lam = in_dtype((kernel, lam), dtype)
    newest = jax.tree.map(lambda array: lax.dynamic_index_in_dim(array, slot, keepdims=False), post.pairs)
    column = jax.vmap(lambda obs: kernel.terms(obs, newest))(table.obs)
    column = jnp.where(jnp.sum(newest.action) > 0, column, 0.0).astype(dtype)
    cross = table.cross
    for term in range(column.shape[1]):
        cross = lax.dynamic_update_index_in_dim(cross, column[:, term], term * post.capacity + slot, axis=1)
    mean, change = product(stored_mixing(kernel, post.pairs), cross, post.weights, update.direction)
    fallen = jnp.maximum(table.width_sq - change**2 / (lam * update.kappa), 0.0)
    return Table(
        obs=table.obs,
        cross=cross,
        mean=jnp.where(update.is_stored, mean, table.mean),
        width_sq=jnp.where(update.is_stored, fallen, table.width_sq),
    )


def product(mixing: Mixing, cross: Array, *vectors: Array) -> tuple[Array, ...]:
    """k^T w `[R, A]` at every state of a table with every action, for each `[T]` vector w, in one pass over `cross`."""
    weighted = [mixing.scale * vector[:, None] for vector in vectors]
    columns = jnp.concatenate(weighted, axis=-1).reshape(cross.shape[-1], -1)
    results = jnp.split(few_columns(cross, columns), len(vectors), axis=-1)
    if mixing.shift is not None:
        shift = mixing.shift
        results = [out + dot(vector, shift) for out, vector in zip(results, vectors, strict=True)]
    return tuple(results)
