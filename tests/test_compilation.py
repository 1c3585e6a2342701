"""JAX manners: one compile, kept dtypes, vmap without loops, donation, other platforms."""

import dataclasses
import functools
import re
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    ENGINES,
    KEY,
    RBF,
    assert_close,
    config,
    jit,
    random_transitions,
    row,
    step,
)
from jax import export

import kqljax
from kqljax import Transition, features, kql_act, kql_init, kql_step, kql_step_and_act

every_engine = pytest.mark.parametrize("engine", ENGINES)


def with_eta(engine, eta, **changes):
    """A config whose kernel has another width, which may be traced."""
    kernel = kqljax.RBF(eta=eta)
    if engine == "taylor":
        changes["engine"] = kqljax.Weights(features.taylor(kernel, 2, 3, order=4))
    return config(kernel=kernel, **changes)


@pytest.mark.parametrize("engine", ["exact", "taylor"])
def test_one_compile_for_a_run_and_for_every_number(engine):
    chex.clear_trace_counter()
    traced = jit(chex.assert_max_traces(kql_step, n=1))
    data = random_transitions(3)
    for cfg in (
        with_eta(engine, 0.5),
        with_eta(engine, 0.02),
        with_eta(engine, 0.5, gamma=0.9),
        with_eta(engine, 0.5, lam=0.3, beta=2.0),
        with_eta(engine, 0.5, terminal_value=3.0),
        dataclasses.replace(with_eta(engine, 0.5), beta=0.0),
    ):
        state = kql_init(cfg, 2)
        for i in range(3):
            state, _ = traced(cfg, state, row(data, i))
    assert int(state.num_stored) == 3


def strong(leaf):
    return (
        jnp.asarray(leaf, jnp.float64)
        if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        else leaf
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@every_engine
def test_dtypes_are_kept(engine, dtype):
    """A config of strong float64 numbers does not promote a float32 state."""
    cfg = jax.tree.map(strong, config(engine, lam=0.1))
    state, transition = kql_init(cfg, 2, dtype), row(random_transitions(1), 0)
    kinds = jax.tree.map(lambda leaf: leaf.dtype, state)
    after, info, action, q_tilde = jax.eval_shape(
        kql_step_and_act, KEY, cfg, state, transition, jnp.zeros(2)
    )
    grown = jax.eval_shape(lambda state: kqljax.kql_resize(cfg, state, 20), state)
    for each in (after, grown):
        assert jax.tree.map(lambda leaf: leaf.dtype, each) == kinds
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {
        jnp.dtype(dtype),
        jnp.dtype("int32"),
        jnp.dtype(bool),
    }
    assert (action.dtype, q_tilde.dtype) == (jnp.int32, dtype)
    assert {info.residual.dtype, info.width.dtype, info.feature_error.dtype} == {jnp.dtype(dtype)}
    policy = jax.eval_shape(kqljax.kql_policy, cfg, state)
    values = jax.eval_shape(lambda policy: policy.values(jnp.zeros((4, 2), dtype)), policy)
    assert {leaf.dtype for leaf in values} == {jnp.dtype(dtype)}
    # No weak types in a state, new or later: they would cost a second trace.
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((state, after, grown)))


def test_a_process_without_float64():
    """A float32 process makes states, steps and acts with features, at the paper's lam."""
    with jax.enable_x64(False):
        cfg = config("nystrom", horizon=1000)
        state = kql_init(cfg, 2, capacity=12)
        transition = Transition(
            np.array([0.1, 0.2]), np.int32(1), 0.5, np.array([-0.3, 0.4]), False
        )
        made = jit(kql_step_and_act)(KEY, cfg, state, transition, np.array([0.1, 0.2]))
        kinds = {leaf.dtype for leaf in jax.tree.leaves(made)}
        assert kinds == {jnp.dtype("float32"), jnp.dtype("int32"), jnp.dtype("bool")}
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(made))


# vmap --------------------------------------------------------------------------------------------


def run(cfg, seeds):
    def body(state, seed):
        obs, next_obs = jax.random.uniform(jax.random.key(seed), (2, 2), minval=-1, maxval=1)
        action, _ = kql_act(KEY, cfg, state, obs)
        return kql_step(
            cfg, state, Transition(obs, action, jnp.abs(obs[0]), next_obs, seed % 3 == 0)
        )

    return jax.lax.scan(body, kql_init(cfg, 2), seeds)


SEEDS = jnp.arange(24).reshape(3, 8)


@functools.cache
def alone(engine):
    """A jitted run of one seed, for every number of a config."""
    program = jit(run)
    return lambda seeds, **changes: program(
        with_eta(engine, changes.pop("eta", RBF.eta), **changes), seeds
    )


@pytest.mark.parametrize("engine", ["exact", "taylor"])
def test_a_vmapped_seed_is_the_seed_alone(engine):
    together = jit(jax.vmap(run, in_axes=(None, 0)))(with_eta(engine, RBF.eta), SEEDS)
    for i in range(3):
        assert_close(row(together, i), alone(engine)(SEEDS[i]), 1e-8)
    assert not np.allclose(together[0].q_hat[0], together[0].q_hat[1])


