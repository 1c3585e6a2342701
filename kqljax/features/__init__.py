"""Feature maps: a kernel as the inner product of finitely many features, for the weight-space engine.

A map has features psi(s) `[m]` of a state and a root R `[A, m, D]`, one matrix an action, such that

    k((s, a), (s', a'))  =  psi(s)^T R[a] R[a']^T psi(s')   up to the map's error.

Actions live in the root alone: whatever is stored for a state is stored once. `error` is the largest difference from the
kernel, as a bound or as measured on sample states; `error_kind` says which.

    linear          the paper's linear kernel, exact
    taylor          RBF: the orthonormal basis of the paper's appendix, cut off at a degree; a bound
    random_fourier  RBF and Matern: cosines and sines of random frequencies; measured
    dictionary      kernels that are a state part times an action part: projection on chosen states; measured
    auto            the smallest of these that meets a tolerance on a task
"""

from kqljax.features.base import FeatureMap
from kqljax.features.choose import auto, sample_states
from kqljax.features.dictionary import dictionary
from kqljax.features.fourier import random_fourier
from kqljax.features.linear import linear
from kqljax.features.product import kernel_error
from kqljax.features.taylor import taylor

__all__ = [
    "FeatureMap",
    "auto",
    "dictionary",
    "kernel_error",
    "linear",
    "random_fourier",
    "sample_states",
    "taylor",
]
