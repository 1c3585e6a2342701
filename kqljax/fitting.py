"""A kernel's widths from the transitions seen so far.

The paper assumes that the reward and the expected next state of every function of the RKHS lie in the RKHS again. How fast
states change from one to the next is therefore evidence on the kernel, and it needs no value estimate: it does not move
while values are learned. Each coordinate is measured in units of how far it was seen to spread; one number remains, the
width in these units, and it is chosen by the evidence (the marginal likelihood) of a kernel ridge model of the steps s' - s.

Transitions that ended an episode are left out of the model: the state after an end is worth its terminal value wherever it
is, and environments report it cut off or mid-fall, which would pass for roughness.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular

from kqljax.arrays import dot
from kqljax.kernels import TwoScale
from kqljax.state import Transition

Array = jax.Array

ETAS = (0.005, 0.015, 0.05, 0.15, 0.5)
"""Inverse squared widths to choose from, in units of the spread of each coordinate."""

FIRST_FIT = 125
"""Transitions before the first fit. The next fits come at twice as many each time."""

NOISE = 1e-4
"""Ridge of the model of steps, relative to the variance of the kernel."""

_MOST_ROWS = 1000
"""Transitions that a fit looks at: it costs their cube. Where there are more, they are spread evenly over the run."""

_TINY = 1e-9


def fit_counts(num_steps: int, first: int = FIRST_FIT) -> tuple[int, ...]:
    """The numbers of transitions after which a run of `num_steps` fits its kernel: first, 2 first, 4 first, ...

    Examples:
      >>> from kqljax.fitting import fit_counts
      >>> fit_counts(1000)
      (125, 250, 500)
    """
    counts = []
    while first < num_steps:
        counts.append(first)
        first *= 2
    return tuple(counts)


def fit_kernel(kernel: TwoScale, seen: Transition, count: Array | int | None = None) -> TwoScale:
    """The kernel with the widths that the first `count` of N transitions (fields `[N, ...]`) speak for.

    Pure; `count` may be traced. A coordinate that never moved keeps a spread of one. Where no width has an evidence that is a
    number, the kernel stays as it is.

    Args:
      count: by default all of them.

    Examples:
      >>> from kqljax.fitting import fit_kernel
      >>> obs = jax.random.uniform(jax.random.key(0), (100, 2), minval=-1.0) * jnp.array([1.0, 0.1])
      >>> seen = kqljax.Transition(obs, jnp.zeros(100, int), jnp.zeros(100), 0.9 * obs, jnp.zeros(100, bool))
      >>> eta = fit_kernel(kqljax.TwoScale(), seen).eta
      >>> bool(eta[1] > 50 * eta[0])  # narrow where states differ little
      True
    """
    count = seen.reward.shape[0] if count is None else count
    spread = spread_of(seen.obs, count)
    etas = jnp.asarray(ETAS, seen.obs.dtype)
    evidence = evidence_of_steps(seen, count, spread, etas, kernel.eta_action)
    is_sound = jnp.isfinite(evidence)  # in float32 the factor of a wide kernel may not exist
    best = etas[jnp.argmax(jnp.where(is_sound, evidence, -jnp.inf))] / spread**2
    return dataclasses.replace(kernel, eta=jnp.where(jnp.any(is_sound), best, kernel.eta))


def spread_of(obs: Array, count: Array | int) -> Array:
    """How far each coordinate of the first `count` observations `[N, l]` spreads, `[l]`; one where it never moved.

    The geometric mean of the standard deviation and of half the range. Alone, the first shrinks once a policy keeps to one
    place, although the states seen before are still there to be told apart; the second is made by a few states far out.
    """
    is_seen = (jnp.arange(obs.shape[0]) < count)[:, None]
    number = jnp.maximum(jnp.sum(is_seen), 1)
    mean = jnp.sum(jnp.where(is_seen, obs, 0.0), axis=0) / number
    deviation = jnp.sqrt(jnp.sum(jnp.where(is_seen, (obs - mean) ** 2, 0.0), axis=0) / number)
    highest = jnp.max(jnp.where(is_seen, obs, -jnp.inf), axis=0)
    lowest = jnp.min(jnp.where(is_seen, obs, jnp.inf), axis=0)
    spread = jnp.sqrt(deviation * (highest - lowest) / 2.0)
    return jnp.where(spread > _TINY, spread, 1.0)


def evidence_of_steps(seen: Transition, count: Array | int, spread: Array, etas: Array, eta_action: Array | float) -> Array:
    """Log evidence `[G]` of the steps s' - s under Gaussian kernels with each of the `etas` `[G]`, up to a constant.

    One model for each coordinate; its variance is the most likely one.
    """
    total = seen.reward.shape[0]
    rows = min(total, _MOST_ROWS)
    index = jnp.arange(rows) * jnp.maximum(jnp.asarray(count), rows) // rows
    obs, action, next_obs, terminated = (
        jnp.asarray(field)[index] for field in (seen.obs, seen.action, seen.next_obs, seen.terminated)
    )
    is_used = (index < count) & ~terminated
    weight = is_used.astype(obs.dtype)
    number = jnp.maximum(jnp.sum(weight), 1.0)
    steps = (next_obs - obs) / spread
    steps = (steps - jnp.sum(weight[:, None] * steps, axis=0) / number) * weight[:, None]
    size = jnp.sqrt(jnp.sum(steps**2, axis=0) / number)
    steps = steps / jnp.where(size > _TINY, size, 1.0)

    scaled = obs / spread
    squares = jnp.sum(scaled**2, axis=-1)
    distance = jnp.maximum(squares[:, None] + squares - 2.0 * dot(scaled, scaled.T), 0.0)
    agreement = jnp.where(action[:, None] == action, 1.0, jnp.exp(-2.0 * jnp.asarray(eta_action, obs.dtype)))
    both = weight[:, None] * weight * agreement
    # Rows that are left out become independent of the others, with a variance of one and a step of zero: they add nothing.
    ridge = jnp.diag(jnp.where(is_used, NOISE, 1.0).astype(obs.dtype))

    def one(eta: Array) -> Array:
        factor = _cholesky(both * jnp.exp(-eta * distance) + ridge)
        white = solve_triangular(factor, steps, lower=True)
        variance = jnp.sum(white**2, axis=0) / number
        fit = -0.5 * number * jnp.sum(jnp.log(jnp.maximum(variance, _TINY**2)))
        return fit - steps.shape[1] * jnp.sum(jnp.log(jnp.diagonal(factor)))

    return lax.map(one, etas)


@jax.custom_batching.sequential_vmap
def _cholesky(matrix: Array) -> Array:
    """One after the other under vmap, for the reason that `posterior.weights` has for its QR."""
    return jnp.linalg.cholesky(matrix)
