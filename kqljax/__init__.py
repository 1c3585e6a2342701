"""kqljax: Kernelized Q-Learning (Liu and Su) in JAX.

Examples in the docstrings begin where these lines end:

    >>> import jax, jax.numpy as jnp, numpy as np
    >>> import kqljax
    >>> from kqljax import features, theory
    >>> jax.config.update("jax_enable_x64", True)
"""

from kqljax import features, regression, rounds, theory
from kqljax.agent import KQL, AgentStep, Beliefs, Evaluation
from kqljax.checks import NormalisationWarning
from kqljax.config import KQLConfig
from kqljax.io import SavedFileError, load_policy, load_state, save_policy, save_state
from kqljax.kernels import RBF, Kernel, Linear, Matern32, Matern52, Pair
from kqljax.kql import (
    kql_act,
    kql_grow,
    kql_init,
    kql_policy,
    kql_predict,
    kql_step,
    kql_step_and_act,
)
from kqljax.rollout import TrainLog, TrainRun, evaluate, rollout_returns, train
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
    "SavedFileError",
    "Task",
    "TaskStep",
    "TrainLog",
    "TrainRun",
    "Transition",
    "across_seeds",
    "evaluate",
    "features",
    "kql_act",
    "kql_grow",
    "kql_init",
    "kql_policy",
    "kql_predict",
    "kql_step",
    "kql_step_and_act",
    "load_policy",
    "load_state",
    "make_task",
    "regression",
    "rollout_returns",
    "rounds",
    "save_policy",
    "save_state",
    "theory",
    "train",
]
