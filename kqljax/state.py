"""What goes into a step of Algorithm 1, what it keeps and what it tells."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from kqljax._checks import describe, first_bad, is_known

Array = jax.Array


class Transition(NamedTuple):
    """One step of the environment.

    Attributes:
      obs: `[l]` normalised observation s_t.
      action: `[]` integer a_t in 0..A-1.
      reward: `[]` reward in [0, 1].
      next_obs: `[l]` the true successor, never the observation after a reset.
      terminated: `[]` bool, the task ended (a time limit is not an end).

    Examples:
      >>> obs, next_obs = jnp.array([0.1, -0.2]), jnp.array([0.2, -0.1])
      >>> kqljax.Transition(obs, action=2, reward=0.5, next_obs=next_obs, terminated=False).reward
      0.5
    """

    obs: Any
    action: Any
    reward: Any
    next_obs: Any
    terminated: Any

    def sanitised(self, num_actions: int, dtype: Any) -> tuple[Array, Transition]:
        """`[]` bool, it may be learned from; and the transition in a dtype, zeros where it may
        not.
        """
        obs, next_obs, reward = (
            jnp.asarray(value, dtype) for value in (self.obs, self.next_obs, self.reward)
        )
        is_valid = (
            jnp.all(jnp.isfinite(obs) & jnp.isfinite(next_obs))
            & (reward >= 0)
            & (reward <= 1)
            & (self.action >= 0)
            & (self.action < num_actions)
        )
        obs, next_obs, reward = (jnp.where(is_valid, x, 0.0) for x in (obs, next_obs, reward))
        action, terminated = jnp.asarray(self.action, jnp.int32), jnp.asarray(self.terminated, bool)
        return is_valid, Transition(obs, action, reward, next_obs, terminated)


class Prediction(NamedTuple):
    """What a regression says of states with every action.

    Attributes:
      mean: `[A, ...]` Q-hat.
      width_sq: `[A, ...]` Gamma-hat squared.
    """

    mean: Array
    width_sq: Array


class Posterior(Protocol):
    """What every engine's posterior has; T slots, which come last in every array."""

    @property
    def next_slot(self) -> Array:
        """`[]` int32, where the next pair goes."""

    @property
    def action(self) -> Array:
        """`[T]` int32 actions of the stored pairs; -1 in empty slots."""

    @property
    def rows(self) -> Prediction:
        """`[A, T]` at the states reached."""

    @property
    def lam(self) -> Array:
        """`[]` ridge parameter."""


class KQLState(NamedTuple):
    """What the next step needs.

    Attributes:
      posterior: the engine's regression on the stored pairs: `kqljax.engines.exact.ExactPosterior`
        or `kqljax.engines.weights.WeightPosterior`, which document their arrays.
      reward: `[T]` rewards of the stored transitions.
      terminated: `[T]` bool, which of them ended the task.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=10)
      >>> state = kqljax.kql_init(cfg, obs_dim=2)
      >>> state.q_hat.shape, state.width.shape, int(state.num_stored)
      ((10, 3), (10, 3), 0)
    """

    posterior: Posterior
    reward: Array
    terminated: Array

    @property
    def capacity(self) -> int:
        """T, transitions that the arrays have room for."""
        return self.reward.shape[-1]

    @property
    def num_stored(self) -> Array:
        """`[]` int32, stored transitions."""
        return jnp.sum(self.posterior.action >= 0, axis=-1, dtype=jnp.int32)

    @property
    def q_hat(self) -> Array:
        """`[T, A]` ridge estimate at the states reached; rows of empty slots mean nothing."""
        return jnp.swapaxes(self.posterior.rows.mean, -1, -2)

    @property
    def width(self) -> Array:
        """`[T, A]` Gamma-hat at the states reached; rows of empty slots mean nothing."""
        return jnp.sqrt(jnp.swapaxes(self.posterior.rows.width_sq, -1, -2))


