"""Bellman backups over all stored transitions, to near convergence."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from kqljax._arrays import dot
from kqljax.rounds.transitions import Transitions

Array = jax.Array


class Rewards(NamedTuple):
    """What targets are made of, a row a transition; rows that are not stored are 0.

    Attributes:
      reward: `[n]`.
      discount: `[n]` gamma times the transition's discount; 0 where the task ended.
      end: `[n]` gamma times the value of an end where the task ended, else 0.
      is_stored: `[n]` bool.
    """

    reward: Array
    discount: Array
    end: Array
    is_stored: Array

    def targets(self, value: Array) -> Array:
        """y = r + gamma V(s') `[n]`."""
        return self.reward + self.discount * value + self.end

    def first(self, count: int) -> Rewards:
        """The first `count` rows, static."""
        return jax.tree.map(lambda column: column[:count], self)


def rewards_of(transitions: Transitions, gamma: Any, rows: int) -> Rewards:
    """Rewards and discounts of the transitions, padded to `rows` rows."""
    more = rows - transitions.capacity
    is_stored, ended = transitions.is_stored, transitions.ended
    end = gamma * transitions.end_value / (1.0 - gamma)
    columns = (
        jnp.where(is_stored, transitions.reward, 0.0),
        jnp.where(is_stored, gamma * transitions.discount, 0.0),
        jnp.where(ended, end, 0.0),
        is_stored,
    )
    return Rewards(*(jnp.pad(column, (0, more)) for column in columns))


class Backups(NamedTuple):
    """Attributes: `value` `[n]` V at the successors, `made` `[]` int32, how many, `change` `[]` of
    the last.
    """

    value: Array
    made: Array
    change: Array


def back_up(
    weights: Array,
    successors: Array,
    bonus: Array,
    rewards: Rewards,
    value: Array,
    *,
    cap: Any,
    most: Any,
    tolerance: Any,
) -> Backups:
    """V <- clip(max_a (f^T w(V) + bonus), 0, cap) until it changes by less than `tolerance`, at
    most `most` times.

    In float32: a value needs no more digits, and the arrays are read hundreds of times.

    Args:
      weights: `[m, n]` G with w = G y.
      successors: `[R, A * size, m]` features of (s', a), a block of rows at a time.
      bonus: `[R, A * size]`.
      value: `[n]` to begin with.
    """
    short = jnp.float32
    weights, successors, bonus, value = (
        each.astype(short) for each in (weights, successors, bonus, value)
    )
    rewards = jax.tree.map(
        lambda column: column if column.dtype == bool else column.astype(short), rewards
    )
    blocks, height, width = successors.shape
    flat, bonus = successors.reshape(blocks * height, width), bonus.reshape(-1)
    groups = blocks, -1, value.shape[0] // blocks
    cap = jnp.asarray(cap, short)

    def sweep(carry: Backups) -> Backups:
        values = dot(flat, dot(weights, rewards.targets(carry.value))) + bonus
        best = jnp.max(values.reshape(groups), axis=1).reshape(-1)
        new = jnp.where(rewards.is_stored, jnp.clip(best, 0.0, cap), 0.0)
        return Backups(new, carry.made + 1, jnp.max(jnp.abs(new - carry.value)))

    def is_going(carry: Backups) -> Array:
        return (carry.change >= tolerance) & (carry.made < most)

    value = jnp.where(rewards.is_stored, value, 0.0)
    return lax.while_loop(
        is_going, sweep, Backups(value, jnp.int32(0), jnp.full((), jnp.inf, short))
    )
