"""A gymnasium environment's observations as vectors, and its actions as indices into a list."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from kqljax._checks import describe
from kqljax.tasks import TASKS, Preset

_HUGE = 1e30
"""Bounds beyond this are the environment's way to say that it has none."""


def make_env(name: str) -> gymnasium.Env:
    """The gymnasium environment of that name, or a ValueError with names that are near."""
    try:
        return gymnasium.make(name)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ImportError(f"the environment {name} needs a package: {error}") from error
    except gymnasium.error.Error as error:
        known = {each.lower(): each for each in gymnasium.registry}
        near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.6)
        # The version counts little: MountainCar-v2 is nearer to MountainCar-v0 than to Hopper-v2.
        base = name.lower().rsplit("-v", 1)[0]
        near += [each for each in known if each.rsplit("-v", 1)[0] == base]
        found = " or ".join(dict.fromkeys(known[each] for each in near))
        raise ValueError(
            f"unknown environment {name!r}.{f' Did you mean {found}?' if found else ''} "
            f"gymnasium.registry lists all {len(known)}. Packages with more are imported first."
        ) from error


def check_env(env: Any) -> Any:
    """A gymnasium environment, single or vector."""
    if isinstance(env, (gymnasium.Env, gymnasium.vector.VectorEnv)):
        return env
    raise TypeError(
        "expected the name of a gymnasium environment, a gymnasium.Env or a "
        f"gymnasium.vector.VectorEnv, got {describe(env)}. For environments of gymnax see "
        "kqljax.Task.wrap and kqljax.train."
    )


def open_env(env: Any) -> Any:
    """An environment, from its name or itself."""
    return make_env(env) if isinstance(env, str) else check_env(env)


_HARMLESS = "TimeLimit OrderEnforcing PassiveEnvChecker RecordEpisodeStatistics RecordVideo"
_HARMLESS += " HumanRendering RenderCollection Autoreset"
"""Wrappers of gymnasium that leave observations, actions and rewards as they are."""

_OPTIONS = "render_mode num_envs vectorization_mode vector_kwargs wrappers max_episode_steps"
"""Options of `gymnasium.make` and `make_vec` that leave the task as it is."""


def preset_of(env: Any) -> Preset | None:
    """The paper's normalisation, for its tasks where nothing changes what goes in and out."""
    spec = getattr(env, "spec", None)
    if spec is None or not (set(_OPTIONS.split()) >= set(spec.kwargs) and _is_plain(env)):
        return None
    return TASKS.get(spec.id)


def _is_plain(env: Any) -> bool:
    """Whether every wrapper is known to be harmless; also of the environments within a vector."""
    while isinstance(env, (gymnasium.Wrapper, gymnasium.vector.VectorWrapper)):
        is_theirs = type(env).__module__.startswith("gymnasium.")
        if not is_theirs or type(env).__name__ not in _HARMLESS.split():
            return False
        env = env.env
    if isinstance(env, gymnasium.vector.SyncVectorEnv):
        return all(_is_plain(each) for each in env.envs)
    # Wrappers in other processes cannot be seen; gymnasium's own vector versions have none.
    return not isinstance(env, gymnasium.vector.AsyncVectorEnv)


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
        array, end = np.asarray(obs), self.start + self.num_values
        if self.num_values:
            is_whole = np.issubdtype(array.dtype, np.integer)
            if not is_whole or np.any((array < self.start) | (array >= end)):
                words = f"observations are whole numbers in {self.start}..{end - 1}"
                raise ValueError(f"{words}, got {describe(obs)}.")
            one_hot = np.zeros((*array.shape, self.num_values))
            np.put_along_axis(one_hot, np.asarray(array - self.start)[..., None], 1.0, axis=-1)
            return one_hot
        if array.shape[-1:] != self.shape or not np.issubdtype(array.dtype, np.number):
            raise ValueError(
                f"an observation has shape {self.shape}, got {describe(obs)}. Give one, or a batch "
                "of them with the batch first."
            )
        return array.astype(np.float64)

    def check_same(self, other: Observations) -> None:
        """Raises ValueError where the vectors of another environment are others."""
        if (self.shape, *self[3:]) != (other.shape, *other[3:]):
            old, new = (
                f"{x.num_values} values" if x.num_values else f"shape {x.shape}"
                for x in (self, other)
            )
            raise ValueError(
                f"the agent learned from observations of {old}, this environment has {new}."
            )

    def batch(self, obs: Any) -> tuple[np.ndarray, bool]:
        """One raw observation or a batch, as vectors `[n, l]`, and whether it was a batch."""
        is_batch, vectors = np.ndim(obs) > len(self.shape), self.vectors(obs)
        if vectors.ndim != 1 + is_batch or not np.all(np.isfinite(vectors)):
            words = "give one observation or a batch [n, ...] of them, all finite numbers"
            raise ValueError(f"{words}, got {describe(obs)}.")
        return (vectors if is_batch else vectors[None]), is_batch


