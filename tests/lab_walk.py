"""A learner of one's own for tests of the lab, quick to compile; and a sweep with it that kills itself."""

import os
import signal
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from kqljax.lab import Sweep, expand_grid, run_sweep


class Log(NamedTuple):
    terminated: Any
    truncated: Any
    episode_return: Any


class Walk(NamedTuple):
    """Returns are normal around `drift` with the spread `scale`; not a number where the scale is negative."""

    drift: Any
    scale: Any

    def run(self, keys, task, num_steps, num_episodes):
        path = jnp.cumsum(self.drift + jnp.sqrt(self.scale) * jax.random.normal(keys[0], (num_steps,)))
        log = Log(jnp.arange(num_steps) % 10 == 9, jnp.zeros(num_steps, bool), path)
        returns = path[-1] + jax.random.normal(keys[1], (num_episodes,))
        return log, returns, jnp.all(jnp.isfinite(path))


def make_walk(task, num_steps, drift=0.0, scale=1.0):
    return Walk(drift, scale)


def walks(seeds=4, **more):
    """Two settings that share a compile."""
    recipes = {"walk": make_walk}
    grid = {"task": "MountainCar-v0", "recipe": "walk", "walk.drift": [0.1, 0.5]}
    return Sweep(settings=expand_grid(grid, recipes), seeds=seeds, steps=40, episodes=3, recipes=recipes, **more)


if __name__ == "__main__":
    out, last = sys.argv[1], int(sys.argv[2])

    def report(done, total):
        if done == last:
            os.kill(os.getpid(), signal.SIGKILL)

    run_sweep(walks(), out, report=report)
