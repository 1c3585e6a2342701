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
from kqljax.engines import Exact, Weights
from kqljax.io import SavedFileError, load_policy, load_state, save_policy, save_state
from kqljax.kernels import RBF, Kernel, Linear, Matern32, Matern52, NormalisationWarning, Pair
from kqljax.kql import kql_act, kql_init, kql_predict, kql_resize, kql_step, kql_step_and_act
from kqljax.policy import KQLPolicy, Values, kql_policy, kql_tables
from kqljax.seeds import across_seeds
from kqljax.state import KQLInfo, KQLState, Transition
from kqljax.tasks import Task, TaskStep, make_task
from kqljax.training import Learner, TrainLog, TrainRun, evaluate, train

__version__ = "0.1.0"

__all__ = [
    "KQL",
    "RBF",
    "AgentStep",
    "Beliefs",
    "Evaluation",
    "Exact",
    "KQLConfig",
    "KQLInfo",
    "KQLPolicy",
    "KQLState",
    "Kernel",
    "Learner",
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
    "Values",
    "Weights",
    "across_seeds",
    "evaluate",
    "features",
    "kql_act",
    "kql_init",
    "kql_policy",
    "kql_predict",
    "kql_resize",
    "kql_step",
    "kql_step_and_act",
    "kql_tables",
    "load_policy",
    "load_state",
    "make_task",
    "regression",
    "rounds",
    "save_policy",
    "save_state",
    "theory",
    "train",
]
