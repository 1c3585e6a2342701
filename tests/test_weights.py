"""The weight-space posterior against batch ridge regression, and its engine against the exact one and the oracle."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from cases import random_pairs
from jax import export
from recordings import TASKS, record
from scipy import stats

import kqljax
from kqljax import Transition, features, kql_act, kql_grow, kql_init, kql_predict, kql_step, kql_step_and_act
from kqljax.kql import targets_of
from kqljax.posterior import weights

RBF = kqljax.RBF(eta=0.5)
CAP = 20.0

# Nearly all the time of this file is compiling, and none of it wants fast code.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@functools.cache
def make_map(name, num_actions=3):
    """Small maps in two dimensions, coarse on purpose: what is tested here does not depend on their error."""
    return {
        "taylor": lambda: features.taylor(RBF, 2, num_actions, order=4),
        "grouped": lambda: features.taylor(kqljax.RBF(eta=0.02), 2, num_actions, 1e-4),
        "dictionary": lambda: features.dictionary(RBF, random_pairs(0, 60)[0], num_actions, 1e-2),
        "online": lambda: features.online_dictionary(RBF, 2, num_actions, 24, 1e-3),
        "fourier": lambda: features.random_fourier(RBF, 2, num_actions, 8),
        "linear": lambda: features.linear(kqljax.Linear(), 2, num_actions),
    }[name]()


def config(name="taylor", **changes):
    made = make_map(name, changes.get("num_actions", 3))
    settings = {"kernel": made.kernel, "num_actions": 3, "horizon": 12, "features": made, **changes}
    return kqljax.KQLConfig(**settings)


LAZY = {
    "default": {},
    "some rows": {"refresh_rows": 3},
    "all rows at some steps": {"refresh_every": 3},
    "reservoir": {"memory": 5, "eviction": "reservoir", "refresh_rows": 2},
}


def random_transitions(count, seed=0, num_actions=3, length=2):
    rng = np.random.default_rng(seed)
    return Transition(
        obs=jnp.asarray(rng.uniform(-1, 1, (count, length))),
        action=jnp.asarray(rng.integers(0, num_actions, count), jnp.int32),
        reward=jnp.asarray(rng.uniform(0, 1, count)),
        next_obs=jnp.asarray(rng.uniform(-1, 1, (count, length))),
        terminated=jnp.asarray(rng.random(count) < 0.2),
    )


def row(transitions, index):
    return jax.tree.map(lambda leaf: leaf[index], transitions)


step = jit(kql_step)
act = jit(kql_act)


@jit
def predict_all(cfg, state, states):
    return jax.vmap(lambda obs: kql_predict(cfg, state, obs))(states)


@jit
def learn(cfg, state, transitions):
    return jax.lax.scan(lambda s, t: kql_step(cfg, s, t), state, transitions)


@jit
def follow(cfg, state, transitions):
    """What an agent believed before each step, the tables after it, and the last state."""

    def body(state, transition):
        q_hat, width = kql_predict(cfg, state, transition.obs)
        action, q_tilde = kql_act(cfg, state, transition.obs)
        state, info = kql_step(cfg, state, transition)
        return state, ((q_hat, width, q_tilde), action, info, (state.q_hat, state.width, state.q_tilde))

    return jax.lax.scan(body, state, transitions)


def assert_same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def assert_close(one, other, atol):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


# Posterior -----------------------------------------------------------------------------------------------------------


@functools.partial(jit, static_argnames=("capacity", "dtype"))
def stream(made, lam, obs, action, target, capacity, dtype="float64"):
    """Appends all pairs one by one; returns the posterior and each Update."""

    def body(post, pair):
        return weights.append(made, post, *pair)

    return jax.lax.scan(body, weights.init(made, lam, capacity, dtype), (obs, action, target))


@jit
def predict(made, post, queries):
    return jax.vmap(lambda obs: weights.predict(made, post, obs))(queries)


@jit
def psi_of(made, basis, obs):
    return jax.vmap(lambda state: made.psi(basis, state))(obs)


def explicit(made, basis, obs):
    """R[a]^T psi(s) `[N, A, D]` in NumPy."""
    psi = np.asarray(psi_of(made, basis, jnp.asarray(obs, jnp.float64)))
    return np.einsum("nm,amd->nad", psi, np.asarray(made.root, np.float64))


def batch_ridge(phi, target, lam, queries):
    """Mean and width of ridge regression on rows phi `[N, D]`, at rows `queries` `[..., D]`, by a dense solve."""
    factor = np.linalg.cholesky(phi.T @ phi + lam * np.eye(phi.shape[1]))
    mean = queries @ np.linalg.solve(factor.T, np.linalg.solve(factor, phi.T @ target))
    white = np.linalg.solve(factor, queries.reshape(-1, phi.shape[1]).T)
    return mean, np.sqrt((white**2).sum(axis=0)).reshape(queries.shape[:-1])


def data(seed, count):
    obs, action = random_pairs(seed, count)
    return obs, action, np.random.default_rng(seed + 100).normal(size=count)


@pytest.mark.parametrize(
    "name, dtype, lam, atol",
    [
        ("grouped", "float64", 1e-4, 1e-9),
        ("dictionary", "float64", 1e-4, 1e-9),
        ("linear", "float64", 1e-4, 1e-9),
        ("grouped", "float32", 1e-2, 2e-4),
    ],
)
def test_incremental_equals_batch(name, dtype, lam, atol):
    made = make_map(name)
    obs, action, target = data(0, 40)
    # Room for fewer than there are: those past the capacity are learned from all the same.
    post, updates = stream(made, lam, obs.astype(dtype), action, target.astype(dtype), 30, dtype)
    queries = random_pairs(2, 7)[0]
    mean, width = predict(made, post, queries.astype(dtype))
    phi = explicit(made, (), obs)[np.arange(40), action]
    expected_mean, expected_width = batch_ridge(phi, target, lam, explicit(made, (), queries))
    np.testing.assert_allclose(mean, expected_mean, rtol=0, atol=atol)
    np.testing.assert_allclose(width, expected_width, rtol=0, atol=atol)
    assert {leaf.dtype for leaf in (post.psi, post.root, post.weights, mean, width)} == {jnp.dtype(dtype)}
    # The width that an update reports is that of the new pair before it came.
    _, before = batch_ridge(phi[:20], target[:20], lam, phi[20])
    np.testing.assert_allclose(np.sqrt(updates.width_sq[20]), before, rtol=1e-3 if dtype == "float32" else 1e-7)


def test_online_dictionary_in_the_posterior_is_ridge_on_the_features_pairs_came_with():
    made, lam = make_map("online"), 1e-3
    obs, action, target = data(3, 30)
    post, _ = stream(made, lam, obs, action, target, 30)
    assert 5 < int(post.basis.num_points) <= 24
    phi = np.einsum("nm,amd->nad", np.asarray(post.psi), made.root)[np.arange(30), action]
    queries = random_pairs(4, 5)[0]
    expected = batch_ridge(phi, target, lam, explicit(made, post.basis, queries))
    for found, wanted in zip(predict(made, post, queries), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9)
    # The first state that came is the first point: its features are a unit vector.
    np.testing.assert_allclose(post.psi[0], np.eye(24)[0], atol=1e-12)


def test_before_any_data():
    made = make_map("grouped")
    mean, width = predict(made, weights.init(made, 0.04, 30), np.zeros((7, 2)))
    np.testing.assert_array_equal(mean, np.zeros((7, 3)))
    np.testing.assert_allclose(width, np.full((7, 3), 5.0), rtol=1e-4)


@pytest.mark.parametrize("dtype, rtol", [("float64", 1e-9), ("float32", 1e-4)])
def test_condensed_rows_are_predictions(dtype, rtol):
    made, lam = make_map("dictionary"), 1e-3
    obs, action, target = data(5, 40)
    post, _ = stream(made, lam, obs.astype(dtype), action, target.astype(dtype), 30, dtype)
    states = jnp.asarray(random_pairs(6, 7)[0], dtype)
    psi = psi_of(jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), made), (), states)
    mean, width = predict(made, post, states)
    condensed = weights.condense(post)
    for each in (condensed, weights.as_it_is(post)):
        found_mean, found_width_sq = weights.at_features(each, psi)
        np.testing.assert_allclose(found_mean, mean, rtol=0, atol=rtol * 10)
        np.testing.assert_allclose(np.sqrt(found_width_sq), width, rtol=rtol)
    # Condensed it is: fewer numbers than weights.
    assert max(condensed.factor.shape) < made.num_weights


def test_table_is_what_predict_says():
    made, lam = make_map("grouped"), 1e-3
    obs, action, target = data(7, 30)
    states = random_pairs(8, 5)[0]
    post = weights.init(made, lam, 30)
    psi = psi_of(made, (), jnp.asarray(states))
    mean, width_sq = weights.at_features(weights.as_it_is(post), psi)
    table = weights.init_table(post, 2, 5)._replace(psi=psi, obs=jnp.asarray(states), mean=mean, width_sq=width_sq)

    def both(carry, pair):
        post, table = carry
        post, update = weights.append(made, post, *pair)
        table = weights.refresh(post, table, update)
        return (post, table), table.width_sq

    (post, table), widths = jit(lambda *start: jax.lax.scan(both, start, (obs, action, target)))(post, table)
    mean, width = predict(made, post, states)
    np.testing.assert_allclose(table.mean, mean, atol=1e-9)
    np.testing.assert_allclose(jnp.sqrt(table.width_sq), width, atol=1e-7)
    assert np.all(np.diff(widths, axis=0) <= 0)


def test_growing_changes_nothing():
    made = make_map("grouped")
    obs, action, target = data(9, 12)
    append = jit(weights.append)
    post = weights.init(made, 1e-3, 8)
    for i in range(8):
        post, _ = append(made, post, obs[i], action[i], target[i])
    grown = weights.grow(post, 12)
    assert (post.capacity, grown.capacity) == (8, 12)
    assert (int(grown.num_stored), int(grown.is_taken.sum())) == (8, 8)
    queries = random_pairs(10, 4)[0]
    assert_same(predict(made, post, queries), predict(made, grown, queries))
    for i in range(8, 12):
        grown, _ = append(made, grown, obs[i], action[i], target[i])
    assert int(grown.num_stored) == 12
    whole, _ = stream(made, 1e-3, obs, action, target, 12)
    assert_close(grown, whole, 1e-9)
    assert weights.grow_table(weights.init_table(post, 2, 3), 7).psi.shape == (7, made.num_features)
    with pytest.raises(ValueError, match="cannot shrink a posterior from capacity 12 to 9"):
        weights.grow(whole, 9)


def test_solve_takes_new_targets():
    made = make_map("grouped")
    obs, action, first = data(11, 12)
    second = np.random.default_rng(12).normal(size=12)
    post, _ = stream(made, 1e-3, obs, action, first, 12)
    again, _ = stream(made, 1e-3, obs, action, second, 12)
    moved = weights.solve(post, weights.sum_targets(post, jnp.asarray(second)))
    queries = random_pairs(13, 4)[0]
    assert_close(predict(made, moved, queries), predict(made, again, queries), 1e-8)


@pytest.mark.parametrize("spread, dtype", [(1.0, "float64"), (1.0, "float32"), (1e-3, "float32"), (0.0, "float32")])
def test_widths_stay_fall_and_are_never_negative(spread, dtype):
    """Also on near-duplicates, at the paper's lam, and in float32."""
    made, lam = make_map("grouped"), 1e-4
    obs, action, _ = data(14, 400)
    obs = (obs[:1] + spread * (obs - obs[:1])).astype(dtype)
    queries = jnp.asarray(np.concatenate([random_pairs(15, 4)[0], obs[:2]]), dtype)
    trail = np.asarray(width_trail(made, lam, jnp.asarray(obs), action, queries, dtype))
    assert np.all(np.isfinite(trail)) and np.all(trail >= 0)
    slack = 1e-12 if dtype == "float64" else 1e-5
    assert np.all(np.diff(trail, axis=0) <= slack * trail[:-1])
    # 133 visits of each pair, or so: its squared width is near 1 / 133, whatever lam is.
    if spread == 0.0:
        assert np.all(trail[-1, -2:] < 1 / np.sqrt(100))


