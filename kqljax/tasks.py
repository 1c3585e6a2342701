"""Tasks: an environment with what KQL needs to know about it.

A task is a gymnax environment (or any object with gymnax's `step`, `reset` and spaces) together with the map of its
observations to [-1, 1], of its rewards to [0, 1], a list of discrete actions, and the reward of the absorbing state that
follows termination. It is a pytree: environment parameters and ranges are leaves, so a task can be vmapped over them.

    task = make_task("MountainCar-v0")
    obs, env_state = task.reset(key)
    step = task.step(key, env_state, action)
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kqljax.config import KQLConfig
from kqljax.errors import describe, is_known
from kqljax.kernels import RBF, Kernel
from kqljax.pytrees import register

Array = jax.Array


class TaskStep(NamedTuple):
    """One step of a task.

    Attributes:
      obs: `[l]` normalised observation to act on next: the first of a new episode where this one is over.
      env_state: state of the environment to go on from.
      next_obs: `[l]` normalised true successor, also where the episode is over.
      reward: `[]` normalised reward in [0, 1].
      raw_reward: `[]` the environment's own reward.
      terminated: `[]` bool, the task ended.
      truncated: `[]` bool, the time limit was reached.

    Examples:
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> obs, env_state = task.reset(jax.random.key(0))
      >>> step = task.step(jax.random.key(1), env_state, 2)
      >>> step.next_obs.shape, float(step.raw_reward), float(step.reward)
      ((2,), -1.0, 0.0)
    """

    obs: Array
    env_state: Any
    next_obs: Array
    reward: Array
    raw_reward: Array
    terminated: Array
    truncated: Array


class Draws(NamedTuple):
    """The random numbers of a step.

    Attributes:
      key: for the environment.
      obs: raw first observation of the next episode, should this one end.
      env_state: the environment's state there.
    """

    key: Array
    obs: Any
    env_state: Any


@functools.partial(register, static=("name", "env", "num_actions", "max_steps", "clips", "eta"))
@dataclasses.dataclass(frozen=True)
class Task:
    """An environment with its normalisation. Make one with `make_task` or `Task.wrap`.

    Attributes:
      name: for tables and errors.
      env: gymnax environment.
      params: its parameters.
      num_actions: A.
      max_steps: steps an episode lasts at most.
      centre, half_width: `[l]`; an observation becomes (obs - centre) / half_width.
      clips: whether normalised observations are cut off at -1 and 1.
      reward_low, reward_high: raw rewards that become 0 and 1.
      actions: `[A]` what the environment is given for each action index, or None for the index itself.
      eta: the paper's kernel width for this task.

    Examples:
      >>> task = kqljax.make_task("CartPole-v0")
      >>> task.obs_dim, task.num_actions, task.max_steps
      (4, 2, 200)
      >>> task.normalise(jnp.array([2.4, 0.0, 0.0, -7.0])).tolist()
      [1.0, 0.0, 0.0, -1.0]
    """

    name: str
    env: Any
    params: Any
    num_actions: int
    max_steps: int
    centre: Any
    half_width: Any
    clips: bool
    reward_low: Any
    reward_high: Any
    actions: Any
    eta: float

    @property
    def obs_dim(self) -> int:
        """l, the length of an observation."""
        return np.shape(self.half_width)[-1]

    def normalise(self, obs: Array) -> Array:
        """Raw observation `[l]` to [-1, 1]^l."""
        dtype = jnp.zeros(()).dtype
        scaled = (jnp.asarray(obs, dtype) - jnp.asarray(self.centre, dtype)) / jnp.asarray(
            self.half_width, dtype
        )
        return jnp.clip(scaled, -1.0, 1.0) if self.clips else scaled

    def unit_reward(self, reward: Any) -> Array:
        """Raw reward to [0, 1]. Rounding beyond the ends is cut off; more is left for `kql_step` to refuse."""
        unit = (reward - self.reward_low) / (self.reward_high - self.reward_low)
        cut = jnp.clip(unit, 0.0, 1.0)
        return jnp.where(jnp.abs(unit - cut) < 1e-5, cut, unit)

    def reset(self, key: Array) -> tuple[Array, Any]:
        """First observation `[l]` of an episode and the environment's state."""
        obs, env_state = self.env.reset(key, self.params)
        return self.normalise(obs), self._stable(key, env_state)

    def step(self, key: Array, env_state: Any, action: Array) -> TaskStep:
        """Takes the action with index `action` `[]`; a finished episode is followed by a new one."""
        obs, new_state, raw, terminated, truncated, info = self._raw_step(key, env_state, action)
        dtype = jnp.zeros(()).dtype
        return TaskStep(
            obs=self.normalise(obs),
            env_state=jax.tree.map(
                lambda new, old: jnp.asarray(new, jnp.asarray(old).dtype), new_state, env_state
            ),
            next_obs=self.normalise(info["final_observation"]),
            reward=self.unit_reward(jnp.asarray(raw, dtype)),
            raw_reward=jnp.asarray(raw, dtype),
            terminated=jnp.asarray(terminated, bool),
            truncated=jnp.asarray(truncated, bool) & ~jnp.asarray(terminated, bool),
        )

    def draw(self, key: Array) -> Draws:
        """The random numbers of a step, for `step_drawn`: those that `step` draws from this key.

        A loop that draws them all before it begins launches some ten kernels less a step.
        """
        step_key, reset_key = jax.random.split(key)
        if not self._is_open:
            return Draws(key, (), ())
        return Draws(step_key, *self.env.reset_env(reset_key, self.params))

    def step_drawn(self, draws: Draws, env_state: Any, action: Array) -> TaskStep:
        """`step` with random numbers that were drawn before."""
        if not self._is_open:
            return self.step(draws.key, env_state, action)
        dtype = jnp.zeros(()).dtype
        raw_obs, moved, raw, terminated, _ = self.env.step_env(
            draws.key, env_state, self._raw_action(action), self.params
        )
        truncated = self.env.is_truncated(moved, self.params) & ~terminated
        is_over = terminated | truncated
        start, moved = (
            jax.tree.map(lambda new, old: jnp.asarray(new, jnp.asarray(old).dtype), tree, env_state)
            for tree in (draws.env_state, moved)
        )
        next_obs, raw = self.normalise(raw_obs), jnp.asarray(raw, dtype)
        return TaskStep(
            obs=jnp.where(is_over, self.normalise(draws.obs), next_obs),
            env_state=jax.tree.map(lambda new, old: jnp.where(is_over, new, old), start, moved),
            next_obs=next_obs,
            reward=self.unit_reward(raw),
            raw_reward=raw,
            terminated=jnp.asarray(terminated, bool),
            truncated=jnp.asarray(truncated, bool),
        )

    @property
    def _is_open(self) -> bool:
        """Whether a step is gymnax's own: a wrapper or an environment with another `step` keeps it."""
        methods = (getattr(type(self.env), name, None) for name in ("step", "reset"))
        return all(
            getattr(each, "__module__", "") == "gymnax.environments.environment" for each in methods
        )

    def _raw_action(self, action: Array) -> Array:
        if self.actions is None:
            return action
        return jnp.asarray(self.actions, jnp.zeros(()).dtype)[action]

    def _raw_step(self, key: Array, env_state: Any, action: Array) -> Any:
        return self.env.step(key, env_state, self._raw_action(action), self.params)

    def _stable(self, key: Array, env_state: Any) -> Any:
        """The state with the dtypes that a step gives it, so that it can be carried through a scan."""
        env_state = jax.tree.map(jnp.asarray, env_state)
        _, after, *_ = jax.eval_shape(self._raw_step, key, env_state, jnp.zeros((), jnp.int32))
        return jax.tree.map(lambda leaf, shape: leaf.astype(shape.dtype), env_state, after)

    def config(
        self, kernel: Kernel | None = None, horizon: int = 1000, **overrides: Any
    ) -> KQLConfig:
        """A config for this task: its number of actions, its terminal value and, by default, the paper's RBF kernel.

        After the end the environment pays raw reward 0 for ever, so the terminal value is that reward, normalised,
        over 1 - gamma.

        Examples:
          >>> cfg = kqljax.make_task("MountainCar-v0").config(horizon=500)
          >>> cfg.kernel, cfg.num_actions, round(cfg.terminal_value, 6)
          (RBF(eta=0.02), 3, 20.0)
        """
        kernel = RBF(eta=self.eta) if kernel is None else kernel
        if "terminal_value" not in overrides:
            unit = (0.0 - self.reward_low) / (self.reward_high - self.reward_low)
            if is_known(unit) and not 0 <= unit <= 1:
                raise ValueError(
                    f"{self.name} pays rewards from {self.reward_low} to {self.reward_high}, so an end that pays 0 for ever "
                    "has no place in them: give terminal_value=, in [0, 1 / (1 - gamma)]."
                )
            overrides["terminal_value"] = unit / (1.0 - overrides.get("gamma", KQLConfig.gamma))
        return KQLConfig(kernel=kernel, num_actions=self.num_actions, horizon=horizon, **overrides)

    @classmethod
    def wrap(
        cls,
        env: Any,
        params: Any = None,
        *,
        reward_range: tuple[float, float],
        obs_bounds: tuple[Any, Any] | None = None,
        actions: Sequence[float] | None = None,
        max_steps: int | None = None,
        clips: bool = False,
        name: str | None = None,
        eta: float = 0.02,
    ) -> Task:
        """A task from any environment with gymnax's interface.

        Args:
          env: object with `reset(key, params)`, `step(key, state, action, params)` (gymnax 1.x: six values and
            `info["final_observation"]`), `observation_space(params)` and `action_space(params)`.
          params: its parameters, by default `env.default_params`.
          reward_range: raw rewards that become 0 and 1.
          obs_bounds: low `[l]` and high `[l]`, by default the bounds of the observation space.
          actions: values for each action index; needed for a Box of actions.
          max_steps: episode length, by default `params.max_steps_in_episode`, which it replaces; an environment without
            that parameter must keep the limit itself.
          clips: cut normalised observations off at -1 and 1.

        Examples:
          >>> import gymnax
          >>> env, _ = gymnax.make("Pendulum-v1")
          >>> task = kqljax.Task.wrap(env, reward_range=(-17.0, 0.0), actions=(-2.0, 0.0, 2.0))
          >>> task.obs_dim, task.num_actions
          (3, 3)
        """
        params = env.default_params if params is None else params
        name = str(name or getattr(env, "name", type(env).__name__))
        low, high = _bounds(name, env, params, obs_bounds)
        space = env.action_space(params)
        if actions is None:
            if not hasattr(space, "n"):
                raise ValueError(
                    f"{name} has continuous actions: give actions=, the values to choose from, for example "
                    "actions=(-2.0, 0.0, 2.0)."
                )
            num_actions = int(space.n)
        else:
            num_actions = len(actions)
        worst, best = (float(end) for end in reward_range)
        if not (math.isfinite(worst) and math.isfinite(best) and worst < best):
            raise ValueError(
                f"reward_range must be (lowest, highest) with lowest < highest, got {reward_range}."
            )
        if max_steps is not None and hasattr(params, "max_steps_in_episode"):
            params = params.replace(max_steps_in_episode=max_steps)
        steps = (
            max_steps if max_steps is not None else getattr(params, "max_steps_in_episode", None)
        )
        if steps is None:
            raise ValueError(
                f"{name} has no max_steps_in_episode: give max_steps=, the length of an episode."
            )
        return cls(
            name=name,
            env=env,
            params=params,
            num_actions=num_actions,
            max_steps=int(steps),
            centre=(low + high) / 2,
            half_width=(high - low) / 2,
            clips=clips,
            reward_low=worst,
            reward_high=best,
            actions=None if actions is None else np.asarray(actions, np.float64),
            eta=eta,
        )


