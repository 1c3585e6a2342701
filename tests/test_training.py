"""Training and evaluation as pure functions, with every kind of learner."""

import dataclasses
import functools
from typing import Any, NamedTuple

import chex
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import KEY, jit, learn

import kqljax
from kqljax import features
from kqljax.training import EveryStep


class Table(NamedTuple):
    value: Any
    count: Any


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["rate", "epsilon"], meta_fields=["bins"]
)
@dataclasses.dataclass(frozen=True)
class Tabular:
    """Q-learning on a grid: a learner that is neither of the library's."""

    rate: float = 0.5
    epsilon: float = 0.3
    bins: int = 5

    def stages(self, num_steps):
        return (num_steps,)

    def begin(self, key, task, capacity, dtype):
        return Table(
            1e-3 * jax.random.uniform(key, (self.bins**task.obs_dim, task.num_actions)),
            jnp.int32(0),
        )

    def at(self, obs):
        cell = jnp.clip(((obs + 1) / 2 * self.bins).astype(jnp.int32), 0, self.bins - 1)
        return jnp.sum(cell * self.bins ** jnp.arange(obs.shape[-1]), axis=-1)

    def act(self, key, state, obs):
        values = state.value[self.at(obs)]
        explore, draw = jax.random.split(key)
        other = jax.random.randint(draw, (), 0, len(values), jnp.int32)
        best = jnp.argmax(values).astype(jnp.int32)
        return jnp.where(jax.random.bernoulli(explore, self.epsilon), other, best), state

    def observe(self, key, state, transition, truncated, obs):
        at, ahead = self.at(transition.obs), jnp.max(state.value[self.at(transition.next_obs)])
        target = transition.reward + 0.9 * jnp.where(transition.terminated, 0.0, ahead)
        error = target - state.value[at, transition.action]
        state = Table(state.value.at[at, transition.action].add(self.rate * error), state.count + 1)
        return state, self.act(key, state, obs)[0], {"error": error, "truncated": truncated}

    def policy(self, state, is_end):
        return Greedy(self, state.value, is_end)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["learner", "value"], meta_fields=["is_end"]
)
@dataclasses.dataclass(frozen=True)
class Greedy:
    learner: Tabular
    value: Any
    is_end: bool

    def begin(self, key):
        return jnp.int32(0)

    def act(self, key, memory, obs):
        return jnp.argmax(self.value[self.learner.at(obs)], axis=-1).astype(jnp.int32), memory + 1


