"""What the tests of the agent share: an environment without bounds, and an agent's history as
rounds take it.
"""

import contextlib

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from kqljax import rounds


class Line(gymnasium.Env):
    """A walk on a line from 0; the end is `goal` steps to the right.

    Observations have no bounds: twice the place, and three numbers that never change, so that the
    compiled programs are those of CartPole. With `space`, a Discrete one of 2 goal values, they are
    counted from the place -goal + 1. `seeds` are those of its resets, and `closed` counts how often
    it was closed.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, goal=5, space=None, reward=lambda place, is_end: 1.0 if is_end else 0.0):
        self.goal, self.reward = goal, reward
        self.observation_space = space or spaces.Box(-np.inf, np.inf, (4,))
        self.seeds, self.closed = [], 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.place = 0
        return self._obs(), {}

    def step(self, action):
        self.place = max(self.place + (1 if action == 1 else -1), -self.goal)
        is_end = self.place == self.goal
        return self._obs(), self.reward(self.place, is_end), is_end, False, {}

    def close(self):
        self.closed += 1

    def _obs(self):
        if isinstance(self.observation_space, spaces.Discrete):
            return np.int64(max(self.place + self.goal - 1, 0))
        return np.array([2.0 * self.place, 0.0, 0.0, 0.0], np.float32)


BOUNDS = {"obs_bounds": (-10.0, 10.0), "reward_range": (0.0, 1.0)}
"""Of `Line`, for a learner that needs them."""


def unit(agent, obs):
    """Raw observations as the learner sees them, with the agent's bounds of now."""
    low, high = agent.obs_bounds
    return np.clip((obs - (low + high) / 2) / ((high - low) / 2), -1.0, 1.0)


def unit_reward(agent, reward):
    """Raw rewards as the learner sees them."""
    low, high = agent.reward_range
    return np.clip((reward - low) / (high - low), 0.0, 1.0)


def transitions(agent, capacity=1024):
    """The agent's history as `kqljax.rounds.Transitions`."""
    rows = agent.history
    return rounds.Transitions.of(
        unit(agent, rows["obs"]),
        rows["action"],
        unit_reward(agent, rows["reward"]),
        unit(agent, rows["next_obs"]),
        rows["terminated"],
        rows["truncated"],
        num_actions=len(agent.actions),
        end_value=unit_reward(agent, 0.0),
    ).resized(capacity)


@contextlib.contextmanager
def compiles():
    """The list of the programs that jax compiles meanwhile, by name."""
    found = []

    def heard(event, seconds, **more):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(more.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)
