"""Everything anew from the transitions: scales, optimistic learner, finished policy."""

from __future__ import annotations

from typing import NamedTuple

import jax

from kqljax._checks import describe
from kqljax.rounds.policy import Policy
from kqljax.rounds.recipe import Recipe
from kqljax.rounds.round import Due, Player, begin, nobody
from kqljax.rounds.transitions import Transitions

Array = jax.Array

CPU_COMPILER_OPTIONS = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": 1,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""For `jax.jit(..., compiler_options=)` on a CPU: a run compiles in half of the time, and takes
less time too.
"""


class Fit(NamedTuple):
    """What a fit makes of its transitions.

    Attributes:
      policy: the finished policy.
      backups: `[]` int32, backups of the learner.
      optimism_gap: `[]` how much more the learner promises than the ensemble holds, as a share of
        the cap, on average over the states reached.
      is_finite: `[]` bool, whether every number came out finite. Where it is False the policy
        answers -1.
    """

    policy: Policy
    backups: Array
    optimism_gap: Array
    is_finite: Array


def make_fit(recipe: Recipe, player: Player) -> Fit:
    """What a player knows, as a fit."""
    finished = player.finished
    policy = Policy(recipe, finished.ensemble, finished.model, player.learner, player.scales)
    return Fit(policy, player.backups, finished.optimism_gap, player.is_finite)


def require_float64() -> None:
    """Raises ValueError where jax computes in float32."""
    if not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise ValueError(
            "learning in rounds factors Gram matrices that float32 cannot factor (their smallest "
            "eigenvalues are 1e-7 of the "
            'largest). Call jax.config.update("jax_enable_x64", True) when the program begins. '
            "Acting needs no float64: policy.astype(jnp.float32)."
        )


def check_recipe(recipe: Recipe) -> None:
    """Raises ValueError for what is not a recipe, or holds numbers that cannot work."""
    if not isinstance(recipe, Recipe):
        raise ValueError(
            f"recipe must be a kqljax.rounds.Recipe, got {describe(recipe)}. Take "
            "kqljax.rounds.DEFAULT, or dataclasses.replace(kqljax.rounds.DEFAULT, gamma=0.95)."
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
      ...     obs, action, reward=(obs[:, 0] > 0.5), terminated=np.zeros(20, bool), num_actions=2,
      ...     next_obs=np.clip(obs + 0.2 * (2 * action[:, None] - 1), -1, 1),
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
            f"transitions must be kqljax.rounds.Transitions, got {describe(transitions)}. Make "
            "them with Transitions.of."
        )
    transitions.validate()
    due = Due(scales=transitions.count >= recipe.first_fit, finish=True, last=True)
    return make_fit(
        recipe, begin(recipe, transitions, nobody(recipe, transitions, 1), due, most_new=1)
    )
