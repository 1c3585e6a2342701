"""Section 3.1 of the paper on random data: two routes to each number, identities, inequalities."""

import cases
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings

import kqljax
from kqljax import features, theory
from kqljax.training import EveryStep

COUNT, LENGTH, ACTIONS = 12, 2, 3
KERNELS = {
    "rbf": lambda eta: kqljax.RBF(eta=eta),
    "linear": lambda eta: kqljax.Linear(),
    "matern": lambda eta: kqljax.Matern32(length_scale=1.0 / (eta + 0.1)),
    "user": lambda eta: cases.Cosine(weight=eta),
}

scales = st.floats(-6, 1).map(lambda x: 10.0**x)
widths = st.floats(0.01, 5.0)
seeds = st.integers(0, 2**32 - 1)
kinds = st.sampled_from(sorted(KERNELS))
discounts = st.floats(0.0, 0.99)
checked = settings(max_examples=40, deadline=None)


def draw_pairs(seed):
    """Random pairs, some of them twice and some close together: the worst cases are not uniform."""
    rng = np.random.default_rng(seed)
    obs, actions = cases.random_pairs(seed, COUNT, LENGTH, ACTIONS)
    chosen = rng.integers(COUNT, size=COUNT) if rng.random() < 0.5 else np.arange(COUNT)
    return (obs * rng.choice([1e-3, 0.3, 1.0]))[chosen], actions[chosen]


@jax.jit
def _gram(kernel, obs, actions):
    pairs = kqljax.Pair(obs, jnp.eye(ACTIONS)[actions])
    return kernel.matrix(pairs, pairs)


def gram_matrix(kernel, obs, actions):
    return np.asarray(_gram(kernel, obs, actions))


def widths_before(matrix, lam):
    """Squared widths `[n + 1, n]`: row t is of every pair after the first t pairs were stored."""
    rows = []
    for t in range(len(matrix) + 1):
        cross = matrix[:t]
        solved = np.linalg.solve(cross[:, :t] + lam * np.eye(t), cross)
        rows.append((np.diag(matrix) - np.sum(cross * solved, axis=0)) / lam)
    return np.array(rows)


