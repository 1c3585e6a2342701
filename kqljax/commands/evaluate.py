"""`kqljax evaluate`."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from kqljax.agent import episodes
from kqljax.agent.spaces import open_env
from kqljax.commands.agents import add_agent, errors_for_people, load_agent
from kqljax.commands.base import INTERRUPTED, console_for_tables


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
    agent = load_agent(options.agent, options.env)
    with errors_for_people():
        env = open_env(options.env or agent.env_name)
        seed = agent.seed + 1_000_003 if options.seed is None else options.seed
        running = episodes.run(agent, env, options.episodes, seed)
        try:
            shown = track(running, "evaluating", options.episodes, console=Console(stderr=True), transient=True)
            returns = np.array([episode.total for episode in shown])
        except KeyboardInterrupt:
            return INTERRUPTED
    found: dict[str, Any] = {
        "agent": options.agent,
        "env": options.env or agent.env_name,
        "trained_steps": agent.num_timesteps,
        "seed": seed,
        "episodes": len(returns),
        "mean": float(returns.mean()),
        "std": float(returns.std()),
        "min": float(returns.min()),
        "max": float(returns.max()),
        "returns": returns.tolist(),
    }
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    console_for_tables().print(
        f"{found['env']}: mean return {found['mean']:.1f}, std {found['std']:.1f}, from {found['min']:.1f} to "
        f"{found['max']:.1f} over {found['episodes']} episodes; the agent had {found['trained_steps']} steps of training",
        highlight=False,
        soft_wrap=True,
    )
    return 0
