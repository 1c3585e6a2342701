"""Observations to [-1, 1] and rewards to [0, 1], from bounds that are known or from a running estimate.

The running estimate covers everything seen so far. An end that has to move goes beyond what was seen, so that it moves only a
few times: for observations by half of the range seen, for rewards (whose range holds 0 always, the reward after an end) to
one and a half times its last value, or exactly to the first reward beyond 0. Moved ends count from the next fit on.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from kqljax.errors import describe

_SLACK = 1e-5
"""How far beyond a stated range a reward may be, in units of the range: rounding."""


class Scaling(NamedTuple):
    """The two affine maps.

    Attributes:
      centre, half_width: `[l]`; an observation becomes (obs - centre) / half_width, cut off at -1 and 1.
      reward_low, reward_high: raw rewards that become 0 and 1.
    """

    centre: np.ndarray
    half_width: np.ndarray
    reward_low: float
    reward_high: float

    def observe(self, obs: np.ndarray) -> np.ndarray:
        """Raw observations `[..., l]` to [-1, 1]."""
        return np.clip((obs - self.centre) / self.half_width, -1.0, 1.0)

    def pay(self, reward: np.ndarray) -> np.ndarray:
        """Raw rewards to [0, 1]."""
        return np.clip((reward - self.reward_low) / (self.reward_high - self.reward_low), 0.0, 1.0)

    @property
    def end_value(self) -> float:
        """The normalised reward of an environment that pays 0, as it does after an end; in [0, 1]."""
        unit = (0.0 - self.reward_low) / (self.reward_high - self.reward_low)
        if not 0 <= unit <= 1:
            raise ValueError(
                f"the rewards run from {self.reward_low:g} to {self.reward_high:g}, so an end that pays 0 for ever has no "
                "place in them: give end_value=, in [0, 1], what an end is worth as a share of the largest value."
            )
        return unit


class Ranges(NamedTuple):
    """Bounds of observations and rewards, each end stated or estimated.

    Attributes:
      low, high: `[l]`; before anything was seen, inf and -inf where they are estimated.
      is_low_fixed, is_high_fixed: `[l]` bool, the ends that were stated.
      reward_low, reward_high: numbers.
      is_reward_fixed: whether they were stated.
    """

    low: np.ndarray
    high: np.ndarray
    is_low_fixed: np.ndarray
    is_high_fixed: np.ndarray
    reward_low: float
    reward_high: float
    is_reward_fixed: bool

    @classmethod
    def of(cls, low: np.ndarray, high: np.ndarray, reward_range: tuple[float, float] | None) -> Ranges:
        """Infinite ends and a range that is None are estimated."""
        has_low, has_high = np.isfinite(low), np.isfinite(high)
        ends = np.where(has_low, low, np.inf), np.where(has_high, high, -np.inf)
        return cls(*ends, has_low, has_high, *(reward_range or (0.0, 0.0)), reward_range is not None)

    @property
    def is_obs_fixed(self) -> bool:
        """Whether every bound of the observations was stated."""
        return bool(np.all(self.is_low_fixed & self.is_high_fixed))

    def covering(self, obs: np.ndarray, rewards: np.ndarray) -> Ranges:
        """With ends moved so that observations `[..., l]` and rewards `[k]` lie within; itself where none has to.

        Raises ValueError where a number is not finite, or a reward is out of the range that was stated.
        """
        obs = obs.reshape(-1, self.low.shape[0])
        if not (np.all(np.isfinite(obs)) and np.all(np.isfinite(rewards))):
            what = "a reward" if np.all(np.isfinite(obs)) else "an observation"
            raise ValueError(f"the environment gave {what} that is not a finite number. Look into the environment.")
        return self._covering_obs(obs)._covering_rewards(rewards)

    def _covering_obs(self, obs: np.ndarray) -> Ranges:
        if self.is_obs_fixed:
            return self
        least, most = obs.min(axis=0), obs.max(axis=0)
        under, over = (least < self.low) & ~self.is_low_fixed, (most > self.high) & ~self.is_high_fixed
        if not np.any(under | over):
            return self
        lowest, highest = np.minimum(least, self.low), np.maximum(most, self.high)
        margin = (highest - lowest) / 2
        low, high = np.where(under, lowest - margin, self.low), np.where(over, highest + margin, self.high)
        return self._replace(low=low, high=high)

    def _covering_rewards(self, rewards: np.ndarray) -> Ranges:
        if not rewards.size:
            return self
        least, most = float(rewards.min()), float(rewards.max())
        slack = _SLACK * (self.reward_high - self.reward_low)
        if least >= self.reward_low - slack and most <= self.reward_high + slack:
            return self
        if self.is_reward_fixed:
            worst = least if least < self.reward_low - slack else most
            wider = min(self.reward_low, least), max(self.reward_high, most)
            raise ValueError(
                f"the environment paid {worst:g}, which is out of reward_range=({self.reward_low:g}, {self.reward_high:g}). "
                f"Give a range that holds every reward, such as reward_range=({wider[0]:g}, {wider[1]:g}), or "
                "reward_range='estimate' to have it estimated."
            )
        low = min(least, 1.5 * self.reward_low) if least < self.reward_low else self.reward_low
        high = max(most, 1.5 * self.reward_high) if most > self.reward_high else self.reward_high
        return self._replace(reward_low=low, reward_high=high)

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Low `[l]` and high `[l]` that become -1 and 1."""
        found, has_width = self.scaling(), self.low < self.high
        low, high = found.centre - found.half_width, found.centre + found.half_width
        return np.where(has_width, self.low, low), np.where(has_width, self.high, high)

    def scaling(self) -> Scaling:
        """The maps for these bounds; where nothing is known yet, or all that was seen is one value, the width is 1."""
        known = np.isfinite(self.low) & np.isfinite(self.high)
        low, high = np.where(known, self.low, 0.0), np.where(known, self.high, 0.0)
        half = (high - low) / 2
        reward_high = self.reward_high if self.reward_high > self.reward_low else self.reward_low + 1.0
        return Scaling((low + high) / 2, np.where(half > 0, half, 1.0), self.reward_low, reward_high)


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


def check_end_value(given: Any) -> float | None:
    """`end_value=` as a number in [0, 1], or None."""
    if given is None:
        return None
    try:
        value = float(given)
    except (TypeError, ValueError):
        value = math.nan
    if not 0 <= value <= 1:
        raise ValueError(
            "end_value must be in [0, 1], what an end is worth as a share of the largest value 1 / (1 - gamma), got "
            f"{describe(given)}."
        )
    return value
