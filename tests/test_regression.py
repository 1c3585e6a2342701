"""Kernel ridge regression: against NumPy, driven step by step as Algorithm 1, on centres, and
batched.
"""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import recordings

from kqljax import regression


def gaussian(x, y, eta=1.0):
    return jnp.exp(-eta * jnp.sum((x[:, None] - y[None]) ** 2, axis=-1))


def inputs(count, seed=0, length=2):
    return jnp.asarray(np.random.default_rng(seed).uniform(-1, 1, (count, length)))


def test_algorithm_1_step_by_step():
    """With values and widths from before the factorisation, one backup a step is Algorithm 1."""
    task = "MountainCar-v0"
    gamma, lam, eta = 0.95, 1e-3, 0.3
    beta, end, num_actions = np.sqrt(lam) / (1 - gamma), 20.0, 3
    reference = oracle.Oracle(oracle.rbf(eta), num_actions, gamma, lam, beta, terminal_value=end)
    data = recordings.record(task, 60, reference)
    pairs = jnp.concatenate([data.obs, np.eye(num_actions)[data.action]], axis=1)
    points = jnp.concatenate(
        [
            jnp.concatenate([data.next_obs, np.tile(np.eye(num_actions)[a], (60, 1))], axis=1)
            for a in range(num_actions)
        ]
    )
    gram, cross = gaussian(pairs, pairs, eta), gaussian(pairs, points, eta)

    @jax.jit
    def step(count, weights):
        """One step of the loop, padded to 60: targets from the factor of before, then weights from
        the factor of now.
        """
        row = jnp.arange(60)
        before = regression.factor(gram, lam, row < count - 1)
        width = regression.std(before, cross) / jnp.sqrt(lam)
        optimistic = jnp.clip(cross.T @ weights + beta * width, 0.0, 1 / (1 - gamma)).reshape(
            num_actions, 60
        )
        value = jnp.where(data.terminated, end, jnp.max(optimistic, axis=0))
        now = regression.factor(gram, lam, row < count)
        weights = regression.solve(now, jnp.where(row < count, data.reward + gamma * value, 0.0))
        return weights, cross.T @ weights, regression.std(now, cross) / jnp.sqrt(lam)

    weights = jnp.zeros(60)
    for count in range(1, 61):
        weights, q_hat, width = step(count, weights)
    expected_q, expected_width, _ = reference.tables()
    np.testing.assert_allclose(q_hat.reshape(num_actions, 60).T, expected_q, atol=1e-9)
    np.testing.assert_allclose(width.reshape(num_actions, 60).T, expected_width, atol=1e-9)


def test_log_evidence_is_the_profiled_likelihood_of_a_gaussian_process():
    x = inputs(12)
    targets = np.random.default_rng(1).normal(size=(12, 2))
    covariance = np.asarray(gaussian(x, x)) + 0.1 * np.eye(12)
    found = float(
        regression.log_evidence(regression.factor(gaussian(x, x), 0.1), jnp.asarray(targets))
    )

    def likelihood(amplitudes):
        total = 0.0
        for y, amplitude in zip(targets.T, amplitudes, strict=True):
            scaled = amplitude * covariance
            total += -0.5 * y @ np.linalg.solve(scaled, y) - 0.5 * np.linalg.slogdet(scaled)[1]
        return total

    best = [y @ np.linalg.solve(covariance, y) / 12 for y in targets.T]
    assert likelihood(best) >= max(
        likelihood([1.1 * best[0], best[1]]), likelihood([best[0], 0.9 * best[1]])
    )
    np.testing.assert_allclose(
        found, likelihood(best) + 0.5 * 12 * 2, rtol=1e-10
    )  # but for a constant


