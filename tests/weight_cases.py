"""Small maps, configs and jitted functions that the tests of the weight-space engine share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from cases import random_pairs

import kqljax
from kqljax import features, kql_act, kql_predict, kql_step

RBF = kqljax.RBF(eta=0.5)
CAP = 20.0

# Nearly all the time of this file is compiling, and none of it wants fast code.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@functools.cache
def make_map(name, num_actions=3):
    """Small maps in two dimensions, coarse on purpose: what is tested here does not depend on their error."""
    return {
        "taylor": lambda: features.taylor(RBF, 2, num_actions, order=4),
        "grouped": lambda: features.taylor(kqljax.RBF(eta=0.02), 2, num_actions, 1e-4),
        "nystrom": lambda: features.nystrom(RBF, random_pairs(0, 60)[0], num_actions, 1e-2),
        "fourier": lambda: features.fourier(RBF, 2, num_actions, 8),
        "linear": lambda: features.linear(kqljax.Linear(), 2, num_actions),
    }[name]()


def config(name="taylor", **changes):
    made = make_map(name, changes.get("num_actions", 3))
    settings = {"kernel": made.kernel, "num_actions": 3, "horizon": 12, "features": made, **changes}
    return kqljax.KQLConfig(**settings)


LAZY = {
    "default": {},
    "some rows": {"refresh_rows": 3},
    "reservoir": {"memory": 5, "eviction": "reservoir", "refresh_rows": 2},
}


step = jit(kql_step)
act = jit(kql_act)


@jit
def predict_all(cfg, state, states):
    return jax.vmap(lambda obs: kql_predict(cfg, state, obs))(states)


@jit
def learn(cfg, state, transitions):
    return jax.lax.scan(lambda s, t: kql_step(cfg, s, t), state, transitions)


@jit
def follow(cfg, state, transitions):
    """What an agent believed before each step, the tables after it, and the last state."""

    def body(state, transition):
        q_hat, width = kql_predict(cfg, state, transition.obs)
        action, q_tilde = kql_act(cfg, state, transition.obs)
        state, info = kql_step(cfg, state, transition)
        return state, ((q_hat, width, q_tilde), action, info, (state.q_hat, state.width, state.q_tilde))

    return jax.lax.scan(body, state, transitions)


def assert_same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def assert_close(one, other, atol):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


@jit
def psi_of(made, obs):
    return jax.vmap(made.psi)(obs)


def explicit(made, obs):
    """R[a]^T psi(s) `[N, A, D]` in NumPy."""
    psi = np.asarray(psi_of(made, jnp.asarray(obs, jnp.float64)))
    return np.einsum("nm,amd->nad", psi, np.asarray(made.root, np.float64))


def batch_ridge(phi, target, lam, queries, own=1.0):
    """Mean and width of ridge regression on rows phi `[N, D]`, at rows `queries` `[..., D]`, by a dense solve.

    What the queries' norms leave of k(x, x) = `own` is not known; 0 is a width within the features.
    """
    factor = np.linalg.cholesky(phi.T @ phi + lam * np.eye(phi.shape[1]))
    mean = queries @ np.linalg.solve(factor.T, np.linalg.solve(factor, phi.T @ target))
    white = np.linalg.solve(factor, queries.reshape(-1, phi.shape[1]).T)
    squared = (white**2).sum(axis=0).reshape(queries.shape[:-1])
    return mean, np.sqrt(squared + np.maximum(own - (queries**2).sum(axis=-1), 0) / lam)
