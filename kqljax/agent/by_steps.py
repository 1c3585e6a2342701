"""Algorithm 1 behind the agent's loop: one Bellman backup a step, exact to the paper."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kqljax._arrays import in_dtype
from kqljax.agent.beliefs import Beliefs, Fitted, act, compiled, in_float64
from kqljax.agent.history import Memory
from kqljax.agent.scaling import Ranges, Scaling
from kqljax.config import KQLConfig
from kqljax.kql import kql_init, kql_resize, kql_step
from kqljax.policy import KQLPolicy
from kqljax.state import KQLState, Transition

LEAST_CAPACITY, FIRST_CAPACITY = 128, 1000
"""Room that a run starts with. A step costs O(capacity^2), a new size a compile."""


class Policy(NamedTuple):
    """Algorithm 1's policy as a pytree, with beliefs by the agent's names."""

    policy: KQLPolicy

    def begin(self, key: Any) -> tuple[()]:
        return ()

    def act(self, key: Any, memory: Any, obs: Any) -> tuple[Any, Any]:
        return self.policy.act(key, memory, obs)

    def values(self, obs: Any) -> Beliefs:
        found: Any = self.policy.values(obs)
        return Beliefs(*found)


class Learned(NamedTuple):
    """Attributes: `state` of Algorithm 1 between two steps; `scaling`, which is fixed."""

    state: KQLState
    scaling: Scaling


@dataclasses.dataclass(frozen=True)
class StepByStep:
    """Algorithm 1; see `by_rounds.Rounds` for what the loop asks of a learner.

    Attributes:
      numbers: the config.
      obs_dim: l.
      seed: of random ties.
      is_sized: whether lam and beta belong to a horizon, and not to the first call of `learn`.
    """

    numbers: KQLConfig
    obs_dim: int
    seed: int
    is_sized: bool

    name: ClassVar[str] = "Algorithm 1"
    acts_by: ClassVar[str] = "optimistic"

    @in_float64
    def sized(self, total: int, num_steps: int) -> StepByStep:
        """With lam and beta for the first `learn`; raises where the memory cannot hold it."""
        cfg = dataclasses.replace(self.numbers, horizon=total + num_steps)
        state = jax.eval_shape(lambda cfg: kql_init(cfg, self.obs_dim, jnp.float64), cfg)
        needed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
        if needed > _physical_memory() // 2:
            raise ValueError(
                f"{cfg.horizon} steps of Algorithm 1 take {needed / 2**30:.0f} GiB, more than half "
                "of this machine's memory: it grows with their square, and time with the cube. "
                "Take recipe='default', whose memory is bounded, or a KQLConfig with features "
                "(docs/features.md), which is linear in the steps."
            )
        if total or self.is_sized:
            return self
        return dataclasses.replace(self, numbers=dataclasses.replace(cfg, lam=None, beta=None))

    def kept(self, now: Learned | None) -> Learned | None:
        """Everything outlasts a break."""
        return now

    def _begun(self, ranges: Ranges) -> Learned:
        capacity = min(max(self.numbers.horizon, LEAST_CAPACITY), FIRST_CAPACITY)
        state = kql_init(self.numbers, self.obs_dim, jnp.float64, capacity=capacity)
        return Learned(state, ranges.scaling())

    def _policy(self, state: KQLState, **changed: Any) -> Policy:
        # Numbers as arrays, and with the size of the state: the horizon would compile for each run.
        cfg = in_dtype(
            dataclasses.replace(self.numbers, horizon=state.capacity, **changed), jnp.float64
        )
        # It is asked for a few states: what many would share is not made.
        return Policy(KQLPolicy(cfg, cfg.engine.predictor(state.posterior, reuse=False)))

    @in_float64
    def choose(self, memory: Memory, obs: np.ndarray, is_moved: np.ndarray) -> Any:
        """Actions `[n]` that maximise Q-tilde at raw observations `[n, l]`, and `now`."""
        now, key = memory.now or self._begun(memory.ranges), None
        if self.numbers.tie_break == "random":
            key = jax.random.fold_in(jax.random.key(self.seed), memory.history.total)
        return act(self._policy(now.state), now.scaling, obs, key), now

    @in_float64
    def learned(self, memory: Memory, num_steps: int) -> Learned:
        """With the newest `num_steps` transitions of the history, one after another."""
        (state, scaling), history = memory.now, memory.history
        room = room_for(history.total, state.capacity, self.numbers.horizon)
        state = kql_resize(self.numbers, state, room)
        cfg = self._policy(state).policy.cfg
        for i in range(history.num_kept - num_steps, history.num_kept):
            row = {name: history.rows[name][i] for name in Transition._fields}
            row |= {name: scaling.observe(row[name]) for name in ("obs", "next_obs")}
            moved = Transition(**row | {"reward": scaling.pay(row["reward"])})
            state, info = compiled(kql_step)(cfg, state, moved)
            if not bool(info.is_stored & info.is_finite):
                raise FloatingPointError(
                    "a value of Algorithm 1 is no longer a finite number: give a KQLConfig with a "
                    "larger lam, or with features (docs/numerics.md)."
                )
        return Learned(state, scaling)

    @in_float64
    def finished(self, memory: Memory) -> Fitted:
        """The state of now: Algorithm 1 acts by the same values when it is over."""
        now = memory.now or self._begun(memory.ranges)
        policy = self._policy(now.state, tie_break="first")
        return Fitted(policy, policy, now.scaling)


def room_for(needed: int, capacity: int, horizon: int) -> int:
    """Room for `needed` transitions: it doubles when it is full, and ends at the horizon."""
    while capacity < needed:
        # A last stage that adds little would cost a compile for little.
        capacity = horizon if needed <= horizon <= 3 * capacity else 2 * capacity
    return capacity


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 8 * 2**30
