"""What Algorithm 1 said before it was rewritten, on recorded transitions of the paper's four tasks.

`goldens.npz` holds, for each task, 150 transitions, and for each engine and dtype the acted Q-tilde
`[N, A]`, the widths `[N]` of the new pairs and the table of Q-tilde `[N, A]` after the last step,
as an implementation without today's engines gave them.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import KEY, jit

import kqljax
from kqljax import features, kql_act, kql_init, kql_step_and_act, kql_tables

GOLDENS = np.load(Path(__file__).parent / "data" / "goldens.npz")

FLOAT32 = {
    # What two float32 programs differ by, in units of value: measured, times three.
    "MountainCar-v0": {"exact": 8e-3, "weights": 6e-3},
    "Pendulum-v1": {"exact": 8e-3, "weights": 5e-4},
    "Acrobot-v1": {"exact": 0.1, "weights": 0.1},
    "CartPole-v0": {"exact": 0.1, "weights": 0.1},
}


@jit
def replay(cfg, state, transitions):
    """Acted Q-tilde, widths of the new pairs, the last table, and the largest residual."""
    _, first = kql_act(KEY, cfg, state, transitions.obs[0])

    def body(state, row):
        state, info, _, q_tilde = kql_step_and_act(KEY, cfg, state, *row)
        return state, (q_tilde, info.width, info.residual)

    next_obs = jnp.roll(transitions.obs, -1, axis=0)
    state, (acted, width, residual) = jax.lax.scan(body, state, (transitions, next_obs))
    acted = jnp.concatenate([first[None], acted[:-1]])
    return acted, width, kql_tables(cfg, state).q_tilde, residual.max()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("engine", ["exact", "weights"])
@pytest.mark.parametrize("name", FLOAT32)
def test_the_same_values_as_before(name, engine, dtype):
    task = kqljax.make_task(name)
    kernel = kqljax.RBF(eta=task.eta)
    used = kqljax.Exact()
    if engine == "weights":
        used = kqljax.Weights(features.taylor(kernel, task.obs_dim, task.num_actions, order=6))
    transitions = kqljax.Transition(
        *(jnp.asarray(GOLDENS[f"{name}/{field}"]) for field in kqljax.Transition._fields)
    )
    # The exact engine refuses float32 at the paper's lam.
    lam = 1e-3 if (engine, dtype) == ("exact", "float32") else 1e-4
    cfg = task.config(kernel, horizon=len(transitions.obs), lam=lam, engine=used)
    acted, width, table, residual = replay(cfg, kql_init(cfg, task.obs_dim, dtype), transitions)
    atol = 1e-8 if dtype == "float64" else FLOAT32[name][engine]
    for found, kind in ((acted, "acted"), (width, "width"), (table, "table")):
        assert found.dtype == dtype
        np.testing.assert_allclose(
            found, GOLDENS[f"{name}/{engine}/{dtype}/{kind}"], rtol=0, atol=atol
        )
    assert float(residual) < (1e-8 if dtype == "float64" else 0.05)
