"""Tasks: an environment with what KQL needs to know about it.

A task is a gymnax environment (or any object with its `step`, `reset` and spaces) with the map of
its observations to [-1, 1], of its rewards to [0, 1], and a list of discrete actions. It is a
pytree: environment parameters and ranges are leaves, so a task can be vmapped over them.

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

from kqljax._arrays import register
from kqljax._checks import describe, is_known
from kqljax.config import KQLConfig
from kqljax.kernels import RBF, Kernel

Array = jax.Array


class TaskStep(NamedTuple):
    """One step of a task.

    Attributes:
      obs: `[l]` normalised observation to act on next: of a new episode where this one is over.
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
    """Random numbers of a step: a key, and where the next episode begins, should this one end."""

    key: Array
    obs: Any
    env_state: Any


@functools.partial(register, static=("name", "env", "num_actions", "max_steps", "clips", "eta"))
@dataclasses.dataclass(frozen=True)
class Task:
    """An environment with its normalisation. Make one with `make_task` or `Task.wrap`.

    Attributes:
      name: for tables and errors.
      env, params: gymnax environment and its parameters.
      num_actions: A.
      max_steps: steps an episode lasts at most.
      centre, half_width: `[l]`; an observation becomes (obs - centre) / half_width.
      clips: whether normalised observations are cut off at -1 and 1.
      reward_low, reward_high: raw rewards that become 0 and 1.
      actions: `[A]` what the environment is given for each action index; None for the index itself.
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
        obs, centre, width = (jnp.asarray(x, dtype) for x in (obs, self.centre, self.half_width))
        scaled = (obs - centre) / width
        return jnp.clip(scaled, -1.0, 1.0) if self.clips else scaled

    def unit_reward(self, reward: Any) -> Array:
        """Raw reward to [0, 1]. Rounding is cut off at the ends; `kql_step` refuses the rest."""
        unit = (reward - self.reward_low) / (self.reward_high - self.reward_low)
        cut = jnp.clip(unit, 0.0, 1.0)
        return jnp.where(jnp.abs(unit - cut) < 1e-5, cut, unit)

    def reset(self, key: Array) -> tuple[Array, Any]:
        """First observation `[l]` of an episode and the environment's state."""
        obs, env_state = self.env.reset(key, self.params)
        return self.normalise(obs), self._stable(key, env_state)

    def step(self, key: Array, env_state: Any, action: Array) -> TaskStep:
        """Takes the action with index `action` `[]`; after a finished episode begins a new one."""
        return self.step_drawn(self.draw(key), env_state, action)

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
        arguments = draws.key, env_state, self._raw_action(action), self.params
        if self._is_open:
            next_obs, state, raw, terminated, _ = self.env.step_env(*arguments)
            truncated = self.env.is_truncated(state, self.params)
            is_over = terminated | truncated
            obs = jnp.where(is_over, self.normalise(draws.obs), self.normalise(next_obs))
            state = jax.tree.map(functools.partial(jnp.where, is_over), draws.env_state, state)
        else:
            obs, state, raw, terminated, truncated, info = self.env.step(*arguments)
            obs, next_obs = self.normalise(obs), info["final_observation"]
        state = jax.tree.map(lambda x, old: jnp.asarray(x, jnp.result_type(old)), state, env_state)
        raw, terminated = jnp.asarray(raw, obs.dtype), jnp.asarray(terminated, bool)
        truncated, next_obs = jnp.asarray(truncated, bool) & ~terminated, self.normalise(next_obs)
        reward = self.unit_reward(raw)
        return TaskStep(obs, state, next_obs, reward, raw, terminated, truncated)

    @property
    def _is_open(self) -> bool:
        """Whether `step` and `reset` are gymnax's own: a wrapper with others keeps them."""
        methods = (getattr(type(self.env), name, None) for name in ("step", "reset"))
        ours = "gymnax.environments.environment"
        return all(getattr(each, "__module__", "") == ours for each in methods)

    def _raw_action(self, action: Array) -> Array:
        return action if self.actions is None else jnp.asarray(self.actions, float)[action]

    def _stable(self, key: Array, env_state: Any) -> Any:
        """The state with the dtypes that a step gives it, so that a scan can carry it."""
        env_state, action = jax.tree.map(jnp.asarray, env_state), self._raw_action(jnp.int32(0))
        step = functools.partial(self.env.step, params=self.params)
        _, after, *_ = jax.eval_shape(step, key, env_state, action)
        return jax.tree.map(lambda leaf, shape: leaf.astype(shape.dtype), env_state, after)

    def config(self, kernel: Kernel | None = None, horizon: int = 1000, **rest: Any) -> KQLConfig:
        """A config for this task, by default with the paper's RBF kernel.

        After the end the environment pays raw reward 0 for ever, so the terminal value is that
        reward, normalised, over 1 - gamma.

        Examples:
          >>> cfg = kqljax.make_task("MountainCar-v0").config(horizon=500)
          >>> cfg.kernel, cfg.num_actions, round(cfg.terminal_value, 6)
          (RBF(eta=0.02), 3, 20.0)
        """
        kernel = RBF(eta=self.eta) if kernel is None else kernel
        if "terminal_value" not in rest:
            unit = (0.0 - self.reward_low) / (self.reward_high - self.reward_low)
            if is_known(unit) and not 0 <= unit <= 1:
                raise ValueError(
                    f"{self.name} pays rewards from {self.reward_low} to {self.reward_high}, so an "
                    "end that pays 0 for ever has no place in them: give terminal_value=, in "
                    "[0, 1 / (1 - gamma)]."
                )
            rest["terminal_value"] = unit / (1.0 - rest.get("gamma", KQLConfig.gamma))
        return KQLConfig(kernel=kernel, num_actions=self.num_actions, horizon=horizon, **rest)

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
          env: object with `reset(key, params)`, `step(key, state, action, params)` (gymnax 1.x: six
            values and `info["final_observation"]`), and gymnax's spaces.
          params: its parameters, by default `env.default_params`.
          reward_range: raw rewards that become 0 and 1.
          obs_bounds: low and high `[l]`, by default those of the observation space.
          actions: values for each action index; needed for a Box of actions.
          max_steps: episode length, by default `params.max_steps_in_episode`, which it replaces; an
            environment without that parameter must keep the limit itself.
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
        if actions is None and not hasattr(space, "n"):
            remedy = "give actions=, values to choose from, for example actions=(-2.0, 0.0, 2.0)."
            raise ValueError(f"{name} has continuous actions: {remedy}")
        worst, best = (float(end) for end in reward_range)
        if not -math.inf < worst < best < math.inf:
            raise ValueError(f"reward_range must be finite, lowest < highest, got {reward_range}.")
        steps = getattr(params, "max_steps_in_episode", None)
        if max_steps is not None:
            params = params if steps is None else params.replace(max_steps_in_episode=max_steps)
            steps = max_steps
        if steps is None:
            raise ValueError(f"{name} has no max_steps_in_episode: give max_steps= of an episode.")
        return cls(
            name=name,
            env=env,
            params=params,
            num_actions=int(space.n) if actions is None else len(actions),
            max_steps=int(steps),
            centre=(low + high) / 2,
            half_width=(high - low) / 2,
            clips=clips,
            reward_low=worst,
            reward_high=best,
            actions=None if actions is None else np.asarray(actions, np.float64),
            eta=eta,
        )


