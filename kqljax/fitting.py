"""A kernel's widths, and what the actions do, from the transitions seen so far.

The paper assumes that the reward and the expected next state of every function of the RKHS lie in the RKHS again. How fast
states change from one to the next is therefore evidence on the kernel, and it needs no value estimate: it does not move
while values are learned. Each coordinate is measured in units of how far it was seen to spread; one number remains, the
width in these units, and it is chosen by the evidence (the marginal likelihood) of a kernel ridge model of the steps s' - s.

What an action does to the state is read off the same steps: they are a smooth function of the state plus one displacement for
each action, and `Afterstate` compares pairs by where they lead.

Transitions that ended an episode are left out of the model: the state after an end is worth its terminal value wherever it
is, and environments report it cut off or mid-fall, which would pass for roughness.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve, solve_triangular

from kqljax.arrays import cholesky, dot, squared_distances
from kqljax.kernels import Afterstate, Kernel, TwoScale
from kqljax.state import Transition

Array = jax.Array

ETAS = (0.005, 0.015, 0.05, 0.15, 0.5)
"""Inverse squared widths to choose from, in units of the spread of each coordinate."""

FIRST_FIT = 125
"""Transitions before the first fit. The next fits come at twice as many each time."""

NOISE = 1e-4
"""Ridge of the model of steps, relative to the variance of the kernel."""

LEAST_SPREAD = 0.3
"""What the spread of a coordinate counts for at least, observations being in [-1, 1]: early on some have hardly moved, and a
kernel that is narrow there tells nothing of the states that come later."""

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


def is_fittable(kernel: Kernel) -> bool:
    """Whether `fit_kernel` takes this kernel: a `TwoScale`, alone or in an `Afterstate`."""
    return isinstance(kernel.kernel if isinstance(kernel, Afterstate) else kernel, TwoScale)


def fit_kernel(kernel: Any, seen: Transition, count: Array | int | None = None) -> Any:
    """The kernel with the widths and effects of actions that the first `count` of N transitions (fields `[N, ...]`) speak for.

    Pure; `count` may be traced. A coordinate that never moved keeps a spread of one. Where no width has an evidence that is a
    number, the kernel stays as it is.

    Args:
      kernel: a `TwoScale`, whose `eta` is fitted, or an `Afterstate` of one, whose `effect` is fitted too.
      count: by default all of them.

    Examples:
      >>> from kqljax.fitting import fit_kernel
      >>> obs = jax.random.uniform(jax.random.key(0), (100, 2), minval=-1.0) * jnp.array([1.0, 0.4])
      >>> action = jnp.arange(100) % 2
      >>> moved = 0.9 * obs + jnp.where(action == 1, 0.1, -0.1)[:, None]
      >>> seen = kqljax.Transition(obs, action, jnp.zeros(100), moved, jnp.zeros(100, bool))
      >>> kernel = kqljax.Afterstate(kqljax.TwoScale(), effect=jnp.zeros((2, 2)))
      >>> fitted = fit_kernel(kernel, seen)
      >>> bool(fitted.kernel.eta[1] > 5 * fitted.kernel.eta[0])  # narrow where states differ little
      True
      >>> fitted.effect.round(2).tolist()
      [[-0.1, -0.1], [0.1, 0.1]]
    """
    count = seen.reward.shape[0] if count is None else count
    if isinstance(kernel, Afterstate):
        if jnp.ndim(kernel.effect) != 2:
            raise ValueError(
                f"Afterstate has an effect of shape {jnp.shape(kernel.effect)}, a fit needs a displacement for each action, "
                "[A, l]: begin with effect=jnp.zeros((A, l)), or take the kernel of Recipe.config."
            )
        inner = _with_widths(kernel.kernel, seen, count)
        effect = effects_of_actions(seen, count, inner.eta, jnp.shape(kernel.effect)[0])
        is_sound = jnp.all(jnp.isfinite(effect))
        return dataclasses.replace(kernel, kernel=inner, effect=jnp.where(is_sound, effect, kernel.effect))
    return _with_widths(kernel, seen, count)


def _with_widths(kernel: Any, seen: Transition, count: Array | int) -> Any:
    spread = spread_of(seen.obs, count)
    etas = jnp.asarray(ETAS, seen.obs.dtype)
    evidence = evidence_of_steps(seen, count, spread, etas, kernel.eta_action)
    is_sound = jnp.isfinite(evidence)  # in float32 the factor of a wide kernel may not exist
    best = etas[jnp.argmax(jnp.where(is_sound, evidence, -jnp.inf))] / spread**2
    return dataclasses.replace(kernel, eta=jnp.where(jnp.any(is_sound), best, kernel.eta))


def spread_of(obs: Array, count: Array | int) -> Array:
    """How far each coordinate of the first `count` observations `[N, l]` spreads, `[l]`; one where it never moved, and at least
    `LEAST_SPREAD`.

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
    return jnp.where(spread > _TINY, jnp.maximum(spread, LEAST_SPREAD), 1.0)


