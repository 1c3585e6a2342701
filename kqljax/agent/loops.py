"""A gymnasium environment, or a vector of them, as a stream of raw transitions."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np

from kqljax.agent.spaces import Observations


class Steps(NamedTuple):
    """The k transitions that n environments made in one step; k < n where some were only reset.

    Attributes:
      env: `[k]` which environment.
      obs, next_obs: `[k, l]` raw; next_obs is the true successor.
      action: `[k]` index.
      reward: `[k]` raw.
      terminated: `[k]` bool, the task ended.
      truncated: `[k]` bool, a time limit was reached and the task did not end.
      now: `[n, l]` raw observations to act on next.
    """

    env: np.ndarray
    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    now: np.ndarray


class Loop:
    """Starts new episodes itself, and gives the true successor also where an episode is over.

    A vector may start episodes in any of gymnasium's three ways: at the next step, whose made-up
    transition is left out; in the same step, with the true successor in `info["final_obs"]`; or not
    at all, and then it is reset here, as a single environment is.

    Attributes:
      num_envs: n.
      is_moved: `[n]` bool, the environments that the next step moves; the others it only resets.
    """

    def __init__(self, env: Any, observations: Observations, actions: np.ndarray) -> None:
        self._env, self._observations, self._actions = env, observations, actions
        self._is_vector = isinstance(env, gymnasium.vector.VectorEnv)
        self.num_envs = int(env.num_envs) if self._is_vector else 1
        self._mode = _autoreset_mode(env) if self._is_vector else "Disabled"
        self._now = np.zeros((self.num_envs, observations.obs_dim))
        self.is_moved = np.ones(self.num_envs, bool)

    def reset(self, **options: Any) -> np.ndarray:
        """First observations `[n, l]` of new episodes."""
        self._now = self._vectors(self._env.reset(**options)[0])
        self.is_moved = np.ones(self.num_envs, bool)
        return self._now

    def _vectors(self, raw: Any) -> np.ndarray:
        found = self._observations.vectors(raw)
        return found if self._is_vector else found[None]

    def step(self, action: np.ndarray) -> Steps:
        """Takes the actions with these indices `[n]`."""
        taken = self._actions[action if self._is_vector else action[0]]
        raw, reward, terminated, truncated, info = self._env.step(taken)
        before, moved, after = self._now, self.is_moved, self._vectors(raw)
        reward = np.reshape(np.array(reward, np.float64), self.num_envs)
        terminated, truncated = np.reshape(np.array([terminated, truncated], bool), (2, -1))
        over, reached, self._now = terminated | truncated, after, after
        if np.any(over) and self._mode == "SameStep":
            reached = after.copy()
            for i in np.flatnonzero(over):
                reached[i] = self._observations.vectors(info["final_obs"][i])
        elif np.any(over) and self._mode == "Disabled":
            options = {"options": {"reset_mask": over}} if self._is_vector else {}
            self._now = np.where(over[:, None], self._vectors(self._env.reset(**options)[0]), after)
        elif self._mode == "NextStep":
            self.is_moved = ~over
        return Steps(
            env=np.flatnonzero(moved),
            obs=before[moved],
            action=action[moved],
            reward=reward[moved],
            next_obs=reached[moved],
            terminated=terminated[moved],
            truncated=(truncated & ~terminated)[moved],
            now=self._now,
        )


def _autoreset_mode(env: Any) -> str:
    # gymnasium's vectors share one dict of metadata with all other vectors of the environment, of
    # whatever mode: their own word comes first. gymnasium 1.0 has neither, and only NextStep.
    mode = getattr(env.unwrapped, "autoreset_mode", env.metadata.get("autoreset_mode", "NextStep"))
    name = str(getattr(mode, "value", mode))
    if name not in ("NextStep", "SameStep", "Disabled"):
        raise ValueError(
            f"unknown autoreset_mode {mode!r}: expected gymnasium.vector.AutoresetMode."
        )
    return name
