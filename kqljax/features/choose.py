"""The smallest feature map that meets a tolerance on a task."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kqljax.features.base import FeatureMap, check_tolerance
from kqljax.features.dictionary import dictionary
from kqljax.features.fourier import random_fourier
from kqljax.features.linear import linear
from kqljax.features.taylor import taylor
from kqljax.kernels import RBF, Kernel, Linear, Matern32, Matern52

Array = jax.Array


def sample_states(task: Any, seed: int = 0, *, rounds: int = 32) -> np.ndarray:
    """Normalised states `[N, l]` of a task, far and wide: what an agent that looks for the new may come to see.

    Random actions are held for random times, from the start of an episode at first. Each further round goes on from those of
    the states reached so far that lie farthest apart, so that swings grow and velocities add up as under a policy that
    seeks them.

    Examples:
      >>> states = features.sample_states(kqljax.make_task("MountainCar-v0"), rounds=1)
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
        runs = jax.vmap(lambda key, start: _held_actions(task, key, start, length))(jax.random.split(key, chains), starts)
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


def _held_actions(task: Any, key: Array, env_state: Any, length: int) -> Any:
    """A run of random actions held for random times: `[length, l]` states reached, and states to go on from."""
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


def auto(kernel: Kernel, task: Any, tolerance: float = 1e-6, *, seed: int = 0) -> FeatureMap:
    """The map with the fewest weights whose error is at most `tolerance` on a task.

    The linear kernel has an exact map. For others the candidates are `taylor`, whose bound holds everywhere, `dictionary`
    on `sample_states` of the task, and for kernels that are no product `random_fourier`.

    Raises:
      ValueError: where none meets the tolerance; it says which size would do.

    Examples:
      >>> task, kernel = kqljax.make_task("MountainCar-v0"), kqljax.RBF(eta=0.02)
      >>> found = features.auto(kernel, task, tolerance=1e-4)
      >>> found.error <= 1e-4
      True
      >>> task.config(kernel, horizon=20, features=found).features.num_weights == found.num_weights
      True
    """
    check_tolerance(tolerance)
    sizes = task.obs_dim, task.num_actions
    if isinstance(kernel, Linear):
        return linear(kernel, *sizes)
    if isinstance(kernel, (Matern32, Matern52)):
        return random_fourier(kernel, *sizes, tolerance=tolerance, seed=seed)
    found: list[FeatureMap] = []
    reasons = []
    makers = [lambda: dictionary(kernel, sample_states(task, seed=seed), task.num_actions, tolerance)]
    if isinstance(kernel, RBF):
        makers.append(lambda: taylor(kernel, *sizes, tolerance))  # type: ignore[arg-type,return-value]
    for make in makers:
        try:
            found.append(make())
        except ValueError as reason:
            reasons.append(str(reason))
    if not found:
        raise ValueError(" ".join(reasons))
    return min(found, key=lambda features: features.num_weights)