@functools.partial(jit, static_argnames="dtype")
def width_trail(made, lam, obs, action, queries, dtype):
    """Widths `[n, Q, A]` at the queries after each append."""

    def body(post, pair):
        post, _ = weights.append(made, post, *pair, 1.0)
        return post, jax.vmap(lambda query: weights.predict(made, post, query)[1])(queries)

    return jax.lax.scan(body, weights.init(made, lam, 1, dtype), (obs, action))[1]


def pendulum(steps):
    """States [cos, sin, velocity / 8] of a pendulum under held torques: a thin curve, visited over and over."""
    rng = np.random.default_rng(0)
    angle, velocity, action = 2.0, 0.0, 0
    states, actions = [], []
    for _ in range(steps):
        action = int(rng.integers(3)) if rng.random() < 0.1 else action
        states.append((np.cos(angle), np.sin(angle), velocity / 8))
        actions.append(action)
        velocity = np.clip(velocity + 0.05 * (15 * np.sin(angle) + 6 * (action - 1)), -8, 8)
        angle += 0.05 * velocity
    return np.array(states), np.array(actions)


def test_the_square_root_keeps_float32_where_the_covariance_does_not():
    """W - (W f)(W f)^T / (1 + f^T W f), the textbook's update, loses in float32 what the engine's square root keeps."""
    made, lam = features.taylor(kqljax.RBF(eta=1.0), 3, 3, order=6), 1e-4
    obs, action = pendulum(1500)
    phi = explicit(made, (), obs)
    queries = phi[::50].reshape(-1, made.num_weights)
    taken = phi[np.arange(len(obs)), action]
    _, expected = batch_ridge(taken, np.zeros(len(obs)), lam, queries)

    covariance = np.eye(made.num_weights, dtype=np.float32) / np.float32(lam)
    for feature in taken.astype(np.float32):
        direction = covariance @ feature
        covariance -= np.outer(direction, direction) / (1 + feature @ direction)
    naive_sq = np.einsum("qd,de,qe->q", queries.astype(np.float32), covariance, queries.astype(np.float32))
    naive = np.abs(np.sqrt(np.maximum(naive_sq, 0)) / expected - 1)

    post, _ = stream(made, lam, obs.astype(np.float32), action, np.zeros(len(obs), np.float32), 1, "float32")
    width = np.asarray(predict(made, post, obs[::50].astype(np.float32))[1]).ravel()
    assert width.dtype == np.float32
    own = np.abs(width / expected - 1)
    assert own.max() < 2e-4
    assert naive.max() > 0.02
    assert naive.max() > 100 * own.max()