@functools.partial(jax.tree_util.register_dataclass, data_fields=["action"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Always:
    """A policy that knows one action."""

    action: Any = 0

    def begin(self, key):
        return ()

    def act(self, key, memory, obs):
        return jnp.full(obs.shape[:-1], self.action, jnp.int32), memory


MOUNTAIN_CAR, CART_POLE = kqljax.make_task("MountainCar-v0"), kqljax.make_task("CartPole-v0")


def with_features(task, **changes):
    made = features.taylor(kqljax.RBF(eta=task.eta), task.obs_dim, task.num_actions, order=3)
    return task.config(made.kernel, engine=kqljax.Weights(made), **changes)


@functools.cache
def trained(eval_at=()):
    """40 of 60 steps of Algorithm 1 on CartPole."""
    cfg = CART_POLE.config(horizon=60)

    @jit
    def run(key):
        return kqljax.train(key, CART_POLE, cfg, 40, eval_at=eval_at, eval_episodes=3)

    return cfg, run(jax.random.key(0))


@jit
def evaluate(key, task, policy):
    """Three returns, of any task and policy."""
    return kqljax.evaluate(key, task, policy, num_episodes=3)


def test_log_and_state_tell_one_story():
    _, run = trained()
    stored, log = run.state.posterior, run.log
    assert log.action.shape == (40,) and run.curve.shape == (0, 3)
    assert int(run.state.num_stored) == 40 and run.state.capacity == 60
    assert bool(run.is_sound) and bool(log.info.is_stored.all())
    np.testing.assert_array_equal(stored.action[:40], log.action)
    np.testing.assert_array_equal(run.state.terminated[:40], log.terminated)
    np.testing.assert_allclose(run.state.reward[:40], CART_POLE.unit_reward(log.raw_reward))
    assert not bool((log.terminated & log.truncated).any())
    # The next transition begins where the one before ended, or anew.
    is_over = np.asarray(log.terminated | log.truncated)[:39]
    assert is_over.any()
    went_on = np.all(np.asarray(stored.obs.T[1:40] == stored.next_obs.T[:39]), axis=1)
    np.testing.assert_array_equal(went_on, ~is_over)
    starts = np.flatnonzero(np.append(True, is_over))
    expected = np.arange(40) - np.repeat(starts, np.diff(np.append(starts, 40))) + 1.0
    np.testing.assert_array_equal(log.episode_return, expected)


def test_fewer_steps_than_the_horizon_leave_room():
    cfg, run = trained()
    stored = run.state.posterior
    obs, next_obs = stored.obs.T[:40], stored.next_obs.T[:40]
    state, more = run.state, jnp.full(20, 0.25)
    pushed = kqljax.Transition(obs[:20], jnp.ones(20, jnp.int32), more, next_obs[:20], more > 1)
    state, info = learn(cfg, state, pushed)
    assert bool(info.is_stored.all())
    assert int(state.num_stored) == 60
    # The same as all transitions in one go, in a state that never grew.
    first = (obs, run.log.action, run.state.reward[:40], next_obs, run.log.terminated)
    data = jax.tree.map(lambda *parts: jnp.concatenate(parts), kqljax.Transition(*first), pushed)
    whole, _ = learn(cfg, kqljax.kql_init(cfg, 4), data)
    np.testing.assert_allclose(state.q_hat, whole.q_hat, atol=1e-7)
    np.testing.assert_allclose(state.width, whole.width, atol=1e-7)


def test_a_curve_does_not_change_the_run():
    _, plain = trained()
    _, run = trained(eval_at=(10, 40))
    assert run.curve.shape == (2, 3)
    assert np.all((run.curve >= 8) & (run.curve <= 200)) and len(np.unique(run.curve)) > 1
    for found, expected in zip(jax.tree.leaves(run.log), jax.tree.leaves(plain.log), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)


def test_stages_do_not_change_the_run():
    cfg, plain = trained()
    learner = EveryStep(cfg, 3)
    assert learner.stages(40) == (14, 27, 40)
    assert EveryStep(cfg).stages(40) == (40,)
    run = jit(lambda key: kqljax.train(key, CART_POLE, learner, 40))(jax.random.key(0))
    np.testing.assert_array_equal(run.log.action, plain.log.action)
    np.testing.assert_allclose(run.state.q_hat[:40], plain.state.q_hat[:40], atol=1e-7)
    # A block of the whitener for each stage, and one for the room that is left.
    assert [len(each.state.posterior.whitener) for each in (plain, run)] == [2, 4]


LEARNERS = {"kql": with_features(CART_POLE, horizon=25), "third": Tabular()}


@pytest.mark.parametrize("name", LEARNERS)
def test_a_vmapped_seed_is_the_seed_alone(name):
    def one(key):
        run = kqljax.train(key, CART_POLE, LEARNERS[name], 25)
        return run._replace(policy=()), kqljax.evaluate(key, CART_POLE, run, num_episodes=2)

    keys = jax.random.split(jax.random.key(1), 3)
    together, returns = jit(jax.vmap(one))(keys)
    alone, alone_returns = jit(one)(keys[1])
    np.testing.assert_array_equal(together.log.action[1], alone.log.action)
    np.testing.assert_array_equal(returns[1], alone_returns)
    for found, expected in zip(
        jax.tree.leaves(together.state), jax.tree.leaves(alone.state), strict=True
    ):
        np.testing.assert_allclose(found[1], expected, atol=1e-7)
    assert together.is_sound.shape == (3,) and bool(together.is_sound.all())
    assert len({tuple(actions.tolist()) for actions in together.log.action}) == 3


def test_a_learner_of_ones_own():
    """Q-learning on a grid balances CartPole for longer than the 22 steps of a random policy."""
    learner = Tabular()

    @jit
    def run(key, learner):
        found = kqljax.train(key, CART_POLE, learner, 4000)
        return found, kqljax.evaluate(key, CART_POLE, found, num_episodes=20)

    found, returns = run(jax.random.key(3), learner)
    assert int(found.state.count) == 4000
    assert found.policy.is_end and bool(found.is_sound)
    assert found.log.info["error"].shape == (4000,)
    np.testing.assert_array_equal(found.log.info["truncated"], found.log.truncated)
    assert float(returns.mean()) > 40
    # Its numbers are leaves: another one is not another program, and does something else.
    other, _ = run(jax.random.key(3), dataclasses.replace(learner, epsilon=1.0))
    assert run._cache_size() == 1
    assert abs(float((other.log.action == 0).mean()) - 0.5) < 0.05


def test_one_compile_over_settings_and_keys():
    chex.clear_trace_counter()
    train = jit(
        chex.assert_max_traces(
            lambda key, task, cfg: kqljax.train(key, task, cfg, 8).log.action, n=1
        )
    )
    for seed, changes in enumerate(
        [{}, {"gamma": 0.9}, {"kernel": kqljax.RBF(eta=0.3)}, {"lam": 0.1, "beta": 1.0}]
    ):
        assert train(
            jax.random.key(seed), MOUNTAIN_CAR, MOUNTAIN_CAR.config(horizon=8, **changes)
        ).shape == (8,)


def test_training_in_float32():
    cfg = with_features(MOUNTAIN_CAR, horizon=30)
    with jax.enable_x64(False):
        run = jit(lambda key: kqljax.train(key, MOUNTAIN_CAR, EveryStep(cfg, 2), 30))(
            jax.random.key(0)
        )
    kinds = {leaf.dtype for leaf in jax.tree.leaves(run)}
    assert kinds == {jnp.dtype("float32"), jnp.dtype("int32"), jnp.dtype("bool")}
    assert bool(run.is_sound)
    run = jax.eval_shape(lambda key: kqljax.train(key, MOUNTAIN_CAR, cfg, 30, dtype="float32"), KEY)
    assert (run.state.reward.dtype, run.log.raw_reward.dtype) == (jnp.float32, jnp.float64)


def test_training_lowers_for_accelerators():
    def run(key):
        return kqljax.train(key, MOUNTAIN_CAR, MOUNTAIN_CAR.config(horizon=30), 30).log.action

    exported = jax.export.export(jax.jit(jax.vmap(run)), platforms=("cuda", "tpu"))(
        jax.random.split(KEY, 3)
    )
    assert "callback" not in exported.mlir_module()


def test_it_learns_mountain_car():
    """A random policy does not reach the goal in these steps; optimism does, and keeps it."""

    @jax.jit
    def run(key):
        found = kqljax.train(key, MOUNTAIN_CAR, EveryStep(MOUNTAIN_CAR.config(horizon=600), 1), 600)
        return found.log.terminated, kqljax.evaluate(key, MOUNTAIN_CAR, found, num_episodes=10)

    terminated, returns = run(jax.random.key(7))
    assert int(terminated.sum()) >= 1
    assert float(returns.mean()) > -185


# Evaluation --------------------------------------------------------------------------------------


def test_evaluation_counts_whole_episodes():
    """A policy that always pushes left: every return is the sum of its own episode."""
    np.testing.assert_array_equal(evaluate(KEY, MOUNTAIN_CAR, Always()), -200.0)
    returns = [evaluate(jax.random.key(i), CART_POLE, Always()) for i in range(5)]
    assert np.all((np.stack(returns) >= 8) & (np.stack(returns) <= 11))
    assert len(np.unique(returns)) > 1
    _, run = trained()
    of_run = jit(lambda run: kqljax.evaluate(KEY, CART_POLE, run, num_episodes=3))(run)
    np.testing.assert_array_equal(of_run, evaluate(KEY, CART_POLE, run.policy))


def test_values_that_are_not_numbers_have_no_return():
    assert bool(jnp.isnan(evaluate(KEY, CART_POLE, Always(-1))).all())
    _, run = trained()
    broken = jax.tree.map(lambda leaf: leaf * jnp.nan if leaf.dtype == float else leaf, run.policy)
    assert bool(jnp.isnan(evaluate(KEY, CART_POLE, broken)).all())


class Unreliable:
    """CartPole that pays a reward of NaN now and then."""

    def __init__(self, env):
        self.env, self.name = env, "Unreliable"

    def __getattr__(self, name):
        return getattr(self.env, name)

    def step(self, key, state, action, params):
        obs, after, reward, *rest = self.env.step(key, state, action, params)
        return obs, after, jnp.where(state.time == 3, jnp.nan, reward), *rest


def test_a_refused_transition_is_left_out_and_the_run_goes_on():
    task = dataclasses.replace(CART_POLE, env=Unreliable(gymnax.make("CartPole-v1")[0]))
    run = jit(lambda key: kqljax.train(key, task, with_features(task, horizon=40), 40))(KEY)
    info = run.log.info
    assert 1 <= int((~info.is_valid).sum()) < 10
    np.testing.assert_array_equal(info.is_stored, info.is_valid)
    assert int(run.state.num_stored) == int(info.is_stored.sum())
    assert not bool(run.is_sound)


class Lost(Tabular):
    """A learner whose values are lost after ten steps."""

    def observe(self, key, state, transition, truncated, obs):
        state, action, _ = super().observe(key, state, transition, truncated, obs)
        return state, jnp.where(state.count >= 10, -1, action), ()


jax.tree_util.register_dataclass(Lost, data_fields=["rate", "epsilon"], meta_fields=["bins"])


def test_actions_that_are_none_are_logged():
    run = jit(lambda key: kqljax.train(key, CART_POLE, Lost(), 14))(KEY)
    np.testing.assert_array_equal(run.log.action[10:], -1)
    assert bool((run.log.action[:10] >= 0).all()) and not bool(run.is_sound)


# Mistakes ----------------------------------------------------------------------------------------


def test_arguments_are_checked():
    cfg, key = MOUNTAIN_CAR.config(horizon=20), KEY

    def refuses(match):
        return pytest.raises(ValueError, match=match)

    with refuses("num_steps=30 is more than the config's horizon=20"):
        kqljax.train(key, MOUNTAIN_CAR, cfg, 30)
    with refuses("num_steps must be at least 1"):
        kqljax.train(key, MOUNTAIN_CAR, cfg, 0)
    with refuses("give it to jax.jit as static_argnames='num_steps'"):
        jax.jit(kqljax.train)(key, MOUNTAIN_CAR, Tabular(), 20)
    with refuses("task must be a kqljax.Task, got 'MountainCar-v0'.*make_task"):
        kqljax.train(key, "MountainCar-v0", cfg, 20)
    for wrong in ("kql", None, Always()):
        with refuses(
            "learner must be a kqljax.KQLConfig, a kqljax.rounds.Recipe, or an object with"
        ):
            kqljax.train(key, MOUNTAIN_CAR, wrong, 20)
    for eval_at in ((0, 10), (10, 21), (15, 10), (10, 10)):
        with refuses(r"eval_at must be increasing steps in 1\.\.20"):
            kqljax.train(key, MOUNTAIN_CAR, cfg, 20, eval_at=eval_at)
    with refuses("num_episodes must be at least 1"):
        kqljax.evaluate(key, MOUNTAIN_CAR, Always(), 0)
    with refuses(r"expected a run of kqljax.train or a policy with begin and act.*run\.policy"):
        kqljax.evaluate(key, MOUNTAIN_CAR, kqljax.kql_init(cfg, 2), 5)
