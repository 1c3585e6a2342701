"""What the tests of the agent share: an environment without bounds, and the state that a run should have."""

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

import kqljax

STEPS = 60
"""One length for most runs, so that the tests share compiled programs."""


class Line(gymnasium.Env):
    """A walk on a line from 0; the end is `goal` steps to the right. Observations are twice the place, without bounds."""

    action_space = spaces.Discrete(2)

    def __init__(self, goal=5, space=None, reward=lambda place, is_end: 1.0 if is_end else 0.0):
        self.goal, self.reward = goal, reward
        self.observation_space = space or spaces.Box(-np.inf, np.inf, (1,))
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.place = 0
        return self._obs(), {}

    def step(self, action):
        self.place = max(self.place + (1 if action == 1 else -1), -self.goal)
        is_end = self.place == self.goal
        return self._obs(), self.reward(self.place, is_end), is_end, False, {}

    def _obs(self):
        if isinstance(self.observation_space, spaces.Discrete):
            return np.int64(self.place + self.goal)
        return np.array([2.0 * self.place], np.float32)


def reference(agent, count=None):
    """The state that `kql_step` gives on the agent's own transitions, with its bounds as they are."""
    rows, (low, high), (worst, best) = agent.history, agent.obs_bounds, agent.reward_range
    cfg = agent.config
    state = kqljax.kql_init(cfg, len(low))
    step = jax.jit(kqljax.kql_step)

    def unit(obs):
        return np.clip((2 * obs - low - high) / np.where(high > low, high - low, 2.0), -1, 1)

    for i in range(agent.num_timesteps if count is None else count):
        reward = np.clip((rows["reward"][i] - worst) / (best - worst), 0, 1)
        moved = kqljax.Transition(
            unit(rows["obs"][i]), rows["action"][i], reward, unit(rows["next_obs"][i]), rows["terminated"][i]
        )
        state, _ = step(cfg, state, moved)
    return state