def _bounds(
    name: str, env: Any, params: Any, given: tuple[Any, Any] | None
) -> tuple[np.ndarray, np.ndarray]:
    source = "obs_bounds"
    if given is None:
        space = env.observation_space(params)
        source = f"the observation space of {name}"
        if not hasattr(space, "low"):
            raise ValueError(
                f"{source} is {describe(space)}, not a box: give obs_bounds=(low, high)."
            )
        shape = tuple(space.shape)
        given = np.broadcast_to(space.low, shape), np.broadcast_to(space.high, shape)
    low, high = (np.asarray(end, np.float64) for end in given)
    if low.ndim != 1 or low.shape != high.shape:
        raise ValueError(
            f"{source} must be two vectors of one length, got shapes {low.shape} and {high.shape}."
        )
    if not (
        np.all(np.isfinite(low))
        and np.all(np.isfinite(high))
        and np.all(low < high)
        and np.all(high < 1e30)
    ):
        raise ValueError(
            f"{source} runs from {low.tolist()} to {high.tolist()}: every bound must be finite, and low below high. "
            "Give obs_bounds=(low, high)."
        )
    return low, high


class Preset(NamedTuple):
    """The paper's normalisation of a task, for gymnax's environment and gymnasium's alike.

    Attributes:
      reward_range: raw rewards that become 0 and 1.
      obs_bounds: low and high `[l]` that become -1 and 1; None for those of the observation space.
      actions: values of the actions, where the environment's are continuous.
      clips: whether normalised observations are cut off at -1 and 1.
      eta: width of the paper's kernel.
      like: gymnax's name, where it is another.
      max_steps: of an episode, where gymnax's are others.
    """

    reward_range: tuple[float, float]
    obs_bounds: tuple[np.ndarray, np.ndarray] | None = None
    actions: tuple[float, ...] | None = None
    clips: bool = False
    eta: float = 0.02
    like: str | None = None
    max_steps: int | None = None


