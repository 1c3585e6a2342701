"""KQL's state over the length of a run: its room, the transitions it came from, and learning from them anew.

Everything runs in float64 by default, whatever jax has enabled: the calls are made inside `jax.enable_x64(True)`, which holds
for this thread and these calls alone. The exact engine needs it (docs/numerics.md), and nothing of the caller's changes.
Features in float32 would be three times as fast (0.7 s for 1000 steps of MountainCar against 2.1, on two CPU cores), but need a
map that suits the environment, which is known for the paper's tasks alone: they are one option away, `features="auto"`.
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
from kqljax.committee import Committee, Panel
from kqljax.config import KQLConfig
from kqljax.fitting import fit_counts
from kqljax.kql import kql_grow, kql_init
from kqljax.memory import estimate_memory
from kqljax.state import KQLState, Transition

FIRST_CAPACITY = 1000
"""Room that a run starts with at most. It doubles when it is full: a step costs O(capacity^2), a new size a compile."""

_FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")


class History:
    """Raw transitions in order.

    The arrays have room for as many as `reserve` was told of: whoever jits a function of them compiles once a run.
    """

    def __init__(self, obs_dim: int) -> None:
        self.count = 0
        shapes = {"obs": (obs_dim,), "next_obs": (obs_dim,)}
        kinds = {"action": np.int32, "terminated": bool, "truncated": bool}
        self._rows = {name: np.zeros((1, *shapes.get(name, ())), kinds.get(name, np.float64)) for name in _FIELDS}

    def reserve(self, count: int) -> None:
        """Makes room for `count` transitions in all."""
        if count > len(self._rows["reward"]):
            self._rows = {name: _pad(rows, count) for name, rows in self._rows.items()}

    def add(self, steps: Steps) -> None:
        """Takes in k transitions, for which there is room."""
        more = len(steps.reward)
        for name, rows in self._rows.items():
            rows[self.count : self.count + more] = getattr(steps, name)
        self.count += more

    def drop(self, count: int) -> None:
        """Forgets the last `count` of them."""
        self.count -= count

    def padded(self) -> Transition:
        """All of them for `online.absorb`, with the room there is."""
        return Transition(*(self._rows[name] for name in Transition._fields))

    def as_dict(self) -> dict[str, np.ndarray]:
        """Name -> array of the transitions there are: `[N, l]` obs and next_obs, `[N]` the others."""
        found = {name: rows[: self.count] for name, rows in self._rows.items()}
        for view in found.values():
            view.flags.writeable = False
        return found

    @classmethod
    def from_dict(cls, rows: dict[str, np.ndarray]) -> History:
        """The inverse of `as_dict`."""
        history = cls(rows["obs"].shape[1])
        history.count = len(rows["reward"])
        history._rows = {name: _pad(rows[name], max(1, history.count)) for name in _FIELDS}
        return history


class Learner:
    """A config, a state and what is needed to carry them on.

    Attributes:
      cfg: the config; its horizon is the number of transitions there shall be room for.
      state: KQL's state.
      ranges: bounds of observations and rewards.
      history: the raw transitions that the state has learned from.
      has_end: whether the value of an end was stated; otherwise it follows from the range of the rewards.
      first_fit: transitions before the kernel is fitted to them for the first time, then at twice as many each time; None is
        never.
      committee: who decides in `decide`; None is the policy that learning follows.
      replays: how often the state was learned anew because a running estimate moved or the kernel was fitted.
    """

    state: KQLState

    def __init__(
        self,
        cfg: KQLConfig,
        ranges: Ranges,
        history: History,
        dtype: Any,
        seed: int,
        has_end: bool,
        first_fit: int | None = None,
        committee: Panel | None = None,
    ) -> None:
        self.cfg, self.ranges, self.history, self.dtype = cfg, ranges, history, np.dtype(dtype)
        self.first_fit, self.committee = first_fit, committee
        self._met: tuple[KQLState, Committee] | None = None
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
            # Hardly any room: how much is needed is for `reserve` to say, and arrays of one row cost nothing.
            self.state = kql_init(self.cfg, self._obs_dim, self.dtype, capacity=1)
        self._prepare()

    def reserve(self, more: int) -> None:
        """Room for `more` further transitions; lam and beta stay."""
        needed = self.history.count + more
        if needed > self.cfg.horizon:
            self.cfg = dataclasses.replace(self.cfg, horizon=needed)
            self._prepare()
        self._check_memory(needed)
        self.history.reserve(needed)

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
            size = max(2 * state.capacity, FIRST_CAPACITY)
            # A last stage that adds little would cost a compile for little.
            state = kql_grow(state, most if most <= 1.5 * size else size)
        self.state = state

    def advance(self, steps: Steps) -> online.Outcome:
        """Learns from the transitions of one step of the environments, and acts. One jitted call, but for new estimates."""
        with jax.enable_x64(True):
            self._make_room(len(steps.reward))
            if self.ranges.cover(np.concatenate([steps.next_obs, steps.now]), steps.reward):
                self.replay()
            fitted = self._num_fitted()
            self.history.add(steps)
            before = self.state
            try:
                self.state, outcome = self._call(steps)
            except BaseException:
                # A state that the call has not taken with it does not know of these transitions.
                if self.state is before and not _is_lost(before):
                    self.history.drop(len(steps.reward))
                raise
            if self._num_fitted() > fitted:
                self.replay()
                action, q_tilde = self.act(steps.now)
                outcome = outcome._replace(action=jnp.asarray(action), q_tilde=jnp.asarray(q_tilde))
            return jax.device_get(outcome)

    def _num_fitted(self) -> int:
        """How many of the transitions there are the kernel is fitted to: the first 125, 250, 500, ..., or none."""
        if self.first_fit is None:
            return 0
        return max((0, *fit_counts(self.history.count + 1, self.first_fit)))

    def _call(self, steps: Steps) -> tuple[KQLState, online.Outcome]:
        count, number = np.int32(len(steps.reward)), np.int32(self.history.count)
        raw = Transition(*(getattr(steps, name) for name in Transition._fields))
        raw = raw._replace(action=raw.action.astype(np.int32))
        given = self._cfg, self._scaling, self.state
        if len(steps.now) == 1 and count:
            one = Transition(*(rows[0] for rows in raw))
            return online.advance(*given, one, steps.now[0], self._key, number)
        full = Transition(*(_pad(rows, len(steps.now)) for rows in raw))
        return online.advance_many(*given, full, count, steps.now, self._key, number)

    def begin(self, now: np.ndarray) -> np.ndarray:
        """First actions `[n]` at raw observations `[n, l]`."""
        if self.ranges.cover(now, np.zeros(0)):
            self.replay()
        return self.act(now)[0]

    def act(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Actions `[n]` that learning takes, and Q-tilde `[n, A]`."""
        return self._ask(obs, None, 0)

    def decide(self, obs: np.ndarray, is_random: bool, draw: int) -> np.ndarray:
        """Actions `[n]` of the policy as it is, which finds nothing out any more."""
        committee = None if self.committee is None else self._committee(self.committee)
        return self._ask(obs, is_random, draw, committee, self.committee)[0]

    def _ask(self, obs: np.ndarray, is_random: bool | None, draw: int, *whom: Any) -> tuple[np.ndarray, np.ndarray]:
        with jax.enable_x64(True):
            count = len(obs)
            key = jax.random.fold_in(jax.random.fold_in(self._key, self.history.count), draw)
            rows = _pad(obs, _rounded(count))
            action, value = online.act(self._cfg, self._scaling, self.state, rows, key, is_random, *whom)
            return np.asarray(action)[:count], np.asarray(value)[:count]

    def _committee(self, panel: Panel) -> Committee:
        """Of the state of now; kept until there is another."""
        if self._met is None or self._met[0] is not self.state:
            with jax.enable_x64(True):
                self._met = self.state, online.meet(self._cfg, self.state, panel)
        return self._met[1]

    def look(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Q-hat, width and Q-tilde, `[n, A]` each."""
        with jax.enable_x64(True):
            found = online.look(self._cfg, self._scaling, self.state, _pad(obs, _rounded(len(obs))))
            return tuple(np.asarray(each)[: len(obs)] for each in found)  # type: ignore[return-value]

    def replay(self) -> None:
        """The state that the same transitions give with the bounds, and the fitted kernel, of now, from the first one on."""
        self._prepare()
        fitted = self._num_fitted()
        if fitted:
            with jax.enable_x64(True):
                found = online.fit(self._cfg.kernel, self._scaling, self.history.padded(), np.int32(fitted))
            # What is fitted are arrays; the numbers beside them stay as they were given.
            kernel = jax.tree.map(lambda old, new: np.asarray(new) if np.ndim(new) else old, self.cfg.kernel, found)
            self.cfg = dataclasses.replace(self.cfg, kernel=kernel)
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
        if _is_lost(self.state):
            self.replay()

    def load_state(self, state: KQLState) -> None:
        """Takes a state from a file, with numpy arrays."""
        with jax.enable_x64(True):
            self.state = jax.tree.map(jnp.asarray, state)


def _is_lost(state: KQLState) -> bool:
    """Whether the arrays were donated to a call."""
    return any(leaf.is_deleted() for leaf in jax.tree.leaves(state))


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