@pytest.mark.parametrize("engine", ["exact", "taylor"])
def test_every_number_can_be_vmapped(engine):
    """All numbers of a config in one vmap, each member with another one changed."""
    numbers = {"gamma": 0.5, "lam": 0.3, "beta": 2.0, "terminal_value": 3.0, "eta": 0.05}
    base = {"gamma": 0.95, "lam": 0.1, "beta": 1.0, "terminal_value": 0.0, "eta": 0.5}
    settings = [base, *(base | {name: value} for name, value in numbers.items())]
    columns = {name: jnp.array([each[name] for each in settings]) for name in base}
    together, info = jit(jax.vmap(lambda each: run(with_eta(engine, **each), SEEDS[0])))(columns)
    assert bool(info.is_sound.all())
    tables = [np.concatenate([together.q_hat[i], together.width[i]]) for i in range(len(settings))]
    for i, each in enumerate(settings):
        state, _ = alone(engine)(SEEDS[0], **each)
        np.testing.assert_allclose(tables[i], np.concatenate([state.q_hat, state.width]), atol=1e-8)
        assert i == 0 or not np.allclose(tables[i], tables[0], atol=1e-3), each


def batched_step(engine, function, dtype="float64", seeds=3):
    """A function of many seeds, and its arguments."""
    cfg = config(engine, lam=0.1)
    arguments = [kql_init(cfg, 2, dtype), row(random_transitions(1), 0)]
    if function is kql_step_and_act:
        arguments.append(jnp.zeros(2))
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * seeds), arguments)
    if function is kql_step_and_act:
        return jax.vmap(lambda cfg, *rest: kql_step_and_act(KEY, cfg, *rest), (None, 0, 0, 0)), (
            cfg,
            *stacked,
        )
    return jax.vmap(function, (None, 0, 0)), (cfg, *stacked)


LOOP = re.compile(r"\bwhile\b|\bwhile\(|stablehlo\.while|scatter\(|stablehlo\.\"?scatter")
"""A loop, or the scatter that a batched write becomes, which is a loop over the seeds on a CPU."""


@pytest.mark.parametrize("function", [kql_step, kql_step_and_act], ids=["step", "step_and_act"])
@every_engine
def test_no_loop_over_the_seeds(engine, function):
    """A vmapped step is products and elementwise work for the whole batch, on every platform."""
    batched, arguments = batched_step(engine, function)
    assert not LOOP.search(jit(batched).lower(*arguments).compile().as_text())
    text = export.export(jax.jit(batched), platforms=("cuda", "tpu"))(*arguments).mlir_module()
    assert "stablehlo.dot_general" in text
    assert not LOOP.search(text)
    assert "callback" not in text


def test_the_search_for_loops_finds_one():
    def looping(x):
        return jax.lax.map(jnp.sin, x)

    assert LOOP.search(jax.jit(looping).lower(jnp.ones(3)).compile().as_text())
    assert LOOP.search(
        export.export(jax.jit(looping), platforms=("cuda", "tpu"))(jnp.ones(3)).mlir_module()
    )

    def scattering(x, i):
        return jax.lax.dynamic_update_slice(x, jnp.ones(1), (i,))

    lowered = export.export(jax.jit(jax.vmap(scattering)), platforms=("cuda", "tpu"))(
        jnp.ones((3, 4)), jnp.arange(3)
    )
    assert LOOP.search(lowered.mlir_module())


# Buffers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["exact", "taylor"])
def test_a_donated_step_in_a_python_loop(engine):
    cfg, data = config(engine), random_transitions(5, seed=30)
    donated = jit(kql_step, donate_argnames="state")
    state, kept = kql_init(cfg, 2), kql_init(cfg, 2)
    for i in range(5):
        before = state
        state, info = donated(cfg, state, row(data, i))
        assert bool(info.is_stored)
        large = before.posterior.whitener[0] if engine == "exact" else before.posterior.root
        assert large.is_deleted()
        kept, _ = step(cfg, kept, row(data, i))
    assert_close(state, kept, 1e-12)


@pytest.mark.parametrize("engine, seeds", [("exact", None), ("exact", 3), ("taylor", 3)])
def test_large_arrays_are_not_copied_in_a_loop(engine, seeds):
    """A step writes rows and columns of the large arrays, and never copies one."""
    size = 320
    cfg = config(engine, horizon=size)

    def long_run(obs):
        def body(state, obs):
            moved = Transition(obs, jnp.int32(0), 0.0, -obs, jnp.asarray(False))
            return kql_step_and_act(KEY, cfg, state, moved, obs)[:2]

        return jax.lax.scan(body, kql_init(cfg, 2), obs)

    many, function = ("", long_run) if seeds is None else (f"{seeds},", jax.vmap(long_run))
    obs = jnp.zeros((9, 2) if seeds is None else (seeds, 9, 2))
    text = jax.jit(function).lower(obs).compile().as_text()
    shapes = [(size, size)] if engine == "exact" else [(10, size)]
    for shape in shapes:
        large = f"f64[{many}{shape[0]},{shape[1]}]"
        loops = [
            part
            for part in text.split("\n\n")
            if "region" in part.split("(")[0] or "while" in part.split("(")[0]
        ]
        assert any(large in part for part in loops)
        copies = [
            line
            for part in loops
            for line in part.splitlines()
            if f"= {large}" in line and " copy(" in line
        ]
        assert not copies, copies


def test_importing_changes_no_configuration():
    code = (
        "import jax\nbefore = dict(jax.config.values)\nimport kqljax\n"
        "assert dict(jax.config.values) == before\nprint('unchanged')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "unchanged", done.stderr
