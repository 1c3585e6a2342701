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


def test_interval_is_the_bootstrap_done_slowly():
    values = np.random.default_rng(3).normal(size=9)
    rng = np.random.default_rng(0)
    iqms = []
    for _ in range(statistics.RESAMPLES):
        drawn = np.sort(values[rng.integers(0, 9, 9)])
        iqms.append(drawn[2:-2].mean())  # a quarter of nine, rounded down, goes at each end
    low, high = np.percentile(iqms, [2.5, 97.5])
    summary = summarise(values)
    assert summary.low == pytest.approx(low)
    assert summary.high == pytest.approx(high)


def test_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    summaries = [summarise(rng.normal(5.0, 2.0, 30), resamples=500, rng_seed=i) for i in range(400)]
    coverage = np.mean([s.low <= 5.0 <= s.high for s in summaries])
    assert 0.89 <= coverage <= 0.98


def test_interval_is_the_same_every_time_and_in_blocks(monkeypatch):
    values = np.random.default_rng(2).normal(size=20)
    whole = summarise(values)
    assert summarise(values) == whole
    assert summarise(values, rng_seed=1) != whole
    monkeypatch.setattr(statistics, "_BLOCK", 20 * 300)
    assert summarise(values) == whole


def test_one_seed_has_an_interval_of_no_width():
    assert summarise([7.0]) == (7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 1)


def test_what_cannot_be_summarised():
    with pytest.raises(ValueError, match="at least one seed"):
        summarise([])
    with pytest.raises(ValueError, match="seed 1002 has the mean nan"):
        summarise([1.0, 2.0, np.nan], [1000, 1001, 1002])
    with pytest.raises(ValueError, match="position 1 has the mean inf"):
        summarise([1.0, np.inf])
    with pytest.raises(ValueError, match="3 means but 2 seeds"):
        summarise([1.0, 2.0, 3.0], [1, 2])
    with pytest.raises(ValueError, match="one number a seed"):
        summarise([[1.0, 2.0]])
    with pytest.raises(ValueError, match="resamples"):
        summarise([1.0, 2.0], resamples=0)


def test_pooled_is_the_mean_and_std_of_all_episodes():
    rng = np.random.default_rng(0)
    episodes = [rng.normal(mean, 3.0, n) for mean, n in [(-100.0, 5), (-150.0, 20), (-120.0, 11)]]
    everything = np.concatenate(episodes)
    result = pooled([e.mean() for e in episodes], [e.std() for e in episodes], [e.size for e in episodes])
    assert result.mean == pytest.approx(everything.mean())
    assert result.std == pytest.approx(everything.std())
    assert pooled([1.0, 3.0], [0.0, 0.0], 100) == (2.0, 1.0)


def test_what_cannot_be_pooled():
    with pytest.raises(ValueError, match="at least one seed"):
        pooled([], [], 10)
    with pytest.raises(ValueError, match="above 0"):
        pooled([1.0], [1.0], 0)
    with pytest.raises(ValueError, match="one of each"):
        pooled([1.0, 2.0], [1.0], 10)
    with pytest.raises(ValueError, match="nan"):
        pooled([np.nan], [1.0], 10)


def _record(algorithm, task, seed, value):
    return {"algorithm": algorithm, "task": task, "seed": seed, "return_mean": value}


def test_rliable_layout_is_runs_by_tasks():
    results = [
        _record("kql-rbf", task, seed, 10 * column + seed)
        for seed in (2, 0, 1)
        for column, task in enumerate(["MountainCar-v0", "CartPole-v0"])
    ] + [_record("random", task, 0, -1.0) for task in ["CartPole-v0", "MountainCar-v0"]]
    layout = to_rliable(results)
    assert list(layout) == ["kql-rbf", "random"]
    np.testing.assert_array_equal(layout["kql-rbf"], [[0, 10], [1, 11], [2, 12]])
    assert layout["random"].shape == (1, 2)
    turned = to_rliable(results, tasks=["CartPole-v0", "MountainCar-v0"])
    np.testing.assert_array_equal(turned["kql-rbf"], [[10, 0], [11, 1], [12, 2]])


def test_rliable_wants_every_seed_on_every_task():
    results = [_record("dqn", "A", 0, 1.0), _record("dqn", "B", 0, 1.0), _record("dqn", "A", 1, 1.0)]
    with pytest.raises(ValueError, match="dqn has no result for seed 1 on B"):
        to_rliable(results)
    with pytest.raises(ValueError, match="twice"):
        to_rliable([results[0], results[0]])
    with pytest.raises(ValueError, match="no results"):
        to_rliable([])
