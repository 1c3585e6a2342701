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
from kqljax.kernels import Kernel, Pair, every_action

ROUNDING = 1e-12
RBF = kqljax.RBF(eta=0.3)
UNEVEN, UNEVEN_FORMULA = KERNELS["rbf of two etas"][:2]
MATERN = kqljax.Matern32()
THREE = kqljax.RBF(eta=[1.0, 2.0, 3.0])


def box(seed, count, length=2, corners=False):
    """States `[count, length]` in [-1, 1], the first of them corners of the box where asked for."""
    states = np.random.default_rng(seed).uniform(-1, 1, (count, length))
    if corners:
        states[: count // 2] = np.sign(states[: count // 2])
    return states


BOX = box(0, 150)


@jax.jit
def _psi(made, states):
    return jax.vmap(made.psi)(states)


def rooted(made, states):
    """R[a]^T psi(s) `[N * A, D]` for every state with every action."""
    psi = np.asarray(_psi(made, jnp.asarray(states)))
    return np.einsum("nm,amd->nad", psi, np.asarray(made.root)).reshape(-1, made.num_weights)


def every_pair(states, num_actions):
    actions = np.tile(np.arange(num_actions), len(states))
    return joined(np.repeat(states, num_actions, axis=0), actions, num_actions)


def difference(made, reference, states):
    """Inner products of features less the kernel in NumPy, over all pairs `[N * A, N * A]`."""
    phi, points = rooted(made, states), every_pair(states, made.num_actions)
    return phi @ phi.T - reference(points, points, states.shape[1])


def worst(made, reference, states):
    return np.abs(difference(made, reference, states)).max()


def scaled(factor):
    return lambda x, y, length: factor * oracle.rbf(0.3)(x, y, length)


# name: the map, the kernel in NumPy, states that its certificate speaks of
MAPS = {
    "linear": (lambda: features.linear(kqljax.Linear(), 2, 3), oracle.linear(), 3 * box(1, 40)),
    "taylor": (lambda: features.taylor(RBF, 2, 3, 1e-2), oracle.rbf(0.3), box(1, 40, corners=True)),
    "taylor, fine": (lambda: features.taylor(RBF, 2, 3, 1e-10), oracle.rbf(0.3), box(1, 40, corners=True)),
    "taylor of an order": (lambda: features.taylor(RBF, 2, 3, order=4), oracle.rbf(0.3), box(1, 40, corners=True)),
    "taylor of two etas": (lambda: features.taylor(UNEVEN, 2, 3, 1e-2), UNEVEN_FORMULA, box(1, 40, corners=True)),
    "taylor, one action": (
        lambda: features.taylor(kqljax.RBF(eta=0.02), 4, 1, 1e-6), oracle.rbf(0.02), box(1, 40, 4, corners=True)
    ),
    "nystrom": (lambda: features.nystrom(RBF, BOX, 3, 1e-2), oracle.rbf(0.3), BOX),
    "nystrom, fine": (lambda: features.nystrom(RBF, BOX, 3, 1e-9), oracle.rbf(0.3), BOX),
    "nystrom of two etas": (lambda: features.nystrom(UNEVEN, BOX, 3, 1e-3), UNEVEN_FORMULA, BOX),
    "nystrom, scaled down": (lambda: features.nystrom(0.5 * RBF, BOX, 3, 1e-4), scaled(0.5), BOX),
    "nystrom, scaled up": (lambda: features.nystrom(3.0 * RBF, BOX, 3, 1e-4), scaled(3.0), BOX),
    "nystrom of a product": (
        lambda: features.nystrom(kqljax.RBF(eta=0.1) * kqljax.RBF(eta=0.2), BOX, 3, 1e-4), scaled(1.0), BOX
    ),
    "fourier": (lambda: features.fourier(RBF, 2, 3, 128), oracle.rbf(0.3), box(1, 40)),
    "fourier of two etas": (lambda: features.fourier(UNEVEN, 2, 3, 128), UNEVEN_FORMULA, box(1, 40)),
    "fourier of matern": (lambda: features.fourier(MATERN, 2, 3, 128), oracle.matern32(1.0), box(1, 40)),
}  # fmt: skip


@functools.cache
def made_of(name):
    return MAPS[name][0]()


# What holds of every map --------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAPS)
def test_the_kernel_is_within_the_error(name):
    made, (_, reference, states) = made_of(name), MAPS[name]
    found = worst(made, reference, states)
    # Fourier features say what they measured on other states.
    assert found <= made.error * (1.5 if "fourier" in name else 1.0) + ROUNDING
    # And not far below, or it would say nothing. Taylor's bound is reached in corners where s = s',
    # or nearly.
    assert found >= 0.01 * made.error - ROUNDING
    assert features.kernel_error(made, states) == pytest.approx(found, rel=1e-5, abs=ROUNDING)
    kinds = {"linear": "exact", "taylor": "bound"}
    assert made.error_kind == kinds.get(name.split()[0].strip(","), "measured")


@pytest.mark.parametrize("name", MAPS)
def test_residual_is_what_is_left_out_at_a_state(name):
    """k(x, x) less the features' norm, action by action, also where the map was not made for the
    state.
    """
    made, reference = made_of(name), MAPS[name][1]
    states = 1.5 * box(2, 40, made.obs_dim)
    residual = np.asarray(
        jax.vmap(made.residual)(jnp.asarray(states), _psi(made, jnp.asarray(states)))
    )
    missing = -np.diagonal(difference(made, reference, states)).reshape(40, made.num_actions)
    np.testing.assert_allclose(residual, np.maximum(missing, 0), rtol=0, atol=1e-11)
    if "fourier" in name or name == "linear":
        assert residual.max() == 0
    elif "fine" not in name and made.error > 1e-5:
        assert residual.max() > made.error


CORNER = np.random.default_rng(3).uniform(-1.0, -0.4, (50, 2))
OPPOSITE = np.random.default_rng(4).uniform(0.4, 1.0, (20, 2))
NARROW = kqljax.RBF(eta=20.0)
FAR = {
    "linear": lambda: features.linear(kqljax.Linear(), 2, 2),
    "taylor": lambda: features.taylor(NARROW, 2, 2, order=20),
    "nystrom made on the corner": lambda: features.nystrom(NARROW, CORNER, 2),
    "nystrom made everywhere": lambda: features.nystrom(NARROW, box(5, 1000), 2, 1e-2),
    "fourier": lambda: features.fourier(NARROW, 2, 2),
    "fourier of matern": lambda: features.fourier(kqljax.Matern32(length_scale=0.15), 2, 2),
    "nystrom of two etas": lambda: features.nystrom(kqljax.RBF(eta=[20.0, 0.5]), CORNER, 2),
    "fourier of two etas": lambda: features.fourier(kqljax.RBF(eta=[20.0, 0.5]), 2, 2),
}


@pytest.mark.parametrize("lam", [1e-4, 1e-2])
@pytest.mark.parametrize("name", FAR)
def test_far_from_the_data_the_width_is_that_of_the_exact_engine(name, lam):
    """50 pairs in one corner, asked in the opposite one: within 10%."""
    made = FAR[name]()
    action = np.random.default_rng(6).integers(0, 2, 50)
    rows = Pair(jnp.asarray(CORNER), jnp.eye(2)[action])
    far = jax.vmap(lambda obs: every_action(obs, 2))(jnp.asarray(OPPOSITE))
    columns = Pair(*(leaf.reshape(40, 2) for leaf in far))
    cross = made.kernel.matrix(rows, columns)
    known = jnp.sum(
        cross * jnp.linalg.solve(made.kernel.matrix(rows, rows) + lam * jnp.eye(50), cross), axis=0
    )
    expected = jnp.sqrt((made.kernel.diag(columns) - known) / lam)

    phi = rooted(made, CORNER).reshape(50, 2, -1)[np.arange(50), action]
    asked = rooted(made, OPPOSITE)
    within = np.sum(
        asked.T * np.linalg.solve(phi.T @ phi + lam * np.eye(phi.shape[1]), asked.T), axis=0
    )
    psi = _psi(made, jnp.asarray(OPPOSITE))
    beyond = np.asarray(jax.vmap(made.residual)(jnp.asarray(OPPOSITE), psi)).ravel() / lam
    np.testing.assert_allclose(
        np.sqrt(within + beyond), expected, rtol=1e-5 if name == "linear" else 0.1
    )


@pytest.mark.parametrize("num_actions", [1, 2, 4])
def test_root_reproduces_the_action_gram(num_actions):
    made = features.taylor(kqljax.RBF(eta=0.07), 2, num_actions, order=3)
    products = np.einsum("amd,bnd->abmn", made.root, made.root)
    gram = np.where(np.eye(num_actions, dtype=bool), 1.0, np.exp(-0.14))
    expected = gram[:, :, None, None] * np.eye(made.num_features)
    np.testing.assert_allclose(products, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("maker", ["taylor", "nystrom"])
def test_small_eigenspaces_use_fewer_features(maker):
    """What actions have in common is nearly all of the kernel at a small eta; their differences
    need fewer digits.
    """
    eta, tolerance = 0.02, 1e-6
    kernel = kqljax.RBF(eta=eta)
    made = (
        features.taylor(kernel, 2, 3, tolerance)
        if maker == "taylor"
        else features.nystrom(kernel, BOX, 3, tolerance)
    )
    assert made.num_features < made.num_weights < 3 * made.num_features
    assert worst(made, oracle.rbf(eta), BOX[:60]) <= tolerance
    # The first feature has the whole action Gram matrix, the last its largest eigenspace alone, the
    # same for all actions.
    gram = np.where(np.eye(3, dtype=bool), 1.0, np.exp(-2 * eta))
    first, last = np.asarray(made.root)[:, 0], np.asarray(made.root)[:, -1]
    np.testing.assert_allclose(first @ first.T, gram, rtol=0, atol=1e-8)
    np.testing.assert_allclose(last @ last.T, np.full((3, 3), gram.mean()), rtol=1e-6)


# One map at a time --------------------------------------------------------------------------------


def test_linear_has_the_sizes_of_the_paper():
    made = features.linear(kqljax.Linear(), 6, 4)
    assert (made.num_features, made.num_weights) == (7, 10)


def test_taylor_takes_no_more_degrees_than_it_needs():
    for eta, length, tolerance in (
        (0.02, 2, 1e-6),
        (0.3, 3, 1e-3),
        (1.0, 1, 1e-8),
        ([0.1, 0.5], 2, 1e-4),
    ):
        made = features.taylor(kqljax.RBF(eta=eta), length, 1, tolerance)
        total = 2 * np.broadcast_to(eta, (length,)).sum()
        bound = [total**n / math.factorial(n) for n in (made.order - 1, made.order)]
        assert bound[1] <= tolerance < bound[0]
        assert made.num_features == math.comb(made.order - 1 + length, length)


def test_nystrom_holds_on_states_like_those_it_was_made_on():
    made = made_of("nystrom")
    fresh = worst(made, oracle.rbf(0.3), box(3, 100))
    assert 0.01 * made.error < fresh <= 5 * made.error
    one = features.nystrom(0.01 * RBF, BOX, 3, 0.5)
    assert one.num_features == 1 and one.error <= 0.5, (
        "a tolerance above the kernel is met by one state"
    )


def test_nystrom_on_states_of_a_task():
    task = kqljax.make_task("MountainCar-v0")
    states = kqljax.tasks.sample_states(task, seed=5)
    # Inside the box, and further out than an action drawn anew at every step would get.
    assert states.ndim == 2 and states.shape[1] == 2 and states.dtype == np.float64
    assert np.all(np.abs(states) <= 1.0 + 1e-6)
    assert np.ptp(states[:, 0]) > 0.9
    made = features.nystrom(RBF, states[::4], task.num_actions, 1e-3)
    assert worst(made, oracle.rbf(0.3), states[1 :: len(states) // 300 * 2]) <= 5e-3


@pytest.mark.parametrize("name", ["rbf", "matern52"])
def test_fourier_falls_like_one_over_the_root(name):
    kernel, reference = KERNELS[name][:2]
    few, many = (
        np.array(
            [
                difference(features.fourier(kernel, 2, 3, count, seed=i), reference, box(9, 12))
                for i in range(6)
            ]
        )
        for count in (8, 128)
    )
    assert 2.8 < np.sqrt((few**2).mean() / (many**2).mean()) < 5.6
    # Unbiased: the mean over six draws is off by less than one of them, which a wrong spectral
    # density would not give.
    assert np.sqrt((many.mean(axis=0) ** 2).mean()) < 0.6 * np.sqrt((many**2).mean())
    made = features.fourier(kernel, 2, 3, 128)
    assert 0.5 * made.error < worst(made, reference, box(10, 100)) < 1.5 * made.error
    assert made.num_features == made.num_weights == 256


# Traced parameters and precision ------------------------------------------------------------------

ETAS = np.array([0.05, 0.3, 0.8])
TRACED = {
    "taylor": (lambda x: features.taylor(kqljax.RBF(eta=x), 2, 3, order=12), 1e-3),
    "taylor of two etas": (
        lambda x: features.taylor(kqljax.RBF(eta=[x, 0.5 * x]), 2, 3, order=12),
        1e-3,
    ),
    "fourier": (lambda x: features.fourier(kqljax.RBF(eta=x), 2, 3, 8), ROUNDING),
    "fourier of two etas": (
        lambda x: features.fourier(kqljax.RBF(eta=[x, 0.5]), 2, 3, 8),
        ROUNDING,
    ),
    "fourier of matern": (
        lambda x: features.fourier(kqljax.Matern52(length_scale=x), 2, 3, 8),
        ROUNDING,
    ),
}


@pytest.mark.parametrize("name", TRACED)
def test_a_map_of_a_traced_kernel_is_the_map_of_that_kernel(name):
    make, atol = TRACED[name]
    states = jnp.asarray(box(13, 15, corners=True))

    def products(number):
        made = make(number)
        phi = jnp.einsum("nm,amd->nad", jax.vmap(made.psi)(states), made.root).reshape(
            -1, made.num_weights
        )
        return phi @ phi.T

    found = jax.jit(jax.vmap(products))(jnp.asarray(ETAS))
    for number, product in zip(ETAS, found, strict=True):
        phi = rooted(make(float(number)), states)
        np.testing.assert_allclose(product, phi @ phi.T, atol=atol)
    assert np.abs(found[0] - found[2]).max() > 0.1


def test_maps_can_be_made_while_something_else_is_traced():
    """A known kernel inside jit: the map is made in float64 there and then, also where jax has only
    float32.
    """
    for x64 in (True, False):
        with jax.enable_x64(x64):

            @jax.jit
            def psi(obs):
                one, other = features.taylor(RBF, 2, 2, 1e-3), features.fourier(RBF, 2, 2, 8)
                third = features.nystrom(RBF, BOX[:20], 2, 1e-3)
                assert one.error <= 1e-3 and third.error <= 1e-3 and other.error > 0
                assert {made.root.dtype for made in (one, other, third)} == {np.dtype("float64")}
                return one.psi(obs), other.psi(obs), third.psi(obs)

            found = psi(jnp.array([0.2, -0.4]))
            assert {rows.dtype for rows in found} == {jnp.dtype("float64" if x64 else "float32")}


def test_nystrom_is_the_same_where_jax_has_only_float32():
    wide = features.nystrom(RBF, BOX, 2, 1e-7)
    with jax.enable_x64(False):
        narrow = features.nystrom(RBF, BOX, 2, 1e-7)
    assert narrow.error == wide.error
    np.testing.assert_array_equal(narrow.whitener, wide.whitener)
    assert narrow.whitener.dtype == np.float64


@pytest.mark.parametrize("factor", [1.0, 0.01, 50.0])
def test_float32_is_refused_where_it_cannot_carry_the_tolerance(factor):
    kernel = factor * kqljax.RBF(eta=0.1)
    taken = features.nystrom(kernel, BOX, 3, 1e-6 * factor)
    refused = features.nystrom(kernel, BOX, 3, 1e-8 * factor)
    refused.check(kernel, 2, 3, jnp.float64)
    taken.check(kernel, 2, 3, jnp.float32)
    cfg = kqljax.KQLConfig(kernel=kernel, num_actions=3, horizon=5, engine=kqljax.Weights(refused))
    # Also inside jit, where the map's numbers are traced.
    for init in (kqljax.kql_init, jax.jit(kqljax.kql_init, static_argnums=(1, 2))):
        with pytest.raises(
            ValueError,
            match="float32 cannot carry these .* features.*tolerance of at least 1e-6 of",
        ):
            init(cfg, 2, "float32")
        init(cfg, 2, "float64")


# Errors -------------------------------------------------------------------------------------------


class Own(Kernel):
    """A user's kernel that says nothing of how it splits."""

    def evaluate(self, x, y):
        return jnp.exp(-jnp.sum((x.obs - y.obs) ** 2)) * jnp.dot(x.action, y.action)


PRODUCT = "features.nystrom wants a kernel that is a state part times an action part"
ERRORS = {
    "taylor of matern": (lambda: features.taylor(MATERN, 2, 3), "features.taylor is for the kernel RBF, got Matern32"),
    "taylor of scaled": (lambda: features.taylor(0.5 * RBF, 2, 3), "features.taylor is for the kernel RBF, got Scaled"),
    "linear of rbf": (lambda: features.linear(RBF, 2, 3), "features.linear is for the kernel Linear, got RBF"),
    "fourier of linear": (
        lambda: features.fourier(kqljax.Linear(), 2, 3),
        "features.fourier is for the kernel RBF or Matern32 or Matern52, got Linear",
    ),
    "nystrom of matern": (lambda: features.nystrom(MATERN, BOX, 3), f"{PRODUCT}.*Use features.fourier"),
    "nystrom of linear": (lambda: features.nystrom(kqljax.Linear(), BOX, 3), "features.linear for Linear"),
    "nystrom of a sum": (lambda: features.nystrom(RBF + RBF, BOX, 3), PRODUCT),
    "nystrom of a user's": (lambda: features.nystrom(Own(), BOX, 3), PRODUCT),
    "no frequencies": (lambda: features.fourier(RBF, 2, 3, 0), "num_frequencies must be at least 1"),
    "order 0": (lambda: features.taylor(RBF, 2, 3, order=0), "order must be at least 1"),
    "taylor of three etas": (lambda: features.taylor(THREE, 2, 3), "eta must be a number or 2 numbers, one a coordinate"),
    "fourier of three etas": (lambda: features.fourier(THREE, 2, 3), r"must be a number or 2 numbers.*got shape \(3,\)"),
    "nystrom of three etas": (lambda: features.nystrom(0.5 * THREE, BOX, 3), "kernel.eta must be a number or 2 numbers"),
    "traced, nystrom": (
        lambda: jax.vmap(lambda eta: features.nystrom(kqljax.RBF(eta=eta), BOX, 3).root)(ETAS),
        "make it outside jit and vmap",
    ),
    "traced, taylor": (
        lambda: jax.vmap(lambda eta: features.taylor(kqljax.RBF(eta=eta), 2, 3).root)(ETAS),
        "cannot derive its order from an eta that is being traced: give order=",
    ),
}  # fmt: skip
for _tolerance in (0.0, -1e-3, 1.0, math.nan):
    _message = r"tolerance must be in \(0, 1\), got"
    ERRORS[f"taylor to {_tolerance}"] = (
        functools.partial(features.taylor, RBF, 2, 3, _tolerance),
        _message,
    )
    ERRORS[f"nystrom to {_tolerance}"] = (
        functools.partial(features.nystrom, RBF, BOX, 3, _tolerance),
        _message,
    )
for _states in (np.zeros(5), np.zeros((0, 2)), np.zeros((2, 3, 4)), []):
    ERRORS[f"states {np.shape(_states)}"] = (
        functools.partial(features.nystrom, RBF, _states, 3), r"states must have shape \[N, l\] with N > 0"
    )  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors_say_what_to_do(name):
    make, message = ERRORS[name]
    with pytest.raises(ValueError, match=message):
        make()


def test_a_tolerance_out_of_reach_names_a_size_that_would_do():
    with pytest.raises(ValueError, match="out of reach of features.taylor: ") as caught:
        features.taylor(kqljax.RBF(eta=1.0), 4, 3, 1e-6)
    order = int(str(caught.value).split("order=")[1].split(",")[0])
    assert math.comb(order - 1 + 4, 4) > 2000
    assert 8.0**order / math.factorial(order) <= 1e-6

    with pytest.raises(ValueError, match="out of reach of 8 states: a residual of") as caught:
        features.nystrom(RBF, BOX, 3, 1e-3, max_features=8)
    size = int(str(caught.value).split("max_features=")[1].split(" ")[0])
    enough = features.nystrom(RBF, BOX, 3, 1e-3, max_features=max(size, 40))
    assert 0.6 * enough.num_features <= size <= 2 * enough.num_features
