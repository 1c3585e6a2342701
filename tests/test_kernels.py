"""Kernels: the paper's formulas, positive definiteness, splitting, and what users do with them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import KERNELS, joined, pairs, random_pairs
from sklearn.gaussian_process.kernels import RBF as SklearnRBF
from sklearn.gaussian_process.kernels import Matern as SklearnMatern

import kqljax
from kqljax import kernels
from kqljax.posterior import gram


@pytest.mark.parametrize("name", KERNELS)
def test_matches_its_formula(name):
    kernel, reference, _ = KERNELS[name]
    (obs, action), (obs2, action2) = random_pairs(0, 12), random_pairs(1, 9)
    found = kernels.gram(kernel, pairs(obs, action), pairs(obs2, action2))
    np.testing.assert_allclose(found, reference(joined(obs, action), joined(obs2, action2), 2), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", KERNELS)
def test_split_form_is_the_kernel(name):
    kernel, _, expected_terms = KERNELS[name]
    obs, action = random_pairs(2, 10)
    state = random_pairs(3, 1)[0][0]
    assert kernels.num_terms(kernel, 2, 3) == expected_terms
    stored = pairs(obs, action)
    terms = gram.state_terms(kernel, stored, jnp.asarray(state))
    assert terms.shape == (expected_terms, 10)
    found = gram.kernel_vectors(gram.stored_mixing(kernel, stored), terms)
    every = pairs(np.repeat(state[None], 3, axis=0), np.arange(3))
    np.testing.assert_allclose(found, kernels.gram(kernel, stored, every), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("length, num_actions", [(1, 1), (4, 2), (6, 5)])
def test_symmetric_positive_semidefinite(name, length, num_actions):
    kernel = KERNELS[name][0]
    obs, action = random_pairs(4, 30, length, num_actions)
    points = pairs(obs, action, num_actions)
    matrix = np.asarray(kernels.gram(kernel, points, points))
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-14)
    assert np.linalg.eigvalsh(matrix).min() > -1e-10


def test_against_scikit_learn():
    obs, action = random_pairs(5, 20)
    points, vectors = pairs(obs, action), joined(obs, action)
    for kernel, theirs in [
        (kqljax.RBF(eta=0.5), SklearnRBF(length_scale=1.0)),
        (kqljax.Matern32(length_scale=0.7), SklearnMatern(length_scale=0.7, nu=1.5)),
        (kqljax.Matern52(length_scale=0.7), SklearnMatern(length_scale=0.7, nu=2.5)),
    ]:
        np.testing.assert_allclose(kernels.gram(kernel, points, points), theirs(vectors), rtol=1e-10)


def test_parameters_are_leaves_and_vmap():
    points = pairs(*random_pairs(6, 2))
    x, y = (jax.tree.map(lambda leaf, i=i: leaf[i], points) for i in (0, 1))
    etas = jnp.array([0.1, 0.5, 2.0])
    found = jax.vmap(lambda eta: kqljax.RBF(eta=eta).evaluate(x, y))(etas)
    np.testing.assert_allclose(found, [kqljax.RBF(eta=float(eta)).evaluate(x, y) for eta in etas], rtol=1e-12)
    batched = jax.vmap(lambda kernel: kernel.evaluate(x, y))(kqljax.RBF(eta=etas))
    np.testing.assert_array_equal(found, batched)
    assert jax.tree.leaves(2.0 * kqljax.RBF(eta=0.1) + kqljax.Matern32(length_scale=3.0)) == [0.1, 2.0, 3.0]


@pytest.mark.parametrize("kernel", [kqljax.Matern32(), kqljax.Matern52(), kqljax.RBF()])
def test_gradient_is_finite_at_distance_zero(kernel):
    point = jax.tree.map(lambda leaf: leaf[0], pairs(*random_pairs(7, 1)))
    slope = jax.grad(lambda kernel: kernel.evaluate(point, point))(kernel)
    assert all(np.isfinite(leaf) for leaf in jax.tree.leaves(slope))


def test_float32_distance_from_differences():
    near = jnp.array([0.5, 0.5], jnp.float32)
    assert float(kernels.squared_distance(near, near + jnp.float32(1e-4))) == pytest.approx(2e-8, rel=1e-2)


def test_errors_say_what_to_do():
    with pytest.raises(TypeError, match="expected another kernel"):
        kqljax.RBF() + 1.0
    with pytest.raises(TypeError, match="expected a kernel or a number"):
        kqljax.RBF() * "two"

    class Nothing(kqljax.Kernel):
        pass

    point = jax.tree.map(lambda leaf: leaf[0], pairs(*random_pairs(8, 1)))
    with pytest.raises(TypeError, match="implements evaluate"):
        Nothing().evaluate(point, point)


class Stretched(kqljax.RBF):
    """A subclass with a formula of its own, and fields of its own."""

    stretch: float = 3.0

    def evaluate(self, x, y):
        return jnp.exp(-self.eta * jnp.sum((self.stretch * (x.obs - y.obs)) ** 2)) * jnp.dot(x.action, y.action)


def test_a_new_formula_drops_an_inherited_split():
    kernel = Stretched(eta=0.5)
    assert not kernel.is_split
    obs, action = random_pairs(9, 6)
    stored = pairs(obs, action)
    found = gram.kernel_vectors(gram.stored_mixing(kernel, stored), gram.state_terms(kernel, stored, jnp.asarray(obs[0])))
    every = pairs(np.repeat(obs[:1], 3, axis=0), np.arange(3))
    np.testing.assert_allclose(found, kernels.gram(kernel, stored, every), rtol=1e-12)


@pytest.mark.parametrize(
    "kernel, words",
    [
        (kqljax.RBF(eta=float("nan")), r"gives k\(x, x\) = nan"),
        (-1.0 * kqljax.RBF(), r"gives k\(x, x\) = -1"),
        (kqljax.RBF(eta=-1.0), "eta must be above 0, got -1.0"),
        (0.5 * kqljax.Matern32(length_scale=-2.0) + 0.5 * kqljax.RBF(), "length_scale must be above 0, got -2.0"),
    ],
)
def test_what_is_no_kernel_is_refused(kernel, words):
    cfg = kqljax.KQLConfig(kernel=kernel, num_actions=2, horizon=10)
    for check in (lambda: cfg.validate(obs_dim=3), lambda: kqljax.kql_init(cfg, 3)):
        with pytest.raises(ValueError, match=words):
            check()


def test_normalisation_is_reported():
    def config(kernel):
        return kqljax.KQLConfig(kernel=kernel, num_actions=2, horizon=10)

    with pytest.warns(kqljax.NormalisationWarning, match=r"from 2 to 2.*Scale it, for example 0\.25 \* kernel"):
        config(4.0 * kqljax.RBF()).validate(obs_dim=3)
    with pytest.warns(kqljax.NormalisationWarning, match="from 0.316"):
        config(0.1 * kqljax.RBF()).validate(obs_dim=3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kernel", [kqljax.RBF(), kqljax.Linear(), kqljax.Matern32(), kqljax.Matern52()])
def test_own_kernels_are_normalised(kernel):
    kqljax.KQLConfig(kernel=kernel, num_actions=3, horizon=10).validate(obs_dim=4)