class KQLInfo(NamedTuple):
    """Diagnostics of one step.

    Attributes:
      is_stored: `[]` bool, the transition was taken in; where False predictions stay as they were.
      is_full: `[]` bool, no slot was free for it. All members of a vmap use the oldest's slot.
      is_valid: `[]` bool, finite observations, reward in [0, 1], action in range.
      is_finite: `[]` bool, the target and the residual of this step are finite numbers.
      residual: `[]` mismatch of two ways to compute the mean at the new pair, in units of value:
        how much rounding there is.
      width: `[]` Gamma-hat_t at the new pair before it was stored.
      feature_error: `[]` largest part of k(x, x) that the features leave out at the states of this
        step, which the widths count as not known; 0 in the exact engine.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=10)
      >>> state, obs = kqljax.kql_init(cfg, obs_dim=2), jnp.array([0.1, -0.2])
      >>> too_much = kqljax.Transition(obs, action=2, reward=7.0, next_obs=obs, terminated=False)
      >>> _, info = jax.jit(kqljax.kql_step)(cfg, state, too_much)
      >>> bool(info.is_valid), bool(info.is_stored)
      (False, False)
    """

    is_stored: Array
    is_full: Array
    is_valid: Array
    is_finite: Array
    residual: Array
    width: Array
    feature_error: Array

    @property
    def is_sound(self) -> Array:
        """The step was learned from and every number was finite."""
        return self.is_stored & self.is_finite


def check_obs(obs_dim: int, obs: Any, dtype: Any, name: str = "obs", most_axes: int = 1) -> Array:
    """An observation `[l]`, or with two axes `[n, l]`, in a dtype; its values are looked at outside
    jit.
    """
    obs = np.asarray(obs) if isinstance(obs, (list, tuple)) else obs
    shape = np.shape(obs)
    if not 1 <= len(shape) <= most_axes or shape[-1] != obs_dim:
        batch = f" or [n, {obs_dim}]" if most_axes > 1 else ""
        hint = " Use jax.vmap for a batch of observations." if len(shape) > most_axes else ""
        raise ValueError(f"{name} must have shape ({obs_dim},){batch}, got {describe(obs)}.{hint}")
    kind = jnp.result_type(obs)
    if not (jnp.issubdtype(kind, jnp.floating) or jnp.issubdtype(kind, jnp.integer)):
        raise ValueError(f"{name} must be real numbers, got {describe(obs)}.")
    if is_known(obs) and not np.all(np.isfinite(np.asarray(obs))):
        raise ValueError(
            f"{name} must be finite, got {first_bad(obs, np.isfinite(np.asarray(obs)))}."
        )
    return jnp.asarray(obs, dtype)


def check_transition(num_actions: int, obs_dim: int, transition: Transition) -> None:
    """Raises ValueError: for shapes and dtypes always, for values outside jit."""
    for name in ("obs", "next_obs"):
        check_obs(obs_dim, getattr(transition, name), float, f"transition.{name}")
    kinds = {"action": jnp.integer, "reward": jnp.number, "terminated": jnp.bool_}
    words = {"action": "an integer", "reward": "a real number", "terminated": "a bool"}
    for name, kind in kinds.items():
        value = getattr(transition, name)
        found = jnp.result_type(value)
        is_kind = jnp.issubdtype(found, kind) and not jnp.issubdtype(found, jnp.complexfloating)
        if np.shape(value) != () or not is_kind:
            raise ValueError(
                f"transition.{name} must be {words[name]} of shape (), got {describe(value)}."
            )
    if is_known(transition):
        action, reward = int(transition.action), float(transition.reward)
        if not 0 <= action < num_actions:
            raise ValueError(f"transition.action must be in 0..{num_actions - 1}, got {action}.")
        if not 0 <= reward <= 1:
            raise ValueError(
                f"transition.reward must be in [0, 1], got {reward}. Map the task's raw rewards to "
                "[0, 1] affinely."
            )
