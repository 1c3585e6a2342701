"""Episodes of a policy without learning: for evaluation and for pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from kqljax.checks import whole_number


class Episode(NamedTuple):
    """One episode.

    Attributes:
      total: undiscounted return.
      obs: `[N + 1, ...]` raw observations, from the first to the last successor.
      frames: `[N + 1]` rendered images `[height, width, 3]` uint8, or none.
      terminated: bool, the task ended; False where a time limit was reached.
    """

    total: float
    obs: np.ndarray
    frames: list[np.ndarray]
    terminated: bool


def run(agent: Any, env: Any, num_episodes: int, seed: int | None = None, *, has_frames: bool = False) -> Iterator[Episode]:
    """Episodes one after another, of anything with Stable-Baselines3's `predict`.

    Args:
      seed: of the first reset; the later ones follow from it.
      has_frames: keep what `env.render()` shows; the environment needs render_mode="rgb_array".
    """
    whole_number("num_episodes", num_episodes, 1, "It is the number of episodes.")
    for number in range(num_episodes):
        obs, _ = env.reset(seed=seed if number == 0 else None)
        seen, frames, total = [obs], [env.render()] if has_frames else [], 0.0
        terminated = truncated = False
        while not (terminated or truncated):
            action, _ = agent.predict(obs, deterministic=True)
            obs, reward, terminated, truncated, _ = env.step(action)
            seen.append(obs)
            total += float(reward)
            if has_frames:
                frames.append(env.render())
        yield Episode(total, np.array(seen), frames, bool(terminated))