# Engine against the exact engine and the oracle -----------------------------------------------------------------------


class Wanderer:
    """A policy of held random actions."""

    def __init__(self, num_actions):
        self.rng, self.num_actions, self.action = np.random.default_rng(0), num_actions, 0

    def act(self, obs):
        if self.rng.random() < 0.3:
            self.action = int(self.rng.integers(self.num_actions))
        return self.action

    def step(self, *transition):
        pass


@functools.cache
def recorded(task, steps=400):
    recording = record(task, steps, Wanderer(TASKS[task][2]))
    return Transition(*(jnp.asarray(column) for column in recording[:5]))


@functools.cache
def exact_run(task, kernel_name, backups, steps):
    cfg = recorded_config(task, kernel_name, None, backups, steps)
    transitions = jax.tree.map(lambda leaf: leaf[:steps], recorded(task))
    return follow(cfg, kql_init(cfg, transitions.obs.shape[1]), transitions)[1]


def recorded_config(task, kernel_name, made, backups, steps):
    kernel = kqljax.Linear() if kernel_name == "linear" else kqljax.RBF(eta=0.02)
    _, _, num_actions, terminal_value, _ = TASKS[task]
    return kqljax.KQLConfig(
        kernel=kernel, num_actions=num_actions, horizon=steps, terminal_value=terminal_value, backups=backups, features=made
    )


TIGHT = 1e-10
AGAINST_EXACT = [
    ("MountainCar-v0", "taylor", 1, 400, 1e-6),
    ("CartPole-v1", "taylor", 1, 400, 1e-6),
    ("MountainCar-v0", "dictionary", 1, 400, 1e-6),
    ("CartPole-v1", "dictionary", 1, 400, 1e-6),
    ("MountainCar-v0", "taylor", 3, 100, 1e-6),
    ("CartPole-v1", "linear", 1, 400, 1e-9),
]


@pytest.mark.parametrize("task, name, backups, steps, atol", AGAINST_EXACT)
def test_engine_agrees_with_the_exact_engine(task, name, backups, steps, atol):
    transitions = jax.tree.map(lambda leaf: leaf[:steps], recorded(task))
    assert bool((transitions.reward > 0).any() | transitions.terminated.any() | (task == "MountainCar-v0"))
    length, num_actions = transitions.obs.shape[1], TASKS[task][2]
    kernel = kqljax.RBF(eta=0.02)
    made = {
        "taylor": lambda: features.taylor(kernel, length, num_actions, TIGHT),
        "dictionary": lambda: features.dictionary(
            kernel, np.concatenate([transitions.obs, transitions.next_obs]), num_actions, TIGHT / 100
        ),
        "linear": lambda: features.linear(kqljax.Linear(), length, num_actions),
    }[name]()
    cfg = recorded_config(task, "linear" if name == "linear" else "rbf", made, backups, steps)
    _, (believed, action, info, tables) = follow(cfg, kql_init(cfg, length), transitions)
    expected, expected_action, _, expected_tables = exact_run(task, "linear" if name == "linear" else "rbf", backups, steps)
    assert_close(believed, expected, atol)
    np.testing.assert_array_equal(action, expected_action)
    # Rows that are not taken yet mean nothing.
    is_taken = (np.arange(steps)[None] <= np.arange(steps)[:, None])[..., None]
    assert_close(*(jax.tree.map(lambda leaf: np.where(is_taken, leaf, 0), each) for each in (tables, expected_tables)), atol)
    assert bool(info.is_stored.all() & info.is_finite.all() & ~info.is_full.any())
    assert float(info.residual.max()) < 1e-7


