"""The finished policy of a run: what it makes of its transitions once there is nothing left to find out.

While a run goes on, optimism decides, and one visit corrects a value that was too high. A finished policy is not corrected any
more: where the regression extrapolates badly, it walks into the same mistake in every episode. Three things help, all made of
the stored transitions alone; learning itself, Algorithm 1, is not touched.

* A committee of widths. How a regression extrapolates is mostly a matter of the kernel's width, which the transitions leave
  open. The same transitions are solved with each of several widths, without a bonus, by Bellman backups from 0 to the fixed
  point y = r + gamma max_a clip(k^T (K + ridge I)^-1 y), and the mean of their values counts: where the data decide, the
  members agree; elsewhere their mistakes differ and average out.
* Looking ahead. Where one step changes little, a value that is a little wrong has slopes that mean nothing. Plans of a few
  actions, each held for some steps, are followed through the model that the same transitions give (`kqljax.model`), and the
  committee is asked where they lead: that far, differences are larger than mistakes.
* Hope. While optimism still promises much more than the committee can find in the data, exploration is not over, and the
  policy is the one that learning follows.

    committee = convene(cfg, state, Panel())
    act = committee_policy(cfg, state, committee, Panel())
    action, value = act(obs)
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
from kqljax.arrays import cholesky, dot, in_dtype, squared_distances
from kqljax.config import KQLConfig
from kqljax.kernels import Afterstate, Kernel, Pair, TwoScale
from kqljax.kql import choose, kql_policy, targets_from
from kqljax.model import Model, fit_model, foresee
from kqljax.state import KQLState

Array = jax.Array

STRIDE = 0.5
"""How far an action is held, in widths of the kernel. Where a single step goes about as far, there is no need to look ahead."""

MOST_HELD = 4
"""Steps that an action is held for at most."""


class Panel(NamedTuple):
    """How a finished policy decides.

    Attributes:
      members: M, the widths on the committee; the inverse squared width of each is three times that of the one before.
      widest: the inverse squared width of the first, as a share of the kernel's.
      ridge: what a member adds to the Gram matrix's diagonal, in units of the run's lam.
      gamma: discount factor: larger than in learning, where it sets how far optimism reaches.
      sweeps: Bellman backups of each member, from 0: with gamma = 0.99, 500 of them look as many steps ahead, and what comes
        after counts for 0.007.
      depth: actions in a plan; 0 is not to look ahead.
      hope: how much more than the committee optimism may promise, in units of the range of values and on average over the
        states reached, before the policy is the one that learning follows; 1 is never.
    """

    members: int = 5
    widest: float = 1 / 27
    ridge: float = 3.0
    gamma: float = 0.99
    sweeps: int = 500
    depth: int = 2
    hope: float = 0.35

    @property
    def scales(self) -> tuple[float, ...]:
        """Inverse squared width of each member as a multiple of the kernel's."""
        return tuple(self.widest * 3.0**member for member in range(self.members))


class Committee(NamedTuple):
    """What the members have in common, and what each has learned.

    Attributes:
      pairs: the N stored pairs, obs `[N, l]` and one-hot action `[N, A]`; zero where a slot is empty.
      weights: `[M, N]` solution of each member; zero where a slot is empty.
      model: of the environment.
      held: `[]` int32, steps that an action of a plan is held for; 1 is not to look ahead.
      hope: `[]` how much more optimism promises than the committee, on average over the states reached, in [0, 1].
      end_value: `[]` the value of an end.
    """

    pairs: Pair
    weights: Array
    model: Model
    held: Array
    hope: Array
    end_value: Array


