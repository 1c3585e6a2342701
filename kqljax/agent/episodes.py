"""Episodes of a policy without learning: for evaluation and for pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kqljax.checks import whole_number

MAX_STEPS = 1000
"""Steps after which an episode is cut off, where the environment has no time limit of its own."""


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

    @property
    def mean(self) -> float:
        """Of the returns."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Of the returns, over episodes."""
        return float(self.returns.std())

    def __str__(self) -> str:
        cut = int(self.was_cut.sum())
        note = f"; {cut} of them cut off after {self.max_steps} steps" if cut else ""
        span = f"from {self.returns.min():.1f} to {self.returns.max():.1f} over {len(self.returns)} episodes"
        return f"mean return {self.mean:.1f}, std {self.std:.1f}, {span}{note}"


def limit_of(env: Any, max_steps: int | None) -> int | None:
    """Steps after which to cut episodes off: what was given, None for an environment with a time limit, else MAX_STEPS."""
    if max_steps is not None:
        return whole_number("max_steps", max_steps, 1, "It is the number of steps that an episode may last.")
    return None if getattr(getattr(env, "spec", None), "max_episode_steps", None) else MAX_STEPS


def run(
    agent: Any, envs: Sequence[Any], num_episodes: int, seed: int | None, max_steps: int | None, *, has_frames: bool = False
) -> list[Episode]:
    """Episodes of anything with Stable-Baselines3's `predict`, side by side in as many environments as there are.

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
        some = envs[: num_episodes - len(done)]
        done += _side_by_side(agent, some, seeds[len(done) : len(done) + len(some)], max_steps, has_frames)
    return done


def _side_by_side(
    agent: Any, envs: Sequence[Any], seeds: Sequence[int], max_steps: int | None, has_frames: bool
) -> list[Episode]:
    """One episode in each environment. Those that are over go on being asked about, so that batches keep their shape."""
    obs = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
    # As copies: an environment may give the same array again and again.
    seen, frames = [[np.array(each)] for each in obs], [[env.render()] if has_frames else [] for env in envs]
    totals, terminated, is_over = np.zeros(len(envs)), np.zeros(len(envs), bool), np.zeros(len(envs), bool)
    was_cut = np.zeros(len(envs), bool)
    steps = 0
    while not is_over.all():
        actions, _ = agent.predict(np.stack(obs), deterministic=True)
        steps += 1
        for i in np.flatnonzero(~is_over).tolist():
            obs[i], reward, terminated[i], truncated, _ = envs[i].step(actions[i])
            seen[i].append(np.array(obs[i]))
            totals[i] += float(reward)
            is_over[i] = terminated[i] or truncated
            if has_frames:
                frames[i].append(envs[i].render())
        if steps == max_steps:
            was_cut = ~is_over
            break
    rows = zip(totals, seen, frames, terminated, was_cut, strict=True)
    return [Episode(float(total), np.array(path), film, bool(end), bool(cut)) for total, path, film, end, cut in rows]
