"""RBF and Matern kernels as cosines and sines of random frequencies (Rahimi and Recht, 2007)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kqljax.arrays import dot
from kqljax.checks import whole_number
from kqljax.errors import is_known
from kqljax.features.base import MAX_FEATURES, FeatureMap, check_kernel, check_tolerance, register_map
from kqljax.features.product import kernel_error, on_host
from kqljax.kernels import RBF, Kernel, Matern32, Matern52

Array = jax.Array


@register_map
@dataclasses.dataclass(frozen=True, kw_only=True)
class FourierMap(FeatureMap):
    """psi(s) = [cos(omega s), sin(omega s)] / sqrt(F); the root turns each by the phase of the action.

    Its norm is that of the kernel at every state, so that nothing is left out of k(x, x).

    Attributes:
      frequencies: `[F, l]`, for a kernel of length scale 1.
    """

    frequencies: Any

    def psi(self, obs: Array) -> Array:
        angles = _stretch(self.kernel) * dot(jnp.asarray(self.frequencies, obs.dtype), obs)
        half = jnp.asarray(self.num_features / 2, obs.dtype)
        return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)]) / jnp.sqrt(half)


_SMOOTHNESS: dict[type[Kernel], float] = {Matern32: 1.5, Matern52: 2.5}


def _stretch(kernel: Any) -> Any:
    return jnp.sqrt(2.0 * jnp.asarray(kernel.eta)) if isinstance(kernel, RBF) else 1.0 / jnp.asarray(kernel.length_scale)


def random_fourier(
    kernel: Kernel,
    obs_dim: int,
    num_actions: int,
    num_frequencies: int | None = None,
    *,
    tolerance: float | None = None,
    seed: int = 0,
) -> FourierMap:
    """Random features of RBF, Matern32 or Matern52 on joined vectors [s, a]: m = D = 2 F, whatever the number of actions.

    Frequencies are drawn in orthogonal blocks, whose error is smaller (Yu et al., 2016). There have to be many more features
    than places in the data: with as many, no place looks unknown, however far it is from all others (docs/features.md).

    Args:
      num_frequencies: F, by default 256; or give a `tolerance`, and F is doubled until the measured error is below it.
      seed: of the frequencies.

    Examples:
      >>> found = features.random_fourier(kqljax.Matern32(), obs_dim=2, num_actions=3, num_frequencies=64)
      >>> found.num_weights, found.error_kind
      (128, 'measured')
    """
    check_kernel(kernel, (RBF, *_SMOOTHNESS), "random_fourier")
    if num_frequencies is not None:
        whole_number("num_frequencies", num_frequencies, 1, "There are two features for each.")
        return _fourier(kernel, obs_dim, num_actions, num_frequencies, seed)
    if tolerance is None:
        return _fourier(kernel, obs_dim, num_actions, 256, seed)
    if not is_known(kernel):
        raise ValueError("features.random_fourier cannot measure the error of a kernel that is traced: give num_frequencies=.")
    check_tolerance(tolerance)
    count = 16
    while True:
        found = _fourier(kernel, obs_dim, num_actions, count, seed)
        if found.error <= tolerance:
            return found
        if 4 * count > MAX_FEATURES:
            would_do = math.ceil(count * (found.error / tolerance) ** 2)
            raise ValueError(
                f"tolerance {tolerance:g} is out of reach of features.random_fourier: {count} frequencies leave "
                f"{found.error:.2g}; about num_frequencies={would_do} would do, as the error falls with the square root."
            )
        count *= 2


def _fourier(kernel: Kernel, obs_dim: int, num_actions: int, count: int, seed: int) -> FourierMap:
    rng = np.random.default_rng(seed)
    length = obs_dim + num_actions
    radii = np.linalg.norm(rng.standard_normal((count, length)), axis=1, keepdims=True)
    blocks = [np.linalg.qr(rng.standard_normal((length, length)))[0] for _ in range(-(-count // length))]
    draws = np.concatenate(blocks)[:count] * radii
    if not isinstance(kernel, RBF):
        freedom = 2 * _SMOOTHNESS[type(kernel)]
        draws = draws * np.sqrt(freedom / rng.chisquare(freedom, (count, 1)))
    known = is_known(kernel)
    phases = draws[:, obs_dim:] * on_host(_stretch, kernel) if known else draws[:, obs_dim:] * _stretch(kernel)
    lib = np if known else jnp
    cos, sin = (lib.eye(count) * f(phases.T)[:, None, :] for f in (lib.cos, lib.sin))
    root = lib.concatenate([lib.concatenate([cos, sin], axis=2), lib.concatenate([-sin, cos], axis=2)], axis=1)
    made = FourierMap(
        kernel=kernel, root=root, error=math.nan, obs_dim=obs_dim, error_kind="measured", frequencies=draws[:, :obs_dim]
    )
    if not known:
        return made
    sample = np.random.default_rng(1).uniform(-1, 1, (200, obs_dim))
    return dataclasses.replace(made, error=kernel_error(made, sample))
