"""What a gymnasium environment's observations and actions are to KQL: vectors, and indices into a list."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from kqljax.errors import describe
from kqljax.tasks import TASKS, Preset

_HUGE = 1e30
"""Bounds beyond this are the environment's way to say that it has none."""


def make_env(name: str) -> gymnasium.Env:
    """The gymnasium environment of that name, or a ValueError with names that are near."""
    try:
        return gymnasium.make(name)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ImportError(f"the environment {name} needs a package that is not installed: {error}") from error
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv, gymnasium.error.Error) as error:
        raise ValueError(_unknown(name)) from error


def _unknown(name: str) -> str:
    known = list(gymnasium.registry)
    by_lower = {each.lower(): each for each in known}
    # The version counts little: MountainCar-v2 is nearer to MountainCar-v0 than to Hopper-v2.
    base = name.lower().rsplit("-v", 1)[0]
    near = [by_lower[each] for each in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)]
    near += [each for lower, each in by_lower.items() if lower.rsplit("-v", 1)[0] == base]
    hint = f" Did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
    return (
        f"unknown environment {name!r}.{hint} gymnasium.registry lists all {len(known)}. Packages with more are imported first."
    )


def check_env(env: Any) -> Any:
    """A gymnasium environment, single or vector."""
    if isinstance(env, (gymnasium.Env, gymnasium.vector.VectorEnv)):
        return env
    raise TypeError(
        f"expected the name of a gymnasium environment, a gymnasium.Env or a gymnasium.vector.VectorEnv, got {describe(env)}. "
        "For environments of gymnax see kqljax.Task.wrap and kqljax.train."
    )


def open_env(env: Any) -> Any:
    """An environment, from its name or itself."""
    return make_env(env) if isinstance(env, str) else check_env(env)


def spaces_of(env: Any) -> tuple[Any, Any]:
    """Observation and action space of one environment, also of a vector of them."""
    if isinstance(env, gymnasium.vector.VectorEnv):
        return env.single_observation_space, env.single_action_space
    return env.observation_space, env.action_space


_HARMLESS = frozenset(
    {"TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics", "RecordVideo", "HumanRendering"}
    | {"RenderCollection", "Autoreset"}
)
"""Wrappers of gymnasium that leave observations, actions and rewards as they are."""

_HARMLESS_OPTIONS = frozenset(
    {"render_mode", "num_envs", "vectorization_mode", "vector_kwargs", "wrappers", "max_episode_steps"}
)
"""Options of `gymnasium.make` and `make_vec` that leave the task as it is; wrappers are looked at one by one."""


def preset_of(env: Any) -> Preset | None:
    """The paper's normalisation, where the environment is one of its tasks and nothing changes what goes in and out."""
    spec = getattr(env, "spec", None)
    if spec is None or spec.id not in TASKS:
        return None
    return TASKS[spec.id] if _HARMLESS_OPTIONS.issuperset(spec.kwargs) and _is_plain(env) else None


def _is_plain(env: Any) -> bool:
    """Whether every wrapper is known to be harmless; also of the environments within a vector, where they can be seen."""
    layer = env
    while isinstance(layer, (gymnasium.Wrapper, gymnasium.vector.VectorWrapper)):
        if type(layer).__name__ not in _HARMLESS or not type(layer).__module__.startswith("gymnasium."):
            return False
        layer = layer.env
    if isinstance(layer, gymnasium.vector.SyncVectorEnv):
        return all(_is_plain(each) for each in layer.envs)
    # What environments in other processes are wrapped in cannot be seen; gymnasium's own vector versions have no wrappers.
    return not isinstance(layer, gymnasium.vector.AsyncVectorEnv)


class Observations(NamedTuple):
    """How observations become vectors.

    Attributes:
      shape: of one raw observation, `(l,)`, or `()` for a Discrete space.
      low, high: `[l]` bounds of the space; infinite where it has none.
      num_values: values of a Discrete space, which become one-hot vectors; 0 for a Box.
      start: the first of them.
    """

    shape: tuple[int, ...]
    low: np.ndarray
    high: np.ndarray
    num_values: int = 0
    start: int = 0

    @property
    def obs_dim(self) -> int:
        """l."""
        return self.low.shape[0]

    def vectors(self, obs: Any) -> np.ndarray:
        """Raw observations `[..., *shape]` as float64 vectors `[..., l]`."""
        array = np.asarray(obs)
        if self.num_values:
            if not np.issubdtype(array.dtype, np.integer) or np.any(
                (array < self.start) | (array >= self.start + self.num_values)
            ):
                raise ValueError(
                    f"observations are whole numbers in {self.start}..{self.start + self.num_values - 1}, got {describe(obs)}."
                )
            one_hot = np.zeros((*array.shape, self.num_values))
            np.put_along_axis(one_hot, np.asarray(array - self.start)[..., None], 1.0, axis=-1)
            return one_hot
        if array.shape[-1:] != self.shape or not np.issubdtype(array.dtype, np.number):
            raise ValueError(
                f"an observation has shape {self.shape}, got {describe(obs)}. Give one observation, or a batch of them with "
                "the batch first."
            )
        return array.astype(np.float64)


