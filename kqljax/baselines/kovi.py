"""KOVI: kernel optimistic value iteration (Yang, Jin, Wang, Wang and Jordan, 2020).

The episodic relative of KQL, which the paper's section 2 says makes no progress on MountainCar in 1000 steps. An episode
has H steps and each of them a value function of its own. Before an episode, for h = H, ..., 1,

    y_tau  = r_tau + V_{h+1}(s'_tau)                                  data of step h of the episodes before
    Q_h(x) = clip(mean_h(x) + beta width_h(x), 0, H - h + 1)          kernel ridge regression on it, KQL's width
    V_h(s) = max_a Q_h(s, a),   V_{H+1} = 0

and step h of the episode takes the action that maximises Q_h. Nothing is discounted; rewards are in [0, 1].

A task that ends early goes on in an absorbing state that pays raw reward 0 for the rest of the H steps, as in
`kqljax.kql`: a terminated transition's target is r + (H - h) norm(0), and these steps cost nothing of the budget.

`pooled=True` gives every h the data of all steps. That is not the algorithm that was analysed: it trades the
assumption that each step has dynamics of its own for H times the data.

    cfg = default_config(task, num_steps=1000)
    run = jax.jit(train, static_argnames="num_steps")(task, cfg, key, num_steps=1000)
    returns = evaluate(task, cfg, run.state, key, num_episodes=100)

The arithmetic is in the widest dtype that jax has enabled. In float32 a small `lam` can spoil the factorisation;
`KOVILog.is_finite` tells.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular

from kqljax import checks
from kqljax.config import TIE_BREAKS
from kqljax.errors import describe, first_bad, is_known
from kqljax.kernels import RBF, Kernel, Pair
from kqljax.pytrees import register
from kqljax.rollout import rollout_returns
from kqljax.tasks import Task, TaskStep

Array = jax.Array

_HIGHEST = lax.Precision.HIGHEST  # TF32 and bfloat16 products ruin kernel methods
_STATIC = ("pooled", "max_episodes", "tie_break")


@functools.partial(register, static=_STATIC)
@dataclasses.dataclass(frozen=True, kw_only=True)
class KOVIConfig:
    """Parameters of KOVI; `default_config` makes one for a task.

    The kernel's parameters and the numbers are pytree leaves: changing or vmapping them does not recompile.

    Attributes:
      kernel: kernel on (state, action) pairs.
      lam: ridge parameter.
      beta: confidence width.
      pooled: whether every step of an episode learns from the data of all steps (static).
      max_episodes: episodes there is room for where the data are not pooled; a run ends when they are over. By default
        one for every 8 steps, since no task of the paper can end sooner (static).
      tie_break: "first" or "random", which of several maximal actions is taken (static).
    """

    kernel: Kernel
    lam: Any
    beta: Any
    pooled: bool = False
    max_episodes: int | None = None
    tie_break: str = "random"

    def validate(self) -> KOVIConfig:
        """Raises ValueError where a value is out of range; returns the config. Call it outside jit."""
        _check_static(self)
        lam, beta = (np.asarray(value, np.float64) for value in (self.lam, self.beta))
        for name, value, good, words in (
            ("lam", lam, np.isfinite(lam) & (lam > 0), "above 0"),
            ("beta", beta, np.isfinite(beta) & (beta >= 0), "at least 0"),
        ):
            if not np.all(good):
                raise ValueError(
                    f"{name} must be {words}, got {first_bad(value, good)}. default_config(task) has values to begin with."
                )
        return self


def default_config(task: Task, num_steps: int = 1000, **overrides: Any) -> KOVIConfig:
    """KQL's choices carried over: the paper's kernel, lam = 1 / (10 T), and beta = H sqrt(lam), optimistic at first."""
    lam = overrides.pop("lam", 1.0 / (10 * num_steps))
    beta = overrides.pop("beta", task.max_steps * lam**0.5)
    kernel = overrides.pop("kernel", RBF(eta=task.eta))
    return KOVIConfig(kernel=kernel, lam=lam, beta=beta, **overrides)


class Data(NamedTuple):
    """Transitions in G groups of room M: group h holds step h of every episode; pooled data are a single group.

    Attributes:
      pairs: obs `[G, M, l]` and one-hot action `[G, M, A]`.
      reward: `[G, M]` in [0, 1].
      next_obs: `[G, M, l]` the true successor.
      terminated: `[G, M]` bool.
      is_stored: `[G, M]` bool, False in empty places.
    """

    pairs: Pair
    reward: Array
    next_obs: Array
    terminated: Array
    is_stored: Array


class Plan(NamedTuple):
    """The value functions of one episode.

    Attributes:
      whitener: `[G, M, M]` inverse Cholesky factor of K + lam I; zero in empty places.
      weights: `[H, M]` (K + lam I)^-1 y of every step.
    """

    whitener: Array
    weights: Array


class KOVIState(NamedTuple):
    """What KOVI knows.

    Attributes:
      data: all transitions.
      plan: value functions made from them.
    """

    data: Data
    plan: Plan


class KOVILog(NamedTuple):
    """What happened at each of N steps.

    Attributes:
      is_taken: `[N]` bool, False from where the run ended for want of room for episodes.
      action: `[N]`.
      raw_reward: `[N]` the environment's own rewards.
      terminated: `[N]` bool.
      truncated: `[N]` bool.
      episode_return: `[N]` sum of raw rewards of the episode up to and with this step.
      is_finite: `[N]` bool, the values acted on are numbers.
    """

    is_taken: Array
    action: Array
    raw_reward: Array
    terminated: Array
    truncated: Array
    episode_return: Array
    is_finite: Array


class KOVIRun(NamedTuple):
    """Result of `train`.

    Attributes:
      state: all data, and a plan made from them after the last episode.
      log: what happened at each step.
      num_episodes: `[]` int32, episodes begun.
    """

    state: KOVIState
    log: KOVILog
    num_episodes: Array


def _check_static(cfg: KOVIConfig) -> None:
    if not isinstance(cfg.kernel, Kernel):
        raise ValueError(f"kernel must be a kqljax kernel such as RBF(eta=0.02), got {describe(cfg.kernel)}.")
    if cfg.max_episodes is not None:
        checks.whole_number("max_episodes", cfg.max_episodes, 1, "Leave it out for one episode in every 8 steps.")
    if cfg.tie_break not in TIE_BREAKS:
        raise ValueError(f"tie_break must be one of {', '.join(map(repr, TIE_BREAKS))}, got {describe(cfg.tie_break)}.")


# Value iteration -----------------------------------------------------------------------------------------------------


def plan_values(cfg: KOVIConfig, data: Data, num_steps: int, end_reward: Any) -> Plan:
    """Optimistic value iteration on the data, from the last of `num_steps` = H steps to the first.

    Args:
      end_reward: reward in [0, 1] of every step after the task ended.
    """
    num_groups, room = data.reward.shape
    if num_groups not in (1, num_steps):
        raise ValueError(
            f"the data are in {num_groups} groups for episodes of {num_steps} steps: expected 1 group (pooled) or one for "
            "every step."
        )
    whitener = jax.vmap(functools.partial(_factor, cfg))(data.pairs, data.is_stored)

    def look_ahead(h: Array) -> tuple[Array, Array]:
        """Kernel `[M, A, M]` and width `[M, A]` at the successors of step h, in the regression of step h + 1."""
        following = _group(num_groups, jnp.minimum(h + 1, num_steps - 1))
        pairs, is_stored, factor = jax.tree.map(lambda x: x[following], (data.pairs, data.is_stored, whitener))
        successors = data.next_obs[_group(num_groups, h)]
        return jax.vmap(lambda obs: _vectors_and_width(cfg, pairs, is_stored, factor, obs))(successors)

    # Pooled data are the same at every step: their widths are worked out once.
    pooled = look_ahead(jnp.zeros((), jnp.int32)) if num_groups == 1 else None

    def backup(weights: Array, h: Array) -> tuple[Array, Array]:
        group = _group(num_groups, h)
        vectors, width = look_ahead(h) if pooled is None else pooled
        steps_left = num_steps - 1 - h
        next_q = _optimistic(cfg, jnp.matmul(vectors, weights, precision=_HIGHEST), width, steps_left)
        value = jnp.where(data.terminated[group], steps_left * end_reward, jnp.max(next_q, axis=-1))
        targets = jnp.where(data.is_stored[group], data.reward[group] + value, 0.0)
        factor = whitener[group]
        whitened = jnp.matmul(factor, targets, precision=_HIGHEST)
        weights = jnp.matmul(whitened, factor, precision=_HIGHEST)
        return weights, weights

    nothing = jnp.zeros(room, data.reward.dtype)
    _, weights = lax.scan(backup, nothing, jnp.arange(num_steps, dtype=jnp.int32), reverse=True)
    return Plan(whitener, weights)


def q_values(cfg: KOVIConfig, state: KOVIState, obs: Array, h: Array) -> Array:
    """Q_h `[A]` at one normalised observation `[l]`, for step `h` (from 0) of an episode."""
    num_steps = state.plan.weights.shape[0]
    group = _group(state.data.reward.shape[0], h)
    pairs, is_stored, factor = jax.tree.map(lambda x: x[group], (state.data.pairs, state.data.is_stored, state.plan.whitener))
    vectors, width = _vectors_and_width(cfg, pairs, is_stored, factor, jnp.asarray(obs, state.plan.weights.dtype))
    return _optimistic(cfg, jnp.matmul(vectors, state.plan.weights[h], precision=_HIGHEST), width, num_steps - h)


def _group(num_groups: int, h: Array) -> Any:
    return 0 if num_groups == 1 else h


def _factor(cfg: KOVIConfig, pairs: Pair, is_stored: Array) -> Array:
    """Inverse Cholesky factor `[M, M]` of K + lam I over the stored pairs; zero rows and columns elsewhere."""
    gram = jax.vmap(lambda x: jax.vmap(lambda y: cfg.kernel.evaluate(x, y))(pairs))(pairs)
    both = is_stored[:, None] & is_stored
    unit = jnp.eye(gram.shape[0], dtype=gram.dtype)
    # An empty place gets a row of the unit matrix, which leaves the factor of the others as it is.
    lower = jnp.linalg.cholesky(jnp.where(both, gram + cfg.lam * unit, unit))
    return jnp.where(both, solve_triangular(lower, unit, lower=True), 0.0)


def _vectors_and_width(cfg: KOVIConfig, pairs: Pair, is_stored: Array, factor: Array, obs: Array) -> tuple[Array, Array]:
    """Kernel vectors `[A, M]` and widths `[A]` of one state `[l]` with every action."""
    queries = jnp.eye(pairs.action.shape[-1], dtype=obs.dtype)
    vectors = jax.vmap(lambda a: jax.vmap(lambda stored: cfg.kernel.evaluate(Pair(obs, a), stored))(pairs))(queries)
    vectors = jnp.where(is_stored, vectors, 0.0)
    own = jax.vmap(lambda a: cfg.kernel.evaluate(Pair(obs, a), Pair(obs, a)))(queries)
    explained = jnp.sum(jnp.matmul(vectors, factor.T, precision=_HIGHEST) ** 2, axis=-1)
    return vectors, jnp.sqrt(jnp.maximum(own - explained, 0.0) / cfg.lam)


def _optimistic(cfg: KOVIConfig, mean: Array, width: Array, cap: Array) -> Array:
    return jnp.clip(mean + cfg.beta * width, 0.0, jnp.asarray(cap, mean.dtype))


def _choose(cfg: KOVIConfig, values: Array, key: Array) -> Array:
    """An action `[]` of maximal value `[A]`; -1 where a value is not a number."""
    if cfg.tie_break == "random":
        action = jax.random.categorical(key, jnp.where(values == jnp.max(values), 0.0, -jnp.inf))
    else:
        action = jnp.argmax(values)
    return jnp.where(jnp.all(jnp.isfinite(values)), action, -1).astype(jnp.int32)


# Episodes ------------------------------------------------------------------------------------------------------------


class _Carry(NamedTuple):
    data: Data
    log: KOVILog
    env_state: Any
    obs: Array
    taken: Array
    episode: Array


def train(task: Task, cfg: KOVIConfig, key: Array, num_steps: int) -> KOVIRun:
    """Runs KOVI for `num_steps` environment steps, or until `max_episodes` episodes are over.

    Pure: jit it (with `num_steps` static), vmap it over keys and over the numbers in `cfg`. Seeds that run side by side
    go from episode to episode together, so none of them plans more often than it has to.
    """
    checks.whole_number("num_steps", num_steps, 1, "It is the number of environment steps.")
    _check_static(cfg)
    if is_known(cfg):
        cfg.validate()
    dtype = jnp.zeros(()).dtype
    cfg = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), cfg)
    length = task.max_steps
    end_reward = task.unit_reward(jnp.zeros((), dtype))
    room = -(-num_steps // 8) if cfg.max_episodes is None else cfg.max_episodes
    shape = (1, num_steps) if cfg.pooled else (length, room)
    most = num_steps if cfg.pooled else room

    reset_key, step_key = jax.random.split(key)
    obs, env_state = task.reset(reset_key)
    start = _Carry(
        data=_empty_data(task, shape, dtype),
        log=_empty_log(num_steps, dtype),
        env_state=env_state,
        obs=obs,
        taken=jnp.zeros((), jnp.int32),
        episode=jnp.zeros((), jnp.int32),
    )

    def run_episode(carry: _Carry) -> _Carry:
        plan = plan_values(cfg, carry.data, length, end_reward)
        before = carry.data

        def is_going(inner: Any) -> Array:
            h, is_over, _, carry = inner
            return (h < length) & ~is_over & (carry.taken < num_steps)

        def advance(inner: Any) -> Any:
            h, _, total, carry = inner
            act_key, env_key = jax.random.split(jax.random.fold_in(step_key, carry.taken))
            values = q_values(cfg, KOVIState(before, plan), carry.obs, h)
            # A plan that is not a number takes action 0 in the environment; the log's is_finite says so.
            action = jnp.maximum(_choose(cfg, values, act_key), 0)
            step = task.step(env_key, carry.env_state, action)
            total = total + step.raw_reward
            place = (0, carry.taken) if cfg.pooled else (h, carry.episode)
            log = KOVILog(
                is_taken=jnp.ones((), bool),
                action=action,
                raw_reward=step.raw_reward,
                terminated=step.terminated,
                truncated=step.truncated,
                episode_return=total,
                is_finite=jnp.all(jnp.isfinite(values)),
            )
            carry = _Carry(
                data=_store(carry.data, place, carry.obs, action, step),
                log=jax.tree.map(lambda all, one: all.at[carry.taken].set(one), carry.log, log),
                env_state=step.env_state,
                obs=step.obs,
                taken=carry.taken + 1,
                episode=carry.episode,
            )
            return h + 1, step.terminated | step.truncated, total, carry

        first = (jnp.zeros((), jnp.int32), jnp.zeros((), bool), jnp.zeros((), dtype), carry)
        carry = lax.while_loop(is_going, advance, first)[3]
        return carry._replace(episode=carry.episode + 1)

    last = lax.while_loop(lambda carry: (carry.taken < num_steps) & (carry.episode < most), run_episode, start)
    state = KOVIState(last.data, plan_values(cfg, last.data, length, end_reward))
    return KOVIRun(state, last.log, last.episode)


def _empty_data(task: Task, shape: tuple[int, int], dtype: Any) -> Data:
    obs = jnp.zeros((*shape, task.obs_dim), dtype)
    nowhere = jnp.zeros(shape, bool)
    action = jnp.zeros((*shape, task.num_actions), dtype)
    return Data(Pair(obs, action), jnp.zeros(shape, dtype), obs, nowhere, nowhere)


def _empty_log(num_steps: int, dtype: Any) -> KOVILog:
    real, flag = jnp.zeros(num_steps, dtype), jnp.zeros(num_steps, bool)
    return KOVILog(flag, jnp.zeros(num_steps, jnp.int32), real, flag, flag, real, flag)


def _store(data: Data, place: tuple[Any, Any], obs: Array, action: Array, step: TaskStep) -> Data:
    one_hot = jax.nn.one_hot(action, data.pairs.action.shape[-1], dtype=data.reward.dtype)
    row = Data(Pair(obs, one_hot), step.reward, step.next_obs, step.terminated, jnp.ones((), bool))
    return jax.tree.map(lambda all, one: all.at[place].set(one.astype(all.dtype)), data, row)


@dataclasses.dataclass(frozen=True)
class _Clocked:
    """A task whose observations carry the step of the episode behind them: the policy of KOVI depends on it."""

    task: Task

    @property
    def max_steps(self) -> int:
        return self.task.max_steps

    def reset(self, key: Array) -> tuple[Array, Any]:
        obs, env_state = self.task.reset(key)
        return jnp.append(obs, 0.0), (env_state, jnp.zeros((), jnp.int32))

    def step(self, key: Array, env_state: Any, action: Array) -> TaskStep:
        inner, h = env_state
        step = self.task.step(key, inner, action)
        h = jnp.where(step.terminated | step.truncated, 0, h + 1)
        return step._replace(obs=jnp.append(step.obs, h.astype(step.obs.dtype)), env_state=(step.env_state, h))


def evaluate(task: Task, cfg: KOVIConfig, state: KOVIState, key: Array, num_episodes: int = 100) -> Array:
    """Undiscounted raw returns `[num_episodes]` of the policy that maximises Q_h in step h, without learning."""
    checks.whole_number("num_episodes", num_episodes, 1, "It is the number of evaluation episodes.")
    dtype = state.plan.weights.dtype
    cfg = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), cfg)

    def act(obs_and_step: Array, key: Array) -> Array:
        values = q_values(cfg, state, obs_and_step[:-1], obs_and_step[-1].astype(jnp.int32))
        return _choose(cfg, values, key)

    clocked: Any = _Clocked(task)
    return rollout_returns(clocked, act, key, num_episodes)
