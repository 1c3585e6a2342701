"""Feature maps against the kernels they stand for, and every way to make one wrongly."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from cases import KERNELS, joined

import kqljax
from kqljax import features
from kqljax.kernels import Kernel

ROUNDING = 1e-13


def box(seed, count, length, corners=False):
    """States `[count, length]` in [-1, 1], the first of them corners of the box where asked for."""
    states = np.random.default_rng(seed).uniform(-1, 1, (count, length))
    if corners:
        states[: count // 2] = np.sign(states[: count // 2])
    return states


@jax.jit
def _psi(made, states):
    return jax.vmap(made.psi)(states)


def rooted(made, states):
    """R[a]^T psi(s) `[N * A, D]` for every state with every action."""
    psi = np.asarray(_psi(made, jnp.asarray(states)))
    return np.einsum("nm,amd->nad", psi, np.asarray(made.root)).reshape(-1, made.num_weights)


def every_pair(states, num_actions):
    return joined(np.repeat(states, num_actions, axis=0), np.tile(np.arange(num_actions), len(states)), num_actions)


def difference(made, reference, states):
    """Inner products of features less the kernel in NumPy, over all pairs of states and actions `[N * A, N * A]`."""
    phi, points = rooted(made, states), every_pair(states, made.num_actions)
    return phi @ phi.T - reference(points, points, states.shape[1])


def worst(made, reference, states):
    return np.abs(difference(made, reference, states)).max()


@functools.cache
def chosen_from_box(eta, tolerance, num_actions=3):
    return features.nystrom(kqljax.RBF(eta=eta), box(0, 400, 2), num_actions, tolerance)


# Maps and kernels ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length, num_actions", [(1, 1), (2, 3), (6, 4)])
def test_linear_is_exact(length, num_actions):
    made = features.linear(kqljax.Linear(), length, num_actions)
    assert worst(made, oracle.linear(), 3 * box(0, 20, length)) < 1e-12
    assert (made.error, made.error_kind) == (0.0, "exact")
    assert (made.num_features, made.num_weights) == (length + 1, length + num_actions)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-6, 1e-11])
@pytest.mark.parametrize("eta, length, num_actions", [(0.02, 2, 3), (0.5, 1, 2), (0.02, 4, 2), (0.3, 2, 1)])
def test_taylor_is_within_its_bound(eta, length, num_actions, tolerance):
    made = features.taylor(kqljax.RBF(eta=eta), length, num_actions, tolerance)
    found = worst(made, oracle.rbf(eta), box(1, 24, length, corners=True))
    assert found <= made.error + ROUNDING
    assert made.error <= tolerance
    assert made.error_kind == "bound"


def test_taylor_takes_no_more_degrees_than_it_needs():
    for eta, length, tolerance in ((0.02, 2, 1e-6), (0.3, 3, 1e-3), (1.0, 1, 1e-8)):
        made = features.taylor(kqljax.RBF(eta=eta), length, 1, tolerance)
        bound = [(2 * eta * length) ** n / math.factorial(n) for n in (made.order - 1, made.order)]
        assert bound[1] <= tolerance < bound[0]
        assert made.num_features == math.comb(made.order - 1 + length, length)


def test_taylor_of_a_given_order_states_the_bound():
    states = box(2, 30, 2, corners=True)
    for order in (1, 3, 6):
        made = features.taylor(kqljax.RBF(eta=0.2), 2, 3, order=order)
        # The action Gram matrix has ones on its diagonal: the shares of its eigenspaces sum to 1 or a little more.
        bound = 0.8**order / math.factorial(order)
        assert bound <= made.error * (1 + 1e-9)
        found = worst(made, oracle.rbf(0.2), states)
        # Near the bound, or it would say nothing.
        assert 0.1 * bound < found <= made.error


@pytest.mark.parametrize("tolerance", [1e-2, 1e-6, 1e-10])
def test_dictionary_is_within_its_residual(tolerance):
    made = chosen_from_box(0.3, tolerance)
    found = worst(made, oracle.rbf(0.3), box(0, 400, 2)[:120])
    # The inverse factor of a Gram matrix that is singular up to the tolerance loses some of the last digits.
    assert found <= made.error + 1e-12
    assert made.error <= tolerance
    assert made.error_kind == "measured"
    fresh = worst(made, oracle.rbf(0.3), box(3, 120, 2))
    assert 0.01 * made.error < fresh <= 5 * made.error


SCALED = {
    "scaled down": (0.5 * kqljax.RBF(eta=0.3), KERNELS["rbf"][1], 0.5),
    "scaled up": (3.0 * kqljax.RBF(eta=0.3), KERNELS["rbf"][1], 3.0),
    "product": (kqljax.RBF(eta=0.1) * kqljax.RBF(eta=0.2), KERNELS["rbf"][1], 1.0),
}


@pytest.mark.parametrize("name", SCALED)
def test_dictionary_takes_scaled_kernels_and_products(name):
    kernel, reference, factor = SCALED[name]
    states = box(4, 150, 2)
    made = features.nystrom(kernel, states, 3, 1e-4)
    found = worst(made, lambda x, y, n: factor * reference(x, y, n), states[:80])
    assert 0.01 * made.error < found <= made.error + ROUNDING
    assert made.error <= 1e-4


FOURIER = {
    "rbf": (kqljax.RBF(eta=0.5), oracle.rbf(0.5)),
    "matern32": (kqljax.Matern32(length_scale=0.8), oracle.matern32(0.8)),
    "matern52": (KERNELS["matern52"][0], KERNELS["matern52"][1]),
}


def fourier_errors(name, count):
    """Differences from the kernel `[6, N, N]` of six draws."""
    kernel, reference = FOURIER[name]
    made = (features.fourier(kernel, 2, 3, count, seed=seed) for seed in range(6))
    return np.array([difference(each, reference, box(9, 12, 2)) for each in made])


@pytest.mark.parametrize("name", FOURIER)
def test_random_fourier_falls_like_one_over_the_root(name):
    few, many = (fourier_errors(name, count) for count in (8, 128))
    ratio = np.sqrt((few**2).mean() / (many**2).mean())
    assert 2.8 < ratio < 5.6
    # Unbiased: the mean over six draws is off by less than one of them, which a wrong spectral density would not give.
    assert np.sqrt((many.mean(axis=0) ** 2).mean()) < 0.6 * np.sqrt((many**2).mean())


@pytest.mark.parametrize("name", FOURIER)
def test_random_fourier_states_the_error_that_it_has(name):
    kernel, reference = FOURIER[name]
    made = features.fourier(kernel, 2, 3, 128)
    assert made.error_kind == "measured"
    assert 0.5 * made.error < worst(made, reference, box(10, 100, 2)) < 1.5 * made.error
    assert made.num_features == made.num_weights == 256


def test_random_fourier_doubles_until_it_meets_a_tolerance():
    kernel, reference = FOURIER["rbf"]
    made = features.fourier(kernel, 2, 3, tolerance=0.4)
    assert made.error <= 0.4
    assert worst(made, reference, box(11, 60, 2)) < 0.6
    assert made.num_features >= 64
    half = features.fourier(kernel, 2, 3, made.num_features // 4)
    assert half.error > 0.4


def test_kernel_error_is_what_it_says():
    made = features.fourier(kqljax.RBF(eta=0.5), 2, 3, 8)
    states = box(12, 200, 2)
    assert features.kernel_error(made, states) == pytest.approx(worst(made, oracle.rbf(0.5), states), rel=1e-6)


# Actions -------------------------------------------------------------------------------------------------------------


def action_gram_of(eta, num_actions):
    return np.where(np.eye(num_actions, dtype=bool), 1.0, np.exp(-2 * eta))


@pytest.mark.parametrize("num_actions", [1, 2, 4])
def test_root_reproduces_the_action_gram(num_actions):
    made = features.taylor(kqljax.RBF(eta=0.07), 2, num_actions, order=3)
    products = np.einsum("amd,bnd->abmn", made.root, made.root)
    expected = action_gram_of(0.07, num_actions)[:, :, None, None] * np.eye(made.num_features)
    np.testing.assert_allclose(products, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("maker", ["taylor", "dictionary"])
def test_root_of_the_first_feature_is_the_whole_action_gram(maker):
    """Whatever features a small eigenspace goes without, the first it shares with all others."""
    eta = 0.3
    made = {
        "taylor": lambda: features.taylor(kqljax.RBF(eta=eta), 2, 3, 1e-6),
        "dictionary": lambda: chosen_from_box(eta, 1e-6),
    }[maker]()
    first = np.asarray(made.root)[:, 0]
    np.testing.assert_allclose(first @ first.T, action_gram_of(eta, 3), rtol=0, atol=1e-8)


@pytest.mark.parametrize("maker", ["taylor", "dictionary"])
def test_small_eigenspaces_use_fewer_features(maker):
    """What actions have in common is nearly all of the kernel at a small eta; their differences need fewer digits."""
    eta, tolerance = 0.02, 1e-6
    made = features.taylor(kqljax.RBF(eta=eta), 2, 3, tolerance) if maker == "taylor" else chosen_from_box(eta, tolerance)
    assert made.num_features < made.num_weights < 3 * made.num_features
    # The last feature carries the largest eigenspace alone: the same for all actions.
    last = np.asarray(made.root)[:, -1]
    mean_of_gram = action_gram_of(eta, 3).mean()
    np.testing.assert_allclose(last @ last.T, np.full((3, 3), mean_of_gram), rtol=1e-6)
    assert worst(made, oracle.rbf(eta), box(0, 400, 2)[:80]) <= tolerance
    # Sorted by degree or by pivot: each block's features are the first ones.
    used = np.abs(np.asarray(made.root)).max(axis=(0, 2))
    assert np.all(used > 0)


def test_random_fourier_turns_phases():
    made = features.fourier(kqljax.Matern32(), 2, 3, 8)
    for root in made.root:
        np.testing.assert_allclose(root @ root.T, np.eye(16), atol=1e-12)


# Traced parameters ---------------------------------------------------------------------------------------------------

ETAS = np.array([0.05, 0.3, 0.8])


def traced_products(make, states):
    """Inner products of features `[E, N A, N A]` of maps that are made while eta is traced."""

    def products(eta):
        made = make(kqljax.RBF(eta=eta))
        psi = jax.vmap(made.psi)(states)
        phi = jnp.einsum("nm,amd->nad", psi, made.root).reshape(-1, made.num_weights)
        return phi @ phi.T

    states = jnp.asarray(states)
    return np.asarray(jax.jit(jax.vmap(products))(jnp.asarray(ETAS)))


def test_taylor_of_a_traced_eta():
    states = box(13, 15, 2, corners=True)
    found = traced_products(lambda kernel: features.taylor(kernel, 2, 3, order=12), states)
    points = every_pair(states, 3)
    for eta, product in zip(ETAS, found, strict=True):
        bound = (4 * eta) ** 12 / math.factorial(12)
        assert np.abs(product - oracle.rbf(eta)(points, points, 2)).max() <= bound + ROUNDING


def test_random_fourier_of_a_traced_eta_is_the_map_of_that_eta():
    states = box(14, 15, 2)
    found = traced_products(lambda kernel: features.fourier(kernel, 2, 3, 8), states)
    for eta, product in zip(ETAS, found, strict=True):
        phi = rooted(features.fourier(kqljax.RBF(eta=eta), 2, 3, 8), states)
        np.testing.assert_allclose(product, phi @ phi.T, atol=1e-12)
    assert np.abs(found[0] - found[2]).max() > 0.1


def test_random_fourier_of_a_traced_length_scale():
    states = jnp.asarray(box(15, 10, 2))

    def psi(scale):
        made = features.fourier(kqljax.Matern52(length_scale=scale), 2, 3, 8)
        return jax.vmap(lambda obs: made.psi(obs) @ made.root[1])(states)

    found = jax.vmap(psi)(jnp.array([0.5, 2.0]))
    for scale, rows in zip((0.5, 2.0), found, strict=True):
        np.testing.assert_allclose(rows, psi(scale), atol=1e-12)


def test_maps_can_be_made_while_something_else_is_traced():
    """A known kernel inside jit: the map is made in float64 there and then, also where jax has only float32."""
    for x64 in (True, False):
        with jax.enable_x64(x64):

            @jax.jit
            def psi(obs):
                one = features.taylor(kqljax.RBF(eta=0.3), 2, 2, 1e-3)
                other = features.fourier(kqljax.RBF(eta=0.3), 2, 2, 8)
                assert one.error <= 1e-3 and other.error > 0
                assert one.root.dtype == other.root.dtype == np.float64
                return one.psi(obs), other.psi(obs)

            found = psi(jnp.array([0.2, -0.4]))
            assert {rows.dtype for rows in found} == {jnp.dtype("float64" if x64 else "float32")}


def test_maps_are_made_in_float64_where_jax_has_only_float32():
    kernel, states = kqljax.RBF(eta=0.3), box(17, 60, 2)
    wide = features.nystrom(kernel, states, 2, 1e-7)
    with jax.enable_x64(False):
        narrow = features.nystrom(kernel, states, 2, 1e-7)
    assert narrow.error == wide.error
    np.testing.assert_array_equal(narrow.whitener, wide.whitener)
    np.testing.assert_array_equal(narrow.root, wide.root)
    assert narrow.whitener.dtype == np.float64


# What the features leave out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("maker", ["dictionary", "scaled", "taylor", "taylor of an order", "fourier", "linear"])
def test_residual_is_what_is_left_out_at_a_state(maker):
    """k(x, x) less the features' norm, action by action, also where the map was not made for the state."""
    states, rbf = 1.5 * box(18, 40, 2), oracle.rbf(0.3)
    make, reference = {
        "dictionary": (lambda: chosen_from_box(0.3, 1e-2), rbf),
        "scaled": (lambda: features.nystrom(3.0 * RBF, BOX, 3, 1e-2), lambda x, y, n: 3 * rbf(x, y, n)),
        "taylor": (lambda: features.taylor(RBF, 2, 3, 1e-2), rbf),
        "taylor of an order": (lambda: features.taylor(RBF, 2, 3, order=4), rbf),
        "fourier": (lambda: features.fourier(RBF, 2, 3, 8), rbf),
        "linear": (lambda: features.linear(kqljax.Linear(), 2, 3), oracle.linear()),
    }[maker]
    made = make()
    residual = np.asarray(jax.vmap(made.residual)(jnp.asarray(states), _psi(made, jnp.asarray(states))))
    missing = -np.diagonal(difference(made, reference, states)).reshape(40, 3)
    np.testing.assert_allclose(residual, np.maximum(missing, 0), rtol=0, atol=1e-11)
    assert (residual.max() > 1e-3) == (maker not in ("fourier", "linear"))


