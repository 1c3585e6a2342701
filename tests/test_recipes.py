"""Recipes: what they are, and a run that fits its kernel on the way."""

import dataclasses
import inspect
import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import kqljax
from kqljax import committee, fitting, model, recipes
from kqljax.committee import committee_policy, convene
from kqljax.tasks import TASKS

STEPS, FIRST = 40, 10


@pytest.fixture(scope="module")
def run():
    task = kqljax.make_task("MountainCar-v0")
    cfg = recipes.ROBUST.config(task, horizon=STEPS)
    return task, cfg, jax.jit(lambda key: recipes.train(task, cfg, key, first_fit=FIRST))(jax.random.key(0))


def _replayed(task, cfg, actions, seed):
    """The transitions of a run whose actions are known: the environment is driven once more with the same keys."""
    keys = kqljax.rollout.split_key(jax.random.key(seed))
    obs, env_state = task.reset(keys.reset)
    found = []
    for number, action in enumerate(actions):
        env_key, _ = jax.random.split(jax.random.fold_in(keys.step, number))
        step = task.step(env_key, env_state, action)
        found.append(kqljax.Transition(obs, action, step.reward, step.next_obs, step.terminated))
        obs, env_state = step.obs, step.env_state
    return found


def test_the_state_is_that_of_the_same_transitions_with_the_last_kernel(run):
    task, cfg, found = run
    transitions = _replayed(task, cfg, found.log.action, 0)
    # Fits at 10 and 20; the kernel from 20 on, and what it makes of all transitions, from plain steps.
    first = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *transitions[:20])
    kernel = fitting.fit_kernel(cfg.kernel, first)
    np.testing.assert_allclose(found.state.kernel.kernel.eta, kernel.kernel.eta, rtol=1e-9)
    np.testing.assert_allclose(found.state.kernel.effect, kernel.effect, atol=1e-9)
    fixed = dataclasses.replace(cfg, kernel=kernel)
    state, step = kqljax.kql_init(fixed, task.obs_dim), jax.jit(kqljax.kql_step)
    for transition in transitions:
        state, _ = step(fixed, state, transition)
    np.testing.assert_allclose(found.state.state.q_tilde, state.q_tilde, atol=1e-7)
    assert bool(found.log.info.is_stored.all() & found.log.info.is_finite.all())


def test_the_action_after_a_fit_is_of_the_new_kernel(run):
    task, cfg, found = run
    transitions = _replayed(task, cfg, found.log.action, 0)
    first = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *transitions[:FIRST])
    fixed = dataclasses.replace(cfg, kernel=fitting.fit_kernel(cfg.kernel, first))
    state, step = kqljax.kql_init(fixed, task.obs_dim), jax.jit(kqljax.kql_step)
    for transition in transitions[:FIRST]:
        state, _ = step(fixed, state, transition)
    action, _ = kqljax.kql_act(fixed, state, transitions[FIRST].obs)
    assert int(action) == int(found.log.action[FIRST])


def test_evaluation_is_of_the_fitted_kernel(run):
    task, cfg, found = run
    key = jax.random.key(5)
    fitted = dataclasses.replace(cfg, kernel=found.state.kernel)
    returns = recipes.evaluate(task, cfg, found.state, key, 3, committee=None)
    np.testing.assert_array_equal(returns, kqljax.evaluate(task, fitted, found.state.state, key, 3))


def test_evaluation_asks_the_committee(run):
    task, cfg, found = run
    key = jax.random.key(5)
    fitted = dataclasses.replace(cfg, kernel=found.state.kernel)
    state, panel = found.state.state, recipes.ROBUST.committee

    @jax.jit
    def by_hand(state):
        act = committee_policy(fitted, state, convene(fitted, state, panel), panel)
        return kqljax.rollout_returns(task, lambda obs, key: act(obs, key)[0], key, 3)

    returns = jax.jit(lambda fitted: recipes.evaluate(task, cfg, fitted, key, 3))(found.state)
    np.testing.assert_array_equal(returns, by_hand(state))


def test_without_fits_it_is_plain_training():
    task = kqljax.make_task("MountainCar-v0")
    cfg = recipes.PAPER.config(task, horizon=20)
    found = jax.jit(lambda key: recipes.train(task, cfg, key, first_fit=None))(jax.random.key(2))
    plain = jax.jit(kqljax.train)(task, cfg, jax.random.key(2))
    np.testing.assert_array_equal(found.log.action, plain.log.action)
    np.testing.assert_allclose(found.state.state.q_tilde, plain.state.q_tilde, atol=1e-9)


def test_evaluations_on_the_way_do_not_change_the_run(run):
    task, cfg, found = run
    train = jax.jit(lambda key: recipes.train(task, cfg, key, first_fit=FIRST, eval_at=(15, STEPS), eval_episodes=2))
    other = train(jax.random.key(0))
    assert other.curve.shape == (2, 2)
    np.testing.assert_array_equal(other.log.action, found.log.action)


def test_seeds_of_a_vmap_are_seeds_alone(run):
    task, cfg, found = run
    keys = jnp.stack([jax.random.key(0), jax.random.key(1)])
    actions = jax.jit(jax.vmap(lambda key: recipes.train(task, cfg, key, first_fit=FIRST).log.action))(keys)
    np.testing.assert_array_equal(actions[0], found.log.action)


def test_the_papers_recipe_is_the_papers():
    task = kqljax.make_task("Pendulum-v1")
    cfg = recipes.make_recipe("paper").config(task, 1000)
    wanted = task.config(horizon=1000)
    assert cfg == wanted


def test_no_task_is_named():
    text = "".join(inspect.getsource(module) for module in (recipes, fitting, committee, model))
    code = re.sub(r'"""[\s\S]*?"""', "", text)
    for name in TASKS:
        base = name.rsplit("-v", 1)[0].lower()
        assert base not in code.lower()
    assert "task.name" not in code


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_it_lowers_for_accelerators(platform):
    task = kqljax.make_task("MountainCar-v0")
    cfg = recipes.ROBUST.config(task, horizon=12)
    program = jax.jit(lambda key: recipes.train(task, cfg, key, first_fit=6, dtype=jnp.float64).log.action)
    exported = jax.export.export(program, platforms=[platform])(jax.random.key(0))
    assert "callback" not in exported.mlir_module()


def test_unknown_recipe():
    with pytest.raises(ValueError, match="unknown recipe 'robsut'. Did you mean robust\\?"):
        recipes.make_recipe("robsut")


def test_a_kernel_that_cannot_be_fitted():
    task = kqljax.make_task("MountainCar-v0")
    with pytest.raises(ValueError, match="only TwoScale, and Afterstate of it, can be fitted"):
        recipes.train(task, task.config(horizon=20), jax.random.key(0), first_fit=5)
