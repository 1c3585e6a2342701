"""`kqljax evaluate`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from kqljax.agent import KQL, Evaluation, episodes
from kqljax.agent.spaces import make_env
from kqljax.checks import whole_number
from kqljax.commands.agents import add_agent, errors_for_people, load_agent
from kqljax.commands.base import INTERRUPTED, WorkBar

_SIDE_BY_SIDE = 20


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Runs a saved agent without learning and says what it returns."
    parser.epilog = (
        "example:\n  kqljax evaluate car.npz --episodes 100\n\nThe mean is over episodes of one agent: it says how good this "
        "agent is,\nnot how good the algorithm is. For that, many seeds: kqljax table1."
    )
    add_agent(parser)
    parser.add_argument("--episodes", metavar="N", type=int, default=100, help="default %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON in place of text")


def run(options: argparse.Namespace) -> int:
    agent = load_agent(options)
    seed = agent.evaluation_seed if options.seed is None else options.seed
    with errors_for_people():
        try:
            found = _evaluate(agent, options.episodes, seed, options.max_steps)
        except KeyboardInterrupt:
            return INTERRUPTED
    if options.json:
        told = {
            "agent": options.agent,
            "env": agent.env_name,
            "trained_steps": agent.num_timesteps,
            "seed": seed,
            "episodes": len(found.returns),
            "mean": found.mean,
            "std": found.std,
            "min": float(found.returns.min()),
            "max": float(found.returns.max()),
            "cut_off": int(found.was_cut.sum()),
            "max_steps": found.max_steps,
            "returns": found.returns.tolist(),
            "lengths": found.lengths.tolist(),
        }
        print(json.dumps(told, indent=1))
        return 0
    print(f"{agent.env_name}: {found}; the agent had {agent.num_timesteps} steps of training")
    return 0


def _evaluate(agent: KQL, num_episodes: int, seed: int, max_steps: int | None) -> Evaluation:
    """What `agent.evaluate` finds, with a progress bar."""
    whole_number("--episodes", num_episodes, 1, "It is the number of episodes.")
    assert agent.env_name is not None
    opened = [make_env(agent.env_name) for _ in range(min(num_episodes, _SIDE_BY_SIDE))]
    limit = episodes.limit_of(opened[0], max_steps)
    begun = 0
    with WorkBar() as bar:

        def tell() -> None:
            nonlocal begun
            begun += 1
            bar.show(max(0, begun - len(opened)), num_episodes, "evaluating")

        played = episodes.run(agent, [_Told(env, tell) for env in opened], num_episodes, seed, limit)
        bar.show(num_episodes, num_episodes, "evaluated")
    return Evaluation(
        returns=np.array([each.total for each in played]),
        lengths=np.array([len(each.obs) - 1 for each in played]),
        was_cut=np.array([each.was_cut for each in played]),
        max_steps=limit,
    )


class _Told(gymnasium.Wrapper):
    """Tells when an episode begins."""

    def __init__(self, env: Any, tell: Callable[[], None]) -> None:
        super().__init__(env)
        self._tell = tell

    def reset(self, **options: Any) -> Any:
        self._tell()
        return super().reset(**options)
