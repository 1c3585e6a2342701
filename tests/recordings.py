"""Transitions recorded from gymnasium's own environments, with ends, time limits and resets among
them.
"""

from typing import NamedTuple

import gymnasium
import numpy as np


class Recording(NamedTuple):
    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def _mountain_car(obs):
    return (obs - np.array([-0.3, 0.0])) / np.array([0.9, 0.07])


def _cart_pole(obs):
    return np.clip(obs / np.array([2.4, 3.0, 0.2095, 3.5]), -1, 1)


TASKS = {
    # name: normalisation, reward to [0, 1], actions, terminal value, time limit
    "MountainCar-v0": (_mountain_car, lambda reward: reward + 1.0, 3, 20.0, 45),
    # CartPole's own terminal value is 0; another one shows whether it is used.
    "CartPole-v1": (_cart_pole, lambda reward: reward, 2, 7.0, 25),
}


def record(task, steps, policy, seed=0):
    """Runs `policy(obs) -> action` for `steps` steps; `policy.step`, if there, is told each
    transition.
    """
    normalise, to_unit, _, _, limit = TASKS[task]
    env = gymnasium.make(task, max_episode_steps=limit)
    obs, _ = env.reset(seed=seed)
    rows = []
    for _ in range(steps):
        state = normalise(np.asarray(obs, np.float64))
        action = policy.act(state)
        obs, reward, terminated, truncated, _ = env.step(action)
        row = (
            state,
            action,
            to_unit(reward),
            normalise(np.asarray(obs, np.float64)),
            terminated,
            truncated,
        )
        rows.append(row)
        policy.step(*row[:5])
        if terminated or truncated:
            obs, _ = env.reset()
    env.close()
    return Recording(*(np.array(column) for column in zip(*rows, strict=True)))
