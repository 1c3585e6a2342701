"""The regret that a run had, where the optimal values are known."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from kqljax.checks import check_gamma_and_lam
from kqljax.errors import describe, is_known

Array = jax.Array


class GammaRegret(NamedTuple):
    """Cumulative gamma-regret after each step, between two bounds.

    V_t is the discounted sum of ALL later rewards, and a run has an end: the rewards after it are taken as 1 each for
    `lower` and as 0 for `upper`. The two differ by at most gamma / (1 - gamma) however long the run is, and hardly at all
    for steps more than a few 1 / (1 - gamma) before its end.

    Attributes:
      lower: `[N]`.
      upper: `[N]`.

    Examples:
      >>> regret = theory.measured_regret(optimal=[10.0, 10.0], rewards=[0.0, 1.0], gamma=0.9)
      >>> bool(regret.lower[-1] < regret.upper[-1])
      True
    """

    lower: Array
    upper: Array


def measured_regret(optimal: Any, rewards: Any, gamma: Any) -> GammaRegret:
    """(1 - gamma) sum over steps of V*(s_t) - V_t; jittable.

    Args:
      optimal: `[N]` V* at the states the run was in.
      rewards: `[N]` rewards in [0, 1] it got there.

    Examples:
      >>> regret = theory.measured_regret(optimal=[10.0, 10.0], rewards=[0.0, 1.0], gamma=0.9)
      >>> regret.lower.round(3).tolist(), regret.upper.round(3).tolist()
      ([0.1, 0.1], [0.91, 1.81])
    """
    if np.ndim(optimal) != 1 or np.shape(optimal) != np.shape(rewards):
        raise ValueError(f"optimal and rewards must both be [N], got {describe(optimal)} and {describe(rewards)}.")
    if is_known(gamma):
        check_gamma_and_lam(gamma, 1.0)
    dtype = jnp.zeros(()).dtype
    best, rewards = jnp.asarray(optimal, dtype), jnp.asarray(rewards, dtype)

    def back(after: Array, reward: Array) -> tuple[Array, Array]:
        value = reward + gamma * after
        return value, value

    def regret(rest: Any) -> Array:
        _, values = lax.scan(back, jnp.asarray(rest, dtype), rewards, reverse=True)
        return (1.0 - gamma) * jnp.cumsum(best - values)

    return GammaRegret(lower=regret(1.0 / (1.0 - gamma)), upper=regret(0.0))


def growth_exponent(steps: Any, regret: Any) -> float:
    """The slope of ln(regret) `[n]` over ln(steps) `[n]`: 1 is linear regret, 1/2 the rate of the theorem.

    Regret below 1 counts as 1.

    Examples:
      >>> round(theory.growth_exponent([100, 400, 1600], [10, 20, 40]), 3)
      0.5
    """
    steps, regret = np.asarray(steps, float), np.maximum(np.asarray(regret, float), 1.0)
    if steps.ndim != 1 or steps.shape != regret.shape or len(steps) < 2:
        raise ValueError(f"steps and regret must be vectors of one length, at least 2, got {steps.shape}, {regret.shape}.")
    return float(np.polyfit(np.log(steps), np.log(regret), 1)[0])
