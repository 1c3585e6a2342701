"""Small things both posteriors need: products at full precision, padding, writing one row, one dtype."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array

HIGHEST = lax.Precision.HIGHEST  # TF32 and bfloat16 products ruin kernel methods


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
    old = lax.dynamic_index_in_dim(array, index, keepdims=False)
    return lax.dynamic_update_index_in_dim(array, jnp.where(is_wanted, value, old), index, 0)


def in_dtype(tree: Any, dtype: Any) -> Any:
    """The tree with its floating-point numbers in the given dtype: a strong float64 would promote the whole state."""

    def cast(leaf: Any) -> Any:
        return jnp.asarray(leaf, dtype) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf

    return jax.tree.map(cast, tree)
