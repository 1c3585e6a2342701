"""The agent: learning, asking, going on, and what it makes of ends, bounds and rewards."""

import dataclasses
import subprocess
import sys

import gymnasium
import jax
import numpy as np
import pytest
from agents import STEPS, Line, reference
from gymnasium import spaces

import kqljax
from kqljax import KQL
from kqljax.agent import online
from kqljax.committee import committee_policy, convene
from kqljax.fitting import fit_kernel
from kqljax.recipes import ROBUST

CAP = 1 / (1 - ROBUST.gamma)


@pytest.fixture(scope="module")
def car():
    return KQL("MountainCar-v0", seed=3).learn(STEPS)


def test_the_state_is_that_of_algorithm_1(car):
    assert car.num_timesteps == STEPS == int(car.state.num_stored)
    np.testing.assert_allclose(car.state.q_tilde, reference(car).q_tilde, atol=1e-7)
    assert car.config.lam == pytest.approx(1 / (10 * STEPS))
    assert car.config.terminal_value == pytest.approx(CAP)
    assert car.obs_bounds[0] == pytest.approx([-1.2, -0.07])
    assert car.reward_range == (-1.0, 0.0)


def test_each_action_was_the_best_at_its_time(car):
    rows = car.history
    state = reference(car, STEPS - 1)
    scaled = (rows["obs"][-1] - [-0.3, 0.0]) / [0.9, 0.07]
    action, _ = kqljax.kql_act(car.config, state, scaled)
    assert int(action) == rows["action"][-1]


def test_the_agent_and_the_environment_meet():
    """The agent's transitions are the environment's own, replayed with the same seed and actions."""
    agent = KQL(gymnasium.make("MountainCar-v0", max_episode_steps=40), seed=5).learn(STEPS)
    env = gymnasium.make("MountainCar-v0", max_episode_steps=40)
    obs, _ = env.reset(seed=5)
    for i in range(STEPS):
        rows = {name: values[i] for name, values in agent.history.items()}
        np.testing.assert_array_equal(rows["obs"], obs)
        obs, reward, terminated, truncated, _ = env.step(int(rows["action"]))
        np.testing.assert_array_equal(rows["next_obs"], obs)
        assert (rows["reward"], rows["terminated"], rows["truncated"]) == (reward, terminated, truncated)
        if terminated or truncated:
            obs, _ = env.reset()
    assert agent.history["truncated"].sum() == 1 and not agent.history["terminated"].any()
    assert (agent.episode_returns, agent.episode_lengths) == ([-40.0], [40])


def test_predict_is_that_of_stable_baselines(car):
    obs = np.array([-0.5, 0.01], np.float32)
    action, state = car.predict(obs, deterministic=True)
    assert state is None and action.shape == () and gymnasium.make("MountainCar-v0").action_space.contains(action)
    actions, _ = car.predict(np.stack([obs, obs + 0.1, obs]), state=None, episode_start=np.ones(3, bool))
    assert actions.shape == (3,) and actions[0] == actions[2] == action


def test_values(car):
    grid = np.random.default_rng(0).uniform([-1.2, -0.07], [0.6, 0.07], (5, 2))
    q_hat, width, q_tilde = car.posterior(grid)
    scaled = (grid - [-0.3, 0.0]) / [0.9, 0.07]
    for i in range(5):
        mine, spread = kqljax.kql_predict(car.config, car.state, scaled[i])
        np.testing.assert_allclose(q_hat[i], mine, atol=1e-8)
        np.testing.assert_allclose(width[i], spread, atol=1e-6)
    np.testing.assert_allclose(q_tilde, np.clip(q_hat + car.config.beta * width, 0, CAP))
    np.testing.assert_allclose(car.q_values(grid), q_tilde)
    assert car.q_values(grid[0]).shape == (3,)


def test_the_finished_policy_is_the_committees(car):
    grid = np.random.default_rng(0).uniform([-1.2, -0.07], [0.6, 0.07], (5, 2))
    scaled = (grid - [-0.3, 0.0]) / [0.9, 0.07]
    panel = ROBUST.committee
    committee = jax.jit(convene, static_argnames="panel")(car.config, car.state, panel=panel)
    act = jax.jit(committee_policy(car.config, car.state, committee, panel))
    values = np.stack([act(obs)[1] for obs in scaled])
    best = car.predict(grid)[0]
    np.testing.assert_allclose(values[np.arange(5), best], values.max(axis=1), atol=1e-3)


