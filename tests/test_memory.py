"""The stated memory is what states hold, and what a compiled step needs stays near it."""

import jax
import jax.numpy as jnp
import pytest

import kqljax

KERNEL = kqljax.RBF(eta=0.3)
MAP = kqljax.features.taylor(KERNEL, 2, 3, order=4)
CONFIGS = {
    "exact": {},
    "features": {"features": MAP},
    "memory": {"features": MAP, "memory": 20},
}


def config(name, horizon=64):
    return kqljax.KQLConfig(kernel=KERNEL, num_actions=3, horizon=horizon, **CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_estimate_is_what_states_hold(name, dtype):
    cfg = config(name)
    states = jax.jit(jax.vmap(lambda _, cfg: kqljax.kql_init(cfg, 2, dtype), in_axes=(0, None)))(jnp.arange(5), cfg)
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(states))
    assert kqljax.estimate_memory(cfg, 5, obs_dim=2, dtype=dtype) == held
    assert kqljax.estimate_memory(cfg, 10, obs_dim=2, dtype=dtype) == 2 * held


@pytest.mark.parametrize("name", ["exact", "features"])
def test_a_run_needs_little_more(name):
    """Arguments, results and temporaries of a whole compiled run, against twice the estimate and the run's log."""
    cfg = config(name, horizon=400)

    def run(cfg, state, data):
        return jax.lax.scan(lambda s, t: kqljax.kql_step(cfg, s, t), state, data)[0]

    data = kqljax.Transition(jnp.zeros((9, 2)), jnp.zeros(9, int), jnp.zeros(9), jnp.zeros((9, 2)), jnp.zeros(9, bool))
    program = jax.jit(run, donate_argnames="state").lower(cfg, kqljax.kql_init(cfg, 2), data).compile()
    found = program.memory_analysis()
    estimate = kqljax.estimate_memory(cfg, obs_dim=2)
    needed = found.argument_size_in_bytes + found.temp_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    assert estimate < needed < 2.5 * estimate + 200_000


def test_what_is_not_said_is_guessed_or_refused():
    assert kqljax.estimate_memory(config("features")) == kqljax.estimate_memory(config("features"), 1, obs_dim=2)
    exact = config("exact")
    assert 0.9 < kqljax.estimate_memory(exact) / kqljax.estimate_memory(exact, obs_dim=2) <= 1
    with pytest.raises(ValueError, match="num_seeds must be at least 1, got 0"):
        kqljax.estimate_memory(exact, 0)
    # The paper's lam is too small for the exact engine in float32; the memory can be asked for all the same.
    assert kqljax.estimate_memory(exact, dtype="float32") < kqljax.estimate_memory(exact, dtype="float64")
