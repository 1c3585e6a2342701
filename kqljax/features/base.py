"""What all feature maps have, and the checks they share."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kqljax.errors import is_known
from kqljax.kernels import Kernel
from kqljax.pytrees import register

Array = jax.Array

MAX_FEATURES = 2000
"""State features that a map gets at most when its size follows from a tolerance."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureMap:
    """What all maps have. Make one with the functions of this module.

    Attributes:
      kernel: the kernel it stands for.
      root: `[A, m, D]` R, how features of states become features of pairs.
      error: largest difference from the kernel.
      obs_dim: l (static).
      error_kind: "exact", "bound" or "measured" (static).

    Examples:
      >>> found = features.linear(kqljax.Linear(), obs_dim=2, num_actions=3)
      >>> found.num_features, found.num_weights, found.root.shape, found.error_kind
      (3, 5, (3, 3, 5), 'exact')
      >>> found.psi(jnp.array([0.1, -0.2])).tolist()
      [0.1, -0.2, 1.0]
    """

    kernel: Kernel
    root: Any
    error: Any
    obs_dim: int
    error_kind: str

    @property
    def num_actions(self) -> int:
        """A."""
        return self.root.shape[-3]

    @property
    def num_features(self) -> int:
        """m, features of a state."""
        return self.root.shape[-2]

    @property
    def num_weights(self) -> int:
        """D, features of a pair."""
        return self.root.shape[-1]

    def psi(self, obs: Array) -> Array:
        """Features `[m]` of a state `[l]`."""
        raise TypeError(f"{type(self).__name__} has no psi method.")

    def residual(self, obs: Array, psi: Array) -> Array:
        """`[A]` what the features of a state `[l]` leave out of k(x, x), with each action: it counts as not known."""
        return jnp.zeros((self.num_actions,), psi.dtype)

    def check(self, kernel: Kernel, obs_dim: int | None, num_actions: int) -> None:
        """Raises ValueError where the map was made for something else."""
        if obs_dim is not None and obs_dim != self.obs_dim:
            raise ValueError(
                f"the feature map was made for observations of length {self.obs_dim}, not {obs_dim}. Make it anew."
            )
        if num_actions != self.num_actions:
            raise ValueError(f"the feature map was made for {self.num_actions} actions, not {num_actions}. Make it anew.")
        known = is_known(kernel, self.kernel)
        same: bool = jax.tree.structure(kernel) == jax.tree.structure(self.kernel)  # type: ignore[operator]
        if same and known:
            pairs = zip(jax.tree.leaves(kernel), jax.tree.leaves(self.kernel), strict=True)
            same = all(np.allclose(one, other, rtol=1e-6, atol=0) for one, other in pairs)
        if not same:
            raise ValueError(
                f"the feature map stands for the kernel {self.kernel}, the config has {kernel}. "
                "Make the map from the config's kernel."
            )


register_map = functools.partial(register, static=("obs_dim", "error_kind"))


def check_tolerance(tolerance: float) -> float:
    if not 0 < tolerance < 1:
        raise ValueError(
            f"tolerance must be in (0, 1), got {tolerance}: it is the largest error in the kernel, whose values are up to 1."
        )
    return float(tolerance)


def check_kernel(kernel: Any, kinds: tuple[type, ...], name: str) -> None:
    if not isinstance(kernel, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"features.{name} is for the kernel {names}, got {kernel}.")
