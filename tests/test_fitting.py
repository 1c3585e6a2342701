"""The kernel's widths from transitions, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import random_transitions

import kqljax
from kqljax import fitting


def _steps(count, function, seed=0, spread=(1.0, 1.0)):
    """Transitions whose step is a function of the state."""
    drawn = random_transitions(count, seed)
    obs = drawn.obs * jnp.asarray(spread)
    return drawn._replace(obs=obs, next_obs=obs + function(obs), terminated=jnp.zeros(count, bool))


def _evidence(seen, eta, eta_action, noise):
    """The marginal likelihood of each coordinate's steps, from its definition, summed; its variance by search."""
    kept = ~np.asarray(seen.terminated)
    obs, action = np.asarray(seen.obs)[kept], np.asarray(seen.action)[kept]
    deviation, reach = np.asarray(seen.obs).std(axis=0), np.ptp(np.asarray(seen.obs), axis=0) / 2
    spread = np.maximum(np.sqrt(deviation * reach), fitting.LEAST_SPREAD)
    steps = (np.asarray(seen.next_obs) - np.asarray(seen.obs))[kept] / spread
    steps = (steps - steps.mean(axis=0)) / steps.std(axis=0)
    scaled = obs / spread
    kernel = np.exp(-eta * ((scaled[:, None] - scaled) ** 2).sum(axis=-1))
    kernel *= np.where(action[:, None] == action, 1.0, np.exp(-2 * eta_action))
    matrix = kernel + noise * np.eye(len(obs))
    _, size = np.linalg.slogdet(matrix)
    total = 0.0
    for column in steps.T:
        quadratic = column @ np.linalg.solve(matrix, column)
        variances = np.exp(np.linspace(-12, 12, 20001))
        log_likelihood = -0.5 * (quadratic / variances + len(column) * np.log(variances) + size)
        total += log_likelihood.max() + 0.5 * len(column)
    return total


def test_the_evidence_is_the_marginal_likelihood():
    seen = random_transitions(40, seed=3)
    etas = jnp.array([0.05, 0.5])
    found = fitting.evidence_of_steps(seen, 40, fitting.spread_of(seen.obs, 40), etas, 0.1)
    wanted = [_evidence(seen, eta, 0.1, fitting.NOISE) for eta in (0.05, 0.5)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 30, 60])
def test_only_the_first_count(count):
    seen = random_transitions(60, seed=1)
    part = jax.tree.map(lambda leaf: leaf[:count], seen)
    kernel = kqljax.TwoScale()
    alone, masked = fitting.fit_kernel(kernel, part), jax.jit(fitting.fit_kernel)(kernel, seen, count)
    np.testing.assert_allclose(masked.eta, alone.eta, rtol=1e-9)


def test_rough_steps_make_narrow_kernels():
    smooth = fitting.fit_kernel(kqljax.TwoScale(), _steps(200, lambda obs: 0.1 * obs))
    rough = fitting.fit_kernel(kqljax.TwoScale(), _steps(200, lambda obs: 0.1 * jnp.sin(6 * obs)))
    assert np.all(np.asarray(rough.eta) > 3 * np.asarray(smooth.eta))


def test_units_do_not_matter_where_states_spread():
    plain = _steps(150, lambda obs: 0.1 * jnp.sin(3 * obs))
    factor = jnp.array([1.0, 0.5])
    other = plain._replace(obs=plain.obs * factor, next_obs=plain.next_obs * factor)
    first, second = (fitting.fit_kernel(kqljax.TwoScale(), seen).eta for seen in (plain, other))
    np.testing.assert_allclose(second * factor**2, first, rtol=1e-6)


def test_ends_are_left_out():
    seen = _steps(120, lambda obs: 0.1 * obs)
    ends = jnp.arange(120) % 10 == 0
    jumping = seen._replace(next_obs=jnp.where(ends[:, None], 5.0, seen.next_obs), terminated=ends)
    quiet = seen._replace(terminated=ends)
    np.testing.assert_array_equal(
        fitting.fit_kernel(kqljax.TwoScale(), jumping).eta, fitting.fit_kernel(kqljax.TwoScale(), quiet).eta
    )


def test_a_coordinate_that_never_moves():
    seen = _steps(60, lambda obs: 0.1 * obs, spread=(1.0, 0.0))
    eta = fitting.fit_kernel(kqljax.TwoScale(), seen).eta
    assert np.all(np.isfinite(eta))
    assert float(eta[1]) in fitting.ETAS


def test_without_any_evidence_the_kernel_stays():
    seen = _steps(60, lambda obs: 0.1 * obs)
    lost = seen._replace(next_obs=seen.next_obs.at[3, 0].set(jnp.nan))
    kernel = kqljax.TwoScale(eta=jnp.array([0.3, 0.4]))
    np.testing.assert_array_equal(fitting.fit_kernel(kernel, lost).eta, kernel.eta)


