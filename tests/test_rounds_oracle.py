"""Learning in rounds, part by part, against the NumPy oracle that was written from the recipe's
text.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rounds_oracle as oracle
from rounds_data import TASKS, as_numpy, compiled, recorded

from kqljax.rounds import DEFAULT
from kqljax.rounds.ensemble import fit_ensemble, member_values
from kqljax.rounds.learner import append, fit_learner, optimistic, query
from kqljax.rounds.model import fit_model, plan_values, predict_step
from kqljax.rounds.policy import finished_action
from kqljax.rounds.round import EVERY_BLOCK, finish
from kqljax.rounds.widths import Scales, displacements, fit_weights

N, CAPACITY = 150, 170
RECIPE = dataclasses.replace(
    DEFAULT, centres=512, finish_centres=512, model_centres=512, span_tolerance=1e-9
)
"""The recipe with room for every pair among the centres, as the oracle has (blocks repeat pairs:
more room than pairs).
"""
NUMBERS = {"gamma": RECIPE.gamma, "ridge": RECIPE.ridge}


def fit_scales(recipe, transitions):
    weights = fit_weights(recipe, transitions)
    return Scales(weights, displacements(recipe, transitions, weights))


class Case:
    """Everything that is fitted to the transitions of a task, here and by the oracle."""

    def __init__(self, name):
        self.transitions = recorded(name, N, capacity=CAPACITY)
        self.data = as_numpy(self.transitions)
        S, A, _, S2, ended = self.data
        self.num_actions, self.v = self.transitions.num_actions, float(self.transitions.end_value)
        self.weights, self.eta = oracle.fit_widths(S, A, S2, ended)
        self.displacement = oracle.displacements(S, A, S2, ended, self.weights, self.num_actions)
        rng = np.random.default_rng(1)
        self.asked = S2[rng.integers(0, N, 12)] + 0.02 * rng.normal(size=(12, S.shape[1]))

        def everything(transitions, asked):
            scales = fit_scales(RECIPE, transitions)
            learned = fit_learner(
                dataclasses.replace(RECIPE, backups=10), transitions, scales, most_new=4
            )
            ensemble = fit_ensemble(RECIPE, transitions, scales)
            model = fit_model(RECIPE, transitions, scales, ensemble.centres)
            learner, queries = learned.learner, []
            for i in range(4):
                queries.append(jax.vmap(lambda obs: query(RECIPE, learner, scales, obs))(asked))  # noqa: B023
                learner = append(
                    RECIPE,
                    learner,
                    query(RECIPE, learner, scales, asked[i]),
                    jnp.int32(i % self.num_actions),
                )
            queries.append(jax.vmap(lambda obs: query(RECIPE, learner, scales, obs))(asked))
            values = member_values(RECIPE, ensemble.ensemble, asked)
            plans = plan_values(RECIPE, model, ensemble.ensemble, asked)
            actions = [
                finished_action(
                    dataclasses.replace(RECIPE, unclear=k), ensemble.ensemble, model, asked
                )
                for k in (0.0, 1.0, 1e9)
            ]
            steps = predict_step(RECIPE, model, asked)
            gap = finish(RECIPE, transitions, scales, learned.value, EVERY_BLOCK).optimism_gap
            return scales, learned, ensemble, model, queries, values, plans, actions, steps, gap

        arguments = self.transitions, jnp.asarray(self.asked)
        found = compiled(everything, *arguments)(*arguments)
        self.scales, self.learned, self.ensemble, self.model, self.queries, self.values, *rest = (
            found
        )
        self.plans, self.actions, self.steps, self.gap = rest

    def learner(self):
        S, A, R, S2, ended = self.data
        start = np.full(N, 1 / (1 - RECIPE.gamma))
        numbers = {"gamma": RECIPE.gamma, "ridge": RECIPE.ridge, "backups": 10}
        return oracle.learner_round(
            S,
            A,
            R,
            S2,
            ended,
            start,
            self.weights,
            self.displacement,
            self.num_actions,
            self.v,
            **numbers,
        )


@pytest.fixture(scope="module", params=TASKS)
def case(request):
    return Case(request.param)


def test_widths(case):
    np.testing.assert_allclose(case.scales.weights, case.weights, rtol=1e-9)


def test_displacements(case):
    np.testing.assert_allclose(case.scales.displacement, case.displacement, atol=1e-9)
    assert np.abs(case.displacement).max() > 1e-4


def test_values_of_the_learner(case):
    expected = case.learner()
    assert int(case.learned.backups) == expected.backups == 10
    np.testing.assert_allclose(case.learned.value[:N], expected.V, atol=0.05)  # of 33
    np.testing.assert_array_equal(case.learned.value[N:], 0)  # not stored


def test_beliefs_of_the_learner_as_pairs_are_added(case):
    expected = case.learner()
    for i, found in enumerate(case.queries):
        mean, std = expected.mean_and_std(case.asked)
        np.testing.assert_allclose(found.mean, mean, atol=0.05)
        np.testing.assert_allclose(np.sqrt(found.variance), std, atol=5e-4)
        if i < 4:
            expected.append(case.asked[i], i % case.num_actions)
    assert float(jnp.min(case.queries[-1].variance / case.queries[0].variance)) < 0.99


def test_values_of_the_ensemble(case):
    S, A, R, S2, ended = case.data
    expected = oracle.finished_members(
        S, A, R, S2, ended, case.weights, case.displacement, case.num_actions, case.v
    )
    np.testing.assert_allclose(case.ensemble.backups, expected.backups, atol=3)
    np.testing.assert_allclose(case.values, expected.members(case.asked), atol=0.1)  # of 100


def test_model(case):
    S, A, R, S2, ended = case.data
    model = oracle.model(S, A, R, S2, ended, case.weights, case.num_actions)
    for action in range(case.num_actions):
        found = jax.tree.map(lambda leaf: leaf[action], case.steps)  # noqa: B023
        next_obs, reward, end = model.step(case.asked, np.full(12, action))
        np.testing.assert_allclose(found.next_obs, next_obs, atol=2e-3)
        np.testing.assert_allclose(found.reward, reward, atol=2e-3)
        np.testing.assert_allclose(found.end, end, atol=2e-3)
    assert int(case.model.held) == oracle.held_steps(S, S2, ended, case.weights)


class Members:
    """The library's ensemble with the oracle's methods: plans are compared with the same members on
    both sides.
    """

    def __init__(self, case):
        self.case = case
        self.jitted = jax.jit(lambda obs: member_values(RECIPE, case.ensemble.ensemble, obs))

    def members(self, obs):
        return np.asarray(self.jitted(jnp.asarray(obs)))

    def values(self, obs):
        return self.members(obs).mean(0)


def test_plans_and_actions(case):
    S, A, R, S2, ended = case.data
    model = oracle.model(S, A, R, S2, ended, case.weights, case.num_actions)
    members, held = Members(case), int(case.model.held)
    plans = oracle.plan_values(
        members, model, case.asked, held, RECIPE.finish_gamma, case.v, case.num_actions
    )
    np.testing.assert_allclose(case.plans, plans, atol=0.1)
    for k, found in zip((0.0, 1.0, 1e9), case.actions, strict=True):
        expected = oracle.act(members, model, case.asked, held, k, v=case.v)
        # Where two plans are worth the same to a thousandth, either will do.
        worth = plans[np.arange(12), np.asarray(found)] - plans[np.arange(12), expected]
        assert np.all((np.asarray(found) == expected) | (np.abs(worth) < 0.1))
        if k == 0.0:
            np.testing.assert_array_equal(found, expected)


def test_optimism_gap(case):
    _, _, _, S2, ended = case.data
    expected = oracle.optimism_gap(np.asarray(case.learned.value)[:N], S2, ended, Members(case))
    assert abs(float(case.gap) - expected) < 1e-3


def test_optimistic_values_are_not_cut_off_before_the_first_end(case):
    raw = np.asarray(case.queries[0].mean) + RECIPE.bonus / (1 - RECIPE.gamma) * np.sqrt(
        np.asarray(case.queries[0].variance)
    )
    found = jax.vmap(lambda asked: optimistic(RECIPE, case.learned.learner, asked))(case.queries[0])
    has_end = bool(np.any(case.data[4]))
    np.testing.assert_allclose(
        found, np.clip(raw, 0, 1 / (1 - RECIPE.gamma)) if has_end else raw, rtol=1e-9
    )
    open_ended = case.learned.learner._replace(is_clipped=jnp.array(False))
    np.testing.assert_allclose(
        jax.vmap(lambda asked: optimistic(RECIPE, open_ended, asked))(case.queries[0]),
        raw,
        rtol=1e-9,
    )


def test_the_cases_have_ends_where_the_tasks_have():
    ends = {name: int(recorded(name, N, capacity=CAPACITY).ended.sum()) for name in TASKS}
    assert ends["Pendulum-v1"] == 0
    assert all(ends[name] > 0 for name in TASKS if name != "Pendulum-v1"), ends


def test_scales_of_a_coordinate_that_does_not_move():
    transitions = recorded("MountainCar-v0", N)
    still = dataclasses.replace(
        transitions,
        obs=transitions.obs.at[:, 1].set(0.5),
        next_obs=transitions.next_obs.at[:, 1].set(0.5),
    )
    scales = jax.jit(lambda t: fit_scales(DEFAULT, t))(still)
    S, A, _, S2, ended = as_numpy(still)
    weights, _ = oracle.fit_widths(S, A, S2, ended)
    np.testing.assert_allclose(scales.weights, weights, rtol=1e-9)
    assert bool(jnp.isfinite(scales.displacement).all())
