"""What goes wrong with a sweep."""

from __future__ import annotations


class SweepError(ValueError):
    """A sweep that cannot start or go on; the message says what to do. Checkpoints are left as they are."""
