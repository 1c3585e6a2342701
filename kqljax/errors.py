"""Words for error messages, and the question whether a value is known yet."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np


def describe(value: Any) -> str:
    """A short description of a value for an error message: type, and shape and dtype where it has them."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{type(value).__name__} of shape {tuple(value.shape)} and dtype {value.dtype}"
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def is_known(*trees: Any) -> bool:
    """True outside `jax.jit` and `jax.vmap`, where values can be looked at; False while tracing."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trees))


def first_bad(values: Any, good: Any) -> str:
    """The first entry of `values` where `good` is False, for a message: 'nan at index (3,)'."""
    values, good = np.asarray(values), np.broadcast_to(np.asarray(good), np.shape(values))
    index = tuple(int(i) for i in np.argwhere(~good)[0])
    return f"{values[index]}" + (f" at index {index}" if index else "")


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that is not there: the closest one, and all of them."""
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.4)
    hint = f" Did you mean {by_lower[close[0]]}?" if close else ""
    return f"unknown {kind} {name!r}.{hint} Known: {', '.join(by_lower.values())}."
