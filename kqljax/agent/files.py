"""An agent as a file: what is in it, and how it becomes an agent again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from kqljax.agent import archive
from kqljax.agent.learner import History, Learner
from kqljax.agent.scaling import Ranges
from kqljax.agent.spaces import Observations
from kqljax.committee import Panel
from kqljax.kernels import Kernel

if TYPE_CHECKING:
    from kqljax.agent.agent import KQL

KIND, VERSION = "agent", 1
_GIVEN = ("env_name", "seed", "_horizon", "_lam", "_beta", "actions")


def save(agent: KQL, path: str | os.PathLike[str]) -> None:
    """Writes the agent, whole or not at all."""
    learner = agent._learner
    content: dict[str, Any] = {
        "given": {name: getattr(agent, name) for name in _GIVEN},
        "observations": agent._observations._asdict(),
        "episode_returns": np.array(agent.episode_returns, np.float64),
        "episode_lengths": np.array(agent.episode_lengths, np.int64),
        "dtype": str(learner.dtype),
        "has_end": learner.has_end,
        "first_fit": learner.first_fit,
        "committee": None if learner.committee is None else tuple(learner.committee),
        "config": learner.cfg,
        "state": learner.state,
        "ranges": learner.ranges.as_dict(),
        "history": learner.history.as_dict(),
    }
    archive.write(path, KIND, VERSION, content)


def load_into(agent: KQL, path: str | os.PathLike[str], kernel: Kernel | None) -> None:
    """Fills an empty agent from a file."""
    found = archive.read(path, KIND, VERSION, kernel)
    for name in _GIVEN:
        setattr(agent, name, found["given"][name])
    agent.env, agent._draws = None, 0
    agent._observations = Observations(**found["observations"])
    agent.episode_returns = found["episode_returns"].tolist()
    agent.episode_lengths = found["episode_lengths"].tolist()
    history, ranges = History.from_dict(found["history"]), Ranges.from_dict(found["ranges"])
    # Files from before there were recipes and committees do not have the last two.
    given = found["dtype"], agent.seed, found["has_end"], found.get("first_fit")
    panel = found.get("committee")
    agent._learner = Learner(found["config"], ranges, history, *given, None if panel is None else Panel(*panel))
    agent._learner.load_state(found["state"])
