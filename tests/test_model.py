"""The model of the environment: what it makes of smooth steps, walls and ends. NumPy's version is in test_committee.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kqljax
from kqljax.model import fit_model, foresee

COUNT = 200
ETA = np.array([1.0, 2.0])


def learned(obs, action, next_obs, reward, terminated, capacity=COUNT, dtype=None):
    cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=1.0), num_actions=2, horizon=COUNT, lam=0.1)
    state = kqljax.kql_init(cfg, 2, dtype, capacity=capacity)
    seen = kqljax.Transition(*(jnp.asarray(each) for each in (obs, action, reward, next_obs, terminated)))
    return jax.jit(lambda state: jax.lax.scan(lambda state, one: kqljax.kql_step(cfg, state, one), state, seen)[0])(state)


@pytest.fixture(scope="module")
def world():
    """States in the square, actions that push the second coordinate, a wall at 0.8, ends beyond 0.5 of the second one."""
    rng = np.random.default_rng(0)
    obs, action = rng.uniform(-1, 1, (COUNT, 2)), rng.integers(0, 2, COUNT)
    return obs, action, *outcome(obs, action)


def outcome(obs, action):
    pushed = 0.1 * np.sin(2 * obs[:, ::-1]) + np.column_stack([np.zeros(len(obs)), 0.1 * (2 * action - 1)])
    next_obs = obs + pushed
    next_obs[:, 0] = np.minimum(next_obs[:, 0], 0.8)
    return next_obs, 0.5 + 0.5 * np.cos(obs[:, 0]), next_obs[:, 1] > 0.5


def ask(model, obs, action):
    dtype = model.eta.dtype
    return [np.asarray(each) for each in jax.jit(foresee)(model, jnp.asarray(obs, dtype), jnp.eye(2, dtype=dtype)[action])]


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_it_foresees_what_was_not_seen(world, dtype):
    model = fit_model(ETA, learned(*world, dtype=dtype))
    rng = np.random.default_rng(1)
    obs, action = rng.uniform(-0.8, 0.3, (50, 2)), rng.integers(0, 2, 50)
    wanted, reward, _ = outcome(obs, action)
    moved, paid, ends = ask(model, obs, action)
    assert np.abs(moved - wanted).max() < 0.02  # of steps of 0.1, with a wall elsewhere
    np.testing.assert_allclose(paid, reward, atol=0.02)
    assert ends.max() < 0.5


def test_it_knows_ends(world):
    model = fit_model(ETA, learned(*world))
    obs = np.column_stack([np.linspace(-0.7, 0.5, 20), np.full(20, 0.8)])
    assert ask(model, obs, np.ones(20, int))[2].min() > 0.9
    assert ask(model, obs - [0.0, 1.0], np.ones(20, int))[2].max() < 0.1


def test_one_wall_is_not_felt_everywhere(world):
    """A narrow share keeps the error that a wall makes where it is: elsewhere a tenth of what a wide kernel alone leaves."""
    obs, action, next_obs, _, _ = world
    far = np.abs(obs[:, 0]) < 0.3
    model = fit_model(ETA, learned(*world))
    error = np.abs(ask(model, obs[far], action[far])[0] - next_obs[far]).max()
    distance = ((obs[:, None] - obs) ** 2 * ETA).sum(-1)
    wide = np.exp(-distance) * np.where(action[:, None] == action, 1.0, 0.9)
    fitted = wide @ np.linalg.solve(wide + 1e-4 * np.eye(COUNT), next_obs - obs)
    assert error < 0.1 * np.abs(obs + fitted - next_obs)[far].max()


def test_room_that_is_not_used_changes_nothing(world):
    tight, roomy = (fit_model(ETA, learned(*world, capacity=capacity)) for capacity in (COUNT, COUNT + 9))
    obs, action = world[0][:10] + 0.01, world[1][:10]
    for one, other in zip(ask(tight, obs, action), ask(roomy, obs, action), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)


def test_without_transitions_nothing_happens():
    cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=1.0), num_actions=2, horizon=5)
    model = fit_model(ETA, kqljax.kql_init(cfg, 2))
    moved, paid, ends = ask(model, np.array([[0.3, 0.1]]), np.array([1]))
    np.testing.assert_array_equal(moved, [[0.3, 0.1]])
    assert paid == ends == 0.0
