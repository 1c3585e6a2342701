"""What a fit answers: actions, and values with their spread.

All is computed in float64, whatever jax has enabled: `jax.enable_x64(True)` holds for one call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import numpy as np

from kqljax.agent.scaling import Scaling
from kqljax.rounds import CPU_COMPILER_OPTIONS

P = ParamSpec("P")
R = TypeVar("R")


class Beliefs(NamedTuple):
    """What the agent believes of observations, `[A]` or `[n, A]`, in units of normalised reward.

    Attributes:
      mean: expected value. In rounds the mean over the ensemble; in Algorithm 1 the estimate Q-hat.
      spread: how unsure it is. In rounds the members' standard deviation; in Algorithm 1 the width.
      optimistic: optimistic value, which decides while exploring; in Algorithm 1 Q-tilde.

    Examples:
      >>> agent = kqljax.KQL("MountainCar-v0", seed=0).learn(20)
      >>> believed = agent.beliefs(np.zeros((4, 2)))
      >>> believed.mean.shape, believed.spread.shape, believed.optimistic.shape
      ((4, 3), (4, 3), (4, 3))
    """

    mean: np.ndarray
    spread: np.ndarray
    optimistic: np.ndarray


class Fitted(NamedTuple):
    """What acts and answers.

    Attributes:
      policy: pytree with `act(key, memory, obs)`.
      believer: the same with `values(obs)`, ten times as large; None after a file was read.
      scaling: of the observations that both take.
    """

    policy: Any
    believer: Any
    scaling: Scaling


def in_float64(function: Callable[P, R]) -> Callable[P, R]:
    """The function, computed in float64."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        with jax.enable_x64(True):
            return function(*args, **options)

    return call


@functools.cache
def compiled(function: Any, **options: Any) -> Any:
    """`jax.jit(function)`, the same for every agent: compiled once for each shape of arguments."""
    on_cpu = jax.default_backend() == "cpu"
    return jax.jit(function, compiler_options=CPU_COMPILER_OPTIONS if on_cpu else None, **options)


def _act(policy: Any, key: Any, obs: Any) -> Any:
    return policy.act(key, policy.begin(key), obs)[0]


def _values(policy: Any, obs: Any) -> Any:
    return policy.values(obs)


@in_float64
def act(policy: Any, scaling: Scaling, obs: np.ndarray, key: Any = None) -> np.ndarray:
    """Actions `[n]` at raw observations `[n, l]`; `key` is for random ties."""
    found = compiled(_act)(policy, key, _padded(scaling.observe(obs)))
    return check_actions(np.asarray(found)[: len(obs)])


@in_float64
def believe(fitted: Fitted, obs: np.ndarray) -> Beliefs:
    """`[n, A]` each at raw observations `[n, l]`."""
    found = compiled(_values)(fitted.believer, _padded(fitted.scaling.observe(obs)))
    return Beliefs(*(np.asarray(each)[: len(obs)] for each in found))


def check_actions(actions: np.ndarray) -> np.ndarray:
    """Raises where a value was not a number."""
    if np.any(actions < 0):
        words = "Look at agent.history for broken rows, or take a larger ridge (lam)."
        raise FloatingPointError(f"a value is no longer a finite number. {words}")
    return actions


def _padded(rows: np.ndarray) -> np.ndarray:
    """With rows up to the next power of two: batches of many sizes share a few programs."""
    size = 1 << max(len(rows) - 1, 0).bit_length()
    return np.concatenate([rows, np.zeros((size - len(rows), rows.shape[1]))])
