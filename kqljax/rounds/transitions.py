"""Transitions in the order in which they happened."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from kqljax._arrays import register
from kqljax._checks import describe, first_bad, is_known
from kqljax.state import Transition

Array = jax.Array


@functools.partial(register, static=("num_actions",))
@dataclasses.dataclass(frozen=True)
class Transitions:
    """Stored transitions, the first `count` of N rows. N is the capacity; the other rows are
    ignored.

    Attributes:
      obs: `[N, l]` observations, about [-1, 1].
      action: `[N]` int32.
      reward: `[N]` in [0, 1].
      next_obs: `[N, l]` true successors, never the first observation of the next episode.
      discount: `[N]` what the recipe's gamma is multiplied with: 1 where the episode could go on, 0
        where the task ended.
      is_first: `[N]` bool, an episode begins here.
      is_last: `[N]` bool, it is over after this row: by an end or by a time limit.
      count: `[]` int32.
      end_value: `[]` what an end is worth, as a share of the largest value 1 / (1 - gamma): the
        normalised reward of the absorbing state after it.
      num_actions: A, static.
    """

    obs: Any
    action: Any
    reward: Any
    next_obs: Any
    discount: Any
    is_first: Any
    is_last: Any
    count: Any
    end_value: Any
    num_actions: int

    @property
    def capacity(self) -> int:
        """N."""
        return self.obs.shape[0]

    @property
    def is_stored(self) -> Array:
        """`[N]` bool."""
        return jnp.arange(self.capacity) < self.count

    @property
    def ended(self) -> Array:
        """`[N]` bool: the task ended at this row."""
        return self.is_stored & (self.discount == 0)

    @classmethod
    def empty(
        cls, capacity: int, obs_dim: int, num_actions: int, end_value: Any = 0.0
    ) -> Transitions:
        """Room for `capacity` transitions.

        Examples:
          >>> from kqljax import rounds
          >>> rounds.Transitions.empty(100, obs_dim=2, num_actions=3).obs.shape
          (100, 2)
        """
        return cls(
            obs=jnp.zeros((capacity, obs_dim)),
            action=jnp.zeros(capacity, jnp.int32),
            reward=jnp.zeros(capacity),
            next_obs=jnp.zeros((capacity, obs_dim)),
            discount=jnp.ones(capacity),
            is_first=jnp.zeros(capacity, bool),
            is_last=jnp.zeros(capacity, bool),
            count=jnp.int32(0),
            end_value=jnp.asarray(end_value, jnp.zeros(()).dtype),
            num_actions=num_actions,
        )

    @classmethod
    def of(
        cls,
        obs: Any,
        action: Any,
        reward: Any,
        next_obs: Any,
        terminated: Any,
        truncated: Any = None,
        *,
        num_actions: int,
        end_value: float = 0.0,
    ) -> Transitions:
        """Transitions from arrays: a run's, a file's, another agent's. Wrong shapes and values are
        refused.

        Args:
          obs: `[n, l]` observations, normalised to about [-1, 1].
          action: `[n]` whole numbers in 0..num_actions - 1.
          reward: `[n]` in [0, 1].
          next_obs: `[n, l]` their true successors.
          terminated: `[n]` bool, the task ended.
          truncated: `[n]` bool, a time limit cut the episode off. The last row may be neither.
          num_actions: A.
          end_value: the normalised reward that an ended task goes on to pay, in [0, 1].

        Examples:
          >>> from kqljax import rounds
          >>> data = rounds.Transitions.of(
          ...     obs=np.zeros((2, 1)), action=[0, 1], reward=[0.0, 1.0], next_obs=np.ones((2, 1)),
          ...     terminated=[False, True], num_actions=2,
          ... )
          >>> int(data.count), data.discount.tolist(), data.is_first.tolist()
          (2, [1.0, 0.0], [True, False])
        """
        obs, next_obs = jnp.asarray(obs, float), jnp.asarray(next_obs, float)
        if obs.ndim != 2 or obs.shape != next_obs.shape or not obs.shape[0]:
            raise ValueError(
                "obs and next_obs must be two arrays of one shape [n, l] with n > 0, got "
                f"{describe(obs)} and {describe(next_obs)}."
            )
        count = obs.shape[0]
        truncated = jnp.zeros(count, bool) if truncated is None else truncated
        columns = {
            "action": action,
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
        }
        for name, column in columns.items():
            if np.shape(column) != (count,):
                raise ValueError(
                    f"{name} must have shape ({count},), one entry for each row of obs, got "
                    f"{np.shape(column)}."
                )
        action, reward = jnp.asarray(action, jnp.int32), jnp.asarray(reward, float)
        terminated, truncated = jnp.asarray(terminated, bool), jnp.asarray(truncated, bool)
        is_last = terminated | truncated
        made = cls(
            obs=obs,
            action=action,
            reward=reward,
            next_obs=next_obs,
            discount=jnp.asarray(~terminated, float),
            is_first=jnp.concatenate([jnp.ones(1, bool), is_last[:-1]]),
            is_last=is_last,
            count=jnp.int32(count),
            end_value=jnp.asarray(end_value, float),
            num_actions=num_actions,
        )
        made.validate()
        return made

    def append(self, transition: Transition, truncated: Array) -> Transitions:
        """With one more row. The first and those after a `is_last` row begin an episode.

        Examples:
          >>> from kqljax import rounds
          >>> obs = jnp.array([0.1, -0.2])
          >>> moved = kqljax.Transition(obs, 2, 0.5, obs, False)
          >>> int(rounds.Transitions.empty(10, 2, 3).append(moved, False).count)
          1
        """
        at = self.count
        before = lax.dynamic_index_in_dim(self.is_last, jnp.maximum(at - 1, 0), 0, keepdims=False)
        terminated = jnp.asarray(transition.terminated, bool)
        row = {
            "obs": transition.obs,
            "action": jnp.maximum(transition.action, 0),
            "reward": transition.reward,
            "next_obs": transition.next_obs,
            "discount": jnp.where(terminated, 0.0, 1.0),
            "is_first": (at == 0) | before,
            "is_last": terminated | truncated,
        }

        def put(column: Array, value: Any) -> Array:
            return lax.dynamic_update_index_in_dim(column, jnp.asarray(value, column.dtype), at, 0)

        columns: dict[str, Any] = {name: put(getattr(self, name), row[name]) for name in row}
        return dataclasses.replace(self, count=at + 1, **columns)

    def validate(self) -> None:
        """Raises ValueError for values that no fit can use. Values are looked at outside of jit
        only.
        """
        if not is_known(self):
            return
        stored = np.asarray(self.is_stored)
        finite = np.isfinite, "a finite number. Leave out broken rows."
        checks: tuple[tuple[str, Any, Any], ...] = (
            ("obs", *finite),
            ("next_obs", *finite),
            ("reward", _is_share, "in [0, 1]: (r - lowest) / (highest - lowest)."),
            ("discount", _is_share, "in [0, 1]: 0 where the task ended, else 1."),
            (
                "action",
                lambda x: (x >= 0) & (x < self.num_actions),
                f"in 0..{self.num_actions - 1}.",
            ),
        )
        for name, is_good, remedy in checks:
            values = np.asarray(getattr(self, name))[stored]
            good = is_good(values)
            if not np.all(good):
                raise ValueError(
                    f"{name} has {first_bad(values, good)}; every one must be {remedy}"
                )
        if not 0 <= float(self.end_value) <= 1:
            raise ValueError(
                "end_value must be in [0, 1], the normalised reward after an end, got "
                f"{float(self.end_value)}."
            )

    def resized(self, capacity: int) -> Transitions:
        """With room for `capacity` rows, at least as many as now."""
        more = capacity - self.capacity
        if more < 0:
            raise ValueError(
                f"capacity={capacity} is less than the {self.capacity} rows there are."
            )

        def grow(column: Array) -> Array:
            return jnp.pad(column, [(0, more)] + [(0, 0)] * (column.ndim - 1))

        names = ("obs", "action", "reward", "next_obs", "discount", "is_first", "is_last")
        grown: dict[str, Any] = {name: grow(getattr(self, name)) for name in names}
        return dataclasses.replace(self, **grown)


def _is_share(x: np.ndarray) -> np.ndarray:
    return (x >= 0) & (x <= 1)
