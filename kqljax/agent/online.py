"""What is jitted: one call for each step of the environment, and calls for questions between steps.

Raw numbers go in; they are scaled inside. Everything that changes from step to step is an argument, so a run compiles each of
these once for each capacity.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from kqljax.agent.scaling import Scaling
from kqljax.committee import Committee, Panel, committee_policy, convene
from kqljax.config import KQLConfig
from kqljax.fitting import fit_kernel
from kqljax.kql import (
    KQLInfo,
    KQLState,
    Transition,
    kql_policy,
    kql_predict,
    kql_step,
    kql_step_and_act,
    optimistic,
)

Array = jax.Array


class Outcome(NamedTuple):
    """What the host wants to know after a step.

    Attributes:
      action: `[n]` what to do next; -1 where a value is not a number.
      q_tilde: `[n, A]` optimistic values there.
      info: of the last transition.
      is_sound: `[]` bool, all transitions were stored and all values are finite.
    """

    action: Array
    q_tilde: Array
    info: KQLInfo
    is_sound: Array


def _scaled(scaling: Scaling, raw: Transition) -> Transition:
    return raw._replace(obs=scaling.observe(raw.obs), reward=scaling.pay(raw.reward), next_obs=scaling.observe(raw.next_obs))


@functools.partial(jax.jit, donate_argnames="state")
def advance(
    cfg: KQLConfig, scaling: Scaling, state: KQLState, raw: Transition, now: Array, key: Array, step: Array
) -> tuple[KQLState, Outcome]:
    """Learns from one raw transition and acts at one raw observation `[l]`."""
    state, info, action, q_tilde = kql_step_and_act(
        cfg, state, _scaled(scaling, raw), scaling.observe(now), jax.random.fold_in(key, step)
    )
    return state, Outcome(action[None], q_tilde[None], info, info.is_stored & info.is_finite)


@functools.partial(jax.jit, donate_argnames="state")
def advance_many(
    cfg: KQLConfig, scaling: Scaling, state: KQLState, raw: Transition, count: Array, now: Array, key: Array, step: Array
) -> tuple[KQLState, Outcome]:
    """Learns from the first `count` raw transitions (fields `[n, ...]`), one after another, and acts at `[n, l]`."""
    state, info, is_sound = _absorb(cfg, scaling, state, raw, count)
    action, q_tilde = _act(cfg, scaling, state, now, jax.random.fold_in(key, step))
    return state, Outcome(action, q_tilde, info, is_sound)


@functools.partial(jax.jit, donate_argnames="state")
def absorb(cfg: KQLConfig, scaling: Scaling, state: KQLState, raw: Transition, count: Array) -> tuple[KQLState, Array]:
    """Learns from the first `count` raw transitions; `[]` bool, whether all went well."""
    state, _, is_sound = _absorb(cfg, scaling, state, raw, count)
    return state, is_sound


def _absorb(
    cfg: KQLConfig, scaling: Scaling, state: KQLState, raw: Transition, count: Array
) -> tuple[KQLState, KQLInfo, Array]:
    def body(i: Array, carry: Any) -> Any:
        state, _, is_sound = carry
        state, info = kql_step(cfg, state, _scaled(scaling, jax.tree.map(lambda leaf: leaf[i], raw)))
        return state, info, is_sound & info.is_stored & info.is_finite

    one = jax.tree.map(lambda leaf: leaf[0], raw)
    shapes = jax.eval_shape(lambda state: kql_step(cfg, state, _scaled(scaling, one))[1], state)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.fori_loop(0, count, body, (state, nothing, jnp.ones((), bool)))


@jax.jit
def fit(kernel: Any, scaling: Scaling, raw: Transition, count: Array) -> Any:
    """The kernel, fitted to the first `count` raw transitions."""
    return fit_kernel(kernel, _scaled(scaling, raw), count)


@functools.partial(jax.jit, static_argnames=("is_random", "panel"))
def act(
    cfg: KQLConfig,
    scaling: Scaling,
    state: KQLState,
    obs: Array,
    key: Array,
    is_random: bool | None = None,
    committee: Committee | None = None,
    panel: Panel | None = None,
) -> tuple[Array, Array]:
    """Actions `[n]` and their values `[n, A]` at raw observations `[n, l]`: by Q-tilde, or by the committee where there is one.

    `is_random` replaces the config's way with ties.
    """
    if is_random is not None:
        cfg = dataclasses.replace(cfg, tie_break="random" if is_random else "first")
    if committee is None or panel is None:
        return _act(cfg, scaling, state, obs, key)
    policy = committee_policy(cfg, state, committee, panel)
    return jax.vmap(policy)(scaling.observe(obs), jax.random.split(key, obs.shape[0]))


def _act(cfg: KQLConfig, scaling: Scaling, state: KQLState, obs: Array, key: Array) -> tuple[Array, Array]:
    return jax.vmap(kql_policy(cfg, state))(scaling.observe(obs), jax.random.split(key, obs.shape[0]))


@functools.partial(jax.jit, static_argnames="panel")
def meet(cfg: KQLConfig, state: KQLState, panel: Panel) -> Committee:
    """The committee that decides when learning is over."""
    return convene(cfg, state, panel)


@jax.jit
def look(cfg: KQLConfig, scaling: Scaling, state: KQLState, obs: Array) -> tuple[Array, Array, Array]:
    """Q-hat, width and Q-tilde, `[n, A]` each, at raw observations `[n, l]`."""
    q_hat, width = jax.vmap(lambda obs: kql_predict(cfg, state, obs))(scaling.observe(obs))
    return q_hat, width, optimistic(cfg, q_hat, width**2)
