"""Learners that KQL is compared with, behind the interface of every learner:

    learner = dqn.paper_config("CartPole-v0")               # or dqn.DQN(...), random.Random()
    run = kqljax.train(key, task, learner, num_steps=1000)  # jittable, vmappable
    returns = kqljax.evaluate(key, task, run, 100)          # [100] undiscounted raw returns

`random`: the uniform policy. `dqn`: DQN as Stable-Baselines3 does it.
"""

from kqljax.baselines import dqn, random

__all__ = ["dqn", "random"]
