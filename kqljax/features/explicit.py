"""Maps by a formula: the linear kernel, RBF cut off at a degree, random Fourier features."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kqljax._arrays import dot
from kqljax._checks import is_known, whole_number
from kqljax.features import base
from kqljax.kernels import RBF, Kernel, Linear, Matern32, Matern52, check_shapes

Array = jax.Array


class LinearMap(base.FeatureMap):
    """psi(s) = [s, 1]."""

    def psi(self, obs: Array) -> Array:
        return jnp.append(obs, jnp.ones((), obs.dtype))


def linear(kernel: Kernel, obs_dim: int, num_actions: int) -> LinearMap:
    """The paper's linear kernel, exactly: m = l + 1, D = l + A.

    Examples:
      >>> features.linear(kqljax.Linear(), obs_dim=2, num_actions=3).num_weights
      5
    """
    base.check_kernel(kernel, (Linear,), "linear")
    scale = 2 * (obs_dim + 1)
    root = np.zeros((num_actions, obs_dim + 1, obs_dim + num_actions))
    root[:, :obs_dim, :obs_dim] = np.eye(obs_dim) / math.sqrt(scale)
    root[:, obs_dim, obs_dim:] = np.linalg.cholesky(0.5 + np.eye(num_actions) / scale)
    return LinearMap(kernel=kernel, root=root, error=0.0, obs_dim=obs_dim, error_kind="exact")


class TaylorMap(base.ProductMap, static=("order",)):
    """psi_nu(s) = prod_j sqrt((2 eta_j)^n_j / n_j!) s_j^n_j exp(-eta_j s_j^2) for |nu| < order.

    Attributes:
      powers: `[m, l]` exponents nu, by degree.
      order: N, static.
    """

    powers: Any
    order: int

    def psi(self, obs: Array) -> Array:
        eta = jnp.asarray(self.kernel.eta, obs.dtype)  # type: ignore[attr-defined]
        degrees = jnp.arange(1, self.order, dtype=obs.dtype)
        steps = (jnp.sqrt(2 * eta) * obs)[:, None] / jnp.sqrt(degrees)
        one = jnp.ones((obs.shape[0], 1), obs.dtype)
        powers = jnp.concatenate([one, jnp.cumprod(steps, axis=1)], axis=1)
        chosen = powers[jnp.arange(obs.shape[0]), jnp.asarray(self.powers)]
        return jnp.prod(chosen, axis=1) * jnp.exp(-jnp.sum(eta * obs**2))


def taylor(
    kernel: Kernel,
    obs_dim: int,
    num_actions: int,
    tolerance: float | None = 1e-6,
    *,
    order: int | None = None,
) -> TaylorMap:
    """The appendix's basis of RBF, cut off where the same lemma bounds the error by `tolerance`.

    Give `order` in place of a tolerance where the kernel's eta is traced. m = C(order - 1 + l, l).

    Examples:
      >>> found = features.taylor(kqljax.RBF(eta=0.02), obs_dim=2, num_actions=3, tolerance=1e-6)
      >>> found.num_weights, found.error < 1e-6
      (35, True)
    """
    base.check_kernel(kernel, (RBF,), "taylor")
    groups = base.groups_of(base.action_gram(kernel, obs_dim, num_actions, "features.taylor"))
    eta: Any = kernel.eta  # type: ignore[attr-defined]
    etas = np.broadcast_to(eta, (obs_dim,)) if is_known(kernel) else None
    if order is not None:
        whole_number("order", order, 1, "It is the degree that monomials stay below.")
        orders = [order] * len(groups)
    elif etas is None:
        raise ValueError(
            "features.taylor cannot derive its order from an eta that is being traced: give order=."
        )
    else:
        wanted = base.check_tolerance(tolerance) / len(groups)
        orders = [
            next(n for n in itertools.count(1) if _error(etas, n) <= wanted / group.share)
            for group in groups
        ]
    most, sizes = max(orders), [math.comb(n - 1 + obs_dim, obs_dim) for n in orders]
    if max(sizes) > base.MAX_FEATURES and order is None:
        raise ValueError(
            f"tolerance {tolerance:g} is out of reach of features.taylor: {max(sizes)} features of "
            f"degree below {most} would do, the limit is {base.MAX_FEATURES}. Give order={most}, a "
            "larger tolerance, or use features.nystrom."
        )
    error = math.nan
    if etas is not None:
        error = sum(group.share * _error(etas, n) for group, n in zip(groups, orders, strict=True))
    return TaylorMap(
        kernel=kernel, error=error, obs_dim=obs_dim, error_kind="bound", order=most,
        powers=_exponents(obs_dim, most), **base.grouped_root(groups, sizes),
    )  # fmt: skip


def _error(etas: np.ndarray, order: int) -> float:
    """Largest error of |nu| < order on [-1, 1]^l: (2 sum eta)^N / N!, the lemma's bound."""
    return math.exp(order * math.log(2 * etas.sum()) - math.lgamma(order + 1))


