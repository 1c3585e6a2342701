"""Learning in rounds for users: train, fit, evaluate, policies, batches, platforms, mistakes."""

import dataclasses
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rounds_data import SMALL, compiled

import kqljax
from kqljax import rounds

RECIPE = dataclasses.replace(rounds.DEFAULT, **SMALL, own_from=60, unclear=1e9)
"""Small, with the finished policy acting early and looking ahead everywhere."""
STEPS, SEEDS = 200, 6


@pytest.fixture(scope="module")
def task():
    return kqljax.make_task("CartPole-v0")


@pytest.fixture(scope="module")
def program(task):
    """Trains and evaluates one seed, compiled once for all tests."""

    def run(key, recipe):
        train_key, eval_key = jax.random.split(key)
        found = kqljax.train(train_key, task, recipe, num_steps=STEPS)
        return found, kqljax.evaluate(eval_key, task, found, num_episodes=3)

    return compiled(run, jax.random.key(0), RECIPE)


@pytest.fixture(scope="module")
def run(program):
    return program(jax.random.key(2), RECIPE)[0]


@pytest.fixture(scope="module")
def fit(run):
    """`rounds.fit` of other transitions and its policy's answers, compiled once for all tests."""

    def fit(transitions):
        found = rounds.fit(None, RECIPE, transitions)
        return (
            found,
            found.policy.act(None, (), transitions.next_obs)[0],
            found.policy.values(transitions.next_obs),
        )

    return compiled(fit, run.state.transitions)


def test_the_rounds_are_known_before_the_run():
    plan = rounds.schedule(rounds.DEFAULT, 1000)
    assert [each.begins_at for each in plan[:4]] == [0, 5, 10, 15]
    assert plan[-1].begins_at == 1000
    assert plan[-1].steps == 0
    for this, following in itertools.pairwise(plan):
        assert this.begins_at + this.steps == following.begins_at
        assert this.steps == max(5, this.begins_at // 20) or following.begins_at == 1000
    assert [each.begins_at for each in plan if each.due.scales] == [30, 60, 120, 250, 488, 1000]
    own = [each.begins_at for each in plan if each.due.finish]
    assert own[0] == 100
    assert all(after >= 1.2 * before for before, after in itertools.pairwise(own[:-1]))


def test_transitions_are_what_happened(run):
    stored, log = run.state.transitions, run.log
    assert int(stored.count) == STEPS
    np.testing.assert_array_equal(stored.action, log.action)
    np.testing.assert_array_equal(stored.discount == 0, log.terminated)
    np.testing.assert_array_equal(stored.is_last, log.terminated | log.truncated)
    np.testing.assert_array_equal(stored.is_first[1:], stored.is_last[:-1])
    assert bool(stored.is_first[0])
    assert int(log.terminated.sum()) >= 2
    goes_on = ~np.asarray(stored.is_last[:-1])
    np.testing.assert_array_equal(stored.obs[1:][goes_on], stored.next_obs[:-1][goes_on])
    assert np.all(
        np.any(np.asarray(stored.obs[1:] != stored.next_obs[:-1])[~goes_on], axis=1)
    )  # the true successor
    ends = np.flatnonzero(log.terminated)
    assert float(log.episode_return[ends[1]]) == ends[1] - ends[0]  # 1 a step


def test_what_is_told_of_each_step(run):
    info, count = run.log.info, np.arange(1, STEPS + 1)
    begins = [each.begins_at for each in rounds.schedule(RECIPE, STEPS)]
    np.testing.assert_array_equal(count[np.asarray(info.is_round)], begins[1:])
    # Between two rounds nothing is fitted, so nothing of a fit changes.
    goes_on = ~np.asarray(info.is_round)[1:]
    for column in (np.asarray(info.backups), np.asarray(info.optimism_gap)):
        np.testing.assert_array_equal(column[1:][goes_on], column[:-1][goes_on])
    assert bool(run.is_sound) and bool(info.is_finite.all())
    assert int(info.backups[-1]) == int(run.state.player.backups) > 0


def test_the_finished_policy_acts_once_there_are_ends(run):
    acts, gap = np.asarray(run.log.info.acts_finished), np.asarray(run.log.info.optimism_gap)
    count = np.arange(1, STEPS + 1)
    assert np.all(np.isinf(gap[count < RECIPE.own_from]))
    assert np.all(np.isfinite(gap[count > RECIPE.own_from + 20]))
    np.testing.assert_array_equal(acts[:-1], (gap < RECIPE.own_gap)[:-1])
    assert acts.any() and not acts[-1]


def test_train_and_fit_hold_the_same_policy(run, fit):
    found, actions, values = fit(run.state.transitions)
    for name in ("ensemble", "model", "scales"):
        ours, theirs = getattr(found.policy, name), getattr(run.policy, name)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), ours, theirs
        )
    same, same_values = policy_program(run)(run.policy, run.state.transitions.next_obs)
    np.testing.assert_array_equal(actions, same)
    assert len(np.unique(same)) == 2
    np.testing.assert_allclose(values.mean, same_values.mean, atol=1e-2)  # of 100
    np.testing.assert_allclose(values.optimistic, same_values.optimistic, atol=1e-2)  # of 33