_ACROBOT = np.array([1.0, 1.0, 1.0, 1.0, 4 * math.pi, 9 * math.pi])
_CART = np.array([2.4, 3.0, 0.2095, 3.5])
_CART_POLE = Preset((0.0, 1.0), (-_CART, _CART), clips=True, like="CartPole-v1")
# Rewards of Pendulum from hanging, at full speed, under full torque; the paper's {-1, 0, 1} are multiples of the largest one.
_WORST = -(math.pi**2 + 0.1 * 8.0**2 + 0.001 * 2.0**2)

TASKS = {
    "MountainCar-v0": Preset((-1.0, 0.0)),
    "Pendulum-v1": Preset((_WORST, 0.0), actions=(-2.0, 0.0, 2.0), eta=1.0),
    "Acrobot-v1": Preset((-1.0, 0.0), (-_ACROBOT, _ACROBOT)),
    "CartPole-v0": _CART_POLE._replace(max_steps=200),
    "CartPole-v1": _CART_POLE._replace(max_steps=500),
}
"""The paper's tasks, by the names of their gym environments."""


@functools.cache
def _env(name: str) -> Any:
    # Not at the top: gymnax makes arrays when it is imported, and after that it is too late for jax.distributed.
    import gymnax

    # One object a name: jit takes environments as static and knows them by identity.
    return gymnax.make(name)[0]


