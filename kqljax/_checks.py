"""Words for error messages, and checks of numbers that many modules share."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

X64_REMEDY = (
    "Set the environment variable JAX_ENABLE_X64=1, call jax.config.update('jax_enable_x64', True) "
    "at the start of your program, or run inside `with jax.enable_x64(True):`."
)


def describe(value: Any) -> str:
    """A short description of a value for an error message: type, and shape and dtype where it has
    them.
    """
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


def whole_number(name: str, value: Any, least: int, remedy: str) -> int:
    """`value` as an int of at least `least`."""
    if isinstance(value, jax.core.Tracer):
        raise ValueError(
            f"{name} is a size and must be known before tracing: give it to jax.jit as "
            f"static_argnames={name!r}."
        )
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(
            f"{name} must be a whole number, got {describe(value)}. {remedy}"
        ) from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}. {remedy}")
    return number


def real(name: str, value: Any) -> np.ndarray:
    """`value` as float64, where it is a real number or an array of them."""
    array = np.asarray(value)
    if not (np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)):
        raise ValueError(f"{name} must be a real number, got {describe(value)}.")
    return array.astype(np.float64)


def require(
    name: str, value: Any, is_good: Callable[[np.ndarray], Any], range_: str, remedy: str
) -> np.ndarray:
    """`value` as float64, where `is_good` says True of it."""
    array = real(name, value)
    good = is_good(array)
    if not np.all(good):
        raise ValueError(f"{name} must be {range_}, got {first_bad(array, good)}. {remedy}")
    return array


def check_positive(name: str, value: Any, remedy: str) -> np.ndarray:
    """`value` as float64, finite and above 0."""
    return require(name, value, lambda x: np.isfinite(x) & (x > 0), "above 0", remedy)


def widest_float() -> np.dtype:
    """float64 where jax has it enabled, else float32."""
    return np.dtype(jax.dtypes.canonicalize_dtype(np.float64))


def float_dtype(dtype: Any) -> np.dtype:
    """float32 or float64, by default the widest that jax has; float64 only where jax has it."""
    wanted = np.dtype(dtype) if dtype is not None else widest_float()
    if wanted not in (np.dtype("float32"), np.dtype("float64")):
        raise ValueError(f"dtype must be float32 or float64, got {wanted}.")
    if wanted == np.dtype("float64") and widest_float() != wanted:
        raise ValueError(f"dtype float64 is switched off in jax. {X64_REMEDY}")
    if wanted == np.dtype("float64") and jax.default_backend() == "tpu":
        raise ValueError(
            "a TPU has no float64 arithmetic. Give dtype=jnp.float32 with engine=kqljax.Weights("
            "features), or run on a CPU or GPU: jax.config.update('jax_platforms', 'cpu')."
        )
    return wanted


def check_gamma_and_lam(gamma: Any, lam: Any) -> tuple[np.ndarray, np.ndarray]:
    """The two numbers that others are derived from, as float64."""
    good = (lambda x: (x >= 0) & (x < 1), lambda x: np.isfinite(x) & (x > 0))
    found = require("gamma", gamma, good[0], "in [0, 1)", "The paper uses 0.95.")
    return found, require("lam", lam, good[1], "above 0", "The paper uses 1 / (10 * horizon).")
