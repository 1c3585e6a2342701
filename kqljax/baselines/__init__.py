"""Learners that KQL is compared with, behind the interface of every learner:

    learner = dqn.paper_config("CartPole-v0")               # or dqn.DQN(...), random.Random()
    run = train(key, task, learner, num_steps=1000)         # jittable, vmappable
    returns = rounds.evaluate(key, task, run.policy, 100)   # [100] undiscounted raw returns

`random`: the uniform policy. `dqn`: DQN as Stable-Baselines3 does it.
"""

from kqljax.baselines import dqn, random
from kqljax.baselines.training import train

__all__ = ["dqn", "random", "train"]