@checked
@given(seeds, kinds, widths, scales)
def test_two_routes_to_each_dimension(seed, kind, eta, lam):
    kernel, (obs, actions) = KERNELS[kind](eta), draw_pairs(seed)
    matrix = gram_matrix(kernel, obs, actions)
    solved = np.linalg.solve(matrix + lam * np.eye(COUNT), matrix)
    effective = theory.effective_dimension(kernel, obs, actions, lam, ACTIONS)
    pseudo = theory.pseudo_dimension(kernel, obs, actions, lam, ACTIONS)
    np.testing.assert_allclose(effective, np.trace(solved), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(
        pseudo, np.linalg.slogdet(np.eye(COUNT) + matrix / lam)[1], rtol=1e-6, atol=1e-8
    )
    # d_eff sums squared widths under the last W, d_pse sums ln(1 + Gamma^2) as pairs come.
    squared = widths_before(matrix, lam)
    np.testing.assert_allclose(squared[-1].sum(), effective, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(np.log1p(np.diag(squared)).sum(), pseudo, rtol=1e-5, atol=1e-7)


@checked
@given(seeds, kinds, widths, scales, st.floats(1.01, 100))
def test_monotone_in_data_and_scale_and_bounded(seed, kind, eta, lam, factor):
    kernel, (obs, actions) = KERNELS[kind](eta), draw_pairs(seed)
    effective = theory.effective_dimension(kernel, obs, actions, lam, ACTIONS)
    pseudo = theory.pseudo_dimension(kernel, obs, actions, lam, ACTIONS)
    slack = 1e-9
    assert 0 <= effective <= COUNT
    assert (
        theory.effective_dimension(kernel, obs[:-1], actions[:-1], lam, ACTIONS)
        <= effective + slack
    )
    assert theory.pseudo_dimension(kernel, obs[:-1], actions[:-1], lam, ACTIONS) <= pseudo + slack
    assert (
        theory.effective_dimension(kernel, obs, actions, factor * lam, ACTIONS) <= effective + slack
    )
    assert theory.pseudo_dimension(kernel, obs, actions, factor * lam, ACTIONS) <= pseudo + slack
    assert effective <= pseudo + slack
    assert pseudo <= np.log(np.e * (COUNT + lam) / lam) * effective + slack
    order = np.random.default_rng(seed).permutation(COUNT)
    np.testing.assert_allclose(
        theory.effective_dimension(kernel, obs[order], actions[order], lam, ACTIONS),
        effective,
        rtol=1e-9,
        atol=1e-9,
    )


@checked
@given(seeds, kinds, widths, scales, discounts)
def test_discounted_sum_of_squared_widths(seed, kind, eta, lam, gamma):
    kernel, (obs, actions) = KERNELS[kind](eta), draw_pairs(seed)
    squared = widths_before(gram_matrix(kernel, obs, actions), lam)[:-1]
    tau, i = np.arange(COUNT)[:, None], np.arange(COUNT)[None, :]
    total = np.where(tau <= i, gamma ** np.maximum(i - tau, 0) * squared, 0.0).sum()
    bound = theory.sum_of_widths_bound(
        theory.pseudo_dimension(kernel, obs, actions, lam, ACTIONS), lam, gamma
    )
    assert total <= bound * (1 + 1e-9)


def test_the_discounted_sum_comes_close_to_its_bound():
    """New states that are met again and again: the constant 1/lam cannot be made much smaller."""
    gamma, lam, repeats, blocks = 0.5, 1e-40, 20, 20
    state = np.repeat(np.arange(blocks), repeats)
    count, tau = np.zeros((blocks * repeats, blocks)), np.arange(blocks * repeats)
    for t in tau[1:]:
        count[t] = count[t - 1]
        count[t, state[t - 1]] += 1
    squared = 1.0 / (count[:, state] + lam)
    total = np.where(
        tau[:, None] <= tau, gamma ** np.maximum(tau - tau[:, None], 0.0) * squared, 0.0
    ).sum()
    pseudo = blocks * np.log1p(repeats / lam)
    assert 0.9 < total / theory.sum_of_widths_bound(pseudo, lam, gamma) <= 1


@checked
@given(seeds, kinds, widths, scales)
def test_norms_of_functions(seed, kind, eta, lam):
    """||f|| / sqrt(lam + T) <= ||f||_W <= ||f|| / sqrt(lam); widths are >= 1/(2 sqrt(T + lam))."""
    kernel, (obs, actions) = KERNELS[kind](eta), draw_pairs(seed)
    both = np.concatenate([obs, cases.random_pairs(seed + 1, COUNT, LENGTH, ACTIONS)[0]])
    acts = np.concatenate([actions, cases.random_pairs(seed + 1, COUNT, LENGTH, ACTIONS)[1]])
    matrix = gram_matrix(kernel, both, acts)
    stored, cross, other = matrix[:COUNT, :COUNT], matrix[:COUNT, COUNT:], matrix[COUNT:, COUNT:]
    assume(np.diag(matrix).max() <= 1 + 1e-9)
    f = np.random.default_rng(seed).normal(size=COUNT)
    norm = f @ other @ f
    under_w = (norm - (cross @ f) @ np.linalg.solve(stored + lam * np.eye(COUNT), cross @ f)) / lam
    tolerance = 1e-9 * norm / lam
    assert norm / (lam + COUNT) - tolerance <= under_w <= norm / lam + tolerance
    if np.diag(matrix).min() >= 0.25:
        squared = widths_before(stored, lam)[:-1]
        assert np.sqrt(np.min(squared)) >= (1 - 1e-6) / (2 * np.sqrt(COUNT + lam))


@pytest.mark.parametrize("kind", ["rbf", "linear"])
def test_bounds_of_the_lemmas_hold(kind):
    kernel = KERNELS[kind](0.3)
    obs, actions = cases.random_pairs(3, 300, LENGTH, ACTIONS)
    for lam in (1e-8, 1e-4, 1.0, 500.0):
        found = theory.effective_dimension(kernel, obs, actions, lam)
        bound = theory.effective_dimension_bound(
            kernel, 300, lam, obs_dim=LENGTH, num_actions=ACTIONS
        )
        assert found <= bound * (1 + 1e-9) and bound <= 300
    if kind == "linear":
        # Tight: the features span exactly l + A dimensions.
        assert theory.effective_dimension(kernel, obs, actions, 1e-8) == pytest.approx(
            LENGTH + ACTIONS, abs=1e-4
        )
        assert (
            theory.effective_dimension_bound(kernel, 300, 1e-8, obs_dim=LENGTH, num_actions=ACTIONS)
            == LENGTH + ACTIONS
        )


def test_gaussian_bound_matches_the_formula():
    """On a ball of radius 1: eta R^2 and d = l + A - 1, where n does not cut it off."""
    kernel, n, lam = kqljax.RBF(eta=0.1), 10**6, 1.0
    d, eta = 1, 0.1 * (1 + 1 - 1.0)
    expected = 3 * (6 + 41 / d * eta + 3 / d * np.log(n / lam)) ** d
    assert theory.effective_dimension_bound(
        kernel, n, lam, obs_dim=1, num_actions=1
    ) == pytest.approx(expected)
    assert (
        theory.effective_dimension_bound(kqljax.Matern32(), 50, lam, obs_dim=2, num_actions=3) == 50
    )


# Of a run --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short_run():
    task = kqljax.make_task("MountainCar-v0")
    cfg = task.config(horizon=60)
    run = jax.jit(lambda key: kqljax.train(key, task, EveryStep(cfg, 2), 50))(jax.random.key(3))
    return cfg, run


def test_dimensions_of_a_running_state(short_run):
    cfg, run = short_run
    post = run.state.posterior
    taken = np.asarray(post.action) >= 0
    obs, actions = np.asarray(post.obs).T[taken], np.asarray(post.action)[taken]
    found = jax.jit(theory.state_dimensions)(cfg, run.state)
    over_time = theory.dimensions_over_time(cfg, run.state)
    for n in (1, 7, 23, 50):
        effective = theory.effective_dimension(cfg.kernel, obs[:n], actions[:n], cfg.lam, 3)
        pseudo = theory.pseudo_dimension(cfg.kernel, obs[:n], actions[:n], cfg.lam, 3)
        np.testing.assert_allclose(over_time.effective[n - 1], effective, rtol=1e-7)
        np.testing.assert_allclose(over_time.pseudo[n - 1], pseudo, rtol=1e-7)
    np.testing.assert_allclose(found.effective, over_time.effective[-1])
    np.testing.assert_allclose(found.pseudo, over_time.pseudo[-1])
    np.testing.assert_allclose(
        theory.pseudo_dimension_over_time(run.log.info), over_time.pseudo[:50], rtol=1e-6
    )


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-5), ("float32", 2e-2)])
def test_dimensions_of_a_state_with_features(dtype, tolerance):
    task = kqljax.make_task("MountainCar-v0")
    cfg = task.config(
        horizon=50, engine=kqljax.Weights(features.taylor(kqljax.RBF(eta=task.eta), 2, 3, 1e-6))
    )
    run = jax.jit(lambda key: kqljax.train(key, task, cfg, 50, dtype=dtype))(jax.random.key(3))
    exact = task.config(horizon=50)
    # The same transitions through the exact engine's state.
    post = run.state.posterior
    root = np.asarray(cfg.engine.features.root)
    rooted = np.einsum("mt,ta,amd->td", post.psi, np.eye(3)[post.action], root)
    values = np.linalg.eigvalsh(rooted.astype(np.float64) @ rooted.astype(np.float64).T)
    found = theory.state_dimensions(cfg, run.state)
    np.testing.assert_allclose(
        found.effective, (values / (values + exact.lam)).sum(), rtol=tolerance
    )
    np.testing.assert_allclose(
        found.pseudo, np.log1p(np.maximum(values, 0) / exact.lam).sum(), rtol=tolerance
    )
    np.testing.assert_allclose(
        theory.pseudo_dimension_over_time(run.log.info)[-1], found.pseudo, rtol=tolerance
    )
    with pytest.raises(ValueError, match="reads the pairs that the exact engine stores"):
        theory.dimensions_over_time(cfg, run.state)


