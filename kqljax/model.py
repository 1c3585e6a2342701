"""What the stored transitions say of the environment: where an action leads, what it pays, and whether that is an end.

Kernel ridge regression of the steps s' - s, of the rewards and of the ends on the stored pairs, with the widths that were
fitted to the same transitions (`kqljax.fitting`). The paper assumes that rewards and expected next states lie in the RKHS; this
is the estimate that the assumption allows, and it needs no value.

    model = fit_model(eta, state)
    next_obs, reward, ends = foresee(model, obs, action)

Two scales: a share of a narrow kernel follows what is not smooth, a wall for example, where it is. With the wide one alone such
a place is felt everywhere (docs/recipe.md).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve

from kqljax.arrays import cholesky, dot, squared_distances
from kqljax.kernels import Pair
from kqljax.state import KQLState

Array = jax.Array

SHARE = 0.01
"""Weight of the narrow kernel, whose eta is 27 times the fitted one."""

AGREEMENT = 0.9
"""Correlation between the steps of one state with two different actions."""

NOISE = 1e-4
"""Ridge of steps and rewards, relative to the variance of the kernel: small enough for steps without noise, large enough that
the weights can be used in float32."""

END_RIDGE = 1e-2
"""Ridge of the ends: they begin from one step to the next, not smoothly, and a small one would make them felt far around."""


class Model(NamedTuple):
    """Kernel ridge regression of N stored transitions.

    Attributes:
      pairs: obs `[N, l]` and one-hot action `[N, A]`; zero where a slot is empty.
      eta: `[l]` inverse squared widths.
      mean: `[l + 1]` of steps and rewards.
      weights: `[N, l + 1]` of what differs from the mean; zero where a slot is empty.
      end_weights: `[N]` likewise, of whether that was the end.
    """

    pairs: Pair
    eta: Array
    mean: Array
    weights: Array
    end_weights: Array


def fit_model(eta: Array, state: KQLState) -> Model:
    """The model that the transitions of an exact state give, with inverse squared widths `eta` `[l]`. Pure; O(N^3).

    Examples:
      >>> from kqljax.model import fit_model, foresee
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.5), num_actions=2, horizon=50)
      >>> state = kqljax.kql_init(cfg, obs_dim=1)
      >>> for i in range(50):  # action 0 moves by -0.1, action 1 by 0.1
      ...     obs, action = jnp.array([i / 25 - 1.0]), i % 2
      ...     moved = kqljax.Transition(obs, action, 0.5, obs + 0.2 * action - 0.1, False)
      ...     state, _ = jax.jit(kqljax.kql_step)(cfg, state, moved)
      >>> next_obs, reward, ends = foresee(fit_model(jnp.array([0.5]), state), jnp.array([[0.33]]), jnp.array([[0.0, 1.0]]))
      >>> next_obs.round(3).tolist(), reward.round(3).tolist(), ends.round(3).tolist()
      ([[0.43]], [0.5], [0.0])
    """
    pairs, is_taken = state.posterior.pairs, state.posterior.is_taken
    dtype = pairs.obs.dtype
    both = is_taken[:, None] & is_taken
    noise = max(NOISE, 32 * pairs.obs.shape[0] * float(jnp.finfo(dtype).eps))  # what a factor in this precision can bear

    def solve(gram: Array, ridge: float, values: Array) -> Array:
        # Empty slots are independent of all others, with a value of zero: their weights are zero.
        diagonal = jnp.diag(jnp.where(is_taken, ridge, 1.0).astype(dtype))
        return cho_solve((cholesky(jnp.where(both, gram, 0.0) + diagonal), True), values)

    outcome = jnp.where(is_taken[:, None], jnp.concatenate([state.table.obs - pairs.obs, state.reward[:, None]], axis=1), 0.0)
    mean = jnp.sum(outcome, axis=0) / jnp.maximum(state.num_stored, 1)
    rest = jnp.where(is_taken[:, None], outcome - mean, 0.0)
    eta = jnp.broadcast_to(jnp.asarray(eta, dtype), pairs.obs.shape[-1:])
    likeness, end_likeness = _likeness(eta, pairs, pairs)
    return Model(
        pairs=pairs,
        eta=eta,
        mean=mean,
        weights=solve(likeness, noise, rest),
        end_weights=solve(end_likeness, END_RIDGE, (state.terminated & is_taken).astype(dtype)),
    )


def foresee(model: Model, obs: Array, action: Array) -> tuple[Array, Array, Array]:
    """Next states `[n, l]`, rewards `[n]` in [0, 1] and how surely that is the end `[n]`, of states `[n, l]` with one-hot
    actions `[n, A]`."""
    likeness, end_likeness = _likeness(model.eta, Pair(obs, action), model.pairs)
    outcome = model.mean + dot(likeness, model.weights)
    # The regression of a step function passes one half where the step is, and overshoots beside it.
    ends = jnp.clip(2.0 * dot(end_likeness, model.end_weights) - 0.5, 0.0, 1.0)
    return obs + outcome[:, :-1], jnp.clip(outcome[:, -1], 0.0, 1.0), ends


def _likeness(eta: Array, x: Pair, y: Pair) -> tuple[Array, Array]:
    """Kernels `[n, m]` of outcomes and of ends between two lists of pairs, from one exponential."""
    same = AGREEMENT + (1.0 - AGREEMENT) * dot(x.action, y.action.T)
    wide = jnp.exp(-squared_distances(x.obs, y.obs, eta))
    narrower = wide**3
    return ((1.0 - SHARE) * wide + SHARE * (narrower**3) ** 3) * same, narrower * same
