"""Finite MDPs with known optimal values, as tasks: the theory's statements are tested on them.

    mdp = chain(8)
    best = solve_tabular(mdp.transition, mdp.reward, gamma=0.9)
    run = kqljax.train(key, mdp.task(), mdp.task().config(mdp.kernel(), horizon=500, gamma=0.9), 500)

No episode ends. An observation is the one-hot vector of the state; kernels read features from it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from kqljax.kernels import Kernel, Mixing, Pair
from kqljax.tasks import Task

Array = jax.Array


class Indicator(Kernel):
    """1 where state and action are the same, else 0, on one-hot states `[S]`: the tabular case."""

    def evaluate(self, x: Pair, y: Pair) -> Array:
        return jnp.dot(x.obs, y.obs) * jnp.dot(x.action, y.action)

    @property
    def is_split(self) -> bool:
        return True

    def terms(self, obs: Array, stored: Pair) -> Array:
        return jnp.dot(obs, stored.obs)[None]

    def mixing(self, obs_dim: int, num_actions: int, dtype: Any) -> Mixing:
        return Mixing(jnp.eye(num_actions, dtype=dtype)[None], None)

    def domain(self, obs_dim: int) -> np.ndarray:
        return np.eye(obs_dim)

    def bound_shape(self, obs_dim: int, num_actions: int) -> tuple[int, None]:
        """x^T y in dimension S A."""
        return obs_dim * num_actions, None


class KnownFeatures(Kernel):
    """phi(s, a)^T phi(s', a') on one-hot states, with phi `[S, A, d]` of norm in [1/2, 1]."""

    phi: Any

    def evaluate(self, x: Pair, y: Pair) -> Array:
        phi = jnp.asarray(self.phi, x.obs.dtype)
        left, right = (jnp.einsum("s,a,sad->d", z.obs, z.action, phi) for z in (x, y))
        return jnp.dot(left, right)

    def domain(self, obs_dim: int) -> np.ndarray:
        return np.eye(obs_dim)

    def bound_shape(self, obs_dim: int, num_actions: int) -> tuple[int, None]:
        """x^T y in dimension d."""
        return np.shape(self.phi)[-1], None


@dataclasses.dataclass(frozen=True)
class MDP:
    """A finite MDP without ends.

    Attributes:
      name: for tables.
      transition: `[S, A, S]` probabilities of the successor.
      reward: `[S, A]` in [0, 1].
      start: `[S]` probabilities of the first state.
      phi: `[S, A, d]` features in which reward and transition are linear; None: tabular.
      rho: bounds the norms of reward and transition operator in the RKHS of `kernel()`.
      sigma: 0 where the MDP is deterministic, else 1.
    """

    name: str
    transition: np.ndarray
    reward: np.ndarray
    start: np.ndarray
    phi: np.ndarray | None
    rho: float
    sigma: float

    @property
    def num_states(self) -> int:
        return self.transition.shape[0]

    @property
    def num_actions(self) -> int:
        return self.transition.shape[1]

    def kernel(self) -> Kernel:
        """A kernel that meets the theorem's assumptions with epsilon = 0."""
        return Indicator() if self.phi is None else KnownFeatures(self.phi)

    def task(self, max_steps: int = 100) -> Task:
        """The MDP as a task; an evaluation lasts `max_steps`, nothing ends the MDP itself."""
        params = _Params(*map(jnp.asarray, (self.transition, self.reward, self.start)))
        sides = -np.ones(self.num_states), np.ones(self.num_states)
        return Task.wrap(
            _ENVIRONMENT,
            params,
            reward_range=(0.0, 1.0),
            obs_bounds=sides,
            max_steps=max_steps,
            name=self.name,
        )


class _Params(NamedTuple):
    transition: Array
    reward: Array
    start: Array


class _Discrete(NamedTuple):
    n: int


class _Environment:
    """The MDP with gymnax's interface; its state is the index of the MDP's state."""

    def observe(self, state: Array, params: _Params) -> Array:
        return jax.nn.one_hot(state, params.start.shape[0])

    def reset(self, key: Array, params: _Params) -> tuple[Array, Array]:
        state = _draw(key, params.start)
        return self.observe(state, params), state

    def step(self, key: Array, state: Array, action: Array, params: _Params) -> tuple[Any, ...]:
        after = _draw(key, params.transition[state, action])
        obs, never = self.observe(after, params), jnp.zeros((), bool)
        reward = params.reward[state, action]
        return obs, after, reward, never, never, {"final_observation": obs}

    def action_space(self, params: _Params) -> _Discrete:
        return _Discrete(params.reward.shape[-1])


def _draw(key: Array, probabilities: Array) -> Array:
    """An index `[]`; never one of probability 0."""
    return jax.random.categorical(key, jnp.log(probabilities)).astype(jnp.int32)


_ENVIRONMENT = _Environment()


def deterministic(name: str, successor: Any, reward: Any) -> MDP:
    """An MDP with known successors `[S, A]` and rewards `[S, A]`; it starts in state 0.

    In the RKHS of the indicator kernel the operator has norm sqrt(S A), and the reward no more.
    """
    successor, reward = np.asarray(successor), np.asarray(reward, np.float64)
    unit = np.eye(successor.shape[0])
    return MDP(name, unit[successor], reward, unit[0], None, math.sqrt(successor.size), 0.0)


