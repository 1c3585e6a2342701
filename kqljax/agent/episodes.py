"""Episodes of a policy without learning: for evaluation and for pictures."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from kqljax._checks import whole_number
from kqljax.agent.spaces import check_env, make_env

MAX_STEPS = 1000
"""Steps after which an episode is cut off, where the environment has no time limit of its own."""

SIDE_BY_SIDE = 20
"""Environments that an evaluation opens, at most."""


class Episode(NamedTuple):
    """One episode.

    Attributes:
      total: undiscounted return.
      obs: `[N + 1, ...]` raw observations, from the first to the last successor.
      frames: `[N + 1]` rendered images `[height, width, 3]` uint8, or none.
      terminated: bool, the task ended.
      was_cut: bool, `max_steps` was over first.
    """

    total: float
    obs: np.ndarray
    frames: list[np.ndarray]
    terminated: bool
    was_cut: bool


class Evaluation(NamedTuple):
    """Episodes of a policy that does not learn.

    Attributes:
      returns: `[n]` undiscounted returns.
      lengths: `[n]` steps.
      was_cut: `[n]` bool, the episode was not over after `max_steps`.
      max_steps: steps that an episode may last; None where the environment's own time limit holds.

    Examples:
      >>> found = kqljax.KQL("MountainCar-v0", seed=0).learn(20).evaluate(2)
      >>> print(found)
      mean return -200.0, std 0.0, from -200.0 to -200.0 over 2 episodes
      >>> found.returns.tolist(), found.lengths.tolist()
      ([-200.0, -200.0], [200, 200])
    """

    returns: np.ndarray
    lengths: np.ndarray
    was_cut: np.ndarray
    max_steps: int | None

    @classmethod
    def of(cls, played: Sequence[Episode], max_steps: int | None) -> Evaluation:
        """The numbers of these episodes."""
        totals, lengths = [each.total for each in played], [len(each.obs) - 1 for each in played]
        was_cut = [each.was_cut for each in played]
        return cls(np.array(totals), np.array(lengths), np.array(was_cut), max_steps)

    @property
    def mean(self) -> float:
        """Of the returns."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Of the returns, over episodes."""
        return float(self.returns.std())

    def __str__(self) -> str:
        cut, count = int(self.was_cut.sum()), len(self.returns)
        note = f"; {cut} of them cut off after {self.max_steps} steps" if cut else ""
        span = f"from {self.returns.min():.1f} to {self.returns.max():.1f} over {count} episodes"
        return f"mean return {self.mean:.1f}, std {self.std:.1f}, {span}{note}"


@contextmanager
def opened(given: Any, is_in_use: bool, num_episodes: int) -> Iterator[list[Any]]:
    """Environments to play in: of that name, a copy of one in use, or the given one."""
    whole_number("num_episodes", num_episodes, 1, "It is the number of episodes.")
    if isinstance(given, str):
        envs = [make_env(given) for _ in range(min(num_episodes, SIDE_BY_SIDE))]
    elif isinstance(check_env(given), gymnasium.vector.VectorEnv):
        raise ValueError("evaluate plays in single environments: give env=, a name or one of them.")
    else:
        try:
            envs = [copy.deepcopy(given) if is_in_use else given]
        except Exception as error:
            raise ValueError(
                f"the environment cannot be copied ({error}), and the agent's own is in the middle "
                "of an episode: give env=, another environment to play in."
            ) from error
    try:
        yield envs
    finally:
        for env in envs:
            if env is not given:
                env.close()


def limit_of(env: Any, max_steps: int | None) -> int | None:
    """Steps to cut episodes off at: what was given, None for a time limit, else MAX_STEPS."""
    if max_steps is not None:
        return whole_number("max_steps", max_steps, 1, "It is the most steps of an episode.")
    return None if getattr(getattr(env, "spec", None), "max_episode_steps", None) else MAX_STEPS


def run(
    agent: Any, envs: Sequence[Any], num_episodes: int, seed: int | None, max_steps: int | None,
    *, has_frames: bool = False,
) -> list[Episode]:  # fmt: skip
    """Episodes of anything with Stable-Baselines3's `predict`, side by side in these environments.

    Args:
      envs: gymnasium environments of one kind. With one the episodes come one after another.
      seed: of all episodes; each begins with one of its own that follows from it.
      max_steps: episodes are cut off then; None where they end by themselves.
      has_frames: keep what `env.render()` shows; the environment needs render_mode="rgb_array".
    """
    whole_number("num_episodes", num_episodes, 1, "It is the number of episodes.")
    done: list[Episode] = []
    seeds = [int(each) for each in np.random.SeedSequence(seed).generate_state(num_episodes)]
    while len(done) < num_episodes:
        some = seeds[len(done) : len(done) + len(envs)]
        done += _side_by_side(agent, envs[: len(some)], some, max_steps, has_frames)
    return done


def _side_by_side(
    agent: Any, envs: Sequence[Any], seeds: Sequence[int], max_steps: int | None, has_frames: bool
) -> list[Episode]:
    """One episode in each. Those that are over are still asked about: batches keep their shape."""
    obs = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
    # As copies: an environment may give the same array again and again.
    seen = [[np.array(each)] for each in obs]
    frames = [[env.render()] if has_frames else [] for env in envs]
    totals, (terminated, is_over) = np.zeros(len(envs)), np.zeros((2, len(envs)), bool)
    steps = 0
    while not is_over.all() and steps != max_steps:
        actions, _ = agent.predict(np.stack(obs), deterministic=True)
        steps += 1
        for i in np.flatnonzero(~is_over).tolist():
            obs[i], reward, terminated[i], truncated, _ = envs[i].step(actions[i])
            seen[i].append(np.array(obs[i]))
            totals[i] += float(reward)
            is_over[i] = terminated[i] or truncated
            if has_frames:
                frames[i].append(envs[i].render())
    paths = [np.array(path) for path in seen]
    rows = zip(
        totals.tolist(), paths, frames, terminated.tolist(), (~is_over).tolist(), strict=True
    )
    return [Episode(*row) for row in rows]
