"""The exact posterior: streaming kernel ridge regression against batch solves, and what must hold on any data."""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tinygp
from cases import KERNELS, joined, pairs, random_pairs
from hypothesis import given, settings

import kqljax
from kqljax.posterior import gram


@functools.partial(jax.jit, static_argnames=("capacity", "dtype"))
def stream(kernel, lam, obs, action, target, capacity=None, dtype=None):
    """Appends all pairs one by one; returns the posterior and each Update."""
    post = gram.init(obs.shape[1], 3, capacity or obs.shape[0], dtype)

    def body(post, row):
        return gram.append(kernel, lam, post, *row)

    return jax.lax.scan(body, post, (obs, action, target))


def batch_predict(reference, lam, obs, action, target, queries):
    """Mean and width `[Q, 3]` by a fresh dense solve."""
    stored = joined(obs, action)
    system = reference(stored, stored, obs.shape[1]) + lam * np.eye(len(obs))
    every = joined(np.repeat(queries, 3, axis=0), np.tile(np.arange(3), len(queries)))
    cross = reference(stored, every, obs.shape[1])
    own = np.array([reference(row[None], row[None], obs.shape[1])[0, 0] for row in every])
    mean = cross.T @ np.linalg.solve(system, target)
    width = np.sqrt((own - (cross * np.linalg.solve(system, cross)).sum(0)) / lam)
    return mean.reshape(-1, 3), width.reshape(-1, 3)


@jax.jit
def predict(kernel, lam, post, queries):
    return jax.vmap(lambda obs: gram.predict(kernel, lam, post, obs))(jnp.asarray(queries))


def table_of(kernel, lam, post, states):
    """A table of these states, in the posterior's dtype."""
    table = gram.init_table(kernel, post, len(states))
    for row, obs in enumerate(jnp.asarray(states, post.dtype)):
        mean, width = gram.predict(kernel, lam, post, obs)
        table = gram.put_row(table, row, obs, gram.state_terms(kernel, post.pairs, obs), mean, width**2, True)
    return table


@pytest.mark.parametrize("name", KERNELS)
def test_incremental_equals_batch(name):
    kernel, reference, _ = KERNELS[name]
    obs, action = random_pairs(0, 40)
    target = np.random.default_rng(1).normal(size=40)
    queries = random_pairs(2, 7)[0]
    post, _ = stream(kernel, 1e-2, obs, action, target, capacity=50)
    mean, width = predict(kernel, 1e-2, post, queries)
    expected = batch_predict(reference, 1e-2, obs, action, target, queries)
    np.testing.assert_allclose(mean, expected[0], atol=1e-9)
    np.testing.assert_allclose(width, expected[1], atol=1e-9)


def test_against_tinygp():
    obs, action = random_pairs(3, 30)
    target = np.random.default_rng(4).normal(size=30)
    lam, eta = 0.05, 0.5
    post, _ = stream(kqljax.RBF(eta=eta), lam, obs, action, target)
    queries = random_pairs(5, 4)[0]
    mean, width = predict(kqljax.RBF(eta=eta), lam, post, queries)
    process = tinygp.GaussianProcess(tinygp.kernels.ExpSquared(scale=np.sqrt(1 / (2 * eta))), joined(obs, action), diag=lam)
    every = joined(np.repeat(queries, 3, axis=0), np.tile(np.arange(3), 4))
    conditioned = process.condition(target, every).gp
    np.testing.assert_allclose(np.ravel(mean), conditioned.loc, atol=1e-10)
    # The width is the posterior standard deviation over sqrt(lam); tinygp adds a jitter of 1e-8 or so to its variance.
    np.testing.assert_allclose(np.ravel(width) ** 2 * lam, conditioned.variance, atol=1e-6)


def test_before_any_data():
    post = gram.init(2, 3, 5)
    mean, width = gram.predict(kqljax.RBF(), 0.04, post, jnp.zeros(2))
    np.testing.assert_array_equal(mean, np.zeros(3))
    np.testing.assert_allclose(width, np.full(3, 5.0))


def test_solve_takes_new_targets():
    obs, action = random_pairs(6, 20)
    first, second = np.random.default_rng(7).normal(size=(2, 20))
    kernel = kqljax.RBF(eta=1.0)
    post, _ = stream(kernel, 1e-3, obs, action, first, capacity=24)
    again, _ = stream(kernel, 1e-3, obs, action, second, capacity=24)
    moved = gram.solve(post, jnp.pad(jnp.asarray(second), (0, 4), constant_values=9.0))
    np.testing.assert_allclose(moved.weights, again.weights, rtol=1e-9)