def test_a_width_without_evidence_is_not_chosen(monkeypatch):
    seen = _steps(60, lambda obs: 0.1 * obs)
    evidence = jnp.array([jnp.nan, 1.0, 3.0, jnp.nan, 2.0])
    monkeypatch.setattr(fitting, "evidence_of_steps", lambda *_: evidence)
    eta = fitting.fit_kernel(kqljax.TwoScale(), seen).eta
    np.testing.assert_allclose(eta * fitting.spread_of(seen.obs, 60) ** 2, fitting.ETAS[2])


def test_long_runs_are_thinned_evenly(monkeypatch):
    seen = _steps(400, lambda obs: 0.1 * jnp.sin(3 * obs))
    every_fourth = jax.tree.map(lambda leaf: leaf[::4], seen)
    spread, etas = fitting.spread_of(seen.obs, 400), jnp.array([0.05, 0.5])
    wanted = fitting.evidence_of_steps(every_fourth, 100, spread, etas, 0.02)
    monkeypatch.setattr(fitting, "_MOST_ROWS", 100)
    np.testing.assert_allclose(fitting.evidence_of_steps(seen, 400, spread, etas, 0.02), wanted, rtol=1e-9)


def test_under_vmap():
    many = [_steps(40, lambda obs: 0.1 * jnp.sin(4 * obs), seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *many)
    found = jax.jit(jax.vmap(lambda seen: fitting.fit_kernel(kqljax.TwoScale(), seen).eta))(stacked)
    for eta, seen in zip(found, many, strict=True):
        np.testing.assert_allclose(eta, fitting.fit_kernel(kqljax.TwoScale(), seen).eta, rtol=1e-9)


def test_counts_double():
    assert fitting.fit_counts(1000) == (125, 250, 500)
    assert fitting.fit_counts(125) == ()
    assert fitting.fit_counts(1001, 125) == (125, 250, 500, 1000)


def test_a_coordinate_that_hardly_moved_is_not_narrow():
    still = _steps(150, lambda obs: 0.1 * obs, spread=(1.0, 0.001))
    spread = fitting.spread_of(still.obs, 150)
    assert spread[1] == fitting.LEAST_SPREAD < spread[0]
    eta = fitting.fit_kernel(kqljax.TwoScale(), still).eta
    np.testing.assert_allclose(eta[1] / eta[0], (spread[0] / spread[1]) ** 2)


def _pushed(count, effect, seed=2, ends=False):
    """Steps that are a curved function of the state and a push by the action; where an episode ends, anything."""
    drawn = random_transitions(count, seed)
    next_obs = drawn.obs + 0.1 * jnp.sin(2 * drawn.obs) + jnp.asarray(effect)[drawn.action]
    wild = jnp.where(drawn.terminated[:, None], 5.0, next_obs)
    return drawn._replace(next_obs=wild if ends else next_obs, terminated=drawn.terminated & ends)


EFFECT = np.array([[0.05, 0.0], [0.0, -0.02], [-0.05, 0.02]])


@pytest.mark.parametrize("ends", [False, True])
def test_effects_of_actions(ends):
    kernel = kqljax.Afterstate(kqljax.TwoScale(), effect=np.zeros((3, 2)))
    found = fitting.fit_kernel(kernel, _pushed(200, EFFECT, ends=ends)).effect
    np.testing.assert_allclose(found, EFFECT, atol=2e-3)


def test_effects_are_those_of_the_model():
    seen, eta = _pushed(40, EFFECT), np.array([0.3, 0.7])
    obs, taken = np.asarray(seen.obs) * np.sqrt(eta), np.eye(3)[np.asarray(seen.action)]
    steps = np.asarray(seen.next_obs - seen.obs)
    matrix = np.exp(-((obs[:, None] - obs) ** 2).sum(axis=-1)) + taken @ taken.T + fitting.NOISE * np.eye(40)
    wanted = taken.T @ np.linalg.solve(matrix, steps - steps.mean(axis=0))
    found = fitting.effects_of_actions(seen, 40, jnp.asarray(eta), 3)
    np.testing.assert_allclose(found, wanted - wanted.mean(axis=0), atol=1e-9)


def test_an_action_that_was_never_taken_has_no_effect():
    seen = _pushed(100, EFFECT)
    seen = seen._replace(action=seen.action % 2, next_obs=seen.obs + jnp.asarray(EFFECT)[seen.action % 2])
    found = fitting.effects_of_actions(seen, 100, jnp.ones(2), 3)
    np.testing.assert_array_equal(found[2], 0.0)
    np.testing.assert_allclose(found[0] - found[1], EFFECT[0] - EFFECT[1], atol=1e-3)


def test_effects_that_are_not_numbers_are_not_taken():
    seen = _pushed(30, EFFECT)
    broken = seen._replace(next_obs=seen.next_obs.at[3, 0].set(jnp.nan))
    kernel = kqljax.Afterstate(kqljax.TwoScale(eta=np.full(2, 0.5)), effect=np.full((3, 2), 0.25))
    np.testing.assert_array_equal(fitting.fit_kernel(kernel, broken).effect, kernel.effect)


def test_effects_need_a_place():
    with pytest.raises(ValueError, match=r"effect of shape \(\), a fit needs a displacement for each action.*jnp.zeros"):
        fitting.fit_kernel(kqljax.Afterstate(kqljax.TwoScale()), _pushed(10, EFFECT))
