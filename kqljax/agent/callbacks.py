"""What callbacks of `learn` are told, and which will do."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from kqljax.errors import describe

Callback = Callable[[Any, "AgentStep"], Any]

_OURS = "A callback is a function of the agent and the step: def watch(agent, step): print(step.num_timesteps, step.reward)"


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

    Examples:
      >>> def show(agent, step):
      ...     print(step.num_timesteps, step.obs.shape, step.reward)
      >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(2, callback=show)
      1 (2,) -1.0
      2 (2,) -1.0
    """

    num_timesteps: int
    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def read_callbacks(given: Any) -> list[Callback]:
    """The callbacks as a list; TypeError with an example of ours where one is something else."""
    found = [given] if given is not None and not isinstance(given, Sequence) else list(given or ())
    for each in found:
        if not callable(each):
            raise TypeError(f"{describe(each)} is not a callback of kqljax. {_OURS}")
        try:
            parameters = inspect.signature(each)
            parameters.bind(None, None)
        except ValueError:
            continue  # a function without a signature that Python can read
        except TypeError:
            raise TypeError(f"a callback must take two arguments, this one is {describe(each)}. {_OURS}") from None
        if list(parameters.parameters)[:2] in (["locals_", "globals_"], ["locals", "globals"], ["_locals", "_globals"]):
            raise TypeError(f"this callback takes locals and globals, as in Stable-Baselines3. {_OURS}")
    return found
