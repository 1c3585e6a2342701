"""What KQL is compared with. Every module has the same shape:

    cfg   = dqn.default_config(task)
    run   = dqn.train(task, cfg, key, num_steps=1000)          # run.state, run.log; jittable, vmappable
    ret   = dqn.evaluate(task, cfg, run.state, key, num_episodes=100)    # [100] undiscounted raw returns

`random`: the uniform policy. `dqn`: DQN as Stable-Baselines3 does it. `kovi`: kernel optimistic value iteration.
`q_learning`: the tabular one with epsilon-greedy exploration, for small MDPs with one-hot states.
"""

from kqljax.baselines import dqn, kovi, q_learning, random

__all__ = ["dqn", "kovi", "q_learning", "random"]