def test_rows_that_are_masked_out_do_not_count():
    x, y = inputs(10), jnp.arange(10.0)
    q = inputs(4, seed=1)
    mask = jnp.arange(10) < 7
    padded = regression.factor(gaussian(x, x), 1e-3, mask)
    alone = regression.factor(gaussian(x[:7], x[:7]), 1e-3)
    np.testing.assert_allclose(
        regression.solve(padded, y)[:7], regression.solve(alone, y[:7]), rtol=1e-9
    )
    np.testing.assert_array_equal(regression.solve(padded, y)[7:], 0.0)
    np.testing.assert_allclose(
        regression.std(padded, gaussian(x, q)),
        regression.std(alone, gaussian(x[:7], q)),
        atol=1e-12,
    )
    np.testing.assert_allclose(
        regression.log_evidence(padded, y[:, None]),
        regression.log_evidence(alone, y[:7, None]),
        rtol=1e-12,
    )


def test_a_matrix_that_cannot_be_factored_is_flagged():
    fitted = regression.factor(-jnp.eye(3), 0.5)
    assert not bool(fitted.is_finite)
    assert bool(regression.factor(jnp.eye(3), 0.5).is_finite)


@pytest.mark.parametrize("shape", [(3,), (3, 4)])
def test_a_gram_matrix_that_is_not_square(shape):
    with pytest.raises(ValueError, match="gram must be square"):
        regression.factor(jnp.zeros(shape), 1e-3)
    with pytest.raises(ValueError, match="mask must have one entry for each of the 4 rows"):
        regression.factor(jnp.eye(4), 1e-3, jnp.ones(3, bool))


ROWS, ASKED = 90, 90


def spanned(x, asked, count, eta=1.0, **options):
    """Features of `count` of the stored inputs x and of as many others, in three blocks of rows."""
    rows = regression.Rows(jnp.int32(count), blocks=3, size=30, groups=2)
    points = jnp.concatenate([x.reshape(3, 30, -1), asked.reshape(3, 30, -1)], axis=1)
    found = regression.span(
        lambda r, index: gaussian(points[r], x[index], eta),
        lambda index: gaussian(x[index], x[index], eta),
        rows,
        **options,
    )
    return found, rows


def test_features_on_enough_centres_give_the_regression_on_all_pairs():
    x, asked = inputs(ROWS), inputs(ASKED, seed=1)
    targets = jnp.sin(3 * x[:, 0]) * x[:, 1]
    ridge = 1e-3
    found, rows = spanned(x, asked, ROWS, eta=0.3, most=64, block=8, tolerance=1e-9, jitter=1e-11)
    assert 2 <= int(found.blocks) < 8
    features, others = regression.dense(found, rows, 3, 64)
    others = others.reshape(ASKED, 64)
    fitted = regression.ridge_on_features(features, ridge)
    mean = others @ (fitted.operator(features) @ targets)
    exact = regression.factor(gaussian(x, x, 0.3), ridge)
    cross = gaussian(x, asked, 0.3)
    np.testing.assert_allclose(mean, cross.T @ regression.solve(exact, targets), atol=1e-6)
    residual = found.residual[:, 30:].reshape(-1)
    np.testing.assert_allclose(
        jnp.sqrt(residual + ridge * fitted.leverage(others)),
        regression.std(exact, cross),
        atol=1e-5,
    )


def test_centres_take_kernels_to_features():
    x, asked = inputs(ROWS), inputs(ASKED, seed=1)
    found, rows = spanned(x, asked, ROWS, most=32, block=8, tolerance=1e-6)
    _, others = regression.dense(found, rows, 3, 32)
    cross = gaussian(asked, x[found.pivot]) * found.is_used
    np.testing.assert_allclose(
        regression.solve_lower(found.lower, cross.T).T, others.reshape(ASKED, 32), atol=1e-6
    )


def test_what_the_centres_do_not_span_counts_as_not_known():
    """Pairs in one corner, asked in the opposite one: as wide as with all pairs, though no feature
    reaches there.
    """
    x = -0.9 + 0.1 * inputs(ROWS)
    asked = 0.9 + 0.1 * inputs(ASKED, seed=1)
    found, rows = spanned(x, asked, ROWS, eta=20.0, most=16, block=8, tolerance=1e-3)
    features, others = regression.dense(found, rows, 3, 16)
    leverage = regression.ridge_on_features(features, 1e-3).leverage(others.reshape(ASKED, 16))
    width = jnp.sqrt(found.residual[:, 30:].reshape(-1) + 1e-3 * leverage)
    exact = regression.std(regression.factor(gaussian(x, x, 20.0), 1e-3), gaussian(x, asked, 20.0))
    np.testing.assert_allclose(width, exact, rtol=0.01)
    assert float(width.min()) > 0.99


