"""What the agent tells: to callbacks of each step, and of what it believes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kqljax.state import KQLInfo


class AgentStep(NamedTuple):
    """What a callback is told after each step of the environment.

    With a vector of n environments the fields have one entry for each of the k transitions of this step, k <= n.

    Attributes:
      num_timesteps: transitions learned from so far, in all calls of `learn`.
      obs: `[l]` or `[k, l]` the environment's observation, not normalised.
      action: `[]` or `[k]` index of the action.
      reward: `[]` or `[k]` the environment's reward.
      next_obs: `[l]` or `[k, l]` its true successor.
      terminated: `[]` or `[k]` bool, the task ended.
      truncated: `[]` or `[k]` bool, a time limit was reached.
      q_tilde: `[A]` or `[n, A]` optimistic values at the observation to act on next.
      info: diagnostics of the last transition.

    Examples:
      >>> def show(agent, step):
      ...     print(step.num_timesteps, step.obs.shape, step.reward, step.q_tilde.shape)
      >>> agent = kqljax.KQL("MountainCar-v0", horizon=20, seed=0).learn(2, callback=show)
      1 (2,) -1.0 (3,)
      2 (2,) -1.0 (3,)
    """

    num_timesteps: int
    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    q_tilde: np.ndarray
    info: KQLInfo


class Posterior(NamedTuple):
    """What the agent believes at some observations, in units of normalised value, which runs from 0 to 1 / (1 - gamma).

    Attributes:
      q_hat: `[..., A]` ridge estimate.
      width: `[..., A]` Gamma-hat; beta times it is the bonus.
      q_tilde: `[..., A]` optimistic value, which the agent maximises while it learns.

    Examples:
      >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
      >>> believed = agent.posterior(np.zeros((4, 2)))
      >>> believed.q_hat.shape, bool(np.all(believed.q_tilde >= believed.q_hat))
      ((4, 3), True)
    """

    q_hat: np.ndarray
    width: np.ndarray
    q_tilde: np.ndarray
