"""Training and evaluation on a task: pure functions that run whole inside jit and vmap.

    run = train(key, task, learner, num_steps=1000)
    returns = evaluate(key, task, run, num_episodes=100)

There is one loop for all learners. Algorithm 1 is a `KQLConfig`, learning in rounds a
`kqljax.rounds.Recipe`; for anything else write a `Learner`.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax

from kqljax._arrays import register
from kqljax._checks import describe, whole_number
from kqljax.config import KQLConfig
from kqljax.kql import kql_act, kql_init, kql_step_and_act, resize
from kqljax.policy import KQLPolicy, kql_policy
from kqljax.rounds import Recipe, Rounds
from kqljax.state import KQLState, Transition
from kqljax.tasks import Draws, Task

Array = jax.Array

STAGES = 5
"""Capacities of a run on a CPU. An accelerator gets one: a stage costs kernels there, not
products.
"""


@runtime_checkable
class Learner(Protocol):
    """What `train` asks of an algorithm: a frozen dataclass, registered as a pytree."""

    def stages(self, num_steps: int) -> tuple[int, ...]:
        """Sizes that the state goes through, in steps; the last is num_steps.

        Static: each stage is a loop that is compiled for itself. A learner with more than one has
        `resize(state, capacity) -> state` too, for a state all of whose room is used.
        """

    def begin(self, key: Array, task: Task, capacity: int, dtype: Any) -> Any:
        """A state that has learned nothing, with room for `capacity` transitions."""

    def act(self, key: Array, state: Any, obs: Array) -> tuple[Array, Any]:
        """The first action `[]`, at an observation `[l]`, and the state."""

    def observe(
        self, key: Array, state: Any, transition: Transition, truncated: Array, obs: Array
    ) -> tuple[Any, Array, Any]:
        """Learns from a transition.

        Args:
          truncated: `[]` bool, a time limit cut the episode off here.
          obs: `[l]` where the environment is now, at the start of an episode or on its way.

        Returns:
          The state, the action `[]` at `obs` (-1 where a value is not a number), and diagnostics: a
          pytree of numbers `[]`, with `is_sound` if the learner can tell that all went well.
        """

    def policy(self, state: Any, is_end: bool) -> Any:
        """A pytree with `begin` and `act`, see `evaluate`; `is_end`: nothing more is learned."""


@functools.partial(register, static=("count",))
@dataclasses.dataclass(frozen=True)
class EveryStep:
    """Algorithm 1 as a learner; its state grows in stages, because a step costs O(capacity^2).

    Attributes:
      cfg: the config.
      count: stages; by default `STAGES` on a CPU and one elsewhere (static).
    """

    cfg: KQLConfig
    count: int | None = None

    def stages(self, num_steps: int) -> tuple[int, ...]:
        if num_steps > self.cfg.horizon:
            raise ValueError(
                f"num_steps={num_steps} is more than the config's horizon={self.cfg.horizon}, the "
                "transitions it can hold. Make the config with a larger horizon."
            )
        count = self.count
        if count is None:
            # Under 200 slots a smaller capacity saves less time than compiling its stage costs.
            count = min(STAGES, max(1, num_steps // 200)) if jax.default_backend() == "cpu" else 1
        return tuple(sorted({-(-num_steps * (stage + 1) // count) for stage in range(count)}))

    def begin(self, key: Array, task: Task, capacity: int, dtype: Any) -> KQLState:
        return kql_init(self.cfg, task.obs_dim, dtype, capacity)

    def resize(self, state: KQLState, capacity: int) -> KQLState:
        return resize(self.cfg, state, capacity, is_full=True)

    def act(self, key: Array, state: KQLState, obs: Array) -> tuple[Array, KQLState]:
        return kql_act(key, self.cfg, state, obs)[0], state

    def observe(
        self, key: Array, state: KQLState, transition: Transition, truncated: Array, obs: Array
    ) -> tuple[KQLState, Array, Any]:
        state, info, action, _ = kql_step_and_act(key, self.cfg, state, transition, obs)
        return state, action, info

    def policy(self, state: KQLState, is_end: bool) -> KQLPolicy:
        return kql_policy(self.cfg, state)


class TrainLog(NamedTuple):
    """What happened at each of N steps.

    Attributes:
      action: `[N]` int32; -1 where a value was not a number (the environment was given 0).
      raw_reward: `[N]` the environment's own rewards.
      terminated: `[N]` bool.
      truncated: `[N]` bool.
      info: the learner's diagnostics, `[N]` each: `KQLInfo`, or `kqljax.rounds.RoundsInfo`.
    """

    action: Array
    raw_reward: Array
    terminated: Array
    truncated: Array
    info: Any

    @property
    def episode_return(self) -> Array:
        """`[N]` sum of raw rewards of the episode up to and with each step."""

        def add(total: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
            reward, is_over = step
            total = total + reward
            return jnp.where(is_over, 0.0, total), total

        is_over = self.terminated | self.truncated
        return lax.scan(add, jnp.zeros((), self.raw_reward.dtype), (self.raw_reward, is_over))[1]


class TrainRun(NamedTuple):
    """Result of `train`.

    Attributes:
      state: the learner's state after the last step.
      policy: its policy, for `evaluate`.
      log: what happened at each step.
      curve: `[E, num_episodes]` returns at the steps of `eval_at`.
      is_sound: `[]` bool, every step was learned from and every number was finite.

    """

    state: Any
    policy: Any
    log: TrainLog
    curve: Array
    is_sound: Array


class Carry(NamedTuple):
    """A run between two steps: what to act on, `obs` `[l]`, and the action `[]` chosen for it."""

    state: Any
    env_state: Any
    obs: Array
    action: Array


def as_learner(learner: Any) -> Learner:
    """The learner that a config or a recipe stands for."""
    if isinstance(learner, KQLConfig):
        return EveryStep(learner)
    if isinstance(learner, Recipe):
        return Rounds(learner)
    if not isinstance(learner, Learner):
        raise ValueError(
            "learner must be a kqljax.KQLConfig, a kqljax.rounds.Recipe, or an object with the "
            f"methods of kqljax.training.Learner, got {describe(learner)}."
        )
    return learner


def train(
    key: Array,
    task: Task,
    learner: Any,
    num_steps: int,
    *,
    dtype: Any = None,
    eval_at: tuple[int, ...] = (),
    eval_episodes: int = 20,
) -> TrainRun:
    """Runs a learner on a task for `num_steps` steps.

    Pure: jit it, vmap it over keys and over the numbers of the learner and the task. One jit holds
    the whole run. For many seeds `kqljax.across_seeds` picks what is fast.

    Args:
      learner: a `KQLConfig` is Algorithm 1, a `kqljax.rounds.Recipe` learns in rounds; or a
        `Learner`.
      num_steps: steps of the environment, static. With fewer steps than its config's horizon a
        state of Algorithm 1 has room for the others.
      dtype: of the state of Algorithm 1, see `kql_init`.
      eval_at: steps after which the policy is evaluated on `eval_episodes` episodes, for a curve.

    Examples:
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> cfg = task.config(horizon=20)
      >>> run = jax.jit(lambda key: kqljax.train(key, task, cfg, num_steps=10))(jax.random.key(0))
      >>> int(run.state.num_stored), run.state.capacity, run.log.action.shape, bool(run.is_sound)
      (10, 20, (10,), True)
    """
    if not isinstance(task, Task):
        raise ValueError(
            f"task must be a kqljax.Task, got {describe(task)}. Make one with kqljax.make_task or "
            "kqljax.Task.wrap."
        )
    learner = as_learner(learner)
    whole_number("num_steps", num_steps, 1, "It is the number of environment steps.")
    if list(eval_at) != sorted({step for step in eval_at if 1 <= step <= num_steps}):
        raise ValueError(f"eval_at must be increasing steps in 1..{num_steps}, got {eval_at}.")
    sizes = learner.stages(num_steps)
    keys = jax.random.split(key, num_steps + 1)
    begin_key, act_key, eval_key = jax.random.split(jax.random.fold_in(keys[-1], 1), 3)
    obs, env_state = task.reset(keys[-1])
    action, state = learner.act(act_key, learner.begin(begin_key, task, sizes[0], dtype), obs)
    carry = Carry(state, env_state, obs, action)

    def advance(carry: Carry, drawn: tuple[Draws, Array]) -> tuple[Carry, TrainLog]:
        return _advance(task, learner, carry, *drawn)

    logs, curve, done = [], [], 0
    for stop in sorted({*sizes, *eval_at}):
        if done in sizes:
            size = next(size for size in sizes if size > done)
            carry = carry._replace(state=learner.resize(carry.state, size))
        # All random numbers of the loop at once: in it each would be a kernel of its own.
        step_keys = keys[done:stop]
        draws = jax.vmap(task.draw)(step_keys)
        act_keys = jax.vmap(lambda key: jax.random.fold_in(key, 1))(step_keys)
        carry, log = scan_packed(advance, carry, (draws, act_keys))
        logs.append(log)
        done = stop
        if stop in eval_at:
            policy = learner.policy(carry.state, is_end=stop == num_steps)
            at = jax.random.fold_in(eval_key, stop)
            curve.append(evaluate(at, task, policy, eval_episodes))
    state = carry.state
    if isinstance(learner, EveryStep) and state.capacity < learner.cfg.horizon:
        state = learner.resize(state, learner.cfg.horizon)
    log = jax.tree.map(lambda *parts: jnp.concatenate(parts), *logs)
    returns = jnp.stack(curve) if curve else jnp.zeros((0, eval_episodes))
    is_sound = jnp.all(getattr(log.info, "is_sound", True)) & jnp.all(log.action >= 0)
    return TrainRun(state, learner.policy(state, is_end=True), log, returns, is_sound)


def _advance(
    task: Task, learner: Learner, carry: Carry, draws: Draws, key: Array
) -> tuple[Carry, TrainLog]:
    """One step of the environment and of the learner, and the next action."""
    # An action of -1 says that a value was not a number. The environment cannot take it; the
    # learner refuses it.
    step = task.step_drawn(draws, carry.env_state, jnp.maximum(carry.action, 0))
    transition = Transition(carry.obs, carry.action, step.reward, step.next_obs, step.terminated)
    state, action, info = learner.observe(key, carry.state, transition, step.truncated, step.obs)
    log = TrainLog(carry.action, step.raw_reward, step.terminated, step.truncated, info)
    obs = step.obs.astype(carry.obs.dtype)
    return Carry(state, step.env_state, obs, action), log


def scan_packed(body: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
    """`lax.scan` that writes all outputs, numbers of any kind, as one row a step."""
    first = jax.tree.map(lambda x: x[0], xs)
    leaves, structure = jax.tree.flatten(jax.eval_shape(body, carry, first)[1])
    dtype = jnp.zeros(()).dtype

    def packed(carry: Any, x: Any) -> tuple[Any, Array]:
        carry, out = body(carry, x)
        return carry, jnp.stack([jnp.asarray(leaf, dtype) for leaf in jax.tree.leaves(out)])

    carry, rows = lax.scan(packed, carry, xs)
    columns = [rows[:, i].astype(leaf.dtype) for i, leaf in enumerate(leaves)]
    return carry, jax.tree.unflatten(structure, columns)


def evaluate(key: Array, task: Task, run_or_policy: Any, num_episodes: int = 100) -> Array:
    """Undiscounted raw returns `[num_episodes]` of a policy; NaN where it answered -1.

    All episodes run side by side until the last one is over, without learning.

    Args:
      run_or_policy: a `TrainRun`, or a policy: an object with `begin(key) -> memory`, called once
        for all n episodes, and `act(key, memory, obs [n, l]) -> actions [n], memory`. Observations
        of an episode that is over are NaN; its actions do not matter.

    Examples:
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> policy = kqljax.kql_policy(cfg := task.config(), kqljax.kql_init(cfg, task.obs_dim))
      >>> kqljax.evaluate(jax.random.key(1), task, policy, num_episodes=2).tolist()
      [-200.0, -200.0]
    """
    whole_number("num_episodes", num_episodes, 1, "It is the number of evaluation episodes.")
    policy = getattr(run_or_policy, "policy", run_or_policy)
    if not (hasattr(policy, "act") and hasattr(policy, "begin")):
        raise ValueError(
            "expected a run of kqljax.train or a policy with begin and act, got "
            f"{describe(policy)}. A run has one: run.policy."
        )
    if hasattr(policy, "for_acting"):
        policy = policy.for_acting()
    keys = jax.random.split(key, num_episodes + 2)
    obs, env_state = jax.vmap(task.reset)(keys[2:])

    def is_going(carry: Any) -> Array:
        return (carry[0] < task.max_steps) & ~jnp.all(carry[-1])

    def step(carry: Any) -> Any:
        at, obs, env_state, memory, returns, is_over = carry
        step_keys = jax.random.split(jax.random.fold_in(keys[0], at), num_episodes + 1)
        # NaN says that an episode is over: what looks ahead can do without it.
        asked = jnp.where(jnp.expand_dims(is_over, 1), jnp.nan, obs)
        action, memory = policy.act(step_keys[-1], memory, asked)
        after = jax.vmap(task.step)(step_keys[:-1], env_state, jnp.maximum(action, 0))
        reward = jnp.where(action < 0, jnp.nan, after.raw_reward)
        returns = returns + jnp.where(is_over, 0.0, reward)
        is_over = is_over | after.terminated | after.truncated
        return at + 1, after.obs.astype(obs.dtype), after.env_state, memory, returns, is_over

    nothing = jnp.zeros(num_episodes), jnp.zeros(num_episodes, bool)
    start = jnp.int32(0), obs, env_state, policy.begin(keys[1]), *nothing
    return lax.while_loop(is_going, step, start)[-2]
