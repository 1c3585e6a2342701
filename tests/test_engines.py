"""Both engines as ridge regression: batch solves, both precisions, vmap, derivatives.

With gamma = 0 the targets of Algorithm 1 are the rewards, so that the batch solution is known.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    KERNELS,
    assert_close,
    config,
    jit,
    joined,
    learn,
    make_map,
    predict,
    random_pairs,
    random_transitions,
    row,
    step,
)

import kqljax
from kqljax import features, kql_init, kql_predict, kql_step
from kqljax._arrays import in_dtype

STEPS = 24


class Direction(kqljax.Kernel):
    """Defined wherever [s, a] has a direction, which an empty slot has not."""

    sharpness: float = 1.0

    def evaluate(self, x, y):
        x, y = (jnp.concatenate([pair.obs, pair.action]) for pair in (x, y))
        return jnp.exp(
            self.sharpness * (jnp.dot(x, y) / jnp.sqrt(jnp.dot(x, x) * jnp.dot(y, y)) - 1.0)
        )


def _direction(x, y, length):
    norms = [np.linalg.norm(each, axis=1, keepdims=True) for each in (x, y)]
    return np.exp((x / norms[0]) @ (y / norms[1]).T - 1)


EXACT = {
    name: KERNELS[name][:2]
    for name in ("rbf", "linear", "matern32", "user", "sum", "product with shift")
} | {"direction": (Direction(), _direction)}
"""Kernels with one term, several, a shift, a term for each action, no value at zero."""

OF_MAPS = {
    "taylor": KERNELS["rbf"][1],
    "nystrom": KERNELS["rbf"][1],
    "fourier": KERNELS["rbf"][1],
    "linear": KERNELS["linear"][1],
}
"""NumPy forms of the kernels that the maps stand for, up to their width."""

CASES = tuple(f"exact {name}" for name in EXACT) + tuple(f"map {name}" for name in OF_MAPS)


def setting(case, lam=1e-2, steps=STEPS):
    kind, name = case.split(" ", 1)
    changes = {"gamma": 0.0, "lam": lam, "beta": 0.1, "horizon": steps}
    return config(kernel=EXACT[name][0], **changes) if kind == "exact" else config(name, **changes)


def gram(case, cfg, x, y):
    """The kernel of the regression between joined pairs, in NumPy."""
    kind, name = case.split(" ", 1)
    if kind == "exact":
        return EXACT[name][1](x, y, 2)
    return explicit(cfg.engine.features, x) @ explicit(cfg.engine.features, y).T


@jit
def psi_of(made, obs):
    return jax.vmap(made.psi)(obs)


def explicit(made, pairs):
    """Features R[a]^T psi(s) `[N, D]` of joined pairs, in NumPy."""
    psi = np.asarray(psi_of(made, jnp.asarray(pairs[:, : made.obs_dim])))
    return np.einsum(
        "nm,nmd->nd", psi, np.asarray(made.root)[pairs[:, made.obs_dim :].argmax(axis=1)]
    )


def batch(case, cfg, transitions, queries):
    """Mean and width `[Q, A]` by a dense solve."""
    stored = joined(np.asarray(transitions.obs), np.asarray(transitions.action))
    asked = joined(np.repeat(queries, 3, axis=0), np.tile(np.arange(3), len(queries)))
    system = gram(case, cfg, stored, stored) + cfg.lam * np.eye(len(stored))
    cross = gram(case, cfg, stored, asked)
    # What a map leaves out of k(x, x) is never learned.
    of_kernel = EXACT["linear"][1] if "linear" in case else lambda x, y, length: np.ones((1, 1))
    own = (
        gram(case, cfg, asked, asked)
        if case.startswith("exact")
        else of_kernel(asked, asked, 2) * np.eye(len(asked))
    )
    mean = cross.T @ np.linalg.solve(system, np.asarray(transitions.reward))
    explained = (cross * np.linalg.solve(system, cross)).sum(axis=0)
    return mean.reshape(-1, 3), np.sqrt(np.maximum(np.diag(own) - explained, 0) / cfg.lam).reshape(
        -1, 3
    )


@jit
def trail(cfg, state, transitions, queries):
    """The last state; after each step its KQLInfo, mean and width `[N, Q, A]` at the queries."""

    def body(state, transition):
        state, info = kql_step(cfg, state, transition)
        return state, (info, *kql_predict(cfg, state, queries))

    return jax.lax.scan(body, state, transitions)


QUERIES = random_pairs(2, 5)[0]
IS_BAD = np.arange(STEPS) % 6 == 2


@functools.cache
def ran(case):
    """A run with a bad transition now and then: config, transitions, last state, `trail`."""
    cfg, data = setting(case), random_transitions(STEPS, seed=1)
    reward = jnp.where(IS_BAD, 2.0, data.reward)
    data = data._replace(reward=reward, obs=data.obs.at[2].set(jnp.nan))
    return cfg, data, *trail(cfg, kql_init(cfg, 2), data, QUERIES)


def kept(data, count):
    """The good ones of the first `count`."""
    return jax.tree.map(lambda leaf: leaf[:count][~IS_BAD[:count]], data)


@pytest.mark.parametrize("case", CASES)
def test_incremental_equals_batch(case):
    """Predictions on the way, tables at the end, and nothing from refused transitions."""
    cfg, data, state, (info, mean, width) = ran(case)
    np.testing.assert_array_equal(info.is_stored, ~IS_BAD)
    assert int(state.num_stored) == (~IS_BAD).sum()
    for count in (1, 10, STEPS):
        expected = batch(case, cfg, kept(data, count), QUERIES)
        np.testing.assert_allclose(mean[count - 1], expected[0], rtol=0, atol=1e-9)
        np.testing.assert_allclose(width[count - 1], expected[1], rtol=0, atol=1e-7)
    after = np.flatnonzero(IS_BAD)
    np.testing.assert_array_equal(mean[after], mean[after - 1])
    np.testing.assert_array_equal(width[after], width[after - 1])
    assert np.all(width >= 0) and np.all(np.diff(width, axis=0) <= 1e-7)
    assert bool(info.is_finite.all()) and float(info.residual.max()) < 1e-10
    rows = batch(case, cfg, kept(data, STEPS), np.asarray(data.next_obs))
    np.testing.assert_allclose(state.q_hat[~IS_BAD], rows[0][~IS_BAD], rtol=0, atol=1e-9)
    np.testing.assert_allclose(state.width[~IS_BAD], rows[1][~IS_BAD], rtol=0, atol=1e-7)


@pytest.mark.parametrize("spread, lam", [(1e-3, 1e-4), (1e-8, 1e-4), (0.0, 1.0)])
@pytest.mark.parametrize("case", CASES)
def test_near_duplicates_in_any_order(case, spread, lam):
    """Widths stay finite and do not rise; nothing depends on the order of the data."""
    cfg, data = setting(case, lam), random_transitions(STEPS, seed=3)
    data = data._replace(obs=data.obs[:1] + spread * (data.obs - data.obs[:1]))
    queries = np.concatenate([QUERIES[:3], data.obs[:2]])
    _, (info, mean, width) = trail(cfg, kql_init(cfg, 2), data, queries)
    assert np.all(np.isfinite(width)) and np.all(width >= 0)
    assert np.all(np.diff(width, axis=0) <= 1e-7 / np.sqrt(lam))
    assert bool(info.is_stored.all() & info.is_finite.all())
    shuffled = jax.tree.map(lambda leaf: leaf[np.random.default_rng(0).permutation(STEPS)], data)
    _, (_, other, other_width) = trail(cfg, kql_init(cfg, 2), shuffled, queries)
    expected = batch(case, cfg, data, queries)
    for found in (mean[-1], other[-1]):
        np.testing.assert_allclose(found, expected[0], rtol=0, atol=1e-6)
    # A width near 0 is the root of a difference of numbers near 1.
    for found in (width[-1], other_width[-1]):
        np.testing.assert_allclose(found**2, expected[1] ** 2, rtol=0, atol=1e-11 / lam)


FLOAT32 = {
    # lam, and what is allowed of means in [0, 1] and, as a share, of widths
    "exact rbf": (0.1, 1e-5, 1e-5),
    "map taylor": (1e-4, 1e-3, 1e-3),
    "map nystrom": (1e-4, 1e-3, 1e-3),
}


@pytest.mark.parametrize("case", FLOAT32)
def test_float32_agrees_with_a_batch_solve_in_float64(case):
    lam, atol, rtol = FLOAT32[case]
    cfg, data = setting(case, lam), random_transitions(STEPS, seed=4)
    state, (info, mean, width) = trail(cfg, kql_init(cfg, 2, jnp.float32), data, QUERIES)
    assert mean.dtype == width.dtype == state.q_hat.dtype == jnp.float32
    expected = batch(case, cfg, data, QUERIES)
    np.testing.assert_allclose(mean[-1], expected[0], rtol=0, atol=atol)
    np.testing.assert_allclose(width[-1], expected[1], rtol=rtol)
    assert bool(info.is_sound.all()) and float(info.residual.max()) < atol
    assert np.all(np.diff(width, axis=0) <= 1e-5 * width[:-1])


VISITED = [
    ("exact rbf", "float64", 1e-4),
    ("exact rbf", "float32", 0.1),
    ("map taylor", "float32", 1e-4),
]


@pytest.mark.parametrize("case, dtype, lam", VISITED)
def test_hundreds_of_visits_of_a_few_places(case, dtype, lam):
    """Sixteen visits of each of 18 pairs or so: the width falls to 1 / sqrt(visits)."""
    steps = 300
    cfg, rng = setting(case, lam, steps), np.random.default_rng(0)
    places = random_pairs(1, 6)[0]
    data = random_transitions(steps)._replace(obs=jnp.asarray(places[rng.integers(0, 6, steps)]))
    data = data._replace(obs=data.obs + 1e-7 * rng.normal(size=(steps, 2)))
    state, (info, _, width) = trail(cfg, kql_init(cfg, 2, dtype), data, places)
    assert bool(info.is_sound.all()) and np.all(np.isfinite(state.q_hat)) and np.all(width >= 0)
    slack = 1e-9 if dtype == "float64" else 2e-3
    assert np.all(np.diff(width, axis=0) <= slack)
    left_out = 0.0
    if case == "map taylor":
        phi = explicit(make_map("taylor"), joined(places, np.zeros(6, int)))
        left_out = np.maximum(1 - (phi**2).sum(axis=1), 0)
    most = 1 / 6 + 1.01 * left_out / lam
    squared = width[-1].T ** 2
    assert np.all(squared < most)


def test_the_whitener_inverts_the_system():
    cfg, data, state, _ = ran("exact rbf")
    (factor,) = state.posterior.whitener
    stored = kept(data, STEPS)
    pairs = joined(np.asarray(stored.obs), np.asarray(stored.action))
    own = factor[~IS_BAD][:, ~IS_BAD]
    system = EXACT["rbf"][1](pairs, pairs, 2) + cfg.lam * np.eye(len(pairs))
    np.testing.assert_allclose(own @ system @ own.T, np.eye(len(pairs)), atol=1e-9)
    np.testing.assert_array_equal(factor, np.tril(factor))
    np.testing.assert_array_equal(factor[IS_BAD], 0)


@pytest.mark.parametrize("dtype, atol", [("float64", 1e-9), ("float32", 2e-3)])
@pytest.mark.parametrize("case", ["exact rbf", "map taylor", "map nystrom"])
def test_a_predictor_for_many_questions_says_the_same(case, dtype, atol):
    cfg, _, state, _ = ran(case)
    engine, posterior, queries = in_dtype(
        (cfg.engine, state.posterior, jnp.asarray(QUERIES)), dtype
    )

    @jit
    def ask(engine, posterior, queries):
        both = [engine.predictor(posterior, reuse) for reuse in (False, True)]
        return [engine.predict(each, queries) for each in both]

    once, often = ask(engine, posterior, queries)
    assert once.mean.shape == once.width_sq.shape == (3, len(QUERIES))
    assert once.mean.dtype == often.mean.dtype == dtype
    assert_close(often, once, atol)


@pytest.mark.parametrize("engine", ["exact", "taylor"])
def test_members_of_different_age_in_one_vmap(engine):
    """All write to one slot; those with fewer pairs leave some empty, and predict as alone."""
    cfg, data = config(engine), random_transitions(12, seed=8)
    alone = []
    for age in (1, 3, 7):
        state = kql_init(cfg, 2)
        for i in range(age):
            state, _ = step(cfg, state, row(data, i))
        alone.append(state)
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)
    batched = jit(jax.vmap(kql_step, in_axes=(None, 0, None)))
    for i in range(7, 10):
        together, info = batched(cfg, together, row(data, i))
        assert bool(info.is_stored.all())
        alone = [step(cfg, state, row(data, i))[0] for state in alone]
    np.testing.assert_array_equal(together.posterior.next_slot, 10)
    np.testing.assert_array_equal(together.num_stored, [4, 6, 10])
    for i, state in enumerate(alone):
        found = predict(cfg, row(together, i), data.obs)
        assert_close(found, predict(cfg, state, data.obs), 1e-8)
    assert_close(together.q_hat[1][7:10], alone[1].q_hat[3:6], 1e-8)
    assert_close(together.width[1][7:10], alone[1].width[3:6], 1e-7)


# The certificate ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case, lam", [("exact rbf", 1e-6), ("map taylor", 1e-12)])
def test_the_residual_shows_what_float32_cannot_do(case, lam):
    """A lam far too small, unseen inside of jit: the residual is small in float64 only."""
    cfg, data = setting(case, lam, 200), random_transitions(200, seed=10)
    data = data._replace(obs=0.1 * data.obs)
    states = [
        jit(lambda cfg, dtype=dtype: kql_init(cfg, 2, dtype))(cfg)
        for dtype in ("float64", "float32")
    ]
    wide, narrow = (learn(cfg, state, data)[1] for state in states)
    assert bool(wide.is_finite.all())
    assert float(wide.residual.max()) < 1e-4
    assert not bool(narrow.is_finite.all()) or float(narrow.residual.max()) > 1e-2


# What the features leave out ---------------------------------------------------------------------

NARROW = kqljax.RBF(eta=20.0)
LEFT, RIGHT = np.linspace(-1.0, -0.2, 9)[:, None], np.linspace(0.3, 1.0, 9)[:, None]
MADE_ON_THE_LEFT = {
    # a map, and the dtype of the state
    "nystrom": (lambda: features.nystrom(NARROW, LEFT, 2), "float32"),
    "nystrom of a scaled product": (
        lambda: features.nystrom(0.5 * (kqljax.RBF(eta=5.0) * kqljax.RBF(eta=15.0)), LEFT, 2),
        "float64",
    ),
    "taylor of a low order": (lambda: features.taylor(NARROW, 1, 2, order=12), "float32"),
    "fourier of matern": (
        lambda: features.fourier(kqljax.Matern32(length_scale=0.15), 1, 2),
        "float64",
    ),
}


@pytest.mark.parametrize("name", MADE_ON_THE_LEFT)
def test_an_unseen_state_is_unknown(name):
    """Nine states on the left are seen ten times with both actions, none on the right."""
    make, dtype = MADE_ON_THE_LEFT[name]
    made, lam = make(), 1e-3
    cfg = kqljax.KQLConfig(
        kernel=made.kernel, num_actions=2, horizon=180, lam=lam, engine=kqljax.Weights(made)
    )
    seen = kqljax.Transition(
        obs=jnp.asarray(np.tile(LEFT, (20, 1))),
        action=jnp.repeat(jnp.arange(2, dtype=jnp.int32), 90),
        reward=jnp.full(180, 0.5),
        next_obs=jnp.asarray(np.tile(np.concatenate([LEFT, RIGHT]), (10, 1))),
        terminated=jnp.zeros(180, bool),
    )
    state, _ = learn(cfg, kql_init(cfg, 1, dtype), seen)
    pair = kqljax.Pair(jnp.ones(1), jnp.array([1.0, 0.0]))
    unknown = np.sqrt(float(made.kernel.evaluate(pair, pair)) / lam)
    np.testing.assert_allclose(predict(cfg, state, RIGHT)[1], unknown, rtol=0.1)
    np.testing.assert_allclose(state.width[9:18], unknown, rtol=0.1)
    # And what was seen is known: ten visits of a pair, and of its neighbours.
    if "low order" not in name:
        assert float(predict(cfg, state, LEFT)[1].max()) < 0.5


def test_random_fourier_features_run_out():
    """400 places in the left of a square: with 64 frequencies the right seems half known."""
    rng = np.random.default_rng(1)
    made = features.fourier(NARROW, 2, 2, 64)
    cfg = kqljax.KQLConfig(
        kernel=NARROW, num_actions=2, horizon=400, lam=1e-3, engine=kqljax.Weights(made)
    )
    seen = random_transitions(400, num_actions=2)
    seen = seen._replace(obs=jnp.asarray(rng.uniform(-1, 1, (400, 2)) * [0.4, 1] - [0.6, 0]))
    state, _ = learn(cfg, kql_init(cfg, 2), seen)
    width = predict(cfg, state, rng.uniform([0.4, -1], 1, (50, 2)))[1]
    np.testing.assert_allclose(width.mean(), 0.45 / np.sqrt(1e-3), rtol=0.1)


# Why a square root -------------------------------------------------------------------------------


def pendulum(steps):
    """States [cos, sin, velocity / 8] of a pendulum under held torques, visited over and over."""
    rng = np.random.default_rng(0)
    angle, velocity, action = 2.0, 0.0, 0
    states, actions = [], []
    for _ in range(steps):
        action = int(rng.integers(3)) if rng.random() < 0.1 else action
        states.append((np.cos(angle), np.sin(angle), velocity / 8))
        actions.append(action)
        velocity = np.clip(velocity + 0.05 * (15 * np.sin(angle) + 6 * (action - 1)), -8, 8)
        angle += 0.05 * velocity
    return np.array(states), np.array(actions, np.int32)


def test_the_square_root_keeps_float32_where_the_covariance_does_not():
    """The textbook's update, W - (W f)(W f)^T / (1 + f^T W f), loses in float32 what S keeps."""
    made, lam, steps = features.taylor(kqljax.RBF(eta=1.0), 3, 3, order=6), 1e-4, 1000
    obs, action = pendulum(steps)
    phi = explicit(made, joined(obs, action))
    queries = phi[::50]
    inverse = np.linalg.inv(np.linalg.cholesky(phi.T @ phi + lam * np.eye(made.num_weights)))
    expected = np.linalg.norm(inverse @ queries.T, axis=0)

    covariance = np.eye(made.num_weights, dtype=np.float32) / np.float32(lam)
    for feature in phi.astype(np.float32):
        direction = covariance @ feature
        covariance -= np.outer(direction, direction) / (1 + feature @ direction)
    naive_sq = np.einsum(
        "qd,de,qe->q", queries.astype(np.float32), covariance, queries.astype(np.float32)
    )
    naive = np.abs(np.sqrt(np.maximum(naive_sq, 0)) / expected - 1)

    cfg = kqljax.KQLConfig(
        kernel=made.kernel,
        num_actions=3,
        horizon=steps,
        lam=lam,
        gamma=0.0,
        engine=kqljax.Weights(made),
    )
    still = jnp.zeros(steps)
    seen = kqljax.Transition(
        jnp.asarray(obs), jnp.asarray(action), still, jnp.asarray(obs), still > 0
    )
    state, _ = learn(cfg, kql_init(cfg, 3, jnp.float32), seen)
    root = np.asarray(state.posterior.root)
    assert root.dtype == np.float32
    psi = np.asarray(psi_of(made, jnp.asarray(obs[::50])), np.float32)
    width = np.linalg.norm(
        np.einsum("qm,qmd->qd", psi, np.moveaxis(root, 1, 0)[action[::50]]), axis=1
    )
    own = np.abs(width / expected - 1)
    assert own.max() < 2e-4
    assert naive.max() > 0.02
    assert naive.max() > 100 * own.max()


# Derivatives -------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["exact", "taylor"])
def test_forward_derivative_by_the_width_of_the_kernel(engine):
    data = random_transitions(8, seed=11)

    def value(eta):
        kernel = kqljax.RBF(eta=eta)
        used = kqljax.Exact()
        if engine == "taylor":
            used = kqljax.Weights(features.taylor(kernel, 2, 3, order=4))
        cfg = kqljax.KQLConfig(kernel=kernel, num_actions=3, horizon=8, lam=0.1, engine=used)
        state, _ = jax.lax.scan(lambda s, t: kql_step(cfg, s, t), kql_init(cfg, 2), data)
        q_hat, width = kql_predict(cfg, state, data.obs[0])
        return jnp.sum(q_hat) + jnp.sum(width)

    eta, step = 0.4, 1e-5
    found = jit(lambda eta: jax.jvp(value, (eta,), (1.0,))[1])(eta)
    at = jit(value)
    expected = (at(eta + step) - at(eta - step)) / (2 * step)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert abs(float(found)) > 1e-3
