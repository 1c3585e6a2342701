"""Algorithm 1 behind the agent's loop: one Bellman backup a step, exact to the paper.

Everything runs in float64, whatever jax has enabled, as in `by_rounds`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kqljax.agent.beliefs import Beliefs, check_actions, padded
from kqljax.agent.history import History
from kqljax.agent.scaling import Ranges, Scaling
from kqljax.arrays import in_dtype
from kqljax.config import KQLConfig
from kqljax.kql import kql_grow, kql_init, kql_policy, kql_predict, kql_step, optimistic
from kqljax.state import KQLState, Transition

LEAST_CAPACITY, FIRST_CAPACITY = 128, 1000
"""Room that a run starts with. It doubles when it is full: a step costs O(capacity^2), a new size a compile."""


class Learned(NamedTuple):
    """Algorithm 1 between two steps.

    Attributes:
      state: its state.
      scaling: of observations and rewards; fixed.
    """

    state: KQLState
    scaling: Scaling


class Steps:
    """Algorithm 1. Nothing in it changes but the numbers, at the first call of `learn`: what was learned is `Learned`."""

    name = "Algorithm 1"
    acts_by = "optimistic"

    def __init__(self, cfg: KQLConfig, obs_dim: int, ranges: Ranges, seed: int, is_sized: bool) -> None:
        self.check_ranges(ranges)
        self.numbers, self.obs_dim, self.seed, self.is_sized = cfg.validate(), obs_dim, seed, is_sized

    @staticmethod
    def check_ranges(ranges: Ranges) -> None:
        """Raises ValueError where bounds are not known: Algorithm 1 cannot forget what it learned with others."""
        missing = [] if ranges.is_obs_fixed else ["obs_bounds=(low, high)"]
        missing += [] if ranges.is_reward_fixed else ["reward_range=(lowest, highest)"]
        if missing:
            raise ValueError(
                f"Algorithm 1 needs bounds that never move, and this environment does not state them: give "
                f"{' and '.join(missing)}, or take recipe='default', which estimates them."
            )

    def start(self, total: int, num_steps: int) -> None:
        """Looks at the memory. lam and beta are for the first call of `learn`, where no horizon was given."""
        self._check_memory(total + num_steps)
        if total == 0 and not self.is_sized:
            self.numbers = dataclasses.replace(self.numbers, horizon=num_steps, lam=None, beta=None).validate()

    def _check_memory(self, steps: int) -> None:
        if self.numbers.features is not None:
            return
        with jax.enable_x64(True):
            cfg = dataclasses.replace(self.numbers, horizon=steps)
            state = jax.eval_shape(lambda: kql_init(cfg, self.obs_dim, jnp.float64))
            needed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
        if needed > _physical_memory() // 2:
            raise ValueError(
                f"{steps} steps of Algorithm 1 take {needed / 2**30:.0f} GiB, more than half of this machine's memory: it "
                "grows with the square of the steps, and time with the cube. Take recipe='default', whose memory is bounded, "
                "or give a KQLConfig with features (docs/features.md), which is linear in the steps."
            )

    def resumed(self, now: Learned | None) -> Learned | None:
        """It goes on."""
        return now

    def choose(
        self, now: Learned | None, history: History, ranges: Ranges, obs: np.ndarray, is_moved: np.ndarray
    ) -> tuple[np.ndarray, Learned]:
        """Actions `[n]` at raw observations `[n, l]`."""
        if now is None:
            now = self._empty(ranges)
        return self._act(now, obs, None, history.total), now

    def _empty(self, ranges: Ranges) -> Learned:
        capacity = min(max(self.numbers.horizon, LEAST_CAPACITY), FIRST_CAPACITY, self.numbers.memory or FIRST_CAPACITY)
        with jax.enable_x64(True):
            return Learned(kql_init(self.numbers, self.obs_dim, jnp.float64, capacity=capacity), ranges.scaling())

    def _numbers(self, state: KQLState, **changed: Any) -> KQLConfig:
        """The numbers for a compiled program. It knows the size of the state; with the horizon it would be one for each run."""
        return in_dtype(dataclasses.replace(self.numbers, horizon=state.capacity, **changed), jnp.float64)

    def learned(self, now: Learned, history: History, num_steps: int) -> Learned:
        """With the newest `num_steps` transitions of the history, one after another."""
        with jax.enable_x64(True):
            state = now.state
            room = _room(self.numbers, state.capacity, history.total)
            if room > state.capacity:
                state = kql_grow(state, room)
            cfg = self._numbers(state)
            rows = {name: column[history.num_kept - num_steps : history.num_kept] for name, column in history.rows.items()}
            for i in range(num_steps):
                moved = Transition(
                    now.scaling.observe(rows["obs"][i]),
                    rows["action"][i],
                    now.scaling.pay(rows["reward"][i]),
                    now.scaling.observe(rows["next_obs"][i]),
                    rows["terminated"][i],
                )
                state, info = _programs().step(cfg, state, moved)
                if not bool(info.is_stored & info.is_finite):
                    raise FloatingPointError(
                        "a value of Algorithm 1 is no longer a finite number: give a KQLConfig with a larger lam, or with "
                        "features (docs/numerics.md)."
                    )
            return now._replace(state=state)

    def finished(self, now: Learned | None, history: History, ranges: Ranges) -> Learned:
        """The state of now: Algorithm 1 acts by the same values when it is over."""
        return self._empty(ranges) if now is None else now

    def act(self, now: Learned, obs: np.ndarray, is_random: bool, number: int) -> np.ndarray:
        """Actions `[n]` that maximise Q-tilde at raw observations `[n, l]`."""
        return self._act(now, obs, is_random, number)

    def _act(self, now: Learned, obs: np.ndarray, is_random: bool | None, number: int) -> np.ndarray:
        ties = {} if is_random is None else {"tie_break": "random" if is_random else "first"}
        with jax.enable_x64(True):
            key = jax.random.fold_in(jax.random.key(self.seed), number)
            action = _programs().act(self._numbers(now.state, **ties), now.state, padded(now.scaling.observe(obs)), key)
            return check_actions(np.asarray(action)[: len(obs)])

    def completed(self, now: Learned, history: History, ranges: Ranges) -> Learned:
        """A file keeps everything."""
        return now

    def beliefs(self, now: Learned, obs: np.ndarray) -> Beliefs:
        """Q-hat, width and Q-tilde, `[n, A]` each, at raw observations `[n, l]`."""
        with jax.enable_x64(True):
            found = _programs().look(self._numbers(now.state), now.state, padded(now.scaling.observe(obs)))
            return Beliefs(*(np.asarray(each)[: len(obs)] for each in found))

    def as_dict(self) -> dict[str, Any]:
        """What `learners.of_file` makes it from."""
        return {"numbers": self.numbers, "is_sized": self.is_sized}

    def kept(self, now: Learned) -> Learned:
        """All there is."""
        return now

    def restored(self, kept: Learned | None) -> tuple[Learned | None, Learned | None]:
        """What acts is what goes on."""
        if kept is not None:
            with jax.enable_x64(True):
                kept = kept._replace(state=jax.tree.map(jnp.asarray, kept.state))
        return kept, kept


def _room(cfg: KQLConfig, capacity: int, needed: int) -> int:
    """Transitions to have room for: it doubles when it is full, and ends at what the run is known to need."""
    while capacity < needed and capacity != cfg.memory:
        # A last stage that adds little would cost a compile for little.
        is_last = needed <= cfg.horizon <= 3 * capacity
        capacity = cfg.horizon if is_last else 2 * capacity
        capacity = capacity if cfg.memory is None else min(capacity, cfg.memory)
    return capacity


class _Programs(NamedTuple):
    step: Any
    act: Any
    look: Any


@functools.cache
def _programs() -> _Programs:
    """Compiled once in a process for each shape of the arguments, whatever agent asks."""

    def act(cfg: KQLConfig, state: KQLState, obs: jax.Array, key: jax.Array) -> jax.Array:
        return jax.vmap(kql_policy(cfg, state))(obs, jax.random.split(key, obs.shape[0]))[0]

    def look(cfg: KQLConfig, state: KQLState, obs: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        q_hat, width = jax.vmap(lambda obs: kql_predict(cfg, state, obs))(obs)
        return q_hat, width, optimistic(cfg, q_hat, width**2)

    return _Programs(jax.jit(kql_step), jax.jit(act), jax.jit(look))


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 8 * 2**30