def test_engine_agrees_with_the_oracle():
    task, steps = "CartPole-v1", 100
    transitions = jax.tree.map(lambda leaf: leaf[:steps], recorded(task))
    made = features.dictionary(kqljax.RBF(eta=0.02), np.concatenate([transitions.obs, transitions.next_obs]), 2, TIGHT / 100)
    cfg = recorded_config(task, "rbf", made, 1, steps)
    reference = oracle.Oracle(oracle.rbf(0.02), 2, cfg.gamma, cfg.lam, cfg.beta, cfg.terminal_value)
    _, (believed, action, _, tables) = follow(cfg, kql_init(cfg, 4), transitions)
    assert int(transitions.terminated.sum()) >= 3
    for i in range(steps):
        obs, *rest = (np.asarray(column[i]) for column in transitions)
        q_hat, width = reference.q_hat_and_width(obs)
        q_tilde = np.clip(q_hat + cfg.beta * width, 0, CAP)
        assert_close([column[i] for column in believed], [q_hat[0], width[0], q_tilde[0]], 1e-6)
        assert int(action[i]) == int(np.argmax(q_tilde[0]))
        reference.step(obs, *rest)
        if i % 30 == 29:
            assert_close([column[i, : i + 1] for column in tables], reference.tables(), 1e-6)


def test_step_and_act_is_step_then_act():
    cfg = config("online", **LAZY["reservoir"])
    transitions = random_transitions(12, seed=3)
    one = two = kql_init(cfg, 2)
    together = jit(kql_step_and_act)
    for i in range(12):
        query = transitions.obs[(i + 5) % 12]
        one, info_one, action_one, q_one = together(cfg, one, row(transitions, i), query)
        two, info_two = step(cfg, two, row(transitions, i))
        action_two, q_two = act(cfg, two, query)
        np.testing.assert_allclose(q_one, q_two, atol=1e-8)
        assert int(action_one) == int(action_two)
        assert_close(info_one, info_two, 1e-8)
    assert_close(one, two, 1e-7)


@pytest.mark.parametrize("engine", ["weights", "exact"])
def test_a_policy_acts_as_its_state_does(engine):
    cfg = config("online") if engine == "weights" else kqljax.KQLConfig(kernel=RBF, num_actions=3, horizon=12)
    transitions = random_transitions(12, seed=4)
    state = kql_init(cfg, 2)
    for i in range(8):
        state, _ = step(cfg, state, row(transitions, i))
    action, q_tilde = jit(jax.vmap(kqljax.kql_policy(cfg, state)))(transitions.obs)
    for i in range(12):
        expected, expected_q = act(cfg, state, transitions.obs[i])
        np.testing.assert_allclose(q_tilde[i], expected_q, atol=1e-9)
        assert int(action[i]) == int(expected)


@pytest.mark.parametrize("options", [{}, {"backups": 2}])
def test_past_capacity_nothing_is_overwritten(options):
    cfg = config("online", **options)
    transitions = random_transitions(14, seed=5)
    state = kql_init(cfg, 2)
    for i in range(14):
        before, (state, info) = state, step(cfg, state, row(transitions, i))
        assert (bool(info.is_full), bool(info.is_stored)) == (i >= 12, i < 12)
    assert_same(state, before)


def test_growing_in_stages_is_the_same_run():
    """Through a first capacity up to a memory that then overflows."""
    cfg = config("grouped", memory=8)
    transitions = random_transitions(12, seed=6)
    whole, _ = learn(cfg, kql_init(cfg, 2), transitions)
    state = kql_init(cfg, 2, capacity=4)
    for i in range(12):
        state = kql_grow(state, 8) if i == 4 else state
        state, info = step(cfg, state, row(transitions, i))
        assert bool(info.is_stored)
    assert_close(state, whole, 1e-8)
    assert int(state.num_stored) == cfg.capacity == state.capacity == 8


# Lazy tables and a bounded memory -------------------------------------------------------------------------------------


def test_refreshing_all_rows_is_the_default():
    transitions = random_transitions(30, seed=20)
    eager, lazy = config("online", horizon=30), config("online", horizon=30, refresh_rows=30)
    state, (believed, action, info, _) = follow(eager, kql_init(eager, 2), transitions)
    after, (lazily, lazy_action, lazy_info, _) = follow(lazy, kql_init(lazy, 2), transitions)
    assert_close(lazily, believed, 1e-8)
    np.testing.assert_array_equal(action, lazy_action)
    np.testing.assert_allclose(lazy_info.width, info.width, atol=1e-8)
    np.testing.assert_allclose(after.q_hat, state.q_hat, atol=1e-7)
    np.testing.assert_allclose(after.width, state.width, atol=1e-7)
    # A lazy step ends with the targets that the next one begins with.
    np.testing.assert_allclose(after.posterior.targets, targets_of(eager, state), atol=1e-7)


def test_refreshing_at_every_step_is_not_lazy():
    cfg = config(refresh_every=1, refresh_rows=None)
    assert not cfg.is_lazy
    assert all(config(**lazy).is_lazy for lazy in ({"refresh_every": 2}, {"refresh_rows": 100}))


def test_refreshing_at_every_third_step_leaves_the_table_alone_between():
    cfg = config("grouped", horizon=30, refresh_every=3)
    transitions = random_transitions(24, seed=21)
    state = kql_init(cfg, 2)
    for i in range(24):
        before, (state, info) = state, step(cfg, state, row(transitions, i))
        assert bool(info.is_stored)
        if i % 3 != 2:
            # The new pair is learned from at once, and its successor's row is of the moment.
            q_hat, width = predict_all(cfg, before, transitions.next_obs)
            np.testing.assert_allclose(state.q_hat[i], q_hat[i], atol=1e-9)
            np.testing.assert_allclose(state.width[i], width[i], atol=1e-9)
            for old, new in ((before.table, state.table), (before.q_tilde, state.q_tilde)):
                assert_same(*(jax.tree.map(lambda leaf, i=i: leaf[:i], each) for each in (old, new)))
            np.testing.assert_array_equal(before.posterior.targets[:i], state.posterior.targets[:i])
            assert_regression_is_of_the_targets(cfg, state, transitions)
        else:
            # All rows are what the posterior says after this step.
            q_hat, width = predict_all(cfg, state, transitions.next_obs)
            np.testing.assert_allclose(state.q_hat[: i + 1], q_hat[: i + 1], atol=1e-8)
            np.testing.assert_allclose(state.width[: i + 1], width[: i + 1], atol=1e-7)
            assert not np.allclose(before.q_hat[:i], state.q_hat[:i], atol=1e-6)