def test_the_committee_is_of_what_was_learned_last():
    agent = KQL("MountainCar-v0", seed=3, horizon=60).learn(20)
    agent.predict(np.zeros(2))
    before = agent._learner._met[1].weights
    agent.predict(np.ones(2))
    assert agent._learner._met[1].weights is before
    agent.learn(20)
    agent.predict(np.zeros(2))
    assert int(np.count_nonzero(np.any(agent._learner._met[1].pairs.action, axis=1))) == 40


def test_a_discount_of_ones_own_is_the_committees_too():
    assert KQL("MountainCar-v0", gamma=0.9)._learner.committee == ROBUST.committee._replace(gamma=0.9)
    assert KQL("MountainCar-v0", kernel=kqljax.RBF())._learner.committee is None
    assert KQL("MountainCar-v0", recipe="paper")._learner.committee is None


def test_before_learning_everything_is_worth_the_most():
    agent = KQL("CartPole-v1", seed=0)
    np.testing.assert_allclose(agent.q_values(np.zeros(4)), CAP)
    assert agent.predict(np.zeros(4))[0] == 0
    drawn = {int(agent.predict(np.zeros(4), deterministic=False)[0]) for _ in range(20)}
    assert drawn == {0, 1}


def test_learning_goes_on(car):
    agent = KQL("MountainCar-v0", seed=3).learn(STEPS)
    lam, beta = agent.config.lam, agent.config.beta
    agent.learn(30)
    assert agent.num_timesteps == int(agent.state.num_stored) == STEPS + 30
    # The regression goes on with the lam it was built on; a new episode has begun.
    assert (agent.config.lam, agent.config.beta) == (lam, beta)
    for name, rows in car.history.items():
        np.testing.assert_array_equal(agent.history[name][:STEPS], rows)
    assert not np.array_equal(agent.history["obs"][STEPS], agent.history["next_obs"][STEPS - 1])
    np.testing.assert_allclose(agent.state.q_tilde[: STEPS + 30], reference(agent).q_tilde, atol=1e-7)


def test_horizon_sets_lam_and_beta():
    agent = KQL("MountainCar-v0", horizon=STEPS, seed=0)
    agent.learn(10)
    assert agent.config.lam == pytest.approx(1 / (10 * STEPS))
    assert KQL("MountainCar-v0", lam=0.5, beta=2.0).learn(STEPS).config.beta == 2.0


def test_seeds_decide():
    first, second = (KQL("CartPole-v1", horizon=STEPS, seed=7, tie_break="random").learn(30).history for _ in range(2))
    other = KQL("CartPole-v1", horizon=STEPS, seed=8, tie_break="random").learn(30).history
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    assert not np.array_equal(first["obs"], other["obs"])
    assert KQL("CartPole-v1").seed != KQL("CartPole-v1").seed


def test_callbacks_see_every_step_and_can_stop():
    seen = []

    def watch(agent, step):
        seen.append(step)
        assert step.num_timesteps == agent.num_timesteps

    agent = KQL("MountainCar-v0", horizon=STEPS, seed=0).learn(10, [watch, lambda agent, step: agent.num_timesteps < 6])
    assert [step.num_timesteps for step in seen] == [1, 2, 3, 4, 5, 6] and agent.num_timesteps == 6
    np.testing.assert_array_equal([step.obs for step in seen], agent.history["obs"])
    assert seen[-1].q_tilde.shape == (3,) and bool(seen[-1].info.is_stored) and not seen[-1].terminated


def test_a_failing_callback_leaves_the_agent_whole():
    agent = KQL("MountainCar-v0", seed=0)

    def fail(agent, step):
        if step.num_timesteps == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        agent.learn(STEPS, fail)
    assert agent.num_timesteps == 8
    assert agent.learn(5).num_timesteps == 13


def test_a_step_cut_short_is_made_up_for(car):
    """A donated state that was lost comes back from the transitions."""
    agent = KQL("MountainCar-v0", seed=3).learn(STEPS)
    for leaf in jax.tree.leaves(agent.state):
        leaf.delete()
    agent._learner.repair()
    np.testing.assert_allclose(agent.state.q_tilde, car.state.q_tilde, atol=1e-7)


