"""A policy as a pytree: what a fit leaves to act with."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from kqljax._arrays import in_dtype, register
from kqljax._checks import describe
from kqljax.rounds.ensemble import Ensemble, member_values
from kqljax.rounds.learner import Learner, optimistic, query
from kqljax.rounds.model import Model, plan_values
from kqljax.rounds.recipe import Recipe
from kqljax.rounds.widths import Scales

Array = jax.Array

CHUNK = 16
"""States whose plans are looked through at a time."""


class Values(NamedTuple):
    """What a policy believes of one or more observations, in units of the normalised reward.

    Attributes:
      mean: `[A]` or `[n, A]` mean over the members of the ensemble, with the discount
        `finish_gamma`.
      spread: the members' standard deviation.
      optimistic: the learner's optimistic value, with the discount `gamma`.
    """

    mean: Array
    spread: Array
    optimistic: Array


@register
@dataclasses.dataclass(frozen=True)
class Policy:
    """The finished policy of a fit: acts by an ensemble, and by plans where its two best actions
    are not told apart.

    Observations are normalised as the transitions were: `[l]`, or `[n, l]` for n at once.

    Attributes:
      recipe: numbers that acting needs.
      ensemble, model: of the transitions.
      learner, scales: the optimistic learner and what its kernel is made of.

    Examples:
      >>> from kqljax import rounds
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> train = jax.jit(lambda key: kqljax.train(key, task, rounds.DEFAULT, 40).policy)
      >>> policy = train(jax.random.key(0))
      >>> memory = policy.begin(jax.random.key(1))
      >>> action, memory = policy.act(jax.random.key(2), memory, jnp.array([0.0, 0.1]))
      >>> action.shape, policy.values(jnp.array([0.0, 0.1])).mean.shape
      ((), (3,))
    """

    recipe: Recipe
    ensemble: Ensemble
    model: Model
    learner: Learner
    scales: Scales

    def begin(self, key: Array) -> tuple[()]:
        """What is remembered within an episode: nothing."""
        return ()

    def act(self, key: Array, memory: Any, obs: Array) -> tuple[Array, Any]:
        """The action `[]` (or `[n]`) to take, int32, and the memory. -1 says that a value was not a
        finite number.
        """
        rows = self._rows(obs)
        action = finished_action(self.recipe, self.ensemble, self.model, rows)
        action = action if obs.ndim == 2 else action[0]
        return action, memory

    def values(self, obs: Array) -> Values:
        """Beliefs at `obs`: mean, spread over the members, optimistic value."""
        rows = self._rows(obs)
        members = member_values(self.recipe, self.ensemble, rows)
        promised = jax.vmap(
            lambda each: optimistic(
                self.recipe, self.learner, query(self.recipe, self.learner, self.scales, each)
            )
        )
        found = Values(jnp.mean(members, axis=0), jnp.std(members, axis=0), promised(rows))
        return found if obs.ndim == 2 else jax.tree.map(lambda leaf: leaf[0], found)

    def for_acting(self) -> Policy:
        """The policy in float32: enough for acting, and faster."""
        return self.astype(jnp.float32)

    def astype(self, dtype: Any) -> Policy:
        """The policy in another dtype: float32 is enough for acting, and faster."""
        return in_dtype(self, dtype)

    def _rows(self, obs: Array) -> Array:
        length = self.ensemble.place.shape[-1]
        if obs.ndim not in (1, 2) or obs.shape[-1] != length:
            raise ValueError(
                f"obs must have shape [{length}] or [n, {length}], as the transitions had, got "
                f"{describe(obs)}."
            )
        return jnp.atleast_2d(obs).astype(self.ensemble.place.dtype)


def finished_action(recipe: Recipe, ensemble: Ensemble, model: Model, obs: Array) -> Array:
    """Actions `[n]` int32 at `obs` `[n, l]`: the best of the mean; of plans where it is unclear and
    a plan is more than a step.

    -1 where a value is not finite.
    """
    count = obs.shape[0]
    values = member_values(recipe, ensemble, obs)
    mean = jnp.mean(values, axis=0)
    row = jnp.arange(count)
    best = jnp.argmax(mean, axis=1)
    second = jnp.argmax(
        jnp.where(jnp.arange(mean.shape[1]) == best[:, None], -jnp.inf, mean), axis=1
    )
    gap = values[:, row, best] - values[:, row, second]
    is_unclear = (jnp.mean(gap, axis=0) < recipe.unclear * jnp.std(gap, axis=0)) & (model.held > 1)
    # The unclear ones first, a few at a time: plans cost a hundred times as much as a look.
    order = jnp.argsort(~is_unclear, stable=True)
    size = min(CHUNK, count)
    total = jnp.sum(is_unclear)

    def plan(i: Array, action: Array) -> Array:
        at = i * size + jnp.arange(size)
        index = order[jnp.minimum(at, count - 1)]
        planned = plan_values(recipe, model, ensemble, obs[index])
        chosen = jnp.where(jnp.all(jnp.isfinite(planned), axis=1), jnp.argmax(planned, axis=1), -1)
        index = jnp.where((at < count) & is_unclear[index], index, count)
        return action.at[index].set(chosen.astype(action.dtype), mode="drop")

    action = jnp.where(jnp.all(jnp.isfinite(mean), axis=1), best, -1).astype(jnp.int32)
    return lax.fori_loop(0, (total + size - 1) // size, plan, action)
