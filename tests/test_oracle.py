"""The engine against the oracle: every table, every value and every action over recorded transitions."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from recordings import TASKS, record

import kqljax

STEPS = 420
KERNELS = {
    "rbf": (kqljax.RBF(eta=0.02), oracle.rbf(0.02)),
    "wide rbf": (kqljax.RBF(eta=1.0), oracle.rbf(1.0)),
    "linear": (kqljax.Linear(), oracle.linear()),
}


class Watched(oracle.Oracle):
    """An oracle that keeps what it believed at each step."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = []
        self.snapshots = {}

    def act(self, obs):
        q_hat, width = self.q_hat_and_width(obs)
        self.seen.append((q_hat[0], width[0], self.q_tilde(obs)[0]))
        return super().act(obs)

    def step(self, *transition):
        super().step(*transition)
        if len(self.obs) % 60 == 0:
            self.snapshots[len(self.obs)] = self.tables()


def engine_run(cfg, recording, capacity=None):
    """Feeds a recording to the engine; returns what it believed at each step and the final state."""

    def step(state, transition):
        q_hat, width = kqljax.kql_predict(cfg, state, transition.obs)
        action, q_tilde = kqljax.kql_act(cfg, state, transition.obs)
        state, info = kqljax.kql_step(cfg, state, transition)
        return state, (q_hat, width, q_tilde, action, info, state.q_hat, state.width, state.q_tilde)

    state = kqljax.kql_init(cfg, obs_dim=recording.obs.shape[1], capacity=capacity)
    transitions = kqljax.Transition(*(jnp.asarray(column) for column in recording[:5]))
    return jax.jit(lambda state, data: jax.lax.scan(step, state, data))(state, transitions)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("task", TASKS)
def test_engine_agrees_with_the_oracle(task, name):
    kernel, oracle_kernel = KERNELS[name]
    _, _, num_actions, terminal_value, _ = TASKS[task]
    cfg = kqljax.KQLConfig(kernel=kernel, num_actions=num_actions, horizon=STEPS, terminal_value=terminal_value)
    reference = Watched(oracle_kernel, num_actions, cfg.gamma, cfg.lam, cfg.beta, terminal_value)
    recording = record(task, STEPS, reference)
    if task == "CartPole-v1":
        assert recording.terminated.sum() >= 3
    if (task, name) != ("CartPole-v1", "linear"):
        assert recording.truncated.sum() >= 3

    _, (q_hat, width, q_tilde, action, info, *tables) = engine_run(cfg, recording)

    expected = [np.array(column) for column in zip(*reference.seen, strict=True)]
    for found, wanted in zip((q_hat, width, q_tilde), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-8)
    np.testing.assert_array_equal(action, recording.action)
    for count, wanted_tables in reference.snapshots.items():
        for found, wanted in zip(tables, wanted_tables, strict=True):
            np.testing.assert_allclose(found[count - 1, :count], wanted, rtol=0, atol=1e-8)
    assert bool(info.is_stored.all() & info.is_finite.all())
    assert float(info.residual.max()) < 1e-8