def assert_regression_is_of_the_targets(cfg, state, transitions):
    """Whatever waits for its turn, the regression is ridge regression on the pairs with the targets that they have."""
    count = int(state.num_stored)
    phi = explicit(cfg.features, (), transitions.obs)[np.arange(len(transitions.obs)), np.asarray(transitions.action)][:count]
    queries = random_pairs(22, 3)[0]
    expected = batch_ridge(phi, np.asarray(state.posterior.targets[:count]), cfg.lam, explicit(cfg.features, (), queries))
    assert_close(predict_all(cfg, state, queries), expected, 1e-7)


def test_refreshing_some_rows_touches_no_others_and_leaves_none_out():
    cfg = config("grouped", horizon=40, refresh_rows=5)
    transitions = random_transitions(40, seed=23)
    state = kql_init(cfg, 2)
    refreshed = np.zeros(40, int)
    for i in range(40):
        before, (state, _) = state, step(cfg, state, row(transitions, i))
        changed = np.flatnonzero(np.any(np.asarray(before.q_hat != state.q_hat), axis=1))
        changed = changed[changed != i]
        assert len(changed) <= 5
        refreshed[changed] += 1
        q_hat, _ = predict_all(cfg, state, transitions.next_obs)
        np.testing.assert_allclose(state.q_hat[changed], q_hat[changed], atol=1e-8)
        # What the next step will solve for is the sum over all pairs with the targets that they have now.
        post = state.posterior
        np.testing.assert_allclose(post.moment, post.psi.T @ (post.action * post.targets[:, None]), atol=1e-8)
    assert np.all(refreshed[:30] > 0)


class Remembering:
    """Algorithm 1 with a bounded memory, in NumPy: every step solves afresh, pairs that left keep their last target."""

    def __init__(self, cfg):
        self.cfg, self.made = cfg, cfg.features
        self.phi, self.targets, self.slots = [], [], {}  # slots: row of the table -> pair, reward, successor, end

    def at(self, states):
        # Always nine rows, for psi to be compiled once.
        padded = np.zeros((9, 2))
        padded[: len(states)] = states
        queries = explicit(self.made, (), padded)[: len(states)]
        if not self.phi:
            return np.zeros(queries.shape[:2]), np.sqrt((queries**2).sum(-1) / self.cfg.lam)
        return batch_ridge(np.array(self.phi), np.array(self.targets), self.cfg.lam, queries)

    def value(self, states, ends):
        q_hat, width = self.at(states)
        best = np.clip(q_hat + self.cfg.beta * width, 0, CAP).max(axis=1)
        return np.where(ends, self.cfg.terminal_value, best)

    def step(self, slot, obs, action, reward, next_obs, end):
        rows = [(len(self.phi), reward, next_obs, end), *self.slots.values()]
        index, rewards, states, ends = (np.array(column) for column in zip(*rows, strict=True))
        fresh = rewards + self.cfg.gamma * self.value(states, ends)
        self.phi.append(explicit(self.made, (), np.tile(obs, (9, 1)))[0, action])
        self.targets.append(0.0)
        for i, target in zip(index, fresh, strict=True):
            self.targets[i] = target
        if slot is not None:
            self.slots[slot] = rows[0]


@pytest.mark.parametrize("eviction", ["oldest", "reservoir"])
def test_pairs_that_left_the_memory_keep_their_last_target(eviction):
    cfg = config("grouped", horizon=60, memory=8, eviction=eviction, lam=1e-2, terminal_value=3.0)
    transitions = random_transitions(45, seed=24)
    reference = Remembering(cfg)
    state = kql_init(cfg, 2)
    assert state.capacity == 8
    queries = random_pairs(25, 3)[0]
    kept = passed = 0
    for i in range(45):
        before, (state, info) = state, step(cfg, state, row(transitions, i))
        assert bool(info.is_stored) and not bool(info.is_full)
        written = np.flatnonzero(np.any(np.asarray(before.table.obs != state.table.obs), axis=1))
        assert len(written) <= 1
        if i < 8 or eviction == "oldest":
            np.testing.assert_array_equal(written, [i % 8])
        kept, passed = kept + len(written), passed + 1 - len(written)
        slot = int(written[0]) if len(written) else None
        reference.step(slot, *(np.asarray(column[i]) for column in transitions))
        assert_close(predict_all(cfg, state, queries), reference.at(queries), 1e-8)
        for slot, (_, _, next_obs, _) in reference.slots.items():
            np.testing.assert_array_equal(state.table.obs[slot], next_obs)
        q_hat, width = reference.at(state.table.obs)
        taken = slice(0, min(i + 1, 8))
        np.testing.assert_allclose(state.q_hat[taken], q_hat[taken], atol=1e-7)
        np.testing.assert_allclose(state.width[taken], width[taken], atol=1e-7)
    assert int(state.num_stored) == 8
    if eviction == "reservoir":
        assert kept > 12 and passed > 12


def test_a_memory_that_is_never_full_is_the_default():
    transitions = random_transitions(12, seed=26)
    plain, with_memory = config("online"), config("online", memory=12, eviction="reservoir")
    state = after = kql_init(plain, 2)
    for i in range(12):
        state, info = step(plain, state, row(transitions, i))
        after, info_after = step(with_memory, after, row(transitions, i))
        assert_close((after, info_after), (state, info), 1e-10)


