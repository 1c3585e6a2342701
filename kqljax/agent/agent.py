"""`KQL`: the agent for gymnasium users."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Self

import gymnasium
import numpy as np

from kqljax import io
from kqljax._checks import describe, whole_number
from kqljax.agent import beliefs, episodes
from kqljax.agent.beliefs import Beliefs, Fitted
from kqljax.agent.by_rounds import Rounds
from kqljax.agent.by_steps import StepByStep
from kqljax.agent.callbacks import AgentStep, Callback, learning_bar, read_callbacks
from kqljax.agent.episodes import Evaluation
from kqljax.agent.history import SIZE, History, Memory
from kqljax.agent.loops import Loop, Steps
from kqljax.agent.scaling import Ranges, check_end_value, check_obs_bounds, check_reward_range
from kqljax.agent.spaces import open_env, preset_of, read_actions, read_observations
from kqljax.config import KQLConfig
from kqljax.kernels import RBF, Kernel
from kqljax.rounds import DEFAULT, Recipe


class KQL:
    """Kernelized Q-learning for gymnasium environments, with the habits of Stable-Baselines3.

        agent = kqljax.KQL("MountainCar-v0", seed=0).learn(1000)
        action, _ = agent.predict(obs)

    Two learners. By default the agent learns in rounds (`kqljax.rounds`): it keeps the transitions,
    fits everything anew from them now and then, and acts with the result until the next round. With
    `recipe="paper"` or a `KQLConfig` it is Algorithm 1 of the paper, one backup a step.
    docs/howto.md says which arguments each of them takes.

    Scales. Observations become [-1, 1] and rewards [0, 1]. On the paper's tasks (MountainCar,
    CartPole, Acrobot, Pendulum, through wrappers that change nothing) the paper's normalisation and
    actions are the defaults. Elsewhere bounds are those of the observation space. Where they are
    infinite, they are estimated while learning, as is the range of the rewards, and the next fit
    counts with the new estimate. Observations beyond the bounds count as at them. Discrete
    observations become one-hot vectors. Algorithm 1 needs bounds that never move.

    Ends. After termination the environment pays 0 for ever (`end_value` says otherwise). A time
    limit is not an end: the value goes on from the true successor.

    Memory. Of a long run 4096 transitions are kept: the newest 2048, and whole older episodes, each
    with the same chance.

    Vector environments. All of them feed one history. At each step actions are chosen one after
    another, each knowing of the pairs before it. Every autoreset mode will do.

    Args:
      env: name of a gymnasium environment, an environment, or a gymnasium.vector environment.
      recipe: "default" (`kqljax.rounds.DEFAULT`), another `Recipe`, "paper", or a `KQLConfig`.
      seed: of the environment and of random ties; None draws one.
      actions: the actions to choose from, needed for a Box; by default all of a Discrete space.
      obs_bounds: (low, high), numbers or vectors `[l]`; infinite ends are estimated.
      reward_range: (lowest, highest), or "estimate".
      end_value: what an end is worth, as a share in [0, 1] of the largest value.
      kernel: of Algorithm 1, only with `recipe="paper"`, as the next two; else in a `KQLConfig`.
      gamma: discount, by default 0.95.
      horizon: T, which lam and beta are set for; by default the steps of the first `learn`.

    Examples:
      >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
      >>> agent
      KQL('MountainCar-v0', rounds, 20 steps, 20 transitions kept (at most 4096), seed=0)
      >>> low, high = agent.obs_bounds
      >>> low.round(2).tolist(), high.round(2).tolist(), agent.reward_range
      ([-1.2, -0.07], [0.6, 0.07], (-1.0, 0.0))
    """

    def __init__(
        self,
        env: Any,
        *,
        recipe: str | Recipe | KQLConfig = "default",
        seed: int | None = None,
        actions: Sequence[Any] | None = None,
        obs_bounds: tuple[Any, Any] | None = None,
        reward_range: tuple[float, float] | str | None = None,
        end_value: float | None = None,
        kernel: Kernel | None = None,
        gamma: float | None = None,
        horizon: int | None = None,
    ) -> None:
        seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1) if seed is None else seed
        self.seed = whole_number("seed", seed, 0, "It seeds the environment and random ties.")
        self._given, self._env = env, None
        preset, seen = preset_of(self.env), read_observations(self.env)
        self._observations, bounds, rewards, eta = seen, (seen.low, seen.high), None, 0.02
        if preset is not None:
            actions = preset.actions if actions is None else actions
            bounds, rewards, eta = preset.obs_bounds or bounds, preset.reward_range, preset.eta
        self.actions = read_actions(self.env, actions)
        bounds = bounds if obs_bounds is None else check_obs_bounds(obs_bounds, seen.obs_dim)
        rewards = rewards if reward_range is None else check_reward_range(reward_range)
        ranges, end_value = Ranges.of(*bounds, rewards), check_end_value(end_value)
        given = {"kernel": kernel, "gamma": gamma, "horizon": horizon}
        given = {name: value for name, value in given.items() if value is not None}
        self._learner = self._make_learner(recipe, ranges, end_value, eta, given)
        self._memory = Memory(History.empty(seen.obs_dim), ranges, None)
        self._fit: tuple[History | None, Any] = None, None

    def _make_learner(
        self,
        recipe: Any,
        ranges: Ranges,
        end_value: float | None,
        eta: float,
        given: dict[str, Any],
    ) -> Rounds | StepByStep:
        """The learner that `recipe` names; `given` are arguments of Algorithm 1."""
        word, num_actions = recipe if isinstance(recipe, str) else "", len(self.actions)
        if word == "default" or isinstance(recipe, Recipe):
            if given:
                words = f"{' and '.join(given)}: {_INSTEAD[next(iter(given))]}"
                raise ValueError(f"{words}, or give recipe='paper' too.")
            if ranges.is_reward_fixed and end_value is None:
                ranges.scaling().check_end()
            recipe = DEFAULT if word else recipe
            recipe.validate()
            return Rounds(recipe, num_actions, end_value)
        if not (word == "paper" or isinstance(recipe, KQLConfig)):
            raise ValueError(
                "recipe must be 'default', 'paper', a kqljax.rounds.Recipe or a kqljax.KQLConfig, "
                f"got {describe(recipe)}."
            )
        missing = [] if ranges.is_obs_fixed else ["obs_bounds=(low, high)"]
        missing += [] if ranges.is_reward_fixed else ["reward_range=(lowest, highest)"]
        if missing:
            raise ValueError(
                "Algorithm 1 needs bounds that never move, and this environment does not state "
                f"them: give {' and '.join(missing)}, or take recipe='default'."
            )
        if word == "paper":
            share = ranges.scaling().end_value if end_value is None else end_value
            numbers: dict[str, Any] = {"kernel": RBF(eta=eta), "horizon": 1000} | given
            recipe = KQLConfig(num_actions=num_actions, **numbers)
            # Only now is it known that gamma is a number below 1.
            recipe = dataclasses.replace(recipe, terminal_value=share / (1 - recipe.gamma))
        elif given or end_value is not None:
            taken = " and ".join([*given, *([] if end_value is None else ["end_value"])])
            where = "the config" if given else "terminal_value"
            raise ValueError(f"{taken}: a KQLConfig says these itself; set them in {where}.")
        elif recipe.num_actions != num_actions:
            words = f"the agent has {num_actions} actions"
            raise ValueError(f"the KQLConfig has num_actions={recipe.num_actions}, {words}.")
        is_sized = word != "paper" or "horizon" in given
        return StepByStep(recipe.validate(), self._observations.obs_dim, self.seed, is_sized)

    # What there is --------------------------------------------------------------------------------

    @property
    def env(self) -> Any:
        """The environment to learn in; one given by name is opened when it is needed."""
        if self._env is None and self._given is not None:
            self._env = open_env(self._given)
        return self._env

    @property
    def env_name(self) -> str | None:
        """Name of the environment, where it was given by name."""
        return self._given if isinstance(self._given, str) else None

    @property
    def num_timesteps(self) -> int:
        """Transitions learned from so far, also those that are not kept any more."""
        return self._memory.history.total

    @property
    def recipe(self) -> Recipe | KQLConfig:
        """The numbers of the learner: a `Recipe` of rounds, or the `KQLConfig` of Algorithm 1."""
        return self._learner.numbers

    @property
    def history(self) -> dict[str, np.ndarray]:
        """Raw transitions that are kept, episode after episode.

        "obs" and "next_obs" `[N, l]`; "action", "reward", "terminated", "truncated", "episode" (its
        number), "is_first" and "is_last" (of an episode) `[N]`.
        """
        return self._memory.history.ordered()

    @property
    def episode_returns(self) -> list[float]:
        """Undiscounted returns of the episodes that ended while learning."""
        return list(self._memory.history.returns)

    @property
    def episode_lengths(self) -> list[int]:
        """Steps of the episodes that ended while learning."""
        return list(self._memory.history.lengths)

    @property
    def obs_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Low `[l]` and high `[l]` that become -1 and 1; estimates where they were not known."""
        return self._memory.ranges.scaling()[:2]

    @property
    def reward_range(self) -> tuple[float, float]:
        """Raw rewards that become 0 and 1; estimates where they were not known."""
        return self._memory.ranges.scaling()[2:]

    @property
    def evaluation_seed(self) -> int:
        """A seed that follows from the agent's and that learning does not use."""
        return int(np.random.SeedSequence([self.seed, 0, 1]).generate_state(1)[0])

    def __repr__(self) -> str:
        name = "no environment" if self._given is None else type(self._given).__name__
        steps = f"{self.num_timesteps} steps, {self._memory.history.num_kept} transitions kept"
        words = f"{self._learner.name}, {steps} (at most {SIZE}), seed={self.seed}"
        return f"KQL({self.env_name or name!r}, {words})"

    # Learning -------------------------------------------------------------------------------------

    def learn(
        self,
        total_timesteps: int,
        callback: Callback | Sequence[Callback] | None = None,
        *,
        progress_bar: bool = False,
        env: Any = None,
    ) -> Self:
        """Takes `total_timesteps` steps in the environment, learning from them; returns the agent.

        Called again, it goes on: everything learned stays. Each call begins with a new episode.
        Whatever stops it, an interruption by the keyboard or an error in the environment, leaves an
        agent that acts, can be saved and can go on. A vector of n environments makes up to n
        transitions a step, and up to n - 1 more than asked for.

        Args:
          callback: function (or a list of them) of the agent and an `AgentStep`, called after each
            step. Where one returns False, learning stops, as in Stable-Baselines3.
          progress_bar: shows one, on stderr.
          env: another environment with the same spaces, from now on.

        Examples:
          >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
          >>> agent.learn(20, callback=lambda agent, step: step.num_timesteps < 30).num_timesteps
          30
        """
        whole_number("total_timesteps", total_timesteps, 1, "It is the number of steps.")
        callbacks = read_callbacks(callback)
        if env is not None:
            self._replace_env(env)
        if self.env is None:
            raise ValueError(
                "the agent was loaded from a file and has no environment to learn in: "
                "learn(..., env=...)."
            )
        loop, memory = Loop(self.env, self._observations, self.actions), self._memory
        if loop.num_envs > SIZE // 4:
            raise ValueError(
                f"{loop.num_envs} environments side by side would fill the history of {SIZE} "
                f"transitions in a few steps: take at most {SIZE // 4}."
            )
        first, last = self.num_timesteps, self.num_timesteps + total_timesteps
        learner = self._learner = self._learner.sized(first, total_timesteps + loop.num_envs - 1)
        # A number of its own for every later call, which no other seed has.
        entropy = np.random.SeedSequence([self.seed, first]).generate_state(1)[0]
        obs = loop.reset(seed=int(entropy) if first else self.seed)
        memory = Memory(
            memory.history.begun(loop.num_envs),
            memory.ranges.covering(obs, np.zeros(0)),
            learner.kept(memory.now),
        )
        with learning_bar(total_timesteps, progress_bar) as show:
            while self.num_timesteps < last:
                action, now = learner.choose(memory, obs, loop.is_moved)
                steps = loop.step(action)
                memory, obs = memory._replace(now=now).added(steps), steps.now
                memory = memory._replace(now=learner.learned(memory, len(steps.reward)))
                self._memory = memory
                show(self.num_timesteps - first, memory.history.returns)
                told: Any = self._told(steps) if callbacks else None
                # All are called, also after one has said no.
                if any(each is False for each in [call(self, told) for call in callbacks]):
                    break
        return self

    def _told(self, steps: Steps) -> AgentStep:
        fields = {name: getattr(steps, name) for name in AgentStep._fields[1:]}
        if not isinstance(self.env, gymnasium.vector.VectorEnv):
            fields = {name: each[0] for name, each in fields.items()}
        return AgentStep(num_timesteps=self.num_timesteps, **fields)

    def _replace_env(self, env: Any) -> None:
        if env is self._env:
            return  # the agent's own, which it may have opened itself
        new = open_env(env)
        try:
            self._observations.check_same(read_observations(new))
            read_actions(new, list(self.actions))
        except ValueError:
            if isinstance(env, str):
                new.close()
            raise
        self.close()
        self._given, self._env = env, new

    def close(self) -> None:
        """Closes the environment, if the agent opened it. It is opened again when it is needed.

        Examples:
          >>> kqljax.KQL("MountainCar-v0", seed=0).learn(20).close()
        """
        if isinstance(self._given, str) and self._env is not None:
            self._env.close()
            self._env = None

    # Asking ---------------------------------------------------------------------------------------

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[np.ndarray, None]:
        """The best action, and None: the signature of Stable-Baselines3.

        In rounds the finished policy answers, fitted to all transitions at the first call after
        `learn`. Algorithm 1 takes the action of the greatest optimistic value.

        Args:
          observation: one of the environment's, or a batch of them `[n, ...]`.
          state: not used, the policy has no memory.
          episode_start: not used.
          deterministic: not used, the policy has no randomness.

        Returns:
          What the environment takes, `[...]`, or `[n, ...]` for a batch; and None.

        Examples:
          >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
          >>> action, _ = agent.predict([-0.5, 0.0])
          >>> actions, _ = agent.predict(np.zeros((4, 2)))
          >>> int(action) in (0, 1, 2), actions.shape
          (True, (4,))
        """
        return self.actions[self.choose(observation)], None

    def choose(self, observation: Any) -> np.ndarray:
        """The index `[]`, or `[n]` for a batch, of the action in `actions`; see `predict`."""
        obs, is_batch = self._observations.batch(observation)
        fitted = self._fitted()
        index = beliefs.act(fitted.policy, fitted.scaling, obs)
        return index if is_batch else index[0]

    def q_values(self, observation: Any) -> np.ndarray:
        """The values that `predict` compares, `[A]` or `[n, A]`, in [0, 1 / (1 - gamma)].

        In rounds the mean of `beliefs`, for Algorithm 1 the optimistic value.

        Examples:
          >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
          >>> agent.q_values([-0.5, 0.0]).shape
          (3,)
        """
        return getattr(self.beliefs(observation), self._learner.acts_by)

    def beliefs(self, observation: Any) -> Beliefs:
        """Mean, spread and optimistic value, `[A]` each, or `[n, A]` for a batch; see `Beliefs`."""
        obs, is_batch = self._observations.batch(observation)
        found = beliefs.believe(self._fitted(is_whole=True), obs)
        return found if is_batch else Beliefs(*(each[0] for each in found))

    def _fitted(self, is_whole: bool = False) -> Fitted:
        """What answers: fitted when it is asked for, and kept until there are other transitions."""
        history, fitted = self._fit
        if history is not self._memory.history or (is_whole and fitted.believer is None):
            fitted = self._learner.finished(self._memory)
            self._fit = self._memory.history, fitted
        return fitted

    def evaluate(
        self,
        num_episodes: int = 20,
        *,
        env: Any = None,
        seed: int | None = None,
        max_steps: int | None = None,
    ) -> Evaluation:
        """Episodes of the policy as it is, without learning, in environments of its own.

        Args:
          env: name or environment, by default that of learning: opened anew by its name, or a copy.
          seed: of the episodes, by default one that learning has not used.
          max_steps: episodes are cut off then, by default at 1000 where there is no time limit.

        Examples:
          >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
          >>> agent.evaluate(2).returns.tolist()  # 20 steps are too few
          [-200.0, -200.0]
        """
        given = self._given if env is None else env
        if given is None:
            raise ValueError("the agent was loaded from a file and has no environment: give env=.")
        seed = self.evaluation_seed if seed is None else seed
        # The agent's own environment is in the middle of an episode.
        with episodes.opened(given, env is None, num_episodes) as envs:
            limit = episodes.limit_of(envs[0], max_steps)
            return Evaluation.of(episodes.run(self, envs, num_episodes, seed, limit), limit)

    # Files ----------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes recipe, spaces, history and last fit to one npz file, but not the environment.

        One that was given by its name is made again when it is needed. Another has to be given to
        `load`, as has a kernel of your own.

        Examples:
          >>> import os, tempfile
          >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
          >>> with tempfile.TemporaryDirectory() as directory:
          ...     agent.save(os.path.join(directory, "car.npz"))
          ...     again = kqljax.KQL.load(os.path.join(directory, "car.npz"))
          >>> bool(np.all(again.q_values([-0.5, 0.0]) == agent.q_values([-0.5, 0.0])))
          True
        """
        history, ranges, now = self._memory
        now, fitted = self._learner.kept(now), None
        if now is None and history.total:
            fitted = self._fitted()._replace(believer=None)
        content = {name: getattr(self, name) for name in _SAVED}
        content["_memory"] = Memory(history.trimmed(), ranges, now)
        io.save(path, "agent", content | {"_given": self.env_name, "fitted": fitted})

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, env: Any = None, kernel: Kernel | None = None
    ) -> Self:
        """The agent that `save` wrote, which acts alike and goes on with a new episode; see `save`.

        Args:
          env: to learn and be evaluated in, where it was not given by name or shall be another.
          kernel: the agent's kernel, where it is not one of the library's.
        """
        found, agent = io.load(path, "agent", kernel), object.__new__(cls)
        for name in (*_SAVED, "_memory", "_given"):
            setattr(agent, name, found[name])
        fitted, agent._env = found["fitted"], None
        agent._fit = (None if fitted is None else agent._memory.history), fitted
        if env is not None:
            agent._replace_env(env)
        return agent


_SAVED = ("seed", "actions", "_observations", "_learner")
_INSTEAD = {
    "kernel": "learning in rounds fits its kernel to the transitions. Leave it out",
    "gamma": "learning in rounds has two discounts: give recipe=dataclasses.replace("
    "kqljax.rounds.DEFAULT, gamma=0.95, finish_gamma=0.98)",
    "horizon": "no number of rounds depends on the length of a run. Leave it out",
}
"""What to say to who gives rounds an argument of Algorithm 1."""
