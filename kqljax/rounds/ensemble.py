"""The finished policy's values: an ensemble of kernel widths, without bonus."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from kqljax import regression
from kqljax._arrays import dot, few_columns
from kqljax.rounds.backups import back_up, rewards_of
from kqljax.rounds.pairs import stored_pairs
from kqljax.rounds.recipe import Recipe
from kqljax.rounds.transitions import Transitions
from kqljax.rounds.widths import Scales, agree, squared_distances

Array = jax.Array

BLOCK = 64
"""Centres that are chosen at a time."""


class Ensemble(NamedTuple):
    """Values of several kernel widths on common centres.

    With s an observation, d the displacement by an action, c a centre and distances in widths,

        exp(-|s + d - c|^2) = exp(-|s - c|^2) exp(-2 d s) exp(2 d c - |d|^2).

    The last factor is part of the weights. So a kernel is computed for every s and c, not for every
    action too.

    Attributes:
      place: `[m, l]` centres.
      weights: `[M, A, m]` of each member, the widest first, times the last factor and the coupling
        of an action with the centre's.
      scale: `[l]` inverse squared widths of the widest member.
      displacement: `[A, l]`.
      blocks: `[]` int32, blocks of centres in use.
      cap: `[]` the largest value.
    """

    place: Array
    weights: Array
    scale: Array
    displacement: Array
    blocks: Array
    cap: Array


class Centres(NamedTuple):
    """Attributes: `pivot` `[m]` int32, stored pairs; `is_used` `[m]` bool; `blocks` `[]` int32 in
    use.
    """

    pivot: Array
    is_used: Array
    blocks: Array


class EnsembleFit(NamedTuple):
    """What is fitted to N transitions.

    Attributes:
      ensemble: the members.
      centres: in the order in which they were chosen.
      next_value: `[N]` max_a of the members' mean at the successors.
      backups: `[M]` int32 of each member.
      is_finite: `[]` bool.
    """

    ensemble: Ensemble
    centres: Centres
    next_value: Array
    backups: Array
    is_finite: Array


def fit_ensemble(
    recipe: Recipe, transitions: Transitions, scales: Scales, most_blocks: Any = None
) -> EnsembleFit:
    """Fits every member to all transitions, each with backups of its own.

    How a regression extrapolates is mostly a matter of its width, which the transitions leave open.
    Where the data decide, the members agree; elsewhere their mistakes differ and average out.

    Args:
      most_blocks: `[]` int32, fewer blocks of centres than the recipe has; where a quick fit is
        enough.
    """
    pairs = stored_pairs(transitions, scales.displacement)
    rows = pairs.rows
    size = rows.blocks * rows.size
    most = recipe.finish_centres
    block = min(BLOCK, most)
    widest = recipe.widest * scales.weights
    cap = 1.0 / (1.0 - recipe.finish_gamma)
    rewards = rewards_of(transitions, recipe.finish_gamma, size)
    dtype = rewards.reward.dtype
    columns = most // block

    def member(carry: tuple[Centres, Array, Array], scale: Array) -> tuple[Any, Any]:
        """The first member chooses the centres; the others take them, as far as they need them."""
        chosen, work, is_first = carry
        kernel, between = pairs.kernel(scale * widest, recipe.finish_coupling)
        found = regression.span(
            kernel,
            between,
            rows,
            most=most,
            block=block,
            tolerance=recipe.span_tolerance,
            most_blocks=jnp.where(is_first, limit, chosen.blocks),
            pivots=(chosen.pivot, chosen.is_used),
            is_free=is_first,
            work=work,
        )

        def solve(row_blocks: int, column_blocks: int) -> tuple[Array, Array, Array]:
            width = column_blocks * block
            features, successors = regression.dense(found, rows, row_blocks, width)
            successors = successors.astype(jnp.float32)
            operator = regression.ridge_on_features(features, recipe.finish_ridge).operator(
                features
            )
            part = rewards.first(row_blocks * rows.size)
            done = back_up(
                operator,
                successors,
                jnp.zeros(successors.shape[:2]),
                part,
                jnp.zeros(features.shape[0]),
                cap=cap,
                most=recipe.finish_backups,
                tolerance=recipe.finish_tolerance,
            )
            mean = dot(operator, part.targets(done.value.astype(dtype)))
            value = jnp.clip(dot(successors, mean.astype(jnp.float32)), 0.0, cap)
            value = value.reshape(row_blocks, -1, rows.size).astype(dtype)
            value = jnp.pad(value, ((0, rows.blocks - row_blocks), (0, 0), (0, 0)))
            return jnp.pad(mean, (0, most - width)), value, done.made

        counts = rows.in_use, regression.largest(found.blocks)
        mean, value, count = regression.at_size(counts, _sizes(rows.blocks, columns), solve)
        weights = regression.solve_lower_transposed(found.lower, mean[:, None])[:, 0]
        new = Centres(found.pivot, found.is_used, found.blocks)
        chosen = jax.tree.map(lambda new, old: jnp.where(is_first, new, old), new, chosen)
        return (chosen, found.features, jnp.array(False)), (weights, value, count)

    scales_of = [float(recipe.ratio) ** i for i in range(recipe.members)]
    empty = regression.empty_span(rows, most, dtype)
    start = Centres(empty.pivot, empty.is_used, empty.blocks), empty.features, jnp.array(True)
    limit = columns if most_blocks is None else jnp.minimum(most_blocks, columns)
    first = min(3, recipe.members - 1)
    turns = [first, *(i for i in range(recipe.members) if i != first)]
    scaled = jnp.asarray([scales_of[i] for i in turns], dtype)
    (chosen, _, _), (weights, value, count) = lax.scan(member, start, scaled)
    back = jnp.argsort(jnp.asarray(turns))
    order, blocks = used_first(chosen.is_used, block)
    place, action = (
        each[chosen.pivot[order]] for each in (pairs.stored_place, pairs.stored_action)
    )
    coupling = agree(jnp.arange(transitions.num_actions), action, recipe.finish_coupling)
    coupling = coupling.astype(dtype) * chosen.is_used[order]
    moved = scales.displacement
    factor = 2 * dot(moved * widest, place.T) - jnp.sum(widest * moved**2, axis=1)[:, None]
    factor = jnp.exp(jnp.asarray(scales_of, dtype)[:, None, None] * factor)
    ensemble = Ensemble(
        place=place,
        weights=weights[back][:, None, order] * coupling * factor,
        scale=widest,
        displacement=moved,
        blocks=blocks,
        cap=jnp.asarray(cap, dtype),
    )
    next_value = jnp.max(jnp.mean(value, axis=0), axis=1).reshape(-1)[: transitions.capacity]
    return EnsembleFit(ensemble, chosen, next_value, count[back], jnp.all(jnp.isfinite(weights)))


def used_first(is_used: Array, block: int) -> tuple[Array, Array]:
    """An order `[m]` that puts centres in use first, and the blocks `[]` int32 that hold them.

    Acting reads these blocks alone; as they were chosen, centres in use are spread over more.
    """
    count = jnp.sum(is_used, dtype=jnp.int32)
    return jnp.argsort(~is_used, stable=True), (count + block - 1) // block


def _sizes(rows: int, columns: int) -> tuple[tuple[int, int], ...]:
    """Blocks of rows and of centres that programs are compiled for.

    A fit in the middle of a run takes one block of centres and is as short as its rows are few.
    """
    quick = [(each, 1) for each in regression.shares(rows)[-3:]]
    return tuple(dict.fromkeys((*quick, (rows, -(-columns // 2)), (rows, columns))))


def member_values(recipe: Recipe, ensemble: Ensemble, obs: Array) -> Array:
    """Clipped values `[M, n, A]` at `obs` `[n, l]`."""
    most = ensemble.place.shape[0]
    block = min(BLOCK, most)

    def add(k: Array, total: Array) -> Array:
        place = lax.dynamic_slice_in_dim(ensemble.place, k * block, block, 0)
        weights = lax.dynamic_slice_in_dim(ensemble.weights, k * block, block, 2)
        kernel = jnp.exp(-squared_distances(obs, place, ensemble.scale))
        values = []
        for i in range(recipe.members):
            kernel = lax.integer_pow(jnp.maximum(kernel, 1e-12), recipe.ratio) if i else kernel
            # The barrier writes the kernel down. Without it XLA computes every member's from exp
            # on.
            kernel = lax.optimization_barrier(kernel)
            values.append(few_columns(kernel, weights[i].T))
        return total + jnp.stack(values)

    blocks = regression.largest(ensemble.blocks)
    start = jnp.zeros((recipe.members, obs.shape[0], ensemble.weights.shape[1]), obs.dtype)
    total = lax.fori_loop(0, blocks, add, start)
    exponent = -2 * dot(obs, (ensemble.displacement * ensemble.scale).T)
    factor = [jnp.exp(float(recipe.ratio) ** i * exponent) for i in range(recipe.members)]
    return jnp.clip(total * jnp.stack(factor), 0.0, ensemble.cap)
