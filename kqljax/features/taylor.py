"""The RBF kernel in the orthonormal basis of the paper's appendix, cut off at a degree."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kqljax.checks import whole_number
from kqljax.errors import is_known
from kqljax.features.base import (
    MAX_FEATURES,
    ProductMap,
    action_gram,
    check_kernel,
    check_tolerance,
    grouped_root,
    groups_of,
)
from kqljax.kernels import RBF, Kernel

Array = jax.Array


class TaylorMap(ProductMap, static=("order",)):
    """psi_nu(s) = prod_j sqrt((2 eta_j)^n_j / n_j!) s_j^n_j exp(-eta_j s_j^2) for |nu| < order.

    Attributes:
      powers: `[m, l]` exponents nu, by degree.
      order: N (static).
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
    check_kernel(kernel, (RBF,), "taylor")
    if order is not None:
        whole_number("order", order, 1, "It is the degree that monomials stay below.")
    groups = groups_of(action_gram(kernel, obs_dim, num_actions, "features.taylor"))
    known = is_known(kernel)
    etas = np.broadcast_to(kernel.eta, (obs_dim,)) if known else None  # type: ignore[attr-defined]
    if order is not None:
        orders = [order] * len(groups)
    elif etas is None:
        raise ValueError(
            "features.taylor cannot derive its order from an eta that is being traced: give order=."
        )
    else:
        wanted = check_tolerance(tolerance) / len(groups)  # type: ignore[arg-type]
        orders = [_first_order(etas, wanted / group.share) for group in groups]
    most, sizes = max(orders), [math.comb(n - 1 + obs_dim, obs_dim) for n in orders]
    if max(sizes) > MAX_FEATURES and order is None:
        raise ValueError(
            f"tolerance {tolerance:g} is out of reach of features.taylor: {max(sizes)} features of "
            f"degree below {most} would do, the limit is {MAX_FEATURES}. Give order={most}, a "
            "larger tolerance, or use features.nystrom."
        )
    error = math.nan
    if etas is not None:
        error = sum(group.share * _error(etas, n) for group, n in zip(groups, orders, strict=True))
    return TaylorMap(
        kernel=kernel, error=error, obs_dim=obs_dim, error_kind="bound", order=most,
        powers=_exponents(obs_dim, most), **grouped_root(groups, sizes),
    )  # fmt: skip


def _error(etas: np.ndarray, order: int) -> float:
    """Largest error of |nu| < order on [-1, 1]^l: (2 sum eta)^N / N!, the lemma's bound."""
    return math.exp(order * math.log(2 * etas.sum()) - math.lgamma(order + 1))


def _first_order(etas: np.ndarray, wanted: float) -> int:
    return next(n for n in itertools.count(1) if _error(etas, n) <= wanted)


def _exponents(obs_dim: int, order: int) -> np.ndarray:
    """`[m, l]` all exponents of total degree below `order`, by degree."""
    chosen = itertools.chain.from_iterable(
        itertools.combinations_with_replacement(range(obs_dim), degree) for degree in range(order)
    )
    return np.array([np.bincount(np.array(c, int), minlength=obs_dim) for c in chosen], np.int32)
