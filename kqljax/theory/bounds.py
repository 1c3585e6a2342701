"""Bounds known of a kernel before any data: effective dimension and covering numbers (section 3).

The paper states its lemmas for x^T y on a Euclidean space and for exp(-eta ||x - y||^2) on the unit
ball of R^d. The kernels of its section 6 are brought to that form here:

* `Linear` is x^T y with x = [s, a, c] scaled to norm at most 1. The one-hot actions already span
  the constant, so d = l + A.
* `RBF` depends on differences only, so the actions may be moved to their centre of gravity. There
  they span A - 1 dimensions and have squared norm 1 - 1/A. With the radius R^2 = l + 1 - 1/A of all
  pairs, d = l + A - 1 and eta becomes eta R^2.

All numbers are computed as logarithms: they range from 1e-40 to beyond the largest float.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kqljax._checks import check_positive, is_known
from kqljax.kernels import RBF, Kernel, Linear

Array = jax.Array


class Shape(NamedTuple):
    """A kernel in the form of the paper's lemmas.

    Attributes:
      d: dimension of the space that pairs live in.
      eta: of the Gaussian kernel on the unit ball; None for x^T y.
    """

    d: int
    eta: Any


def shape_of(kernel: Kernel, obs_dim: int, num_actions: int) -> Shape | None:
    """The kernel on observations in [-1, 1]^l and A actions; None where the lemmas do not cover it.

    A user's kernel class can state its shape: `bound_shape(obs_dim, num_actions)` returns (d, eta)
    or (d, None).
    """
    if hasattr(kernel, "bound_shape"):
        return Shape(*kernel.bound_shape(obs_dim, num_actions))
    if isinstance(kernel, Linear):
        return Shape(obs_dim + num_actions, None)
    if isinstance(kernel, RBF):
        # With an eta for each coordinate: the kernel of the largest, on a smaller box.
        eta = kernel.eta if jnp.ndim(kernel.eta) == 0 else jnp.max(kernel.eta)
        return Shape(obs_dim + num_actions - 1, eta * (obs_dim + 1 - 1 / num_actions))
    return None


def effective_dimension_bound(
    kernel: Kernel, num_pairs: Any, lam: Any, *, obs_dim: int, num_actions: int
) -> Array:
    """An upper bound `[]` on d_eff of any `num_pairs` pairs: the paper's lemmas, and always n.

    For a kernel without a lemma the bound is n.

    Examples:
      >>> sizes = {"obs_dim": 2, "num_actions": 3}
      >>> float(theory.effective_dimension_bound(kqljax.Linear(), 1000, 1e-4, **sizes))
      5.0
    """
    if is_known(num_pairs, lam):
        check_positive("lam", lam, "It is the scale of the dimension; the paper uses 1 / (10 T).")
        if np.any(np.asarray(num_pairs) < 0):
            raise ValueError(f"num_pairs must be at least 0, got {num_pairs}.")
    most = jnp.asarray(num_pairs, jnp.zeros(()).dtype)
    shape = shape_of(kernel, obs_dim, num_actions)
    if shape is None:
        return most
    if shape.eta is None:
        return jnp.minimum(most, float(shape.d))
    # 3 (6 + 41 eta / d + 3 / d ln(n / lam))^d, for lam <= n.
    log_most = jnp.log(jnp.maximum(most, 1.0))
    growth = 6 + (41 * shape.eta + 3 * (log_most - jnp.log(lam))) / shape.d
    log_bound = math.log(3) + shape.d * jnp.log(jnp.maximum(growth, 1.0))
    bound = jnp.exp(jnp.minimum(log_bound, log_most))
    return jnp.where(lam <= most, jnp.minimum(bound, most), most)


def log_covering_functions(
    kernel: Kernel, epsilon: Any = None, *, obs_dim: int, num_actions: int, log_epsilon: Any = None
) -> Array:
    """An upper bound `[]` on ln N(epsilon, I_H,*), for `Linear` and `RBF`.

    Infinite only where it exceeds all floats.

    Args:
      epsilon: granularity above 0, or
      log_epsilon: its logarithm, where it is too small for a float.

    Examples:
      >>> found = theory.log_covering_functions(kqljax.Linear(), 0.1, obs_dim=2, num_actions=3)
      >>> round(float(found), 3)
      15.223
    """
    shape = _shape(kernel, obs_dim, num_actions)
    return _log_covering(shape, _log_of(epsilon, log_epsilon), power=1, head=2.0)


def log_covering_operators(
    kernel: Kernel, epsilon: Any = None, *, obs_dim: int, num_actions: int, log_epsilon: Any = None
) -> Array:
    """An upper bound `[]` on ln N(epsilon, I_HS,*), as `log_covering_functions`.

    Examples:
      >>> found = theory.log_covering_operators(kqljax.Linear(), 0.1, obs_dim=2, num_actions=3)
      >>> round(float(found), 3)
      76.113
    """
    shape = _shape(kernel, obs_dim, num_actions)
    return _log_covering(shape, _log_of(epsilon, log_epsilon), power=2, head=2.0 * math.sqrt(2.0))


def covering_term(
    kernel: Kernel, *, horizon: Any, gamma: Any, lam: Any, obs_dim: int, num_actions: int
) -> Array:
    """The least c_lambda `[]` that Theorem 1 allows: both covering numbers of eq. (betrue).

    Granularities: lam^2 (1 - gamma) / (4 T^2) for functions, lam^3 (1 - gamma) / (32 (T + lam)^3)
    for operators.

    Examples:
      >>> numbers = {"horizon": 1000, "gamma": 0.9, "lam": 1.0, "obs_dim": 2, "num_actions": 3}
      >>> round(float(theory.covering_term(kqljax.Linear(), **numbers)), 1)
      770.7
    """
    log_lam, log_gap = jnp.log(lam), jnp.log1p(-jnp.asarray(gamma, jnp.zeros(()).dtype))
    functions = 2 * log_lam + log_gap - math.log(4) - 2 * jnp.log(horizon)
    operators = 3 * log_lam + log_gap - math.log(32) - 3 * jnp.log(horizon + lam)
    sizes = {"obs_dim": obs_dim, "num_actions": num_actions}
    first = log_covering_functions(kernel, log_epsilon=functions, **sizes)
    return first + log_covering_operators(kernel, log_epsilon=operators, **sizes)


def _shape(kernel: Kernel, obs_dim: int, num_actions: int) -> Shape:
    shape = shape_of(kernel, obs_dim, num_actions)
    if shape is None:
        raise ValueError(
            f"the paper has no covering numbers for {kernel}, only for Linear and RBF. "
            "Give c_lambda=, or sigma=0, with which it does not matter."
        )
    return shape


def _log_covering(shape: Shape, log_epsilon: Array, power: int, head: float) -> Array:
    """d^power ln(1 + 2/eps), or ceil(2 (ln(head/eps) + e^2 eta))^(d power) ln(1 + 4/eps)."""
    if shape.eta is None:
        return float(shape.d) ** power * jnp.logaddexp(0.0, math.log(2) - log_epsilon)
    order = jnp.ceil(2 * (math.log(head) - log_epsilon + math.e**2 * shape.eta))
    log_balls = jnp.log(jnp.logaddexp(0.0, math.log(4) - log_epsilon))
    return jnp.exp(power * shape.d * jnp.log(jnp.maximum(order, 1.0)) + log_balls)


def _log_of(epsilon: Any, log_epsilon: Any) -> Array:
    if (epsilon is None) == (log_epsilon is None):
        raise ValueError("give either epsilon= or log_epsilon=.")
    if log_epsilon is not None:
        return jnp.asarray(log_epsilon, jnp.zeros(()).dtype)
    if is_known(epsilon):
        check_positive("epsilon", epsilon, "It is the granularity of the cover.")
    return jnp.log(jnp.asarray(epsilon, jnp.zeros(()).dtype))
