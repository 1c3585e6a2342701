"""Transitions of the paper's four tasks, recorded with a policy that pushes along and at random,
with ends among them.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import kqljax
from kqljax import rounds

TASKS = ("MountainCar-v0", "Pendulum-v1", "Acrobot-v1", "CartPole-v0")
VELOCITY = {"MountainCar-v0": 1, "Pendulum-v1": 2, "Acrobot-v1": 5, "CartPole-v0": 3}
"""The coordinate along whose sign the policy pushes: the goals of two of the tasks are reached that
way.
"""

STEPS = 600
"""Steps that are recorded; some of them around the first end are taken."""

SMALL = {"centres": 32, "finish_centres": 64, "model_centres": 64, "fit_rows": 60}
"""Sizes for tests that are not about numbers."""


def compiled(function, *arguments):
    """The function compiled for these arguments, as fast as it goes."""
    return jax.jit(function).lower(*arguments).compile(compiler_options=rounds.CPU_COMPILER_OPTIONS)


@functools.cache
def recorded(name, count, seed=0, capacity=None):
    """`rounds.Transitions` of a task."""
    task = kqljax.make_task(name)
    push = task.num_actions - 1

    def step(carry, key):
        obs, env_state = carry
        random_key, action_key, env_key = jax.random.split(key, 3)
        pushing = jnp.where(obs[VELOCITY[name]] >= 0, push, 0)
        other = jax.random.randint(action_key, (), 0, task.num_actions)
        # CartPole would be balanced by it.
        action = jnp.where(
            jax.random.bernoulli(random_key, 0.0 if name == "CartPole-v0" else 0.8), pushing, other
        )
        after = task.step(env_key, env_state, action)
        return (after.obs, after.env_state), (
            obs,
            action,
            after.reward,
            after.next_obs,
            after.terminated,
            after.truncated,
        )

    start, *keys = jax.random.split(jax.random.key(seed), STEPS + 1)
    rows = jax.jit(lambda: jax.lax.scan(step, task.reset(start), jnp.stack(keys)))()[1]
    first_end = int(np.argmax(np.asarray(rows[4])))
    begin = max(first_end - count + count // 5, 0)
    rows = jax.tree.map(lambda column: column[begin : begin + count], rows)
    end_value = (0.0 - task.reward_low) / (task.reward_high - task.reward_low)
    made = rounds.Transitions.of(*rows, num_actions=task.num_actions, end_value=end_value)
    return made if capacity is None else made.resized(capacity)


def as_numpy(transitions):
    """(S, A, R, S2, ended) of the stored rows, for the oracle."""
    n = int(transitions.count)
    columns = (
        transitions.obs,
        transitions.action,
        transitions.reward,
        transitions.next_obs,
        transitions.ended,
    )
    return tuple(np.asarray(column)[:n] for column in columns)
