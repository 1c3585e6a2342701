"""Kernels as projections on chosen states: Nystrom features in Newton form."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from kqljax._arrays import dot
from kqljax._checks import X64_REMEDY, describe, is_known
from kqljax.features import base
from kqljax.kernels import Kernel, Pair

Array = jax.Array

LEAST_PIVOT = 2 * float(np.finfo(np.float32).eps)
"""float32 resolves k(s, s) - ||psi(s)||^2 to 1.2e-7 of k(s, s): a state chosen for less than two of
these adds rounding alone, blown up by 1 / sqrt(pivot) (benchmarks/numerics.py)."""


class NystromMap(base.ProductMap, static=("needs_float64",)):
    """psi(s) = P k_D(s), the Newton basis of chosen states, P their Gram matrix's inverse factor.

    Attributes:
      points: `[m, l]` the chosen states.
      whitener: `[m, m]` P^T; with the states' rows on its left it is several times faster on CPU.
      needs_float64: whether float32 cannot carry its tolerance, static: known inside jit.
    """

    points: Any
    whitener: Any
    needs_float64: bool

    def psi(self, obs: Array) -> Array:
        part = functools.partial(_state_part, self.kernel, obs, num_actions=self.num_actions)
        vector = jax.vmap(part)(jnp.asarray(self.points, obs.dtype))
        return dot(vector, jnp.asarray(self.whitener, obs.dtype))

    def check(
        self, kernel: Kernel, obs_dim: int | None, num_actions: int, dtype: Any = None
    ) -> None:
        super().check(kernel, obs_dim, num_actions)
        if self.needs_float64 and dtype is not None and np.dtype(dtype) == np.float32:
            raise ValueError(
                f"float32 cannot carry these {self.num_features} features to their tolerance "
                "(docs/numerics.md). Give features.nystrom a tolerance of at least 1e-6 of k(x, x) "
                f"or use float64. {X64_REMEDY}"
            )


def nystrom(
    kernel: Kernel,
    states: Any,
    num_actions: int,
    tolerance: float = 1e-6,
    *,
    max_features: int = base.MAX_FEATURES,
) -> NystromMap:
    """Projection on some of `states` `[N, l]`, until all of them are within `tolerance`.

    Pivoted Cholesky chooses. The largest k(z, z) - ||psi(z)||^2 of all `states` bounds the error.
    Use states like those the agent will see, as of `kqljax.tasks.sample_states(task)`.

    Examples:
      >>> states = np.random.default_rng(0).uniform(-1, 1, (50, 2))
      >>> found = features.nystrom(kqljax.RBF(eta=0.02), states, num_actions=3, tolerance=1e-4)
      >>> found.points.shape[1], found.error < 1e-4
      (2, True)
    """
    states = np.asarray(states, np.float64)
    if states.ndim != 2 or not len(states):
        raise ValueError(f"states must have shape [N, l] with N > 0, got {describe(states)}.")
    if not is_known(kernel):
        raise ValueError(
            "features.nystrom chooses states by their kernel values: make it outside jit and vmap."
        )
    base.check_tolerance(tolerance)
    obs_dim = states.shape[1]
    groups = base.groups_of(base.action_gram(kernel, obs_dim, num_actions, "features.nystrom"))
    wanted = [tolerance / len(groups) / group.share for group in groups]
    least = min(wanted)
    chosen, factor, left = _pivoted_cholesky(kernel, states, num_actions, least, max_features)
    if left[-1] > least:
        raise ValueError(
            f"tolerance {tolerance:g} is out of reach of {max_features} states: a residual of "
            f"{left[-1]:.2g} is left, {least:.2g} is wanted. About max_features="
            f"{_would_do(left, least)} would do; or give a larger tolerance."
        )
    sizes = [max(1, int(np.argmax(left <= limit))) for limit in wanted]
    size = max(sizes)
    factor = factor[:size, :size]
    pivots = np.diagonal(factor) ** 2
    return NystromMap(
        kernel=kernel, obs_dim=obs_dim, error_kind="measured", **base.grouped_root(groups, sizes),
        error=float(sum(group.share * left[n] for group, n in zip(groups, sizes, strict=True))),
        points=states[chosen[:size]],
        whitener=solve_triangular(factor, np.eye(size), lower=True).T.copy(),
        needs_float64=bool(pivots.min() < LEAST_PIVOT * pivots.max()),
    )  # fmt: skip


def _state_part(kernel: Kernel, x: Array, y: Array, num_actions: int) -> Array:
    """The state part `[]` of a kernel that is one times an action part."""
    return kernel.terms(x, Pair(y, jnp.zeros((num_actions,), y.dtype)))[0]


@functools.partial(jax.jit, static_argnames="num_actions")
def _column(kernel: Kernel, states: Array, state: Array, num_actions: int) -> Array:
    """State part `[N]` between states `[N, l]` and one of them."""
    return jax.vmap(lambda x: _state_part(kernel, x, state, num_actions))(states)


def _pivoted_cholesky(
    kernel: Kernel, states: np.ndarray, num_actions: int, wanted: float, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Chosen states `[n]`, their Gram matrix's Cholesky factor `[n, n]`, residuals `[n + 1]`."""
    part = functools.partial(_state_part, num_actions=num_actions)
    left = base.on_host(lambda k, s: jax.vmap(lambda x: part(k, x, x))(s), kernel, states).copy()
    columns = np.zeros((len(states), min(most, len(states))))
    chosen: list[int] = []
    residuals = [float(left.max())]
    column_of = functools.partial(_column, num_actions=num_actions)
    while (residuals[-1] > wanted or not chosen) and len(chosen) < columns.shape[1]:
        best, n = int(left.argmax()), len(chosen)
        against = base.on_host(column_of, kernel, states, states[best])
        columns[:, n] = (against - columns[:, :n] @ columns[best, :n]) / math.sqrt(left[best])
        left = np.maximum(left - columns[:, n] ** 2, 0.0)
        left[best] = 0.0
        chosen.append(best)
        residuals.append(float(left.max()))
    index = np.array(chosen, int)
    return index, np.tril(columns[index, : len(chosen)]), np.array(residuals)


def _would_do(residuals: np.ndarray, wanted: float) -> int:
    """Size at which the residual would fall to `wanted`, by the slope of its log's last half."""
    size, half = len(residuals) - 1, len(residuals) // 2
    rate = math.log(residuals[half] / residuals[-1]) / max(size - half, 1)
    return size + math.ceil(math.log(residuals[-1] / wanted) / max(rate, 1e-9))