def test_a_step_that_fails_is_not_counted(monkeypatch):
    agent, advance = KQL("MountainCar-v0", seed=3, horizon=STEPS), online.advance

    def fail(*args):
        if agent.num_timesteps == 5:
            raise MemoryError
        return advance(*args)

    monkeypatch.setattr(online, "advance", fail)
    with pytest.raises(MemoryError):
        agent.learn(STEPS)
    assert agent.num_timesteps == 4 == int(agent.state.num_stored)
    monkeypatch.setattr(online, "advance", advance)
    assert int(agent.learn(3).state.num_stored) == 7


def test_the_kernel_is_fitted_on_the_way():
    soon = dataclasses.replace(ROBUST, first_fit=20)
    agent = KQL("MountainCar-v0", recipe=soon, seed=3).learn(STEPS)
    assert agent._learner.replays == 2
    rows = {name: values[:40] for name, values in agent.history.items()}
    scaled = [(rows[name] - [-0.3, 0.0]) / [0.9, 0.07] for name in ("obs", "next_obs")]
    seen = kqljax.Transition(scaled[0], rows["action"], rows["reward"], scaled[1], rows["terminated"])
    found, wanted = agent.config.kernel, fit_kernel(ROBUST.kernel_for(2, 3), jax.tree.map(np.asarray, seen))
    np.testing.assert_allclose(found.kernel.eta, wanted.kernel.eta, rtol=1e-6)  # the environment has its bounds in float32
    np.testing.assert_allclose(found.effect, wanted.effect, atol=1e-6)
    assert np.abs(found.effect).max() > 0
    # The state is that of all transitions with the kernel of now, and so was the action after the fit.
    np.testing.assert_allclose(agent.state.q_tilde, reference(agent).q_tilde, atol=1e-7)
    action, _ = kqljax.kql_act(agent.config, reference(agent, 40), (agent.history["obs"][40] - [-0.3, 0.0]) / [0.9, 0.07])
    assert int(action) == agent.history["action"][40]


def test_a_kernel_that_is_given_is_kept():
    soon = dataclasses.replace(ROBUST, first_fit=20)
    agent = KQL("MountainCar-v0", recipe=soon, kernel=kqljax.TwoScale(eta=0.7), seed=3).learn(30)
    assert float(agent.config.kernel.eta) == 0.7 and agent._learner.replays == 0


def test_progress_bar(capsys):
    KQL("MountainCar-v0", horizon=STEPS, seed=0).learn(10, progress_bar=True)
    captured = capsys.readouterr()
    assert "10/10" in captured.err and "steps" in captured.err and not captured.out


def test_unknown_bounds_are_estimated():
    agent = KQL(Line(), seed=0).learn(STEPS)
    rows, (low, high) = agent.history, agent.obs_bounds
    everything = np.concatenate([rows["obs"], rows["next_obs"]])
    assert low[0] <= everything.min() and everything.max() <= high[0]
    assert high[0] - low[0] <= 3 * (everything.max() - everything.min())
    assert agent.reward_range == (0.0, 1.0)
    assert rows["terminated"].any()
    assert agent._learner.replays <= 8
    # What was learned before a bound moved was learned anew.
    np.testing.assert_allclose(agent.state.q_tilde, reference(agent).q_tilde, atol=1e-7)


def test_half_known_bounds():
    agent = KQL(Line(), obs_bounds=(-10.0, np.inf), reward_range=(0, 1), horizon=STEPS, seed=0).learn(20)
    low, high = agent.obs_bounds
    assert low[0] == -10.0 and np.isfinite(high[0])
    assert KQL(Line(), obs_bounds=(-10, 10), horizon=STEPS, seed=0).learn(20).obs_bounds[1][0] == 10


def test_the_range_of_rewards_is_estimated_with_0_in_it():
    falling = Line(reward=lambda place, is_end: -1.0 - abs(place))
    agent = KQL(falling, seed=0).learn(STEPS)
    worst = agent.history["reward"].min()
    assert 1.5 * worst <= agent.reward_range[0] <= worst and agent.reward_range[1] == 0.0
    assert agent.config.terminal_value == pytest.approx(CAP)
    np.testing.assert_allclose(agent.state.q_tilde, reference(agent).q_tilde, atol=1e-7)


def test_a_stated_value_of_the_end():
    agent = KQL(Line(reward=lambda place, is_end: 2.0), reward_range=(1, 3), terminal_value=4.0, horizon=STEPS, seed=0).learn(5)
    assert agent.config.terminal_value == 4.0