def read_observations(space: Any) -> Observations:
    """What vectors the observations of a space are; a ValueError with the remedy where they are none."""
    if isinstance(space, spaces.Discrete):
        count = int(space.n)
        return Observations((), np.zeros(count), np.ones(count), count, int(space.start))
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        raise ValueError(
            f"the observation space is a {type(space).__name__}; KQL learns from vectors. Wrap the environment: "
            "gymnasium.wrappers.FlattenObservation(env) joins the parts, FilterObservation picks some of them first."
        )
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        raise ValueError(
            f"the observation space is a {type(space).__name__}; KQL learns from vectors. Wrap the environment with "
            "gymnasium.wrappers.FlattenObservation(env)."
        )
    if not isinstance(space, spaces.Box):
        raise ValueError(
            f"the observation space is {space}; KQL learns from vectors. Wrap the environment with "
            "gymnasium.wrappers.TransformObservation so that its observations are a Box of shape (l,)."
        )
    is_image = len(space.shape) in (2, 3) and space.dtype == np.uint8
    if is_image:
        raise ValueError(
            f"the observations are images of shape {space.shape}. A kernel on raw pixels says little, and KQL has no network "
            "that learns features: give it a vector of what matters, for example with "
            "gymnasium.wrappers.TransformObservation, or use an environment with state observations."
        )
    if len(space.shape) != 1 or space.shape[0] == 0:
        raise ValueError(
            f"an observation has shape {space.shape}; KQL learns from vectors of shape (l,). Wrap the environment with "
            "gymnasium.wrappers.FlattenObservation(env)."
        )
    low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
    low, high = np.where(low < -_HUGE, -np.inf, low), np.where(high > _HUGE, np.inf, high)
    return Observations(tuple(space.shape), low, high)


def read_actions(space: Any, given: Sequence[Any] | None) -> np.ndarray:
    """`[A, ...]` what the environment is given for each action index."""
    if given is not None:
        return _chosen_actions(space, given)
    if isinstance(space, spaces.Discrete):
        return int(space.start) + np.arange(int(space.n), dtype=np.int64)
    if isinstance(space, spaces.Box):
        size = int(np.prod(space.shape))
        ends = [np.where(np.isfinite(end), end, side).astype(float) for end, side in ((space.low, -1), (space.high, 1))]
        low, high = ends[0].ravel(), ends[1].ravel()
        if size == 1:
            example: list[Any] = [float(low[0]), float((low[0] + high[0]) / 2), float(high[0])]
        else:
            example = [low.tolist(), ((low + high) / 2).tolist(), high.tolist()]
        raise ValueError(
            f"the actions are continuous, {space}; KQL chooses from a list. Give actions=, the values to choose from, for "
            f"example actions={example}."
        )
    raise ValueError(
        f"the action space is {space}; KQL chooses from a list. Give actions=, a list of actions of that space, for example "
        f"actions={[np.asarray(space.sample()).tolist() for _ in range(2)]}."
    )


def _chosen_actions(space: Any, given: Sequence[Any]) -> np.ndarray:
    values = []
    for value in given:
        if isinstance(space, spaces.Box):
            array = np.asarray(value, space.dtype)
            if array.shape != space.shape and array.size not in (1, int(np.prod(space.shape))):
                raise ValueError(f"actions: {value} has shape {array.shape}, an action of the environment {space.shape}.")
            array = np.broadcast_to(array.reshape(space.shape) if array.size > 1 else array, space.shape)
        else:
            array = np.asarray(value, getattr(space, "dtype", None))
        if not space.contains(array if array.ndim or isinstance(space, spaces.Box) else array[()]):
            raise ValueError(f"actions: {value} is not an action of the environment, whose actions are {space}.")
        values.append(np.array(array))
    if not values:
        raise ValueError("actions is empty: give the values to choose from.")
    return np.stack(values)
