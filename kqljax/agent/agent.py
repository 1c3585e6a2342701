"""`KQL`: the agent for gymnasium users."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import gymnasium
import numpy as np

from kqljax.agent import episodes, files
from kqljax.agent.beliefs import Beliefs
from kqljax.agent.callbacks import AgentStep, Callback, read_callbacks
from kqljax.agent.episodes import Evaluation
from kqljax.agent.history import SIZE, History
from kqljax.agent.learners import Learner, make_learner
from kqljax.agent.loops import Loop, SingleLoop, Steps, Totals, VectorLoop
from kqljax.agent.progress import learning_bar
from kqljax.agent.scaling import Ranges, check_end_value, check_obs_bounds, check_reward_range
from kqljax.agent.spaces import check_env, make_env, open_env, preset_of, read_actions, read_observations, spaces_of
from kqljax.checks import whole_number
from kqljax.config import KQLConfig
from kqljax.errors import describe
from kqljax.features import FeatureMap
from kqljax.kernels import Kernel
from kqljax.rounds import Recipe

_SIDE_BY_SIDE = 20
"""Environments that an evaluation opens, at most."""


class Memory(NamedTuple):
    """All that an agent has learned; replaced whole after every step, so that an interruption finds one or the other.

    Attributes:
      history: raw transitions.
      ranges: bounds of observations and rewards.
      now: what the learner holds between two steps; None before the first and after a file was read.
      returns, lengths: of the episodes that ended while learning.
    """

    history: History
    ranges: Ranges
    now: Any
    returns: tuple[float, ...] = ()
    lengths: tuple[int, ...] = ()


class KQL:
    """Kernelized Q-learning for gymnasium environments, with the habits of Stable-Baselines3.

        agent = kqljax.KQL("MountainCar-v0", seed=0).learn(1000)
        action, _ = agent.predict(obs)

    Two learners. By default the agent learns in rounds (`kqljax.rounds`): it keeps the transitions, fits everything anew from
    them now and then, and acts with the result until the next round. With `recipe="paper"` or a `KQLConfig` it is Algorithm 1
    of the paper, one backup a step. docs/howto.md says which arguments each of them takes.

    Scales. Observations become [-1, 1] and rewards [0, 1]. On the paper's tasks (MountainCar, CartPole, Acrobot, Pendulum,
    without wrappers that change what goes in or out) the paper's normalisation and actions are the defaults. Elsewhere bounds
    are those of the observation space, and ends that are infinite there, as well as the range of the rewards, are estimated
    while learning: they cover all that was seen and some more, and the next fit counts with them. Observations beyond the
    bounds count as at them. Discrete observations become one-hot vectors. Algorithm 1 needs bounds that never move.

    Ends. After termination the environment pays 0 for ever (`end_value` says otherwise). A time limit is not an end: the value
    goes on from the true successor.

    Memory. Of a long run 4096 transitions are kept: the newest 2048, and whole older episodes, each with the same chance.

    Vector environments. All of them feed one history. At each step all actions are chosen one after another, each knowing of
    the pairs before it. Every autoreset mode will do.

    Args:
      env: name of a gymnasium environment, a gymnasium environment, or a gymnasium.vector environment.
      recipe: "default" (`kqljax.rounds.DEFAULT`), another `kqljax.rounds.Recipe`, "paper", or a `KQLConfig`.
      seed: of the environment and of random ties; None draws one.
      actions: the actions to choose from, needed for a Box; by default all of a Discrete space.
      obs_bounds: (low, high), numbers or vectors `[l]`; infinite ends are estimated.
      reward_range: (lowest, highest), or "estimate".
      end_value: what an end is worth, as a share in [0, 1] of the largest value; not with a KQLConfig, which says it itself.
      kernel: of Algorithm 1, only with `recipe="paper"`, as the next three; further numbers with a KQLConfig.
      gamma: discount, by default 0.95.
      features: a map of `kqljax.features` for runs that are too long for the exact engine.
      horizon: T, the steps that lam and beta are set for; by default those of the first call of `learn`.

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
        features: FeatureMap | None = None,
        horizon: int | None = None,
    ) -> None:
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1)
        self.seed = whole_number("seed", seed, 0, "It seeds the environment and random ties.")
        self._given: Any = env
        self._env: Any = None
        self._policy: tuple[History, Any] | None = None
        self._draws = 0
        opened = self.env
        preset = preset_of(opened)
        observation_space, action_space = spaces_of(opened)
        self._observations = read_observations(observation_space)
        if actions is None and preset is not None and preset.actions is not None:
            actions = list(preset.actions)
        self.actions = read_actions(action_space, actions)
        low, high = self._observations.low, self._observations.high
        if obs_bounds is not None:
            low, high = check_obs_bounds(obs_bounds, self._observations.obs_dim)
        elif preset is not None and preset.obs_bounds is not None:
            low, high = preset.obs_bounds
        known = None
        if reward_range is None and preset is not None:
            known = preset.reward_range
        elif reward_range is not None and not (isinstance(reward_range, str) and reward_range == "estimate"):
            known = check_reward_range(reward_range)
        ranges = Ranges.of(low, high, known)
        of_algorithm_1 = {"kernel": kernel, "gamma": gamma, "features": features, "horizon": horizon}
        self._learner: Learner = make_learner(
            recipe,
            obs_dim=self._observations.obs_dim,
            num_actions=len(self.actions),
            ranges=ranges,
            end_value=check_end_value(end_value),
            eta=0.02 if preset is None else preset.eta,
            seed=self.seed,
            given={name: value for name, value in of_algorithm_1.items() if value is not None},
        )
        self._memory = Memory(History.empty(self._observations.obs_dim), ranges, None)

    # What there is -------------------------------------------------------------------------------------------------------

    @property
    def env(self) -> Any:
        """The environment that the agent learns in; one that was given by name is opened when it is needed."""
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

        "obs" and "next_obs" `[N, l]`; "action", "reward", "terminated", "truncated", "episode" (its number), "is_first" and
        "is_last" (of an episode) `[N]`.
        """
        return self._memory.history.ordered()

    @property
    def episode_returns(self) -> list[float]:
        """Undiscounted returns of the episodes that ended while learning."""
        return list(self._memory.returns)

    @property
    def episode_lengths(self) -> list[int]:
        """Steps of the episodes that ended while learning."""
        return list(self._memory.lengths)

    @property
    def obs_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Low `[l]` and high `[l]` that become -1 and 1; estimates where they were not known."""
        return self._memory.ranges.bounds

    @property
    def reward_range(self) -> tuple[float, float]:
        """Raw rewards that become 0 and 1; estimates where they were not known."""
        scaling = self._memory.ranges.scaling()
        return scaling.reward_low, scaling.reward_high

    def __repr__(self) -> str:
        name = self.env_name or ("no environment" if self._given is None else type(self._given).__name__)
        kept = f"{self._memory.history.num_kept} transitions kept (at most {SIZE})"
        return f"KQL({name!r}, {self._learner.name}, {self.num_timesteps} steps, {kept}, seed={self.seed})"

    # Learning ------------------------------------------------------------------------------------------------------------

    def learn(
        self,
        total_timesteps: int,
        callback: Callback | Sequence[Callback] | None = None,
        *,
        progress_bar: bool = False,
        env: Any = None,
    ) -> Self:
        """Takes `total_timesteps` steps in the environment, learning from them; returns the agent.

        Called again, it goes on: everything learned stays. Each call begins with a new episode, so the environment may have
        been used for something else in between. Whatever stops it, an interruption by the keyboard or an error in the
        environment, leaves an agent that acts, can be saved and can go on.

        A vector of n environments makes up to n transitions a step, and up to n - 1 more than asked for in all.

        Args:
          callback: function (or a list of them) of the agent and an `AgentStep`, called after each step. Where one returns
            False, learning stops, as in Stable-Baselines3.
          progress_bar: shows one, on stderr.
          env: another environment with the same spaces, from now on.

        Examples:
          >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
          >>> agent.learn(20, callback=lambda agent, step: step.num_timesteps < 30).num_timesteps
          30
        """
        whole_number("total_timesteps", total_timesteps, 1, "It is the number of environment steps.")
        callbacks = read_callbacks(callback)
        if env is not None:
            self._replace_env(env)
        loop = self._open()
        memory = self._memory
        self._learner.start(memory.history.total, total_timesteps + loop.num_envs - 1)
        # A number of its own for every call, which no other seed has.
        seed = (
            np.random.SeedSequence([self.seed, memory.history.total]).generate_state(1)[0]
            if memory.history.total
            else self.seed
        )
        obs = loop.reset(int(seed))
        memory = memory._replace(
            history=memory.history.begun(loop.num_envs),
            ranges=memory.ranges.covering(obs, np.zeros(0)),
            now=self._learner.resumed(memory.now),
        )
        first, totals = memory.history.total, Totals(loop.num_envs)
        with learning_bar(total_timesteps, progress_bar) as show:
            while memory.history.total < first + total_timesteps:
                action, now = self._learner.choose(memory.now, memory.history, memory.ranges, obs, loop.is_moved)
                steps = loop.step(action)
                history = memory.history.added(steps)
                ranges = memory.ranges.covering(np.concatenate([steps.next_obs, steps.now]), steps.reward)
                now = self._learner.learned(now, history, len(steps.reward))
                ended = totals.add(steps)
                returns = memory.returns + tuple(value for value, _ in ended)
                lengths = memory.lengths + tuple(length for _, length in ended)
                memory = self._memory = Memory(history, ranges, now, returns, lengths)
                obs = steps.now
                show(history.total - first, returns)
                if callbacks and self._tell(callbacks, steps, loop):
                    break
        return self

    def _tell(self, callbacks: Sequence[Callback], steps: Steps, loop: Loop) -> bool:
        """Tells the callbacks; True where one of them wants to stop."""
        one = isinstance(loop, SingleLoop)
        names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
        fields = {name: getattr(steps, name)[0] if one else getattr(steps, name) for name in names}
        told = AgentStep(num_timesteps=self.num_timesteps, **fields)
        # All are called, also after one has said no.
        answers = [callback(self, told) for callback in callbacks]
        return any(answer is False for answer in answers)

    def _open(self) -> Loop:
        if self.env is None:
            raise ValueError("the agent was loaded from a file and has no environment to learn in: learn(..., env=...).")
        if not isinstance(self.env, gymnasium.vector.VectorEnv):
            return SingleLoop(self.env, self._observations, self.actions)
        if self.env.num_envs > SIZE // 4:
            raise ValueError(
                f"{self.env.num_envs} environments side by side would fill the history of {SIZE} transitions in a few steps: "
                f"take at most {SIZE // 4}."
            )
        return VectorLoop(self.env, self._observations, self.actions)

    def _replace_env(self, env: Any) -> None:
        if env is self._env:
            return  # the agent's own, which it may have opened itself
        new = open_env(env)
        try:
            self._check_spaces(new)
        except ValueError:
            if isinstance(env, str):
                new.close()
            raise
        self.close()
        self._given, self._env = env, new

    def _check_spaces(self, env: Any) -> None:
        observation_space, action_space = spaces_of(env)
        found, mine = read_observations(observation_space), self._observations
        if (found.shape, found.num_values, found.start) != (mine.shape, mine.num_values, mine.start):
            words = [f"{each.num_values} values" if each.num_values else f"shape {each.shape}" for each in (mine, found)]
            raise ValueError(f"the agent learned from observations of {words[0]}, this environment has {words[1]}.")
        read_actions(action_space, list(self.actions))

    def close(self) -> None:
        """Closes the environment, if the agent opened it. It is opened again when it is needed.

        Examples:
          >>> kqljax.KQL("MountainCar-v0", seed=0).learn(20).close()
        """
        if isinstance(self._given, str) and self._env is not None:
            self._env.close()
            self._env = None

    # Asking --------------------------------------------------------------------------------------------------------------

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[np.ndarray, None]:
        """The best action, and None: the signature of Stable-Baselines3.

        In rounds the finished policy answers, fitted to all transitions at the first call after `learn`. Algorithm 1 takes the
        action of the greatest optimistic value.

        Args:
          observation: one of the environment's, or a batch of them `[n, ...]`.
          state: not used; the policy has no memory.
          episode_start: not used.
          deterministic: of Algorithm 1: whether of actions that are equally good the first is taken, or one at random. The
            policy of rounds has no randomness.

        Returns:
          What the environment takes, `[...]`, or `[n, ...]` for a batch; and None.

        Examples:
          >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
          >>> action, _ = agent.predict([-0.5, 0.0])
          >>> actions, _ = agent.predict(np.zeros((4, 2)))
          >>> int(action) in (0, 1, 2), actions.shape
          (True, (4,))
        """
        return self.actions[self.choose(observation, deterministic)], None

    def choose(self, observation: Any, deterministic: bool = True) -> np.ndarray:
        """`predict` as the index `[]`, or `[n]` for a batch, of the action in `actions`.

        Examples:
          >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
          >>> agent.choose(np.zeros((4, 2))).shape
          (4,)
        """
        self._draws += 1
        obs, is_batch = self._batch(observation)
        index = self._learner.act(self._fitted(), obs, not deterministic, self._draws)
        return index if is_batch else index[0]

    def q_values(self, observation: Any) -> np.ndarray:
        """The values that `predict` compares, `[A]` or `[n, A]`: the mean of `beliefs`, or for Algorithm 1 the optimistic one.

        In units of the normalised reward: in [0, 1 / (1 - gamma)].

        Examples:
          >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
          >>> agent.q_values([-0.5, 0.0]).shape
          (3,)
        """
        return getattr(self.beliefs(observation), self._learner.acts_by)

    def beliefs(self, observation: Any) -> Beliefs:
        """Mean, spread and optimistic value, `[A]` each, or `[n, A]` for a batch.

        Examples:
          >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
          >>> agent.beliefs([-0.5, 0.0]).mean.shape
          (3,)
        """
        obs, is_batch = self._batch(observation)
        fitted = self._learner.completed(self._fitted(), self._memory.history, self._memory.ranges)
        self._policy = self._memory.history, fitted
        found = self._learner.beliefs(fitted, obs)
        return found if is_batch else Beliefs(*(each[0] for each in found))

    def _fitted(self) -> Any:
        """What answers: fitted when it is asked for, and kept until there are other transitions."""
        memory = self._memory
        if self._policy is None or self._policy[0] is not memory.history:
            self._policy = memory.history, self._learner.finished(memory.now, memory.history, memory.ranges)
        return self._policy[1]

    def _batch(self, observation: Any) -> tuple[np.ndarray, bool]:
        is_batch = np.ndim(observation) > len(self._observations.shape)
        vectors = self._observations.vectors(observation)
        if vectors.ndim != 1 + is_batch:
            raise ValueError(f"give one observation or a batch [n, ...] of them, got {describe(observation)}.")
        if not np.all(np.isfinite(vectors)):
            raise ValueError(f"observations must be finite numbers, got {describe(observation)}.")
        return (vectors if is_batch else vectors[None]), is_batch

    def evaluate(
        self, num_episodes: int = 20, *, env: Any = None, seed: int | None = None, max_steps: int | None = None
    ) -> Evaluation:
        """Episodes of the policy as it is, without learning, in environments of its own.

        Args:
          env: name or environment, by default that of learning: opened anew by its name, or a copy of the object.
          seed: of the episodes, by default one that learning has not used.
          max_steps: episodes are cut off then, by default after 1000 steps where the environment has no time limit.

        Examples:
          >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
          >>> agent.evaluate(2).returns.tolist()  # 20 steps are too few
          [-200.0, -200.0]
        """
        whole_number("num_episodes", num_episodes, 1, "It is the number of episodes.")
        given = self._given if env is None else env
        if given is None:
            raise ValueError("the agent was loaded from a file and has no environment: give env=.")
        # A given environment is played in as it is, the agent's own never is: it is in the middle of an episode.
        envs, is_ours = _open_for_evaluation(given, num_episodes, is_copied=env is None)
        try:
            limit = episodes.limit_of(envs[0], max_steps)
            played = episodes.run(self, envs, num_episodes, self.evaluation_seed if seed is None else seed, limit)
        finally:
            for each in envs if is_ours else ():
                each.close()
        return Evaluation(
            returns=np.array([each.total for each in played]),
            lengths=np.array([len(each.obs) - 1 for each in played]),
            was_cut=np.array([each.was_cut for each in played]),
            max_steps=limit,
        )

    @property
    def evaluation_seed(self) -> int:
        """A seed that follows from the agent's and that learning does not use."""
        return int(np.random.SeedSequence([self.seed, 0, 1]).generate_state(1)[0])

    # Files ---------------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the agent to one npz file, whole or not at all: recipe, spaces, history and last fit; not the environment.

        An environment that was given by its name is made again when it is needed; another has to be given to `load`. A kernel
        of your own has to be given to `load` too.

        Examples:
          >>> import os, tempfile
          >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
          >>> with tempfile.TemporaryDirectory() as directory:
          ...     agent.save(os.path.join(directory, "car.npz"))
          ...     os.listdir(directory)
          ['car.npz']
        """
        files.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, env: Any = None, kernel: Kernel | None = None) -> Self:
        """The agent that `save` wrote; it acts as the saved one did and goes on learning, with a new episode.

        Args:
          env: to learn in and to be evaluated in, where it was not given by name or shall be another.
          kernel: the agent's kernel, where it is not one of the library's.

        Examples:
          >>> import os, tempfile
          >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
          >>> with tempfile.TemporaryDirectory() as directory:
          ...     agent.save(os.path.join(directory, "car.npz"))
          ...     again = kqljax.KQL.load(os.path.join(directory, "car.npz"))
          >>> bool(np.all(again.q_values([-0.5, 0.0]) == agent.q_values([-0.5, 0.0])))
          True
        """
        agent = object.__new__(cls)
        files.load_into(agent, path, kernel)
        if env is not None:
            agent._replace_env(env)
        return agent


def _open_for_evaluation(given: Any, num_episodes: int, is_copied: bool) -> tuple[list[Any], bool]:
    """Environments to play in, and whether they are ours to close."""
    if isinstance(given, str):
        return [make_env(given) for _ in range(min(num_episodes, _SIDE_BY_SIDE))], True
    if isinstance(check_env(given), gymnasium.vector.VectorEnv):
        raise ValueError("evaluate plays in single environments: give env=, a name or one environment.")
    if not is_copied:
        return [given], False
    try:
        return [copy.deepcopy(given)], True
    except Exception as error:
        raise ValueError(
            f"the environment cannot be copied ({error}), and the agent's own is in the middle of an episode: give env=, "
            "another environment to play in."
        ) from error
