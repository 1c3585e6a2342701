"""Dataclasses as pytrees: numbers are leaves, sizes and choices are static."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import jax

T = TypeVar("T")


def register(cls: type[T], static: tuple[str, ...] = ()) -> type[T]:
    """Registers a dataclass as a pytree; fields named in `static` belong to the structure, the others are children.

    Not `jax.tree_util.register_dataclass`: in jax 0.10 the structures of two dataclasses registered that way compare
    equal when their fields do, so that once in some fifty processes `jax.jit` answers a call with one kernel from the
    cache of another. Building an instance goes past `__init__`, because children may be anything while jax works with
    them, and None (as in vmap's `in_axes`) must stay None.
    """
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    unknown = set(static) - set(names)
    if unknown:
        raise ValueError(f"{cls.__name__} has no field {', '.join(sorted(unknown))}; its fields are {', '.join(names)}.")
    children = tuple(name for name in names if name not in static)

    def flatten(instance: T) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(instance, name) for name in children), tuple(getattr(instance, name) for name in static)

    def flatten_with_keys(instance: T) -> tuple[Any, Any]:
        values, fixed = flatten(instance)
        return [(jax.tree_util.GetAttrKey(name), value) for name, value in zip(children, values, strict=True)], fixed

    def unflatten(fixed: tuple[Any, ...], values: Any) -> T:
        instance = object.__new__(cls)
        for name, value in zip((*static, *children), (*fixed, *values), strict=True):
            object.__setattr__(instance, name, value)
        return instance

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls
