"""KQL's state over the length of a run: its room, the transitions it came from, and learning from them anew.

Everything runs in float64 by default, whatever jax has enabled: the calls are made inside `jax.enable_x64(True)`, which holds
for this thread and these calls alone. The exact engine needs it (docs/numerics.md), and nothing of the caller's changes.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kqljax.agent import online
from kqljax.agent.loops import Steps
from kqljax.agent.scaling import Ranges
from kqljax.arrays import in_dtype
from kqljax.config import KQLConfig
from kqljax.kql import KQLState, Transition, kql_grow, kql_init
from kqljax.memory import estimate_memory

FIRST_CAPACITY = 1000
"""Room that a run starts with at most. It doubles when it is full: a step costs O(capacity^2), a new size a compile."""

_FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")


class History:
    """Raw transitions in order, in arrays that double when they are full.

    Attributes of the same names give `[N, l]` obs and next_obs, `[N]` action, reward, terminated, truncated.
    """

    def __init__(self, obs_dim: int) -> None:
        self.count = 0
        shapes = {"obs": (obs_dim,), "next_obs": (obs_dim,)}
        kinds = {"action": np.int32, "terminated": bool, "truncated": bool}
        self._rows = {name: np.zeros((64, *shapes.get(name, ())), kinds.get(name, np.float64)) for name in _FIELDS}

    def add(self, steps: Steps) -> None:
        """Takes in k transitions."""
        more = len(steps.reward)
        while self.count + more > len(self._rows["reward"]):
            self._rows = {name: np.concatenate([rows, np.zeros_like(rows)]) for name, rows in self._rows.items()}
        for name, rows in self._rows.items():
            rows[self.count : self.count + more] = getattr(steps, name)
        self.count += more

    def padded(self) -> Transition:
        """All of them for `online.absorb`, fields with room to spare: their shapes seldom change."""
        return Transition(*(self._rows[name] for name in Transition._fields))

    def as_dict(self) -> dict[str, np.ndarray]:
        """Name -> array of the transitions there are."""
        return {name: rows[: self.count] for name, rows in self._rows.items()}

    @classmethod
    def from_dict(cls, rows: dict[str, np.ndarray]) -> History:
        """The inverse of `as_dict`."""
        history = cls(rows["obs"].shape[1])
        history._rows = {name: np.concatenate([rows[name], np.zeros_like(rows[name][:1])]) for name in _FIELDS}
        history.count = len(rows["reward"])
        return history


class Learner:
    """A config, a state and what is needed to carry them on.

    Attributes:
      cfg: the config; its horizon is the number of transitions there shall be room for.
      state: KQL's state.
      ranges: bounds of observations and rewards.
      history: the raw transitions that the state has learned from.
      has_end: whether the value of an end was stated; otherwise it follows from the range of the rewards.
      replays: how often the state was learned anew because a running estimate moved.
    """

    state: KQLState

    def __init__(self, cfg: KQLConfig, ranges: Ranges, history: History, dtype: Any, seed: int, has_end: bool) -> None:
        self.cfg, self.ranges, self.history, self.dtype = cfg, ranges, history, np.dtype(dtype)
        self.replays = 0
        self.has_end = has_end
        self._obs_dim = ranges.low.shape[0]
        with jax.enable_x64(True):
            self._key = jax.random.key(seed)
        self.set_horizon(cfg.horizon, cfg.lam, cfg.beta)

    def _prepare(self) -> None:
        """The config and the scaling as arrays, made once for many calls."""
        if not self.has_end:
            self.cfg = dataclasses.replace(self.cfg, terminal_value=self.ranges.end_value(float(self.cfg.gamma)))
        with jax.enable_x64(True):
            self._scaling = self.ranges.scaling(self.dtype)
            self._cfg = in_dtype(self.cfg, self.dtype)

    def set_horizon(self, horizon: int, lam: Any, beta: Any) -> None:
        """Before anything was learned: lam and beta, where they are None, for this many steps."""
        self.cfg = dataclasses.replace(self.cfg, horizon=horizon, lam=lam, beta=beta).validate()
        with jax.enable_x64(True):
            self.state = kql_init(self.cfg, self._obs_dim, self.dtype, capacity=min(FIRST_CAPACITY, self.cfg.capacity))
        self._prepare()

    def reserve(self, more: int) -> None:
        """Room for `more` further transitions; lam and beta stay."""
        needed = self.history.count + more
        if needed > self.cfg.horizon:
            self.cfg = dataclasses.replace(self.cfg, horizon=needed)
            self._prepare()
        self._check_memory(needed)

    def _check_memory(self, steps: int) -> None:
        if self.cfg.features is not None:
            return
        with jax.enable_x64(True):
            needed = estimate_memory(self.cfg, obs_dim=self._obs_dim, dtype=self.dtype)
        limit = _physical_memory() // 2
        if needed > limit:
            raise ValueError(
                f"{steps} steps in the exact engine take {needed / 2**30:.0f} GiB, more than half of this machine's memory: it "
                "grows with the square of the steps, and time with the cube. Make the agent with features='auto' "
                "(docs/features.md), which is linear in the steps, or take fewer."
            )

    def _make_room(self, more: int) -> None:
        state, most = self.state, self.cfg.capacity
        while state.capacity < min(most, self.history.count + more):
            # Without is_full: shapes then depend on the capacity alone, and a replayed state needs no compile of its own.
            state = kql_grow(state, min(most, max(2 * state.capacity, FIRST_CAPACITY)))
        self.state = state

    def advance(self, steps: Steps) -> online.Outcome:
        """Learns from the transitions of one step of the environments, and acts. One jitted call, but for new estimates."""
        with jax.enable_x64(True):
            self._make_room(len(steps.reward))
            if self.ranges.cover(np.concatenate([steps.next_obs, steps.now]), steps.reward):
                self.replay()
            count = np.int32(len(steps.reward))
            self.history.add(steps)
            number = np.int32(self.history.count)
            raw = Transition(*(getattr(steps, name) for name in Transition._fields))
            if len(steps.now) == 1 and count:
                one = Transition(raw.obs[0], np.int32(raw.action[0]), raw.reward[0], raw.next_obs[0], raw.terminated[0])
                self.state, outcome = online.advance(self._cfg, self._scaling, self.state, one, steps.now[0], self._key, number)
            else:
                full = Transition(*(_pad(rows, len(steps.now)) for rows in raw))
                full = full._replace(action=full.action.astype(np.int32))
                self.state, outcome = online.advance_many(
                    self._cfg, self._scaling, self.state, full, count, steps.now, self._key, number
                )
            return jax.device_get(outcome)

    def begin(self, now: np.ndarray) -> np.ndarray:
        """First actions `[n]` at raw observations `[n, l]`."""
        if self.ranges.cover(now, np.zeros(0)):
            self.replay()
        return self.act(now)[0]

    def act(self, obs: np.ndarray, is_random: bool | None = None, draw: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Actions `[n]` and Q-tilde `[n, A]`."""
        with jax.enable_x64(True):
            count = len(obs)
            key = jax.random.fold_in(jax.random.fold_in(self._key, self.history.count), draw)
            action, q_tilde = online.act(self._cfg, self._scaling, self.state, _pad(obs, _rounded(count)), key, is_random)
            return np.asarray(action)[:count], np.asarray(q_tilde)[:count]

    def look(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Q-hat, width and Q-tilde, `[n, A]` each."""
        with jax.enable_x64(True):
            found = online.look(self._cfg, self._scaling, self.state, _pad(obs, _rounded(len(obs))))
            return tuple(np.asarray(each)[: len(obs)] for each in found)  # type: ignore[return-value]

    def replay(self) -> None:
        """The state that the same transitions give with the bounds of now, from the first one on."""
        self._prepare()
        with jax.enable_x64(True):
            capacity = self.state.capacity
            self.state = kql_init(self.cfg, self._obs_dim, self.dtype, capacity=capacity)
            if self.history.count:
                self.state, is_sound = online.absorb(
                    self._cfg, self._scaling, self.state, self.history.padded(), np.int32(self.history.count)
                )
                self.replays += 1
                check_sound(bool(is_sound))

    def repair(self) -> None:
        """After an interruption: a step that was cut short has taken the old state with it."""
        if any(leaf.is_deleted() for leaf in jax.tree.leaves(self.state)):
            self.replay()

    def load_state(self, state: KQLState) -> None:
        """Takes a state from a file, with numpy arrays."""
        with jax.enable_x64(True):
            self.state = jax.tree.map(jnp.asarray, state)


def check_sound(is_sound: bool) -> None:
    """Raises where a step has gone wrong numerically."""
    if not is_sound:
        raise FloatingPointError(
            "a value is no longer a finite number. Use dtype='float64', a larger lam, or features='auto' (docs/numerics.md)."
        )


def _pad(rows: np.ndarray, count: int) -> np.ndarray:
    """`[count, ...]` with zeros after the rows."""
    if len(rows) == count:
        return rows
    return np.concatenate([rows, np.zeros((count - len(rows), *rows.shape[1:]), rows.dtype)])


def _rounded(count: int) -> int:
    """The next power of two: batches of many sizes then share a few compiled programs."""
    return 1 << max(count - 1, 0).bit_length()


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 8 * 2**30
