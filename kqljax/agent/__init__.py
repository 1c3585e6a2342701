"""The agent for gymnasium users: `KQL("MountainCar-v0").learn(1000).predict(obs)`.

An agent is an environment, a history and the last fit.

agent      the class, and the loop
history    raw transitions in whole episodes, bounded
learners   which learner an agent has, and what each can be told
by_rounds  learning in rounds, behind the loop
by_steps   Algorithm 1, behind the loop
beliefs    what an agent believes of states
spaces     what a gymnasium environment's observations and actions are as vectors and indices
scaling    observations to [-1, 1] and rewards to [0, 1], from known bounds or from a running estimate
loops      one environment, or a vector of them, as a stream of transitions
callbacks  what callbacks of `learn` are told
episodes   episodes of a policy without learning
files      an agent as a file; `archive` writes and reads such files
"""

from kqljax.agent.agent import KQL
from kqljax.agent.beliefs import Beliefs
from kqljax.agent.callbacks import AgentStep
from kqljax.agent.episodes import Evaluation

__all__ = ["KQL", "AgentStep", "Beliefs", "Evaluation"]