def test_a_memory_with_more_backups_and_with_lazy_rows_keeps_the_regression():
    """Pairs that left are neither lost nor counted twice, whatever else is on: the widths are those of all pairs."""
    transitions = random_transitions(40, seed=27)
    phi = explicit(make_map("grouped"), (), transitions.obs)[np.arange(40), np.asarray(transitions.action)]
    for options, eviction in (({"backups": 3}, "reservoir"), ({"refresh_rows": 3}, "oldest")):
        # Without discount the targets are the rewards, whenever they were computed.
        cfg = config("grouped", horizon=60, memory=6, eviction=eviction, gamma=0.0, lam=0.01, **options)
        state, info = learn(cfg, kql_init(cfg, 2), transitions)
        assert bool(info.is_stored.all()) and not bool(info.is_full.any())
        queries = random_pairs(28, 3)[0]
        expected = batch_ridge(phi, np.asarray(transitions.reward), 0.01, explicit(cfg.features, (), queries))
        assert_close(predict_all(cfg, state, queries), expected, 1e-8)


def test_a_reservoir_is_a_uniform_sample():
    """2000 steps, 50 slots: what is stored in the end, how often something was, and where."""
    steps, slots = 2000, 50
    cfg = config("linear", horizon=steps, memory=slots, eviction="reservoir")
    when = jnp.arange(steps) / steps
    transitions = random_transitions(steps)._replace(next_obs=jnp.stack([when, when], axis=1))

    @jit
    def run(cfg, state, transitions):
        def body(state, transition):
            state, info = kql_step(cfg, state, transition)
            return state, (info.is_full, jnp.argmax(state.table.obs[:, 0]), jnp.max(state.table.obs[:, 0]))

        return jax.lax.scan(body, state, transitions)

    state, (is_full, newest, latest) = run(cfg, kql_init(cfg, 2), transitions)
    assert not bool(is_full.any())
    kept = np.sort(np.asarray(state.table.obs[:, 0]))
    assert len(np.unique(kept)) == slots
    assert stats.kstest(kept, "uniform").pvalue > 0.01
    # The t-th is stored with probability 50 / t: 184 +- 13 of those that come after the first 50, in slots evenly.
    was_stored = np.asarray(latest == when)[slots:]
    assert 145 < was_stored.sum() < 225
    counts = np.bincount(np.asarray(newest)[slots:][was_stored], minlength=slots)
    assert stats.chisquare(counts).pvalue > 0.001


# float32 -------------------------------------------------------------------------------------------------------------


def assert_all_float32(tree):
    kinds = {leaf.dtype for leaf in jax.tree.leaves(tree)}
    assert kinds <= {jnp.dtype("float32"), jnp.dtype("int32"), jnp.dtype("bool")}, kinds
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("name, options, stages", [("dictionary", {}, 1), ("online", {"memory": 30, "refresh_rows": 16}, 2)])
def test_float32_without_x64(name, options, stages):
    """No float64 anywhere: a float32 process makes maps, steps, acts and trains, at the paper's lam."""
    with jax.enable_x64(False):
        cfg = config(name, horizon=1000, **options)
        state = kql_init(cfg, 2, capacity=30)
        assert state.q_tilde.dtype == jnp.float32
        transition = Transition(np.array([0.1, 0.2]), 1, 0.5, np.array([-0.3, 0.4]), False)
        assert_all_float32(jit(kql_step_and_act)(cfg, state, transition, np.array([0.1, 0.2])))
        # Two stages: the memory grows to its size, then overflows.
        task = kqljax.make_task("MountainCar-v0")
        run = jit(lambda key: kqljax.train(task, cfg, key, 100, stages=stages))(jax.random.key(0))
        assert_all_float32(run)
        assert bool(run.log.info.is_stored.all() & run.log.info.is_finite.all())
        assert int(run.state.num_stored) == run.state.capacity


def test_float32_agrees_with_float64():
    cfg = config("grouped", horizon=1000)
    transitions = random_transitions(150, seed=9)
    wide, (believed, *_) = follow(cfg, kql_init(cfg, 2, capacity=150), transitions)
    narrow, (nearly, _, info, _) = follow(cfg, kql_init(cfg, 2, jnp.float32, capacity=150), transitions)
    assert bool(info.is_finite.all()) and narrow.q_tilde.dtype == jnp.float32
    assert_close(nearly, believed, 0.02)
    np.testing.assert_allclose(narrow.width, wide.width, rtol=1e-2)
    assert float(info.residual.max()) < 0.01


# JAX manners ---------------------------------------------------------------------------------------------------------


def test_one_compile_for_a_run_and_for_every_number():
    chex.clear_trace_counter()
    traced = jit(chex.assert_max_traces(kql_step, n=1))

    def of(eta):
        kernel = kqljax.RBF(eta=eta)
        return {"kernel": kernel, "features": features.taylor(kernel, 2, 3, order=4)}

    for cfg in (
        config(**of(0.5)),
        config(**of(0.02)),
        config(**of(0.5), gamma=0.9),
        config(**of(0.5), lam=0.3, beta=2.0),
        config(**of(0.5), terminal_value=3.0),
    ):
        state = kql_init(cfg, 2)
        for i in range(3):
            state, _ = traced(cfg, state, row(random_transitions(3), i))
    assert int(state.num_stored) == 3


def strong(leaf):
    return jnp.asarray(leaf, jnp.float64) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf


@pytest.mark.parametrize("options", LAZY)
def test_dtypes_are_kept(options):
    """A config of strong float64 numbers does not promote a float32 state: seen in the shapes, without a compile."""
    dtype = "float32"
    cfg = jax.tree.map(strong, config("online", **LAZY[options]))
    state = kql_init(cfg, 2, dtype)
    kinds = jax.tree.map(lambda leaf: leaf.dtype, state)
    after, info, action, q_tilde = jax.eval_shape(kql_step_and_act, cfg, state, row(random_transitions(1), 0), jnp.zeros(2))
    assert jax.tree.map(lambda leaf: leaf.dtype, after) == kinds
    assert (after.q_tilde.dtype, action.dtype, q_tilde.dtype) == (dtype, jnp.int32, dtype)
    assert {info.residual.dtype, info.width.dtype, info.feature_error.dtype} == {jnp.dtype(dtype)}
    # No weak types in a state, new or later: they would cost a second trace.
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((state, after)))