def _exponents(obs_dim: int, order: int) -> np.ndarray:
    """`[m, l]` all exponents of total degree below `order`, by degree."""
    chosen = itertools.chain.from_iterable(
        itertools.combinations_with_replacement(range(obs_dim), degree) for degree in range(order)
    )
    return np.array([np.bincount(np.array(c, int), minlength=obs_dim) for c in chosen], np.int32)


class FourierMap(base.FeatureMap):
    """psi(s) = [cos(omega s), sin(omega s)] / sqrt(F); the root turns each by an action's phase.

    Nothing is left out of k(x, x). `frequencies` omega `[F, l]` are for a length scale of 1.
    """

    frequencies: Any

    def psi(self, obs: Array) -> Array:
        of_states, _ = _stretch(self.kernel, obs.dtype)
        angles = dot(jnp.asarray(self.frequencies, obs.dtype), of_states * obs)
        half = jnp.asarray(self.num_features / 2, obs.dtype)
        return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)]) / jnp.sqrt(half)


_SMOOTHNESS: dict[type[Kernel], float] = {Matern32: 1.5, Matern52: 2.5}


def _stretch(kernel: Any, dtype: Any) -> tuple[Array, Array]:
    """What frequencies of states (`[]` or `[l]`) and of actions (`[]`) are multiplied by."""
    if isinstance(kernel, RBF):
        eta = jnp.asarray(kernel.eta, dtype)
        return jnp.sqrt(2.0 * eta), jnp.sqrt(2.0 * eta.mean())
    return (1.0 / jnp.asarray(kernel.length_scale, dtype),) * 2


def fourier(
    kernel: Kernel, obs_dim: int, num_actions: int, num_frequencies: int = 256, *, seed: int = 0
) -> FourierMap:
    """Random features of RBF, Matern32 or Matern52 on joined vectors [s, a]: m = D = 2 F.

    The F frequencies are drawn in orthogonal blocks, whose error is smaller (Yu et al., 2016). F
    has to be several times the number of pairs that the data tell apart: each takes up a feature,
    and where they are taken up no place looks unknown, however far it is (docs/features.md).

    Examples:
      >>> found = features.fourier(kqljax.Matern32(), obs_dim=2, num_actions=3, num_frequencies=64)
      >>> found.num_weights, found.error_kind
      (128, 'measured')
    """
    base.check_kernel(kernel, (RBF, *_SMOOTHNESS), "fourier")
    check_shapes(kernel, obs_dim)
    count = whole_number("num_frequencies", num_frequencies, 1, "There are two features for each.")
    rng = np.random.default_rng(seed)
    length = obs_dim + num_actions
    radii = np.linalg.norm(rng.standard_normal((count, length)), axis=1, keepdims=True)
    blocks = rng.standard_normal((-(-count // length), length, length))
    draws = np.linalg.qr(blocks)[0].reshape(-1, length)[:count] * radii
    if not isinstance(kernel, RBF):
        freedom = 2 * _SMOOTHNESS[type(kernel)]
        draws = draws * np.sqrt(freedom / rng.chisquare(freedom, (count, 1)))
    known, of_actions = is_known(kernel), lambda kernel: _stretch(kernel, None)[1]
    lib: Any = np if known else jnp
    stretch: Any = base.on_host(of_actions, kernel) if known else of_actions(kernel)
    phases = draws[:, obs_dim:] * stretch
    cos, sin = (lib.eye(count) * f(phases.T)[:, None, :] for f in (lib.cos, lib.sin))
    above, below = (lib.concatenate(each, axis=2) for each in ([cos, sin], [-sin, cos]))
    made = FourierMap(
        kernel=kernel, root=lib.concatenate([above, below], axis=1), error=math.nan,
        obs_dim=obs_dim, error_kind="measured", frequencies=draws[:, :obs_dim],
    )  # fmt: skip
    sample = np.random.default_rng(1).uniform(-1, 1, (200, obs_dim))
    return dataclasses.replace(made, error=base.kernel_error(made, sample)) if known else made
