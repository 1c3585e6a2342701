"""Vector environments: one posterior, true successors in every autoreset mode, and the order of learning."""

import itertools

import gymnasium
import numpy as np
import pytest
from agents import STEPS, reference
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from kqljax import KQL

LIMIT = 9


def vector(mode, count=3, limit=LIMIT):
    return SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1", max_episode_steps=limit) for _ in range(count)], autoreset_mode=mode
    )


def physics(obs, action):
    """The true successor of a state of CartPole, from gymnasium's own environment."""
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    env.state = np.asarray(obs, np.float64)
    return env.step(int(action))


@pytest.fixture(scope="module", params=list(AutoresetMode), ids=lambda mode: mode.value)
def agent(request):
    return KQL(vector(request.param), reward_range=(0, 1), seed=0).learn(STEPS)


def test_every_transition_is_a_true_one(agent):
    rows = agent.history
    assert STEPS <= agent.num_timesteps < STEPS + 3
    assert rows["truncated"].any()
    for i in range(agent.num_timesteps):
        successor, reward, terminated, *_ = physics(rows["obs"][i], rows["action"][i])
        np.testing.assert_allclose(rows["next_obs"][i], successor, atol=1e-5)
        assert (rows["reward"][i], rows["terminated"][i]) == (reward, terminated)


def test_one_posterior_learns_from_all_in_order(agent):
    assert int(agent.state.num_stored) == agent.num_timesteps
    np.testing.assert_allclose(
        agent.state.q_tilde[: agent.num_timesteps], reference(agent).q_tilde[: agent.num_timesteps], atol=1e-7
    )


def test_episodes_are_counted_for_each_environment(agent):
    lengths = agent.episode_lengths
    assert len(lengths) == int((agent.history["terminated"] | agent.history["truncated"]).sum())
    assert max(lengths) == LIMIT and agent.episode_returns == [float(length) for length in lengths]


def test_actions_of_one_step_come_from_one_state():
    seen = []
    KQL(vector(AutoresetMode.SAME_STEP), reward_range=(0, 1), seed=0).learn(STEPS, lambda agent, step: seen.append(step))
    assert seen[0].obs.shape == (3, 4) and seen[0].q_tilde.shape == (3, 2) and seen[0].num_timesteps == 3
    # At first nothing is known: all environments take the first action.
    np.testing.assert_array_equal(seen[0].action, 0)
    for before, step in itertools.pairwise(seen):
        best = before.q_tilde.max(axis=1)
        np.testing.assert_allclose(before.q_tilde[np.arange(3), step.action], best, atol=1e-9)


def test_a_vector_of_one():
    agent = KQL(vector(AutoresetMode.NEXT_STEP, count=1), seed=0).learn(30)
    assert agent.num_timesteps == 30 and agent.history["truncated"].sum() + agent.history["terminated"].sum() == 3


def test_gymnasiums_own_vector_environment():
    agent = KQL(gymnasium.make_vec("CartPole-v1", num_envs=4), seed=0).learn(40)
    assert 40 <= agent.num_timesteps < 44
    action, _ = agent.predict(np.zeros((4, 4)))
    assert action.shape == (4,)
