"""Scales from the transitions: widths of the kernel, and where actions lead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from kqljax import regression
from kqljax._arrays import dot
from kqljax.rounds.recipe import Recipe
from kqljax.rounds.transitions import Transitions

Array = jax.Array

FEW_ROWS = 128
"""As long as there are no more transitions, fits of the scales have room for no more."""


class Scales(NamedTuple):
    """What the kernels of a fit are made of.

    Attributes:
      weights: `[l]` w, the inverse squared width of each coordinate.
      displacement: `[A, l]` d_a, the mean displacement by each action; 0 for actions that were not
        taken.
    """

    weights: Array
    displacement: Array


def squared_distances(x: Array, y: Array, weights: Any) -> Array:
    """sum_i w_i (x_i - y_i)^2 `[n, m]` between `[n, l]` and `[m, l]`.

    From differences, which is exact for near points, and a coordinate at a time: one fused pass,
    without an `[n, m, l]` array.
    """
    root = jnp.sqrt(weights)
    # The barrier writes y^T down once. Without it XLA reads y with a stride of l in the pass.
    x, y = x * root, lax.optimization_barrier((y * root).T)
    return functools.reduce(jnp.add, [(x[:, None, i] - y[i]) ** 2 for i in range(x.shape[1])])


def agree(action: Array, other: Array, coupling: Any) -> Array:
    """`[n, m]`: 1 where the actions agree, `coupling` elsewhere."""
    return jnp.where(action[:, None] == other, 1.0, coupling)


class _Rows(NamedTuple):
    """Rows that did not end an episode, R of them spread evenly: `[R, l]`, `[R]`, centred `[R, l]`,
    `[R]` bool.
    """

    obs: Array
    action: Array
    moved: Array
    mask: Array


def _on_rows(recipe: Recipe, transitions: Transitions, fit: Callable[[_Rows], Array]) -> Array:
    """fit(rows) of the transitions, on few rows as long as there are few: they are factored."""
    most = min(transitions.capacity, recipe.fit_rows)
    sizes = tuple((size,) for size in sorted({min(FEW_ROWS, most), most}))
    count = (regression.largest(transitions.count),)
    return regression.at_size(count, sizes, lambda size: fit(_rows(transitions, size)))


def _rows(transitions: Transitions, size: int) -> _Rows:
    count = transitions.count
    index = jnp.arange(size)
    if transitions.capacity > size:
        index = jnp.where(count > size, index * (count - 1) // (size - 1), index)
    mask = (index < count) & (transitions.discount[index] > 0)
    obs, moved = transitions.obs[index], transitions.next_obs[index] - transitions.obs[index]
    mean = jnp.sum(jnp.where(mask[:, None], moved, 0.0), axis=0) / jnp.maximum(jnp.sum(mask), 1)
    return _Rows(obs, transitions.action[index], jnp.where(mask[:, None], moved - mean, 0.0), mask)


def spreads(transitions: Transitions, least: Any) -> Array:
    """`[l]` how far coordinates spread: sqrt(deviation * half range), at least `least`; 1 where one
    never moved.
    """
    mask = transitions.is_stored[:, None]
    count = jnp.maximum(transitions.count, 1)
    obs = transitions.obs
    mean = jnp.sum(jnp.where(mask, obs, 0.0), axis=0) / count
    deviation = jnp.sqrt(jnp.sum(jnp.where(mask, (obs - mean) ** 2, 0.0), axis=0) / count)
    highest = jnp.max(jnp.where(mask, obs, -jnp.inf), axis=0)
    lowest = jnp.min(jnp.where(mask, obs, jnp.inf), axis=0)
    spread = jnp.sqrt(deviation * (highest - lowest) / 2)
    return jnp.where(spread > 1e-9, jnp.maximum(spread, least), 1.0)


def fit_weights(recipe: Recipe, transitions: Transitions) -> Array:
    """w `[l]` = eta / spread^2, with the eta that makes the steps s' - s most likely.

    They are modelled as a Gaussian process of the pair, in units of the spreads and each scaled to
    size 1. How fast steps change from state to state is evidence on the kernel that needs no
    estimate of values.
    """
    spread = spreads(transitions, recipe.least_spread)
    etas = jnp.asarray(recipe.etas, spread.dtype)

    def scores(rows: _Rows) -> Array:
        moved = rows.moved / spread
        size = jnp.sqrt(jnp.sum(moved**2, axis=0) / jnp.maximum(jnp.sum(rows.mask), 1))
        moved = moved / jnp.where(size > 1e-9, size, 1.0)
        distances = squared_distances(rows.obs, rows.obs, spread**-2.0)
        coupled = agree(rows.action, rows.action, recipe.fit_coupling)

        def score(eta: Array) -> Array:
            gram = coupled * jnp.exp(-eta * distances)
            fitted = regression.factor(gram, recipe.fit_noise, rows.mask)
            return regression.log_evidence(fitted, moved)

        return lax.map(score, etas)

    evidence = _on_rows(recipe, transitions, scores)
    # A width whose evidence is not a number is never taken.
    best = jnp.argmax(jnp.where(jnp.isfinite(evidence), evidence, -jnp.inf))
    return etas[best] / spread**2


def displacements(recipe: Recipe, transitions: Transitions, weights: Array) -> Array:
    """d `[A, l]`: the steps are a Gaussian process in the state plus a vector for each action; the
    vectors, less their mean.
    """

    def fit(rows: _Rows) -> Array:
        taken = rows.action[:, None] == jnp.arange(transitions.num_actions)
        taken = (taken & rows.mask[:, None]).astype(weights.dtype)
        gram = jnp.exp(-squared_distances(rows.obs, rows.obs, weights)) + dot(taken, taken.T)
        fitted = regression.factor(gram, recipe.fit_noise, rows.mask)
        effect = dot(taken.T, regression.solve(fitted, rows.moved))
        was_taken = jnp.any(taken > 0, axis=0)[:, None]
        centred = effect - jnp.sum(effect, axis=0) / jnp.maximum(jnp.sum(was_taken), 1)
        return jnp.where(was_taken, recipe.displaced * centred, 0.0)

    return _on_rows(recipe, transitions, fit)


def initial_scales(recipe: Recipe, obs_dim: int, num_actions: int) -> Scales:
    """The scales before the first fit."""
    weights = jnp.full(obs_dim, recipe.start_width, jnp.zeros(()).dtype)
    return Scales(weights, jnp.zeros((num_actions, obs_dim)))
