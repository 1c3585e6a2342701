"""A model of the environment's steps by the same regression, and plans in it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from kqljax import regression
from kqljax._arrays import dot
from kqljax.rounds.ensemble import BLOCK, Centres, Ensemble, member_values, used_first
from kqljax.rounds.pairs import padded, stored_pairs
from kqljax.rounds.recipe import Recipe
from kqljax.rounds.transitions import Transitions
from kqljax.rounds.widths import Scales, agree, squared_distances

Array = jax.Array


class Model(NamedTuple):
    """Steps, rewards and ends of a pair.

    Attributes:
      obs: `[m, l]` centres.
      weights: `[A, m, l + 2]` for s' - s, the reward and the share of an end, times the coupling of
        an action with the centre's.
      mean: `[l + 1]` of s' - s and the reward.
      scale: `[l]` inverse squared widths.
      held: `[]` int32, steps that an action of a plan is held.
      end_value: `[]` the value of an end.
      blocks: `[]` int32, blocks of centres in use.
    """

    obs: Array
    weights: Array
    mean: Array
    scale: Array
    held: Array
    end_value: Array
    blocks: Array


def _kernel(recipe: Recipe, distance: Array) -> Array:
    wide = jnp.exp(-distance)
    # Numbers too small for float32 are slow, and 1e-36 is 0 here.
    narrow = jnp.maximum(wide, 0.05)
    for _ in range(3):
        narrow = narrow * narrow * narrow
    return wide + recipe.narrow_share * narrow


def fit_model(recipe: Recipe, transitions: Transitions, scales: Scales, centres: Centres) -> Model:
    """Ridge regression of s' - s, reward and end on the pair, on the centres of the ensemble.

    A hundredth of a narrow kernel keeps what happens at one place, a wall, local.
    """
    weights, dtype = scales.weights, scales.weights.dtype
    pairs = stored_pairs(transitions, jnp.zeros_like(scales.displacement), with_successors=False)
    rows = pairs.rows
    most = min(recipe.model_centres, centres.pivot.size)
    block = min(BLOCK, most)
    kernel, between = pairs.kernel(
        weights, recipe.model_coupling, lambda distance: _kernel(recipe, distance)
    )
    found = regression.span(
        kernel,
        between,
        rows,
        most=most,
        block=block,
        tolerance=recipe.span_tolerance,
        prior=1.0 + recipe.narrow_share,
        most_blocks=centres.blocks,
        pivots=(centres.pivot[:most], centres.is_used[:most]),
    )
    is_stored = padded(transitions.is_stored)[:, None]
    moved = jnp.concatenate(
        [transitions.next_obs - transitions.obs, transitions.reward[:, None]], axis=1
    )
    moved = padded(moved)
    mean = jnp.sum(jnp.where(is_stored, moved, 0.0), axis=0) / jnp.maximum(transitions.count, 1)
    targets = jnp.where(is_stored, moved - mean, 0.0)
    ended = padded(transitions.ended).astype(dtype)[:, None]

    def solve(column_blocks: int) -> Array:
        width = column_blocks * block
        features = regression.dense(found, rows, rows.blocks, width)[0]
        gram = regression.products(features)

        def weights(ridge: Any, columns: Array) -> Array:
            lower = regression.cholesky(gram + ridge * jnp.eye(width, dtype=dtype))
            return regression.solve_factored(lower, dot(features.T, columns))

        both = jnp.concatenate(
            [weights(recipe.model_ridge, targets), weights(recipe.ends_ridge, ended)], axis=1
        )
        return jnp.pad(both, ((0, most - width), (0, 0)))

    columns = most // block
    sizes = ((2,), (columns,)) if columns > 2 else ((columns,),)
    solved = regression.at_size((regression.largest(found.blocks),), sizes, solve)
    solved = regression.solve_lower_transposed(found.lower, solved)
    order, blocks = used_first(found.is_used, block)
    pivot = found.pivot[order]
    actions = jnp.arange(transitions.num_actions)
    coupling = agree(actions, pairs.stored_action[pivot], recipe.model_coupling)
    coupling = coupling * found.is_used[order]
    end_value = transitions.end_value / (1.0 - recipe.finish_gamma)
    return Model(
        obs=pairs.stored_place[pivot],
        weights=coupling.astype(dtype)[:, :, None] * solved[order],
        mean=mean,
        scale=weights,
        held=_held(recipe, transitions, weights),
        end_value=jnp.asarray(end_value, dtype),
        blocks=blocks,
    )


def _held(recipe: Recipe, transitions: Transitions, weights: Array) -> Array:
    """Steps until the state has moved `stride` widths, in 1..most_held."""
    goes_on = transitions.is_stored & ~transitions.ended
    distance = jnp.sqrt(jnp.sum(weights * (transitions.next_obs - transitions.obs) ** 2, axis=1))
    mean = jnp.sum(jnp.where(goes_on, distance, 0.0)) / jnp.maximum(jnp.sum(goes_on), 1)
    return jnp.clip(jnp.round(recipe.stride / jnp.maximum(mean, 1e-9)), 1, recipe.most_held).astype(
        jnp.int32
    )


class ModelStep(NamedTuple):
    """Attributes: `next_obs` `[A, n, l]`; `reward` `[A, n]` in [0, 1]; `end` `[A, n]` in [0, 1],
    the share of an end.
    """

    next_obs: Array
    reward: Array
    end: Array


def predict_step(recipe: Recipe, model: Model, obs: Array) -> ModelStep:
    """Where the model goes by each action: from `obs` `[n, l]`, or by action a from obs[a], where
    `obs` is `[A, n, l]`.
    """
    num_actions, most, width = model.weights.shape
    length, block = obs.shape[-1], min(BLOCK, most)

    def add(k: Array, total: Array) -> Array:
        place = lax.dynamic_slice_in_dim(model.obs, k * block, block, 0)
        weights = lax.dynamic_slice_in_dim(model.weights, k * block, block, 1)
        kernel = _kernel(recipe, squared_distances(obs.reshape(-1, length), place, model.scale))
        return total + dot(kernel.reshape(*obs.shape[:-1], block), weights)

    start = jnp.zeros((num_actions, obs.shape[-2], width), model.weights.dtype)
    found = lax.fori_loop(0, regression.largest(model.blocks), add, start)
    moved, reward, end = found[..., :length], found[..., length], found[..., length + 1]
    reward = jnp.clip(reward + model.mean[length], 0.0, 1.0)
    return ModelStep(obs + moved + model.mean[:length], reward, jnp.clip(end, 0.0, 1.0))


def plan_values(recipe: Recipe, model: Model, ensemble: Ensemble, obs: Array) -> Array:
    """`[n, A]` for each first action the value of the best plan: `depth` actions, each held, then
    the ensemble's mean.
    """
    count, num_actions = obs.shape[0], ensemble.displacement.shape[0]
    gamma = recipe.finish_gamma
    # Under vmap the loop is as long as the longest seed's.
    longest = regression.largest(model.held)

    def follow(carry: Any) -> Any:
        obs, value, going = carry
        step = predict_step(recipe, model, obs)
        value = value + going * (step.reward + gamma * step.end * model.end_value)
        return step.next_obs, value, going * gamma * (1.0 - step.end)

    def follow_if_held(i: Array, carry: Any) -> Any:
        after = follow(carry)
        return jax.tree.map(lambda new, old: jnp.where(i < model.held, new, old), after, carry)

    carry = obs, jnp.zeros(count, obs.dtype), jnp.ones(count, obs.dtype)
    for _ in range(recipe.depth):
        # Plans that begin alike share their way so far, and the kernels of the first step apart.
        carry = lax.fori_loop(1, longest, follow_if_held, follow(carry))
        carry = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), carry)
    obs, value, going = carry
    last = jnp.max(jnp.mean(member_values(recipe, ensemble, obs), axis=0), axis=1)
    return jnp.max((value + going * last).reshape(-1, num_actions, count), axis=0).T
