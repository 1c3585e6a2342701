"""The report of one agent that `kqljax train` saved."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import tempfile
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from kqljax.agent import KQL, episodes
from kqljax.agent.spaces import open_env
from kqljax.report import gif, maps, page, records, spectra, style


def make_agent_page(agent: KQL, axes: tuple[int, int] = (0, 1), num_episodes: int = 20) -> str:
    """The page of an agent: what it returns, what it believes, how large its data are.

    Args:
      axes: entries of the observation that the maps are drawn over.
      num_episodes: for the evaluation.
    """
    env = open_env(agent.env_name or agent.env)
    played = list(episodes.run(agent, env, num_episodes, agent.seed + 1_000_003))
    returns = np.array([episode.total for episode in played])
    name = agent.env_name or type(env.unwrapped).__name__
    lead = (
        f"<p>{agent.num_timesteps} steps of learning, {len(agent.episode_returns)} episodes ended. Then, without learning: "
        f"mean return {returns.mean():.1f}, from {returns.min():.1f} to {returns.max():.1f} over {len(returns)} episodes.</p>"
    )
    sections = [page.Section("learning", "Learning", _learning(agent))]
    if len(agent.obs_bounds[0]) > 1:
        draw = functools.partial(maps.draw_maps, agent, axes, episode=played[0])
        words = "What the agent believes over two entries of the state, with one of its episodes."
        sections.append(page.Section("maps", "Value, width and policy", page.drawn(draw, "Maps of the agent", words, 3)))
    if agent.config.features is None:
        sections.append(page.Section("dimensions", "How large the data are", _dimensions(agent)))
    film = _film(agent)
    if film:
        sections.append(page.Section("episode", "An episode", film))
    sections.append(page.Section("settings", "Settings", _settings(agent)))
    data = {"env": name, "steps": agent.num_timesteps, "seed": agent.seed, "training_episodes": agent.episode_returns}
    return page.make_page(f"KQL in {name}", lead, sections, {**data, "evaluation": returns.tolist()})


def _learning(agent: KQL) -> str:
    if not agent.episode_returns:
        return "<p>No episode has ended while learning.</p>"
    ends = np.cumsum(agent.episode_lengths)
    figure, (panel,) = style.panels(1, 6.4, 3.0, share_y=False)
    panel.plot(ends, agent.episode_returns, marker="o", ms=5, lw=1.6, color="#0072B2")
    panel.set_xlabel("steps in the episodes that ended", fontsize=9, color=style.INK)
    panel.set_ylabel("return of the episode", fontsize=9, color=style.INK)
    panel.grid(axis="y", color="#E8E8E8", lw=0.7)
    words = "Returns of the episodes while learning: the agent explores, so its policy may be better than they are."
    return page.picture(style.png(figure), "Return of each episode while learning", words, css="small")


def _dimensions(agent: KQL) -> str:
    over_time = functools.partial(spectra.draw_dimensions, agent.config, agent.state)
    return page.drawn(
        over_time, "Effective and pseudo dimension over time", "A curve that flattens: little is new to the kernel.", 2
    ) + page.picture(
        style.png(spectra.draw_spectrum(agent.config, agent.state)),
        "Eigenvalues of the Gram matrix",
        "Eigenvalues above λ are what the regression can tell apart.",
        css="small",
    )


def _film(agent: KQL) -> str:
    """An episode as a GIF, where the environment can be drawn."""
    if agent.env_name is None or importlib.util.find_spec("pygame") is None:
        return ""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "episode.gif"
        episode = gif.save_episode(agent, path)
        words = f"{len(episode.obs) - 1} steps, return {episode.total:.1f}."
        return page.picture(path.read_bytes(), "An episode of the agent", words, kind="gif", css="small")


def _settings(agent: KQL) -> str:
    cfg = agent.config
    rows: dict[str, Any] = {"kernel": cfg.kernel}
    for field in dataclasses.fields(cfg):
        if field.name not in ("kernel", "features"):
            rows[field.name] = getattr(cfg, field.name)
    rows["engine"] = "exact" if cfg.features is None else f"{type(cfg.features).__name__}, {cfg.features.num_weights} weights"
    rows["seed"] = agent.seed
    low, high = agent.obs_bounds
    rows["observations"] = f"{np.array2string(low, precision=4)} to {np.array2string(high, precision=4)}"
    rows["rewards"] = f"{agent.reward_range[0]:g} to {agent.reward_range[1]:g}"
    rows |= {f"version of {name}": value for name, value in records.versions().items()}
    again = ""
    if agent.env_name:
        again = f"<p>Look at it from Python:</p><pre><code>{escape('agent = kqljax.KQL.load(path)')}</code></pre>"
    return page.pairs(rows) + again
