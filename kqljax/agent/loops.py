"""A gymnasium environment, or a vector of them, as a stream of raw transitions.

Both loops start new episodes themselves and give the true successor of every step, also where an episode is over. A vector of
environments may start episodes in any of gymnasium's three ways: at the next step, whose made-up transition is left out; in
the same step, with the true successor in `info["final_obs"]`; or not at all, and then it is reset here.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from kqljax.agent.spaces import Observations


class Steps(NamedTuple):
    """The k transitions that n environments made in one step; k < n where some of them were only reset.

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


class Loop(Protocol):
    """What the agent asks of its environments.

    Attributes:
      num_envs: n.
      is_moved: `[n]` bool, the environments that the next step moves; the others it only resets.
    """

    num_envs: int

    @property
    def is_moved(self) -> np.ndarray: ...

    def reset(self, seed: int | None) -> np.ndarray:
        """First observations `[n, l]` of new episodes."""
        ...

    def step(self, action: np.ndarray) -> Steps:
        """Takes the actions with these indices `[n]`."""
        ...


class SingleLoop:
    """One environment."""

    num_envs = 1
    is_moved = np.ones(1, bool)

    def __init__(self, env: Any, observations: Observations, actions: np.ndarray) -> None:
        self._env, self._observations, self._actions = env, observations, actions
        self._now = np.zeros((1, observations.obs_dim))

    def reset(self, seed: int | None) -> np.ndarray:
        obs, _ = self._env.reset(seed=seed)
        self._now = self._observations.vectors(obs)[None]
        return self._now

    def step(self, action: np.ndarray) -> Steps:
        raw, reward, terminated, truncated, _ = self._env.step(self._actions[action[0]])
        before, after = self._now, self._observations.vectors(raw)[None]
        self._now = after
        if terminated or truncated:
            self.reset(None)
        return Steps(
            env=np.zeros(1, np.int64),
            obs=before,
            action=np.asarray(action),
            reward=np.array([reward], np.float64),
            next_obs=after,
            terminated=np.array([terminated], bool),
            truncated=np.array([truncated and not terminated], bool),
            now=self._now,
        )


class VectorLoop:
    """A gymnasium.vector environment."""

    def __init__(self, env: Any, observations: Observations, actions: np.ndarray) -> None:
        self.num_envs = int(env.num_envs)
        self._env, self._observations, self._actions = env, observations, actions
        # gymnasium's vectors share one dict of metadata with every other vector of the same environment, whatever its mode:
        # their own word comes first. gymnasium 1.0 has neither, and no other mode than NextStep.
        mode = getattr(env.unwrapped, "autoreset_mode", None) or env.metadata.get("autoreset_mode", "NextStep")
        self._mode = str(getattr(mode, "value", mode))
        if self._mode not in ("NextStep", "SameStep", "Disabled"):
            raise ValueError(f"unknown autoreset_mode {mode!r}: expected one of gymnasium.vector.AutoresetMode.")
        self._now = np.zeros((self.num_envs, observations.obs_dim))
        self._is_over = np.zeros(self.num_envs, bool)

    @property
    def is_moved(self) -> np.ndarray:
        # With NextStep the step after an end only resets.
        return ~self._is_over if self._mode == "NextStep" else np.ones(self.num_envs, bool)

    def reset(self, seed: int | None) -> np.ndarray:
        obs, _ = self._env.reset(seed=seed)
        self._now, self._is_over = self._observations.vectors(obs), np.zeros(self.num_envs, bool)
        return self._now

    def step(self, action: np.ndarray) -> Steps:
        raw, reward, terminated, truncated, info = self._env.step(self._actions[action])
        before, after = self._now, self._observations.vectors(raw)
        over = np.asarray(terminated, bool) | np.asarray(truncated, bool)
        is_real = self.is_moved
        self._is_over, self._now, reached = over, after, after
        if np.any(over) and self._mode == "SameStep":
            reached = after.copy()
            for i in np.flatnonzero(over):
                reached[i] = self._observations.vectors(info["final_obs"][i])
        if np.any(over) and self._mode == "Disabled":
            obs, _ = self._env.reset(options={"reset_mask": over})
            self._now = np.where(over[:, None], self._observations.vectors(obs), after)
        return Steps(
            env=np.flatnonzero(is_real),
            obs=before[is_real],
            action=np.asarray(action)[is_real],
            reward=np.asarray(reward, np.float64)[is_real],
            next_obs=reached[is_real],
            terminated=np.asarray(terminated, bool)[is_real],
            truncated=(np.asarray(truncated, bool) & ~np.asarray(terminated, bool))[is_real],
            now=self._now,
        )


class Totals:
    """Returns and lengths of the episodes under way in n environments."""

    def __init__(self, num_envs: int) -> None:
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, int)

    def add(self, steps: Steps) -> list[tuple[float, int]]:
        """Takes in a step; return and length of each episode that it ended."""
        self._returns[steps.env] += steps.reward
        self._lengths[steps.env] += 1
        over = steps.env[steps.terminated | steps.truncated]
        done = [(float(self._returns[i]), int(self._lengths[i])) for i in over]
        self._returns[over], self._lengths[over] = 0.0, 0
        return done
