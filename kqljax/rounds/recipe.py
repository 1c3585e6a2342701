"""The numbers of learning in rounds."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from kqljax._arrays import register
from kqljax._checks import first_bad, is_known, whole_number

SIZES = {
    "first_fit": 2,
    "fit_rows": 2,
    "least_round": 1,
    "centres": 1,
    "members": 1,
    "ratio": 1,
    "finish_centres": 1,
    "model_centres": 1,
    "own_from": 0,
    "depth": 1,
}
"""Static whole numbers, and the least that each can be."""

_POSITIVE = (lambda x: np.isfinite(x) & (x > 0), "a positive number")
_SHARE = (lambda x: (x >= 0) & (x <= 1), "in [0, 1]")
_DISCOUNT = (lambda x: (x >= 0) & (x < 1), "in [0, 1)")
_AT_LEAST_0 = (lambda x: x >= 0, "at least 0")
_AT_LEAST_1 = (lambda x: x >= 1, "at least 1")

RANGES: dict[str, Any] = {
    **dict.fromkeys(("gamma", "finish_gamma"), _DISCOUNT),
    **dict.fromkeys(
        ("fit_coupling", "coupling", "finish_coupling", "model_coupling", "displaced"), _SHARE
    ),
    **dict.fromkeys(
        ("etas", "fit_noise", "least_spread", "start_width", "ridge", "scale", "tolerance"),
        _POSITIVE,
    ),
    **dict.fromkeys(
        (
            "finish_ridge",
            "widest",
            "finish_tolerance",
            "span_tolerance",
            "model_ridge",
            "ends_ridge",
        ),
        _POSITIVE,
    ),
    **dict.fromkeys(("bonus", "narrow_share", "stride", "unclear"), _AT_LEAST_0),
    **dict.fromkeys(("backups", "finish_backups", "most_held", "own_blocks"), _AT_LEAST_1),
}
"""What the leaves may be."""


@functools.partial(register, static=(*SIZES, "round_share", "own_growth"))
@dataclasses.dataclass(frozen=True)
class Recipe:
    """Every number of learning in rounds; one set for every task. Sizes are static, all the others
    are leaves of a pytree.

    Observations are about [-1, 1], rewards [0, 1]; cap = 1 / (1 - gamma) is the largest value.
    Kernels of pairs are exp(-scale d_w^2(p, p')), times a factor where the actions differ, with p =
    s + d_a the place that a pair leads to.

    Widths and displacements (`kqljax.rounds.widths`):
      etas: candidates for the width, in units of each coordinate's spread.
      fit_noise: noise of the Gaussian process whose evidence chooses among them, and of the
        displacements.
      fit_coupling: its factor for another action.
      least_spread: spread of a coordinate that has hardly moved.
      displaced: share of the displacements that counts; at 0 pairs are compared by state and name
        of the action alone.
      start_width: w before the first fit.
      first_fit: transitions at the first fit; another each time they have doubled.
      fit_rows: rows that a fit looks at, at most.

    Learning (`kqljax.rounds.learner`):
      gamma, ridge, coupling: discount, ridge and factor for another action.
      scale: of the learner's kernel: wider than what was fitted, so that one visit tells of more.
      bonus: standard deviations of optimism, times the cap.
      backups, tolerance: most backups a round, from the cap, and the change, as a share of the cap,
        below which they end.
      least_round, round_share: a round lasts max(least_round, round_share * n) steps.
      centres: most centres of the regression.

    Finished policy (`kqljax.rounds.ensemble`):
      finish_gamma, finish_ridge, finish_coupling: as above.
      widest, ratio, members: scales of the members' kernels are widest * ratio^i.
      finish_backups, finish_tolerance: most backups of a member, and the change of a value below
        which they end.
      finish_centres: most centres.
      span_tolerance: what of a pair's k(x, x) the centres may leave out.

    Looking ahead (`kqljax.rounds.model`, `kqljax.rounds.policy`):
      model_coupling, model_ridge, ends_ridge: of the model of steps and rewards, and of ends.
      narrow_share: its kernel is exp(-d) + narrow_share * exp(-27 d): a little of a narrow one
        keeps a wall local.
      model_centres: most of the ensemble's centres that it takes.
      depth: actions in a plan.
      stride, most_held: an action is held until the state has moved `stride` widths, at most
        `most_held` steps.
      unclear: plans decide where the gap between the two best actions is below this many standard
        deviations over the members.

    Acting by the finished policy while learning (`kqljax.rounds.rounds`):
      own_gap: it acts where optimism promises less than this share of the cap beyond it.
      own_from: stored transitions from which on it may.
      own_growth: it is fitted anew when they have grown by this factor.
      own_blocks: most blocks of 64 centres of such a fit.

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
    displaced: Any = 1.0
    start_width: Any = 0.5
    first_fit: int = 30
    fit_rows: int = 500

    gamma: Any = 0.97
    ridge: Any = 3e-4
    coupling: Any = 0.99
    scale: Any = 0.2
    bonus: Any = 1.0
    backups: Any = 300
    tolerance: Any = 1e-4
    least_round: int = 5
    round_share: float = 0.05
    centres: int = 128

    finish_gamma: Any = 0.99
    finish_ridge: Any = 3e-4
    finish_coupling: Any = 0.996
    widest: Any = 1 / 27
    ratio: int = 3
    members: int = 5
    finish_backups: Any = 300
    finish_tolerance: Any = 1e-3
    finish_centres: int = 384
    span_tolerance: Any = 1e-6

    model_coupling: Any = 0.9
    model_ridge: Any = 1e-4
    ends_ridge: Any = 1e-2
    narrow_share: Any = 0.01
    model_centres: int = 256
    depth: int = 2
    stride: Any = 0.5
    most_held: Any = 4
    unclear: Any = 1.0

    own_gap: Any = 0.1
    own_from: int = 100
    own_growth: float = 1.2
    own_blocks: Any = 1

    def validate(self) -> None:
        """Raises ValueError for numbers that cannot work. Sizes are always looked at, values
        outside of jit.
        """
        for name, least in SIZES.items():
            whole_number(name, getattr(self, name), least, "It is a size of kqljax.rounds.Recipe.")
        for name, block in (("centres", 64), ("finish_centres", 64), ("model_centres", 64)):
            if getattr(self, name) > block and getattr(self, name) % block:
                raise ValueError(
                    f"{name}={getattr(self, name)}: above {block} it must be a multiple of "
                    f"{block}, a block of centres."
                )
        if not 0 < self.round_share <= 1:
            raise ValueError(
                "round_share must be in (0, 1], the share of the stored transitions a round "
                f"lasts, got {self.round_share}."
            )
        if not self.own_growth >= 1:
            raise ValueError(f"own_growth must be at least 1, got {self.own_growth}.")
        for name, (is_good, wanted) in RANGES.items():
            value = getattr(self, name)
            if is_known(value):
                good = is_good(np.asarray(value, float))
                if not np.all(good):
                    raise ValueError(f"{name} must be {wanted}, got {first_bad(value, good)}.")


DEFAULT = Recipe()
