"""Observations to [-1, 1] and rewards to [0, 1], from known bounds or from a running estimate.

The estimate covers everything seen so far. An end that has to move goes beyond what was seen, so
that it moves only a few times: for observations by half of the range seen, for rewards (whose range
holds 0, the reward after an end) to one and a half times its last value, or exactly to the first
reward beyond 0. Moved ends count from the next fit on.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from kqljax._checks import describe

_SLACK = 1e-5
"""How far beyond a stated range a reward may be, in units of the range: rounding."""


class Scaling(NamedTuple):
    """The two affine maps.

    Attributes:
      low, high: `[l]` observations that become -1 and 1; what is beyond them is cut off.
      reward_low, reward_high: raw rewards that become 0 and 1.
    """

    low: np.ndarray
    high: np.ndarray
    reward_low: float
    reward_high: float

    def observe(self, obs: np.ndarray) -> np.ndarray:
        """Raw observations `[..., l]` to [-1, 1]."""
        centre, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        return np.clip((obs - centre) / half, -1.0, 1.0)

    def pay(self, reward: Any) -> Any:
        """Raw rewards to [0, 1]."""
        return np.clip((reward - self.reward_low) / (self.reward_high - self.reward_low), 0.0, 1.0)

    @property
    def end_value(self) -> float:
        """The normalised reward of an environment that pays 0, as it does after an end."""
        self.check_end()
        return float(self.pay(0.0))

    def check_end(self) -> None:
        """Raises ValueError where the range of the rewards has no 0."""
        if not self.reward_low <= 0 <= self.reward_high:
            raise ValueError(
                f"the rewards run from {self.reward_low:g} to {self.reward_high:g}, so an end that "
                "pays 0 for ever has no place in them: give end_value=, in [0, 1], what an end is "
                "worth as a share of the largest value."
            )


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
    def of(cls, low: np.ndarray, high: np.ndarray, rewards: tuple[float, float] | None) -> Ranges:
        """Infinite ends and a range that is None are estimated."""
        has_low, has_high = np.isfinite(low), np.isfinite(high)
        ends = np.where(has_low, low, np.inf), np.where(has_high, high, -np.inf)
        return cls(*ends, has_low, has_high, *(rewards or (0.0, 0.0)), rewards is not None)

    @property
    def is_obs_fixed(self) -> bool:
        """Whether every bound of the observations was stated."""
        return bool(np.all(self.is_low_fixed & self.is_high_fixed))

    def covering(self, obs: np.ndarray, rewards: np.ndarray) -> Ranges:
        """With ends moved so that observations `[k, l]` and rewards `[k]` lie within.

        Raises ValueError where a number is not finite, or a reward is out of the stated range.
        """
        for what, values in (("an observation", obs), ("a reward", rewards)):
            if not np.all(np.isfinite(values)):
                words = "that is not a finite number. Look into the environment."
                raise ValueError(f"the environment gave {what} {words}")
        low, high = np.minimum(obs.min(axis=0), self.low), np.maximum(obs.max(axis=0), self.high)
        under, over = (
            (low < self.low) & ~self.is_low_fixed,
            (high > self.high) & ~self.is_high_fixed,
        )
        found = self
        if np.any(under | over):
            margin = (high - low) / 2
            low = np.where(under, low - margin, self.low)
            found = self._replace(low=low, high=np.where(over, high + margin, self.high))
        before = self.reward_low, self.reward_high
        least, most = min([before[0], *rewards]), max([before[1], *rewards])
        slack = _SLACK * (before[1] - before[0])
        is_below, is_above = least < before[0] - slack, most > before[1] + slack
        if not (is_below or is_above):
            return found
        if self.is_reward_fixed:
            raise ValueError(
                f"the environment paid {least if is_below else most:g}, which is out of "
                f"reward_range=({before[0]:g}, {before[1]:g}). Give a range that holds every "
                f"reward, such as reward_range=({least:g}, {most:g}), or 'estimate' to have it "
                "estimated."
            )
        least = float(min(least, 1.5 * before[0])) if is_below else before[0]
        most = float(max(most, 1.5 * before[1])) if is_above else before[1]
        return found._replace(reward_low=least, reward_high=most)

    def scaling(self) -> Scaling:
        """The maps; where nothing is known, or only one value was seen, 1 to either side of it."""
        is_known = np.isfinite(self.low) & np.isfinite(self.high)
        low, high = np.where(is_known, self.low, 0.0), np.where(is_known, self.high, 0.0)
        middle, has_width = (low + high) / 2, low < high
        low, high = np.where(has_width, low, middle - 1), np.where(has_width, high, middle + 1)
        top = self.reward_high if self.reward_high > self.reward_low else self.reward_low + 1.0
        return Scaling(low, high, self.reward_low, top)


def check_obs_bounds(given: Any, obs_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """`obs_bounds=` as two vectors `[l]`; infinite where the end shall be estimated."""
    try:
        low, high = (np.broadcast_to(np.asarray(end, np.float64), (obs_dim,)) for end in given)
    except (TypeError, ValueError):
        low = high = np.zeros(0)
    if not (low.size and np.all(low < high)):
        raise ValueError(
            f"obs_bounds must be (low, high), two numbers or two vectors of length {obs_dim}, with "
            f"low below high everywhere, got {describe(given)}."
        )
    return low, high


def check_reward_range(given: Any) -> tuple[float, float] | None:
    """`reward_range=` as two numbers; None where it shall be estimated."""
    if isinstance(given, str) and given == "estimate":
        return None
    low, high = (_number(end) for end in given) if np.shape(given) == (2,) else (math.nan, math.nan)
    if not -math.inf < low < high < math.inf:
        raise ValueError(
            "reward_range must be (lowest, highest) with lowest < highest, or 'estimate', got "
            f"{describe(given)}."
        )
    return low, high


def check_end_value(given: Any) -> float | None:
    """`end_value=` as a number in [0, 1], or None."""
    if given is not None and not 0 <= _number(given) <= 1:
        raise ValueError(
            "end_value must be in [0, 1], what an end is worth as a share of the largest value, "
            f"got {describe(given)}."
        )
    return None if given is None else float(given)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
