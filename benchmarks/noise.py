"""The paper's tasks with noise, and slippery FrozenLake, for learners that take a `kqljax.Task`.

observations  Gaussian noise on every observation, with a standard deviation of 2% of half the range
              that a coordinate is normalised by. The learner sees no other observations, neither in
              training nor in evaluation.
sticky        with probability 0.1 the environment repeats the action before instead of the chosen
              one, as in the Arcade Learning Environment.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import kqljax

Array = jax.Array

KINDS = ("observations", "sticky")
OBSERVATION_NOISE, STICKINESS = 0.02, 0.1
FROZEN_LAKE, FROZEN_LAKE_STEPS = "FrozenLake-v1", 2000


@functools.cache
def make_task(name: str, kind: str | None = None) -> kqljax.Task:
    """A task by name, with one kind of noise or without."""
    if name == FROZEN_LAKE:
        env = FrozenLake()
        return kqljax.Task.wrap(
            env,
            reward_range=(0.0, 1.0),
            obs_bounds=(np.zeros(16), np.ones(16)),
            max_steps=100,
            name=name,
        )
    task = kqljax.make_task(name)
    if kind is None:
        return task
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, or None, got {kind!r}.")
    if kind == "sticky":
        return dataclasses.replace(task, env=Sticky(task.env))
    return dataclasses.replace(
        task, env=Noisy(task.env, OBSERVATION_NOISE * np.asarray(task.half_width))
    )


class Wrapper:
    """An environment with gymnax's interface around another."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


class Noisy(Wrapper):
    """Adds Gaussian noise with standard deviations `[l]` to every observation."""

    def __init__(self, env: Any, deviation: np.ndarray) -> None:
        super().__init__(env)
        self.deviation = deviation

    def _noise(self, key: Array) -> Array:
        return jnp.asarray(self.deviation) * jax.random.normal(key, self.deviation.shape)

    def reset(self, key: Array, params: Any) -> tuple[Array, Any]:
        key, noise_key = jax.random.split(key)
        obs, state = self.env.reset(key, params)
        return obs + self._noise(noise_key), state

    def step(self, key: Array, state: Any, action: Array, params: Any) -> Any:
        key, noise_key = jax.random.split(key)
        obs, state, reward, terminated, truncated, info = self.env.step(key, state, action, params)
        # One observation, one noise: the successor that is stored is what is acted on next.
        noise = self._noise(noise_key)
        info = {**info, "final_observation": info["final_observation"] + noise}
        return obs + noise, state, reward, terminated, truncated, info


class StickyState(NamedTuple):
    """Attributes: `inner`, the state; `last` `[]` the action before, if `has_last` `[]`."""

    inner: Any
    last: Array
    has_last: Array


class Sticky(Wrapper):
    """Repeats the action before with probability `STICKINESS`; never across episodes."""

    def reset(self, key: Array, params: Any) -> tuple[Array, StickyState]:
        obs, state = self.env.reset(key, params)
        return obs, StickyState(state, jnp.zeros(()), jnp.array(False))

    def step(self, key: Array, state: StickyState, action: Array, params: Any) -> Any:
        key, sticky_key = jax.random.split(key)
        repeats = state.has_last & (jax.random.uniform(sticky_key) < STICKINESS)
        # Pendulum's actions are torques, the others' are indices.
        taken = jnp.where(repeats, state.last.astype(action.dtype), action)
        obs, inner, reward, terminated, truncated, info = self.env.step(
            key, state.inner, taken, params
        )
        is_over = terminated | truncated
        return (
            obs,
            StickyState(inner, taken.astype(state.last.dtype), ~is_over),
            reward,
            terminated,
            truncated,
            info,
        )


class LakeState(NamedTuple):
    """Attributes: `place` `[]` int32, row by row; `time` `[]` int32 steps of the episode."""

    place: Array
    time: Array


class _Space(NamedTuple):
    n: int


class FrozenLake:
    """gymnasium's FrozenLake-v1, 4x4 and slippery; the observation is the place, one-hot.

    Each of the chosen direction and the two at right angles to it is taken with probability 1/3.
    The goal pays 1, a hole nothing, and both end the episode. The time limit is 100 steps.
    """

    name = FROZEN_LAKE
    default_params = None
    MAP = "SFFFFHFHFFFHHFFG"

    def observation_space(self, params: Any) -> Any:
        return _Space(16)

    def action_space(self, params: Any) -> _Space:
        return _Space(4)

    def reset(self, key: Array, params: Any) -> tuple[Array, LakeState]:
        return self._seen(jnp.int32(0)), LakeState(jnp.int32(0), jnp.int32(0))

    def step(self, key: Array, state: LakeState, action: Array, params: Any) -> Any:
        slip = jax.random.randint(key, (), -1, 2, jnp.int32)
        direction = (jnp.asarray(action, jnp.int32) + slip) % 4  # left, down, right, up
        row, column = state.place // 4, state.place % 4
        row = jnp.clip(row + jnp.array([0, 1, 0, -1])[direction], 0, 3)
        column = jnp.clip(column + jnp.array([-1, 0, 1, 0])[direction], 0, 3)
        place = (4 * row + column).astype(jnp.int32)
        tile = jnp.asarray([ord(letter) for letter in self.MAP])[place]
        reward = jnp.where(tile == ord("G"), 1.0, 0.0)
        terminated = (tile == ord("G")) | (tile == ord("H"))
        time = state.time + 1
        truncated = (time >= 100) & ~terminated
        is_over = terminated | truncated
        after = LakeState(jnp.where(is_over, 0, place), jnp.where(is_over, 0, time))
        info = {"final_observation": self._seen(place)}
        return self._seen(after.place), after, reward, terminated, truncated, info

    def _seen(self, place: Array) -> Array:
        return jax.nn.one_hot(place, 16, dtype=jnp.zeros(()).dtype)
