"""Feature maps: a kernel as the inner product of finitely many features, for the weights engine.

A map has features psi(s) `[m]` of a state and a root R `[A, m, D]`, one matrix an action, with

    k((s, a), (s', a'))  =  psi(s)^T R[a] R[a']^T psi(s')   up to the map's error.

Actions live in the root alone: whatever is stored for a state is stored once. `error` is the
largest difference from the kernel, as a bound or as measured; `error_kind` says which.

    linear   the paper's linear kernel, exact
    taylor   RBF: the orthonormal basis of the paper's appendix, cut off at a degree; a bound
    fourier  RBF and Matern: cosines and sines of random frequencies; measured
    nystrom  a state part times an action part: projection on chosen states; measured
"""

from kqljax.features.base import FeatureMap, kernel_error
from kqljax.features.explicit import fourier, linear, taylor
from kqljax.features.nystrom import nystrom

__all__ = ["FeatureMap", "fourier", "kernel_error", "linear", "nystrom", "taylor"]