def _bounds(name: str, env: Any, params: Any, given: Any) -> tuple[np.ndarray, np.ndarray]:
    """Low and high `[l]` of an observation."""
    source = "obs_bounds"
    if given is None:
        space, source = env.observation_space(params), f"the observation space of {name}"
        if not hasattr(space, "low"):
            raise ValueError(f"{source} is no box, {describe(space)}: give obs_bounds=(low, high).")
        given = np.broadcast_to(space.low, space.shape), np.broadcast_to(space.high, space.shape)
    low, high = (np.asarray(end, np.float64) for end in given)
    if low.ndim != 1 or low.shape != high.shape:
        raise ValueError(
            f"{source} must be two vectors of one length, got shapes {low.shape} and {high.shape}."
        )
    if not np.all(np.isfinite(low) & (low < high) & (high < 1e30)):
        raise ValueError(
            f"{source} runs from {low.tolist()} to {high.tolist()}: every bound must be finite, "
            "and low below high. Give obs_bounds=(low, high)."
        )
    return low, high


class Preset(NamedTuple):
    """The paper's normalisation of a task, for gymnax's environment and gymnasium's alike.

    The fields are arguments of `Task.wrap`, and `like` is gymnax's name where it is another.
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
# Rewards of Pendulum from hanging, at full speed, under full torque; the paper's {-1, 0, 1} are
# multiples of the largest one.
_WORST = -(math.pi**2 + 0.1 * 8.0**2 + 0.001 * 2.0**2)

TASKS = {  # by the names of gym's environments
    "MountainCar-v0": Preset((-1.0, 0.0)),
    "Pendulum-v1": Preset((_WORST, 0.0), actions=(-2.0, 0.0, 2.0), eta=1.0),
    "Acrobot-v1": Preset((-1.0, 0.0), (-_ACROBOT, _ACROBOT)),
    "CartPole-v0": _CART_POLE._replace(max_steps=200),
    "CartPole-v1": _CART_POLE._replace(max_steps=500),
}


@functools.cache
def _env(name: str) -> Any:
    # Not at the top: importing gymnax makes arrays, too early for jax.distributed.
    import gymnax

    # One object a name: jit takes environments as static and knows them by identity.
    return gymnax.make(name)[0]


def make_task(name: str) -> Task:
    """One of the paper's tasks, by the name of its gym environment.

    Examples:
      >>> kqljax.make_task("MountainCar-v0").num_actions
      3
    """
    if name not in TASKS:
        raise ValueError(
            f"unknown task {name!r}. Known: {', '.join(TASKS)}. For another environment use "
            "kqljax.Task.wrap."
        )
    preset = TASKS[name]._asdict()
    return Task.wrap(_env(preset.pop("like") or name), name=name, **preset)


def sample_states(task: Task, seed: int = 0, *, rounds: int = 32) -> np.ndarray:
    """Normalised states `[N, l]` of a task, far and wide: what an agent may come to see.

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
    # Actions are held for mean times from one step to half of what an episode lasts, at most 50.
    longest = max(1.0, min(50.0, task.max_steps / 2))

    def chain(key: Array, env_state: Any) -> Any:
        hold_key, first_key, run_key = jax.random.split(key, 3)
        keep = 1.0 - 1.0 / jnp.exp(jax.random.uniform(hold_key) * jnp.log(longest))

        def body(carry: Any, key: Array) -> Any:
            env_state, action = carry
            keep_key, act_key, env_key = jax.random.split(key, 3)
            drawn = jax.random.randint(act_key, (), 0, task.num_actions)
            action = jnp.where(jax.random.uniform(keep_key) < keep, action, drawn)
            step = task.step(env_key, env_state, action)
            return (step.env_state, action), (step.next_obs, (step.obs, step.env_state))

        first = jax.random.randint(first_key, (), 0, task.num_actions)
        return jax.lax.scan(body, (env_state, first), jax.random.split(run_key, length))[1]

    @jax.jit
    def explore(keys: Array) -> Array:
        fresh = jax.vmap(task.reset)(jax.random.split(keys[0], chains))

        def one_round(pool: Any, key: Array) -> Any:
            # Three quarters go on from the frontier, the others start afresh.
            starts = jax.tree.map(lambda far, new: jnp.append(far, new[frontier:], 0), pool, fresh)
            seen, reached = jax.vmap(chain)(jax.random.split(key, chains), starts[1])
            pool = jax.tree.map(
                lambda old, new: jnp.append(old, new.reshape(-1, *old.shape[1:]), 0), pool, reached
            )
            far = _far_apart(pool[0], frontier)
            return jax.tree.map(lambda leaf: leaf[far], pool), seen.reshape(-1, task.obs_dim)

        pool = jax.tree.map(lambda leaf: leaf[:frontier], fresh)
        seen = jax.lax.scan(one_round, pool, keys[1:])[1]
        return jnp.append(fresh[0], seen.reshape(-1, task.obs_dim), 0)

    return np.asarray(explore(jax.random.split(jax.random.key(seed), rounds + 1)), np.float64)


def _far_apart(points: Array, count: int) -> Array:
    """Indices of `count` points `[N, l]`, each the farthest from those before it."""

    def add(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
        nearest, index = carry
        nearest = jnp.minimum(nearest, jnp.sum((points - points[index]) ** 2, axis=1))
        return (nearest, jnp.argmax(nearest)), index

    farthest = jnp.sum((points - points.mean(axis=0)) ** 2, axis=1)
    start = jnp.full_like(farthest, jnp.inf), jnp.argmax(farthest)
    return jax.lax.scan(add, start, length=count)[1]
