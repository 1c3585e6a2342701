"""`features="auto"`: a feature map for any environment."""

from __future__ import annotations

from kqljax import features
from kqljax.kernels import RBF, Kernel, Linear, Matern32, Matern52
from kqljax.tasks import Task

TOLERANCE = 1e-6
DICTIONARY_SIZE = 300


def make_features(kernel: Kernel, task: Task | None, obs_dim: int, num_actions: int) -> features.FeatureMap:
    """The smallest map on one of the paper's tasks; elsewhere one that needs no states to be made from.

    Those are exact features for the linear kernel, the Taylor basis for RBF where it is not too large, random Fourier features
    for Matern, and for the others a dictionary of states that grows while learning.
    """
    if task is not None:
        return features.auto(kernel, task, TOLERANCE)
    if isinstance(kernel, Linear):
        return features.linear(kernel, obs_dim, num_actions)
    if isinstance(kernel, (Matern32, Matern52)):
        return features.random_fourier(kernel, obs_dim, num_actions, DICTIONARY_SIZE)
    if isinstance(kernel, RBF):
        try:
            return features.taylor(kernel, obs_dim, num_actions, TOLERANCE)
        except ValueError:
            pass  # too many monomials: a dictionary is smaller
    return features.online_dictionary(kernel, obs_dim, num_actions, DICTIONARY_SIZE)
