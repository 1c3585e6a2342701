"""JAX manners: one compile, kept dtypes, vmap, donation, and lowering for accelerators."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import kqljax
from kqljax import Transition, kql_act, kql_init, kql_step

ETA = (0.02, 0.5)


def config(eta=0.5, **changes):
    return kqljax.KQLConfig(kernel=kqljax.RBF(eta=eta), num_actions=3, horizon=10, **changes)


def transition(seed):
    rng = np.random.default_rng(seed)
    obs, next_obs = jnp.asarray(rng.uniform(-1, 1, (2, 2)))
    return Transition(obs, jnp.int32(seed % 3), jnp.asarray(rng.uniform()), next_obs, jnp.asarray(seed % 4 == 0))


def test_one_compile_for_a_run_and_for_every_number():
    chex.clear_trace_counter()
    step = jax.jit(chex.assert_max_traces(kql_step, n=1))
    for cfg in (
        config(),
        config(eta=0.02),
        config(gamma=0.9),
        config(lam=0.3, beta=2.0),
        config(terminal_value=3.0),
        dataclasses.replace(config(), beta=0.0),
    ):
        state = kql_init(cfg, 2)
        for seed in range(4):
            state, _ = step(cfg, state, transition(seed))
    assert int(state.num_stored) == 4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtypes_are_kept(dtype):
    strong = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), config(lam=0.1))
    state = kql_init(strong, 2, dtype)
    after, _ = jax.jit(kql_step)(strong, state, transition(0))
    assert jax.tree.map(lambda leaf: leaf.dtype, after) == jax.tree.map(lambda leaf: leaf.dtype, state)
    assert after.q_tilde.dtype == dtype
    action, q_tilde = kql_act(strong, after, jnp.zeros(2))
    assert (action.dtype, q_tilde.dtype) == (jnp.int32, dtype)
    after, _, action, q_tilde = jax.jit(kqljax.kql_step_and_act)(strong, after, transition(1), jnp.zeros(2))
    assert (after.q_tilde.dtype, action.dtype, q_tilde.dtype) == (dtype, jnp.int32, dtype)
    # No weak types in a new state: they would cost a second trace.
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(state))


def run(cfg, seeds):
    def body(state, seed):
        key = jax.random.key(seed)
        obs, next_obs = jax.random.uniform(key, (2, 2), minval=-1, maxval=1)
        action, _ = kql_act(cfg, state, obs)
        return kql_step(cfg, state, Transition(obs, action, jnp.abs(obs[0]), next_obs, seed % 3 == 0))

    return jax.lax.scan(body, kql_init(cfg, 2), seeds)


def test_a_vmapped_seed_is_the_seed_alone():
    seeds = jnp.arange(24).reshape(3, 8)
    together, _ = jax.jit(jax.vmap(run, in_axes=(None, 0)))(config(), seeds)
    for i in range(3):
        alone, _ = jax.jit(run)(config(), seeds[i])
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[i], b, atol=1e-9)


@pytest.mark.parametrize("name", ["gamma", "lam", "beta", "terminal_value", "eta"])
def test_every_number_can_be_vmapped(name):
    values = {"gamma": (0.5, 0.9), "lam": (0.1, 1.0), "beta": (0.5, 2.0), "terminal_value": (0.0, 3.0), "eta": ETA}[name]
    seeds = jnp.arange(8)
    together, _ = jax.jit(jax.vmap(lambda value: run(config(**{name: value}), seeds)))(jnp.array(values))
    for i, value in enumerate(values):
        alone, _ = jax.jit(run)(config(**{name: value}), seeds)
        np.testing.assert_allclose(together.q_tilde[i], alone.q_tilde, atol=1e-8)
    assert not np.allclose(together.q_tilde[0], together.q_tilde[1])


def test_a_donated_step_in_a_python_loop():
    cfg = config()
    donated = jax.jit(kql_step, donate_argnames="state")
    state = kql_init(cfg, 2)
    for seed in range(6):
        before = state
        state, info = donated(cfg, state, transition(seed))
        assert bool(info.is_stored)
        assert before.posterior.whitener[0].is_deleted()
    kept = kql_init(cfg, 2)
    for seed in range(6):
        kept, _ = jax.jit(kql_step)(cfg, kept, transition(seed))
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(kept), strict=True):
        np.testing.assert_array_equal(a, b)


def test_big_buffers_are_not_copied_in_a_scan():
    """Each step may write rows and columns of the large arrays, never copy one: look for copies in the compiled loop."""
    size = 320
    cfg = dataclasses.replace(config(), horizon=size)

    def long_run(cfg, state, data):
        return jax.lax.scan(lambda s, t: kql_step(cfg, s, t), state, data)

    data = jax.tree.map(lambda *rows: jnp.stack(rows), *(transition(i) for i in range(4)))
    text = jax.jit(long_run).lower(cfg, kql_init(cfg, 2), data).compile().as_text()
    body = next(part for part in text.split("\n\n") if f"f64[{size},{size}]" in part and "dynamic-update-slice" in part)
    loops = [part for part in text.split("\n\n") if "region" in part.split("(")[0] or "while" in part.split("(")[0]]
    assert body
    assert loops
    copies = [line for part in loops for line in part.splitlines() if f"f64[{size},{size}]" in line and " copy(" in line]
    assert not copies, copies


@pytest.mark.parametrize("batched", [False, True], ids=["one seed", "vmapped"])
@pytest.mark.parametrize("function", [kql_step, kqljax.kql_step_and_act], ids=["step", "step_and_act"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lowers_for_every_platform(batched, function, dtype):
    cfg = config(lam=0.1)
    arguments = [kql_init(cfg, 2, dtype), jax.tree.map(jnp.asarray, transition(0))]
    if function is not kql_step:
        arguments.append(jnp.zeros(2))
    if batched:
        arguments = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), arguments)
        function = jax.vmap(function, in_axes=(None, *[0] * len(arguments)))
    exported = export.export(jax.jit(function), platforms=("cpu", "cuda", "tpu"))(cfg, *arguments)
    assert exported.platforms == ("cpu", "cuda", "tpu")
    assert "callback" not in exported.mlir_module()


def test_importing_changes_no_configuration():
    import subprocess
    import sys

    code = (
        "import jax\nbefore = dict(jax.config.values)\nimport kqljax\n"
        "assert dict(jax.config.values) == before\nprint('unchanged')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "unchanged", done.stderr
