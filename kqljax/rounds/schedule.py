"""When rounds begin, and what is fitted in them: known before a run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kqljax.rounds.recipe import Recipe
from kqljax.rounds.round import Due


class Schedule(NamedTuple):
    """What is due at which number of transitions.

    Attributes:
      recipe: its numbers.
      next_scales, next_finish: transitions from which on scales, and the finished policy, are
        fitted again.
    """

    recipe: Recipe
    next_scales: int
    next_finish: int

    @classmethod
    def of(cls, recipe: Recipe) -> Schedule:
        """Before the first round."""
        return cls(recipe, recipe.first_fit, recipe.own_from)

    def next(self, count: int) -> tuple[Due, Schedule]:
        """What is due in a round that begins after `count` transitions, and the schedule from there
        on.
        """
        due = Due(scales=count >= self.next_scales, finish=count >= self.next_finish, last=False)
        scales, finish = self.next_scales, self.next_finish
        while scales <= count:
            scales *= 2
        if due.finish:
            finish = int(np.ceil(self.recipe.own_growth * count))
        return due, self._replace(next_scales=scales, next_finish=finish)

    def steps(self, count: int) -> int:
        """Steps that a round lasts which begins with `count` transitions."""
        return max(self.recipe.least_round, int(count * self.recipe.round_share))


class Round(NamedTuple):
    """One round of a run.

    Attributes:
      begins_at: transitions stored when it begins.
      steps: steps it lasts; 0 for the fit that a run ends with.
      due: `Due`, what is fitted.
    """

    begins_at: int
    steps: int
    due: Due


def schedule(recipe: Recipe, num_steps: int) -> list[Round]:
    """The rounds of a run of `num_steps` steps.

    Examples:
      >>> from kqljax import rounds
      >>> [each.begins_at for each in rounds.schedule(rounds.DEFAULT, 40)]
      [0, 5, 10, 15, 20, 25, 30, 35, 40]
    """
    rounds, count, plan = [], 0, Schedule.of(recipe)
    while count < num_steps:
        due, plan = plan.next(count)
        rounds.append(Round(count, min(plan.steps(count), num_steps - count), due))
        count += rounds[-1].steps
    return [
        *rounds,
        Round(num_steps, 0, Due(scales=num_steps >= recipe.first_fit, finish=True, last=True)),
    ]
