"""Tables of kernels and engines, data without an environment, jitted functions that tests share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import kqljax
from kqljax import features, kql_act, kql_predict, kql_step


class Cosine(kqljax.Kernel):
    """A user's own kernel: one method, one parameter, no word about splitting."""

    weight: float = 0.3

    def evaluate(self, x, y):
        same = jnp.dot(x.action, y.action)
        return jnp.exp(-jnp.sum((x.obs - y.obs) ** 2) * self.weight) * (0.4 + 0.6 * same)


def _squared(x, y):
    return ((x[:, None] - y[None]) ** 2).sum(-1)


def _rbf(eta):
    return lambda x, y, length: np.exp(-eta * _squared(x, y))


def _rbf_of_two(x, y, length):
    eta = np.array([0.2, 1.2])
    state = ((x[:, None, :length] - y[None, :, :length]) ** 2 * eta).sum(-1)
    return np.exp(-state - 0.7 * _squared(x[:, length:], y[:, length:]))


def _linear(x, y, length):
    return x @ y.T / (2 * (length + 1)) + 0.5


def _matern32(scale):
    def kernel(x, y, length):
        r = np.sqrt(3 * _squared(x, y)) / scale
        return (1 + r) * np.exp(-r)

    return kernel


def _matern52(scale):
    def kernel(x, y, length):
        r = np.sqrt(5 * _squared(x, y)) / scale
        return (1 + r + r**2 / 3) * np.exp(-r)

    return kernel


def _cosine(weight):
    def kernel(x, y, length):
        return np.exp(-weight * _squared(x[:, :length], y[:, :length])) * (
            0.4 + 0.6 * x[:, length:] @ y[:, length:].T
        )

    return kernel


def _both(left, right, combine):
    return lambda x, y, length: combine(left(x, y, length), right(x, y, length))


def _half_of_each(left, right):
    return lambda x, y, length: 0.5 * left(x, y, length) + 0.5 * right(x, y, length)


KERNELS = {
    "rbf": (kqljax.RBF(eta=0.3), _rbf(0.3), 1),
    "rbf of two etas": (kqljax.RBF(eta=[0.2, 1.2]), _rbf_of_two, 1),
    "linear": (kqljax.Linear(), _linear, 1),
    "matern32": (kqljax.Matern32(length_scale=0.8), _matern32(0.8), 2),
    "matern52": (kqljax.Matern52(length_scale=1.5), _matern52(1.5), 2),
    "user": (Cosine(weight=0.7), _cosine(0.7), 3),
    "scaled": (0.5 * kqljax.RBF(eta=1.0), lambda x, y, n: 0.5 * _rbf(1.0)(x, y, n), 1),
    "sum": (
        0.5 * kqljax.RBF(eta=1.0) + 0.5 * kqljax.Linear(),
        _half_of_each(_rbf(1.0), _linear),
        2,
    ),
    "product": (
        kqljax.RBF(eta=0.1) * kqljax.Matern32(),
        _both(_rbf(0.1), _matern32(1.0), np.multiply),
        2,
    ),
    "product with shift": (
        kqljax.RBF(eta=0.1) * kqljax.Linear(),
        _both(_rbf(0.1), _linear, np.multiply),
        2,
    ),
    "product of shifts": (
        kqljax.Linear() * kqljax.Linear(),
        _both(_linear, _linear, np.multiply),
        3,
    ),
    "sum with user": (
        0.5 * Cosine() + 0.5 * kqljax.RBF(eta=1.0),
        _half_of_each(_cosine(0.3), _rbf(1.0)),
        3,
    ),
    "product with user": (
        Cosine() * kqljax.RBF(eta=1.0),
        _both(_cosine(0.3), _rbf(1.0), np.multiply),
        3,
    ),
}
"""name: kernel, NumPy form, number of stored terms with three actions."""


def joined(obs, action, num_actions=3):
    return np.concatenate([obs, np.eye(num_actions)[action]], axis=1)


def pairs(obs, action, num_actions=3):
    return kqljax.Pair(jnp.asarray(obs), jnp.eye(num_actions)[jnp.asarray(action)])


def random_pairs(seed, count, length=2, num_actions=3):
    """Observations `[count, length]` in [-1, 1] and actions `[count]`."""
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (count, length)), rng.integers(0, num_actions, count)


def random_transitions(count, seed=0, num_actions=3, length=2):
    """Transitions that no environment made, a row each; a fifth of them end."""
    rng = np.random.default_rng(seed)
    return kqljax.Transition(
        obs=jnp.asarray(rng.uniform(-1, 1, (count, length))),
        action=jnp.asarray(rng.integers(0, num_actions, count), jnp.int32),
        reward=jnp.asarray(rng.uniform(0, 1, count)),
        next_obs=jnp.asarray(rng.uniform(-1, 1, (count, length))),
        terminated=jnp.asarray(rng.random(count) < 0.2),
    )


def row(transitions, index):
    """One of them."""
    return jax.tree.map(lambda leaf: leaf[index], transitions)


# Engines -----------------------------------------------------------------------------------------

RBF = kqljax.RBF(eta=0.5)
CAP = 20.0
"""The largest value, 1 / (1 - gamma)."""

ENGINES = ("exact", "taylor", "nystrom")
"""Engines that the algorithm's invariants are checked on."""


@functools.cache
def make_map(name, num_actions=3):
    """Small maps in two dimensions, coarse: what is tested does not depend on their error."""
    return {
        "taylor": lambda: features.taylor(RBF, 2, num_actions, order=4),
        "grouped": lambda: features.taylor(kqljax.RBF(eta=0.02), 2, num_actions, 1e-4),
        "nystrom": lambda: features.nystrom(RBF, random_pairs(0, 60)[0], num_actions, 1e-2),
        "fourier": lambda: features.fourier(RBF, 2, num_actions, 8),
        "linear": lambda: features.linear(kqljax.Linear(), 2, num_actions),
    }[name]()


def config(engine="exact", /, **changes):
    """A config of the exact engine, or of the weight engine with a map of that name."""
    settings = {"kernel": RBF, "num_actions": 3, "horizon": 12}
    if engine != "exact":
        made = make_map(engine, changes.get("num_actions", 3))
        settings |= {"kernel": made.kernel, "engine": kqljax.Weights(made)}
    return kqljax.KQLConfig(**(settings | changes))


# Most of the tests' time is compiling, and none of it wants fast code.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})

step = jit(kql_step)
step_and_act = jit(kqljax.kql_step_and_act)
act = jit(kql_act)
predict = jit(kql_predict)


@jit
def learn(cfg, state, transitions):
    """The state after all transitions, and each KQLInfo."""
    return jax.lax.scan(lambda s, t: kql_step(cfg, s, t), state, transitions)


@jit
def follow(cfg, state, transitions):
    """The last state; and what was believed before each step, the tables after it, its KQLInfo."""

    def body(state, transition):
        believed = (
            *kql_predict(cfg, state, transition.obs),
            *kql_act(KEY, cfg, state, transition.obs),
        )
        state, info = kql_step(cfg, state, transition)
        return state, (believed, kqljax.kql_tables(cfg, state), info)

    return jax.lax.scan(body, state, transitions)


KEY = jax.random.key(0)
"""For config with ties that are broken by the first, which draw nothing."""


def part(transitions, start, stop):
    """Some of them, in order."""
    return jax.tree.map(lambda leaf: leaf[start:stop], transitions)


def assert_same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def assert_close(one, other, atol):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)