def read_observations(env: Any) -> Observations:
    """What vectors the observations are; a ValueError with the remedy where they are none."""
    space = getattr(env, "single_observation_space", env.observation_space)
    if isinstance(space, spaces.Discrete):
        count = int(space.n)
        return Observations((), np.zeros(count), np.ones(count), count, int(space.start))
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.shape[0]:
        low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
        low, high = np.where(low < -_HUGE, -np.inf, low), np.where(high > _HUGE, np.inf, high)
        return Observations(tuple(space.shape), low, high)
    found, remedy = f"the observation space is a {type(space).__name__}", "FlattenObservation(env)"
    if isinstance(space, spaces.Box):
        found = f"an observation has shape {space.shape}"
        if len(space.shape) in (2, 3) and space.dtype == np.uint8:
            raise ValueError(
                f"the observations are images of shape {space.shape}. A kernel on raw pixels says "
                "little, and KQL has no network that learns features: give it a vector of what "
                "matters, for example with gymnasium.wrappers.TransformObservation."
            )
    elif not isinstance(
        space, spaces.Dict | spaces.Tuple | spaces.MultiDiscrete | spaces.MultiBinary
    ):
        remedy = "TransformObservation, so that its observations are a Box of shape (l,)"
    raise ValueError(
        f"{found}; KQL learns from vectors of shape (l,). Wrap the environment: "
        f"gymnasium.wrappers.{remedy}."
    )


def read_actions(env: Any, given: Sequence[Any] | None) -> np.ndarray:
    """`[A, ...]` what the environment is given for each action index."""
    space = getattr(env, "single_action_space", env.action_space)
    if given is not None:
        if not len(given):
            raise ValueError("actions is empty: give the values to choose from.")
        return np.stack([_read_action(space, value) for value in given])
    if isinstance(space, spaces.Discrete):
        return int(space.start) + np.arange(int(space.n), dtype=np.int64)
    what, example = "no list", [np.asarray(space.sample()).tolist() for _ in range(2)]
    if isinstance(space, spaces.Box):
        low = np.where(np.isfinite(space.low), space.low, -1.0).ravel()
        high = np.where(np.isfinite(space.high), space.high, 1.0).ravel()
        ends = [low, (low + high) / 2, high]
        what = "continuous"
        example = [end.tolist() if end.size > 1 else float(end[0]) for end in ends]
    raise ValueError(
        f"the actions are {what}, {space}; KQL chooses from a list. Give actions=, a list of "
        f"actions of that space, for example actions={example}."
    )


def _read_action(space: Any, value: Any) -> np.ndarray:
    array, is_box = np.array(value, getattr(space, "dtype", None)), isinstance(space, spaces.Box)
    if is_box and array.size not in (1, int(np.prod(space.shape))):
        raise ValueError(f"actions: {value} has shape {array.shape}, expected {space.shape}.")
    array = np.resize(array, space.shape) if is_box else array
    if not space.contains(array if array.ndim or is_box else array[()]):
        raise ValueError(f"actions: {value} is not an action of the environment: {space}.")
    return array
