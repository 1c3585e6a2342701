"""Stored pairs and their successors in blocks of rows, as the regressions of a fit read them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from kqljax.regression import Rows
from kqljax.rounds.transitions import Transitions
from kqljax.rounds.widths import agree, squared_distances

Array = jax.Array

ROWS = 128
"""Rows in a block."""


class Pairs(NamedTuple):
    """Places p = s + d_a, a block of rows at a time: of the stored pairs, then of (s', a) for each
    action a.

    Attributes:
      rows: their layout, with 1 + A groups; only stored pairs where there are no successors.
      place: `[R, H, l]`.
      action: `[R, H]`.
      stored_place: `[N', l]` of the stored pairs alone, N' = R * ROWS.
      stored_action: `[N']`.
    """

    rows: Rows
    place: Array
    action: Array
    stored_place: Array
    stored_action: Array

    def kernel(
        self, weights: Array, coupling: Any, of: Any = lambda distance: jnp.exp(-distance)
    ) -> tuple[Any, Any]:
        """The two functions that `regression.span` asks for, of a kernel of the squared
        distance.
        """

        def gram(place: Array, action: Array, index: Array) -> Array:
            distance = squared_distances(place, self.stored_place[index], weights)
            return of(distance) * agree(action, self.stored_action[index], coupling)

        def cross(r: Array, index: Array) -> Array:
            return gram(self.place[r], self.action[r], index)

        def between(index: Array) -> Array:
            return gram(self.stored_place[index], self.stored_action[index], index)

        return cross, between


def padded(column: Array) -> Array:
    """With rows up to a whole number of blocks."""
    return jnp.pad(
        column, [(0, -column.shape[0] % block_rows(column.shape[0]))] + [(0, 0)] * (column.ndim - 1)
    )


def block_rows(capacity: int) -> int:
    """Rows in a block, for that many rows in all."""
    return min(ROWS, capacity)


def stored_pairs(
    transitions: Transitions, displacement: Array, with_successors: bool = True
) -> Pairs:
    """The pairs of all transitions."""
    num_actions = transitions.num_actions
    obs, action, next_obs = (
        padded(each) for each in (transitions.obs, transitions.action, transitions.next_obs)
    )
    place = obs + displacement[action]
    size = block_rows(transitions.capacity)
    blocks = obs.shape[0] // size
    places, actions = place[None], action[None]
    if with_successors:
        others = jnp.broadcast_to(
            jnp.arange(num_actions, dtype=action.dtype)[:, None], (num_actions, obs.shape[0])
        )
        places = jnp.concatenate([places, next_obs + displacement[:, None]])
        actions = jnp.concatenate([actions, others])
    groups = places.shape[0]
    places = (
        places.reshape(groups, blocks, size, -1)
        .transpose(1, 0, 2, 3)
        .reshape(blocks, groups * size, -1)
    )
    actions = (
        actions.reshape(groups, blocks, size).transpose(1, 0, 2).reshape(blocks, groups * size)
    )
    rows = Rows(transitions.count, blocks, size, groups)
    return Pairs(rows, places, actions, place, action)
