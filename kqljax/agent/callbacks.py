"""What callbacks of `learn` are told, which will do, and the progress bar."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kqljax._checks import describe

Callback = Callable[[Any, "AgentStep"], Any]

_OURS = (
    "A callback is a function of the agent and the step: "
    "def watch(agent, step): print(step.num_timesteps, step.reward)"
)


class AgentStep(NamedTuple):
    """What a callback is told after each step of the environment.

    With a vector of n environments the fields have one entry for each of the k transitions of this
    step, k <= n.

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
    one = given is not None and not isinstance(given, Sequence)
    found = [given] if one else list(given or ())
    for each in found:
        if not callable(each):
            raise TypeError(f"{describe(each)} is not a callback of kqljax. {_OURS}")
        try:
            signature = inspect.signature(each)
        except ValueError:
            continue  # a function without a signature that Python can read
        try:
            signature.bind(None, None)
        except TypeError:
            words = f"a callback must take two arguments, this one is {describe(each)}. {_OURS}"
            raise TypeError(words) from None
        if [name.strip("_") for name in signature.parameters][:2] == ["locals", "globals"]:
            raise TypeError(
                f"this callback takes locals and globals, as in Stable-Baselines3. {_OURS}"
            )
    return found


@contextmanager
def learning_bar(total: int, is_wanted: bool) -> Iterator[Callable[[int, Sequence[float]], None]]:
    """A function (steps done, returns so far) that draws on stderr, or does nothing."""
    if not is_wanted:
        yield lambda done, returns: None
        return
    words = TextColumn("steps,"), TimeRemainingColumn(), TextColumn("left{task.description}")
    console = Console(stderr=True)
    with Progress(BarColumn(bar_width=20), MofNCompleteColumn(), *words, console=console) as bar:
        task = bar.add_task("", total=total)
        every = max(1, total // 200)  # drawing at every step would cost more than the step

        def show(done: int, returns: Sequence[float]) -> None:
            if done % every == 0 or done >= total:
                last = f"; last returns {np.mean(returns[-5:]):.1f}" if returns else ""
                bar.update(task, completed=min(done, total), description=last)

        yield show