def test_whitener_inverts_the_system():
    obs, action = random_pairs(8, 25)
    kernel, reference, _ = KERNELS["rbf"]
    post, _ = stream(kernel, 1e-3, obs, action, np.zeros(25))
    (factor,) = post.whitener
    system = reference(joined(obs, action), joined(obs, action), 2) + 1e-3 * np.eye(25)
    np.testing.assert_allclose(factor @ system @ factor.T, np.eye(25), atol=1e-9)
    np.testing.assert_array_equal(factor, np.tril(factor))


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(sorted(KERNELS)),
    seed=st.integers(0, 2**16),
    spread=st.sampled_from([1.0, 1e-3, 1e-8, 0.0]),
    log_lam=st.floats(-4, 1),
)
def test_properties(name, seed, spread, log_lam):
    """On any data, near-duplicates among them: widths stay, fall, and do not depend on the order of the data."""
    kernel, reference, _ = KERNELS[name]
    lam = 10.0**log_lam
    obs, action = random_pairs(seed, 24)
    obs = obs[:1] + spread * (obs - obs[:1])
    target = np.random.default_rng(seed + 1).normal(size=24)
    queries = np.concatenate([random_pairs(seed + 2, 3)[0], obs[:2]])
    trail = widths_after_each(kernel, lam, obs, action, target, queries)
    assert np.all(np.isfinite(trail))
    assert np.all(trail >= 0)
    tolerance = 1e-7 / np.sqrt(lam)
    assert np.all(np.diff(trail, axis=0) <= tolerance)

    post, _ = stream(kernel, lam, obs, action, target)
    order = np.random.default_rng(seed).permutation(24)
    shuffled, _ = stream(kernel, lam, obs[order], action[order], target[order])
    mean, width = predict(kernel, lam, post, queries)
    for found, other in zip((mean, width), predict(kernel, lam, shuffled, queries), strict=True):
        np.testing.assert_allclose(found, other, atol=1e-6)
    expected = batch_predict(reference, lam, obs, action, target, queries)
    np.testing.assert_allclose(mean, expected[0], atol=1e-6)


@jax.jit
def widths_after_each(kernel, lam, obs, action, target, queries):
    """Widths `[n + 1, Q, 3]` at the queries, before and after each append."""

    def widths(post):
        return jax.vmap(lambda query: gram.predict(kernel, lam, post, query)[1])(queries)

    def body(post, row):
        post, _ = gram.append(kernel, lam, post, *row)
        return post, widths(post)

    post = gram.init(obs.shape[1], 3, obs.shape[0])
    return jnp.concatenate([widths(post)[None], jax.lax.scan(body, post, (obs, action, target))[1]])


@pytest.mark.parametrize("dtype, lam", [("float64", 1e-4), ("float32", 0.1)])
def test_five_thousand_near_duplicates(dtype, lam):
    """Forty places, visited over and over: finite, and the width at a pair only falls."""
    rng = np.random.default_rng(0)
    places, actions = random_pairs(1, 40)
    which = rng.integers(0, 40, 5000)
    obs = (places[which] + 1e-7 * rng.normal(size=(5000, 2))).astype(dtype)
    kernel = kqljax.RBF(eta=0.02)

    @jax.jit
    def run(post, table, obs, action):
        def body(carry, row):
            post, table = carry
            post, update = gram.append(kernel, lam, post, *row, 1.0)
            table = gram.refresh(kernel, lam, post, table, update)
            return (post, table), (update.width_sq, table.width_sq[0])

        return jax.lax.scan(body, (post, table), (obs, action))

    post = gram.init(2, 3, 1000, dtype)
    table = table_of(kernel, lam, post, places[:1])
    own, queried = [], []
    for start in range(0, 5000, 1000):
        table = gram.grow_table(table, 1, post.capacity, start + 1000)
        post = gram.grow(post, start + 1000, is_full=True)
        chunk = slice(start, start + 1000)
        (post, table), trail = run(post, table, obs[chunk], actions[which[chunk]])
        own.append(trail[0])
        queried.append(trail[1])
    own, queried = np.concatenate(own), np.concatenate(queried)
    assert int(post.num_stored) == 5000
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((post.weights, table.mean, own, queried)))
    assert np.all(np.diff(queried, axis=0) <= 0)
    # After 125 visits of a pair its squared width is near 1 / 125, whatever lam is.
    assert own[-1] < 1 / 60


def test_table_is_what_predict_says():
    kernel, lam = KERNELS["product with shift"][0], 1e-3
    obs, action = random_pairs(10, 30)
    states = random_pairs(11, 5)[0]
    post = gram.init(2, 3, 30)
    table = table_of(kernel, lam, post, states)

    @jax.jit
    def both(post, table, obs, action):
        post, update = gram.append(kernel, lam, post, obs, action, jnp.sum(obs))
        return post, gram.refresh(kernel, lam, post, table, update)

    for i in range(30):
        post, table = both(post, table, obs[i], action[i])
    mean, width = predict(kernel, lam, post, states)
    np.testing.assert_allclose(table.mean, mean, atol=1e-9)
    np.testing.assert_allclose(jnp.sqrt(table.width_sq), width, atol=1e-7)