def run(cfg, seeds):
    def body(state, seed):
        obs, next_obs = jax.random.uniform(jax.random.key(seed), (2, 2), minval=-1, maxval=1)
        action, _ = kql_act(cfg, state, obs)
        return kql_step(cfg, state, Transition(obs, action, jnp.abs(obs[0]), next_obs, seed % 3 == 0))

    return jax.lax.scan(body, kql_init(cfg, 2), seeds)


def test_a_vmapped_seed_is_the_seed_alone():
    cfg = config("online", memory=5, eviction="reservoir", refresh_every=3)
    seeds = jnp.arange(24).reshape(2, 12)
    together, _ = jit(jax.vmap(run, in_axes=(None, 0)))(cfg, seeds)
    assert_close(row(together, 1), jit(run)(cfg, seeds[1])[0], 1e-8)
    assert not np.allclose(together.q_tilde[0], together.q_tilde[1])


def test_the_width_of_the_kernel_can_be_vmapped():
    def of(eta):
        kernel = kqljax.RBF(eta=eta)
        made = features.online_dictionary(kernel, 2, 3, 16, 1e-3)
        return run(kqljax.KQLConfig(kernel=kernel, num_actions=3, horizon=8, features=made, lam=0.1), jnp.arange(8))[0].q_tilde

    etas = (0.1, 0.6)
    together = jit(jax.vmap(of))(jnp.array(etas))
    np.testing.assert_allclose(together[1], jit(lambda: of(etas[1]))(), atol=1e-8)
    assert not np.allclose(*together)


def test_a_donated_step_in_a_python_loop():
    cfg = config("online", **LAZY["reservoir"])
    donated = jit(kql_step, donate_argnames="state")
    transitions = random_transitions(8, seed=30)
    state, kept = kql_init(cfg, 2), kql_init(cfg, 2)
    for i in range(8):
        before = state
        state, info = donated(cfg, state, row(transitions, i))
        assert bool(info.is_stored)
        assert before.posterior.root.is_deleted() and before.q_tilde.is_deleted()
        kept, _ = step(cfg, kept, row(transitions, i))
    assert_close(state, kept, 1e-12)


@pytest.mark.parametrize("name, lazy", [*(("grouped", lazy) for lazy in LAZY), ("online", "default"), ("online", "reservoir")])
def test_lowers_for_every_platform(name, lazy):
    cfg = config(name, **LAZY[lazy])
    transition = row(random_transitions(1), 0)
    assert_lowers(kql_step, cfg, kql_init(cfg, 2), transition)
    states = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), kql_init(cfg, 2, "float32"))
    assert_lowers(jax.vmap(kql_step_and_act, in_axes=(None, 0, None, None)), cfg, states, transition, jnp.zeros(2))


@pytest.mark.parametrize("name, lazy", [("grouped", "default"), ("online", "reservoir")])
def test_training_lowers_for_every_platform(name, lazy):
    cfg, task = config(name, **LAZY[lazy]), kqljax.make_task("MountainCar-v0")
    assert_lowers(lambda cfg, seed: kqljax.train(task, cfg, jax.random.key(seed), stages=1).log.action, cfg, 0)


def assert_lowers(function, *arguments):
    exported = export.export(jax.jit(function), platforms=("cpu", "cuda", "tpu"))(*arguments)
    assert exported.platforms == ("cpu", "cuda", "tpu")
    assert "callback" not in exported.mlir_module()


# Errors --------------------------------------------------------------------------------------------------------------


def test_a_map_of_something_else_is_refused():
    made = make_map("taylor")
    for changes, message in (
        ({"kernel": kqljax.Matern32()}, "the feature map stands for the kernel RBF.*the config has Matern32"),
        ({"kernel": kqljax.RBF(eta=0.4)}, "Make the map from the config's kernel"),
        ({"num_actions": 2, "features": made}, "the feature map was made for 3 actions, not 2. Make it anew"),
        ({"features": "taylor"}, r"features must be a feature map or None, got 'taylor' \(str\)"),
    ):
        with pytest.raises(ValueError, match=message):
            config(**changes)
    with pytest.raises(ValueError, match="made for observations of length 2, not 3"):
        kql_init(config(), 3)
    # What is only a rounding apart is the same kernel.
    config(kernel=kqljax.RBF(eta=jnp.float32(0.5)))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"refresh_every": 0}, "refresh_every must be at least 1, got 0"),
        ({"refresh_every": 1.5}, "refresh_every must be a whole number"),
        ({"refresh_rows": 0}, "refresh_rows must be at least 1, got 0"),
        ({"memory": 0}, "memory must be at least 1, got 0"),
        ({"memory": 2.5}, "memory must be a whole number"),
        ({"eviction": "newest"}, "eviction must be one of 'oldest', 'reservoir', got 'newest'"),
        ({"backups": 2, "refresh_rows": 4}, "use one or the other"),
        ({"backups": 2, "refresh_every": 4}, "use one or the other"),
    ],
)
def test_bad_options(changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes)


@pytest.mark.parametrize("option", [{"refresh_every": 2}, {"refresh_rows": 4}, {"memory": 8}, {"eviction": "reservoir"}])
def test_options_of_the_weight_space_engine_need_features(option):
    name = next(iter(option))
    with pytest.raises(ValueError, match=f"{name}=.* is an option of the weight-space engine: give features="):
        kqljax.KQLConfig(kernel=RBF, num_actions=3, horizon=12, **option)


def test_more_capacity_than_memory_is_refused():
    with pytest.raises(ValueError, match="capacity=9 is more than memory=8"):
        kql_init(config(memory=8), 2, capacity=9)


def test_state_and_config_must_fit():
    exact = kqljax.KQLConfig(kernel=RBF, num_actions=3, horizon=12)
    for cfg, other, message in (
        (exact, config(), "the state was made with features, the config has none"),
        (config(), exact, "the config has features, the state was made without"),
        (config(), config("fourier"), r"the state was made for a feature map with root \(3, 16, 16\)"),
        (config(), config(num_actions=2), "the state was made for 2 actions, the config has num_actions=3"),
    ):
        state = kql_init(other, 2)
        for use in (kql_step, step):
            with pytest.raises(ValueError, match=message):
                use(cfg, state, row(random_transitions(1), 0))
        with pytest.raises(ValueError, match=message):
            kql_act(cfg, state, jnp.zeros(2))


