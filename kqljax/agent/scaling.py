"""Observations to [-1, 1] and rewards to [0, 1], from bounds that are known or from a running estimate.

The running estimate covers everything seen so far. An end that has to move goes beyond what was seen, so that it moves only a
few times: for observations by half of the range seen, for rewards (whose range holds 0 always, the reward after an end) to
one and a half times its last value, or exactly to the first reward beyond 0. Whoever holds numbers scaled by the old ends
has to scale them anew: `Ranges.cover` says when.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kqljax.errors import describe

Array = jax.Array

_SLACK = 1e-5
"""How far beyond a stated range a reward may be, in units of the range: rounding."""


class Scaling(NamedTuple):
    """The two affine maps, as a pytree.

    Attributes:
      centre, half_width: `[l]`; an observation becomes (obs - centre) / half_width, cut off at -1 and 1.
      reward_low, reward_high: `[]` raw rewards that become 0 and 1.
    """

    centre: Any
    half_width: Any
    reward_low: Any
    reward_high: Any

    def observe(self, obs: Array) -> Array:
        """Raw observations `[..., l]` to [-1, 1]."""
        return jnp.clip((obs - self.centre) / self.half_width, -1.0, 1.0)

    def pay(self, reward: Array) -> Array:
        """Raw rewards to [0, 1]."""
        return jnp.clip((reward - self.reward_low) / (self.reward_high - self.reward_low), 0.0, 1.0)


class Ranges:
    """Bounds of observations and rewards, each end stated or estimated.

    Attributes:
      low, high: `[l]`; before anything was seen, inf and -inf where they are estimated.
      is_low_fixed, is_high_fixed: `[l]` bool, the ends that were stated.
      reward_low, reward_high: numbers.
      is_reward_fixed: whether they were stated.
    """

    def __init__(self, low: np.ndarray, high: np.ndarray, reward_range: tuple[float, float] | None) -> None:
        self.is_low_fixed, self.is_high_fixed = np.isfinite(low), np.isfinite(high)
        self.low = np.where(self.is_low_fixed, low, np.inf)
        self.high = np.where(self.is_high_fixed, high, -np.inf)
        self.is_reward_fixed = reward_range is not None
        self.reward_low, self.reward_high = reward_range or (0.0, 0.0)

    @property
    def is_estimated(self) -> bool:
        """Whether any end may still move."""
        return not (self.is_reward_fixed and bool(np.all(self.is_low_fixed & self.is_high_fixed)))

    def as_dict(self) -> dict[str, Any]:
        """All there is, for a file."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Ranges:
        """The inverse of `as_dict`."""
        ranges = object.__new__(cls)
        vars(ranges).update(found)
        return ranges

    def cover(self, obs: np.ndarray, rewards: np.ndarray) -> bool:
        """Moves ends so that observations `[..., l]` and rewards `[k]` lie within; True where one has moved.

        Raises ValueError where a number is not finite, or a reward is out of the range that was stated.
        """
        obs = obs.reshape(-1, self.low.shape[0])
        if not (np.all(np.isfinite(obs)) and np.all(np.isfinite(rewards))):
            what = "a reward" if np.all(np.isfinite(obs)) else "an observation"
            raise ValueError(f"the environment gave {what} that is not a finite number. Look into the environment.")
        moved = self._cover_obs(obs)
        return self._cover_rewards(rewards) or moved

    def _cover_obs(self, obs: np.ndarray) -> bool:
        if np.all(self.is_low_fixed & self.is_high_fixed):
            return False
        least, most = obs.min(axis=0), obs.max(axis=0)
        under, over = (least < self.low) & ~self.is_low_fixed, (most > self.high) & ~self.is_high_fixed
        if not np.any(under | over):
            return False
        lowest, highest = np.minimum(least, self.low), np.maximum(most, self.high)
        margin = (highest - lowest) / 2
        self.low, self.high = np.where(under, lowest - margin, self.low), np.where(over, highest + margin, self.high)
        return True

    def _cover_rewards(self, rewards: np.ndarray) -> bool:
        if not rewards.size:
            return False
        least, most = float(rewards.min()), float(rewards.max())
        slack = _SLACK * (self.reward_high - self.reward_low)
        if least >= self.reward_low - slack and most <= self.reward_high + slack:
            return False
        if self.is_reward_fixed:
            worst = least if least < self.reward_low - slack else most
            wider = min(self.reward_low, least), max(self.reward_high, most)
            raise ValueError(
                f"the environment paid {worst:g}, which is out of reward_range=({self.reward_low:g}, {self.reward_high:g}). "
                f"Give a range that holds every reward, such as reward_range=({wider[0]:g}, {wider[1]:g}), or "
                "reward_range='estimate' to have it estimated."
            )
        if least < self.reward_low:
            self.reward_low = min(least, 1.5 * self.reward_low)
        if most > self.reward_high:
            self.reward_high = max(most, 1.5 * self.reward_high)
        return True

    def scaling(self, dtype: Any) -> Scaling:
        """The maps for these bounds; where nothing is known yet, or all that was seen is one value, the width is 1."""
        known = np.isfinite(self.low) & np.isfinite(self.high)
        low, high = np.where(known, self.low, 0.0), np.where(known, self.high, 0.0)
        half = (high - low) / 2
        reward_high = self.reward_high if self.reward_high > self.reward_low else self.reward_low + 1.0
        make = functools.partial(jnp.asarray, dtype=dtype)
        return Scaling(make((low + high) / 2), make(np.where(half > 0, half, 1.0)), make(self.reward_low), make(reward_high))

    def end_value(self, gamma: float) -> float:
        """What raw reward 0 for ever is worth, in units of normalised value."""
        width = self.reward_high - self.reward_low
        unit = (0.0 - self.reward_low) / (width if width > 0 else 1.0)
        if not 0 <= unit <= 1:
            raise ValueError(
                f"the rewards run from {self.reward_low:g} to {self.reward_high:g}, so an end that pays 0 for ever has no "
                "place in them: give terminal_value=, in [0, 1 / (1 - gamma)]."
            )
        return unit / (1.0 - gamma)


def check_obs_bounds(given: Any, obs_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """`obs_bounds=` as two vectors `[l]`; infinite where the end shall be estimated."""
    try:
        low, high = (np.broadcast_to(np.asarray(end, np.float64), (obs_dim,)) for end in given)
    except (TypeError, ValueError):
        raise ValueError(
            f"obs_bounds must be (low, high), two vectors of length {obs_dim} or two numbers, got {describe(given)}."
        ) from None
    if np.any(np.isnan(low)) or np.any(np.isnan(high)) or not np.all(low < high):
        raise ValueError(f"obs_bounds must have low below high everywhere, got {low.tolist()} and {high.tolist()}.")
    return low, high


def check_reward_range(given: Any) -> tuple[float, float]:
    """`reward_range=` as two numbers."""
    try:
        low, high = (float(end) for end in given)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(
            f"reward_range must be (lowest, highest) with lowest < highest, or 'estimate', got {describe(given)}."
        ) from None
    return low, high
