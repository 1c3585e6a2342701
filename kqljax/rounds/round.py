"""A round: what is due is fitted anew, then actions are chosen until the next."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from kqljax import regression
from kqljax.rounds.ensemble import Ensemble, fit_ensemble
from kqljax.rounds.learner import Learner, append, fit_learner, optimistic, query
from kqljax.rounds.model import Model, fit_model
from kqljax.rounds.policy import finished_action
from kqljax.rounds.recipe import Recipe
from kqljax.rounds.transitions import Transitions
from kqljax.rounds.widths import Scales, displacements, fit_weights, initial_scales

Array = jax.Array

EVERY_BLOCK = np.int32(2**20)
"""More blocks of centres than any recipe has."""


class Finished(NamedTuple):
    """Attributes: `ensemble`, `model`, `optimism_gap` `[]` and `is_finite` `[]` of a finished
    policy.
    """

    ensemble: Ensemble
    model: Model
    optimism_gap: Array
    is_finite: Array


class Due(NamedTuple):
    """What a round begins with; known before the run.

    Attributes:
      scales: bool, widths and displacements are fitted.
      finish: bool, the finished policy is fitted if an end is stored.
      last: bool, this is the fit that a run ends with: the finished policy is fitted in any case,
        on every centre.
    """

    scales: Any
    finish: Any
    last: Any


class Player(NamedTuple):
    """What acts in a round.

    Attributes:
      scales: `Scales` of the kernels.
      learner: the optimistic learner.
      finished: the finished policy as it was fitted last.
      acts_finished: `[]` bool, the finished policy acts in this round, not optimism.
      backups: `[]` int32, of the learner.
      is_finite: `[]` bool, whether every number of the fits was finite.
    """

    scales: Scales
    learner: Learner
    finished: Finished
    acts_finished: Array
    backups: Array
    is_finite: Array


@jax.jit  # traced once, however often a program asks for it
def finish(
    recipe: Recipe, transitions: Transitions, scales: Scales, value: Array, most_blocks: Any
) -> Finished:
    """The finished policy's parts, on at most `most_blocks` `[]` blocks of centres."""
    fitted = fit_ensemble(recipe, transitions, scales, most_blocks)
    model = fit_model(recipe, transitions, scales, fitted.centres)
    goes_on = transitions.is_stored & ~transitions.ended
    promised = value * (1.0 - recipe.gamma) - fitted.next_value * (1.0 - recipe.finish_gamma)
    gap = jnp.sum(jnp.where(goes_on, promised, 0.0)) / jnp.maximum(jnp.sum(goes_on), 1)
    is_finite = fitted.is_finite & jnp.all(jnp.isfinite(model.weights)) & jnp.isfinite(gap)
    return Finished(fitted.ensemble, model, gap, is_finite)


def nobody(recipe: Recipe, transitions: Transitions, most_new: int) -> Player:
    """The player before the first round: arrays of the right shapes, and a finished policy that
    does not act.
    """
    scales = initial_scales(recipe, transitions.obs.shape[1], transitions.num_actions)

    def shapes() -> tuple[Learner, Finished]:
        learned = fit_learner(recipe, transitions, scales, most_new=most_new)
        return learned.learner, finish(recipe, transitions, scales, learned.value, EVERY_BLOCK)

    empty: tuple[Learner, Finished] = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(shapes)
    )
    learner, finished = empty
    finished = finished._replace(
        optimism_gap=jnp.full_like(finished.optimism_gap, jnp.inf), is_finite=jnp.array(True)
    )
    return Player(scales, learner, finished, jnp.array(False), jnp.int32(0), jnp.array(True))


def begin(
    recipe: Recipe, transitions: Transitions, before: Player, due: Due, most_new: int
) -> Player:
    """Fits what is due to all transitions. The learner always is.

    Args:
      before: the player of the round before, for what is not due.
      most_new: static, most pairs that may be chosen before the next round.
    """
    has_end = jnp.any(transitions.ended)
    # One decision for all seeds of a vmap, so that it stays a branch; seeds without an end keep
    # what they had.
    is_due = due.last | (due.finish & (regression.largest(has_end.astype(jnp.int32)) > 0))
    weights, displacement = before.scales
    weights = lax.cond(due.scales, lambda: fit_weights(recipe, transitions), lambda: weights)
    # The finished policy has displacements of now, the learner those of the last fit of the scales.
    now = lax.cond(
        due.scales | is_due,
        lambda: displacements(recipe, transitions, weights),
        lambda: displacement,
    )
    scales = Scales(weights, jnp.where(due.scales, now, displacement))
    learned = fit_learner(recipe, transitions, scales, most_new=most_new)
    most_blocks = jnp.where(due.last, EVERY_BLOCK, jnp.asarray(recipe.own_blocks, jnp.int32))

    def finish_anew() -> Finished:
        new = finish(recipe, transitions, Scales(weights, now), learned.value, most_blocks)
        return jax.tree.map(
            lambda new, old: jnp.where(has_end | due.last, new, old), new, before.finished
        )

    finished = lax.cond(is_due, finish_anew, lambda: before.finished)
    acts_finished = has_end & (finished.optimism_gap < recipe.own_gap)
    return Player(
        scales,
        learned.learner,
        finished,
        acts_finished,
        learned.backups,
        learned.is_finite & finished.is_finite,
    )


def choose(recipe: Recipe, player: Player, obs: Array) -> tuple[Array, Player]:
    """The action `[]` at `obs` `[l]`, -1 where a value is not finite, and the player that knows of
    the pair.
    """
    finished = player.finished
    asked = query(recipe, player.learner, player.scales, obs)

    def by_optimism() -> Array:
        values = optimistic(recipe, player.learner, asked)
        return jnp.where(jnp.all(jnp.isfinite(values)), jnp.argmax(values), -1).astype(jnp.int32)

    def by_the_finished() -> Array:
        return finished_action(recipe, finished.ensemble, finished.model, obs[None])[0]

    action = lax.cond(player.acts_finished, by_the_finished, by_optimism)
    return action, player._replace(
        learner=append(recipe, player.learner, asked, jnp.maximum(action, 0))
    )
