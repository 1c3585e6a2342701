"""One HTML page of an agent, complete in itself: pictures and data are inside, and no script is.

Light or dark as the reader's system is. On a narrow screen figures come in one column.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import platform
import tempfile
from collections.abc import Callable
from html import escape
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import kqljax
from kqljax.agent import KQL, episodes
from kqljax.features import FeatureMap
from kqljax.report import gif, maps, style
from kqljax.rounds import DEFAULT, Recipe


def make_agent_page(agent: KQL, axes: tuple[int, int] = (0, 1), num_episodes: int = 20) -> str:
    """The page of an agent: its returns, value and policy maps, an episode, its numbers.

    Args:
      axes: entries of the observation that the maps are drawn over.
      num_episodes: for the evaluation.
    """
    found = agent.evaluate(num_episodes)
    name = agent.env_name or type(agent.env.unwrapped).__name__
    sections = {"learning": ("Learning", _learning(agent))}
    # Discrete observations, one-hot vectors to the agent, have no axes.
    is_box = isinstance(agent.env.observation_space, gymnasium.spaces.Box)
    if is_box and len(agent.obs_bounds[0]) > 1:
        seed, limit = agent.evaluation_seed, found.max_steps
        (episode,) = episodes.run(agent, [agent.env], 1, seed, limit)
        draw = functools.partial(maps.draw_maps, agent, axes, episode=episode)
        words = "Value and policy over two entries of the observation, with one episode."
        sections["maps"] = "Value, spread and policy", _drawn(draw, "Maps of the agent", words)
    film = _film(agent)
    if film:
        sections["episode"] = "An episode", film
    sections["settings"] = "Settings", _settings(agent)
    data = {
        "env": name,
        "steps": agent.num_timesteps,
        "seed": agent.seed,
        "training_episodes": agent.episode_returns,
        "evaluation": found.returns.tolist(),
    }
    lead = (
        f"{agent.num_timesteps} steps of learning, {len(agent.episode_returns)} episodes ended. "
        f"Then, without learning: {found}."
    )
    return _page(f"KQL in {name}", lead, sections, data)


def _learning(agent: KQL) -> str:
    if not agent.episode_returns:
        return "<p>No episode has ended while learning.</p>"
    figure, (panel,) = style.panels(1, 6.4, 3.0, share_y=False)
    ends = np.cumsum(agent.episode_lengths)
    panel.plot(ends, agent.episode_returns, marker="o", ms=5, lw=1.6, color="#0072B2")
    style.label(panel, x="steps at the end of the episode", y="return of the episode")
    panel.grid(axis="y", color=style.RULE, lw=0.7)
    words = "Returns while learning. The agent explores: its policy may be better than they are."
    return _picture("Return of each episode while learning", words, style.png(figure), "small")


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
        return _picture("An episode of the agent", words, path.read_bytes(), "small", "gif")


def _settings(agent: KQL) -> str:
    recipe, (low, high) = agent.recipe, agent.obs_bounds
    fields = [field.name for field in dataclasses.fields(recipe)]
    numbers = {name: _number(getattr(recipe, name)) for name in fields}
    if isinstance(recipe, Recipe):
        others = [name for name in fields if numbers[name] != _number(getattr(DEFAULT, name))]
        changed = ", ".join(f"{name} = {numbers[name]}" for name in others)
        words = "kqljax.rounds.DEFAULT" + (f", but {changed}" if changed else "")
        rows: dict[str, Any] = {"learner": "rounds", "recipe": words}
        summary = f"All {len(numbers)} numbers of the recipe"
        more = f"<details><summary>{summary}</summary>{_table(numbers)}</details>"
    else:
        rows, more = {"learner": "Algorithm 1", **numbers}, ""
    kept = len(agent.history["reward"])
    sides = [np.array2string(each, precision=4) for each in (low, high)]
    rows |= {
        "seed": agent.seed,
        "transitions": f"{agent.num_timesteps}, {kept} of them kept",
        "observations": " to ".join(sides),
        "rewards": "{:g} to {:g}".format(*agent.reward_range),
        "version of python": platform.python_version(),
        "version of kqljax": kqljax.__version__,
    }
    for package in ("jax", "jaxlib", "numpy", "gymnasium"):
        rows[f"version of {package}"] = metadata.version(package)
    again = "<p>Load it in Python:</p><pre><code>agent = kqljax.KQL.load(path)</code></pre>"
    return _table(rows) + more + (again if agent.env_name else "")


def _number(value: Any) -> str:
    """A number of a recipe or config in words; a file gives numbers back as arrays."""
    if isinstance(value, FeatureMap):
        return f"{type(value).__name__}, {value.num_weights} weights"
    is_number = isinstance(value, (int, float, tuple, np.ndarray, np.generic))
    if is_number and not isinstance(value, bool):
        return ", ".join(f"{each:.6g}" for each in np.ravel(value))
    return "none" if value is None else str(value)


# HTML --------------------------------------------------------------------------------------------

# Nothing may be fetched: opening the page tells no one.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

_STYLE = """
:root { color-scheme: light dark; --paper: #fbfbfa; --card: #fff; --ink: #1c1c1c;
  --quiet: #5f6368; --line: #ddd; --accent: #0b63a5; }
@media (prefers-color-scheme: dark) { :root { --paper: #15171a; --card: #1e2125; --ink: #e8e8e6;
  --quiet: #a2a7ad; --line: #363b41; --accent: #7ab8ea; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 2.5rem 1.5rem; background: var(--paper);
  color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .75rem; }
p, figcaption { max-width: 46rem; }
a, summary { color: var(--accent); }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; }
.card, pre, figure img { border: 1px solid var(--line); border-radius: 8px; }
.card, pre { overflow-x: auto; background: var(--card); }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
td { padding: .5rem .85rem; overflow-wrap: anywhere; border-bottom: 1px solid var(--line); }
td:first-child { color: var(--quiet); white-space: nowrap; width: 16rem; }
tr:last-child > * { border-bottom: 0; }
figure { margin: 0 0 1.5rem; }
figure img { width: 100%; height: auto; display: block; background: #fff; }
figure.small img { max-width: 34rem; }
figcaption, footer { color: var(--quiet); font-size: .9rem; margin-top: .4rem; }
pre { padding: .85rem 1rem; font: .88rem/1.5 ui-monospace, monospace; }
details { margin: 1rem 0; }
footer { margin-top: 2.5rem; }
@media (max-width: 40rem) { body { font-size: 15px; padding: 1.5rem 1rem; }
  td:first-child { white-space: normal; width: 40%; } }
"""


def _page(title: str, lead: str, sections: dict[str, tuple[str, str]], data: Any) -> str:
    """The page, with `data` inside as JSON for programs, and to be saved by people.

    Args:
      sections: id -> heading and HTML.
    """
    text = json.dumps(data, allow_nan=False)
    parts = [(name, escape(head), html) for name, (head, html) in sections.items()]
    links = "".join(f'<a href="#{name}">{head}</a>' for name, head, _ in parts)
    body = "".join(
        f'<section id="{name}"><h2>{head}</h2>{html}</section>' for name, head, html in parts
    )
    saved = _inline(text.encode(), "application/json")
    # In a script element the text ends at the first "</": JSON may write the slash another way.
    inside = text.replace("</", "<\\/")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        f'</title><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><style>{_STYLE}</style></head><body>'
        f"<header><h1>{escape(title)}</h1><p>{escape(lead)}</p><nav>{links}</nav></header>"
        f"<main>{body}</main><footer>Made by kqljax {escape(kqljax.__version__)}. "
        f'<a download="data.json" href="{saved}">Save the data of this page (JSON)</a></footer>'
        f'<script type="application/json" id="data">{inside}</script></body></html>\n'
    )


def _table(rows: dict[str, Any]) -> str:
    """A table of names and values."""
    cells = [f"<td>{escape(name)}</td><td>{escape(str(rows[name]))}</td>" for name in rows]
    lines = "".join(f"<tr>{each}</tr>" for each in cells)
    return f'<div class="card"><table>{lines}</table></div>'


def _drawn(draw: Callable[..., Any], alt: str, caption: str) -> str:
    """A figure that `draw(columns=)` draws, another time for narrow screens."""
    narrow = _inline(style.png(draw(columns=1)), "image/png")
    source = f'<source media="(max-width: 40rem)" srcset="{narrow}">'
    return _picture(alt, caption, style.png(draw(columns=3)), source=source)


def _picture(
    alt: str, caption: str, data: bytes, css: str = "", kind: str = "png", source: str = ""
) -> str:
    image = f'<img alt="{escape(alt)}" src="{_inline(data, f"image/{kind}")}">'
    words = f"<figcaption>{escape(caption)}</figcaption>"
    return f'<figure class="{css}"><picture>{source}{image}</picture>{words}</figure>'


def _inline(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
