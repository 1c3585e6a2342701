"""The commands about one agent: train, evaluate, render, report."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from kqljax.cli.base import (
    INTERRUPTED,
    NO_DEFAULT,
    UsageError,
    check_at_least_1,
    errors_for_people,
    tell,
)  # fmt: skip

if TYPE_CHECKING:
    from kqljax.agent import KQL

File = Annotated[Path, arg(metavar="FILE")]
# None says that an option was not given: those that would have no effect are refused.
_OF_ALGORITHM_1 = ("kernel", "eta", "gamma", "horizon", "lam", "beta")
_OF_A_NEW_AGENT = ("env", "seed", "recipe", "actions", "reward_range", *_OF_ALGORITHM_1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """Trains an agent in a gymnasium environment and saves it.

    examples:
      kqljax train MountainCar-v0 --out car.npz --seed 0
      kqljax train MountainCarContinuous-v0 --actions -1 1 --reward-range -0.1 100 --out hill.npz
      kqljax train --from car.npz --steps 500 --out car.npz      # go on, all numbers as they were
      kqljax train CartPole-v1 --recipe paper --beta 0.5 --out pole.npz

    An environment of a package of yours: kqljax train my_package:MyEnv-v0 --out mine.npz

    Ctrl-C saves what was learned so far.
    """

    env: Annotated[Positional[str | None], NO_DEFAULT] = None
    """Name of a gymnasium environment."""
    out: File
    """Where the agent goes, an npz file."""
    source: Annotated[Path | None, arg(name="from", metavar="FILE", help_behavior_hint="")] = None
    """Goes on with an agent saved before."""
    force: bool = False
    """Replaces a file that is there."""
    steps: int = 1000
    """Steps of the environment."""
    episodes: int = 20
    """Evaluation episodes after training."""
    seed: Annotated[int | None, NO_DEFAULT] = None
    """Of the environment and of random ties (default: 0)."""
    recipe: Annotated[Literal["default", "paper"] | None, NO_DEFAULT] = None
    """default learns in rounds; paper is Algorithm 1, one backup a step (default: default)."""
    actions: Annotated[tuple[float, ...] | None, arg(metavar="X ...", help_behavior_hint="")] = None
    """Values to choose from where actions are one continuous number."""
    reward_range: Annotated[
        tuple[float, float] | None, arg(metavar="LOW HIGH", help_behavior_hint="")
    ] = None
    """Of the raw rewards (default: estimated)."""
    kernel: Annotated[Literal["rbf", "linear"] | None, NO_DEFAULT] = None
    """This and the options below need --recipe paper (default: rbf)."""
    eta: Annotated[float | None, NO_DEFAULT] = None
    """Inverse squared width of the RBF kernel (default: the paper's)."""
    gamma: Annotated[float | None, NO_DEFAULT] = None
    """Discount factor (default: 0.95)."""
    horizon: Annotated[int | None, NO_DEFAULT] = None
    """Steps that lam and beta are set for (default: --steps)."""
    lam: Annotated[float | None, NO_DEFAULT] = None
    """Ridge parameter (default: 1 / (10 horizon))."""
    beta: Annotated[float | None, NO_DEFAULT] = None
    """Confidence width (default: sqrt(lam) / (1 - gamma))."""
    json: bool = False
    """Prints the result as JSON."""

    def run(self) -> int:
        """Trains, saves and evaluates; exit code."""
        self._check()
        from kqljax.agent import KQL

        with errors_for_people():
            agent = KQL.load(self.source) if self.source else self._new()
            before, start, stopped = agent.num_timesteps, time.perf_counter(), False
            try:
                agent.learn(self.steps, progress_bar=True)
            except KeyboardInterrupt:
                stopped = True
            seconds, done = time.perf_counter() - start, agent.num_timesteps - before
            agent.save(self.out)
            if stopped:
                again = f"--from {self.out} --out {self.out} --steps {self.steps - done}"
                print(f"stopped after {done} steps; go on: kqljax train {again}", file=sys.stderr)
                return INTERRUPTED
            found = agent.evaluate(self.episodes)
        about: dict[str, Any] = {"env": agent.env_name, "seed": agent.seed, "file": str(self.out)}
        about |= {"steps": done, "steps_in_all": agent.num_timesteps, "seconds": seconds}
        about |= {"training_episodes": agent.episode_returns, "evaluation": _as_dict(found)}
        tell(
            self.json,
            about,
            f"learned {agent.env_name} for {done} steps in {seconds:.1f} s; in all "
            f"{agent.num_timesteps} steps; episodes that ended: {len(agent.episode_returns)}\n"
            f"after training: {found}\nwrote {self.out}",
        )
        return 0

    def _check(self) -> None:
        """Raises for what would have no effect, and for what would fail after the training."""
        if self.source and (given := self._given(_OF_A_NEW_AGENT)):
            raise UsageError(f"--from goes on with an agent as it is: leave {given} out.")
        if not self.env and not self.source:
            example = "kqljax train MountainCar-v0 --out car.npz"
            raise UsageError(f"which environment? For example: {example}")
        if self.recipe != "paper" and (given := self._given(_OF_ALGORITHM_1)):
            raise UsageError(
                f"learning in rounds has no {given}: add --recipe paper for Algorithm 1, or leave "
                "it out. The numbers of rounds are given in Python: "
                "kqljax.KQL(..., recipe=kqljax.rounds.Recipe(...))."
            )
        if self.kernel == "linear" and self.eta is not None:
            raise UsageError(
                "--eta is the width of the RBF kernel: give --kernel rbf, or leave it."
            )
        check_at_least_1(steps=self.steps, episodes=self.episodes, horizon=self.horizon)
        is_same = self.source is not None and self.source.resolve() == self.out.resolve()
        if self.out.exists() and not (is_same or self.force):
            remedy = "Give another --out, or --force to replace it."
            raise UsageError(f"{self.out} is there already. {remedy}")
        if not self.out.parent.is_dir():
            raise UsageError(f"no directory {self.out.parent}. Make it, or give another --out.")

    def _given(self, names: tuple[str, ...]) -> str:
        there = [name for name in names if getattr(self, name) is not None]
        return ", ".join("ENV" if n == "env" else f"--{n.replace('_', '-')}" for n in there)

    def _new(self) -> KQL:
        from kqljax import KQL, RBF, KQLConfig, Linear

        own: dict[str, Any] = {"seed": self.seed or 0, "actions": self.actions}
        own["reward_range"] = self.reward_range
        if self.recipe != "paper":
            return KQL(self.env, **own)
        kernel: Any = None if self.eta is None else RBF(eta=self.eta)
        kernel = Linear() if self.kernel == "linear" else kernel
        paper: dict[str, Any] = {"kernel": kernel, "gamma": self.gamma, "horizon": self.horizon}
        agent = KQL(self.env, recipe="paper", **paper, **own)
        if self.lam is None and self.beta is None:
            return agent
        # These two only a config has: the agent's own with others in it. beta follows from lam.
        assert isinstance(agent.recipe, KQLConfig)
        numbers: dict[str, Any] = {
            "horizon": self.horizon or self.steps,
            "lam": self.lam,
            "beta": self.beta,
        }
        cfg = dataclasses.replace(agent.recipe, **numbers)
        agent.close()
        return KQL(self.env, recipe=cfg, **own)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OfAgent:
    """Options of the commands that play episodes of a saved agent."""

    agent: Positional[Path]
    """File that kqljax train wrote."""
    env: Annotated[str | None, NO_DEFAULT] = None
    """Environment (default: the one it learned in)."""
    seed: Annotated[int | None, NO_DEFAULT] = None
    """Of the episodes (default: one that training has not used)."""
    max_steps: Annotated[int | None, NO_DEFAULT] = None
    """Episodes are cut off then (default: the environment's time limit, 1000 where it has none)."""
    json: bool = False
    """Prints the result as JSON."""

    def _load(self) -> KQL:
        from kqljax.agent import KQL

        check_at_least_1(max_steps=self.max_steps)
        agent = KQL.load(self.agent, env=self.env)
        if agent.env_name is None:
            raise UsageError(f"{self.agent} does not say where it learned: give --env NAME.")
        return agent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate(_OfAgent):
    """Runs a saved agent without learning and says what it returns.

    example:
      kqljax evaluate car.npz --episodes 100

    The mean is over episodes of one agent: it says how good this agent is, not how good the
    algorithm is. For that, many seeds: kqljax sweep.
    """

    episodes: int = 100
    """Number of episodes."""

    def run(self) -> int:
        """Plays and prints; exit code."""
        check_at_least_1(episodes=self.episodes)
        with errors_for_people():
            agent = self._load()
            found = agent.evaluate(self.episodes, seed=self.seed, max_steps=self.max_steps)
        steps = agent.num_timesteps
        about = {"agent": str(self.agent), "env": agent.env_name, "trained_steps": steps}
        each = {"returns": found.returns.tolist(), "lengths": found.lengths.tolist()}
        words = f"{agent.env_name}: {found}; the agent had {steps} steps of training"
        tell(self.json, about | _as_dict(found) | each, words)
        return 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Render(_OfAgent):
    """Draws one episode of a saved agent as an animated GIF.

    example:
      kqljax render car.npz --out car.gif

    Needs the extra `render`: pip install 'kqljax[render]' (pygame and pillow).
    """

    out: File
    """The GIF."""
    width: int = 320
    """Of the picture, in pixels."""
    every: int = 2
    """Keeps every N-th frame."""

    def run(self) -> int:
        """Draws and writes; exit code."""
        check_at_least_1(width=self.width, every=self.every)
        from kqljax.report import gif

        with errors_for_people():
            picture: dict[str, Any] = {"width": self.width, "every": self.every}
            own: dict[str, Any] = {"seed": self.seed, "max_steps": self.max_steps}
            episode = gif.save_episode(self._load(), self.out, **own, **picture)
        steps, cut = len(episode.obs) - 1, episode.was_cut
        end = (
            "the task ended" if episode.terminated else "cut off there" if cut else "time was over"
        )
        about = {"file": str(self.out), "return": episode.total, "steps": steps}
        about |= {"terminated": episode.terminated, "cut_off": cut}
        tell(
            self.json, about, f"wrote {self.out}: {steps} steps, return {episode.total:.1f}, {end}"
        )
        return 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Makes one HTML page about a saved agent: maps, an episode, its numbers.

    Everything is inside: the page can be mailed, and opens without a network.

    example:
      kqljax report car.npz --out car.html
    """

    agent: Positional[Path]
    """File that kqljax train wrote."""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """The page (default: beside the agent)."""
    axes: Annotated[tuple[int, int], arg(metavar="I J")] = (0, 1)
    """Entries of the state that the maps are drawn over."""
    json: bool = False
    """Prints what was written as JSON."""

    def run(self) -> int:
        """Makes the page; exit code."""
        from kqljax.agent import KQL
        from kqljax.io import replace_file
        from kqljax.report.agent_page import make_agent_page

        out = self.out or self.agent.with_suffix(".html")
        with errors_for_people():
            agent = KQL.load(self.agent)
            if agent.env_name is None or agent.num_timesteps == 0:
                raise UsageError(f"{self.agent} has learned nothing, or does not say where.")
            text = make_agent_page(agent, self.axes).encode()
        try:
            replace_file(out, lambda file: file.write(text))
        except OSError as error:
            remedy = "Give another --out."
            raise UsageError(f"cannot write {out}: {error.strerror or error}. {remedy}") from error
        about = {"file": str(out), "bytes": len(text)}
        tell(self.json, about, f"wrote {out}, {len(text) / 1e6:.1f} MB")
        return 0


def _as_dict(found: Any) -> dict[str, Any]:
    """An evaluation without its episodes."""
    spread = {"min": float(found.returns.min()), "max": float(found.returns.max())}
    numbers = {"mean": found.mean, "std": found.std, **spread, "max_steps": found.max_steps}
    return {"episodes": len(found.returns), **numbers, "cut_off": int(found.was_cut.sum())}
