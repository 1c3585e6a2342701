"""The optimistic learner: what acts while a run goes on."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from kqljax import regression
from kqljax._arrays import dot
from kqljax.rounds.backups import back_up, rewards_of
from kqljax.rounds.pairs import stored_pairs
from kqljax.rounds.recipe import Recipe
from kqljax.rounds.transitions import Transitions
from kqljax.rounds.widths import Scales, agree, squared_distances

Array = jax.Array

BLOCK = 64
"""Centres that are chosen at a time."""


class Learner(NamedTuple):
    """A round's optimistic regression, with the pairs that came since.

    Attributes:
      place: `[m, l]` centres, places p = s + d_a.
      coupling: `[A, m]` 1 where an action is the centre's, less elsewhere, 0 where a centre is not
        used.
      whiten: `[2 m, m]` takes kernels k to the features f and to the part of them that the data
        leave open, sqrt(ridge) L^-1 f.
      weights: `[m]` the mean is k^T weights.
      new_place: `[c, l]` pairs since the round began; they count for widths, not for values.
      new_action: `[c]`.
      new_features: `[c, 2 m]` whiten k of each.
      new_whiten: `[c, c]` inverse Cholesky factor of their covariance, given the round's pairs,
        plus the ridge.
      num_new: `[]` int32.
      is_clipped: `[]` bool; until a first end is stored values are not cut off at the cap, where
        they would all be equal.
    """

    place: Array
    coupling: Array
    whiten: Array
    weights: Array
    new_place: Array
    new_action: Array
    new_features: Array
    new_whiten: Array
    num_new: Array
    is_clipped: Array


class LearnerFit(NamedTuple):
    """Attributes: `learner`; `value` `[N]` V(s') after the backups, 0 elsewhere; `backups` `[]`
    int32; `is_finite` `[]`.
    """

    learner: Learner
    value: Array
    backups: Array
    is_finite: Array


@functools.partial(
    jax.jit, static_argnames="most_new"
)  # traced once, however often a program asks for it
def fit_learner(
    recipe: Recipe, transitions: Transitions, scales: Scales, most_new: int
) -> LearnerFit:
    """Fits the learner to all transitions.

    Args:
      most_new: static, pairs that may be added before the next fit.
    """
    weights = recipe.scale * scales.weights
    pairs = stored_pairs(transitions, scales.displacement)
    rows, dtype = pairs.rows, weights.dtype
    size = rows.blocks * rows.size
    block = min(BLOCK, recipe.centres)
    kernel, between = pairs.kernel(weights, recipe.coupling)
    found = regression.span(kernel, between, rows, most=recipe.centres, block=block, tolerance=1e-7)
    cap = 1.0 / (1.0 - recipe.gamma)
    rewards = rewards_of(transitions, recipe.gamma, size)

    def solve(row_blocks: int) -> tuple[Array, Array, Array, Array]:
        height = row_blocks * rows.size
        features, successors = regression.dense(found, rows, row_blocks, recipe.centres)
        ridge = regression.ridge_on_features(features, recipe.ridge)
        successors = successors.astype(jnp.float32)
        residual = found.residual[:row_blocks, rows.size :].astype(jnp.float32)
        variance = residual + jnp.float32(recipe.ridge) * ridge.leverage(successors)
        operator = ridge.operator(features)
        part = rewards.first(height)
        done = back_up(
            operator,
            successors,
            recipe.bonus * cap * jnp.sqrt(variance),
            part,
            jnp.full(height, cap),
            cap=cap,
            most=recipe.backups,
            tolerance=recipe.tolerance * cap,
        )
        mean = dot(operator, part.targets(done.value.astype(dtype)))
        value = jnp.pad(done.value.astype(dtype), (0, size - height))
        return value, done.made, mean, ridge.inverse

    sizes = tuple((each,) for each in regression.shares(rows.blocks))
    value, count, mean, inverse = regression.at_size((rows.in_use,), sizes, solve)
    identity = jnp.eye(recipe.centres, dtype=dtype)
    lower = regression.solve_lower(found.lower, identity)
    whiten = jnp.concatenate([lower, jnp.sqrt(recipe.ridge) * dot(inverse, lower)])
    centre_action = pairs.stored_action[found.pivot]
    coupling = (
        agree(jnp.arange(transitions.num_actions), centre_action, recipe.coupling).astype(dtype)
        * found.is_used
    )
    learner = Learner(
        place=pairs.stored_place[found.pivot],
        coupling=coupling,
        whiten=whiten,
        weights=regression.solve_lower_transposed(found.lower, mean[:, None])[:, 0],
        new_place=jnp.zeros((most_new, transitions.obs.shape[1]), dtype),
        new_action=jnp.zeros(most_new, transitions.action.dtype),
        new_features=jnp.zeros((most_new, 2 * recipe.centres), dtype),
        new_whiten=jnp.zeros((most_new, most_new), dtype),
        num_new=jnp.int32(0),
        is_clipped=jnp.any(transitions.ended),
    )
    is_finite = (
        jnp.all(jnp.isfinite(learner.weights))
        & jnp.all(jnp.isfinite(whiten))
        & jnp.all(jnp.isfinite(value))
    )
    return LearnerFit(learner, value[: transitions.capacity], count, is_finite)


class Query(NamedTuple):
    """What the learner says of one observation.

    Attributes:
      mean: `[A]`.
      variance: `[A]`, at least 0.
      place: `[A, l]` where each action leads.
      features: `[A, 2 m]`.
      whitened: `[A, c]` covariance with the new pairs, whitened.
    """

    mean: Array
    variance: Array
    place: Array
    features: Array
    whitened: Array


def query(recipe: Recipe, learner: Learner, scales: Scales, obs: Array) -> Query:
    """Mean and variance at `obs` `[l]`."""
    weights = recipe.scale * scales.weights
    place = obs + scales.displacement
    kernel = jnp.exp(-squared_distances(place, learner.place, weights)) * learner.coupling
    features = dot(kernel, learner.whiten.T)
    spanned, opened = features[:, : learner.weights.size], features[:, learner.weights.size :]
    is_new = jnp.arange(learner.new_place.shape[0]) < learner.num_new
    cross = jnp.exp(-squared_distances(place, learner.new_place, weights))
    cross = cross * agree(jnp.arange(place.shape[0]), learner.new_action, recipe.coupling)
    sign = jnp.where(jnp.arange(features.shape[1]) < learner.weights.size, 1.0, -1.0)
    cross = jnp.where(is_new, cross - dot(features * sign, learner.new_features.T), 0.0)
    whitened = dot(cross, learner.new_whiten.T)
    variance = (
        1.0
        - jnp.sum(spanned**2, axis=1)
        + jnp.sum(opened**2, axis=1)
        - jnp.sum(whitened**2, axis=1)
    )
    return Query(
        dot(kernel, learner.weights), jnp.maximum(variance, 0.0), place, features, whitened
    )


def optimistic(recipe: Recipe, learner: Learner, found: Query) -> Array:
    """mean + bonus * cap * std `[A]`, clipped to [0, cap] once a first end is stored."""
    cap = 1.0 / (1.0 - recipe.gamma)
    values = found.mean + recipe.bonus * cap * jnp.sqrt(found.variance)
    return jnp.where(learner.is_clipped, jnp.clip(values, 0.0, cap), values)


def append(recipe: Recipe, learner: Learner, found: Query, action: Array) -> Learner:
    """The learner with the pair (s, a) that `found` was asked of; it counts for widths from now
    on.
    """
    at = learner.num_new
    whitened = found.whitened[action]
    pivot = jnp.sqrt(found.variance[action] + recipe.ridge)
    row = -dot(whitened, learner.new_whiten) / pivot
    row = lax.dynamic_update_index_in_dim(row, 1.0 / pivot, at, 0)

    def put(array: Array, value: Array) -> Array:
        return lax.dynamic_update_index_in_dim(array, value.astype(array.dtype), at, 0)

    return learner._replace(
        new_place=put(learner.new_place, found.place[action]),
        new_action=put(learner.new_action, action),
        new_features=put(learner.new_features, found.features[action]),
        new_whiten=put(learner.new_whiten, row),
        num_new=at + 1,
    )
