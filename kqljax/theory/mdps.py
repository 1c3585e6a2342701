"""Small MDPs whose optimal values are known, as tasks: where the theory can be held against what happens.

    mdp = theory.chain(8)
    solution = theory.solve_tabular(mdp.transition, mdp.reward, gamma=0.9)
    task, kernel = mdp.task(), mdp.kernel()
    run = kqljax.train(task, task.config(kernel, horizon=500, gamma=0.9), key)

They go on for ever: no episode ends. An observation is the one-hot vector of the state, and kernels read features from it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from kqljax.checks import check_gamma_and_lam, whole_number
from kqljax.errors import describe, is_known
from kqljax.kernels import Kernel, Mixing, Pair
from kqljax.tasks import Task

Array = jax.Array


# Kernels -------------------------------------------------------------------------------------------------------------


class Indicator(Kernel):
    """1 where state and action are the same, else 0, on one-hot states `[S]`: the tabular case.

    Examples:
      >>> x, y = (kqljax.Pair(jnp.eye(4)[1], action) for action in jnp.eye(2))
      >>> float(theory.Indicator().evaluate(x, x)), float(theory.Indicator().evaluate(x, y))
      (1.0, 0.0)
    """

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
    """phi(s, a)^T phi(s', a') for features that are known, on one-hot states.

    Attributes:
      phi: `[S, A, d]`, of norm in [1/2, 1].

    Examples:
      >>> kernel = theory.random_linear_mdp(0, num_states=10, num_features=3).kernel()
      >>> kernel.phi.shape
      (10, 3, 3)
    """

    phi: Any

    def evaluate(self, x: Pair, y: Pair) -> Array:
        left, right = (jnp.einsum("s,a,sad->d", z.obs, z.action, jnp.asarray(self.phi, z.obs.dtype)) for z in (x, y))
        return jnp.dot(left, right)

    def domain(self, obs_dim: int) -> np.ndarray:
        return np.eye(obs_dim)

    def bound_shape(self, obs_dim: int, num_actions: int) -> tuple[int, None]:
        """x^T y in dimension d."""
        return np.shape(self.phi)[-1], None


# MDPs ----------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class MDP:
    """A finite MDP that goes on for ever.

    Attributes:
      name: for tables.
      transition: `[S, A, S]` probabilities of the successor.
      reward: `[S, A]` in [0, 1].
      start: `[S]` probabilities of the first state.
      phi: `[S, A, d]` features in which reward and transition are linear; None is the tabular case.
      rho: bounds the norms of reward and transition operator in the RKHS of `kernel()`.
      sigma: 0 where the MDP is deterministic, else 1.

    Examples:
      >>> mdp = theory.chain(5)
      >>> mdp.transition.shape, mdp.reward.shape, mdp.task().obs_dim, mdp.kernel()
      ((5, 2, 5), (5, 2), 5, Indicator())
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
        """S."""
        return self.transition.shape[0]

    @property
    def num_actions(self) -> int:
        """A."""
        return self.transition.shape[1]

    def kernel(self) -> Kernel:
        """A kernel that meets the theorem's assumptions with epsilon = 0."""
        return Indicator() if self.phi is None else KnownFeatures(self.phi)

    def task(self, max_steps: int = 100) -> Task:
        """The MDP as a task. `max_steps` is how long an evaluation lasts; nothing ends the MDP itself."""
        params = _Params(jnp.asarray(self.transition), jnp.asarray(self.reward), jnp.asarray(self.start))
        sides = -np.ones(self.num_states), np.ones(self.num_states)
        return Task.wrap(_ENVIRONMENT, params, reward_range=(0.0, 1.0), obs_bounds=sides, max_steps=max_steps, name=self.name)


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
        return obs, after, params.reward[state, action], never, never, {"final_observation": obs}

    def action_space(self, params: _Params) -> _Discrete:
        return _Discrete(params.reward.shape[-1])


def _draw(key: Array, probabilities: Array) -> Array:
    """An index `[]`; never one of probability 0."""
    return jax.random.categorical(key, jnp.log(probabilities)).astype(jnp.int32)


_ENVIRONMENT = _Environment()


