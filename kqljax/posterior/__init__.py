"""Posteriors: what the stored pairs say about a function. `gram` is exact, in function space; `weights` works on features."""

from kqljax.posterior import gram, weights

__all__ = ["gram", "weights"]
