"""The agent for gymnasium users: `KQL("MountainCar-v0").learn(1000).predict(obs)`.

An agent is an environment, a history and the last fit.

agent      the class, and the loop
history    raw transitions in whole episodes, bounded
by_rounds  learning in rounds, behind the loop
by_steps   Algorithm 1, behind the loop
beliefs    what a fit answers: actions and values
spaces     observations and actions of gymnasium as vectors and indices
scaling    observations to [-1, 1] and rewards to [0, 1], from known or estimated bounds
loops      one environment, or a vector of them, as a stream of transitions
episodes   episodes of a policy without learning
callbacks  what callbacks of `learn` are told; the progress bar
"""

from kqljax.agent.agent import KQL
from kqljax.agent.beliefs import Beliefs
from kqljax.agent.callbacks import AgentStep
from kqljax.agent.episodes import Evaluation

__all__ = ["KQL", "AgentStep", "Beliefs", "Evaluation"]
