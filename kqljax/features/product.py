"""Kernels that are a state part times an action part, and the roots of their feature maps.

Maps are made once, outside jit, in float64: their certificates need more digits than float32 has.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kqljax.arrays import dot, in_dtype
from kqljax.errors import is_known
from kqljax.features.base import FeatureMap
from kqljax.kernels import Kernel, Pair, gram, self_kernel

Array = jax.Array


def on_host(function: Any, *args: Any) -> np.ndarray:
    with jax.enable_x64(True), jax.ensure_compile_time_eval(), jax.default_device(jax.devices("cpu")[0]):
        return np.asarray(function(*in_dtype(args, jnp.float64)), np.float64)


def state_kernel(kernel: Kernel, x: Array, y: Array, num_actions: int) -> Array:
    """The state part `[]` of a product kernel."""
    return kernel.terms(x, Pair(y, jnp.zeros((num_actions,), y.dtype)))[0]


@functools.partial(jax.jit, static_argnames="num_actions")
def _state_gram(kernel: Kernel, rows: Array, columns: Array, num_actions: int) -> Array:
    return jax.vmap(lambda x: jax.vmap(lambda y: state_kernel(kernel, x, y, num_actions))(columns))(rows)


def state_gram(kernel: Kernel, rows: np.ndarray, columns: np.ndarray, num_actions: int) -> np.ndarray:
    """State part `[N, M]` between two lists of states, in float64."""
    return on_host(lambda *args: _state_gram(*args, num_actions), kernel, rows, columns)


def action_gram(kernel: Kernel, obs_dim: int, num_actions: int, name: str) -> Any:
    """G `[A, A]` of a kernel that is a state part times G; an error for others."""
    mixing = jax.eval_shape(lambda: kernel.mixing(obs_dim, num_actions, jnp.float32))
    if not kernel.is_split or mixing.scale.shape[0] != 1 or mixing.shift is not None:
        raise ValueError(
            f"{name} wants a kernel that is a state part times an action part, such as RBF; {kernel} is not. "
            "Use features.random_fourier for the Matern kernels, features.linear for Linear, or the exact engine."
        )
    if not is_known(kernel):
        return kernel.mixing(obs_dim, num_actions, jnp.zeros(()).dtype).scale[0]
    return on_host(lambda kernel: kernel.mixing(obs_dim, num_actions, jnp.float64).scale[0], kernel)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProductMap(FeatureMap):
    """A map of a kernel that is a state part times an action part.

    Attributes:
      shares: `[A, m]` what each feature, squared, adds to k(x, x); the rows of its root are orthogonal.
    """

    shares: Any

    def residual(self, obs: Array, psi: Array) -> Array:
        own = self_kernel(self.kernel, obs, self.num_actions)
        return jnp.maximum(own - dot(jnp.asarray(self.shares, psi.dtype), psi**2), 0.0)


def shares_of(root: Any) -> Any:
    """`shares` of a root."""
    return (root**2).sum(axis=-1)


class Group(NamedTuple):
    """An eigenspace of the action Gram matrix: its share of k(x, x), and square roots `[A, r]`."""

    share: float
    factor: np.ndarray


def groups_of(action_gram: np.ndarray) -> list[Group]:
    """Eigenspaces of G, largest first. Each is a kernel of its own and needs only as many features as its share is worth."""
    values, vectors = np.linalg.eigh(action_gram)
    groups: list[Group] = []
    top = values[-1]
    for value, members in itertools.groupby(range(len(values))[::-1], lambda i: round(values[i] / top, 9)):
        if value <= 1e-12:
            continue
        equal = list(members)
        factor = vectors[:, equal] * np.sqrt(values[equal])
        groups.append(Group(float((factor**2).sum(axis=1).max()), factor))
    return groups


def grouped_root(groups: list[Group], sizes: list[int]) -> np.ndarray:
    """`[A, m, D]` for features of which group i uses the first sizes[i]."""
    num_actions, most = groups[0].factor.shape[0], max(sizes)
    parts = []
    for group, size in zip(groups, sizes, strict=True):
        block = np.einsum("jk,ai->ajki", np.eye(most)[:, :size], group.factor)
        parts.append(block.reshape(num_actions, most, -1))
    return np.concatenate(parts, axis=2)


def traced_root(action_gram: Array, size: int) -> Array:
    """`grouped_root` where the kernel's numbers are not known yet: every group uses all features."""
    factor = jnp.linalg.cholesky(action_gram)
    block = jnp.einsum("jk,ai->ajki", jnp.eye(size, dtype=factor.dtype), factor)
    return block.reshape(factor.shape[0], size, -1)


def kernel_error(features: FeatureMap, states: np.ndarray) -> float:
    """Largest difference from the kernel over all pairs of the states `[N, l]` and actions, measured in float64.

    Examples:
      >>> states = np.random.default_rng(0).uniform(-1, 1, (10, 2))
      >>> found = features.taylor(kqljax.RBF(eta=0.02), obs_dim=2, num_actions=3, order=3)
      >>> features.kernel_error(found, states) < found.error
      True
    """
    num_actions = features.num_actions

    def difference(features: FeatureMap, states: Array) -> Array:
        psi = jax.vmap(features.psi)(states)
        rooted = jnp.einsum("nm,amd->nad", psi, features.root).reshape(-1, features.num_weights)
        every = Pair(jnp.repeat(states, num_actions, axis=0), jnp.tile(jnp.eye(num_actions), (len(states), 1)))
        return jnp.max(jnp.abs(dot(rooted, rooted.T) - gram(features.kernel, every, every)))

    return float(on_host(difference, features, np.asarray(states)))