def test_discrete_observations_become_one_hot():
    agent = KQL(Line(space=spaces.Discrete(11)), seed=0).learn(STEPS)
    assert agent.history["obs"].shape == (STEPS, 11)
    np.testing.assert_array_equal(agent.history["obs"].sum(axis=1), 1.0)
    assert agent.history["terminated"].any()
    assert agent.predict(np.int64(4))[0].shape == () and agent.predict(np.array([4, 5]))[0].shape == (2,)


def test_continuous_actions_from_a_list():
    agent = KQL("Pendulum-v1", recipe="paper", horizon=STEPS, seed=0).learn(5)
    np.testing.assert_array_equal(agent.actions, [[-2.0], [0.0], [2.0]])
    assert (agent.config.kernel.eta, agent.config.gamma, agent.config.backups) == (1.0, 0.95, 1)
    own = KQL("Pendulum-v1", actions=[-1.0, 1.0], seed=0).learn(5)
    action, _ = own.predict(np.array([1.0, 0.0, 0.0]))
    assert action.shape == (1,) and action.dtype == np.float32 and own.config.num_actions == 2
    batch, _ = own.predict(np.zeros((4, 3)))
    assert batch.shape == (4, 1)


def test_wrappers_that_change_rewards_lose_the_papers_range():
    doubled = gymnasium.wrappers.TransformReward(gymnasium.make("MountainCar-v0"), lambda reward: 2 * reward)
    assert KQL(doubled, horizon=STEPS, seed=0).learn(5).reward_range == (-2.0, 0.0)
    counted = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("MountainCar-v0"))
    assert KQL(counted).reward_range == (-1.0, 0.0)


def test_features():
    agent = KQL("MountainCar-v0", features="auto", dtype="float32", seed=0).learn(STEPS)
    assert agent.config.features.error <= 1e-6
    assert agent.state.q_tilde.dtype == "float32"
    exact = KQL("MountainCar-v0", kernel=kqljax.RBF(eta=0.02), seed=0).learn(STEPS)
    assert np.abs(agent.q_values(np.array([-0.5, 0.0])) - exact.q_values(np.array([-0.5, 0.0]))).max() < 0.1


def test_features_are_not_those_of_the_papers_task_where_its_bounds_are_not():
    agent = KQL("MountainCar-v0", features="auto", obs_bounds=(-2.0, 2.0))
    assert type(agent.config.features).__name__ == "TaylorMap"


def test_features_where_nothing_is_known():
    agent = KQL(Line(), features="auto", seed=0).learn(STEPS)
    assert type(agent.config.features).__name__ == "TaylorMap"
    assert agent.history["terminated"].any()


def test_a_memory_that_is_shorter_than_the_run():
    features = kqljax.features.taylor(kqljax.RBF(eta=0.02), 2, 3, 1e-3)
    agent = KQL("MountainCar-v0", features=features, memory=20, seed=0).learn(30).learn(10)
    assert agent.state.capacity == 20 and agent.num_timesteps == 40


def test_evaluate(car):
    returns = car.evaluate(2)
    assert returns.shape == (2,) and np.all((returns >= -200) & (returns < 0))
    np.testing.assert_array_equal(returns, car.evaluate(2))


X64_OFF = """
import warnings
warnings.simplefilter("error")
import jax, jax.numpy as jnp, numpy as np
import kqljax
agent = kqljax.KQL("MountainCar-v0", seed=0).learn(1000)
assert not jax.config.jax_enable_x64 and jnp.zeros(1).dtype == "float32"
assert agent.state.q_tilde.dtype == "float64"
print(agent.evaluate(5).mean())
"""


def test_it_solves_mountain_car_with_jax_as_it_comes():
    """Two lines, float32 as jax's default, no warning, and jax's configuration as it was."""
    done = subprocess.run([sys.executable, "-c", X64_OFF], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > -180  # a random policy gets -200


def test_one_jitted_call_a_step_and_one_compile_a_run(car, monkeypatch):
    calls = []

    def count(name):
        inner = getattr(online, name)
        monkeypatch.setattr(online, name, lambda *args: (calls.append(name), inner(*args))[1])
        return inner

    advance, act = count("advance"), count("act")
    compiled = advance._cache_size(), act._cache_size()
    kernel = dataclasses.replace(ROBUST.kernel_for(2, 3), effect=np.full((3, 2), 0.1))
    KQL("MountainCar-v0", gamma=0.9, kernel=kernel, seed=4).learn(STEPS)
    assert calls == ["act"] + ["advance"] * STEPS
    assert (advance._cache_size(), act._cache_size()) == compiled  # numbers are leaves: what `car` compiled serves
