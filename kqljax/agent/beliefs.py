"""What an agent believes of states."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Beliefs(NamedTuple):
    """What the agent believes at some observations, `[A]` or `[n, A]`, in units of the normalised reward.

    Attributes:
      mean: expected value. In rounds the mean over the members of the ensemble; in Algorithm 1 the ridge estimate Q-hat.
      spread: how unsure it is. In rounds the members' standard deviation; in Algorithm 1 the width Gamma-hat.
      optimistic: optimistic value, which decides while the agent explores; in Algorithm 1 Q-tilde.

    Examples:
      >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
      >>> believed = agent.beliefs(np.zeros((4, 2)))
      >>> believed.mean.shape, believed.spread.shape, believed.optimistic.shape
      ((4, 3), (4, 3), (4, 3))
    """

    mean: np.ndarray
    spread: np.ndarray
    optimistic: np.ndarray


def padded(rows: np.ndarray) -> np.ndarray:
    """With rows up to the next power of two: batches of many sizes then share a few compiled programs."""
    size = 1 << max(len(rows) - 1, 0).bit_length()
    return np.concatenate([rows, np.zeros((size - len(rows), *rows.shape[1:]), rows.dtype)])


def check_actions(actions: np.ndarray) -> np.ndarray:
    """Raises where a value was not a number."""
    if np.any(actions < 0):
        raise FloatingPointError(
            "a value is no longer a finite number. Look at agent.history for broken rows, or take a larger ridge (lam)."
        )
    return actions
