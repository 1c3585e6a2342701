"""The report of one agent that `kqljax train` saved."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from html import escape
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from kqljax.agent import KQL, episodes
from kqljax.features import FeatureMap
from kqljax.report import gif, maps, page, records, style
from kqljax.rounds import DEFAULT, Recipe


def make_agent_page(agent: KQL, axes: tuple[int, int] = (0, 1), num_episodes: int = 20) -> str:
    """The page of an agent: what it returns, what it believes, what it is made of.

    Args:
      axes: entries of the observation that the maps are drawn over.
      num_episodes: for the evaluation.
    """
    found = agent.evaluate(num_episodes)
    name = agent.env_name or type(agent.env.unwrapped).__name__
    lead = (
        f"<p>{agent.num_timesteps} steps of learning, {len(agent.episode_returns)} episodes ended. Then, without learning: "
        f"{found}.</p>"
    )
    sections = [page.Section("learning", "Learning", _learning(agent))]
    # States that are names, one-hot vectors to the agent, have no axes.
    if isinstance(agent.env.observation_space, gymnasium.spaces.Box) and len(agent.obs_bounds[0]) > 1:
        (episode,) = episodes.run(agent, [agent.env], 1, agent.evaluation_seed, found.max_steps)
        draw = functools.partial(maps.draw_maps, agent, axes, episode=episode)
        words = "What the agent believes over two entries of the state, with one of its episodes."
        sections.append(page.Section("maps", "Value, spread and policy", page.drawn(draw, "Maps of the agent", words, 3)))
    film = _film(agent)
    if film:
        sections.append(page.Section("episode", "An episode", film))
    sections.append(page.Section("settings", "Settings", _settings(agent)))
    data = {"env": name, "steps": agent.num_timesteps, "seed": agent.seed, "training_episodes": agent.episode_returns}
    return page.make_page(f"KQL in {name}", lead, sections, {**data, "evaluation": found.returns.tolist()})


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


def _film(agent: KQL) -> str:
    """An episode as a GIF, where the environment can be drawn."""
    if agent.env_name is None:
        return ""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "episode.gif"
        try:
            episode = gif.save_episode(agent, path)
        except (ImportError, ValueError):  # no package to draw with, or nothing to draw
            return ""
        words = f"{len(episode.obs) - 1} steps, return {episode.total:.1f}."
        return page.picture(path.read_bytes(), "An episode of the agent", words, kind="gif", css="small")


def _settings(agent: KQL) -> str:
    recipe, (low, high) = agent.recipe, agent.obs_bounds
    numbers = {field.name: _number(getattr(recipe, field.name)) for field in dataclasses.fields(recipe)}
    rows: dict[str, Any] = {}
    more = ""
    if isinstance(recipe, Recipe):
        changed = [f"{name} = {text}" for name, text in numbers.items() if text != _number(getattr(DEFAULT, name))]
        rows["learner"] = "rounds"
        rows["recipe"] = ", but ".join(["kqljax.rounds.DEFAULT", *([", ".join(changed)] if changed else [])])
        more = f"<details><summary>All {len(numbers)} numbers of the recipe</summary>{page.pairs(numbers)}</details>"
    else:
        rows |= {"learner": "Algorithm 1", **numbers}
    rows["seed"] = agent.seed
    rows["transitions"] = f"{agent.num_timesteps}, {len(agent.history['reward'])} of them kept"
    rows["observations"] = f"{np.array2string(low, precision=4)} to {np.array2string(high, precision=4)}"
    rows["rewards"] = f"{agent.reward_range[0]:g} to {agent.reward_range[1]:g}"
    rows |= {f"version of {name}": value for name, value in records.versions().items()}
    again = ""
    if agent.env_name:
        again = f"<p>Look at it from Python:</p><pre><code>{escape('agent = kqljax.KQL.load(path)')}</code></pre>"
    return page.pairs(rows) + more + again


def _number(value: Any) -> str:
    """A number of a recipe or config in words; a file gives numbers back as arrays."""
    if isinstance(value, FeatureMap):
        return f"{type(value).__name__}, {value.num_weights} weights"
    if isinstance(value, (int, float, tuple, np.ndarray, np.generic)) and not isinstance(value, bool):
        return ", ".join(f"{each:.6g}" for each in np.ravel(value))
    return "none" if value is None else str(value)
