"""The paper's linear kernel as features, exactly."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from kqljax.features.base import FeatureMap, check_kernel
from kqljax.kernels import Kernel, Linear

Array = jax.Array


class LinearMap(FeatureMap):
    """psi(s) = [s, 1]."""

    def psi(self, obs: Array) -> Array:
        return jnp.append(obs, jnp.ones((), obs.dtype))


def linear(kernel: Kernel, obs_dim: int, num_actions: int) -> LinearMap:
    """The paper's linear kernel, exactly: m = l + 1, D = l + A.

    Examples:
      >>> features.linear(kqljax.Linear(), obs_dim=2, num_actions=3).num_weights
      5
    """
    check_kernel(kernel, (Linear,), "linear")
    scale = 2 * (obs_dim + 1)
    root = np.zeros((num_actions, obs_dim + 1, obs_dim + num_actions))
    root[:, :obs_dim, :obs_dim] = np.eye(obs_dim) / math.sqrt(scale)
    root[:, obs_dim, obs_dim:] = np.linalg.cholesky(0.5 + np.eye(num_actions) / scale)
    return LinearMap(kernel=kernel, root=root, error=0.0, obs_dim=obs_dim, error_kind="exact")
