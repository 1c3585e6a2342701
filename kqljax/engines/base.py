"""The interface between Algorithm 1 and the regression that it carries from step to step.

An engine is a value of the config (a frozen dataclass); what it carries is its posterior, a
NamedTuple of arrays. A step has three phases:

    posterior, work = engine.prepare(posterior, transition, is_valid, targets, query)
    posterior, work = engine.update(posterior, work, target)
    posterior       = engine.refresh(posterior, work)

`prepare` asks the posterior as it is all that the step needs, in one pass over its largest array;
`update` takes in the new pair; `refresh` brings the predictions at the states reached up to date.
All else is asked by `engine.predict(engine.predictor(posterior, reuse), obs)`.

Slots come last in every array, `[..., T]`: the products run along them, and a trailing axis of
three actions would be padded to 128 lanes on a TPU. All seeds of a vmap write to one slot
(`shared`), so that a write is one slice for the whole batch.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from kqljax.kernels import Kernel
from kqljax.state import Prediction, Transition

Array = jax.Array
P = TypeVar("P")

NESTED = 3
"""vmaps that may be nested around a step: seeds, settings, tasks."""


class Sizes(NamedTuple):
    """What an engine has to know before it has data; None where it is not known yet.

    Attributes:
      num_actions: A.
      capacity: T, slots for pairs.
      obs_dim: l, numbers in an observation.
      dtype: of all floating-point arrays.
    """

    num_actions: int
    capacity: int
    obs_dim: Any = None
    dtype: Any = None


class Work(NamedTuple):
    """What `prepare` found and the later phases need.

    Attributes:
      next: prediction `[A]` at the state just reached, from before the new pair.
      query: prediction `[A]` at the state asked about, if any; `update` includes the new pair.
      slot: `[]` int32, where the pair goes; the same for all seeds of a vmap.
      is_stored: `[]` bool, the pair is valid and a slot was free.
      width_sq: `[]` squared width of the new pair before it is stored.
      residual: `[]` mismatch of two ways to compute the mean at the new pair, after `update`.
      feature_error: `[]` largest part of k(x, x) that features leave out; 0 without features.
      parts: what the engine keeps for itself, documented in the engine's file.
    """

    next: Prediction
    query: Prediction | None
    slot: Array
    is_stored: Array
    width_sq: Array
    residual: Array
    feature_error: Array
    parts: Any


class Engine(Protocol[P]):
    """Carries the ridge regression of Algorithm 1 in a posterior P. Shapes as in `Sizes`."""

    def validate(self, kernel: Kernel, lam: Any, sizes: Sizes) -> None:
        """Raises ValueError for what this engine cannot do, a dtype without enough digits too.

        `lam` is None where it is traced and nobody asked for the dtype by name.
        """

    def check(self, posterior: P, kernel: Kernel, num_actions: int) -> int:
        """The length l of an observation; ValueError where another engine made the posterior."""

    def init(self, kernel: Kernel, lam: Any, sizes: Sizes) -> P:
        """An empty posterior."""

    def resize(self, posterior: P, capacity: int, is_full: bool) -> P:
        """The same with more room; some engines make use of `is_full`, that no slot is free."""

    def prepare(
        self,
        posterior: P,
        transition: Transition,
        is_valid: Array,
        targets: Array,
        query: Array | None,
    ) -> tuple[P, Work]:
        """Predictions before the new pair at s_{t+1} and `query` `[l]`.

        `targets` `[T]` are those of the stored pairs, of no meaning in empty slots. They are known
        before the step, so that their product shares the pass.
        """

    def update(self, posterior: P, work: Work, target: Array) -> tuple[P, Work]:
        """The new pair goes in with its target `[]`, and all others with their new targets."""

    def refresh(self, posterior: P, work: Work) -> P:
        """`posterior.rows` `[A, T]`: mean and squared width at every state that was reached."""

    def predictor(self, posterior: P, reuse: bool) -> Any:
        """What predictions share. `reuse`: many will be asked, so that a factorisation pays."""

    def predict(self, predictor: Any, obs: Array) -> Prediction:
        """Mean and squared width `[A, n]` at states `[n, l]`."""


def shared(slot: Array) -> Array:
    """The slot that the next pair goes to: under vmap one for all, the largest of theirs.

    Slots that a member leaves out stay empty, and their action of -1 masks them.
    """
    return _shared(NESTED)(slot)


@functools.cache
def _shared(levels: int) -> Any:
    if not levels:
        return lambda slot: slot
    same = jax.custom_batching.custom_vmap(lambda slot: slot)

    @same.def_vmap
    def _(axis_size: int, in_batched: list[bool], slot: Array) -> tuple[Array, bool]:
        return _shared(levels - 1)(jnp.max(slot) if in_batched[0] else slot), False

    return same


def put(array: Array, slot: Array, value: Array, is_wanted: Array) -> Array:
    """`array` `[..., T]` with `value` `[...]` in a slot; fuses into what reads all of the array."""
    is_slot = (jnp.arange(array.shape[-1]) == slot) & is_wanted
    return jnp.where(is_slot, jnp.expand_dims(jnp.asarray(value, array.dtype), -1), array)


def put_slice(array: Array, index: Array, value: Array, axis: int) -> Array:
    """`array` with one slice along an axis replaced, in place.

    `lax.dynamic_update_slice` becomes a scatter under vmap, even where the index is one for all;
    this stays a slice. It has a forward derivative, and none in reverse.
    """
    return _put_slice(axis)(array, index, value.astype(array.dtype))


@functools.cache
def _put_slice(axis: int) -> Any:
    write = jax.custom_jvp(_batched_put_slice(axis, NESTED))

    @write.defjvp  # linear in array and value
    def _(primals: Any, tangents: Any) -> Any:
        return write(*primals), write(tangents[0], primals[1], tangents[2])

    return write


@functools.cache
def _batched_put_slice(axis: int, levels: int) -> Any:
    def plain(array: Array, index: Array, value: Array) -> Array:
        return lax.dynamic_update_index_in_dim(array, value, index, axis)

    if not levels:
        return plain
    write = jax.custom_batching.custom_vmap(plain)

    @write.def_vmap
    def _(
        axis_size: int, in_batched: list[bool], array: Array, index: Array, value: Array
    ) -> tuple[Array, bool]:
        if in_batched[1]:
            raise ValueError("the slot differs between members of a vmap: take it from `shared`.")
        array, value = (
            each if is_batched else jnp.broadcast_to(each, (axis_size, *each.shape))
            for each, is_batched in ((array, in_batched[0]), (value, in_batched[2]))
        )
        return _batched_put_slice(axis + 1, levels - 1)(array, index, value), True

    return write


def diagonal(matrix: Array) -> Array:
    """The diagonal `[C]` of a small matrix, elementwise."""
    return matrix.ravel()[:: len(matrix) + 1]


def pad_actions(action: Array, more: int) -> Array:
    """Actions `[T]` with `more` empty slots."""
    return jnp.pad(action, (0, more), constant_values=-1)
