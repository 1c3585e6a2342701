"""Checks of numbers that many modules share, and what remains of the kernel's own."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kqljax.errors import describe, first_bad
from kqljax.kernels import Kernel, self_kernel

X64_REMEDY = (
    "Set the environment variable JAX_ENABLE_X64=1, call jax.config.update('jax_enable_x64', True) "
    "at "
    "the start of your program, or run inside `with jax.enable_x64(True):`."
)


class NormalisationWarning(UserWarning):
    """The kernel or a number lies outside what the paper's theorem assumes; the algorithm runs all
    the same.

    Examples:
      >>> import warnings
      >>> with warnings.catch_warnings(record=True) as caught:
      ...     warnings.simplefilter("always")
      ...     cfg = kqljax.KQLConfig(kernel=4.0 * kqljax.RBF(), num_actions=3, horizon=10).validate(obs_dim=2)
      >>> caught[0].category.__name__
      'NormalisationWarning'
    """


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
    return wanted


def check_normalisation(kernel: Kernel, obs_dim: int, num_actions: int) -> None:
    """Warns where ||K_x|| leaves [1/2, 1], which the paper's theorem assumes."""
    norms = np.sqrt(check_self_kernels(kernel, obs_dim, num_actions))
    low, high, slack = norms.min(), norms.max(), 1e-6
    if low < 0.5 - slack or high > 1 + slack:
        warnings.warn(
            f"the kernel's norm ||K_x|| = sqrt(k(x, x)) runs from {low:.3g} to {high:.3g} on "
            f"[-1, 1]^{obs_dim}; the paper assumes [1/2, 1]. Scale it, for example "
            f"{1 / high**2:.3g} * kernel, to keep the theorem's constants.",
            NormalisationWarning,
            stacklevel=3,
        )


def check_self_kernels(kernel: Kernel, obs_dim: int, num_actions: int) -> np.ndarray:
    """k(x, x) with every action where the kernel is for; an error where it is no kernel.

    At the kernel's own domain, or at the centre, at corners and inside of the box [-1, 1]^l.
    """
    points = kernel.domain(obs_dim)
    if points is None:
        points = np.random.default_rng(0).uniform(-1, 1, (16, obs_dim))
        points[0], points[1], points[2:8] = 0.0, 1.0, np.sign(points[2:8])
    # The kernel is known, but a state may be made while something else is traced.
    with jax.ensure_compile_time_eval():
        values = jax.vmap(lambda obs: self_kernel(kernel, obs, num_actions))(
            jnp.asarray(points, widest_float())
        )
    if values.ndim != 2:
        return np.ones(1)
    found = np.asarray(values, np.float64)
    if not np.all(found > 0):
        raise ValueError(
            f"the kernel {kernel} gives k(x, x) = {first_bad(found, found > 0)}: expected positive "
            "numbers. Look at its parameters."
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(kernel):
        name = jax.tree_util.keystr(path)
        good = np.asarray(leaf) > 0
        if name.endswith((".eta", ".length_scale")) and not np.all(good):
            raise ValueError(
                f"the kernel's {name.lstrip('.')} must be above 0, got {first_bad(leaf, good)}."
            )
    return found
