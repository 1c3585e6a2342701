"""Training and evaluation as pure functions."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kqljax


@pytest.fixture(scope="module")
def mountain_car():
    task = kqljax.make_task("MountainCar-v0")
    cfg = task.config(horizon=60)
    return task, cfg, jax.jit(kqljax.train)(task, cfg, jax.random.key(0))


def test_log_and_state_tell_one_story(mountain_car):
    task, _, run = mountain_car
    assert run.log.action.shape == (60,)
    assert bool(run.log.info.is_stored.all())
    assert int(run.state.num_stored) == 60
    np.testing.assert_array_equal(jnp.argmax(run.state.posterior.pairs.action, axis=1), run.log.action)
    np.testing.assert_allclose(run.state.reward, task.unit_reward(run.log.raw_reward))
    np.testing.assert_allclose(run.log.episode_return, -np.arange(1.0, 61.0))


@pytest.mark.parametrize("stages", [1, 3])
def test_stages_do_not_change_the_run(mountain_car, stages):
    task, cfg, run = mountain_car
    other = jax.jit(kqljax.train, static_argnames="stages")(task, cfg, jax.random.key(0), stages=stages)
    np.testing.assert_array_equal(other.log.action, run.log.action)
    np.testing.assert_allclose(other.state.q_tilde, run.state.q_tilde, atol=1e-7)


def test_a_vmapped_seed_is_the_seed_alone():
    task = kqljax.make_task("CartPole-v0")
    cfg = task.config(horizon=40)
    keys = jax.random.split(jax.random.key(1), 3)

    def one(key):
        run = kqljax.train(task, cfg, key, stages=2)
        return run.log, kqljax.evaluate(task, cfg, run.state, key, num_episodes=4)

    log, returns = jax.jit(jax.vmap(one))(keys)
    alone_log, alone = jax.jit(one)(keys[1])
    np.testing.assert_array_equal(log.action[1], alone_log.action)
    np.testing.assert_array_equal(returns[1], alone)
    assert bool(log.terminated.any())


def test_one_compile_over_settings_and_keys():
    task = kqljax.make_task("MountainCar-v0")
    chex.clear_trace_counter()
    train = jax.jit(chex.assert_max_traces(kqljax.train, n=1), static_argnames="stages")
    for seed, changes in enumerate([{}, {"gamma": 0.9}, {"kernel": kqljax.RBF(eta=0.3)}, {"lam": 0.1, "beta": 1.0}]):
        train(task, task.config(horizon=20, **changes), jax.random.key(seed), stages=1)


def test_learning_curve():
    task = kqljax.make_task("CartPole-v0")
    cfg = task.config(horizon=30)
    train = jax.jit(kqljax.train, static_argnames=("eval_at", "eval_episodes", "stages"))
    run = train(task, cfg, jax.random.key(0), eval_at=(10, 30), eval_episodes=5, stages=2)
    assert run.curve.shape == (2, 5)
    assert bool(jnp.all(run.curve >= 8))
    plain = train(task, cfg, jax.random.key(0), stages=2)
    np.testing.assert_array_equal(plain.log.action, run.log.action)
    assert plain.curve.shape == (0, 20)


def test_evaluation_counts_whole_episodes():
    """A policy that always pushes left: every return is the sum of its own episode."""
    task = kqljax.make_task("MountainCar-v0")
    returns = kqljax.rollout_returns(task, lambda obs, key: jnp.int32(0), jax.random.key(0), 3)
    np.testing.assert_array_equal(returns, -200.0)
    task = kqljax.make_task("CartPole-v0")
    returns = kqljax.rollout_returns(task, lambda obs, key: jnp.int32(0), jax.random.key(0), 50)
    assert np.all((returns >= 8) & (returns <= 11))


def test_arguments_are_checked():
    task = kqljax.make_task("MountainCar-v0")
    cfg = task.config(horizon=20)
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="num_steps=30 is more than the config's horizon=20"):
        kqljax.train(task, cfg, key, 30)
    with pytest.raises(ValueError, match="num_steps must be at least 1"):
        kqljax.train(task, cfg, key, 0)
    for wrong in ((25,), (10, 5), (5, 5), (0,)):
        with pytest.raises(ValueError, match=r"eval_at must be increasing steps in 1\.\.20"):
            kqljax.train(task, cfg, key, eval_at=wrong)
    with pytest.raises(ValueError, match="give it to jax.jit as static_argnames='num_steps'"):
        jax.jit(kqljax.train)(task, cfg, key, 20)
    with pytest.raises(ValueError, match="num_episodes must be at least 1"):
        kqljax.evaluate(task, cfg, kqljax.kql_init(cfg, 2), key, 0)


def test_it_learns_mountain_car():
    """No run of a random policy reaches the goal in these steps; optimism does, and the greedy policy keeps it."""
    task = kqljax.make_task("MountainCar-v0")
    cfg = task.config(horizon=600)
    run = jax.jit(kqljax.train, static_argnames="stages")(task, cfg, jax.random.key(7), stages=3)
    assert int(run.log.terminated.sum()) >= 1
    returns = jax.jit(kqljax.evaluate, static_argnames="num_episodes")(task, cfg, run.state, jax.random.key(8), num_episodes=10)
    assert float(returns.mean()) > -185


class Unreliable:
    """CartPole that pays a reward out of range now and then."""

    def __init__(self, env):
        self.env, self.name = env, "Unreliable"

    def __getattr__(self, name):
        return getattr(self.env, name)

    def step(self, key, state, action, params):
        obs, after, reward, *rest = self.env.step(key, state, action, params)
        return obs, after, jnp.where(state.time == 3, jnp.nan, reward), *rest


def test_a_refused_transition_is_left_out_and_the_run_goes_on():
    plain = kqljax.make_task("CartPole-v0")
    task = dataclasses.replace(plain, env=Unreliable(plain.env))
    run = jax.jit(kqljax.train)(task, task.config(horizon=40), jax.random.key(0))
    info = run.log.info
    assert 1 <= int((~info.is_valid).sum()) < 10
    np.testing.assert_array_equal(info.is_stored, info.is_valid)
    assert int(run.state.num_stored) == int(info.is_stored.sum())


def test_a_policy_without_values_has_no_return():
    task = kqljax.make_task("CartPole-v0")
    returns = kqljax.rollout_returns(task, lambda obs, key: jnp.where(obs[0] > 0, 0, -1), jax.random.key(0), 20)
    assert bool(jnp.isnan(returns).any())
    cfg = task.config(horizon=20)
    state = kqljax.kql_init(cfg, 4)
    broken = state._replace(posterior=state.posterior._replace(weights=jnp.full(20, jnp.nan)))
    assert bool(jnp.isnan(kqljax.evaluate(task, cfg, broken, jax.random.key(0), 5)).all())