# Inputs --------------------------------------------------------------------------------------


def test_no_data_is_dimension_zero(short_run):
    nothing = np.zeros((0, 2)), np.zeros((0,), int)
    assert theory.effective_dimension(kqljax.RBF(), *nothing, 1.0) == 0
    assert theory.pseudo_dimension(kqljax.RBF(), *nothing, 1.0) == 0
    assert theory.state_dimensions(short_run[0], kqljax.kql_init(short_run[0], 2)) == (0, 0)


def test_arithmetic_is_float64_or_refused():
    obs, actions = cases.random_pairs(0, 40)
    obs, wide = obs.astype(np.float32), theory.effective_dimension(kqljax.RBF(), obs, actions, 1e-6)
    with jax.enable_x64(False):
        narrow = theory.effective_dimension(kqljax.RBF(), obs, actions, 1e-6)
    assert narrow == pytest.approx(wide, rel=1e-3)  # of rounded observations
    inside = jax.jit(lambda obs: theory.effective_dimension(kqljax.RBF(), obs, actions, 1e-6))
    assert inside(obs.astype(np.float64)) == pytest.approx(narrow, rel=1e-9)
    with pytest.raises(ValueError, match="want float64 states, got float32"):
        inside(obs)
    with pytest.raises(ValueError, match="give num_actions="):
        jax.jit(lambda a: theory.effective_dimension(kqljax.RBF(), obs, a, 1e-3))(actions)


@pytest.mark.parametrize("lam", [0.0, -1.0, np.nan, np.inf])
def test_scale_out_of_range(lam):
    obs, actions = cases.random_pairs(0, 3)
    with pytest.raises(ValueError, match="lam must be above 0"):
        theory.effective_dimension(kqljax.RBF(), obs, actions, lam)
    with pytest.raises(ValueError, match="lam must be above 0"):
        theory.effective_dimension_bound(kqljax.RBF(), 3, lam, obs_dim=2, num_actions=3)


def test_shapes_are_named():
    with pytest.raises(ValueError, match=r"states must be \[n, l\]"):
        theory.effective_dimension(kqljax.RBF(), np.zeros(3), np.zeros(3, int), 1.0)
    with pytest.raises(ValueError, match=r"states must be \[n, l\]"):
        theory.pseudo_dimension(kqljax.RBF(), np.zeros((3, 2)), np.zeros(2, int), 1.0)