def test_fewer_stored_inputs_than_there_is_room_for():
    x, asked = inputs(ROWS), inputs(ASKED, seed=1)
    some, rows = spanned(x, asked, 40, most=32, block=8, tolerance=1e-6)
    other, _ = spanned(x.at[40:].set(7.0), asked, 40, most=32, block=8, tolerance=1e-6)
    assert int(jnp.max(jnp.where(some.is_used, some.pivot, 0))) < 40
    np.testing.assert_array_equal(some.pivot, other.pivot)
    np.testing.assert_array_equal(
        regression.dense(some, rows, 3, 32)[0], regression.dense(other, rows, 3, 32)[0]
    )
    np.testing.assert_array_equal(regression.dense(some, rows, 3, 32)[0][40:], 0.0)


def test_centres_of_another_width():
    x, asked = inputs(ROWS), inputs(ASKED, seed=1)
    narrow, rows = spanned(x, asked, ROWS, eta=1.0, most=64, block=8, tolerance=1e-8)
    pivots = narrow.pivot, narrow.is_used
    wide, _ = spanned(
        x,
        asked,
        ROWS,
        eta=0.1,
        most=64,
        block=8,
        tolerance=1e-6,
        pivots=pivots,
        work=narrow.features,
    )
    assert int(wide.blocks) < int(narrow.blocks)
    features, _ = regression.dense(wide, rows, 3, 64)
    np.testing.assert_allclose(features @ features.T, gaussian(x, x, 0.1), atol=1e-5)


def test_a_number_of_centres_that_blocks_do_not_fill():
    with pytest.raises(ValueError, match="most=20 centres are taken in blocks of 8"):
        spanned(inputs(ROWS), inputs(ASKED), ROWS, most=20, block=8, tolerance=1e-6)


def test_a_batch_is_each_one_alone():
    grams = jnp.stack(
        [gaussian(inputs(6, seed), inputs(6, seed)) + 0.1 * jnp.eye(6) for seed in range(4)]
    ).reshape(2, 2, 6, 6)
    right = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)))
    both = jax.jit(
        jax.vmap(jax.vmap(lambda gram: regression.solve_factored(regression.cholesky(gram), right)))
    )(grams)
    for i in range(2):
        for j in range(2):
            np.testing.assert_allclose(both[i, j], np.linalg.solve(grams[i, j], right), rtol=1e-9)


@pytest.mark.parametrize("platform, is_batched", [("cuda", True), ("tpu", True), ("cpu", False)])
def test_factorisations_are_batched_on_accelerators_and_a_loop_on_a_cpu(platform, is_batched):
    program = jax.jit(
        jax.vmap(lambda gram: regression.solve_factored(regression.cholesky(gram), jnp.eye(5)))
    )
    text = jax.export.export(program, platforms=[platform])(jnp.zeros((7, 5, 5))).mlir_module()
    assert ("while" not in text) == is_batched


def test_the_largest_of_a_batch_is_not_batched():
    def count(n):
        return jax.lax.fori_loop(0, regression.largest(n), lambda i, total: total + 1, 0)

    found = jax.jit(jax.vmap(jax.vmap(count)))(jnp.array([[1, 5], [3, 2]]))
    np.testing.assert_array_equal(found, 5)


def test_at_size_takes_the_first_that_holds():
    sizes = ((2, 1), (4, 1), (4, 4))
    found = jax.jit(lambda a, b: regression.at_size((a, b), sizes, lambda x, y: jnp.array([x, y])))
    for counts, expected in (
        ((1, 1), (2, 1)),
        ((2, 0), (2, 1)),
        ((3, 1), (4, 1)),
        ((1, 2), (4, 4)),
        ((9, 9), (4, 4)),
    ):
        assert tuple(found(*counts)) == expected