def make_task(name: str) -> Task:
    """One of the paper's tasks, by the name of its gym environment; CartPole-v0 lasts 200 steps, CartPole-v1 500.

    Examples:
      >>> kqljax.make_task("MountainCar-v0").num_actions
      3
    """
    if name not in TASKS:
        raise ValueError(
            f"unknown task {name!r}. Known: {', '.join(TASKS)}. For another environment use kqljax.Task.wrap."
        )
    preset = TASKS[name]
    given = {
        field: getattr(preset, field)
        for field in ("reward_range", "obs_bounds", "actions", "clips", "max_steps", "eta")
    }
    return Task.wrap(_env(preset.like or name), name=name, **given)


# States that an agent may come to see -------------------------------------------------------------


def sample_states(task: Task, seed: int = 0, *, rounds: int = 32) -> np.ndarray:
    """Normalised states `[N, l]` of a task, far and wide: what an agent that explores may come to see.

    Random actions are held for random times, from the start of an episode at first. Each further
    round goes on from those of the states reached so far that lie farthest apart, so that swings
    grow and velocities add up as under a policy that seeks them.

    Examples:
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> states = kqljax.tasks.sample_states(task, rounds=1)
      >>> states.shape[1], bool(np.all(np.abs(states) <= 1))
      (2, True)
    """
    chains, length, frontier = 64, 32, 48
    begin_key, *keys = jax.random.split(jax.random.key(seed), rounds + 1)

    # Three small programs of fixed shapes: what is slow here is compiling.
    @jax.jit
    def begin(key: Array) -> Any:
        return jax.vmap(task.reset)(jax.random.split(key, chains))

    @jax.jit
    def explore(key: Array, starts: Any) -> Any:
        runs = jax.vmap(lambda key, start: _held_actions(task, key, start, length))(
            jax.random.split(key, chains), starts
        )
        return jax.tree.map(lambda leaf: leaf.reshape(chains * length, *leaf.shape[2:]), runs)

    @jax.jit
    def choose(pool: Any, states: Any, far: Array) -> Any:
        return jax.tree.map(lambda old, new: jnp.concatenate([old, new])[far], pool, states)

    obs, fresh = begin(begin_key)
    pool_obs, pool = np.asarray(obs)[:frontier], jax.tree.map(lambda leaf: leaf[:frontier], fresh)
    seen = [np.asarray(obs)]
    for key in keys:
        # Three quarters go on from the frontier, the others start afresh.
        starts = jax.tree.map(lambda far, new: jnp.concatenate([far, new[frontier:]]), pool, fresh)
        reached, obs, states = explore(key, starts)
        seen.append(np.asarray(reached))
        pool_obs = np.concatenate([pool_obs, np.asarray(obs)])
        far = _far_apart(pool_obs, frontier)
        pool_obs, pool = pool_obs[far], choose(pool, states, far)
    return np.concatenate(seen).astype(np.float64)


