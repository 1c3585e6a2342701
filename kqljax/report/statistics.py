"""Statistics with seeds as the unit.

Episodes of one trained policy are not independent samples of an algorithm, so every interval here
is over seeds: one number a seed goes in. The pooled mean and standard deviation over episodes are
kept apart, because the paper prints those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

RESAMPLES = 10_000
_BLOCK = 4_000_000
"""Numbers drawn at a time, so that a bootstrap over very many seeds stays small in memory."""


class Summary(NamedTuple):
    """One algorithm on one task, over seeds.

    Attributes:
      iqm: interquartile mean, the mean without the lowest and the highest quarter of the seeds.
      mean, median, min, max: over seeds.
      low, high: 95% percentile-bootstrap interval of the IQM over seeds. It is too narrow for a
        handful of seeds.
      num_seeds: how many seeds there are.
    """

    iqm: float
    mean: float
    median: float
    min: float
    max: float
    low: float
    high: float
    num_seeds: int


class Pooled(NamedTuple):
    """All episodes of all seeds as one sample, as the paper's Table 1 prints it.

    Attributes:
      mean: over episodes.
      std: over episodes, divided by N.
    """

    mean: float
    std: float


def summarise(
    per_seed_means: Any,
    seeds: Sequence[int] | None = None,
    *,
    resamples: int = RESAMPLES,
    rng_seed: int = 0,
) -> Summary:
    """IQM, order statistics and a bootstrap interval of one number a seed.

    Args:
      per_seed_means: `[S]` the mean return of each seed.
      seeds: `[S]` their numbers, for error messages.
      resamples: bootstrap samples.
      rng_seed: of the bootstrap; the same numbers always get the same interval.

    Examples:
      >>> from kqljax.report import summarise
      >>> summarise([1.0, 2.0, 3.0, 10.0]).iqm
      2.5
    """
    values = np.asarray(per_seed_means, np.float64)
    if values.ndim != 1:
        raise ValueError(
            f"per_seed_means must be one number a seed, shape [S], got shape {values.shape}."
        )
    if values.size == 0:
        raise ValueError("per_seed_means is empty: a summary needs at least one seed.")
    if seeds is not None and len(seeds) != values.size:
        raise ValueError(f"there are {values.size} means but {len(seeds)} seeds.")
    _check_finite(values, seeds)
    low, high = _bootstrap_interval(values, resamples, rng_seed)
    return Summary(
        iqm=float(stats.trim_mean(values, 0.25)),
        mean=float(np.mean(values)),
        median=float(np.median(values)),
        min=float(np.min(values)),
        max=float(np.max(values)),
        low=low,
        high=high,
        num_seeds=int(values.size),
    )


def _check_finite(values: np.ndarray, seeds: Sequence[int] | None) -> None:
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        first = int(wrong[0])
        which = f"seed {seeds[first]}" if seeds is not None else f"the seed at position {first}"
        raise ValueError(
            f"{which} has the mean {values[first]}: leave it out knowingly or run it again."
        )


def _bootstrap_interval(values: np.ndarray, resamples: int, rng_seed: int) -> tuple[float, float]:
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}.")
    if values.size == 1:
        return float(values[0]), float(values[0])
    rng = np.random.default_rng(rng_seed)
    rows, iqms = max(1, _BLOCK // values.size), []
    for start in range(0, resamples, rows):
        drawn = rng.integers(0, values.size, (min(rows, resamples - start), values.size))
        iqms.append(stats.trim_mean(values[drawn], 0.25, axis=1))
    low, high = np.percentile(np.concatenate(iqms), [2.5, 97.5])
    return float(low), float(high)


def pooled(mean: Any, std: Any, n: Any) -> Pooled:
    """Mean and standard deviation over the episodes of all seeds, from those of each seed.

    Args:
      mean: `[S]` mean return of each seed.
      std: `[S]` standard deviation of each seed's returns (divided by n).
      n: `[S]` or a number, episodes of each seed.
    """
    mean, std = np.asarray(mean, np.float64), np.asarray(std, np.float64)
    if mean.size == 0:
        raise ValueError("mean is empty: pooling needs at least one seed.")
    if mean.shape != std.shape:
        raise ValueError(f"mean has shape {mean.shape}, std {std.shape}: give one of each a seed.")
    weight = np.broadcast_to(np.asarray(n, np.float64), mean.shape)
    if not np.all(weight > 0):
        raise ValueError(f"n must be above 0 for every seed, got {np.min(weight):g}.")
    _check_finite(mean, None)
    _check_finite(std, None)
    centre = np.average(mean, weights=weight)
    variance = np.average(std**2 + (mean - centre) ** 2, weights=weight)
    return Pooled(float(centre), float(np.sqrt(variance)))


def to_rliable(
    results: Iterable[Mapping[str, Any]], tasks: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Results in the layout of the rliable library: algorithm -> `[runs, tasks]`.

    Args:
      results: records with `task`, `algorithm`, `seed`, `return_mean`.
      tasks: order of the columns, by default the order in which the tasks first appear.

    Every algorithm must have the same seeds on all tasks: row i is one seed.
    """
    results = list(results)
    if not results:
        raise ValueError("there are no results to export.")
    tasks = list(dict.fromkeys(each["task"] for each in results)) if tasks is None else list(tasks)
    cells: dict[str, dict[tuple[int, str], float]] = {}
    for record in results:
        cell = cells.setdefault(record["algorithm"], {})
        place = (record["seed"], record["task"])
        if place in cell:
            raise ValueError(f"{record['algorithm']} has seed {place[0]} on {place[1]} twice.")
        cell[place] = record["return_mean"]
    layout = {}
    for algorithm, cell in cells.items():
        seeds = sorted({seed for seed, task in cell if task in tasks})
        missing = [(seed, task) for seed in seeds for task in tasks if (seed, task) not in cell]
        if missing or not seeds:
            where = "seed {} on {}".format(*missing[0]) if missing else f"any of {tasks}"
            raise ValueError(f"{algorithm} has no result for {where}: every run needs all tasks.")
        rows = [[cell[seed, task] for task in tasks] for seed in seeds]
        layout[algorithm] = np.array(rows, np.float64)
    return layout
