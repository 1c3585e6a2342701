"""Kernels as projections on chosen states: Nystrom features in Newton form."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from kqljax.arrays import dot, write
from kqljax.checks import whole_number
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
    traced_root,
)
from kqljax.kernels import Kernel
from kqljax.pytrees import register

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

    def psi(self, basis: Any, obs: Array) -> Array:
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


class Points(NamedTuple):
    """States that an online dictionary has taken in so far.

    Attributes:
      num_points: `[]` int32, how many.
      points: `[m, l]`.
      whitener: `[m, m]` rows of empty places are zero.
    """

    num_points: Array
    points: Array
    whitener: Array


@functools.partial(register, static=("obs_dim", "error_kind", "capacity"))
@dataclasses.dataclass(frozen=True, kw_only=True)
class OnlineDictionaryMap(ProductMap):
    """A dictionary that takes in states as they come, wherever the ones it has leave more than `tolerance`.

    Stored transitions keep the features they had. Between such a state and a point taken in later the kernel is off by up to
    the square root of the product of what both leave, sqrt(tolerance) at most; between two stored states by the tolerance.

    Attributes:
      tolerance: residual above which a state is taken in.
      capacity: states that it can hold (static).
    """

    tolerance: Any
    capacity: int

    def init(self, dtype: Any) -> Points:
        return Points(
            jnp.zeros((), jnp.int32),
            jnp.zeros((self.capacity, self.obs_dim), dtype),
            jnp.zeros((self.capacity, self.capacity), dtype),
        )

    def _vector(self, basis: Points, obs: Array) -> Array:
        vector = jax.vmap(lambda point: state_kernel(self.kernel, obs, point, self.num_actions))(basis.points)
        return jnp.where(jnp.arange(self.capacity) < basis.num_points, vector, 0.0)

    def psi(self, basis: Points, obs: Array) -> Array:
        return dot(basis.whitener, self._vector(basis, obs))

    def extend(self, basis: Points, obs: Array, is_wanted: Any) -> tuple[Points, Array]:
        psi = self.psi(basis, obs)
        is_new = (self.gap(basis, obs, psi) > self.tolerance) & is_wanted
        left = _state_own(self, obs) - jnp.sum(psi**2)
        is_taken = is_new & (basis.num_points < self.capacity)
        unit = (jnp.arange(self.capacity) == basis.num_points).astype(psi.dtype)
        row = (unit - dot(psi, basis.whitener)) / jnp.sqrt(jnp.where(is_new, left, 1.0))
        return Points(
            basis.num_points + is_taken.astype(jnp.int32),
            write(basis.points, basis.num_points, obs, is_taken),
            write(basis.whitener, basis.num_points, row, is_taken),
        ), is_new & ~is_taken


def _state_own(features: ProductMap, obs: Array) -> Array:
    return state_kernel(features.kernel, obs, obs, features.num_actions)


def online_dictionary(
    kernel: Kernel, obs_dim: int, num_actions: int, capacity: int, tolerance: float = 1e-4
) -> OnlineDictionaryMap:
    """A dictionary that is empty at first and grows by approximate linear dependence (Engel et al., 2004) up to `capacity`.

    When it is full, `KQLInfo.is_basis_full` says so at every state it should have taken in, and `KQLInfo.feature_error`
    is what is missing there.

    Examples:
      >>> found = features.online_dictionary(kqljax.RBF(eta=0.02), obs_dim=2, num_actions=3, capacity=20)
      >>> found.num_features, found.num_weights
      (20, 60)
    """
    whole_number("capacity", capacity, 1, "It is the number of states the dictionary can hold.")
    check_tolerance(tolerance)
    of_actions = action_gram(kernel, obs_dim, num_actions, "features.online_dictionary")
    if is_known(kernel):
        groups = groups_of(np.asarray(of_actions))
        root: Any = grouped_root(groups, [capacity] * len(groups))
    else:
        root = traced_root(of_actions, capacity)
    return OnlineDictionaryMap(
        kernel=kernel, root=root, shares=shares_of(root), error=math.sqrt(tolerance), obs_dim=obs_dim, error_kind="bound",
        tolerance=tolerance, capacity=capacity,
    )  # fmt: skip