def _held_actions(task: Task, key: Array, env_state: Any, length: int) -> Any:
    """Random actions held for random times: `[length, l]` states reached, and states to go on from."""
    hold_key, first_key, run_key = jax.random.split(key, 3)
    # Mean times from one step to half of what an episode lasts, at most 50.
    longest = max(1.0, min(50.0, task.max_steps / 2))
    keep = 1.0 - 1.0 / jnp.exp(jax.random.uniform(hold_key) * jnp.log(longest))

    def body(carry: Any, key: Array) -> Any:
        env_state, action = carry
        keep_key, act_key, env_key = jax.random.split(key, 3)
        drawn = jax.random.randint(act_key, (), 0, task.num_actions)
        action = jnp.where(jax.random.uniform(keep_key) < keep, action, drawn)
        step = task.step(env_key, env_state, action)
        return (step.env_state, action), (step.next_obs, step.obs, step.env_state)

    first = jax.random.randint(first_key, (), 0, task.num_actions)
    return jax.lax.scan(body, (env_state, first), jax.random.split(run_key, length))[1]


def _far_apart(points: np.ndarray, count: int) -> np.ndarray:
    """Indices of `count` points, each the farthest from those before it."""
    chosen = [int(np.argmax(np.sum((points - points.mean(axis=0)) ** 2, axis=1)))]
    nearest = np.full(len(points), np.inf)
    while len(chosen) < min(count, len(points)):
        nearest = np.minimum(nearest, np.sum((points - points[chosen[-1]]) ** 2, axis=1))
        chosen.append(int(nearest.argmax()))
    return np.array(chosen)
