"""KOVI: kernel optimistic value iteration (Yang, Jin, Wang, Wang and Jordan, 2020), as a learner.

The episodic relative of KQL, which the paper's section 2 says makes no progress on MountainCar in
1000 steps. An episode has H steps and each of them a value function of its own. Before an episode,
for h = H, ..., 1,

    y_tau  = r_tau + V_{h+1}(s'_tau)                         data of step h of earlier episodes
    Q_h(x) = clip(mean_h(x) + beta width_h(x), 0, H - h + 1) kernel ridge regression, KQL's width
    V_h(s) = max_a Q_h(s, a),   V_{H+1} = 0

and step h of the episode takes the action that maximises Q_h. Nothing is discounted; rewards are
in [0, 1].

A task that ends early goes on in an absorbing state that pays raw reward 0 for the rest of the H
steps, as in `kqljax.kql`: a terminated transition's target is r + (H - h) norm(0).

`pooled=True` gives every h the data of all steps. That is not the algorithm that was analysed: it
trades the assumption that each step has dynamics of its own for H times the data.

    run = train(key, task, make_kovi(task, num_steps=1000), num_steps=1000)
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from kqljax import regression
from kqljax._arrays import dot, register
from kqljax.kernels import RBF, Kernel, Pair
from kqljax.state import Transition
from kqljax.tasks import Task

Array = jax.Array


class Data(NamedTuple):
    """Transitions in G groups of room M: group h holds step h of every episode; pooled: G = 1.

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
      fitted: `[G]` factors of K + lam I.
      weights: `[H, M]` (K + lam I)^-1 y of every step.
    """

    fitted: regression.Factor
    weights: Array


class KOVIState(NamedTuple):
    """All transitions, the plan of this episode, its step h, and its number."""

    data: Data
    plan: Plan
    step: Array
    episode: Array
    end_reward: Array


class Info(NamedTuple):
    """`is_finite` `[]` bool, of the values acted on; `is_stored` `[]` bool, False without room."""

    is_finite: Array
    is_stored: Array

    @property
    def is_sound(self) -> Array:
        return self.is_finite & self.is_stored


@functools.partial(register, static=("pooled", "max_episodes", "length"))
@dataclasses.dataclass(frozen=True, kw_only=True)
class KOVI:
    """The learner; `make_kovi` makes one for a task.

    Attributes:
      kernel: on (state, action) pairs.
      lam: ridge parameter.
      beta: confidence width.
      length: H, steps of an episode (static).
      pooled: whether every step of an episode learns from the data of all steps (static).
      max_episodes: episodes there is room for where the data are not pooled (static).
    """

    kernel: Kernel
    lam: Any
    beta: Any
    length: int
    pooled: bool = False
    max_episodes: int = 100

    def stages(self, num_steps: int) -> tuple[int, ...]:
        return (num_steps,)

    def begin(self, key: Array, task: Task, capacity: int, dtype: Any) -> KOVIState:
        dtype = jnp.zeros((), dtype).dtype
        shape = (1, capacity) if self.pooled else (self.length, self.max_episodes)
        obs, nowhere = jnp.zeros((*shape, task.obs_dim), dtype), jnp.zeros(shape, bool)
        action = jnp.zeros((*shape, task.num_actions), dtype)
        data = Data(Pair(obs, action), jnp.zeros(shape, dtype), obs, nowhere, nowhere)
        end_reward, zero = task.unit_reward(jnp.zeros((), dtype)), jnp.zeros((), jnp.int32)
        return KOVIState(data, self.plan(data, end_reward), zero, zero, end_reward)

    def act(self, key: Array, state: KOVIState, obs: Array) -> tuple[Array, KOVIState]:
        return self.policy(state).choose(key, obs[None], state.step)[0], state

    def observe(
        self, key: Array, state: KOVIState, transition: Transition, truncated: Array, obs: Array
    ) -> tuple[KOVIState, Array, Info]:
        """Plans where an episode is over, at its end or after H steps."""
        data, h = state.data, state.step
        place = (0, jnp.sum(data.is_stored)) if self.pooled else (h, state.episode)
        num_actions = data.pairs.action.shape[-1]
        pair = Pair(transition.obs, jnp.eye(num_actions)[transition.action])
        given = transition.reward, transition.next_obs, transition.terminated
        row = Data(pair, *given, jnp.ones((), bool))
        # Past the last episode that there is room for, a write is dropped.
        data = jax.tree.map(lambda all, one: all.at[place].set(one.astype(all.dtype)), data, row)
        is_stored = jnp.sum(data.is_stored) > jnp.sum(state.data.is_stored)
        is_over = transition.terminated | (h + 1 == self.length)
        plan = lax.cond(is_over, lambda: self.plan(data, state.end_reward), lambda: state.plan)
        step, episode = jnp.where(is_over, 0, h + 1), state.episode + is_over.astype(jnp.int32)
        state = KOVIState(data, plan, step, episode, state.end_reward)
        action, _ = self.act(key, state, obs)
        # A plan with values that are not finite takes action 0.
        return state, jnp.maximum(action, 0), Info(action >= 0, is_stored)

    def policy(self, state: KOVIState, is_end: bool = True) -> KOVIPolicy:
        """The policy of the plan for this episode."""
        return KOVIPolicy(self, state.data, state.plan)

    def plan(self, data: Data, end_reward: Any) -> Plan:
        """Optimistic value iteration on the data, from the last of H steps to the first."""

        def fit(pairs: Pair, is_stored: Array) -> regression.Factor:
            return regression.factor(self.kernel.matrix(pairs, pairs), self.lam, is_stored)

        fitted = jax.vmap(fit)(data.pairs, data.is_stored)
        first = Plan(fitted, jnp.zeros((self.length, data.reward.shape[1]), data.reward.dtype))
        policy = KOVIPolicy(self, data, first)

        def look_ahead(h: Array) -> tuple[Array, Array]:
            """Kernels `[M, A, M]` and widths `[M, A]` at successors of step h, for step h + 1."""
            after = jnp.minimum(h + 1, self.length - 1)
            return policy.kernels_and_width(after, data.next_obs[policy.group(h)])

        # Pooled data are the same at every step: their widths are computed once.
        pooled = look_ahead(jnp.zeros((), jnp.int32)) if self.pooled else None

        def backup(weights: Array, h: Array) -> tuple[Array, Array]:
            group, left = policy.group(h), self.length - 1 - h
            vectors, width = look_ahead(h) if pooled is None else pooled
            value = jnp.max(self.optimistic(dot(vectors, weights), width, left), axis=-1)
            value = jnp.where(data.terminated[group], left * end_reward, value)
            targets = data.reward[group] + value
            weights = regression.solve(jax.tree.map(lambda x: x[group], fitted), targets)
            return weights, weights

        steps = jnp.arange(self.length, dtype=jnp.int32)
        _, weights = lax.scan(backup, jnp.zeros_like(data.reward[0]), steps, reverse=True)
        return Plan(fitted, weights)

    def optimistic(self, mean: Array, width: Array, cap: Any) -> Array:
        """Mean plus bonus, clipped to what `cap` steps can pay."""
        return jnp.clip(mean + self.beta * width, 0.0, jnp.asarray(cap, mean.dtype))


def make_kovi(task: Task, num_steps: int = 1000, **numbers: Any) -> KOVI:
    """KQL's choices carried over: the paper's kernel, lam = 1 / (10 T), beta = H sqrt(lam)."""
    lam = numbers.pop("lam", 1.0 / (10 * num_steps))
    known = {"kernel": RBF(eta=task.eta), "beta": task.max_steps * lam**0.5} | numbers
    return KOVI(lam=lam, length=task.max_steps, **known)


@register
@dataclasses.dataclass(frozen=True)
class KOVIPolicy:
    """Maximises Q_h in step h; h is its memory, and all episodes of a batch begin together.

    Attributes:
      learner: its kernel and numbers.
      data, plan: what the values are made of.
    """

    learner: KOVI
    data: Data
    plan: Plan

    def begin(self, key: Array) -> Array:
        return jnp.zeros((), jnp.int32)

    def act(self, key: Array, memory: Array, obs: Array) -> tuple[Array, Array]:
        """Actions `[]` or `[n]` at observations `[l]` or `[n, l]`; ties are broken at random."""
        action = self.choose(key, jnp.atleast_2d(obs), memory)
        return action if obs.ndim == 2 else action[0], memory + 1

    def choose(self, key: Array, obs: Array, h: Array) -> Array:
        """Actions `[n]` of maximal value at step h; -1 where a value is not finite."""
        values = self.values(obs, h)
        is_best = values == jnp.max(values, axis=-1, keepdims=True)
        action = jax.random.categorical(key, jnp.where(is_best, 0.0, -jnp.inf))
        return jnp.where(jnp.all(jnp.isfinite(values), axis=-1), action, -1).astype(jnp.int32)

    def values(self, obs: Array, h: Array) -> Array:
        """Q_h `[n, A]` at observations `[n, l]`."""
        vectors, width = self.kernels_and_width(h, obs)
        mean = dot(vectors, self.plan.weights[h])
        return self.learner.optimistic(mean, width, self.learner.length - h)

    def group(self, h: Array) -> Any:
        return 0 if self.learner.pooled else h

    def kernels_and_width(self, h: Array, obs: Array) -> tuple[Array, Array]:
        """Kernels `[n, A, M]` to the data of step h and widths `[n, A]`, at states `[n, l]`."""
        (count, _), num_actions = obs.shape, self.data.pairs.action.shape[-1]
        pairs, fitted = jax.tree.map(
            lambda x: x[self.group(h)], (self.data.pairs, self.plan.fitted)
        )
        every = jnp.tile(jnp.eye(num_actions, dtype=obs.dtype), (count, 1))
        queries = Pair(jnp.repeat(obs, num_actions, axis=0), every)
        vectors = jnp.where(fitted.mask, self.learner.kernel.matrix(queries, pairs), 0.0)
        own = jax.vmap(self.learner.kernel.evaluate)(queries, queries)
        width = regression.std(fitted, vectors.T, own) / jnp.sqrt(self.learner.lam)
        return vectors.reshape(count, num_actions, -1), width.reshape(count, num_actions)
