"""Theorem 1: from assumptions on an MDP to the confidence width beta and the regret bound.

    assumed = theory.assume(RBF(eta=0.02), obs_dim=2, num_actions=3, horizon=1000, rho=2.0)
    theory.confidence_width(assumed)         # beta
    theory.regret_bound(assumed).total       # holds with probability 1 - p
    KQLConfig.from_theory(RBF(eta=0.02), obs_dim=2, num_actions=3, horizon=1000, rho=2.0)

docs/theory.md lists the gaps in the paper's proof, and what of it was checked on data.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kqljax._arrays import register
from kqljax._checks import check_gamma_and_lam, is_known, require
from kqljax.config import KQLConfig
from kqljax.engines import Exact
from kqljax.engines.base import Engine
from kqljax.kernels import Kernel
from kqljax.theory.bounds import covering_term, effective_dimension_bound

Array = jax.Array


@register
@dataclasses.dataclass(frozen=True, kw_only=True)
class Assumptions:
    """The assumptions of Theorem 1. All numbers are pytree leaves.

    Attributes:
      horizon: T.
      gamma: discount factor in [0, 1).
      lam: ridge parameter above 0.
      rho: bounds the RKHS norms of the reward and of the transition operator; at least 1 - gamma.
      epsilon: distance of reward and expected values from the RKHS, at least 0.
      sigma: stochasticity in [0, 1]: bounded functions of the successor are sigma-sub-Gaussian.
        0 is deterministic.
      p: the probability that the bound fails, in (0, 1).
      d_lambda: bounds the effective dimension of the pairs of the run; at least 1.
      c_lambda: bounds the sum of the two log covering numbers; at least 0.

    Examples:
      >>> numbers = {"horizon": 1000, "gamma": 0.9, "lam": 1e-4, "rho": 1.0, "d_lambda": 20.0}
      >>> round(float(theory.confidence_width(theory.Assumptions(**numbers))), 6)
      0.3
    """

    horizon: Any
    gamma: Any
    lam: Any
    rho: Any
    d_lambda: Any
    c_lambda: Any = 0.0
    epsilon: Any = 0.0
    sigma: Any = 0.0
    p: Any = 0.05

    def validate(self) -> Assumptions:
        """Raises ValueError where a number is outside the theorem; returns the assumptions.

        Call it outside jit.
        """
        gamma, _ = check_gamma_and_lam(self.gamma, self.lam)
        least, finite = (1 - gamma) * (1 - 1e-9), np.isfinite
        for name, is_good, words, remedy in (
            ("horizon", lambda x: finite(x) & (x >= 1), "at least 1", "The number of steps."),
            ("rho", lambda x: finite(x) & (x >= least), "at least 1 - gamma", "It bounds norms."),
            ("epsilon", lambda x: finite(x) & (x >= 0), "at least 0", "0: the kernel fits."),
            ("sigma", lambda x: (x >= 0) & (x <= 1), "in [0, 1]", "0 is deterministic."),
            ("p", lambda x: (x > 0) & (x < 1), "in (0, 1)", "The bound may fail so often."),
            ("d_lambda", lambda x: x >= 1, "at least 1", "It bounds the effective dimension."),
            ("c_lambda", lambda x: x >= 0, "at least 0", "It bounds log covering numbers."),
        ):
            require(name, getattr(self, name), is_good, words, remedy)
        return self


def assume(
    kernel: Kernel,
    *,
    obs_dim: int,
    num_actions: int,
    horizon: int,
    rho: Any,
    gamma: Any = 0.95,
    lam: Any = None,
    epsilon: Any = 0.0,
    sigma: Any = 0.0,
    p: Any = 0.05,
    d_lambda: Any = None,
    c_lambda: Any = None,
) -> Assumptions:
    """The assumptions of the Corollaries: d_lambda and c_lambda follow from the kernel by default.

    The effective dimension of a kernel without a lemma is bounded by T. Its covering numbers have
    to be given where sigma is not 0.

    Args:
      lam: by default the paper's 1 / (10 T).

    Examples:
      >>> sizes = {"obs_dim": 2, "num_actions": 3}
      >>> assumed = theory.assume(kqljax.Linear(), **sizes, horizon=1000, rho=1.0)
      >>> float(assumed.d_lambda), assumed.lam
      (5.0, 0.0001)
    """
    sizes = {"obs_dim": obs_dim, "num_actions": num_actions}
    lam = 1.0 / (10 * horizon) if lam is None else lam
    if is_known(gamma, lam):
        check_gamma_and_lam(gamma, lam)
    if d_lambda is None:
        d_lambda = jnp.maximum(effective_dimension_bound(kernel, horizon, lam, **sizes), 1.0)
    if c_lambda is None and is_known(sigma) and not np.any(np.asarray(sigma)):
        c_lambda = 0.0  # it is multiplied by sigma
    elif c_lambda is None:
        c_lambda = covering_term(kernel, horizon=horizon, gamma=gamma, lam=lam, **sizes)
    known = {"horizon": horizon, "gamma": gamma, "lam": lam, "rho": rho, "p": p}
    assumed = Assumptions(
        **known, epsilon=epsilon, sigma=sigma, d_lambda=d_lambda, c_lambda=c_lambda
    )
    return assumed.validate() if is_known(assumed) else assumed


class Width(NamedTuple):
    """The parts of beta (1 - gamma), before the cap.

    Attributes:
      rho: `[]` 3 rho sqrt(lam).
      epsilon: `[]` epsilon sqrt(T d_lambda).
      sigma: `[]` 2 sigma sqrt(d_lambda ln(e (T + lam) / lam) + ln(2 / p) + c_lambda).
      cap: `[]` 2 sqrt(T + lam). At the cap the bonus alone is 1 / (1 - gamma) everywhere, and
        nothing is learned.
    """

    rho: Array
    epsilon: Array
    sigma: Array
    cap: Array


def width_parts(assumed: Assumptions) -> Width:
    """The parts of the confidence width; jittable.

    Examples:
      >>> sizes = {"obs_dim": 2, "num_actions": 3}
      >>> assumed = theory.assume(kqljax.Linear(), **sizes, horizon=1000, rho=1.0, epsilon=0.01)
      >>> parts = theory.width_parts(assumed)
      >>> round(float(parts.rho), 4), round(float(parts.epsilon), 4), float(parts.sigma)
      (0.03, 0.7071, 0.0)
    """
    if is_known(assumed):
        assumed.validate()
    inside = assumed.d_lambda * _log_ratio(assumed) + jnp.log(2.0 / assumed.p) + assumed.c_lambda
    return Width(
        rho=3.0 * assumed.rho * jnp.sqrt(assumed.lam),
        epsilon=_times(assumed.epsilon, jnp.sqrt(1.0 * assumed.horizon * assumed.d_lambda)),
        sigma=_times(2.0 * assumed.sigma, jnp.sqrt(inside)),
        cap=2.0 * jnp.sqrt(assumed.horizon + assumed.lam),
    )


def confidence_width(assumed: Assumptions) -> Array:
    """beta `[]` of Theorem 1, at most 2 sqrt(T + lam) / (1 - gamma); jittable.

    Examples:
      >>> sizes = {"obs_dim": 2, "num_actions": 3}
      >>> assumed = theory.assume(kqljax.Linear(), **sizes, horizon=1000, rho=1.0)
      >>> round(float(theory.confidence_width(assumed)), 6)
      0.6
    """
    parts = width_parts(assumed)
    return jnp.minimum(parts.rho + parts.epsilon + parts.sigma, parts.cap) / (1.0 - assumed.gamma)


def from_theory(
    kernel: Kernel,
    *,
    obs_dim: int,
    num_actions: int,
    horizon: int,
    rho: Any,
    engine: Engine | None = None,
    tie_break: str = "first",
    terminal_value: Any = 0.0,
    **assumptions: Any,
) -> KQLConfig:
    """A config with the beta of Theorem 1.

    Args:
      rho: bounds the norms of reward and transition operator in the RKHS.
      engine: by default the exact one.
      tie_break: of the config.
      terminal_value: of the config.
      assumptions: gamma, lam, epsilon, sigma, p, d_lambda and c_lambda, as for `assume`.

    Examples:
      >>> sizes = {"obs_dim": 2, "num_actions": 3, "horizon": 1000}
      >>> round(theory.from_theory(kqljax.RBF(eta=0.02), **sizes, rho=1.0).beta, 6)
      0.6
    """
    sizes = {"num_actions": num_actions, "horizon": horizon}
    assumed = assume(kernel, obs_dim=obs_dim, **sizes, rho=rho, **assumptions)
    beta: Any = confidence_width(assumed)
    return KQLConfig(
        kernel=kernel,
        **sizes,
        engine=Exact() if engine is None else engine,
        gamma=assumed.gamma,
        lam=assumed.lam,
        beta=float(beta) if is_known(beta) and beta.ndim == 0 else beta,
        terminal_value=terminal_value,
        tie_break=tie_break,
    )


def paper_beta(lam: Any, gamma: Any) -> Any:
    """sqrt(lam) / (1 - gamma) `[]`, section 6: optimistic values start at the cap 1 / (1 - gamma).

    Examples:
      >>> round(theory.paper_beta(lam=1e-4, gamma=0.95), 6)
      0.2
    """
    if is_known(lam, gamma):
        check_gamma_and_lam(gamma, lam)
    return lam**0.5 / (1 - gamma)


class RegretBound(NamedTuple):
    """The last line of the proof of Theorem 1, term by term, constants kept.

    Attributes:
      rho, epsilon, sigma: `[]` the parts of beta, times how often the widths can be large.
      approximation: `[]` 6 epsilon T / (1 - gamma)^2.
      martingale: `[]` sigma sqrt(2 T ln(2 / p)) / (1 - gamma).
      boundary: `[]` 2 / (1 - gamma).
    """

    rho: Array
    epsilon: Array
    sigma: Array
    approximation: Array
    martingale: Array
    boundary: Array

    @property
    def total(self) -> Array:
        """`[]` the bound. No regret is above T: a larger bound says nothing."""
        return jnp.asarray(sum(self))


def regret_bound(assumed: Assumptions) -> RegretBound:
    """The bound on the gamma-regret after T steps; jittable.

    Examples:
      >>> sizes = {"obs_dim": 2, "num_actions": 3}
      >>> assumed = theory.assume(kqljax.Linear(), **sizes, horizon=10**12, rho=1.0, lam=1.0)
      >>> f"{theory.regret_bound(assumed).total / 1e12:.2f} of T"
      '0.15 of T'
    """
    parts, lam, horizon = width_parts(assumed), assumed.lam, assumed.horizon
    gap = 1.0 - assumed.gamma
    # Cauchy-Schwarz on the sum of widths:
    # sqrt(T d / lam ln(e (T + lam) / lam) / (ln(1 + 1 / lam) (1 - gamma)^5)).
    ratio = _log_ratio(assumed) / (jnp.log1p(1.0 / lam) * gap**5)
    visits = jnp.sqrt(horizon * assumed.d_lambda / lam * ratio)
    noise = jnp.sqrt(2.0 * horizon * jnp.log(2.0 / assumed.p))
    return RegretBound(
        rho=2.0 * parts.rho * visits,
        epsilon=_times(2.0 * parts.epsilon, visits),
        sigma=_times(2.0 * parts.sigma, visits),
        approximation=6.0 * assumed.epsilon * horizon / gap**2,
        martingale=assumed.sigma * noise / gap,
        boundary=jnp.asarray(2.0 / gap),
    )


def sum_of_widths_bound(pseudo: Any, lam: Any, gamma: Any) -> Any:
    """Lemma on the discounted sum of squared widths (II), `[]`.

    1/lam / (ln(1 + 1/lam) (1 - gamma)^2) times d_pse.

    Examples:
      >>> round(theory.sum_of_widths_bound(10.0, lam=1.0, gamma=0.9), 1)
      1442.7
    """
    return pseudo / lam / (math.log1p(1.0 / lam) * (1.0 - gamma) ** 2)


def _log_ratio(assumed: Assumptions) -> Array:
    """ln(e (T + lam) / lam)."""
    return 1.0 + jnp.log(assumed.horizon + assumed.lam) - jnp.log(assumed.lam)


def _times(factor: Any, value: Array) -> Array:
    """The product, and 0 where the factor is, whatever overflowed in the other."""
    return jnp.where(jnp.asarray(factor) == 0, 0.0, factor * value)
