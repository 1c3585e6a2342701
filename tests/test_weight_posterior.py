"""The weight-space posterior against batch ridge regression."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import random_pairs
from weight_cases import (
    assert_close,
    assert_same,
    batch_ridge,
    explicit,
    jit,
    make_map,
    psi_of,
)

import kqljax
from kqljax import features
from kqljax.arrays import in_dtype
from kqljax.posterior import weights


@functools.partial(jit, static_argnames=("capacity", "dtype"))
def stream(made, lam, obs, action, target, capacity, dtype="float64"):
    """Appends all pairs one by one; returns the posterior and each Update."""

    def body(post, pair):
        return weights.append(made, post, *pair)

    return jax.lax.scan(body, weights.init(made, lam, capacity, dtype), (obs, action, target))


@jit
def predict(made, lam, post, queries):
    return jax.vmap(lambda obs: weights.predict(made, lam, post, obs))(queries)


def data(seed, count):
    obs, action = random_pairs(seed, count)
    return obs, action, np.random.default_rng(seed + 100).normal(size=count)


@pytest.mark.parametrize(
    "name, dtype, lam, atol",
    [
        ("grouped", "float64", 1e-4, 1e-9),
        ("nystrom", "float64", 1e-4, 1e-9),
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
    mean, width = predict(made, lam, post, queries.astype(dtype))
    phi = explicit(made, obs)[np.arange(40), action]
    own = 0.0 if name == "linear" else 1.0
    expected_mean, expected_width = batch_ridge(phi, target, lam, explicit(made, queries), own)
    np.testing.assert_allclose(mean, expected_mean, rtol=0, atol=atol)
    np.testing.assert_allclose(width, expected_width, rtol=0, atol=atol)
    assert {leaf.dtype for leaf in (post.psi, post.root, post.weights, mean, width)} == {jnp.dtype(dtype)}
    # The width that an update reports is that of the new pair before it came, within the features.
    _, before = batch_ridge(phi[:20], target[:20], lam, phi[20], own=0.0)
    np.testing.assert_allclose(np.sqrt(updates.width_sq[20]), before, rtol=1e-3 if dtype == "float32" else 1e-7)


def test_before_any_data():
    made = make_map("grouped")
    # Also far from all that the features were made for.
    mean, width = predict(made, 0.04, weights.init(made, 0.04, 30), np.linspace(0, 9, 14).reshape(7, 2))
    np.testing.assert_array_equal(mean, np.zeros((7, 3)))
    np.testing.assert_allclose(width, np.full((7, 3), 5.0), rtol=1e-12)


@pytest.mark.parametrize("dtype, rtol", [("float64", 1e-9), ("float32", 1e-4)])
def test_condensed_rows_are_predictions(dtype, rtol):
    made, lam = make_map("nystrom"), 1e-3
    obs, action, target = data(5, 40)
    post, _ = stream(made, lam, obs.astype(dtype), action, target.astype(dtype), 30, dtype)
    states = jnp.asarray(random_pairs(6, 7)[0], dtype)
    psi = psi_of(in_dtype(made, dtype), states)
    whitened = weights.whiten(post, psi)
    mean, width = whitened @ post.white, jnp.linalg.norm(whitened, axis=-1)
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
    psi = psi_of(made, jnp.asarray(states))
    mean, width = predict(made, lam, post, states)
    table = weights.init_table(post, 2, 5)._replace(psi=psi, obs=jnp.asarray(states), mean=mean, width_sq=width**2)

    def both(carry, pair):
        post, table = carry
        post, update = weights.append(made, post, *pair)
        table = weights.refresh(post, table, update)
        return (post, table), table.width_sq

    (post, table), widths = jit(lambda *start: jax.lax.scan(both, start, (obs, action, target)))(post, table)
    mean, width = predict(made, lam, post, states)
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
    assert_same(predict(made, 1e-3, post, queries), predict(made, 1e-3, grown, queries))
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
    assert_close(predict(made, 1e-3, moved, queries), predict(made, 1e-3, again, queries), 1e-8)


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
    # 133 visits of each pair, or so: its squared width is near 1 / 133, whatever lam is, and what the features leave out.
    if spread == 0.0:
        left_out = np.maximum(1 - (explicit(made, queries[-2:]) ** 2).sum(axis=-1), 0) / lam
        assert np.all(trail[-1, -2:] ** 2 < 1 / 100 + left_out)


@functools.partial(jit, static_argnames="dtype")
def width_trail(made, lam, obs, action, queries, dtype):
    """Widths `[n, Q, A]` at the queries after each append."""

    def body(post, pair):
        post, _ = weights.append(made, post, *pair, 1.0)
        return post, jax.vmap(lambda query: weights.predict(made, lam, post, query)[1])(queries)

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
    phi = explicit(made, obs)
    queries = phi[::50].reshape(-1, made.num_weights)
    taken = phi[np.arange(len(obs)), action]
    _, expected = batch_ridge(taken, np.zeros(len(obs)), lam, queries, own=0.0)

    covariance = np.eye(made.num_weights, dtype=np.float32) / np.float32(lam)
    for feature in taken.astype(np.float32):
        direction = covariance @ feature
        covariance -= np.outer(direction, direction) / (1 + feature @ direction)
    naive_sq = np.einsum("qd,de,qe->q", queries.astype(np.float32), covariance, queries.astype(np.float32))
    naive = np.abs(np.sqrt(np.maximum(naive_sq, 0)) / expected - 1)

    post, _ = stream(made, lam, obs.astype(np.float32), action, np.zeros(len(obs), np.float32), 1, "float32")
    psi = psi_of(in_dtype(made, "float32"), obs[::50].astype(np.float32))
    width = np.sqrt(weights.at_features(weights.as_it_is(post), psi)[1]).ravel()
    assert width.dtype == np.float32
    own = np.abs(width / expected - 1)
    assert own.max() < 2e-4
    assert naive.max() > 0.02
    assert naive.max() > 100 * own.max()
