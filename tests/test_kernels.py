"""Kernels: the paper's formulas, what must hold of every kernel, and what users do with them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import KERNELS, joined, pairs, random_pairs
from sklearn.gaussian_process.kernels import RBF as SklearnRBF
from sklearn.gaussian_process.kernels import Matern as SklearnMatern

import kqljax
from kqljax import kernels

Kernel = kqljax.Kernel


def one_pair(seed):
    return jax.tree.map(lambda leaf: leaf[0], pairs(*random_pairs(seed, 1)))


def split_form(kernel, queries, stored):
    """`[N, A, M]` from `terms` and `mixing`, for each query state with every action."""
    mixing = kernel.mixing(queries.shape[-1], stored.action.shape[-1], queries.dtype)
    terms = jax.vmap(lambda obs: jax.vmap(lambda pair: kernel.terms(obs, pair))(stored))(queries)
    assert terms.shape[-1] == kernels.num_terms(kernel, queries.shape[-1], stored.action.shape[-1])
    found = jnp.einsum("nmj,jab,mb->nam", terms, mixing.scale, stored.action)
    return found if mixing.shift is None else found + (stored.action @ mixing.shift.T).T


@pytest.mark.parametrize("name", KERNELS)
def test_what_holds_of_every_kernel(name):
    kernel, reference, num_terms = KERNELS[name]
    obs, action = random_pairs(0, 24)
    points, vectors = pairs(obs, action), joined(obs, action)
    matrix = kernel.matrix(points, points)
    # Its formula, written in NumPy; k(x, y) for two single pairs; the diagonal.
    np.testing.assert_allclose(matrix, reference(vectors, vectors, 2), rtol=1e-12, atol=1e-14)
    x, y = (jax.tree.map(lambda leaf, i=i: leaf[i], points) for i in (3, 7))
    np.testing.assert_allclose(matrix[3, 7], kernel.evaluate(x, y), rtol=1e-12)
    np.testing.assert_allclose(kernel.diag(points), jnp.diagonal(matrix), rtol=1e-12)
    # Symmetric and positive semi-definite.
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-14)
    assert np.linalg.eigvalsh(matrix).min() > -1e-10
    # The split form, with every action at the query.
    assert kernels.num_terms(kernel, 2, 3) == num_terms
    every = jax.vmap(lambda obs: kernel.matrix(kernels.every_action(obs, 3), points))(
        points.obs[:5]
    )
    np.testing.assert_allclose(
        split_form(kernel, points.obs[:5], points), every, rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("length, num_actions", [(1, 1), (6, 5)])
def test_positive_semidefinite_in_other_sizes(name, length, num_actions):
    kernel = KERNELS[name][0]
    if length != 2 and name == "rbf of two etas":
        kernel = kqljax.RBF(eta=list(np.linspace(0.1, 2.0, length)))
    points = pairs(*random_pairs(4, 30, length, num_actions), num_actions)
    matrix = np.asarray(kernel.matrix(points, points))
    assert np.linalg.eigvalsh(matrix).min() > -1e-10
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-14)


def test_against_scikit_learn():
    obs, action = random_pairs(5, 20)
    points, vectors = pairs(obs, action), joined(obs, action)
    for kernel, theirs in [
        (kqljax.RBF(eta=0.5), SklearnRBF(length_scale=1.0)),
        (kqljax.RBF(eta=[0.5, 2.0]), SklearnRBF(length_scale=[1.0, 0.5, *[0.4**0.5] * 3])),
        (kqljax.Matern32(length_scale=0.7), SklearnMatern(length_scale=0.7, nu=1.5)),
        (kqljax.Matern52(length_scale=0.7), SklearnMatern(length_scale=0.7, nu=2.5)),
    ]:
        np.testing.assert_allclose(kernel.matrix(points, points), theirs(vectors), rtol=1e-10)


def test_parameters_are_leaves_and_vmap():
    x, y = one_pair(6), one_pair(7)
    etas = jnp.array([[0.1, 0.3], [0.5, 0.5], [2.0, 1.0]])
    for some in (etas, etas[:, 0]):
        found = jax.vmap(lambda eta: kqljax.RBF(eta=eta).evaluate(x, y))(some)
        alone = [kqljax.RBF(eta=np.asarray(eta)).evaluate(x, y) for eta in some]
        np.testing.assert_allclose(found, alone, rtol=1e-12)
        batched = jax.vmap(lambda kernel: kernel.evaluate(x, y))(kqljax.RBF(eta=some))
        np.testing.assert_array_equal(found, batched)
    # One number twice is the number; a list of traced numbers is one leaf.
    np.testing.assert_allclose(
        kqljax.RBF(eta=[0.5, 0.5]).evaluate(x, y), kqljax.RBF(eta=0.5).evaluate(x, y), rtol=1e-12
    )
    slope = jax.grad(lambda eta: kqljax.RBF(eta=[eta, 2 * eta]).evaluate(x, y))(0.3)
    assert np.isfinite(slope) and slope < 0
    assert jax.tree.leaves(2.0 * kqljax.RBF(eta=0.1) + kqljax.Matern32(length_scale=3.0)) == [
        0.1,
        2.0,
        3.0,
    ]


def test_float32_stays_float32():
    """Also where eta is a float64 array, which would promote whatever it meets."""
    points = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), pairs(*random_pairs(8, 4)))
    for eta in (0.5, np.float64(0.5), [0.5, 1.0], np.array([0.5, 1.0]), jnp.array([0.5, 1.0])):
        kernel = kqljax.RBF(eta=eta)
        assert kernel.matrix(points, points).dtype == jnp.float32
        assert (
            kernel.terms(points.obs[0], jax.tree.map(lambda leaf: leaf[1], points)).dtype
            == jnp.float32
        )
        assert kernel.mixing(2, 3, jnp.float32).scale.dtype == jnp.float32
    near = jnp.array([0.5, 0.5], jnp.float32)
    assert float(kernels.squared_distance(near, near + jnp.float32(1e-4))) == pytest.approx(
        2e-8, rel=1e-2
    )


@pytest.mark.parametrize("kernel", [kqljax.Matern32(), kqljax.Matern52(), kqljax.RBF()])
def test_gradient_is_finite_at_distance_zero(kernel):
    point = one_pair(7)
    slope = jax.grad(lambda kernel: kernel.evaluate(point, point))(kernel)
    assert all(np.isfinite(leaf) for leaf in jax.tree.leaves(slope))


def test_sum_of_a_list():
    parts = [kqljax.RBF(eta=0.1), kqljax.Linear(), kqljax.Matern32()]
    points = pairs(*random_pairs(9, 5))
    expected = sum(np.asarray(part.matrix(points, points)) for part in parts)
    np.testing.assert_allclose(sum(parts).matrix(points, points), expected, rtol=1e-12)


class Stretched(kqljax.RBF):
    """A subclass with a formula of its own, and fields of its own."""

    stretch: float = 3.0

    def evaluate(self, x, y):
        return jnp.exp(-self.eta * jnp.sum((self.stretch * (x.obs - y.obs)) ** 2)) * jnp.dot(
            x.action, y.action
        )


class KnowsItsDiagonal(Kernel):
    def evaluate(self, x, y):
        return jnp.exp(-jnp.sum((x.obs - y.obs) ** 2))

    def diag(self, pairs):
        return jnp.ones(pairs.obs.shape[:1])


class Taller(KnowsItsDiagonal):
    def evaluate(self, x, y):
        return 2.0 * super().evaluate(x, y)


def test_a_new_formula_drops_what_was_said_of_the_old_one():
    kernel, stored = Stretched(eta=0.5), pairs(*random_pairs(10, 6))
    assert not kernel.is_split
    every = kernel.matrix(kernels.every_action(stored.obs[0], 3), stored)
    np.testing.assert_allclose(split_form(kernel, stored.obs[:1], stored)[0], every, rtol=1e-12)
    np.testing.assert_array_equal(KnowsItsDiagonal().diag(stored), np.ones(6))
    np.testing.assert_allclose(Taller().diag(stored), np.full(6, 2.0))


def test_errors_say_what_to_do():
    for wrong in (lambda: kqljax.RBF() + 1.0, lambda: 1.0 + kqljax.RBF(), lambda: kqljax.RBF() + 0):
        with pytest.raises(TypeError, match=r"expected another kernel. Scale a kernel with \*"):
            wrong()
    with pytest.raises(TypeError, match="expected a kernel or a number"):
        kqljax.RBF() * "two"

    class Nothing(Kernel):
        pass

    with pytest.raises(TypeError, match="implements evaluate"):
        Nothing().evaluate(one_pair(8), one_pair(8))


# What a config looks at ---------------------------------------------------------------------------


def config(kernel):
    return kqljax.KQLConfig(kernel=kernel, num_actions=2, horizon=10)


@pytest.mark.parametrize(
    "kernel, words",
    [
        (kqljax.RBF(eta=float("nan")), "eta must be above 0, got nan"),
        (-1.0 * kqljax.RBF(), r"gives k\(x, x\) = -1"),
        (kqljax.RBF(eta=-1.0), "eta must be above 0, got -1.0"),
        (kqljax.RBF(eta=[1.0, 0.0, 2.0]), r"eta must be above 0, got 0.0 at index \(1,\)"),
        (
            0.5 * kqljax.RBF(eta=[1.0, 2.0]),
            "kernel.eta must be a number or 3 numbers, one a coordinate, got",
        ),
        (kqljax.Matern32(length_scale=np.ones(3)), "length_scale must be a number, got"),
        (
            0.5 * kqljax.Matern32(length_scale=-2.0) + 0.5 * kqljax.RBF(),
            "length_scale must be above 0, got -2.0",
        ),
    ],
)
def test_what_is_no_kernel_is_refused(kernel, words):
    for check in (
        lambda: kernel.validate(obs_dim=3, num_actions=2),
        lambda: config(kernel).validate(obs_dim=3),
        lambda: kqljax.kql_init(config(kernel), 3),
    ):
        with pytest.raises(ValueError, match=words):
            check()


def test_normalisation_is_reported():
    with pytest.warns(
        kqljax.NormalisationWarning, match=r"from 2 to 2.*Scale it, for example 0\.25 \* kernel"
    ):
        config(4.0 * kqljax.RBF()).validate(obs_dim=3)
    with pytest.warns(kqljax.NormalisationWarning, match="from 0.316"):
        (0.1 * kqljax.RBF()).validate(obs_dim=3, num_actions=2)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "kernel",
    [
        kqljax.RBF(),
        kqljax.RBF(eta=[0.1] * 4),
        kqljax.Linear(),
        kqljax.Matern32(),
        kqljax.Matern52(),
    ],
)
def test_own_kernels_are_normalised(kernel):
    kernel.validate(obs_dim=4, num_actions=3)
    (4.0 * kernel).validate(obs_dim=4, num_actions=3, warns=False)
