"""The agent as the model of Stable-Baselines3's own evaluate_policy: pip install 'kqljax[sb3]'."""

import gymnasium
import numpy as np
import pytest

from kqljax import KQL

evaluation = pytest.importorskip("stable_baselines3.common.evaluation", reason="pip install 'kqljax[sb3]'")


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_evaluate_policy(name):
    from stable_baselines3.common.env_util import make_vec_env

    agent = KQL(name, horizon=60, seed=0).learn(60)
    env = make_vec_env(name, n_envs=2, seed=0)
    returns, lengths = evaluation.evaluate_policy(agent, env, n_eval_episodes=3, return_episode_rewards=True)
    assert len(returns) == len(lengths) == 3
    env.seed(0)
    mean, std = evaluation.evaluate_policy(agent, env, n_eval_episodes=3, deterministic=True)
    assert (mean, std) == pytest.approx((np.mean(returns), np.std(returns)))


def test_it_is_our_own_evaluation():
    from stable_baselines3.common.monitor import Monitor

    agent = KQL("CartPole-v1", horizon=60, seed=0).learn(60)
    env = Monitor(gymnasium.make("CartPole-v1"))
    env.reset(seed=0)
    mean, _ = evaluation.evaluate_policy(agent, env, n_eval_episodes=4)
    other = gymnasium.make("CartPole-v1")
    other.reset(seed=0)
    # Both draw the first states of their episodes from a generator seeded with 0, one reset in.
    from kqljax.agent import episodes

    own = [episode.total for episode in episodes.run(agent, other, 4, seed=None)]
    assert mean == pytest.approx(np.mean(own))
