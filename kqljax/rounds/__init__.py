"""Learning in rounds: keep the transitions, fit everything anew from them now and then, act until
the next round.

Fitted Q-iteration with KQL's regression and KQL's optimism. Algorithm 1 of the paper, exact and
step by step, is `kqljax.kql_step`; this is another learner, for people who want every seed to
learn. `docs/recipe.md` says what it is made of.

    run = kqljax.train(key, task, kqljax.rounds.DEFAULT, num_steps=1000)
    returns = kqljax.evaluate(key, task, run, num_episodes=100)
"""

from kqljax.rounds.fit import CPU_COMPILER_OPTIONS, Fit, fit
from kqljax.rounds.policy import Policy, Values
from kqljax.rounds.recipe import DEFAULT, Recipe
from kqljax.rounds.rounds import Rounds, RoundsInfo, RoundsState
from kqljax.rounds.schedule import schedule
from kqljax.rounds.transitions import Transitions

__all__ = [
    "CPU_COMPILER_OPTIONS",
    "DEFAULT",
    "Fit",
    "Policy",
    "Recipe",
    "Rounds",
    "RoundsInfo",
    "RoundsState",
    "Transitions",
    "Values",
    "fit",
    "schedule",
]
