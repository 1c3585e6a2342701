"""An agent as a file: what is in it, and how it becomes an agent again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from kqljax.agent import archive
from kqljax.agent.history import History
from kqljax.agent.learners import of_file
from kqljax.agent.scaling import Ranges
from kqljax.agent.spaces import Observations
from kqljax.kernels import Kernel

if TYPE_CHECKING:
    from kqljax.agent.agent import KQL

KIND, VERSION = "agent", 2


def save(agent: KQL, path: str | os.PathLike[str]) -> None:
    """Writes the agent, whole or not at all."""
    memory = agent._memory
    fitted = agent._learner.kept(agent._fitted()) if memory.history.total else None
    content: dict[str, Any] = {
        "env_name": agent.env_name,
        "seed": agent.seed,
        "draws": agent._draws,
        "actions": agent.actions,
        "observations": agent._observations._asdict(),
        "learner": agent._learner.as_dict(),
        "fitted": fitted,
        "history": memory.history.as_dict(),
        "ranges": memory.ranges._asdict(),
        "returns": np.array(memory.returns, np.float64),
        "lengths": np.array(memory.lengths, np.int64),
    }
    archive.write(path, KIND, VERSION, content)


def load_into(agent: KQL, path: str | os.PathLike[str], kernel: Kernel | None) -> None:
    """Fills an empty agent from a file."""
    from kqljax.agent.agent import Memory

    found = archive.read(path, KIND, VERSION, kernel)
    agent._given, agent._env = found["env_name"], None
    agent.seed, agent._draws, agent.actions = found["seed"], found["draws"], found["actions"]
    agent._observations = Observations(**found["observations"])
    ranges, history = Ranges(**found["ranges"]), History.from_dict(found["history"])
    agent._learner = of_file(found["learner"], agent._observations.obs_dim, len(agent.actions), ranges, agent.seed)
    fitted, now = agent._learner.restored(found["fitted"])
    agent._policy = None if fitted is None else (history, fitted)
    agent._memory = Memory(history, ranges, now, tuple(found["returns"].tolist()), tuple(found["lengths"].tolist()))
