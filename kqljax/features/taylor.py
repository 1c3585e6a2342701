"""The RBF kernel in the orthonormal basis of the paper's appendix, cut off at a degree."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kqljax.checks import whole_number
from kqljax.errors import is_known
from kqljax.features.base import MAX_FEATURES, check_kernel, check_tolerance
from kqljax.features.product import ProductMap, action_gram, grouped_root, groups_of, shares_of, traced_root
from kqljax.kernels import RBF, Kernel
from kqljax.pytrees import register

Array = jax.Array


@functools.partial(register, static=("obs_dim", "error_kind", "order"))
@dataclasses.dataclass(frozen=True, kw_only=True)
class TaylorMap(ProductMap):
    """psi_nu(s) = prod_j sqrt((2 eta)^n_j / n_j!) s_j^n_j exp(-eta s_j^2) for |nu| < order.

    Attributes:
      powers: `[m, l]` exponents nu, by degree.
      order: N (static).
    """

    powers: Any
    order: int

    def psi(self, obs: Array) -> Array:
        eta = jnp.asarray(self.kernel.eta, obs.dtype)  # type: ignore[attr-defined]
        steps = jnp.sqrt(2 * eta) * obs[:, None] / jnp.sqrt(jnp.arange(1, self.order, dtype=obs.dtype))
        one = jnp.ones((obs.shape[0], 1), obs.dtype)
        powers = jnp.concatenate([one, jnp.cumprod(steps, axis=1)], axis=1)
        chosen = powers[jnp.arange(obs.shape[0]), jnp.asarray(self.powers)]
        return jnp.prod(chosen, axis=1) * jnp.exp(-eta * jnp.sum(obs**2))


def taylor_error(eta: float, obs_dim: int, order: int) -> float:
    """Largest error of the basis cut off at |nu| < order on [-1, 1]^l: (2 eta l)^N / N!, the lemma's bound on the tail."""
    return math.exp(order * math.log(2 * eta * obs_dim) - math.lgamma(order + 1)) if order else 1.0


def taylor(
    kernel: Kernel, obs_dim: int, num_actions: int, tolerance: float | None = 1e-6, *, order: int | None = None
) -> TaylorMap:
    """The appendix's orthonormal basis of the RBF kernel, cut off where the same lemma bounds the error by `tolerance`.

    Give `order` in place of a tolerance where the kernel's eta is traced. m = C(order - 1 + l, l).

    Examples:
      >>> found = features.taylor(kqljax.RBF(eta=0.02), obs_dim=2, num_actions=3, tolerance=1e-6)
      >>> found.num_weights, found.error < 1e-6
      (35, True)
    """
    check_kernel(kernel, (RBF,), "taylor")
    if order is not None:
        whole_number("order", order, 1, "It is the degree that monomials stay below.")
    of_actions = action_gram(kernel, obs_dim, num_actions, "features.taylor")
    if not is_known(kernel):
        if order is None:
            raise ValueError("features.taylor cannot derive its order from an eta that is being traced: give order=.")
        powers = _exponents(obs_dim, order)
        root: Any = traced_root(of_actions, len(powers))
        return TaylorMap(
            kernel=kernel, root=root, shares=shares_of(root), error=math.nan, obs_dim=obs_dim, error_kind="bound",
            powers=powers, order=order,
        )  # fmt: skip
    eta = float(kernel.eta)  # type: ignore[attr-defined]
    groups = groups_of(np.asarray(of_actions))
    if order is not None:
        orders = [order] * len(groups)
        error = sum(group.share for group in groups) * taylor_error(eta, obs_dim, order)
    else:
        assert tolerance is not None
        wanted = check_tolerance(tolerance) / len(groups)
        orders = [_first_order(eta, obs_dim, wanted / group.share) for group in groups]
        error = sum(group.share * taylor_error(eta, obs_dim, n) for group, n in zip(groups, orders, strict=True))
    sizes = [math.comb(n - 1 + obs_dim, obs_dim) for n in orders]
    if max(sizes) > MAX_FEATURES and order is None:
        raise ValueError(
            f"tolerance {tolerance:g} is out of reach of features.taylor: {max(sizes)} features of degree below {max(orders)} "
            f"would do, the limit is {MAX_FEATURES}. Give order={max(orders)}, a larger tolerance, or use features.dictionary."
        )
    powers = _exponents(obs_dim, max(orders))
    root = grouped_root(groups, sizes)
    return TaylorMap(
        kernel=kernel, root=root, shares=shares_of(root), error=error, obs_dim=obs_dim, error_kind="bound", powers=powers,
        order=max(orders),
    )  # fmt: skip


def _first_order(eta: float, obs_dim: int, wanted: float) -> int:
    return next(n for n in itertools.count(1) if taylor_error(eta, obs_dim, n) <= wanted)


def _exponents(obs_dim: int, order: int) -> np.ndarray:
    """`[m, l]` all exponents of total degree below `order`, by degree."""
    rows = []
    for degree in range(order):
        for chosen in itertools.combinations_with_replacement(range(obs_dim), degree):
            rows.append(np.bincount(np.array(chosen, int), minlength=obs_dim))
    return np.array(rows, np.int32)
