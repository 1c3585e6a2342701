"""Both engines against the oracle: tables, values and actions over recorded transitions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from cases import follow, jit
from recordings import TASKS, record

import kqljax
from kqljax import features

STEPS = 150
KERNELS = {
    "rbf": (kqljax.RBF(eta=0.02), oracle.rbf(0.02)),
    "linear": (kqljax.Linear(), oracle.linear()),
}


class Watched(oracle.Oracle):
    """An oracle that keeps what it believed at each step, and mostly acts otherwise."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.rng = np.random.default_rng(0)
        self.seen, self.greedy, self.snapshots = [], [], {}

    def act(self, obs):
        q_hat, width = self.q_hat_and_width(obs)
        q_tilde = np.clip(q_hat + self.beta * width, 0, 1 / (1 - self.gamma))
        self.seen.append((q_hat[0], width[0], q_tilde[0]))
        self.greedy.append(int(np.argmax(q_tilde[0])))
        return (
            int(self.rng.integers(self.num_actions)) if self.rng.random() < 0.8 else self.greedy[-1]
        )

    def step(self, *transition):
        super().step(*transition)
        if len(self.obs) % 50 == 0:
            self.snapshots[len(self.obs)] = self.tables()


def config(task, kernel, steps, engine=None):
    _, _, num_actions, terminal_value, _ = TASKS[task]
    return kqljax.KQLConfig(
        kernel=kernel,
        num_actions=num_actions,
        horizon=steps,
        terminal_value=terminal_value,
        engine=engine or kqljax.Exact(),
    )


@functools.cache
def watched(task, name):
    """An oracle that went through a task, and the transitions that it met."""
    kernel, oracle_kernel = KERNELS[name]
    cfg = config(task, kernel, STEPS)
    reference = Watched(
        oracle_kernel, cfg.num_actions, cfg.gamma, cfg.lam, cfg.beta, cfg.terminal_value
    )
    recording = record(task, STEPS, reference)
    assert recording.truncated.any()
    assert recording.terminated.sum() >= (3 if task == "CartPole-v1" else 0)
    return reference, transitions_of(recording)


def transitions_of(recording):
    return kqljax.Transition(*(jnp.asarray(column) for column in recording[:5]))


def nearly_exact(name, kernel, transitions, num_actions):
    """A feature map whose error does not show in these values."""
    length = transitions.obs.shape[1]
    states = np.concatenate([transitions.obs, transitions.next_obs])
    return {
        "taylor": lambda: features.taylor(kernel, length, num_actions, 1e-10),
        "nystrom": lambda: features.nystrom(kernel, states, num_actions, 1e-12),
        "linear": lambda: features.linear(kernel, length, num_actions),
    }[name]()


@pytest.mark.parametrize(
    "task, kernel, engine, atol",
    [
        ("MountainCar-v0", "rbf", "exact", 1e-8),
        ("CartPole-v1", "rbf", "exact", 1e-8),
        ("CartPole-v1", "linear", "exact", 1e-8),
        ("MountainCar-v0", "rbf", "taylor", 1e-6),
        ("CartPole-v1", "rbf", "nystrom", 1e-6),
        ("CartPole-v1", "linear", "linear", 1e-8),
    ],
)
def test_engines_agree_with_the_oracle(task, kernel, engine, atol):
    reference, transitions = watched(task, kernel)
    used = kqljax.Exact()
    if engine != "exact":
        used = kqljax.Weights(nearly_exact(engine, KERNELS[kernel][0], transitions, TASKS[task][2]))
    cfg = config(task, KERNELS[kernel][0], STEPS, used)
    _, ((q_hat, width, action, q_tilde), tables, info) = follow(
        cfg, kqljax.kql_init(cfg, transitions.obs.shape[1]), transitions
    )
    expected = [np.array(column) for column in zip(*reference.seen, strict=True)]
    for found, wanted in zip((q_hat, width, q_tilde), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=atol)
    np.testing.assert_array_equal(action, reference.greedy)
    assert len(reference.snapshots) == 3
    for count, wanted_tables in reference.snapshots.items():
        for found, wanted in zip(tables, wanted_tables, strict=True):
            np.testing.assert_allclose(found[count - 1, :count], wanted, rtol=0, atol=atol)
    assert bool(info.is_sound.all() & info.is_valid.all() & ~info.is_full.any())
    assert float(info.residual.max()) < 1e-8


@jit
def believed(cfg, state, transitions):
    """Q-hat and Q-tilde before each step."""

    def body(state, transition):
        q_hat, _ = kqljax.kql_predict(cfg, state, transition.obs)
        q_tilde = kqljax.kql_policy(cfg, state).values(transition.obs).q_tilde
        return kqljax.kql_step(cfg, state, transition)[0], (q_hat, q_tilde)

    return jax.lax.scan(body, state, transitions)[1]


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
    self.targets = np.array(self.rewards) + self.gamma * np.where(
        self.ends, self.terminal_value, value
    )


def _store(self, obs, action, reward, next_obs, terminated, value):
    for column, item in zip(
        (self.obs, self.actions, self.rewards, self.next_obs, self.ends),
        (obs, action, reward, next_obs, terminated),
        strict=True,
    ):
        column.append(item)
    self.targets = np.array(self.rewards) + self.gamma * np.where(
        self.ends, self.terminal_value, value
    )


@pytest.mark.parametrize(
    "mutant", [None, _one_lag_late, _row_of_the_state_left, _pair_stored_first, "sign", "end"]
)
def test_the_comparison_would_notice(mutant):
    """Oracles that are wrong by a lag, a row, an order, a sign or the end's value do not pass."""
    cfg = config("CartPole-v1", kqljax.RBF(eta=0.02), 60)
    sign, end = (-1 if mutant == "sign" else 1), (0.0 if mutant == "end" else cfg.terminal_value)
    methods = {"step": mutant, "_store": _store} if callable(mutant) else {}
    wrong = type("Wrong", (Watched,), methods)(
        oracle.rbf(0.02), 2, cfg.gamma, cfg.lam, sign * cfg.beta, end
    )
    transitions = transitions_of(record("CartPole-v1", 60, wrong))
    q_hat, q_tilde = believed(cfg, kqljax.kql_init(cfg, 4), transitions)
    expected = [np.array(column) for column in zip(*wrong.seen, strict=True)]
    gap = max(np.abs(q_hat - expected[0]).max(), np.abs(q_tilde - expected[2]).max())
    assert gap < 1e-8 if mutant is None else gap > 1e-2
