"""A learner of one's own, quick to compile, and a sweep with it that kills itself."""

import os
import signal
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from kqljax.lab import Sweep, expand_grid, run_sweep


class Walk(NamedTuple):
    """Goes on (not back) with the probability `on`, and learns nothing; -1 gives bad numbers."""

    on: Any

    def stages(self, num_steps):
        return (num_steps,)

    def begin(self, key, task, capacity, dtype):
        return ()

    def act(self, key, state, obs):
        return Wanderer(self.on).act(key, (), obs)[0], state

    def observe(self, key, state, transition, truncated, obs):
        return state, self.act(key, state, obs)[0], ()

    def policy(self, state, is_end):
        return Wanderer(self.on)


class Wanderer(NamedTuple):
    on: Any

    def begin(self, key):
        return ()

    def act(self, key, memory, obs):
        action = 2 * (jax.random.uniform(key, obs.shape[:-1]) < self.on)
        return jnp.where(self.on >= 0, action, -1).astype(jnp.int32), memory


def make_walk(task, num_steps, on=0.5):
    return Walk(on)


def walks(seeds=4, **more):
    """Two settings that share a compile."""
    recipes = {"walk": make_walk}
    grid = {"task": "Pendulum-v1", "recipe": "walk", "walk.on": [0.3, 0.6]}
    return Sweep(
        settings=expand_grid(grid, recipes),
        seeds=seeds,
        steps=200,
        episodes=3,
        recipes=recipes,
        **more,
    )


if __name__ == "__main__":
    out, last = sys.argv[1], int(sys.argv[2])

    def report(done, total):
        if done == last:
            os.kill(os.getpid(), signal.SIGKILL)

    run_sweep(walks(), out, report=report)
