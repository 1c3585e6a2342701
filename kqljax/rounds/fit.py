"""Everything anew from the transitions: scales, optimistic learner, finished policy."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from kqljax.errors import describe
from kqljax.rounds.ensemble import Ensemble, fit_ensemble, member_values
from kqljax.rounds.learner import LearnerFit, fit_learner
from kqljax.rounds.model import Model, fit_model
from kqljax.rounds.policy import Policy
from kqljax.rounds.recipe import Recipe
from kqljax.rounds.transitions import Transitions
from kqljax.rounds.widths import Scales, fit_scales, initial_scales, with_displacements

Array = jax.Array

CPU_COMPILER_OPTIONS = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_llvm_disable_expensive_passes": True,
    "xla_backend_optimization_level": 1,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""For `jax.jit(..., compiler_options=)` on a CPU: a run compiles in a third of the time and is hardly slower."""


EVERY_BLOCK = np.int32(2**20)
"""More blocks of centres than any recipe has."""


class Fit(NamedTuple):
    """What a fit makes of its transitions.

    Attributes:
      policy: the finished policy.
      backups: `[]` int32, backups of the learner.
      optimism_gap: `[]` how much more the learner promises than the ensemble holds, as a share of the cap, on average over the
        states reached.
      is_finite: `[]` bool, whether every number came out finite. Where it is False the policy answers -1.
    """

    policy: Policy
    backups: Array
    optimism_gap: Array
    is_finite: Array


class Finished(NamedTuple):
    """Attributes: `ensemble`, `model`, `optimism_gap` `[]` and `is_finite` `[]` of a finished policy."""

    ensemble: Ensemble
    model: Model
    optimism_gap: Array
    is_finite: Array


@jax.jit  # traced once, however often a program asks for it
def finish(recipe: Recipe, transitions: Transitions, scales: Scales, value: Array, most_blocks: Any) -> Finished:
    """The finished policy's parts, with displacements of now, on at most `most_blocks` `[]` blocks of centres."""
    scales = with_displacements(recipe, transitions, scales.weights, scales.fitted_at)
    fitted = fit_ensemble(recipe, transitions, scales, most_blocks)
    model = fit_model(recipe, transitions, scales, fitted.centres)
    mean = jnp.mean(member_values(recipe, fitted.ensemble, transitions.next_obs), axis=0)
    goes_on = transitions.is_stored & ~transitions.ended
    promised = value * (1.0 - recipe.gamma) - jnp.max(mean, axis=1) * (1.0 - recipe.finish_gamma)
    gap = jnp.sum(jnp.where(goes_on, promised, 0.0)) / jnp.maximum(jnp.sum(goes_on), 1)
    is_finite = fitted.is_finite & jnp.all(jnp.isfinite(model.weights)) & jnp.isfinite(gap)
    return Finished(fitted.ensemble, model, gap, is_finite)


def make_fit(recipe: Recipe, scales: Scales, learned: LearnerFit, finished: Finished) -> Fit:
    """Puts the parts together."""
    policy = Policy(recipe, finished.ensemble, finished.model, learned.learner, scales)
    is_finite = learned.is_finite & finished.is_finite
    return Fit(policy, learned.backups, finished.optimism_gap, is_finite)


def require_float64() -> None:
    """Raises ValueError where jax computes in float32."""
    if not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise ValueError(
            "learning in rounds factors Gram matrices that float32 cannot factor (their smallest eigenvalues are 1e-7 of the "
            'largest). Call jax.config.update("jax_enable_x64", True) when the program begins. Acting needs no float64: '
            "policy.astype(jnp.float32)."
        )


def check_recipe(recipe: Recipe) -> None:
    """Raises ValueError for what is not a recipe, or holds numbers that cannot work."""
    if not isinstance(recipe, Recipe):
        raise ValueError(
            f"recipe must be a kqljax.rounds.Recipe, got {describe(recipe)}. Take kqljax.rounds.DEFAULT, or "
            "dataclasses.replace(kqljax.rounds.DEFAULT, gamma=0.95)."
        )
    recipe.validate()


def fit(key: Array | None, recipe: Recipe, transitions: Transitions) -> Fit:
    """Fits everything anew from transitions: a run's, a file's, another agent's.

    Pure: jit it, vmap it over transitions of one capacity and over the recipe's numbers.

    Args:
      key: random key. Today's recipe draws nothing; None will do.
      recipe: the numbers.
      transitions: at least one of them.

    Examples:
      >>> from kqljax import rounds
      >>> rng = np.random.default_rng(0)
      >>> obs = rng.uniform(-1.0, 1.0, (20, 1))
      >>> action = rng.integers(0, 2, 20)
      >>> data = rounds.Transitions.of(
      ...     obs, action, reward=(obs[:, 0] > 0.5), next_obs=np.clip(obs + 0.2 * (2 * action[:, None] - 1), -1, 1),
      ...     terminated=np.zeros(20, bool), num_actions=2,
      ... )
      >>> found = jax.jit(rounds.fit)(None, rounds.DEFAULT, data)
      >>> action, _ = found.policy.act(None, (), jnp.array([0.0]))
      >>> int(action), bool(found.is_finite)
      (1, True)
    """
    del key
    require_float64()
    check_recipe(recipe)
    if not isinstance(transitions, Transitions):
        raise ValueError(
            f"transitions must be kqljax.rounds.Transitions, got {describe(transitions)}. Make them with Transitions.of."
        )
    transitions.validate()
    scales = lax.cond(
        transitions.count >= recipe.first_fit,
        lambda: fit_scales(recipe, transitions),
        lambda: initial_scales(recipe, transitions.obs.shape[1], transitions.num_actions),
    )
    learned = fit_learner(recipe, transitions, scales, most_new=1)
    return make_fit(recipe, scales, learned, finish(recipe, transitions, scales, learned.value, EVERY_BLOCK))