class _Steps(NamedTuple):
    """The transitions that a fit looks at, M of them.

    Attributes:
      obs: `[M, l]`.
      action: `[M]`.
      steps: `[M, l]` s' - s less their mean; zero where not used.
      is_used: `[M]` bool, those that were seen and did not end an episode.
      number: `[]` how many these are.
    """

    obs: Array
    action: Array
    steps: Array
    is_used: Array
    number: Array


def _steps_of(seen: Transition, count: Array | int) -> _Steps:
    rows = min(seen.reward.shape[0], _MOST_ROWS)
    index = jnp.arange(rows) * jnp.maximum(jnp.asarray(count), rows) // rows
    obs, action, next_obs, terminated = (
        jnp.asarray(field)[index] for field in (seen.obs, seen.action, seen.next_obs, seen.terminated)
    )
    is_used = (index < count) & ~terminated
    number = jnp.maximum(jnp.sum(is_used), 1).astype(obs.dtype)
    steps = jnp.where(is_used[:, None], next_obs - obs, 0.0)
    mean = jnp.sum(steps, axis=0) / number
    return _Steps(obs, action, jnp.where(is_used[:, None], steps - mean, 0.0), is_used, number)


def _ridge(of: _Steps) -> Array:
    """Rows that are left out become independent of the others, with a variance of one and a step of zero: they add nothing."""
    return jnp.diag(jnp.where(of.is_used, NOISE, 1.0).astype(of.obs.dtype))


def evidence_of_steps(seen: Transition, count: Array | int, spread: Array, etas: Array, eta_action: Array | float) -> Array:
    """Log evidence `[G]` of the steps s' - s under Gaussian kernels with each of the `etas` `[G]`, up to a constant.

    One model for each coordinate; its variance is the most likely one.
    """
    of = _steps_of(seen, count)
    steps = of.steps / spread
    size = jnp.sqrt(jnp.sum(steps**2, axis=0) / of.number)
    steps = steps / jnp.where(size > _TINY, size, 1.0)
    distance = squared_distances(of.obs, of.obs, spread**-2)
    agreement = jnp.where(of.action[:, None] == of.action, 1.0, jnp.exp(-2.0 * jnp.asarray(eta_action, of.obs.dtype)))
    both = jnp.where(of.is_used[:, None] & of.is_used, agreement, 0.0)

    def one(eta: Array) -> Array:
        factor = cholesky(both * jnp.exp(-eta * distance) + _ridge(of))
        white = solve_triangular(factor, steps, lower=True)
        variance = jnp.sum(white**2, axis=0) / of.number
        fit = -0.5 * of.number * jnp.sum(jnp.log(jnp.maximum(variance, _TINY**2)))
        return fit - steps.shape[1] * jnp.sum(jnp.log(jnp.diagonal(factor)))

    return lax.map(one, etas)


def effects_of_actions(seen: Transition, count: Array | int, eta: Array, num_actions: int) -> Array:
    """Mean displacement of the state by each action, less that of all actions, `[A, l]`.

    Steps are modelled as a function of the state, a Gaussian process with the widths `eta` `[l]`, plus one vector for each
    action, normal with the same variance; this is the mean of the latter. An action that was never taken has zero.
    """
    of = _steps_of(seen, count)
    taken = jnp.where(of.is_used[:, None], jax.nn.one_hot(of.action, num_actions, dtype=of.obs.dtype), 0.0)
    both = of.is_used[:, None] & of.is_used
    states = jnp.where(both, jnp.exp(-squared_distances(of.obs, of.obs, eta)), 0.0)
    factor = cholesky(states + dot(taken, taken.T) + _ridge(of))
    effect = dot(taken.T, cho_solve((factor, True), of.steps))
    is_taken = jnp.any(taken > 0, axis=0)[:, None]
    mean = jnp.sum(effect, axis=0) / jnp.maximum(jnp.sum(is_taken), 1)
    return jnp.where(is_taken, effect - mean, 0.0)