# auto ----------------------------------------------------------------------------------------------------------------


def test_auto_takes_the_smallest_that_meets_the_tolerance_on_a_task(monkeypatch):
    task = kqljax.make_task("MountainCar-v0")
    # Inside the box, and further out than an action drawn anew at every step would get.
    states = features.sample_states(task, seed=5)
    assert states.ndim == 2 and states.shape[1] == 2 and states.dtype == np.float64
    assert np.all(np.abs(states) <= 1.0 + 1e-6)
    assert np.ptp(states[:, 0]) > 0.9

    # Sampling is slow: auto gets one half of the states, the other half are fresh.
    monkeypatch.setattr("kqljax.features.choose.sample_states", lambda *args, **kwargs: states[::2])
    kernel = kqljax.RBF(eta=0.3)
    made = features.auto(kernel, task, 1e-3)
    assert made.error <= 1e-3
    assert made.num_weights < features.taylor(kernel, 2, 3, 1e-3).num_weights
    assert worst(made, oracle.rbf(0.3), states[1 :: len(states) // 300 * 2]) <= 5e-3


def test_auto_knows_what_else_there_is():
    task = kqljax.make_task("MountainCar-v0")
    assert type(features.auto(kqljax.Linear(), task)) is type(features.linear(kqljax.Linear(), 2, 3))
    matern = features.auto(kqljax.Matern52(length_scale=3.0), task, 0.4)
    assert matern.error <= 0.4 and hasattr(matern, "frequencies")


# Errors --------------------------------------------------------------------------------------------------------------


class Own(Kernel):
    """A user's kernel that says nothing of how it splits."""

    def evaluate(self, x, y):
        return jnp.exp(-jnp.sum((x.obs - y.obs) ** 2)) * jnp.dot(x.action, y.action)


RBF = kqljax.RBF(eta=0.3)
MATERN = kqljax.Matern32()
BOX = box(0, 50, 2)
WRONG_KERNELS = {
    "taylor of matern": (lambda: features.taylor(MATERN, 2, 3), "features.taylor is for the kernel RBF, got Matern32"),
    "taylor of scaled": (lambda: features.taylor(0.5 * RBF, 2, 3), "features.taylor is for the kernel RBF, got Scaled"),
    "linear of rbf": (lambda: features.linear(RBF, 2, 3), "features.linear is for the kernel Linear, got RBF"),
    "fourier of linear": (
        lambda: features.fourier(kqljax.Linear(), 2, 3),
        "features.random_fourier is for the kernel RBF or Matern32 or Matern52, got Linear",
    ),
    "dictionary of matern": (
        lambda: features.nystrom(MATERN, BOX, 3),
        "features.dictionary wants a kernel that is a state part times an action part.*Use features.random_fourier",
    ),
    "dictionary of linear": (lambda: features.nystrom(kqljax.Linear(), BOX, 3), "features.linear for Linear"),
    "dictionary of a sum": (lambda: features.nystrom(RBF + RBF, BOX, 3), "wants a kernel that is a state part"),
    "dictionary of a user's": (lambda: features.nystrom(Own(), BOX, 3), "wants a kernel that is a state part"),
}


@pytest.mark.parametrize("name", WRONG_KERNELS)
def test_kernels_that_a_map_does_not_take(name):
    make, message = WRONG_KERNELS[name]
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("tolerance", [0.0, -1e-3, 1.0, math.nan])
def test_bad_tolerances(tolerance):
    for make in (
        lambda: features.taylor(RBF, 2, 3, tolerance),
        lambda: features.nystrom(RBF, BOX, 3, tolerance),
        lambda: features.fourier(RBF, 2, 3, tolerance=tolerance),
        lambda: features.auto(RBF, kqljax.make_task("MountainCar-v0"), tolerance),
    ):
        with pytest.raises(ValueError, match=r"tolerance must be in \(0, 1\), got"):
            make()


@pytest.mark.parametrize("states", [np.zeros(5), np.zeros((0, 2)), np.zeros((2, 3, 4)), []])
def test_states_of_a_wrong_shape(states):
    with pytest.raises(ValueError, match=r"states must have shape \[N, l\] with N > 0"):
        features.nystrom(RBF, states, 3)


def test_a_tolerance_out_of_reach_names_a_size_that_would_do():
    with pytest.raises(ValueError, match="out of reach of features.taylor: ") as caught:
        features.taylor(kqljax.RBF(eta=1.0), 4, 3, 1e-6)
    order = int(str(caught.value).split("order=")[1].split(",")[0])
    assert math.comb(order - 1 + 4, 4) > 2000
    assert 8.0**order / math.factorial(order) <= 1e-6

    states = box(19, 150, 2)
    with pytest.raises(ValueError, match="out of reach of 8 states: a residual of") as caught:
        features.nystrom(RBF, states, 3, 1e-3, max_features=8)
    size = int(str(caught.value).split("max_features=")[1].split(" ")[0])
    enough = features.nystrom(RBF, states, 3, 1e-3, max_features=max(size, 40))
    assert 0.6 * enough.num_features <= size <= 2 * enough.num_features

    # By way of auto, which has nothing else for a kernel that is no product.
    task = kqljax.make_task("MountainCar-v0")
    with pytest.raises(ValueError, match="out of reach of features.random_fourier: 512 frequencies leave") as caught:
        features.auto(MATERN, task, 1e-4)
    assert int(str(caught.value).split("num_frequencies=")[1].split(" ")[0]) > 100 * 512


def test_a_traced_eta_needs_a_size():
    for make, message in (
        (lambda eta: features.taylor(kqljax.RBF(eta=eta), 2, 3), "cannot derive its order from an eta that is being traced"),
        (lambda eta: features.nystrom(kqljax.RBF(eta=eta), BOX, 3), "make it outside jit and vmap"),
        (lambda eta: features.fourier(kqljax.RBF(eta=eta), 2, 3, tolerance=0.1), "traced.*num_frequencies"),
    ):
        with pytest.raises(ValueError, match=message):
            jax.vmap(lambda eta, make=make: make(eta).root)(jnp.asarray(ETAS))


def test_a_tolerance_above_the_kernel_is_met_by_one_state():
    made = features.nystrom(0.01 * RBF, BOX, 3, 0.5)
    assert made.num_features == 1
    assert made.error <= 0.5
