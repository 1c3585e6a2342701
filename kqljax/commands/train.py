"""`kqljax train`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

from kqljax.agent import KQL
from kqljax.checks import whole_number
from kqljax.commands.agents import add_file, errors_for_people
from kqljax.commands.base import INTERRUPTED, UsageError
from kqljax.config import KQLConfig
from kqljax.kernels import RBF, Linear

# None says that an option was not given: those that would not be heeded are refused.
_OF_ALGORITHM_1 = ("--kernel", "--eta", "--gamma", "--horizon", "--lam", "--beta")
_OF_A_NEW_AGENT = ("env", "--seed", "--recipe", "--actions", "--reward-range", *_OF_ALGORITHM_1)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Trains an agent in a gymnasium environment and saves it."
    parser.epilog = (
        "examples:\n"
        "  kqljax train MountainCar-v0 --out car.npz --seed 0\n"
        "  kqljax train MountainCarContinuous-v0 --actions -1 1 --reward-range -0.1 100 --steps 2000 --out hill.npz\n"
        "  kqljax train --from car.npz --steps 500 --out car.npz      # go on, all numbers as they were\n"
        "  kqljax train CartPole-v1 --recipe paper --beta 0.5 --out pole.npz\n\n"
        "An environment of a package of yours: kqljax train my_package:MyEnv-v0 --out mine.npz\n"
        "Ctrl-C saves what was learned so far."
    )
    add = parser.add_argument
    add("env", metavar="ENV", nargs="?", help="name of a gymnasium environment")
    add_file(parser, "--out", metavar="FILE", required=True, help="where the agent goes, an npz file")
    add_file(parser, "--from", dest="source", metavar="FILE", help="goes on with an agent saved before")
    add("--force", action="store_true", help="replaces a file that is there")
    add("--steps", metavar="N", type=int, default=1000, help="steps of the environment (default %(default)s)")
    add("--episodes", metavar="N", type=int, default=20, help="evaluation episodes after training (default %(default)s)")
    add("--seed", type=int, help="default 0")
    add("--recipe", choices=("default", "paper"), help="default learns in rounds; paper is Algorithm 1, a backup a step")
    add("--actions", metavar="X", type=float, nargs="+", help="values to choose from where actions are one continuous number")
    add("--reward-range", metavar=("LOW", "HIGH"), type=float, nargs=2, help="of the raw rewards (default: estimated)")
    add("--json", action="store_true", help="print the result as JSON")
    add = parser.add_argument_group("Algorithm 1, with --recipe paper").add_argument
    add("--kernel", choices=("rbf", "linear"), help="default rbf")
    add("--eta", type=float, help="inverse squared width of the RBF kernel (default: the paper's)")
    add("--gamma", type=float, help="discount factor (default 0.95)")
    add("--horizon", metavar="T", type=int, help="steps that lam and beta are set for (default: --steps)")
    add("--lam", type=float, help="ridge parameter (default 1 / (10 T))")
    add("--beta", type=float, help="confidence width (default sqrt(lam) / (1 - gamma))")


def run(options: argparse.Namespace) -> int:
    with errors_for_people():
        _check(options)
        agent = KQL.load(options.source) if options.source else _new(options)
        before = agent.num_timesteps
        start = time.perf_counter()
        stopped = False
        try:
            agent.learn(options.steps, progress_bar=True)
        except KeyboardInterrupt:
            stopped = True
        seconds = time.perf_counter() - start
        agent.save(options.out)
        done = agent.num_timesteps - before
        if stopped:
            again = f"kqljax train --from {options.out} --out {options.out} --steps {options.steps - done}"
            print(f"stopped after {done} steps; to go on: {again}", file=sys.stderr)
            return INTERRUPTED
        found = agent.evaluate(options.episodes)
    told = {
        "env": agent.env_name,
        "seed": agent.seed,
        "steps": done,
        "steps_in_all": agent.num_timesteps,
        "seconds": seconds,
        "training_episodes": agent.episode_returns,
        "evaluation": {
            "episodes": len(found.returns), "mean": found.mean, "std": found.std, "cut_off": int(found.was_cut.sum())
        },
        "file": options.out,
    }  # fmt: skip
    if options.json:
        print(json.dumps(told, indent=1))
        return 0
    print(
        f"learned {agent.env_name} for {done} steps in {seconds:.1f} s; in all {agent.num_timesteps} steps; episodes that "
        f"ended: {len(agent.episode_returns)}"
    )
    print(f"after training: {found}\nwrote {options.out}")
    return 0


def _check(options: argparse.Namespace) -> None:
    """Raises for what would not be heeded, and for what would only fail when the training is over."""

    def given(names: tuple[str, ...]) -> str:
        there = [name for name in names if getattr(options, name.removeprefix("--").replace("-", "_")) is not None]
        return ", ".join(name if name.startswith("--") else name.upper() for name in there)

    if options.source and given(_OF_A_NEW_AGENT):
        raise UsageError(f"--from goes on with an agent as it is: leave {given(_OF_A_NEW_AGENT)} out.")
    if not options.env and not options.source:
        raise UsageError("which environment? For example: kqljax train MountainCar-v0 --out car.npz")
    if options.recipe != "paper" and given(_OF_ALGORITHM_1):
        raise UsageError(
            f"learning in rounds has no {given(_OF_ALGORITHM_1)}: add --recipe paper for Algorithm 1, or leave it out. The "
            "numbers of rounds are given in Python: kqljax.KQL(..., recipe=kqljax.rounds.Recipe(...))."
        )
    if options.kernel == "linear" and options.eta is not None:
        raise UsageError("--eta is the width of the RBF kernel: leave it out, or give --kernel rbf.")
    whole_number("--steps", options.steps, 1, "It is the number of environment steps.")
    whole_number("--episodes", options.episodes, 1, "It is the number of evaluation episodes.")
    out = Path(options.out)
    is_same = options.source is not None and Path(options.source).resolve() == out.resolve()
    if out.exists() and not (is_same or options.force):
        raise UsageError(f"{out} is there already. Give another --out, or --force to replace it.")
    if not out.parent.is_dir():
        raise UsageError(f"there is no directory {out.parent}. Make it, or give another --out.")


def _new(options: argparse.Namespace) -> KQL:
    own: dict[str, Any] = {"seed": options.seed or 0, "actions": options.actions}
    own["reward_range"] = None if options.reward_range is None else tuple(options.reward_range)
    if options.recipe != "paper":
        return KQL(options.env, **own)
    kernel = Linear() if options.kernel == "linear" else None if options.eta is None else RBF(eta=options.eta)
    agent = KQL(options.env, recipe="paper", kernel=kernel, gamma=options.gamma, horizon=options.horizon, **own)
    if options.lam is None and options.beta is None:
        return agent
    # These two only a config has: the agent's own with others in it. A beta that was not given follows from the new lam.
    assert isinstance(agent.recipe, KQLConfig)
    horizon = options.horizon or options.steps
    cfg = dataclasses.replace(agent.recipe, horizon=horizon, lam=options.lam, beta=options.beta)
    agent.close()
    return KQL(options.env, recipe=cfg, **own)
