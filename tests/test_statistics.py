"""Statistics over seeds, against hand computations."""

import numpy as np
import pytest

from kqljax.report import pooled, statistics, summarise, to_rliable


def test_iqm_is_the_mean_of_the_middle_half():
    summary = summarise([100.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -50.0])
    # Sorted: -50 1 | 2 3 4 5 | 6 100.
    assert summary.iqm == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert summary.mean == pytest.approx((100 + 1 + 2 + 3 + 4 + 5 + 6 - 50) / 8)
    assert summary.median == pytest.approx(3.5)
    assert (summary.min, summary.max, summary.num_seeds) == (-50.0, 100.0, 8)
    assert summary.min <= summary.low <= summary.iqm <= summary.high <= summary.max
    assert summarise([7.0]) == (7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 1)


def test_interval_is_the_bootstrap_done_slowly(monkeypatch):
    values = np.random.default_rng(3).normal(size=9)
    rng, iqms = np.random.default_rng(0), []
    for _ in range(statistics.RESAMPLES):
        drawn = np.sort(values[rng.integers(0, 9, 9)])
        iqms.append(drawn[2:-2].mean())  # a quarter of nine, rounded down, goes at each end
    summary = summarise(values)
    assert (summary.low, summary.high) == pytest.approx(tuple(np.percentile(iqms, [2.5, 97.5])))
    assert summarise(values, rng_seed=1) != summary
    monkeypatch.setattr(statistics, "_BLOCK", 9 * 300)
    assert summarise(values) == summary


def test_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    draws = rng.normal(5.0, 2.0, (400, 30))
    summaries = [summarise(each, resamples=500, rng_seed=i) for i, each in enumerate(draws)]
    assert 0.89 <= np.mean([s.low <= 5.0 <= s.high for s in summaries]) <= 0.98


def test_pooled_is_the_mean_and_std_of_all_episodes():
    rng = np.random.default_rng(0)
    sizes = [(-100.0, 5), (-150.0, 20), (-120.0, 11)]
    episodes = [rng.normal(mean, 3.0, n) for mean, n in sizes]
    everything = np.concatenate(episodes)
    found = pooled(*zip(*((e.mean(), e.std(), e.size) for e in episodes), strict=True))
    assert found == pytest.approx((everything.mean(), everything.std()))
    assert pooled([1.0, 3.0], [0.0, 0.0], 100) == (2.0, 1.0)


def row(algorithm, task, seed, value=1.0):
    return {"algorithm": algorithm, "task": task, "seed": seed, "return_mean": value}


def test_rliable_layout_is_runs_by_tasks():
    tasks = ["MountainCar-v0", "CartPole-v0"]
    results = [row("kql", t, s, 10 * i + s) for s in (2, 0, 1) for i, t in enumerate(tasks)]
    results += [row("random", task, 0, -1.0) for task in tasks[::-1]]
    layout = to_rliable(results)
    assert list(layout) == ["kql", "random"] and layout["random"].shape == (1, 2)
    np.testing.assert_array_equal(layout["kql"], [[0, 10], [1, 11], [2, 12]])
    np.testing.assert_array_equal(to_rliable(results, tasks[::-1])["kql"], layout["kql"][:, ::-1])


@pytest.mark.parametrize(
    "function, args, message",
    [
        (summarise, ([],), "at least one seed"),
        (summarise, ([1.0, 2.0, np.nan], [1000, 1001, 1002]), "seed 1002 has the mean nan"),
        (summarise, ([1.0, np.inf],), "position 1 has the mean inf"),
        (summarise, ([1.0, 2.0, 3.0], [1, 2]), "3 means but 2 seeds"),
        (summarise, ([[1.0, 2.0]],), "one number a seed"),
        (lambda values: summarise(values, resamples=0), ([1.0, 2.0],), "resamples"),
        (pooled, ([], [], 10), "at least one seed"),
        (pooled, ([1.0], [1.0], 0), "above 0"),
        (pooled, ([1.0, 2.0], [1.0], 10), "one of each"),
        (pooled, ([np.nan], [1.0], 10), "nan"),
        (to_rliable, ([],), "no results"),
        (to_rliable, ([row("dqn", "A", 0), row("dqn", "A", 0)],), "twice"),
        (
            to_rliable,
            ([row("dqn", "A", 0), row("dqn", "B", 0), row("dqn", "A", 1)],),
            "dqn has no result for seed 1 on B",
        ),
    ],
)
def test_errors_say_what_was_wrong(function, args, message):
    with pytest.raises(ValueError, match=message):
        function(*args)
