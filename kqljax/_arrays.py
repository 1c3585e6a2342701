"""Products at full precision, padding, one dtype; and dataclasses as pytrees."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
T = TypeVar("T")

HIGHEST = lax.Precision.HIGHEST  # TF32 and bfloat16 products ruin kernel methods


def dot(left: Array, right: Array) -> Array:
    """`jnp.matmul` at the highest precision."""
    return jnp.matmul(left, right, precision=HIGHEST)


def few_columns(matrix: Array, columns: Array) -> Array:
    """`[N, M]` times a few columns `[M, C]`.

    Four columns cost as much as one on CPU, two or three twice as much: the product kernel works on
    blocks of four.
    """
    width = columns.shape[-1]
    return dot(matrix, pad(columns, -width % 4, 1))[:, :width]


def pad(array: Array, more: int, *axes: int) -> Array:
    """The array with `more` zeros at the end of each of the axes."""
    if not more:
        return array
    return jnp.pad(array, [(0, more if axis in axes else 0) for axis in range(array.ndim)])


def in_dtype(tree: Any, dtype: Any) -> Any:
    """The tree with its floating-point numbers in the given dtype: a strong float64 would promote
    the whole state.
    """

    def cast(leaf: Any) -> Any:
        return (
            jnp.asarray(leaf, dtype)
            if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
            else leaf
        )

    return jax.tree.map(cast, tree)


def register(cls: type[T], static: tuple[str, ...] = ()) -> type[T]:
    """Registers a dataclass as a pytree; fields named in `static` belong to the structure, the
    others are children.

    Not `jax.tree_util.register_dataclass`: in jax 0.10 the structures of two dataclasses registered
    that way compare equal when their fields do, so that once in some fifty processes `jax.jit`
    answers a call with one kernel from the cache of another. Building an instance goes past
    `__init__`, because children may be anything while jax works with them, and None (as in vmap's
    `in_axes`) must stay None.
    """
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    unknown = set(static) - set(names)
    if unknown:
        raise ValueError(
            f"{cls.__name__} has no field {', '.join(sorted(unknown))}; its fields are "
            f"{', '.join(names)}."
        )
    children = tuple(name for name in names if name not in static)

    def flatten(instance: T) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(instance, name) for name in children), tuple(
            getattr(instance, name) for name in static
        )

    def flatten_with_keys(instance: T) -> tuple[Any, Any]:
        values, fixed = flatten(instance)
        return [
            (jax.tree_util.GetAttrKey(name), value)
            for name, value in zip(children, values, strict=True)
        ], fixed

    def unflatten(fixed: tuple[Any, ...], values: Any) -> T:
        instance = object.__new__(cls)
        for name, value in zip((*static, *children), (*fixed, *values), strict=True):
            object.__setattr__(instance, name, value)
        return instance

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls
