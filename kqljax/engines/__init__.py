"""Engines: what carries the ridge regression of Algorithm 1 from step to step.

`Exact` works in function space and is exact; `Weights` works on the features of a kernel, at a cost
a step that does not grow with the square of the stored transitions. `kqljax.engines.base` is the
interface between them and `kqljax.kql`.
"""

from kqljax.engines.exact import Exact
from kqljax.engines.weights import Weights

__all__ = ["Exact", "Weights"]
