"""Engines: the two ways to carry Algorithm 1's regression from step to step, behind one interface.

`exact` keeps the pairs and a factor of their Gram matrix (function space, O(t^2) a step). `weights` keeps a posterior over
the weights of finitely many features (weight space, O(D^2 + t m) a step). `kqljax.kql` is written against `Engine` and
knows neither.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax

Array = jax.Array


class Glance(NamedTuple):
    """What the posterior says, before it learns, about the states that a step is concerned with.

    Attributes:
      next_mean: `[A]` Q-hat_t at the state just reached.
      next_width_sq: `[A]` squared widths there.
      inner: what the engine itself needs of the pass later.
    """

    next_mean: Array
    next_width_sq: Array
    inner: Any


class Learned(NamedTuple):
    """What came of a pair.

    Attributes:
      is_stored: `[]` bool, it was taken in.
      is_full: `[]` bool, there was no room for it.
      slot: `[]` int32, the row of the tables it went to; their length where it went to none.
      width_sq: `[]` its squared width before.
      residual: `[]` mismatch of two ways to compute one number, a certificate of the arithmetic.
      feature_error: `[]` largest part of k(x, x) that the features leave out at the states of this step; 0 in the exact engine.
      inner: what the engine itself needs later.
    """

    is_stored: Array
    is_full: Array
    slot: Array
    width_sq: Array
    residual: Array
    feature_error: Array
    inner: Any


class Engine(Protocol):
    """What Algorithm 1 asks of its regression. Tables have a row for each stored transition's successor."""

    def init(self, obs_dim: int, num_actions: int, capacity: int, dtype: Any) -> tuple[Any, Any]:
        """An empty posterior and table."""
        ...

    @staticmethod
    def grow(posterior: Any, table: Any, capacity: int, is_full: bool) -> tuple[Any, Any]:
        """The same with more room."""
        ...

    def predict(self, posterior: Any, obs: Array) -> tuple[Array, Array]:
        """Mean `[A]` and width `[A]` at a state `[l]`."""
        ...

    def freeze(self, posterior: Any) -> Any:
        """What many predictions of one posterior share."""
        ...

    def ask(self, frozen: Any, obs: Array) -> tuple[Array, Array]:
        """Mean `[A]` and squared width `[A]` at a state `[l]`, from what `freeze` gave."""
        ...

    def glance(
        self,
        posterior: Any,
        obs: Array,
        action: Array,
        next_obs: Array,
        query: Array | None,
        targets: Array | None,
        is_wanted: Array,
    ) -> Glance:
        """One pass over the posterior for all that a step will ask of it.

        `targets` `[T]` are those of the stored pairs; None leaves them as they were. A pair that is not wanted, `[]` bool,
        will not be learned from.
        """
        ...

    def learn(self, table: Any, glance: Glance, target: Array) -> tuple[Any, Any, Learned]:
        """Posterior and table after taking in the pair that was glanced at, with its target `[]`; the table has a new row."""
        ...

    def refresh(self, posterior: Any, table: Any, learned: Learned) -> Any:
        """The table after `learn`, every row up to date."""
        ...

    def asked(self, posterior: Any, glance: Glance, learned: Learned) -> tuple[Array, Array]:
        """Mean `[A]` and squared width `[A]` at the state that was asked about, after `learn`."""
        ...

    def solve(self, posterior: Any, table: Any, targets: Array) -> tuple[Any, Any]:
        """Posterior and table means with new targets `[T]` for the same pairs."""
        ...
