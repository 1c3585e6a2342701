"""Maps of what an agent believes over two axes of the state: value, spread and policy, with a trajectory on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kqljax.agent import KQL
from kqljax.agent.episodes import Episode
from kqljax.checks import whole_number
from kqljax.config import KQLConfig
from kqljax.report.style import INK, finish, line, panels

NAMES = {
    "MountainCar-v0": (("position", "velocity"), ("left", "none", "right")),
    "CartPole-v0": (("position", "velocity", "angle", "angular velocity"), ("left", "right")),
    "CartPole-v1": (("position", "velocity", "angle", "angular velocity"), ("left", "right")),
    "Acrobot-v1": (("cos 1", "sin 1", "cos 2", "sin 2", "velocity 1", "velocity 2"), ("-1", "0", "+1")),
    "Pendulum-v1": (("cos", "sin", "angular velocity"), ("-2", "0", "+2")),
}
"""Environment -> what its observations and actions are called."""

# Okabe and Ito's palette, which colour-blind readers can tell apart.
_ACTIONS = ("#4C9CC9", "#E1834C", "#4DB99A", "#DB9FC0", "#EEBC4D", "#88CCEE", "#F5EC7F", "#999999")
_THREE = ("#4C9CC9", "#CCCCCC", "#E1834C")  # the middle one mostly does nothing


def draw_maps(
    agent: KQL,
    axes: tuple[int, int] = (0, 1),
    *,
    at: Sequence[float] | None = None,
    episode: Episode | None = None,
    points: int = 80,
    columns: int = 3,
) -> Any:
    """A matplotlib figure with three panels over two entries of the observation.

    The value is that of the best action: the mean over the ensemble, or for Algorithm 1 the optimistic value. The spread is
    that of this action: how far the members are apart, or the width of the confidence interval. The policy is that of
    `predict`. Dots are the states the agent has learned from, as far as they are kept.

    Args:
      axes: which entries of the observation.
      at: `[l]` what the other entries are held at, by default the median of the states the agent has been in.
      episode: drawn as a line, from a ring to a cross.
      points: of the grid, on each side.
      columns: panels in a row.
    """
    seen = agent.history["obs"]
    low, high = agent.obs_bounds
    size = len(low)
    across, up = (whole_number("axes", axis, 0, "They are indices of the observation.") for axis in axes)
    if across == up or max(across, up) >= size:
        raise ValueError(f"axes must be two different indices below {size}, the length of an observation, got {axes}.")
    if not len(seen):
        raise ValueError("the agent has learned nothing yet: call learn first.")
    fixed = np.median(seen, axis=0) if at is None else np.asarray(at, np.float64)
    if fixed.shape != (size,):
        raise ValueError(f"at must have one number for each of the {size} entries of an observation, got shape {fixed.shape}.")
    x, y = (np.linspace(low[axis], high[axis], points) for axis in (across, up))
    grid = np.broadcast_to(fixed, (points, points, size)).copy()
    grid[..., across], grid[..., up] = np.meshgrid(x, y)
    believed = agent.beliefs(grid.reshape(-1, size))
    if isinstance(agent.recipe, KQLConfig):
        values, titles = believed.optimistic, ("value: max Q̃", "spread: width of the best action")
    else:
        values, titles = believed.mean, ("value: mean of the ensemble", "spread: how far its members differ")
    best = values.argmax(axis=1)
    rows = np.arange(len(best))
    shape = points, points

    figure, cells = panels(3, 4.2, 3.4, share_y=True, columns=columns)
    names, actions = _names(agent)
    marks = [line("states learned from", marker="o", ms=3, ls="none", color="#666666")]
    shown = (values[rows, best], believed.spread[rows, best])
    for panel, cell_values, title, colours in zip(cells, shown, titles, ("viridis", "magma"), strict=False):
        image = panel.pcolormesh(x, y, cell_values.reshape(shape), shading="auto", cmap=colours, rasterized=True)
        bar = figure.colorbar(image, ax=panel, pad=0.02)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=8, colors=INK)
        panel.set_title(title, loc="left", fontsize=10.5, color=INK)
    _draw_policy(cells[2], x, y, agent.choose(grid.reshape(-1, size)).reshape(shape), len(agent.actions))
    cells[2].set_title("policy", loc="left", fontsize=10.5, color=INK)
    for name, colour in zip(actions, _colours(len(actions)), strict=True):
        marks.append(line(name, marker="s", ms=8, ls="none", color=colour))
    for panel in cells:
        panel.scatter(seen[:, across], seen[:, up], s=2.5, color="#FFFFFF" if panel is cells[0] else "#666666", linewidths=0)
        panel.set_xlabel(names[across], fontsize=9, color=INK)
        panel.set_xlim(low[across], high[across])
        panel.set_ylim(low[up], high[up])
        if episode is not None:
            _draw_path(panel, episode.obs[:, across], episode.obs[:, up], episode.terminated)
    for panel in cells if columns == 1 else cells[:1]:
        panel.set_ylabel(names[up], fontsize=9, color=INK)
    if episode is not None:
        marks.append(line(f"an episode of {len(episode.obs) - 1} steps, from ring to cross", lw=1.6, color=INK))
    others = [f"{names[i]} = {fixed[i]:.3g}" for i in range(size) if i not in (across, up)]
    note = f"{agent.num_timesteps} steps of learning" + (f"; {', '.join(others)}" if others else "")
    return finish(figure, marks, note)


def _names(agent: KQL) -> tuple[Sequence[str], Sequence[str]]:
    spec = getattr(agent.env, "spec", None)
    names, actions = NAMES.get(str(agent.env_name or getattr(spec, "id", "")), ((), ()))
    size, count = len(agent.obs_bounds[0]), len(agent.actions)
    own = [f"action {np.array2string(value, precision=3)}" for value in agent.actions]
    return (
        names if len(names) == size else [f"observation[{i}]" for i in range(size)],
        [f"action {name}" for name in actions] if len(actions) == count else own,
    )


def _draw_policy(panel: Any, x: np.ndarray, y: np.ndarray, best: np.ndarray, count: int) -> None:
    from matplotlib.colors import BoundaryNorm, ListedColormap

    colours = ListedColormap(_colours(max(count, 2)))
    norm = BoundaryNorm(np.arange(max(count, 2) + 1) - 0.5, colours.N)
    panel.pcolormesh(x, y, best, shading="auto", cmap=colours, norm=norm, rasterized=True)


def _colours(count: int) -> list[str]:
    return list(_THREE) if count == 3 else [_ACTIONS[i % len(_ACTIONS)] for i in range(count)]


def _draw_path(panel: Any, x: np.ndarray, y: np.ndarray, has_end: bool) -> None:
    # White below black, to be seen on any colour.
    panel.plot(x, y, color="white", lw=3.2)
    panel.plot(x, y, color=INK, lw=1.4)
    panel.plot(x[0], y[0], marker="o", ms=7, mfc="white", mec=INK, mew=1.4)
    panel.plot(x[-1], y[-1], marker="X" if has_end else "x", ms=9, mfc=INK, mec="white" if has_end else INK, mew=1.0)
