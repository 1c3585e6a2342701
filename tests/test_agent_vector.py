"""Vector environments: one history, true successors in every autoreset mode, and what was chosen
side by side.
"""

import functools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agents import compiles, unit
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import kqljax
from kqljax import KQL
from kqljax.rounds.round import choose

STEPS, LIMIT = 90, 25

pytestmark = pytest.mark.usefixtures("compile_once")


def vector(mode, count=3, limit=LIMIT):
    return SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1", max_episode_steps=limit) for _ in range(count)],
        autoreset_mode=mode,
    )


@functools.cache
def _pole():
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    return env


def physics(obs, action):
    """The true successor of a state of CartPole, from gymnasium's own environment."""
    env = _pole()
    env.state, env.steps_beyond_terminated = np.asarray(obs, np.float64), None
    return env.step(int(action))


@pytest.fixture(scope="module", params=list(AutoresetMode), ids=lambda mode: mode.value)
def told(request):
    """An agent that learned, what its callback was told at each step, and the round that it was in
    then.
    """
    steps, rounds = [], []

    def watch(agent, step):
        steps.append(step), rounds.append(agent._memory.now)

    agent = KQL(vector(request.param), reward_range=(0, 1), obs_bounds=(-4.0, 4.0), seed=0)
    # Vectors share their metadata: that of another one, of another mode, must not be heeded.
    vector(
        AutoresetMode.NEXT_STEP
        if request.param != AutoresetMode.NEXT_STEP
        else AutoresetMode.SAME_STEP
    )
    return agent.learn(STEPS, watch), steps, rounds


def test_every_transition_is_a_true_one(told):
    agent, *_ = told
    rows = agent.history
    assert STEPS <= agent.num_timesteps < STEPS + 3
    assert rows["truncated"].any() and rows["terminated"].any()
    for i in range(agent.num_timesteps):
        successor, reward, terminated, *_ = physics(rows["obs"][i], rows["action"][i])
        np.testing.assert_allclose(rows["next_obs"][i], successor, atol=1e-5)
        assert (rows["reward"][i], rows["terminated"][i]) == (reward, terminated)


def test_episodes_are_kept_one_after_another(told):
    rows = told[0].history
    assert np.all(np.diff(rows["episode"]) >= 0)
    goes_on = ~rows["is_first"][1:]
    np.testing.assert_array_equal(rows["obs"][1:][goes_on], rows["next_obs"][:-1][goes_on])
    assert np.abs(rows["obs"][rows["is_first"]]).max() <= 0.05  # where episodes of CartPole begin
    np.testing.assert_array_equal(rows["is_last"], rows["terminated"] | rows["truncated"])
    np.testing.assert_array_equal(
        rows["is_last"][:-1][~goes_on], rows["episode"][:-1][~goes_on] < rows["episode"].max() - 2
    )


def test_episodes_are_counted_for_each_environment(told):
    agent, *_ = told
    rows = agent.history
    lengths = sorted(np.bincount(rows["episode"])[rows["episode"][rows["is_last"]]])
    assert sorted(agent.episode_lengths) == lengths and max(lengths) == LIMIT
    assert agent.episode_returns == [float(length) for length in agent.episode_lengths]


def test_callbacks_are_told_of_all_transitions_of_a_step(told):
    agent, steps, _ = told
    sizes = np.array([len(step.reward) for step in steps])
    assert sizes[0] == 3 and np.all(sizes <= 3) and sizes.sum() == agent.num_timesteps
    assert [step.num_timesteps for step in steps] == np.cumsum(sizes).tolist()
    resets = agent.env.autoreset_mode == AutoresetMode.NEXT_STEP
    assert (sizes.min() < 3) == resets
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    seen = np.column_stack(
        [np.concatenate([getattr(step, name) for step in steps]) for name in names]
    )
    kept = np.column_stack([agent.history[name] for name in names])
    assert sorted(map(tuple, seen)) == sorted(map(tuple, kept))


def test_actions_of_a_step_know_of_each_other(told):
    """Each is chosen with the pairs before it in mind, and those of environments that are only
    reset are none.
    """
    agent, steps, rounds = told
    recipe, act = jax.tree.map(jnp.asarray, agent.recipe), jax.jit(choose)
    in_round, compared = len(steps[0].reward), 0
    for i in range(1, len(steps)):
        (before, now), step = rounds[i - 1 : i + 1], steps[i]
        in_round = len(step.reward) + (in_round if now.ends == before.ends else 0)
        assert int(now.player.learner.num_new) == in_round
        if now.ends != before.ends:
            continue
        player = before.player
        for obs, chosen in zip(unit(agent, step.obs), step.action, strict=True):
            action, player = act(recipe, player, obs)
            assert int(action) == chosen
            compared += 1
        np.testing.assert_allclose(
            player.learner.new_whiten, now.player.learner.new_whiten, atol=1e-9
        )
    assert compared > 20


def test_side_by_side_and_alone_are_one_program():
    """A vector of a few environments is learned from with the fits of one."""
    KQL(vector(AutoresetMode.SAME_STEP), seed=0).learn(6)
    with compiles() as found:
        KQL("CartPole-v1", seed=0).learn(10)
    assert "jit(begin)" not in found


def test_algorithm_1_learns_from_all_in_order():
    agent = KQL(
        vector(AutoresetMode.NEXT_STEP, limit=8),
        recipe="paper",
        reward_range=(0, 1),
        obs_bounds=(-4.0, 4.0),
        seed=0,
    )
    steps = []
    agent.learn(30, lambda agent, step: steps.append(step))
    assert agent.recipe.horizon == 32  # up to two more than asked for
    state, step = kqljax.kql_init(agent.recipe, 4), jax.jit(kqljax.kql_step)
    names = ("obs", "action", "reward", "next_obs", "terminated")
    columns = {name: np.concatenate([getattr(each, name) for each in steps]) for name in names}
    for i in range(agent.num_timesteps):
        row = {name: column[i] for name, column in columns.items()}
        row |= {name: unit(agent, row[name]) for name in ("obs", "next_obs")}
        state, _ = step(agent.recipe, state, kqljax.Transition(**row))
    mean = [
        kqljax.kql_predict(agent.recipe, state, obs)[0] for obs in unit(agent, columns["obs"][:2])
    ]
    np.testing.assert_allclose(agent.beliefs(columns["obs"][:2]).mean, mean, atol=1e-8)


def test_a_vector_of_one():
    agent = KQL(vector(AutoresetMode.NEXT_STEP, count=1, limit=9), seed=0).learn(30)
    assert (
        agent.num_timesteps == 30
        and (agent.history["truncated"] | agent.history["terminated"]).sum() == 3
    )


def test_gymnasiums_own_vector_environment():
    agent = KQL(gymnasium.make_vec("CartPole-v1", num_envs=3), seed=0).learn(40)
    assert 40 <= agent.num_timesteps < 43 and agent.reward_range == (0.0, 1.0)
    assert agent.predict(np.zeros((4, 4)))[0].shape == (4,)
    # It goes on alone, and side by side again.
    agent.learn(5, env="CartPole-v1")
    assert agent.evaluate(1).returns.shape == (1,)
    assert agent.learn(6, env=vector(AutoresetMode.SAME_STEP)).num_timesteps >= 51


def test_an_unknown_mode_is_refused():
    env = vector(AutoresetMode.SAME_STEP)
    env.autoreset_mode = "Sometimes"
    with pytest.raises(ValueError, match="unknown autoreset_mode 'Sometimes'"):
        KQL(env).learn(5)
