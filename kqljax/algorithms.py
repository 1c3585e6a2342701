"""The algorithms of the paper's comparison, by name and behind one interface.

    algorithm = make_algorithm("kql-rbf")
    cfg = algorithm.config(task, num_steps)
    state, is_sound = algorithm.train(task, cfg, key, num_steps)
    returns = algorithm.evaluate(task, cfg, state, key, num_episodes)

Configs are pytrees whose numbers are leaves, so a compiled `train` serves every config of the same kind. The modules of
the baselines are imported when they are asked for.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from kqljax import features, rollout, rounds
from kqljax.errors import unknown_name
from kqljax.kernels import RBF, Linear
from kqljax.tasks import Task, make_task, sample_states

Array = jax.Array

CURVE_EPISODES = 20
"""Evaluation episodes at each point of a learning curve."""


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """One row of the table.

    Attributes:
      name: as on the command line.
      config: (task, num_steps) -> config, a pytree.
      train: (task, config, key, num_steps) -> state, and `[]` bool: every step was learned from and every value was a number.
      evaluate: (task, config, state, key, num_episodes) -> returns `[num_episodes]`.
      chunk: seeds that run side by side in one program.
      training, evaluation: rough seconds for 1000 steps and for 100 episodes of 200 steps, for the time left.
      curve: (task, config, key, num_steps, points) -> returns `[points, CURVE_EPISODES]`, or None without curves.
      compiler_options: for its programs, or None for the compiler's own.
    """

    name: str
    config: Callable[[Task, int], Any]
    train: Callable[[Task, Any, Array, int], tuple[Any, Array]]
    evaluate: Callable[[Task, Any, Any, Array, int], Array]
    chunk: int
    training: float
    evaluation: float
    curve: Callable[[Task, Any, Array, int, int], Array] | None = None
    compiler_options: dict[str, Any] | None = None


def curve_steps(num_steps: int, points: int) -> tuple[int, ...]:
    """`points` evenly spaced steps (fewer where there are fewer steps), the last of them `num_steps`."""
    return tuple(sorted({-(-num_steps * (i + 1) // points) for i in range(points)}))


def _stages(num_steps: int) -> int:
    # Under 200 slots a smaller capacity saves less time than compiling its stage costs.
    return max(1, min(rollout.STAGES, num_steps // 200))


def _kql_train(task: Task, cfg: Any, key: Array, num_steps: int, dtype: Any = None) -> tuple[Any, Array]:
    run = rollout.train(task, cfg, key, num_steps, dtype=dtype, stages=_stages(num_steps))
    return run.state, jnp.all(run.log.info.is_stored & run.log.info.is_finite)


def _kql_curve(task: Task, cfg: Any, key: Array, num_steps: int, points: int, dtype: Any = None) -> Array:
    at = curve_steps(num_steps, points)
    return rollout.train(
        task, cfg, key, num_steps, dtype=dtype, stages=_stages(num_steps), eval_at=at, eval_episodes=CURVE_EPISODES
    ).curve


# Functions of the module: rows that share them share their programs.
_IN: dict[str, tuple[Any, Any]] = {
    "float64": (_kql_train, _kql_curve),
    "float32": (functools.partial(_kql_train, dtype=jnp.float32), functools.partial(_kql_curve, dtype=jnp.float32)),
}


def _kql(
    name: str, config: Callable[[Task, int], Any], dtype: str = "float64", training: float = 0.6, evaluation: float = 1.5
) -> Algorithm:
    train, curve = _IN[dtype]
    # One seed at a time: its products already fill the cores, and batched ones are slower on the CPU
    # (two seeds side by side took four times as long as one).
    return Algorithm(name, config, train, rollout.evaluate, 1, training, evaluation, curve)


FEATURE_TOLERANCE = 1e-6
"""Largest error in the kernel that the rows with features allow."""


@functools.cache
def _features_of(task_name: str, eta: float) -> features.FeatureMap:
    task = make_task(task_name)
    return features.nystrom(RBF(eta=eta), sample_states(task), task.num_actions, FEATURE_TOLERANCE)


def _feature_config(task: Task, num_steps: int) -> Any:
    return task.config(horizon=num_steps, features=_features_of(task.name, task.eta))


def _rounds() -> Algorithm:
    def train(task: Task, cfg: rounds.Recipe, key: Array, num_steps: int) -> tuple[rounds.Policy, Array]:
        run = rounds.train(key, task, cfg, num_steps=num_steps)
        return run.policy, jnp.all(run.log.rounds.is_finite) & jnp.all(run.log.action >= 0)

    def curve(task: Task, cfg: rounds.Recipe, key: Array, num_steps: int, points: int) -> Array:
        # A run does not know how long it will be: what its first transitions make is the policy of a shorter run.
        found = rounds.train(key, task, cfg, num_steps=num_steps).transitions
        eval_key = jax.random.fold_in(key, num_steps + 1)  # beyond those of the steps

        def returns(at: Array) -> Array:
            policy = rounds.fit(None, cfg, dataclasses.replace(found, count=at)).policy
            return rounds.evaluate(eval_key, task, policy, num_episodes=CURVE_EPISODES)

        return jax.lax.map(returns, jnp.asarray(curve_steps(num_steps, points), jnp.int32))

    return Algorithm(
        "kql-rounds",
        lambda task, num_steps: rounds.DEFAULT,
        train,
        lambda task, cfg, policy, key, num_episodes: rounds.evaluate(key, task, policy, num_episodes),
        chunk=1,
        training=1.0,
        evaluation=0.3,
        curve=curve,
        compiler_options=rounds.CPU_COMPILER_OPTIONS if jax.default_backend() == "cpu" else None,
    )


def _dqn() -> Algorithm:
    from kqljax.baselines import dqn

    def train(task: Task, cfg: Any, key: Array, num_steps: int) -> tuple[Any, Array]:
        run = dqn.train(task, cfg, key, num_steps)
        return run.state, jnp.all(run.log.is_finite)

    # Four seeds side by side took as long as four in a row, and an interrupted run loses one chunk.
    return Algorithm("dqn", lambda task, num_steps: dqn.default_config(task), train, dqn.evaluate, 1, 20.0, 0.05)


def _kovi() -> Algorithm:
    from kqljax.baselines import kovi

    def train(task: Task, cfg: Any, key: Array, num_steps: int) -> tuple[Any, Array]:
        run = kovi.train(task, cfg, key, num_steps)
        return run.state, jnp.all(run.log.is_finite | ~run.log.is_taken)

    # Its plans are products that fill the cores, as KQL's.
    return Algorithm("kovi", kovi.default_config, train, kovi.evaluate, 1, 8.0, 0.4)


def _random() -> Algorithm:
    from kqljax.baselines import random

    def train(task: Task, cfg: Any, key: Array, num_steps: int) -> tuple[Any, Array]:
        return random.train(task, cfg, key, num_steps).state, jnp.ones((), bool)

    # Hardly any work a seed: many at once save the time between calls.
    return Algorithm("random", lambda task, num_steps: random.default_config(task), train, random.evaluate, 10, 0.0, 0.01)


OF_RECIPE = {"paper": "kql-rbf", "default": "kql-rounds"}
"""Recipe -> the row that is KQL with this recipe."""

_MAKERS: dict[str, Callable[[], Algorithm]] = {
    "kql-rbf": lambda: _kql("kql-rbf", lambda task, num_steps: task.config(horizon=num_steps)),
    "kql-rounds": _rounds,
    "kql-linear": lambda: _kql("kql-linear", lambda task, num_steps: task.config(kernel=Linear(), horizon=num_steps)),
    "kql-greedy": lambda: _kql("kql-greedy", lambda task, num_steps: task.config(horizon=num_steps, beta=0.0)),
    "kql-features": lambda: _kql("kql-features", _feature_config, "float64", 0.3, 0.3),
    "kql-features32": lambda: _kql("kql-features32", _feature_config, "float32", 0.3, 0.3),
    "dqn": _dqn,
    "kovi": _kovi,
    "random": _random,
}
ALGORITHMS = {
    "kql-rbf": "KQL with the Gaussian kernel, the paper's method",
    "kql-rounds": "learning in rounds, one recipe for every task (kqljax.rounds)",
    "kql-linear": "KQL with the linear kernel",
    "kql-greedy": "KQL with the Gaussian kernel and beta = 0: what optimism buys",
    "kql-features": "KQL with the Gaussian kernel as features (features.nystrom), in weight space",
    "kql-features32": "the same in float32",
    "dqn": "DQN with the paper's parameters (Stable-Baselines3 and its zoo)",
    "kovi": "KOVI, episodic kernel value iteration, with KQL's kernel and lambda",
    "random": "the uniformly random policy",
}
"""Name -> one line for the help, which must not import the networks of DQN."""


@functools.cache
def make_algorithm(name: str) -> Algorithm:
    """One of the table's algorithms, by name; its module is imported when it is asked for."""
    if name not in _MAKERS:
        raise ValueError(unknown_name("algorithm", name, ALGORITHMS))
    return _MAKERS[name]()
