"""The agent as the model of Stable-Baselines3's own evaluate_policy: pip install 'kqljax[sb3]'."""

import gymnasium
import numpy as np
import pytest

from kqljax import KQL
from kqljax.agent import episodes

evaluation = pytest.importorskip(
    "stable_baselines3.common.evaluation", reason="pip install 'kqljax[sb3]'"
)

pytestmark = pytest.mark.usefixtures("compile_once")


@pytest.fixture(scope="module")
def pole():
    return KQL("CartPole-v1", seed=0).learn(60)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_evaluate_policy(name, pole):
    from stable_baselines3.common.env_util import make_vec_env

    agent = pole if name == "CartPole-v1" else KQL(name, recipe="paper", seed=0)
    env = make_vec_env(name, n_envs=2, seed=0)
    returns, lengths = evaluation.evaluate_policy(
        agent, env, n_eval_episodes=3, return_episode_rewards=True
    )
    assert len(returns) == len(lengths) == 3
    env.seed(0)
    mean, std = evaluation.evaluate_policy(agent, env, n_eval_episodes=3, deterministic=True)
    assert (mean, std) == pytest.approx((np.mean(returns), np.std(returns)))


def test_it_is_our_own_evaluation(pole):
    from stable_baselines3.common.monitor import Monitor

    class Seeded(gymnasium.Wrapper):
        """Its episodes begin with the seeds that our evaluation takes."""

        seeds = iter(np.random.SeedSequence(5).generate_state(4).tolist())

        def reset(self, *, seed=None, options=None):
            return super().reset(seed=next(self.seeds, None), options=options)

    env = Monitor(Seeded(gymnasium.make("CartPole-v1")))
    returns, _ = evaluation.evaluate_policy(
        pole, env, n_eval_episodes=4, return_episode_rewards=True
    )
    envs = [gymnasium.make("CartPole-v1") for _ in range(2)]
    own = episodes.run(pole, envs, 4, 5, None)
    assert returns == [episode.total for episode in own] and all(
        len(each.obs) == each.total + 1 for each in own
    )
    assert returns == pole.evaluate(4, seed=5).returns.tolist()


def test_their_callbacks_are_told_what_ours_are(pole):
    from stable_baselines3.common.callbacks import CheckpointCallback

    with pytest.raises(TypeError, match=r"is not a callback of kqljax.*def watch\(agent, step\)"):
        pole.learn(10, CheckpointCallback(5, "nowhere"))
