"""`KQL`: the agent for gymnasium users."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Self

import gymnasium
import numpy as np

from kqljax.agent import episodes, files
from kqljax.agent.answers import AgentStep, Posterior
from kqljax.agent.features import make_features
from kqljax.agent.learner import History, Learner, check_sound
from kqljax.agent.loops import Loop, SingleLoop, Steps, Totals, VectorLoop
from kqljax.agent.progress import learning_bar
from kqljax.agent.scaling import Ranges, check_obs_bounds, check_reward_range
from kqljax.agent.spaces import open_env, preset_of, read_actions, read_observations, spaces_of
from kqljax.checks import check_gamma_and_lam, whole_number
from kqljax.config import KQLConfig
from kqljax.errors import describe
from kqljax.features import FeatureMap
from kqljax.kernels import RBF, Kernel
from kqljax.recipes import Recipe, make_recipe
from kqljax.state import KQLState

DEFAULT_HORIZON = 1000
"""What lam and beta are set for before the first call of `learn`."""


Callback = Callable[["KQL", AgentStep], Any]


class KQL:
    """Kernelized Q-learning for gymnasium environments, with the habits of Stable-Baselines3.

        agent = kqljax.KQL("MountainCar-v0", seed=0).learn(1000)
        action, _ = agent.predict(obs)

    Scales. KQL works on observations in [-1, 1] and rewards in [0, 1]. On the paper's tasks (MountainCar, CartPole, Acrobot,
    Pendulum, without wrappers that change what goes in or out) the paper's normalisation and actions are the defaults.
    Elsewhere bounds are those of the observation space, and ends that are infinite there, as well as the range of the rewards,
    are estimated while learning: they cover all that was seen and some more, and whenever one of them moves, the stored
    transitions are learned from anew, so that the state is at any time what Algorithm 1 holds after the same transitions with
    the bounds of now. Observations beyond the bounds count as at them. Discrete observations become one-hot vectors. Give
    `reward_range` where you know it: an estimate cannot know of a reward that was not paid yet. Where it is paid rarely, try a
    smaller `beta` too: FrozenLake without slipping was not learned in 600 steps with the default, whose bonus outweighs one
    reward of 1 an episode, and was with 0.02.

    Ends. After termination the environment pays 0 for ever (`terminal_value` says otherwise). A time limit is not an end: the
    value goes on from the true successor.

    Vector environments. All of them feed one posterior. At each step all actions are chosen from the same state; then their
    transitions are learned from one after another, in the order of the environments. Every autoreset mode will do.

    Precision. float64 whatever jax has enabled, without a change to jax's configuration; see `kqljax.agent.learner`.

    Args:
      env: name of a gymnasium environment, a gymnasium environment, or a gymnasium.vector environment.
      recipe: "robust" fits the kernel to what is seen and is the same for every environment; "paper" is the paper's section 6
        (`kqljax.recipes`, docs/recipe.md). It says what `kernel`, `gamma` and `backups` are where they are not given.
      kernel: kept as it is. Where features are given and no kernel, RBF with the paper's eta, 0.02 (1 for Pendulum).
      horizon: T, the steps that lam and beta are set for; by default those of the first call of `learn`.
      gamma: discount factor, by default the recipe's; one that is given holds for the finished policy too.
      lam: ridge parameter, by default 1 / (10 T).
      beta: confidence width, by default sqrt(lam) / (1 - gamma).
      features: None for the exact engine, whose time is O(t^2) a step; a map of `kqljax.features`, or "auto", for the
        weight-space engine, linear in t.
      actions: the actions to choose from, needed for a Box; by default all of a Discrete space.
      obs_bounds: (low, high), numbers or vectors `[l]`; infinite ends are estimated.
      reward_range: (lowest, highest), or "estimate".
      terminal_value: normalised value after an end, in [0, 1 / (1 - gamma)].
      seed: of the environment and of random ties; None draws one.
      dtype: "float64", or "float32" with features.
      options: further fields of `KQLConfig`, such as `tie_break` or `memory`.

    Examples:
      >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
      >>> agent
      KQL('MountainCar-v0', kernel from data, exact, 20 steps, seed=0)
      >>> low, high = agent.obs_bounds
      >>> low.round(2).tolist(), high.round(2).tolist(), agent.reward_range
      ([-1.2, -0.07], [0.6, 0.07], (-1.0, 0.0))
    """

    def __init__(
        self,
        env: Any,
        *,
        recipe: str | Recipe = "robust",
        kernel: Kernel | None = None,
        horizon: int | None = None,
        gamma: float | None = None,
        lam: float | None = None,
        beta: float | None = None,
        features: FeatureMap | str | None = None,
        actions: Sequence[Any] | None = None,
        obs_bounds: tuple[Any, Any] | None = None,
        reward_range: tuple[float, float] | str | None = None,
        terminal_value: float | None = None,
        seed: int | None = None,
        dtype: Any = "float64",
        **options: Any,
    ) -> None:
        recipe = make_recipe(recipe)
        has_gamma = gamma is not None
        gamma = recipe.gamma if gamma is None else gamma
        check_gamma_and_lam(gamma, 1.0)
        options.setdefault("backups", recipe.backups)
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1)
        self.seed = whole_number("seed", seed, 0, "It seeds the environment and random ties.")
        self.env_name = env if isinstance(env, str) else None
        self.env = open_env(env)
        self.episode_returns: list[float] = []
        self.episode_lengths: list[int] = []
        preset = preset_of(self.env)
        observation_space, action_space = spaces_of(self.env)
        self._observations = read_observations(observation_space)
        # States to choose features from are those of the paper's task as it is.
        sampled = preset if obs_bounds is None and actions is None else None
        if actions is None and preset is not None and preset.actions is not None:
            actions = list(preset.actions)
        self.actions = read_actions(action_space, actions)
        low, high = self._observations.low, self._observations.high
        if obs_bounds is not None:
            low, high = check_obs_bounds(obs_bounds, self._observations.obs_dim)
        elif preset is not None:
            low, high = preset.centre - preset.half_width, preset.centre + preset.half_width
        known_range = None
        if reward_range is None and preset is not None:
            known_range = float(preset.reward_low), float(preset.reward_high)
        elif reward_range is not None and not (isinstance(reward_range, str) and reward_range == "estimate"):
            known_range = check_reward_range(reward_range)
        # A kernel or features that are given stay as they are.
        is_whole = kernel is None and features is None and recipe.kernel is not None
        first_fit, committee = (recipe.first_fit, recipe.committee) if is_whole else (None, None)
        if committee is not None and has_gamma:
            committee = committee._replace(gamma=float(gamma))
        if kernel is None:
            kernel = recipe.kernel_for(self._observations.obs_dim, len(self.actions)) if is_whole else None
        kernel = RBF(eta=preset.eta if preset is not None else 0.02) if kernel is None else kernel
        if isinstance(features, str) and features == "auto":
            features = make_features(kernel, sampled, self._observations.obs_dim, len(self.actions))
        ranges = Ranges(low, high, known_range)
        has_end = terminal_value is not None
        cfg = KQLConfig(
            kernel=kernel,
            num_actions=len(self.actions),
            horizon=DEFAULT_HORIZON if horizon is None else horizon,
            gamma=gamma,
            lam=lam,
            beta=beta,
            features=features,  # type: ignore[arg-type]
            terminal_value=terminal_value if has_end else ranges.end_value(gamma),
            **options,
        ).validate()
        # What was given, for the first call of `learn` to know which of lam and beta follow from its number of steps.
        self._horizon, self._lam, self._beta, self._draws = horizon, lam, beta, 0
        self._learner = Learner(
            cfg, ranges, History(self._observations.obs_dim), dtype, self.seed, has_end, first_fit, committee
        )

    # What there is -------------------------------------------------------------------------------------------------------

    @property
    def num_timesteps(self) -> int:
        """Transitions learned from so far."""
        return self._learner.history.count

    @property
    def config(self) -> KQLConfig:
        """The config of Algorithm 1, with lam and beta as they are."""
        return self._learner.cfg

    @property
    def state(self) -> KQLState:
        """KQL's state. Its arrays are float64: look at it inside `with jax.enable_x64(True):`."""
        return self._learner.state

    @property
    def history(self) -> dict[str, np.ndarray]:
        """Raw transitions: "obs" and "next_obs" `[N, l]`, "action", "reward", "terminated", "truncated" `[N]`."""
        return self._learner.history.as_dict()

    @property
    def obs_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Low `[l]` and high `[l]` that become -1 and 1; estimates where they were not known."""
        return self._learner.ranges.low.copy(), self._learner.ranges.high.copy()

    @property
    def reward_range(self) -> tuple[float, float]:
        """Raw rewards that become 0 and 1; estimates where they were not known."""
        return self._learner.ranges.reward_low, self._learner.ranges.reward_high

    def __repr__(self) -> str:
        name = self.env_name or (type(self.env).__name__ if self.env is not None else "no environment")
        engine = "exact" if self.config.features is None else f"{self.config.features.num_weights} features"
        kernel = self.config.kernel if self._learner.first_fit is None else "kernel from data"
        return f"KQL({name!r}, {kernel}, {engine}, {self.num_timesteps} steps, seed={self.seed})"

    # Learning ------------------------------------------------------------------------------------------------------------

    def learn(
        self,
        total_timesteps: int,
        callback: Callback | Sequence[Callback] | None = None,
        *,
        progress_bar: bool = False,
        env: Any = None,
    ) -> Self:
        """Takes `total_timesteps` steps in the environment, learning from each; returns the agent.

        Called again, it goes on: everything learned stays, and the state gets more room. lam and beta remain those of the
        first call, set for its number of steps (or for `horizon=`): they are part of the regression and of the bonus that
        all values rest on. Who knows that a run will be longer gives `horizon=` to begin with. Each call begins with a new
        episode, so the environment may have been used for something else in between.

        A vector of n environments makes up to n transitions a step, and up to n - 1 more than asked for in all.

        Args:
          callback: function (or a list of them) of the agent and an `AgentStep`, called after each step. Where one returns
            False, learning stops, as in Stable-Baselines3.
          progress_bar: shows one, on stderr.
          env: another environment with the same spaces to go on in.

        Examples:
          >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
          >>> agent.learn(20, callback=lambda agent, step: step.num_timesteps < 30).num_timesteps
          30
        """
        whole_number("total_timesteps", total_timesteps, 1, "It is the number of environment steps.")
        callbacks = [callback] if callable(callback) else list(callback or ())
        if env is not None:
            self._replace_env(env)
        loop = self._open()
        if self.num_timesteps == 0 and self._horizon is None:
            self._learner.set_horizon(total_timesteps, self._lam, self._beta)
        self._learner.reserve(total_timesteps + loop.num_envs - 1)
        stop_at = self.num_timesteps + total_timesteps
        totals = Totals(loop.num_envs)
        try:
            with learning_bar(total_timesteps, progress_bar) as show:
                # The seed of later calls follows from the first: otherwise each would begin with the same episodes.
                action = self._learner.begin(loop.reset(self.seed + self.num_timesteps))
                while self.num_timesteps < stop_at:
                    steps = loop.step(action)
                    outcome = self._learner.advance(steps)
                    check_sound(bool(outcome.is_sound) and bool(np.all(outcome.action >= 0)))
                    action = np.asarray(outcome.action)
                    for value, length in totals.add(steps):
                        self.episode_returns.append(value)
                        self.episode_lengths.append(length)
                    show(total_timesteps - (stop_at - self.num_timesteps), self.episode_returns)
                    if callbacks and self._call(callbacks, steps, outcome, loop):
                        break
        except BaseException:
            self._learner.repair()
            raise
        return self

    def _call(self, callbacks: Sequence[Callback], steps: Steps, outcome: Any, loop: Loop) -> bool:
        """Tells the callbacks; True where one of them wants to stop."""
        one = isinstance(loop, SingleLoop)
        names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
        fields = {name: getattr(steps, name) for name in names} | {"q_tilde": outcome.q_tilde}
        fields = {name: rows[0] if one else rows for name, rows in fields.items()}
        told = AgentStep(num_timesteps=self.num_timesteps, info=outcome.info, **fields)
        # All are called, also after one has said no.
        answers = [callback(self, told) for callback in callbacks]
        return any(answer is False for answer in answers)

    def _open(self) -> Loop:
        if self.env is None:
            if self.env_name is None:
                raise ValueError("the agent was loaded from a file and has no environment to learn in: learn(..., env=...).")
            self._replace_env(self.env_name)
        kind = VectorLoop if isinstance(self.env, gymnasium.vector.VectorEnv) else SingleLoop
        return kind(self.env, self._observations, self.actions)

    def _replace_env(self, env: Any) -> None:
        new = open_env(env)
        observation_space, action_space = spaces_of(new)
        found = read_observations(observation_space)
        mine = self._observations
        if (found.shape, found.num_values, found.start) != (mine.shape, mine.num_values, mine.start):
            raise ValueError(f"the agent learned from observations of shape {mine.shape}, this environment has {found.shape}.")
        read_actions(action_space, list(self.actions))
        self.env = new

    # Asking --------------------------------------------------------------------------------------------------------------

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[np.ndarray, None]:
        """The action of greatest value, and None: the signature of Stable-Baselines3.

        The value is the optimistic one that `q_values` tells, but with the robust recipe: acting finds nothing out, so kernels
        of several widths decide together, without a bonus, and look some steps ahead (`kqljax.committee`). They are solved at
        the first call after `learn`. While there is still much to find out, optimism decides here too.

        Args:
          observation: one of the environment's, or a batch of them `[n, ...]`.
          state: not used; the policy has no memory.
          episode_start: not used.
          deterministic: whether of actions that are equally good the first is taken, or one at random. The policy has no
            other randomness.

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
        index = self._learner.decide(obs, not deterministic, self._draws)
        check_sound(bool(np.all(index >= 0)))
        return index if is_batch else index[0]

    def q_values(self, observation: Any) -> np.ndarray:
        """Optimistic values Q-tilde `[A]`, or `[n, A]` for a batch, in [0, 1 / (1 - gamma)] as rewards are in [0, 1].

        Examples:
          >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
          >>> agent.q_values([-0.5, 0.0]).shape
          (3,)
        """
        return self.posterior(observation).q_tilde

    def posterior(self, observation: Any) -> Posterior:
        """Estimate, width and optimistic value, `[A]` each, or `[n, A]` for a batch.

        Examples:
          >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
          >>> believed = agent.posterior([-0.5, 0.0])
          >>> believed.q_hat.shape, believed.width.shape, believed.q_tilde.shape
          ((3,), (3,), (3,))
        """
        obs, is_batch = self._batch(observation)
        return Posterior(*(each if is_batch else each[0] for each in self._learner.look(obs)))

    def _batch(self, observation: Any) -> tuple[np.ndarray, bool]:
        is_batch = np.ndim(observation) > len(self._observations.shape)
        vectors = self._observations.vectors(observation)
        if vectors.ndim != 1 + is_batch:
            raise ValueError(f"give one observation or a batch [n, ...] of them, got {describe(observation)}.")
        if not np.all(np.isfinite(vectors)):
            raise ValueError(f"observations must be finite numbers, got {describe(observation)}.")
        return (vectors if is_batch else vectors[None]), is_batch

    def evaluate(self, num_episodes: int = 20, *, env: Any = None, seed: int | None = None) -> np.ndarray:
        """Undiscounted returns `[num_episodes]` of the policy as it is, without learning.

        Args:
          env: where, by default a new environment of the same name, or the agent's own.
          seed: of the first episode, by default one that training has not used.

        Examples:
          >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
          >>> agent.evaluate(2).tolist()  # 20 steps are too few
          [-200.0, -200.0]
        """
        env = self._eval_env(env)
        seed = self.seed + 1_000_003 if seed is None else seed
        return np.array([each.total for each in episodes.run(self, env, num_episodes, seed)])

    def _eval_env(self, env: Any) -> Any:
        if env is None and self.env_name is None and self.env is None:
            raise ValueError("the agent was loaded from a file and has no environment: give env=.")
        env = env or self.env_name or self.env
        env = open_env(env)
        if isinstance(env, gymnasium.vector.VectorEnv):
            raise ValueError("evaluate runs one episode after another: give env=, a single environment.")
        return env

    # Files ---------------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the agent to one npz file, whole or not at all: config, state, bounds, transitions; not the environment.

        An environment that was given by its name is made again when it is needed; another has to be given to `learn`. A
        kernel of your own has to be given to `load`.

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
        """The agent that `save` wrote; it goes on as the saved one would have, with a new episode.

        Args:
          env: to learn in, where it was not given by name.
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
