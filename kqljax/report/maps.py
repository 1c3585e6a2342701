"""Maps of an agent over two entries of the observation: value, spread and policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kqljax._checks import whole_number
from kqljax.agent import KQL
from kqljax.agent.episodes import Episode
from kqljax.config import KQLConfig
from kqljax.report.style import INK, finish, label, line, panels

_CART = "position", "velocity", "angle", "angular velocity"
NAMES = {
    "MountainCar-v0": (("position", "velocity"), ("left", "none", "right")),
    "CartPole-v0": (_CART, ("left", "right")),
    "CartPole-v1": (_CART, ("left", "right")),
    "Acrobot-v1": (
        ("cos 1", "sin 1", "cos 2", "sin 2", "velocity 1", "velocity 2"),
        ("-1", "0", "+1"),
    ),
    "Pendulum-v1": (("cos", "sin", "angular velocity"), ("-2", "0", "+2")),
}
"""Environment -> names of the entries of its observations, and of its actions."""

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

    The value is that of the best action: the mean over the ensemble, or for Algorithm 1 the
    optimistic value. The spread is that of this action: the standard deviation over the ensemble,
    or the width of the confidence interval. The policy is that of `predict`. Dots are the states
    that the agent has learned from, as far as they are kept.

    Args:
      axes: which entries of the observation.
      at: `[l]` values of the other entries, by default the median of the states learned from.
      episode: drawn as a line, from a ring to a cross.
      points: of the grid, on each side.
      columns: panels in a row.
    """
    seen = agent.history["obs"]
    low, high = agent.obs_bounds
    size = len(low)
    for axis in axes:
        whole_number("axes", axis, 0, "They are indices of the observation.")
    across, up = axes
    if across == up or max(axes) >= size:
        raise ValueError(
            f"axes must be two different indices below {size}, the length of an observation, "
            f"got {axes}."
        )
    if not len(seen):
        raise ValueError("the agent has learned nothing yet: call learn first.")
    fixed = np.median(seen, axis=0) if at is None else np.asarray(at, np.float64)
    if fixed.shape != (size,):
        raise ValueError(
            f"at must have one number for each of the {size} entries of an observation, got shape "
            f"{fixed.shape}."
        )
    x, y = (np.linspace(low[axis], high[axis], points) for axis in axes)
    grid = np.broadcast_to(fixed, (points, points, size)).copy()
    grid[..., across], grid[..., up] = np.meshgrid(x, y)
    grid = grid.reshape(-1, size)
    values, spread = agent.q_values(grid), agent.beliefs(grid).spread
    if isinstance(agent.recipe, KQLConfig):
        titles = "value: max Q̃", "spread: width of the best action"
    else:
        titles = "value: mean of the ensemble", "spread: standard deviation over it"
    best = values.argmax(axis=1)[:, None]

    figure, cells = panels(3, 4.2, 3.4, share_y=True, columns=columns)
    for panel, numbers, title, cmap in zip(
        cells, (values, spread), titles, ("viridis", "magma"), strict=False
    ):
        shown = np.take_along_axis(numbers, best, axis=1).reshape(points, points)
        image = panel.pcolormesh(x, y, shown, shading="auto", cmap=cmap, rasterized=True)
        bar = figure.colorbar(image, ax=panel, pad=0.02)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=8, colors=INK)
        label(panel, title)
    count = len(agent.actions)
    colours = list(_THREE) if count == 3 else [_ACTIONS[i % len(_ACTIONS)] for i in range(count)]
    _draw_policy(cells[2], x, y, agent.choose(grid).reshape(points, points), colours)
    names, actions = _names(agent)
    marks = [line("states learned from", marker="o", ms=3, ls="none", color="#666666")]
    for name, colour in zip(actions, colours, strict=True):
        marks.append(line(name, marker="s", ms=8, ls="none", color=colour))
    for panel in cells:
        dots = "#FFFFFF" if panel is cells[0] else "#666666"
        panel.scatter(seen[:, across], seen[:, up], s=2.5, color=dots, linewidths=0)
        if episode is not None:
            _draw_path(panel, episode.obs[:, axes], episode.terminated)
        y_name = names[up] if columns == 1 or panel is cells[0] else ""
        label(panel, x=names[across], y=y_name)
        panel.set(xlim=(low[across], high[across]), ylim=(low[up], high[up]))
    if episode is not None:
        words = f"an episode of {len(episode.obs) - 1} steps, from ring to cross"
        marks.append(line(words, lw=1.6, color=INK))
    others = [f"{names[i]} = {fixed[i]:.3g}" for i in range(size) if i not in axes]
    note = "; ".join([f"{agent.num_timesteps} steps of learning", ", ".join(others)])
    return finish(figure, marks, note.removesuffix("; "))


def _names(agent: KQL) -> tuple[Sequence[str], Sequence[str]]:
    spec = getattr(agent.env, "spec", None)
    names, actions = NAMES.get(str(agent.env_name or getattr(spec, "id", "")), ((), ()))
    size, count = len(agent.obs_bounds[0]), len(agent.actions)
    if len(names) != size:
        names = tuple(f"observation[{i}]" for i in range(size))
    if len(actions) != count:
        actions = tuple(np.array2string(value, precision=3) for value in agent.actions)
    return names, [f"action {name}" for name in actions]


def _draw_policy(panel: Any, x: Any, y: Any, best: np.ndarray, colours: list[str]) -> None:
    from matplotlib.colors import BoundaryNorm, ListedColormap

    colours = colours if len(colours) > 1 else colours * 2
    norm = BoundaryNorm(np.arange(len(colours) + 1) - 0.5, len(colours))
    style = {"shading": "auto", "cmap": ListedColormap(colours), "norm": norm}
    panel.pcolormesh(x, y, best, rasterized=True, **style)
    label(panel, "policy")


def _draw_path(panel: Any, path: np.ndarray, has_end: bool) -> None:
    x, y = path.T
    # White below black, to be seen on any colour.
    panel.plot(x, y, color="white", lw=3.2)
    panel.plot(x, y, color=INK, lw=1.4)
    panel.plot(x[0], y[0], marker="o", ms=7, mfc="white", mec=INK, mew=1.4)
    end = {"marker": "X", "mec": "white"} if has_end else {"marker": "x", "mec": INK}
    panel.plot(x[-1], y[-1], ms=9, mfc=INK, mew=1.0, **end)