@pytest.mark.parametrize("is_full", [False, True])
def test_grow_loses_nothing(is_full):
    kernel, lam = KERNELS["matern32"][0], 1e-2
    obs, action = random_pairs(12, 30)
    target = np.random.default_rng(13).normal(size=30)
    whole, _ = stream(kernel, lam, obs, action, target)
    post = gram.init(2, 3, 10)
    append = jax.jit(gram.append)
    for i in range(30):
        if i in (10, 20):
            post = gram.grow(post, i + 10, is_full)
        post, update = append(kernel, lam, post, obs[i], action[i], target[i])
        assert bool(update.is_stored)
    assert len(post.whitener) == (3 if is_full else 1)
    np.testing.assert_allclose(post.weights, whole.weights, rtol=1e-9)
    queries = random_pairs(14, 4)[0]
    for found, expected in zip(predict(kernel, lam, post, queries), predict(kernel, lam, whole, queries), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-10)


def test_grow_before_full_needs_no_promise():
    kernel, lam = kqljax.RBF(), 1e-2
    obs, action = random_pairs(15, 12)
    post, _ = stream(kernel, lam, obs[:5], action[:5], np.ones(5), capacity=8)
    post = gram.grow(post, 12)
    for i in range(5, 12):
        post, update = gram.append(kernel, lam, post, obs[i], action[i], 1.0)
        assert bool(update.is_stored)
    whole, _ = stream(kernel, lam, obs, action, np.ones(12))
    np.testing.assert_allclose(post.weights, whole.weights, atol=1e-9)


def test_a_broken_promise_costs_slots_and_nothing_else():
    kernel, lam = kqljax.RBF(), 1e-2
    obs, action = random_pairs(16, 7)
    post, _ = stream(kernel, lam, obs[:5], action[:5], np.ones(5), capacity=8)
    post = gram.grow(post, 12, is_full=True)
    for i in (5, 6):
        post, update = gram.append(kernel, lam, post, obs[i], action[i], 1.0)
        assert bool(update.is_stored)
    assert int(post.num_stored) == 7
    np.testing.assert_array_equal(post.is_taken, [True] * 5 + [False] * 3 + [True] * 2 + [False] * 2)
    whole, _ = stream(kernel, lam, obs, action, np.ones(7))
    queries = random_pairs(19, 4)[0]
    for found, expected in zip(predict(kernel, lam, post, queries), predict(kernel, lam, whole, queries), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-10)


class Direction(kqljax.Kernel):
    """Defined wherever [s, a] has a direction, which an empty slot has not."""

    sharpness: float = 1.0

    def evaluate(self, x, y):
        x, y = (jnp.concatenate([pair.obs, pair.action]) for pair in (x, y))
        return jnp.exp(self.sharpness * (jnp.dot(x, y) / jnp.sqrt(jnp.dot(x, x) * jnp.dot(y, y)) - 1.0))


def test_empty_slots_are_never_asked():
    kernel, lam = Direction(), 1e-2
    obs, action = random_pairs(20, 4)
    post, _ = stream(kernel, lam, obs, action, np.ones(4), capacity=9)
    exact, _ = stream(kernel, lam, obs, action, np.ones(4))
    queries = random_pairs(21, 3)[0]
    for found, expected in zip(predict(kernel, lam, post, queries), predict(kernel, lam, exact, queries), strict=True):
        assert np.all(np.isfinite(found))
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_past_capacity_nothing_changes():
    kernel, lam = kqljax.RBF(eta=1.0), 1e-2
    obs, action = random_pairs(17, 6)
    post, updates = stream(kernel, lam, obs, action, np.ones(6), capacity=4)
    shorter, _ = stream(kernel, lam, obs[:4], action[:4], np.ones(4))
    np.testing.assert_array_equal(updates.is_stored, [True] * 4 + [False] * 2)
    for found, expected in zip(jax.tree.leaves(post), jax.tree.leaves(shorter), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_shrinking_is_refused():
    with pytest.raises(ValueError, match="cannot shrink a posterior from capacity 8 to 4"):
        gram.grow(gram.init(2, 3, 8), 4)


def test_stored_pairs_fill_in_order():
    obs, action = random_pairs(18, 3)
    post, _ = stream(kqljax.RBF(), 0.1, obs, action, np.arange(3.0), capacity=5)
    expected = pairs(obs, action)
    np.testing.assert_array_equal(post.pairs.obs[:3], expected.obs)
    np.testing.assert_array_equal(post.pairs.action[:3], expected.action)
    np.testing.assert_array_equal(post.targets, [0, 1, 2, 0, 0])
