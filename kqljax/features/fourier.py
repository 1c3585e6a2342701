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
from kqljax.features.base import (
    FeatureMap,
    check_kernel,
    kernel_error,
    on_host,
)
from kqljax.kernels import RBF, Kernel, Matern32, Matern52, check_shapes

Array = jax.Array


class FourierMap(FeatureMap):
    """psi(s) = [cos(omega s), sin(omega s)] / sqrt(F); the root turns each by an action's phase.

    Its norm is that of the kernel at every state, so that nothing is left out of k(x, x).

    Attributes:
      frequencies: `[F, l]`, for a kernel of length scale 1.
    """

    frequencies: Any

    def psi(self, obs: Array) -> Array:
        of_states, _ = _stretch(self.kernel, obs.dtype)
        angles = dot(jnp.asarray(self.frequencies, obs.dtype), of_states * obs)
        half = jnp.asarray(self.num_features / 2, obs.dtype)
        return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)]) / jnp.sqrt(half)


_SMOOTHNESS: dict[type[Kernel], float] = {Matern32: 1.5, Matern52: 2.5}


def _stretch(kernel: Any, dtype: Any) -> tuple[Array, Array]:
    """What frequencies of states (a number or `[l]`) and of actions (a number) are multiplied by."""
    if isinstance(kernel, RBF):
        eta = jnp.asarray(kernel.eta, dtype)
        return jnp.sqrt(2.0 * eta), jnp.sqrt(2.0 * eta.mean())
    return (1.0 / jnp.asarray(kernel.length_scale, dtype),) * 2


def fourier(
    kernel: Kernel,
    obs_dim: int,
    num_actions: int,
    num_frequencies: int = 256,
    *,
    seed: int = 0,
) -> FourierMap:
    """Random features of RBF, Matern32 or Matern52 on joined vectors [s, a]: m = D = 2 F.

    Frequencies are drawn in orthogonal blocks, whose error is smaller (Yu et al., 2016). F has to
    be several times the number of pairs that the data tell apart: each takes up a feature, and
    where they are taken up no place looks unknown, however far it is (docs/features.md).

    Args:
      num_frequencies: F.
      seed: of the frequencies.

    Examples:
      >>> found = features.fourier(kqljax.Matern32(), obs_dim=2, num_actions=3, num_frequencies=64)
      >>> found.num_weights, found.error_kind
      (128, 'measured')
    """
    check_kernel(kernel, (RBF, *_SMOOTHNESS), "fourier")
    check_shapes(kernel, obs_dim)
    whole_number("num_frequencies", num_frequencies, 1, "There are two features for each.")
    count = num_frequencies
    rng = np.random.default_rng(seed)
    length = obs_dim + num_actions
    radii = np.linalg.norm(rng.standard_normal((count, length)), axis=1, keepdims=True)
    blocks = rng.standard_normal((-(-count // length), length, length))
    draws = np.linalg.qr(blocks)[0].reshape(-1, length)[:count] * radii
    if not isinstance(kernel, RBF):
        freedom = 2 * _SMOOTHNESS[type(kernel)]
        draws = draws * np.sqrt(freedom / rng.chisquare(freedom, (count, 1)))
    if known := is_known(kernel):
        stretch: Any = on_host(lambda kernel: _stretch(kernel, float)[1], kernel)
    else:
        stretch = _stretch(kernel, None)[1]
    lib: Any = np if known else jnp
    phases = draws[:, obs_dim:] * stretch
    cos, sin = (lib.eye(count) * f(phases.T)[:, None, :] for f in (lib.cos, lib.sin))
    above, below = (lib.concatenate(each, axis=2) for each in ([cos, sin], [-sin, cos]))
    made = FourierMap(
        kernel=kernel, root=lib.concatenate([above, below], axis=1), error=math.nan,
        obs_dim=obs_dim, error_kind="measured", frequencies=draws[:, :obs_dim],
    )  # fmt: skip
    if not known:
        return made
    sample = np.random.default_rng(1).uniform(-1, 1, (200, obs_dim))
    return dataclasses.replace(made, error=kernel_error(made, sample))
