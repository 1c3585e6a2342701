"""`kqljax train`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from kqljax.agent import KQL
from kqljax.commands.agents import add_file, errors_for_people
from kqljax.commands.base import INTERRUPTED, UsageError, console_for_tables
from kqljax.kernels import RBF, Kernel, Linear
from kqljax.recipes import RECIPES, make_recipe

KERNELS = ("rbf", "linear")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Trains an agent in a gymnasium environment and saves it."
    parser.epilog = (
        "examples:\n"
        "  kqljax train MountainCar-v0 --out car.npz --seed 0\n"
        "  kqljax train MountainCarContinuous-v0 --actions -1 1 --reward-range -0.1 100 --steps 2000 --out hill.npz\n"
        "  kqljax train --from car.npz --steps 500 --out car.npz      # go on; lam and beta stay as they were\n\n"
        "An environment of a package of yours: kqljax train my_package:MyEnv-v0 --out mine.npz\n"
        "Ctrl-C saves what was learned so far."
    )
    add = parser.add_argument
    add("env", metavar="ENV", nargs="?", help="name of a gymnasium environment")
    add_file(parser, "--out", metavar="FILE", required=True, help="where the agent goes, an npz file")
    add_file(parser, "--from", dest="source", metavar="FILE", help="goes on with an agent saved before")
    add("--force", action="store_true", help="replaces a file that is there")
    add("--steps", metavar="N", type=int, default=1000, help="steps of the environment (default %(default)s)")
    add("--seed", type=int, default=0, help="default %(default)s")
    add("--episodes", metavar="N", type=int, default=20, help="evaluation episodes after training (default %(default)s)")
    add("--recipe", choices=tuple(RECIPES), help="robust (the default) fits the kernel to what is seen; paper is the paper's")
    add("--kernel", choices=KERNELS, help="a kernel that stays as it is (default: the recipe's)")
    add("--eta", type=float, help="inverse squared width of the RBF kernel (default: the paper's)")
    add("--gamma", type=float, help="discount factor (default: the recipe's, 0.97, or 0.95 in the paper's)")
    add("--horizon", metavar="T", type=int, help="steps that lam and beta are set for (default: --steps)")
    add("--lam", type=float, help="ridge parameter (default 1 / (10 T))")
    add("--beta", type=float, help="confidence width (default sqrt(lam) / (1 - gamma))")
    add("--features", action="store_true", help="features in place of the exact kernel: linear in the steps, for long runs")
    add("--actions", metavar="X", type=float, nargs="+", help="values to choose from where actions are one continuous number")
    add("--reward-range", metavar=("LOW", "HIGH"), type=float, nargs=2, help="of the raw rewards (default: estimated)")
    add("--json", action="store_true", help="print the result as JSON")


# Options that make a new agent: with --from they would not be heeded.
_OF_A_NEW_AGENT = ("env", "recipe", "kernel", "eta", "gamma", "horizon", "lam", "beta", "actions", "reward_range")


def run(options: argparse.Namespace) -> int:
    _check(options)
    with errors_for_people():
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
    if stopped:
        done = agent.num_timesteps - before
        again = f"kqljax train --from {options.out} --out {options.out} --steps {options.steps - done}"
        print(f"stopped after {done} steps; to go on: {again}", file=sys.stderr)
        return INTERRUPTED
    with errors_for_people():
        returns = agent.evaluate(options.episodes)
    found = {
        "env": agent.env_name,
        "seed": agent.seed,
        "steps": agent.num_timesteps - before,
        "steps_in_all": agent.num_timesteps,
        "seconds": seconds,
        "training_episodes": agent.episode_returns,
        "evaluation": {"episodes": len(returns), "mean": float(np.mean(returns)), "std": float(np.std(returns))},
        "file": options.out,
    }
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        _print(found)
    return 0


def _check(options: argparse.Namespace) -> None:
    if not options.env and not options.source:
        raise UsageError("which environment? For example: kqljax train MountainCar-v0 --out car.npz")
    if options.source:
        given = [name for name in _OF_A_NEW_AGENT if getattr(options, name) is not None]
        if given:
            raise UsageError(f"--from goes on with an agent as it is: leave {', '.join(given)} out.")
    out = Path(options.out)
    is_same = options.source is not None and Path(options.source).resolve() == out.resolve()
    if out.exists() and not (is_same or options.force):
        raise UsageError(f"{out} is there already. Give another --out, or --force to replace it.")


def _new(options: argparse.Namespace) -> KQL:
    kernel: Kernel | None = None
    recipe = make_recipe(options.recipe or "robust")
    if options.kernel == "linear":
        kernel = Linear()
    elif options.eta is not None:
        kernel = RBF(eta=options.eta)
    elif options.kernel == "rbf":
        # Without a kernel of its own the agent takes the paper's for the task.
        recipe = dataclasses.replace(recipe, kernel=None, first_fit=None)
    return KQL(
        options.env,
        recipe=recipe,
        kernel=kernel,
        horizon=options.horizon,
        gamma=options.gamma,
        lam=options.lam,
        beta=options.beta,
        features="auto" if options.features else None,
        actions=options.actions,
        reward_range=None if options.reward_range is None else tuple(options.reward_range),
        seed=options.seed,
    )


def _print(found: dict[str, Any]) -> None:
    episodes, after = found["training_episodes"], found["evaluation"]
    console = console_for_tables()
    lines = [
        f"learned {found['env']} for {found['steps']} steps in {found['seconds']:.1f} s; in all {found['steps_in_all']} "
        f"steps; episodes that ended: {len(episodes)}",
        f"after training: mean return {after['mean']:.1f}, std {after['std']:.1f} (evaluation episodes: {after['episodes']})",
        f"wrote {found['file']}",
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
