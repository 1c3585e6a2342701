"""Small things both posteriors need: products at full precision, padding, writing one row, one dtype."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

Array = jax.Array

HIGHEST = lax.Precision.HIGHEST  # TF32 and bfloat16 products ruin kernel methods

ROWS = "rows"
"""Axis of the mesh over which the rows of the exact engine's large arrays are spread; see `kqljax.sharding`."""


def dot(left: Array, right: Array) -> Array:
    """`jnp.matmul` at the highest precision."""
    return jnp.matmul(left, right, precision=HIGHEST)


def few_columns(matrix: Array, columns: Array) -> Array:
    """`[N, M]` times a few columns `[M, C]`.

    Four columns cost as much as one on CPU, two or three twice as much: the product kernel works on blocks of four.
    """
    width = columns.shape[-1]
    return dot(matrix, pad(columns, -width % 4, 1))[:, :width]


def pad(array: Array, more: int, *axes: int) -> Array:
    """The array with `more` zeros at the end of each of the axes."""
    if not more:
        return array
    return jnp.pad(array, [(0, more if axis in axes else 0) for axis in range(array.ndim)])


def write(array: Array, index: Array, value: Array, is_wanted: Any) -> Array:
    """`array` with row `index` set to `value`, or unchanged; in place inside jit, safe past the end."""
    mesh = jax.sharding.get_abstract_mesh()
    if ROWS in mesh.axis_names and array.ndim == 2 and array.shape[0] % mesh.shape[ROWS] == 0:
        return _write_to_shards(array, index, value, is_wanted)
    old = lax.dynamic_index_in_dim(array, index, keepdims=False)
    return lax.dynamic_update_index_in_dim(array, jnp.where(is_wanted, value, old), index, 0)


def _write_to_shards(array: Array, index: Array, value: Array, is_wanted: Any) -> Array:
    """`write` where rows are spread over devices: each looks whether the row is its own.

    Left to itself XLA would move the whole array between devices, at every step, to read the one old row.
    """

    def own(part: Array, index: Array, value: Array, is_wanted: Array) -> Array:
        height = part.shape[0]
        at = index - lax.axis_index(ROWS) * height
        is_here = (at >= 0) & (at < height)
        at = jnp.clip(at, 0, height - 1)
        old = lax.dynamic_index_in_dim(part, at, keepdims=False)
        return lax.dynamic_update_index_in_dim(part, jnp.where(is_wanted & is_here, value, old), at, 0)

    rows, whole = PartitionSpec(ROWS), PartitionSpec()
    by_rows = jax.shard_map(own, in_specs=(rows, whole, whole, whole), out_specs=rows)
    return by_rows(array, jnp.minimum(index, array.shape[0] - 1), value, jnp.asarray(is_wanted))


def in_dtype(tree: Any, dtype: Any) -> Any:
    """The tree with its floating-point numbers in the given dtype: a strong float64 would promote the whole state."""

    def cast(leaf: Any) -> Any:
        return jnp.asarray(leaf, dtype) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf

    return jax.tree.map(cast, tree)