def chain(length: int = 8, small: float = 0.05) -> MDP:
    """States in a row; left and right. The left end pays `small`, the right end 1, each for staying there.

    It starts on the left. Whoever is content with the small reward never sees the large one.

    Examples:
      >>> mdp = theory.chain(5)
      >>> mdp.num_states, float(mdp.reward[-1, 1])
      (5, 1.0)
    """
    whole_number("length", length, 2, "It is the number of states in the row.")
    if not 0 <= small <= 1:
        raise ValueError(f"small must be in [0, 1], got {small}: it is a reward.")
    places = np.arange(length)
    successor = np.stack([np.maximum(places - 1, 0), np.minimum(places + 1, length - 1)], axis=1)
    reward = np.zeros((length, 2))
    reward[0, 0], reward[-1, 1] = small, 1.0
    return deterministic(f"chain of {length}", successor, reward)


def grid(width: int = 4, height: int = 4) -> MDP:
    """A field of cells; left, right, up, down. Only staying in the far corner pays. It starts in the near one.

    Examples:
      >>> theory.grid(width=3, height=2).transition.shape
      (6, 4, 6)
    """
    whole_number("width", width, 1, "It is the number of columns.")
    whole_number("height", height, 1, "It is the number of rows.")
    x, y = (axis.ravel() for axis in np.meshgrid(np.arange(width), np.arange(height), indexing="ij"))
    moves = [(-1, 0), (1, 0), (0, -1), (0, 1)]
    successor = np.stack([np.clip(x + dx, 0, width - 1) * height + np.clip(y + dy, 0, height - 1) for dx, dy in moves], axis=1)
    reward = np.zeros(successor.shape)
    reward[-1] = successor[-1] == len(x) - 1
    return deterministic(f"grid of {width} x {height}", successor, reward)


def tree(depth: int = 5) -> MDP:
    """A binary tree; a leaf leads back to the root. All leaves pay 0, whatever is done.

    Optimism has to try every leaf, while the pairs near the root are soon well known: there the width of a pair says little
    of what its value rests on.

    Examples:
      >>> theory.tree(depth=2).num_states
      7
    """
    whole_number("depth", depth, 1, "It is the number of choices from the root to a leaf.")
    size = 2 ** (depth + 1) - 1
    places = np.arange(size)
    children = np.stack([2 * places + 1, 2 * places + 2], axis=1)
    return deterministic(f"tree of depth {depth}", np.where(children < size, children, 0), np.zeros((size, 2)))


def random_deterministic(seed: int, num_states: int = 6, num_actions: int = 2) -> MDP:
    """Successors and rewards drawn at random.

    Examples:
      >>> theory.random_deterministic(seed=0).transition.shape
      (6, 2, 6)
    """
    rng = np.random.default_rng(seed)
    successor = rng.integers(num_states, size=(num_states, num_actions))
    return deterministic(f"random MDP {seed}", successor, rng.uniform(size=successor.shape))


def deterministic(name: str, successor: Any, reward: Any) -> MDP:
    """An MDP with known successors `[S, A]` and rewards `[S, A]`; it starts in state 0.

    In the RKHS of the indicator kernel the operator has norm sqrt(S A), and the reward no more.

    Examples:
      >>> mdp = theory.deterministic("two rooms", successor=[[0, 1], [1, 0]], reward=[[0, 0], [1, 0]])
      >>> mdp.transition[0, 1].tolist()  # action 1 leads from room 0 to room 1
      [0.0, 1.0]
    """
    successor, reward = np.asarray(successor), np.asarray(reward, np.float64)
    num_states = successor.shape[0]
    transition = np.eye(num_states)[successor]
    check_mdp(transition, reward)
    return MDP(name, transition, reward, np.eye(num_states)[0], None, math.sqrt(successor.size), 0.0)