def test_a_full_dictionary_says_so():
    tolerance = 1e-3
    made = features.online_dictionary(RBF, 2, 3, 4, tolerance)
    cfg = kqljax.KQLConfig(kernel=RBF, num_actions=3, horizon=12, features=made)
    transitions = random_transitions(12, seed=31)
    state, info = learn(cfg, kql_init(cfg, 2), transitions)
    # Two steps bring four states; from then on there is no room.
    np.testing.assert_array_equal(info.is_basis_full, [False] * 2 + [True] * 10)
    assert int(state.posterior.basis.num_points) == 4
    assert np.all(np.asarray(info.feature_error[:2]) <= tolerance)
    assert np.all(np.asarray(info.feature_error[2:]) > tolerance)
    assert bool(info.is_stored.all() & info.is_finite.all())
    # What is missing there, by hand.
    points = np.concatenate([transitions.obs[:2], transitions.next_obs[:2]])
    states = np.stack([transitions.obs[7], transitions.next_obs[7]])
    cross = oracle.rbf(0.5)(points, states, 2)
    gaps = 1 - (cross * np.linalg.solve(oracle.rbf(0.5)(points, points, 2), cross)).sum(axis=0)
    assert float(info.feature_error[7]) == pytest.approx(gaps.max(), abs=1e-9)


def test_a_fixed_map_reports_its_error():
    made = make_map("dictionary")
    cfg = config("dictionary")
    inside, outside = (Transition(np.zeros(2), 0, 0.5, np.full(2, at), False) for at in (0.1, 3.0))
    for transition, is_small in ((inside, True), (outside, False)):
        info = step(cfg, kql_init(cfg, 2), transition)[1]
        assert (float(info.feature_error) <= 2 * made.error) == is_small
        assert not bool(info.is_basis_full)
    exact = kqljax.KQLConfig(kernel=RBF, num_actions=3, horizon=12)
    assert float(step(exact, kql_init(exact, 2), outside)[1].feature_error) == 0


BAD_TRANSITIONS = {
    "nan observation": {"obs": jnp.array([jnp.nan, 0.0])},
    "infinite successor": {"next_obs": jnp.array([0.0, jnp.inf])},
    "nan reward": {"reward": jnp.asarray(jnp.nan)},
    "reward above": {"reward": jnp.asarray(1.5)},
    "action above": {"action": jnp.asarray(3, jnp.int32)},
    "action below": {"action": jnp.asarray(-1, jnp.int32)},
}


@pytest.mark.parametrize(
    "name, options",
    [("online", "default"), ("online", "more backups"), ("online", "reservoir"), ("grouped", "all rows at some steps")],
)
def test_bad_values_leave_the_state_alone(name, options):
    cfg = config(name, **LAZY.get(options, {"backups": 2}))
    good = random_transitions(9, seed=32)
    fuller = kql_init(cfg, 2)
    for i in range(8):
        fuller, _ = step(cfg, fuller, row(good, i))
    for state in (kql_init(cfg, 2), fuller):
        for change in BAD_TRANSITIONS.values():
            after, info = step(cfg, state, row(good, 8)._replace(**change))
            assert not bool(info.is_valid) and not bool(info.is_stored)
            assert bool(info.is_finite)
            slot = state.posterior.next_slot
            assert int(after.posterior.next_slot) == int(slot) + 1
            assert_same(after._replace(posterior=after.posterior._replace(next_slot=slot)), state)
    again, info = step(cfg, after, row(good, 8))
    assert bool(info.is_stored)
    assert int(again.num_stored) == min(9, cfg.capacity)


def test_bad_values_raise_outside_jit():
    cfg = config("online")
    for change in BAD_TRANSITIONS.values():
        name = next(iter(change))
        with pytest.raises(ValueError, match=f"transition.{name} must be"):
            kql_step(cfg, kql_init(cfg, 2), row(random_transitions(1), 0)._replace(**change))


def test_defaults_are_those_of_the_exact_engine():
    cfg = config()
    action, q_tilde = kql_act(cfg, kql_init(cfg, 2), jnp.zeros(2))
    np.testing.assert_allclose(q_tilde, CAP)
    assert int(action) == 0
    assert dataclasses.replace(cfg, features=None).engine != cfg.engine


@pytest.mark.parametrize("lazy", [{}, {"refresh_rows": 16}], ids=["all rows", "some rows"])
@pytest.mark.parametrize("batched", [False, True], ids=["one seed", "vmapped"])
def test_rows_of_features_are_written_in_place(lazy, batched):
    """No copy of a `[T, m]` array in the loop of a whole run: at T = 50,000 one took thirty times as long as the step."""
    size = 403
    kernel = kqljax.RBF(eta=0.3)
    cfg = kqljax.KQLConfig(
        kernel=kernel, num_actions=3, horizon=size, features=kqljax.features.taylor(kernel, 2, 3, order=4), **lazy
    )

    def run(obs):
        def body(state, obs):
            transition = Transition(obs, jnp.int32(0), jnp.float32(0), -obs, jnp.asarray(False))
            return kqljax.kql_step_and_act(cfg, state, transition, obs)[:2]

        return jax.lax.scan(body, kql_init(cfg, 2, jnp.float32), obs)[0]

    shape = (3, 9, 2) if batched else (9, 2)
    text = jax.jit(jax.vmap(run) if batched else run).lower(jnp.zeros(shape, jnp.float32)).compile().as_text()
    rows = f"[{'3,' if batched else ''}{size},{cfg.features.num_features}]"
    loops = [part for part in text.split("\n\n") if "region" in part.lstrip().split("(")[0]]
    assert any(f"f32{rows}" in part and "dynamic-update-slice" in part for part in loops)
    copies = [line for part in loops for line in part.splitlines() if f"= f32{rows}" in line and " copy(" in line]
    assert not copies, copies