def test_rows_that_are_not_stored_do_not_count(run, fit):
    part = dataclasses.replace(run.state.transitions, count=jnp.int32(100))
    other = dataclasses.replace(
        part, obs=part.obs.at[100:].set(7.0), reward=part.reward.at[100:].set(9.0)
    )
    (ours, actions, _), (theirs, same, _) = fit(part), fit(other)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    np.testing.assert_array_equal(actions, same)


def test_a_second_number_and_another_seed_compile_nothing(program, run):
    """One compiled program takes them all; it would refuse arguments that need another one."""
    changed = {"gamma": 0.9, "ridge": 1e-3, "etas": (0.1, 0.2, 0.3, 0.4, 0.5)}
    for key, recipe in ((1, RECIPE), (2, dataclasses.replace(RECIPE, **changed))):
        other, _ = program(jax.random.key(key), recipe)
        assert bool(other.is_sound)
        assert np.any(np.asarray(other.log.action != run.log.action))


def test_seeds_and_numbers_in_one_vmap_are_single_runs(task, program):
    keys = jax.random.split(jax.random.key(5), SEEDS)
    bonus = jnp.repeat(jnp.array([1.0, 0.5]), SEEDS // 2)
    recipes = dataclasses.replace(RECIPE, bonus=bonus)
    axes = jax.tree.map(lambda _: None, RECIPE)
    axes = dataclasses.replace(axes, bonus=0)

    def train(key, recipe):
        return kqljax.train(jax.random.split(key)[0], task, recipe, num_steps=STEPS)

    together = compiled(jax.vmap(train, in_axes=(0, axes)), keys, recipes)(keys, recipes)
    for i in range(SEEDS):
        alone, _ = program(keys[i], dataclasses.replace(RECIPE, bonus=bonus[i]))
        np.testing.assert_array_equal(together.log.action[i], alone.log.action)
        np.testing.assert_allclose(together.policy.ensemble.cap[i], alone.policy.ensemble.cap)
    assert len({tuple(np.asarray(row)) for row in together.log.action}) == SEEDS


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_lowers_for_accelerators_without_callbacks_and_with_batched_factorisations(platform, task):
    def run(key):
        found = kqljax.train(key, task, RECIPE, num_steps=40)
        return kqljax.evaluate(key, task, found.policy, num_episodes=2)

    keys = jax.random.split(jax.random.key(0), 3)
    text = jax.export.export(jax.jit(jax.vmap(run)), platforms=[platform])(keys).mlir_module()
    assert not re.search(r"custom_call @\w*callback", text)
    lines = [
        line
        for line in text.splitlines()
        if re.search(r"stablehlo\.(cholesky|triangular_solve)|potrf", line)
    ]
    shapes = [re.search(r"tensor<([\dx]+)xf64>", line)[1] for line in lines]
    assert len(shapes) > 10
    assert {shape.split("x")[0] for shape in shapes} == {"3"}, shapes


def policy_program(run):
    """Actions and values of a policy at as many observations as the run has steps."""

    def both(policy, obs):
        return policy.act(None, (), obs)[0], policy.values(obs)

    return compiled(both, run.policy, run.state.transitions.next_obs)


def test_a_policy_is_a_pytree(run, fit, task):
    policy, obs = run.policy, run.state.transitions.next_obs
    leaves, structure = jax.tree.flatten(policy)
    again = jax.tree.unflatten(structure, [np.array(leaf) for leaf in leaves])
    program = policy_program(run)
    expected, values = program(policy, obs)
    np.testing.assert_array_equal(program(again, obs)[0], expected)
    assert (
        values.mean.shape
        == values.spread.shape
        == values.optimistic.shape
        == (STEPS, task.num_actions)
    )
    assert np.mean(np.asarray(values.spread) > 0) > 0.5  # 0 where all members are at the cap

    def one(policy, obs):
        memory = policy.begin(jax.random.key(0))
        action, memory = policy.act(jax.random.key(0), memory, obs)
        return action, policy.values(obs)

    one_by_one, others = jax.jit(jax.vmap(one, in_axes=(None, 0)))(policy, obs[:5])
    np.testing.assert_array_equal(one_by_one, expected[:5])
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y[:5], rtol=1e-6), others, values)


