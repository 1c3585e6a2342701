"""Posteriors: what a kernel and the stored pairs say about a function. `gram` is exact, in function space."""

from kqljax.posterior import gram

__all__ = ["gram"]
