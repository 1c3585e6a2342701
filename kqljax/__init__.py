"""kqljax: Kernelized Q-Learning (Liu and Su) in JAX.

Examples in the docstrings begin where these lines end:

    >>> import jax, jax.numpy as jnp, numpy as np
    >>> import kqljax
    >>> from kqljax import features, theory
    >>> jax.config.update("jax_enable_x64", True)
"""

from kqljax import features, regression, rounds, theory
from kqljax.agent import KQL, AgentStep, Beliefs, Evaluation
from kqljax.config import KQLConfig
from kqljax.kernels import RBF, Kernel, Linear, Matern32, Matern52, NormalisationWarning, Pair
from kqljax.kql import (
    kql_act,
    kql_grow,
    kql_init,
    kql_policy,
    kql_predict,
    kql_step,
    kql_step_and_act,
)
from kqljax.memory import estimate_memory
from kqljax.rollout import TrainLog, TrainRun, evaluate, rollout_returns, train
from kqljax.saving import load_state, save_state
from kqljax.seeds import across_seeds
from kqljax.state import KQLInfo, KQLState, Transition
from kqljax.tasks import Task, TaskStep, make_task

__version__ = "0.1.0"

__all__ = [
    "KQL",
    "RBF",
    "AgentStep",
    "Beliefs",
    "Evaluation",
    "KQLConfig",
    "KQLInfo",
    "KQLState",
    "Kernel",
    "Linear",
    "Matern32",
    "Matern52",
    "NormalisationWarning",
    "Pair",
    "Task",
    "TaskStep",
    "TrainLog",
    "TrainRun",
    "Transition",
    "across_seeds",
    "estimate_memory",
    "evaluate",
    "features",
    "kql_act",
    "kql_grow",
    "kql_init",
    "kql_policy",
    "kql_predict",
    "kql_step",
    "kql_step_and_act",
    "load_state",
    "make_task",
    "regression",
    "rollout_returns",
    "rounds",
    "save_state",
    "theory",
    "train",
]
