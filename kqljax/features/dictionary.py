"""Kernels as projections on chosen states: Nystrom features in Newton form."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from kqljax.arrays import dot
from kqljax.errors import describe, is_known
from kqljax.features.base import MAX_FEATURES, check_tolerance, register_map
from kqljax.features.product import (
    ProductMap,
    action_gram,
    grouped_root,
    groups_of,
    on_host,
    shares_of,
    state_gram,
    state_kernel,
)
from kqljax.kernels import Kernel

Array = jax.Array


@register_map
@dataclasses.dataclass(frozen=True, kw_only=True)
class DictionaryMap(ProductMap):
    """psi(s) = P k_D(s), the Newton basis of chosen states: P is the inverse Cholesky factor of their Gram matrix.

    Attributes:
      points: `[m, l]` the chosen states.
      whitener: `[m, m]` P^T; a product with the states' rows on the left is several times faster on CPU.
    """

    points: Any
    whitener: Any

    def psi(self, obs: Array) -> Array:
        vector = jax.vmap(lambda point: state_kernel(self.kernel, obs, point, self.num_actions))(
            jnp.asarray(self.points, obs.dtype)
        )
        return dot(vector, jnp.asarray(self.whitener, obs.dtype))


def dictionary(
    kernel: Kernel, states: Any, num_actions: int, tolerance: float = 1e-6, *, max_features: int = MAX_FEATURES
) -> DictionaryMap:
    """Projection on states chosen from `states` `[N, l]` by pivoted Cholesky, until all of them are within `tolerance`.

    A state z is represented up to k(z, z) - ||psi(z)||^2, which bounds the error in the kernel between any two such states
    and is measured on all `states`. Use states like those the agent will see.

    Examples:
      >>> states = np.random.default_rng(0).uniform(-1, 1, (50, 2))
      >>> found = features.dictionary(kqljax.RBF(eta=0.02), states, num_actions=3, tolerance=1e-4)
      >>> found.points.shape[1], found.error < 1e-4
      (2, True)
    """
    states = np.asarray(states, np.float64)
    if states.ndim != 2 or not len(states):
        raise ValueError(f"states must have shape [N, l] with N > 0, got {describe(states)}.")
    if not is_known(kernel):
        raise ValueError("features.dictionary chooses states by their kernel values: make it outside jit and vmap.")
    check_tolerance(tolerance)
    obs_dim = states.shape[1]
    groups = groups_of(np.asarray(action_gram(kernel, obs_dim, num_actions, "features.dictionary")))
    wanted = [tolerance / len(groups) / group.share for group in groups]
    chosen, factor, residuals = _pivoted_cholesky(kernel, states, num_actions, min(wanted), max_features)
    if residuals[-1] > min(wanted):
        raise ValueError(
            f"tolerance {tolerance:g} is out of reach of {max_features} states: a residual of {residuals[-1]:.2g} is left, "
            f"{min(wanted):.2g} is wanted. About max_features={_would_do(residuals, min(wanted))} would do; "
            "or give a larger tolerance."
        )
    sizes = [max(1, int(np.argmax(residuals <= limit))) for limit in wanted]
    size = max(sizes)
    whitener = solve_triangular(factor[:size, :size], np.eye(size), lower=True).T.copy()
    error = float(sum(group.share * residuals[n] for group, n in zip(groups, sizes, strict=True)))
    root = grouped_root(groups, sizes)
    return DictionaryMap(
        kernel=kernel, root=root, shares=shares_of(root), error=error, obs_dim=obs_dim, error_kind="measured",
        points=states[chosen[:size]], whitener=whitener,
    )  # fmt: skip


def _pivoted_cholesky(
    kernel: Kernel, states: np.ndarray, num_actions: int, wanted: float, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Indices of chosen states `[n]`, the Cholesky factor `[n, n]` of their Gram matrix, largest residuals `[n + 1]`."""
    own = on_host(lambda kernel, states: jax.vmap(lambda x: state_kernel(kernel, x, x, num_actions))(states), kernel, states)
    left = own.copy()
    columns = np.zeros((len(states), min(most, len(states))))
    chosen: list[int] = []
    residuals = [float(left.max())]
    while (residuals[-1] > wanted or not chosen) and len(chosen) < columns.shape[1]:
        best, n = int(left.argmax()), len(chosen)
        against = state_gram(kernel, states, states[best : best + 1], num_actions)[:, 0]
        columns[:, n] = (against - columns[:, :n] @ columns[best, :n]) / math.sqrt(left[best])
        left = np.maximum(left - columns[:, n] ** 2, 0.0)
        left[best] = 0.0
        chosen.append(best)
        residuals.append(float(left.max()))
    index = np.array(chosen, int)
    return index, np.tril(columns[index, : len(chosen)]), np.array(residuals)


def _would_do(residuals: np.ndarray, wanted: float) -> int:
    """Size at which the residual would fall to `wanted`, from the slope of its logarithm over the last half."""
    half = len(residuals) // 2
    rate = (math.log(residuals[half]) - math.log(residuals[-1])) / max(len(residuals) - 1 - half, 1)
    return len(residuals) - 1 + math.ceil((math.log(residuals[-1]) - math.log(wanted)) / max(rate, 1e-9))
