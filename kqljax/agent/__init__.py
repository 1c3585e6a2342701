"""The agent for gymnasium users: `KQL("MountainCar-v0").learn(1000).predict(obs)`.

spaces     what a gymnasium environment's observations and actions are as vectors and indices
scaling    observations to [-1, 1] and rewards to [0, 1], from known bounds or from a running estimate
loops      one environment, or a vector of them, as a stream of transitions
online     what is jitted: one call for each step of the environment
learner    KQL's state over the length of a run: room, replay, saving
answers    what callbacks and askers are told
agent      the class that ties them together
"""

from kqljax.agent.agent import KQL
from kqljax.agent.answers import AgentStep, Posterior

__all__ = ["KQL", "AgentStep", "Posterior"]
