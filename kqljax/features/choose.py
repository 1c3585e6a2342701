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


def sample_states(task: Any, num_states: int = 4000, seed: int = 0) -> np.ndarray:
    """Normalised states `[num_states, l]` of a task, reached by random actions that are held for random times.

    Held actions swing a pendulum up and a car out of its valley, which a new draw at every step would not.
    """
    chains, length = 40, -(-num_states // 40)

    def chain(key: Array) -> Array:
        reset_key, hold_key, run_key = jax.random.split(key, 3)
        _, env_state = task.reset(reset_key)
        # Mean times from one step to half of what an episode lasts, at most 50.
        longest = min(50.0, task.max_steps / 2)
        keep = 1.0 - 1.0 / jnp.exp(jax.random.uniform(hold_key) * jnp.log(longest))

        def body(carry: Any, key: Array) -> Any:
            env_state, action = carry
            keep_key, act_key, env_key = jax.random.split(key, 3)
            drawn = jax.random.randint(act_key, (), 0, task.num_actions)
            action = jnp.where(jax.random.uniform(keep_key) < keep, action, drawn)
            step = task.step(env_key, env_state, action)
            return (step.env_state, action), step.next_obs

        first = jax.random.randint(hold_key, (), 0, task.num_actions)
        return jax.lax.scan(body, (env_state, first), jax.random.split(run_key, length))[1]

    keys = jax.random.split(jax.random.key(seed), chains)
    return np.asarray(jax.jit(jax.vmap(chain))(keys), np.float64).reshape(-1, task.obs_dim)[:num_states]


def auto(kernel: Kernel, task: Any, tolerance: float = 1e-6, *, seed: int = 0) -> FeatureMap:
    """The map with the fewest weights whose error is at most `tolerance` on a task.

    The linear kernel has an exact map. For others the candidates are `taylor`, whose bound holds everywhere, `dictionary`
    on states of the task reached by random actions, and for kernels that are no product `random_fourier`.

    Raises:
      ValueError: where none meets the tolerance; it says which size would do.
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
