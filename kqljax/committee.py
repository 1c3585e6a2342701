"""The finished policy of a run, asked of kernels of several widths at once.

While a run goes on, optimism decides, and one visit corrects a value that was too high. A finished policy is not corrected any
more: where the regression extrapolates badly, it walks into the same mistake in every episode. How it extrapolates is mostly a
matter of the kernel's width, and the transitions leave that open. A committee solves the same transitions with each of several
widths, without a bonus, and acts by the mean of their values: where the data decide, the members agree; elsewhere their
mistakes differ and average out.

    committee = convene(cfg, state, Panel(scales=(0.1, 1.0)))
    act = committee_policy(cfg, committee)
    action, value = act(obs)

Each member is Algorithm 1's regression on the stored pairs with its own kernel, its targets taken to the fixed point of the
Bellman backup: y = r + gamma max_a clip(k^T (K + lam I)^-1 y). The discount is larger than the one of learning, which sets how
far optimism reaches: there is nothing left to explore.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import cho_solve

from kqljax import checks
from kqljax.arrays import cholesky, dot, in_dtype
from kqljax.config import KQLConfig
from kqljax.kernels import Afterstate, Kernel, Pair, TwoScale, squared_distance
from kqljax.kql import choose, targets_from
from kqljax.state import KQLState

Array = jax.Array


class Panel(NamedTuple):
    """Who is on a committee.

    Attributes:
      scales: M factors of the kernel's inverse squared widths, one for each member; below 1 is wider.
      gamma: discount factor.
      sweeps: Bellman backups of each member: with gamma = 0.99, what they began with counts for 0.007 after 500.
    """

    scales: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0)
    gamma: float = 0.99
    sweeps: int = 500


class Committee(NamedTuple):
    """What the members have in common, and what each has learned.

    Attributes:
      pairs: the N stored pairs, obs `[N, l]` and one-hot action `[N, A]`; zero where a slot is empty.
      scales: `[M]` what each member multiplies the inverse squared widths of the kernel with.
      weights: `[M, N]` its solution; zero where a slot is empty.
      gamma: `[]` discount factor of the members.
    """

    pairs: Pair
    scales: Array
    weights: Array
    gamma: Array


def convene(cfg: KQLConfig, state: KQLState, panel: Panel) -> Committee:
    """The committee that a state of the exact engine gives. Pure; costs O(M A N^2 (N + sweeps)).

    Args:
      cfg: its kernel is a `TwoScale`, or an `Afterstate` of one; members take its narrow part alone, and make it wider or
        narrower.

    Examples:
      >>> from kqljax import recipes
      >>> from kqljax.committee import Panel, convene
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> cfg = recipes.ROBUST.config(task, horizon=20)
      >>> run = recipes.train(task, cfg, jax.random.key(0))
      >>> convene(run.state.config(cfg), run.state.state, Panel(scales=(0.1, 1.0))).weights.shape
      (2, 20)
    """
    checks.check_state(cfg, state)
    if cfg.features is not None:
        raise ValueError("a committee is made of the exact engine's pairs: ask kqljax.kql_policy of a state with features.")
    _check_panel(panel)
    dtype = state.reward.dtype
    # An end pays the same at every step that follows, so its value goes with 1 / (1 - gamma).
    end = cfg.terminal_value * (1.0 - cfg.gamma) / (1.0 - panel.gamma)
    cfg = in_dtype(dataclasses.replace(cfg, gamma=panel.gamma, terminal_value=end), dtype)
    scales = jnp.asarray(panel.scales, dtype)
    pairs, is_taken = state.posterior.pairs, state.posterior.is_taken
    every_action = jnp.eye(cfg.num_actions, dtype=dtype)
    both = is_taken[:, None] & is_taken
    ridge = jnp.diag(jnp.where(is_taken, cfg.lam, 1.0).astype(dtype))
    # Backups read [A N, N] numbers many times over: float32 is twice as fast, and a value needs no more digits.
    short, reward = in_dtype((cfg, state.reward), jnp.float32)
    start = jnp.where(is_taken, 1.0 / (1.0 - short.gamma), 0.0)

    def solve(scale: Array) -> Array:
        kernel = _scaled(cfg.kernel, scale)
        factor = cholesky(jnp.where(both, _between(kernel, pairs, pairs), 0.0) + ridge), True

        def with_action(action: Array) -> Array:
            """`[N, N]`: what the targets y make of the states reached, if this action follows."""
            reached = Pair(state.table.obs, jnp.broadcast_to(action, pairs.action.shape))
            return cho_solve(factor, jnp.where(both, _between(kernel, pairs, reached), 0.0)).T.astype(jnp.float32)

        hats = lax.map(with_action, every_action).reshape(-1, is_taken.size)

        def backup(_: Array, targets: Array) -> Array:
            values = _clip(short.gamma, dot(hats, targets)).reshape(cfg.num_actions, -1)
            return jnp.where(is_taken, targets_from(short, reward, state.terminated, values.T), 0.0)

        return cho_solve(factor, lax.fori_loop(0, panel.sweeps, backup, start).astype(dtype))

    return Committee(pairs, scales, lax.map(solve, scales), cfg.gamma)


def _check_panel(panel: Panel) -> None:
    scales = np.asarray(panel.scales, float)
    if scales.ndim != 1 or not scales.size or not np.all((scales > 0) & np.isfinite(scales)):
        raise ValueError(f"scales must be positive numbers, one for each member, got {panel.scales!r}.")
    if not 0.0 <= panel.gamma < 1.0:
        raise ValueError(f"gamma must be in [0, 1), got {panel.gamma!r}.")
    checks.whole_number("sweeps", panel.sweeps, 1, "It is the number of Bellman backups.")


def committee_policy(cfg: KQLConfig, committee: Committee) -> Callable[[Any, Array | None], tuple[Array, Array]]:
    """As `kqljax.kql_policy`: act(obs `[l]`, key) -> action `[]`, and the values `[A]` that the members hold on average.

    Examples:
      >>> from kqljax import recipes
      >>> from kqljax.committee import Panel, committee_policy, convene
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> cfg = recipes.ROBUST.config(task, horizon=20)
      >>> run = recipes.train(task, cfg, jax.random.key(0))
      >>> cfg = run.state.config(cfg)
      >>> act = committee_policy(cfg, convene(cfg, run.state.state, Panel(scales=(0.1, 1.0))))
      >>> action, value = act(jnp.zeros(2))
      >>> action.shape, value.shape
      ((), (3,))
    """
    dtype = committee.weights.dtype
    cfg = in_dtype(cfg, dtype)
    every_action = jnp.eye(cfg.num_actions, dtype=dtype)

    def act(obs: Any, key: Array | None = None) -> tuple[Array, Array]:
        obs = jnp.asarray(obs, dtype)
        asked = Pair(jnp.broadcast_to(obs, (cfg.num_actions, *obs.shape)), every_action)

        def member(own: tuple[Array, Array]) -> Array:
            scale, weights = own
            return _clip(committee.gamma, dot(_between(_scaled(cfg.kernel, scale), asked, committee.pairs), weights))

        # One member after the other: for many observations at once their kernel vectors are large.
        value = jnp.mean(lax.map(member, (committee.scales, committee.weights)), axis=0)
        return choose(dataclasses.replace(cfg, gamma=committee.gamma), value, key), value

    return act


class _Gaussian(Kernel):
    """`TwoScale` with a share of 1, for the price of one exponential."""

    eta: Any
    eta_action: Any

    def evaluate(self, x: Pair, y: Pair) -> Array:
        distance = jnp.sum(self.eta * (x.obs - y.obs) ** 2, axis=-1)
        return jnp.exp(-distance - self.eta_action * squared_distance(x.action, y.action))


def _scaled(kernel: Kernel, scale: Array) -> Kernel:
    """The narrow part of a kernel, with its inverse squared widths between states times `scale`."""
    if isinstance(kernel, Afterstate):
        return dataclasses.replace(kernel, kernel=_scaled(kernel.kernel, scale))
    if not isinstance(kernel, TwoScale):
        raise ValueError(
            f"a committee is made of a TwoScale, or an Afterstate of it, the config's kernel is {type(kernel).__name__}. "
            "Take the kernel of recipes.ROBUST, or ask kqljax.kql_policy."
        )
    return _Gaussian(eta=scale * jnp.asarray(kernel.eta, scale.dtype), eta_action=kernel.eta_action)


def _between(kernel: Kernel, x: Pair, y: Pair) -> Array:
    """The kernel `[N, M]` between two lists of pairs."""
    return jax.vmap(lambda one: jax.vmap(lambda other: kernel.evaluate(one, other))(y))(x)


def _clip(gamma: Array, mean: Array) -> Array:
    return jnp.clip(mean, 0.0, 1.0 / (1.0 - gamma))