def chain(length: int = 8, small: float = 0.05) -> MDP:
    """States in a row; left and right. Staying pays `small` at the left end, 1 at the right end.

    It starts on the left: a learner that is content with the small reward never sees the large one.
    """
    places = np.arange(length)
    successor = np.stack([np.maximum(places - 1, 0), np.minimum(places + 1, length - 1)], axis=1)
    reward = np.zeros((length, 2))
    reward[0, 0], reward[-1, 1] = small, 1.0
    return deterministic(f"chain of {length}", successor, reward)


def grid(width: int = 4, height: int = 4) -> MDP:
    """A field of cells; left, right, up, down. Only staying in the far corner pays."""
    axes = np.meshgrid(np.arange(width), np.arange(height), indexing="ij")
    x, y = (axis.ravel() for axis in axes)
    moves = [(-1, 0), (1, 0), (0, -1), (0, 1)]
    cells = [
        np.clip(x + dx, 0, width - 1) * height + np.clip(y + dy, 0, height - 1) for dx, dy in moves
    ]
    successor = np.stack(cells, axis=1)
    reward = np.zeros(successor.shape)
    reward[-1] = successor[-1] == len(x) - 1
    return deterministic(f"grid of {width} x {height}", successor, reward)


def tree(depth: int = 5) -> MDP:
    """A binary tree; a leaf leads back to the root, and every reward is 0.

    Optimism has to try every leaf while the pairs near the root are soon well known: there the
    width of a pair says little of what its value rests on.
    """
    size = 2 ** (depth + 1) - 1
    places = np.arange(size)
    children = np.stack([2 * places + 1, 2 * places + 2], axis=1)
    successor = np.where(children < size, children, 0)
    return deterministic(f"tree of depth {depth}", successor, np.zeros((size, 2)))


def random_deterministic(seed: int, num_states: int = 6, num_actions: int = 2) -> MDP:
    """Successors and rewards drawn at random."""
    rng = np.random.default_rng(seed)
    successor = rng.integers(num_states, size=(num_states, num_actions))
    return deterministic(f"random MDP {seed}", successor, rng.uniform(size=successor.shape))


def random_linear_mdp(
    seed: int, *, num_states: int = 10, num_features: int = 3, stochastic: bool = True
) -> MDP:
    """A linear MDP with three actions: P(s' | s, a) = phi(s, a)^T mu(s'), r = phi(s, a)^T theta.

    Features are points of the simplex near its corners (so that their norm is at least 1/2), mu has
    a distribution over the states for each feature and theta is in [0, 1]^d: reward and operator
    have norm at most sqrt(d). With `stochastic=False` features are corners and mu leads to one
    state each.
    """
    rng = np.random.default_rng(seed)
    shape = num_states, 3
    corner = np.eye(num_features)[rng.integers(num_features, size=shape)]
    theta = rng.uniform(size=num_features)
    if stochastic:
        # Norm at least 1/2: three quarters of a corner.
        phi = 0.75 * corner + 0.25 * rng.dirichlet(np.ones(num_features), size=shape)
        mu = rng.dirichlet(np.full(num_states, 0.3), size=num_features)
    else:
        phi = corner
        mu = np.eye(num_states)[rng.integers(num_states, size=num_features)]
    start = np.full(num_states, 1 / num_states)
    name = f"{'linear' if stochastic else 'deterministic linear'} MDP {seed}"
    return MDP(name, phi @ mu, phi @ theta, start, phi, math.sqrt(num_features), float(stochastic))


class Solution(NamedTuple):
    """Optimal values: q `[S, A]`, v `[S]`, and an optimal action `[S]` of each state."""

    q: Array
    v: Array
    policy: Array


def solve_tabular(transition: Any, reward: Any, gamma: Any) -> Solution:
    """Q*, V* and an optimal policy of `[S, A, S]` and `[S, A]`, by policy iteration; jittable.

    Each iteration solves a linear system, so the values are exact to rounding; an action changes
    only where the change gains more than rounding.
    """
    dtype = jnp.zeros(()).dtype
    table, pay = jnp.asarray(transition, dtype), jnp.asarray(reward, dtype)
    num_states, num_actions, _ = table.shape
    every, unit = jnp.arange(num_states), jnp.eye(num_states, dtype=dtype)
    # Improvements below rounding would send the policy round in circles.
    slack = 1e3 * jnp.finfo(dtype).eps * (1.0 + jnp.max(jnp.abs(pay))) / (1.0 - gamma)

    def values(policy: Array) -> Array:
        value = jnp.linalg.solve(unit - gamma * table[every, policy], pay[every, policy])
        return pay + gamma * jnp.matmul(table, value, precision=lax.Precision.HIGHEST)

    def improve(carry: Any) -> Any:
        policy, _, count = carry
        q = values(policy)
        better = jnp.max(q, axis=1) > q[every, policy] + slack
        return jnp.where(better, jnp.argmax(q, axis=1), policy), jnp.any(better), count + 1

    def is_going(carry: Any) -> Array:
        return carry[1] & (carry[2] < num_states * num_actions + 10)

    start = jnp.argmax(pay, axis=1), jnp.asarray(True), jnp.asarray(0)
    policy, _, _ = lax.while_loop(is_going, improve, start)
    q = values(policy)
    return Solution(q, jnp.max(q, axis=1), policy)


def growth_exponent(steps: Any, regret: Any) -> float:
    """The slope of ln(regret) `[n]` over ln(steps) `[n]`: 1 is linear, 1/2 the theorem's rate.

    Regret below 1 counts as 1.
    """
    regret = np.maximum(np.asarray(regret, float), 1.0)
    return float(np.polyfit(np.log(np.asarray(steps, float)), np.log(regret), 1)[0])
