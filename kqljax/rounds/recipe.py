"""The numbers of learning in rounds."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from kqljax.pytrees import register

SIZES = (
    "first_fit",
    "fit_rows",
    "least_round",
    "round_share",
    "centres",
    "members",
    "ratio",
    "finish_centres",
    "own_from",
    "own_growth",
    "depth",
    "narrow_scale",
)


@functools.partial(register, static=SIZES)
@dataclasses.dataclass(frozen=True)
class Recipe:
    """Every number of learning in rounds; one set for every task. Sizes are static, all the others are leaves of a pytree.

    Observations are about [-1, 1], rewards [0, 1]; cap = 1 / (1 - gamma) is the largest value. Kernels of pairs are
    exp(-scale d_w^2(p, p')), times a factor where the actions differ, with p = s + d_a the place that a pair leads to.

    Widths and displacements (`kqljax.rounds.widths`):
      etas: candidates for the width, in units of each coordinate's spread.
      fit_noise: noise of the Gaussian process whose evidence chooses among them, and of the displacements.
      fit_coupling: its factor for another action.
      least_spread: spread of a coordinate that has hardly moved.
      start_width: w before the first fit.
      first_fit: transitions at the first fit; another each time they have doubled.
      fit_rows: rows that a fit looks at, at most.

    Learning (`kqljax.rounds.learner`):
      gamma, ridge, coupling: discount, ridge and factor for another action.
      scale: of the learner's kernel: wider than what was fitted, so that one visit tells of more.
      bonus: standard deviations of optimism, times the cap.
      backups, tolerance: most backups a round, and the change, as a share of the cap, below which they end.
      least_round, round_share: a round lasts max(least_round, round_share * n) steps.
      centres: most centres of the regression.

    Finished policy (`kqljax.rounds.ensemble`):
      finish_gamma, finish_ridge, finish_coupling: as above.
      widest, ratio, members: scales of the members' kernels are widest * ratio^i.
      finish_backups, finish_tolerance: most backups of a member, and the change of a value below which they end.
      finish_centres: most centres.
      span_tolerance: what of a pair's k(x, x) the centres may leave out.

    Looking ahead (`kqljax.rounds.model`, `kqljax.rounds.policy`):
      model_coupling, model_ridge, ends_ridge: of the model of steps and rewards, and of ends.
      narrow_share, narrow_scale: its kernel is exp(-d) + narrow_share * exp(-narrow_scale * d).
      depth: actions in a plan.
      stride, most_held: an action is held until the state has moved `stride` widths, at most `most_held` steps.
      unclear: plans decide where the gap between the two best actions is below this many standard deviations over the members.

    Acting by the finished policy while learning (`kqljax.rounds.training`):
      own_gap: it acts where optimism promises less than this share of the cap beyond it.
      own_unclear: `unclear` while learning.
      own_from: stored transitions from which on it may.
      own_growth: it is fitted anew when they have grown by this factor.

    Examples:
      >>> import dataclasses
      >>> from kqljax import rounds
      >>> recipe = dataclasses.replace(rounds.DEFAULT, gamma=0.95)
      >>> recipe.gamma, recipe.centres == rounds.DEFAULT.centres
      (0.95, True)
    """

    etas: Any = (0.005, 0.015, 0.05, 0.15, 0.5)
    fit_noise: Any = 1e-4
    fit_coupling: Any = 0.99
    least_spread: Any = 0.3
    start_width: Any = 0.5
    first_fit: int = 30
    fit_rows: int = 500

    gamma: Any = 0.97
    ridge: Any = 1e-4
    coupling: Any = 0.99
    scale: Any = 0.2
    bonus: Any = 1.0
    backups: Any = 100
    tolerance: Any = 1e-3
    least_round: int = 5
    round_share: float = 0.1
    centres: int = 160

    finish_gamma: Any = 0.99
    finish_ridge: Any = 3e-4
    finish_coupling: Any = 0.996
    widest: Any = 1 / 27
    ratio: int = 3
    members: int = 5
    finish_backups: Any = 300
    finish_tolerance: Any = 1e-3
    finish_centres: int = 512
    span_tolerance: Any = 1e-6

    model_coupling: Any = 0.9
    model_ridge: Any = 1e-4
    ends_ridge: Any = 1e-2
    narrow_share: Any = 0.01
    narrow_scale: int = 27
    depth: int = 2
    stride: Any = 0.5
    most_held: Any = 4
    unclear: Any = 1.0

    own_gap: Any = 0.1
    own_unclear: Any = 0.5
    own_from: int = 100
    own_growth: float = 1.2


DEFAULT = Recipe()
