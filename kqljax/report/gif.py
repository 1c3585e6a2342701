"""Episodes as animated GIFs. Needs the extra `render`: pygame for gymnasium, and pillow."""

from __future__ import annotations

import importlib.util
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from kqljax._checks import whole_number
from kqljax.agent import episodes
from kqljax.agent.spaces import check_env, make_env
from kqljax.io import replace_file


def save_episode(
    agent: Any,
    path: str | os.PathLike[str],
    *,
    env: Any = None,
    seed: int | None = None,
    max_steps: int | None = None,
    width: int = 320,
    every: int = 2,
) -> episodes.Episode:
    """Runs one episode of the agent without learning and writes it as a GIF; returns it.

    Args:
      env: name, or an environment with render_mode="rgb_array"; by default that of the agent's
        name.
      seed: of the episode.
      max_steps: the episode is cut off then; as in `KQL.evaluate`.
      width: of the picture, in pixels.
      every: keeps each n-th frame, and the last.
    """
    _require_pillow()
    env = open_for_pictures(env or agent.env_name)
    seed, limit = agent.evaluation_seed if seed is None else seed, episodes.limit_of(env, max_steps)
    try:
        with _no_screen_or_sound():
            (episode,) = episodes.run(agent, [env], 1, seed, limit, has_frames=True)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ImportError(
            f"to draw this environment: pip install 'kqljax[render]'. ({error})"
        ) from error
    fps = env.metadata.get("render_fps") or 30
    save_gif(episode.frames, path, fps=fps, width=width, every=every)
    return episode


def open_for_pictures(env: Any) -> Any:
    """An environment that draws into arrays."""
    if env is None:
        raise ValueError("which environment? The agent learned in one without a name: give env=.")
    if isinstance(env, str):
        modes = make_env(env).metadata.get("render_modes") or ()
        if "rgb_array" not in modes:
            raise ValueError(
                f"{env} cannot be drawn: its render modes are {list(modes)}, and pictures need "
                "'rgb_array'."
            )
        return gymnasium.make(env, render_mode="rgb_array")
    env = check_env(env)
    if env.render_mode != "rgb_array":
        raise ValueError(
            f"the environment has render_mode={env.render_mode!r}: make it with "
            "gymnasium.make(name, render_mode='rgb_array')."
        )
    return env


def save_gif(
    frames: Sequence[np.ndarray],
    path: str | os.PathLike[str],
    *,
    fps: float,
    width: int,
    every: int = 1,
) -> None:
    """Writes images `[height, width, 3]` uint8 as a GIF in real time, repeated for ever."""
    _require_pillow()
    from PIL import Image

    whole_number("width", width, 1, "It is the width of the picture in pixels.")
    whole_number("every", every, 1, "1 keeps every frame.")
    kept = [*frames[:-1:every], frames[-1]]
    size = width, max(1, round(kept[0].shape[0] * width / kept[0].shape[1]))
    images = [
        Image.fromarray(frame).resize(size, Image.Resampling.LANCZOS).convert("P", dither=0)
        for frame in kept
    ]
    # Viewers take pauses of under 20 ms for 100 ms. The last frame stays a second.
    pauses = [max(20, round(1000 * every / fps))] * (len(images) - 1) + [1000]
    data = io.BytesIO()
    more = {"append_images": images[1:], "duration": pauses, "loop": 0, "optimize": True}
    images[0].save(data, "GIF", save_all=True, **more)
    replace_file(Path(path), lambda file: file.write(data.getvalue()))


def _require_pillow() -> None:
    if importlib.util.find_spec("PIL") is None:
        raise ImportError("GIFs need pillow: pip install 'kqljax[render]'.")


@contextmanager
def _no_screen_or_sound() -> Iterator[None]:
    """pygame looks for both, and complains where there is none; these pictures need neither."""
    wanted = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
    wanted["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