class _Shape(NamedTuple):
    """The narrow part of a kernel: `eta` `[l]`, displacements by actions `effect` `[A, l]`, `eta_action` `[]`."""

    eta: Array
    effect: Array
    eta_action: Array


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
      >>> convene(run.state.config(cfg), run.state.state, Panel(members=2)).weights.shape
      (2, 20)
    """
    checks.check_state(cfg, state)
    if cfg.features is not None:
        raise ValueError("a committee is made of the exact engine's pairs: ask kqljax.kql_policy of a state with features.")
    _check_panel(panel)
    dtype = state.reward.dtype
    optimism = jnp.max(state.q_tilde, axis=-1) * (1.0 - cfg.gamma)
    # An end pays the same at every step that follows, so its value goes with 1 / (1 - gamma).
    end = cfg.terminal_value * (1.0 - cfg.gamma) / (1.0 - panel.gamma)
    cfg = in_dtype(dataclasses.replace(cfg, gamma=panel.gamma, terminal_value=end), dtype)
    shape = _shape_of(cfg.kernel, cfg.num_actions, state.table.obs.shape[-1], dtype)
    pairs, reached, is_taken = state.posterior.pairs, state.table.obs, state.posterior.is_taken
    both = is_taken[:, None] & is_taken
    ridge = jnp.diag(jnp.where(is_taken, panel.ridge * cfg.lam, 1.0).astype(dtype))
    # Backups read [A N, N] numbers many times over: float32 is twice as fast, and a value needs no more digits.
    short, reward = in_dtype((cfg, state.reward), jnp.float32)
    # From below: 500 backups from the cap, 1 / (1 - gamma), leave 0.7% of it, two thirds of a goal that is rewarded once.
    start = jnp.zeros(is_taken.shape, jnp.float32)

    def solve(scale: Array) -> tuple[Array, Array]:
        narrow = shape._replace(eta=scale * shape.eta)
        factor = cholesky(jnp.where(both, _closeness(narrow, pairs, pairs), 0.0) + ridge), True

        def with_action(action: Array) -> Array:
            """`[N, N]`: what the targets y make of the states reached, if this action follows."""
            followed = Pair(reached, jnp.broadcast_to(action, pairs.action.shape))
            return cho_solve(factor, jnp.where(both, _closeness(narrow, pairs, followed), 0.0)).T.astype(jnp.float32)

        hats = lax.map(with_action, jnp.eye(cfg.num_actions, dtype=dtype)).reshape(-1, is_taken.size)

        def values(targets: Array) -> Array:
            return _clip(short.gamma, dot(hats, targets)).reshape(cfg.num_actions, -1).T

        def backup(_: Array, targets: Array) -> Array:
            return jnp.where(is_taken, targets_from(short, reward, state.terminated, values(targets)), 0.0)

        targets = lax.fori_loop(0, panel.sweeps, backup, start)
        return cho_solve(factor, targets.astype(dtype)), values(targets)

    weights, found = lax.map(solve, jnp.asarray(panel.scales, dtype))
    counts = is_taken & ~state.terminated
    excess = jnp.maximum(optimism - jnp.max(jnp.mean(found, axis=0), axis=-1) * (1.0 - panel.gamma), 0.0)
    moved = jnp.sqrt(jnp.sum(shape.eta * (reached - pairs.obs) ** 2, axis=-1))
    return Committee(
        pairs=pairs,
        weights=weights,
        model=fit_model(shape.eta, state),
        held=jnp.clip(jnp.round(STRIDE / _mean(moved, counts)), 1, MOST_HELD).astype(jnp.int32),
        hope=_mean(excess, counts),
        end_value=jnp.asarray(cfg.terminal_value, dtype),
    )


def _mean(values: Array, counts: Array) -> Array:
    """Mean `[]` of the values `[N]` that count, at least a tiny number."""
    mean = jnp.sum(jnp.where(counts, values, 0.0)) / jnp.maximum(jnp.sum(counts), 1)
    return jnp.maximum(mean, jnp.finfo(values.dtype).tiny)


def _check_panel(panel: Panel) -> None:
    checks.whole_number("members", panel.members, 1, "It is the number of widths on the committee.")
    for name in ("widest", "ridge"):
        value = getattr(panel, name)
        if not (np.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be a positive number, got {value!r}.")
    if not 0.0 <= panel.gamma < 1.0:
        raise ValueError(f"gamma must be in [0, 1), got {panel.gamma!r}.")
    checks.whole_number("sweeps", panel.sweeps, 1, "It is the number of Bellman backups.")
    checks.whole_number("depth", panel.depth, 0, "It is the number of actions in a plan; 0 is not to look ahead.")
    if not 0.0 <= panel.hope <= 1.0:
        raise ValueError(f"hope must be in [0, 1], a share of the range of values, got {panel.hope!r}.")


def committee_policy(
    cfg: KQLConfig, state: KQLState, committee: Committee, panel: Panel
) -> Callable[[Any, Array | None], tuple[Array, Array]]:
    """As `kqljax.kql_policy`: act(obs `[l]`, key) -> action `[]`, and what each action is worth, `[A]`.

    Where hope is left this is `kqljax.kql_policy`, its values stretched to the range that the committee's have.

    Examples:
      >>> from kqljax import recipes
      >>> from kqljax.committee import Panel, committee_policy, convene
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> cfg = recipes.ROBUST.config(task, horizon=20)
      >>> run = recipes.train(task, cfg, jax.random.key(0))
      >>> cfg, state, panel = run.state.config(cfg), run.state.state, Panel(members=2)
      >>> committee = convene(cfg, state, panel)
      >>> bool(committee.hope > panel.hope)  # after 20 steps nearly everything is still to be found out
      True
      >>> action, value = committee_policy(cfg, state, committee, panel)(jnp.zeros(2))
      >>> action.shape, value.shape
      ((), (3,))
    """
    _check_panel(panel)
    # Ties are broken below, for both.
    explore = kql_policy(dataclasses.replace(cfg, tie_break="first"), state)
    # Plans are many, and float32 is faster; what it loses is far below what actions differ by.
    dtype = jnp.dtype(jnp.float32)
    cfg, committee = in_dtype((cfg, committee), dtype)
    gamma = jnp.asarray(panel.gamma, dtype)
    shape = _shape_of(cfg.kernel, cfg.num_actions, committee.pairs.obs.shape[-1], dtype)
    every_action = jnp.eye(cfg.num_actions, dtype=dtype)

    def agreed(obs: Array) -> Array:
        """Mean value `[n, A]` of the members at states `[n, l]`."""
        count = obs.shape[0]
        asked = Pair(jnp.repeat(obs, cfg.num_actions, axis=0), jnp.tile(every_action, (count, 1)))
        places = jnp.exp(-panel.widest * _distances(shape, asked, committee.pairs))
        names = _agreement(shape, asked, committee.pairs)
        total = jnp.zeros(asked.obs.shape[0], dtype)
        for weights in committee.weights:
            total = total + _clip(gamma, dot(places * names, weights))
            places = places**3  # three times the inverse squared width, without another exponential
        return (total / committee.weights.shape[0]).reshape(count, cfg.num_actions)

    def planned(obs: Array) -> Array:
        """What each first action `[A]` is worth with the best plan that begins with it."""

        def advance(_: Array, now: tuple[Array, ...]) -> tuple[Array, ...]:
            places, actions, gained, goes_on = now
            places, reward, ends = foresee(committee.model, places, actions)
            gained = gained + goes_on * (reward + gamma * ends * committee.end_value)
            return places, actions, gained, goes_on * gamma * (1.0 - ends)

        places, gained, goes_on = obs[None], jnp.zeros(1, dtype), jnp.ones(1, dtype)
        for _ in range(panel.depth):
            count = places.shape[0]
            places, gained, goes_on = (jnp.repeat(each, cfg.num_actions, axis=0) for each in (places, gained, goes_on))
            actions = jnp.tile(every_action, (count, 1))
            places, _, gained, goes_on = lax.fori_loop(0, committee.held, advance, (places, actions, gained, goes_on))
        # Plan by plan: what all of them ask at once, in many episodes, is [episodes A^depth A, N] numbers, out of the cache.
        values = lax.map(lambda place: jnp.max(agreed(place[None])), places)
        return jnp.max((gained + goes_on * values).reshape(cfg.num_actions, -1), axis=1)

    def hoped(obs: Array) -> Array:
        return explore(obs, None)[1].astype(dtype) * (1.0 - cfg.gamma) / (1.0 - gamma)

    ways = [hoped, lambda obs: agreed(obs[None].astype(dtype))[0]]
    if panel.depth:
        ways.append(lambda obs: planned(obs.astype(dtype)))
    looks_ahead = (committee.held > 1) & (panel.depth > 0)
    way = jnp.where(committee.hope > panel.hope, 0, jnp.where(looks_ahead, 2, 1))

    def act(obs: Any, key: Array | None = None) -> tuple[Array, Array]:
        value = lax.switch(way, ways, checks.check_obs(state, obs))
        return choose(dataclasses.replace(cfg, gamma=gamma), value, key), value

    return act


def _shape_of(kernel: Kernel, num_actions: int, obs_dim: int, dtype: Any) -> _Shape:
    inner, effect = (kernel.kernel, kernel.effect) if isinstance(kernel, Afterstate) else (kernel, 0.0)
    if not isinstance(inner, TwoScale):
        raise ValueError(
            f"a committee is made of a TwoScale, or an Afterstate of it, the config's kernel is {type(kernel).__name__}. "
            "Take the kernel of recipes.ROBUST, or ask kqljax.kql_policy."
        )
    eta, effect, eta_action = (jnp.asarray(each, dtype) for each in (inner.eta, effect, inner.eta_action))
    return _Shape(jnp.broadcast_to(eta, (obs_dim,)), jnp.broadcast_to(effect, (num_actions, obs_dim)), eta_action)


def _distances(shape: _Shape, x: Pair, y: Pair) -> Array:
    """Squared distances `[n, m]`, in widths, between where two lists of pairs lead."""
    return squared_distances(x.obs + dot(x.action, shape.effect), y.obs + dot(y.action, shape.effect), shape.eta)


def _agreement(shape: _Shape, x: Pair, y: Pair) -> Array:
    """`[n, m]`: 1 where two lists of pairs have the same action, less where they do not; 0 in empty slots."""
    other = jnp.exp(-2.0 * shape.eta_action)
    same = dot(x.action, y.action.T)
    return jnp.where(jnp.sum(y.action, axis=-1) > 0, other + (1.0 - other) * same, 0.0)


def _closeness(shape: _Shape, x: Pair, y: Pair) -> Array:
    """The narrow kernel `[n, m]` between two lists of pairs."""
    return jnp.exp(-_distances(shape, x, y)) * _agreement(shape, x, y)


def _clip(gamma: Array, mean: Array) -> Array:
    return jnp.clip(mean, 0.0, 1.0 / (1.0 - gamma))