def test_numbers_that_are_not_finite_are_seen(task, run, fit):
    broken = dataclasses.replace(
        run.state.transitions, reward=run.state.transitions.reward.at[3].set(jnp.nan)
    )
    with pytest.raises(ValueError, match="reward has nan at index"):
        rounds.fit(None, RECIPE, broken)
    found, actions, _ = fit(broken)  # values are not known inside of jit
    assert not bool(found.is_finite)
    assert actions.tolist() == [-1] * STEPS
    returns = jax.jit(
        lambda policy: kqljax.evaluate(jax.random.key(0), task, policy, num_episodes=2)
    )(found.policy)
    assert bool(jnp.isnan(returns).all())


def test_float32_is_refused(task):
    with (
        jax.enable_x64(False),
        pytest.raises(ValueError, match="float32 cannot factor.*jax_enable_x64"),
    ):
        kqljax.train(jax.random.key(0), task, rounds.DEFAULT, num_steps=10)


def test_acting_in_float32(run):
    obs = run.state.transitions.next_obs

    def both(policy):
        short = policy.astype(jnp.float32)
        return policy.act(None, (), obs)[0], short.act(None, (), obs)[0], short.ensemble.weights

    exact, short, weights = jax.jit(both)(run.policy)
    assert weights.dtype == jnp.float32
    assert np.mean(exact == short) > 0.97


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"gamma": 1.0}, r"gamma must be in \[0, 1\), got 1.0"),
        ({"ridge": 0.0}, "ridge must be a positive number, got 0.0"),
        ({"etas": (0.1, -1.0)}, "etas must be a positive number, got -1.0"),
        ({"centres": 100}, "centres=100: above 64 it must be a multiple of 64"),
        ({"members": 0}, "members must be"),
        ({"coupling": 1.5}, r"coupling must be in \[0, 1\]"),
        ({"round_share": 0.0}, "round_share must be in"),
        ({"own_growth": 0.5}, "own_growth must be at least 1"),
    ],
)
def test_a_recipe_that_cannot_work(changed, said):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(rounds.DEFAULT, **changed).validate()


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"obs": np.zeros(3)}, "obs and next_obs must be two arrays of one shape"),
        (
            {"obs": np.full((3, 2), np.inf)},
            r"obs has inf at index \(0, 0\); every one must be a finite number",
        ),
        ({"action": [0, 1, 2]}, r"action has 2 at index .*; every one must be in 0\.\.1"),
        (
            {"reward": [0.0, 0.5, -1.0]},
            r"reward has -1\.0 at index .*; every one must be in \[0, 1\]",
        ),
        ({"terminated": [False, True]}, r"terminated must have shape \(3,\)"),
        ({"end_value": 2.0}, r"end_value must be in \[0, 1\]"),
    ],
)
def test_transitions_that_no_fit_can_use(changed, said):
    good = {
        "obs": np.zeros((3, 2)),
        "action": [0, 1, 0],
        "reward": [0.0, 0.5, 1.0],
        "next_obs": np.ones((3, 2)),
    }
    good |= {"terminated": [False, False, True], "num_actions": 2}
    with pytest.raises(ValueError, match=said):
        rounds.Transitions.of(**(good | changed))


def test_other_mistakes(task, run):
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="recipe must be a kqljax.rounds.Recipe.*DEFAULT"):
        rounds.fit(None, "default", run.state.transitions)
    with pytest.raises(ValueError, match="task must be a kqljax.Task.*make_task"):
        kqljax.train(key, "CartPole-v0", rounds.DEFAULT, 20)
    with pytest.raises(ValueError, match="num_steps must be"):
        kqljax.train(key, task, rounds.DEFAULT, num_steps=0)
    with pytest.raises(
        ValueError, match="transitions must be kqljax.rounds.Transitions.*Transitions.of"
    ):
        rounds.fit(None, rounds.DEFAULT, np.zeros(3))
    with pytest.raises(
        ValueError, match="learning in rounds is done in float64, got dtype=float32"
    ):
        kqljax.train(key, task, rounds.DEFAULT, num_steps=20, dtype="float32")
    with pytest.raises(ValueError, match=r"obs must have shape \[4\] or \[n, 4\]"):
        run.policy.act(None, (), jnp.zeros(3))
    with pytest.raises(ValueError, match="less than the 200 rows"):
        run.state.transitions.resized(10)


def test_it_learns(task):
    """300 steps of CartPole, eight seeds."""
    train = kqljax.across_seeds(lambda key: _return(key, task))
    keys = jax.vmap(jax.random.key)(jnp.arange(8))
    returns = compiled(train, keys)(keys)
    assert np.median(returns) > 190, returns


def _return(key, task):
    train_key, eval_key = jax.random.split(key)
    policy = kqljax.train(train_key, task, rounds.DEFAULT, num_steps=300).policy
    return kqljax.evaluate(eval_key, task, policy, num_episodes=5).mean()
