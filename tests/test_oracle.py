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
    "linear": (kqljax.Linear(), oracle.linear()),
}


class Watched(oracle.Oracle):
    """An oracle that keeps what it believed at each step, and mostly does something else than it would."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.rng = np.random.default_rng(0)
        self.seen, self.greedy, self.snapshots = [], [], {}

    def act(self, obs):
        q_hat, width = self.q_hat_and_width(obs)
        q_tilde = np.clip(q_hat + self.beta * width, 0, 1 / (1 - self.gamma))
        self.seen.append((q_hat[0], width[0], q_tilde[0]))
        self.greedy.append(int(np.argmax(q_tilde[0])))
        return int(self.rng.integers(self.num_actions)) if self.rng.random() < 0.8 else self.greedy[-1]

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
    assert recording.truncated.sum() >= 3
    if task == "CartPole-v1":
        assert recording.terminated.sum() >= 3

    _, (q_hat, width, q_tilde, action, info, *tables) = engine_run(cfg, recording)

    expected = [np.array(column) for column in zip(*reference.seen, strict=True)]
    for found, wanted in zip((q_hat, width, q_tilde), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-8)
    np.testing.assert_array_equal(action, reference.greedy)
    for count, wanted_tables in reference.snapshots.items():
        for found, wanted in zip(tables, wanted_tables, strict=True):
            np.testing.assert_allclose(found[count - 1, :count], wanted, rtol=0, atol=1e-8)
    assert bool(info.is_stored.all() & info.is_finite.all())
    assert float(info.residual.max()) < 1e-8


def test_more_backups_agree_too():
    task = "CartPole-v1"
    cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=2, horizon=80, backups=3)
    reference = Watched(oracle.rbf(0.02), 2, cfg.gamma, cfg.lam, cfg.beta, backups=3)
    recording = record(task, 80, reference)
    _, (q_hat, width, q_tilde, action, *_) = engine_run(cfg, recording)
    for found, wanted in zip((q_hat, width, q_tilde), zip(*reference.seen, strict=True), strict=True):
        np.testing.assert_allclose(found, np.array(wanted), rtol=0, atol=1e-8)
    np.testing.assert_array_equal(action, reference.greedy)


def _one_lag_late(self, obs, action, reward, next_obs, terminated):
    """The targets of step t from Q-tilde_{t-1}."""
    stale = getattr(self, "stale", None)
    fresh = self.q_tilde(np.array([*self.next_obs, next_obs])).max(axis=1)
    value = fresh.copy()
    if stale is not None:
        value[:-1] = stale
    self.stale = fresh
    self._store(obs, action, reward, next_obs, terminated, value)


def _row_of_the_state_left(self, obs, action, reward, next_obs, terminated):
    """Rows of s_tau in place of its successor."""
    value = self.q_tilde(np.array([*self.obs, obs])).max(axis=1)
    self._store(obs, action, reward, next_obs, terminated, value)


def _pair_stored_first(self, obs, action, reward, next_obs, terminated):
    """Q-tilde after the pair was stored, with its old targets."""
    self._store(obs, action, reward, next_obs, terminated, np.zeros(len(self.obs) + 1))
    value = self.q_tilde(np.array(self.next_obs)).max(axis=1)
    self.targets = np.array(self.rewards) + self.gamma * np.where(self.ends, self.terminal_value, value)


def _store(self, obs, action, reward, next_obs, terminated, value):
    for column, item in zip(
        (self.obs, self.actions, self.rewards, self.next_obs, self.ends),
        (obs, action, reward, next_obs, terminated),
        strict=True,
    ):
        column.append(item)
    self.targets = np.array(self.rewards) + self.gamma * np.where(self.ends, self.terminal_value, value)


@pytest.mark.parametrize("mutant", [_one_lag_late, _row_of_the_state_left, _pair_stored_first, "sign", "end"])
def test_the_comparison_would_notice(mutant):
    """Oracles that are wrong by one lag, one row, one order, one sign or the value of the end do not pass."""
    cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=2, horizon=60)
    sign, end = (-1 if mutant == "sign" else 1), (7.0 if mutant == "end" else 0.0)
    methods = {} if isinstance(mutant, str) else {"step": mutant, "_store": _store}
    wrong = type("Wrong", (Watched,), methods)(oracle.rbf(0.02), 2, cfg.gamma, cfg.lam, sign * cfg.beta, end)
    recording = record("CartPole-v1", 60, wrong)
    _, (q_hat, _, q_tilde, *_) = engine_run(cfg, recording)
    expected = [np.array(column) for column in zip(*wrong.seen, strict=True)]
    gap = max(np.abs(q_hat - expected[0]).max(), np.abs(q_tilde - expected[2]).max())
    assert gap > 1e-2