def random_linear_mdp(
    seed: int, num_states: int = 10, num_actions: int = 3, num_features: int = 3, *, stochastic: bool = True
) -> MDP:
    """A linear MDP: P(s' | s, a) = phi(s, a)^T mu(s') and r(s, a) = phi(s, a)^T theta.

    Features are points of the simplex near its corners (so that their norm is at least 1/2), mu has a distribution over the
    states for each feature and theta is in [0, 1]^d: reward and operator have norm at most sqrt(d). With `stochastic=False`
    features are corners and mu leads to one state each.

    Examples:
      >>> mdp = theory.random_linear_mdp(seed=0)
      >>> mdp.transition.shape, mdp.phi.shape
      ((10, 3, 10), (10, 3, 3))
    """
    whole_number("num_features", num_features, 1, "It is d.")
    rng = np.random.default_rng(seed)
    shape = num_states, num_actions
    corner = np.eye(num_features)[rng.integers(num_features, size=shape)]
    theta = rng.uniform(size=num_features)
    if stochastic:
        # Norm at least 1/2: three quarters of a corner.
        phi = 0.75 * corner + 0.25 * rng.dirichlet(np.ones(num_features), size=shape)
        mu = rng.dirichlet(np.full(num_states, 0.3), size=num_features)
    else:
        phi = corner
        mu = np.eye(num_states)[rng.integers(num_states, size=num_features)]
    transition, reward = phi @ mu, phi @ theta
    check_mdp(transition, reward)
    start = np.full(num_states, 1 / num_states)
    name = f"{'linear' if stochastic else 'deterministic linear'} MDP {seed}"
    return MDP(name, transition, reward, start, phi, math.sqrt(num_features), float(stochastic))


def check_mdp(transition: Any, reward: Any) -> None:
    """Raises ValueError where `[S, A, S]` is no transition table or `[S, A]` does not fit it."""
    shape = np.shape(transition)
    if len(shape) != 3 or shape[0] != shape[2] or np.shape(reward) != shape[:2]:
        raise ValueError(f"transition must be [S, A, S] and reward [S, A], got {describe(transition)} and {describe(reward)}.")
    if not is_known(transition, reward):
        return
    rows = np.asarray(transition, np.float64)
    if np.any(rows < 0) or not np.allclose(rows.sum(axis=2), 1.0, atol=1e-6):
        raise ValueError("every row of transition must be a probability distribution: numbers from 0 that add up to 1.")
    if not np.all(np.isfinite(np.asarray(reward))):
        raise ValueError("reward must be finite.")


class Solution(NamedTuple):
    """Optimal values of an MDP.

    Attributes:
      q: `[S, A]` Q*.
      v: `[S]` V*.
      policy: `[S]` an optimal action.

    Examples:
      >>> mdp = theory.chain(5)
      >>> best = theory.solve_tabular(mdp.transition, mdp.reward, gamma=0.9)
      >>> best.q.shape, best.v.shape, best.policy.tolist()
      ((5, 2), (5,), [1, 1, 1, 1, 1])
    """

    q: Array
    v: Array
    policy: Array


def solve_tabular(transition: Any, reward: Any, gamma: Any) -> Solution:
    """`Q*`, `V*` and an optimal policy of transition `[S, A, S]` and reward `[S, A]`, by policy iteration; jittable.

    Each round solves a linear system, so the values are exact to rounding; a policy changes only where it gains.

    Examples:
      >>> mdp = theory.chain(5)
      >>> theory.solve_tabular(mdp.transition, mdp.reward, gamma=0.9).v.round(3).tolist()
      [6.561, 7.29, 8.1, 9.0, 10.0]
    """
    check_mdp(transition, reward)
    if is_known(gamma):
        check_gamma_and_lam(gamma, 1.0)
    dtype = jnp.zeros(()).dtype
    table, pay = jnp.asarray(transition, dtype), jnp.asarray(reward, dtype)
    num_states, num_actions, _ = table.shape
    every = jnp.arange(num_states)
    # Improvements below rounding would send the policy round in circles.
    slack = 1e3 * jnp.finfo(dtype).eps * (1.0 + jnp.max(jnp.abs(pay))) / (1.0 - gamma)

    def values(policy: Array) -> Array:
        value = jnp.linalg.solve(jnp.eye(num_states, dtype=dtype) - gamma * table[every, policy], pay[every, policy])
        return pay + gamma * jnp.matmul(table, value, precision=lax.Precision.HIGHEST)

    def improve(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        policy, _, rounds = carry
        q = values(policy)
        better = jnp.max(q, axis=1) > q[every, policy] + slack
        return jnp.where(better, jnp.argmax(q, axis=1), policy), jnp.any(better), rounds + 1

    start = jnp.argmax(pay, axis=1), jnp.asarray(True), jnp.asarray(0)
    policy, _, _ = lax.while_loop(lambda carry: carry[1] & (carry[2] < num_states * num_actions + 10), improve, start)
    q = values(policy)
    return Solution(q, jnp.max(q, axis=1), policy)
