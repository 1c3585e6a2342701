"""Sweeps: each run once, the same bits however it is made, nothing lost to a killed process."""

import csv
import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from lab_walk import make_walk, walks

import kqljax
from kqljax import rounds
from kqljax.lab import LabError, Sweep, expand_grid, programs, run_sweep, tidy_settings
from kqljax.lab import run as lab_run
from kqljax.lab.grid import Table, make_groups
from kqljax.lab.settings import make_cases
from kqljax.report.sweeps import draw_sweep, summarise_rows

ROOT = Path(__file__).parent.parent
CAR = "MountainCar-v0"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    "JAX_PLATFORMS": "cpu",
    "OPENBLAS_NUM_THREADS": "1",
}


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The table of the walks, made in one go."""
    out = tmp_path_factory.mktemp("whole")
    run_sweep(walks(), out)
    return (out / "results.csv").read_bytes()


# Both learners -----------------------------------------------------------------------------------


def test_rounds_and_algorithm_1_in_one_table(tmp_path):
    settings = tidy_settings(
        [{"task": CAR}, {"task": CAR, "recipe": "paper", "features": "linear", "kernel": "linear"}]
    )
    run_sweep(Sweep(settings=settings, first_seed=3, seeds=2, steps=30, episodes=2), tmp_path)
    rows = read(tmp_path / "results.csv")
    assert [(row["recipe"], row["seed"]) for row in rows] == [
        ("", "3"),
        ("", "4"),
        ("paper", "3"),
        ("paper", "4"),
    ]
    assert all(row["is_sound"] == "True" and -200 <= float(row["return_mean"]) < 0 for row in rows)


def test_a_run_is_train_and_evaluate_with_the_seed_of_the_row(tmp_path):
    settings = [{"task": "CartPole-v0", "recipe": "paper", "eta": eta} for eta in (0.02, 0.3)]
    sizes = {"steps": 40, "episodes": 3, "curve_points": 2, "curve_episodes": 2}
    found = run_sweep(Sweep(settings=tidy_settings(settings), seeds=2, **sizes), tmp_path)
    task = kqljax.make_task("CartPole-v0")

    @jax.jit
    def alone(keys, cfg):
        run = kqljax.train(keys[0], task, cfg, 40, eval_at=(20, 40), eval_episodes=2)
        return run.log.terminated | run.log.truncated, run.log.episode_return, run.curve, (
            kqljax.evaluate(keys[1], task, run, 3)
        )  # fmt: skip

    for row in found.rows:
        cfg = task.config(kernel=kqljax.RBF(eta=row["eta"]), horizon=40)
        keys = jax.random.split(jax.random.key(row["seed"]))
        ended, totals, curve, returns = map(np.asarray, alone(keys, cfg))
        assert row["return_mean"] == pytest.approx(returns.mean())
        assert row["training_episodes"] == ended.sum()
        assert row["training_return"] == pytest.approx(totals[ended].mean())
        place = row["eta"], row["seed"]
        points = [each for each in found.curves if (each["eta"], each["seed"]) == place]
        assert [each["step"] for each in points] == [20, 40]
        np.testing.assert_allclose([each["return_mean"] for each in points], curve.mean(axis=1))


# Interruptions -----------------------------------------------------------------------------------


def test_a_sweep_goes_on_with_the_same_bits(tmp_path, whole):
    class Stop(Exception):
        pass

    def stop(done, total):
        if done == 3:
            raise Stop

    with pytest.raises(Stop):
        run_sweep(walks(), tmp_path, report=stop)
    assert not (tmp_path / "results.csv").exists()
    said, told = [], []
    run_sweep(
        walks(), tmp_path, say=said.append, report=lambda done, total: told.append((done, total))
    )
    assert (tmp_path / "results.csv").read_bytes() == whole
    assert said == [f"3 of 8 runs are in {tmp_path} already"]
    assert told == [(done, 8) for done in range(3, 9)]


def test_three_kills(tmp_path, whole):
    for last in (1, 4, 6):
        command = [sys.executable, ROOT / "tests" / "lab_walk.py", tmp_path, str(last)]
        done = subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, capture_output=True, timeout=240)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        assert len(list((tmp_path / "chunks").glob("*.npz"))) == last
    run_sweep(walks(), tmp_path)
    assert (tmp_path / "results.csv").read_bytes() == whole


def test_more_seeds_and_settings_run_only_what_is_missing(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(
        lab_run, "run_chunk", lambda *args: made.append(args[1]) or programs.run_chunk(*args)
    )
    few = run_sweep(walks(seeds=2), tmp_path)
    assert sum(map(len, made)) == 4
    more = run_sweep(walks(seeds=3), tmp_path)
    assert sum(map(len, made)) == 6
    assert [row for row in more.rows if row["seed"] < 2] == few.rows
    run_sweep(dataclasses.replace(walks(seeds=2), steps=20), tmp_path)
    assert sum(map(len, made)) == 10


def test_a_damaged_chunk_is_made_again(tmp_path, whole):
    run_sweep(walks(), tmp_path)
    path = sorted((tmp_path / "chunks").glob("*.npz"))[2]
    path.write_bytes(path.read_bytes()[:-40])
    said = []
    run_sweep(walks(), tmp_path, say=said.append)
    assert path.name in said[0] and said[0].endswith("Its runs are made again.")
    assert (tmp_path / "results.csv").read_bytes() == whole


def test_runs_of_other_versions_are_kept_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(lab_run, "_made_by", lambda: "jax 0.1")
    run_sweep(walks(), tmp_path)
    monkeypatch.undo()
    said = []
    run_sweep(walks(), tmp_path, say=said.append)
    assert said[0].endswith("were made with jax 0.1; they are kept")


# A cluster ---------------------------------------------------------------------------------------


@pytest.fixture
def cluster():
    """A client of a Dask scheduler on 127.0.0.1, and a function that starts a worker process."""
    distributed = pytest.importorskip("distributed", reason="pip install 'kqljax[dask]'")
    only_here = {"host": "127.0.0.1", "dashboard_address": None, "protocol": "tcp"}
    cluster = distributed.LocalCluster(n_workers=0, **only_here)
    with cluster, distributed.Client(cluster) as client:
        workers = []

        def start():
            command = [sys.executable, "-m", "distributed.cli.dask_worker"]
            command += [cluster.scheduler_address, "--host", "127.0.0.1", "--nthreads", "1"]
            command += ["--no-nanny", "--no-dashboard"]
            workers.append(subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.DEVNULL))
            client.wait_for_workers(len(workers), timeout=120)
            return workers[-1]

        yield client, start
        for worker in workers:
            worker.kill()
            worker.wait()


def test_chunks_of_a_killed_worker_go_to_another(tmp_path, whole, cluster):
    client, start = cluster
    start()
    victim = start()

    def kill(done, total):
        if done == 2:
            victim.kill()

    sweep = walks()
    run_sweep(sweep, tmp_path, client=client, report=kill)
    assert victim.wait() == -signal.SIGKILL
    assert (tmp_path / "results.csv").read_bytes() == whole


# Bad numbers, memory -----------------------------------------------------------------------------


def test_runs_with_bad_numbers_are_marked(tmp_path):
    recipes = {"walk": make_walk}
    grid = {"task": "Pendulum-v1", "recipe": "walk", "walk.on": [0.5, -1.0]}
    sweep = Sweep(
        settings=expand_grid(grid, recipes), seeds=2, steps=40, episodes=3, recipes=recipes
    )
    rows = run_sweep(sweep, tmp_path).rows
    assert [row["is_sound"] for row in rows] == [True, True, False, False]
    assert [row["return_mean"] is None for row in rows] == [False, False, True, True]
    good, bad = summarise_rows(rows, sweep.names)
    assert (good["num_seeds"], good["unsound_seeds"]) == (2, [])
    assert (bad["num_seeds"], bad["unsound_seeds"]) == (0, [0, 1])


def test_what_does_not_fit_is_refused_before_it_runs(tmp_path):
    with pytest.raises(
        LabError, match=r"one run of 200 steps needs .* a device has 1e-05 MB. Take features"
    ):
        run_sweep(walks(), tmp_path, memory=10)


def test_chunks_shrink_until_the_program_fits(monkeypatch):
    """As on an accelerator, where runs go side by side."""
    device = type(
        "Device", (), {"platform": "gpu", "memory_stats": lambda self: {"bytes_limit": 1000}}
    )()
    monkeypatch.setattr(programs.jax, "local_devices", lambda: [device] * 2)
    sizes = []

    def program(group, size):
        sizes.append(size)
        return programs.Program(None, None, 100 + 60 * size)

    monkeypatch.setattr(programs, "compile_group", program)
    (group,) = make_groups(walks(seeds=50), "name")
    assert programs.chunk_size(group, at_most=100, memory=None) <= 13
    assert sizes[0] == 100 and sizes == sorted(sizes, reverse=True)
    assert (
        programs.chunk_size(group, at_most=5, memory=None) == 6
    )  # the same number on both devices


# Settings ----------------------------------------------------------------------------------------


def test_a_grid_leaves_out_what_does_not_belong():
    grid = {
        "task": [CAR],
        "recipe": ["default", "paper"],
        "kernel": ["rbf", "linear"],
        "eta": [0.1, 0.2],
    }
    assert expand_grid(grid) == [
        {"task": CAR, "recipe": "default"},
        {"task": CAR, "recipe": "paper", "kernel": "rbf", "eta": 0.1},
        {"task": CAR, "recipe": "paper", "kernel": "rbf", "eta": 0.2},
        {"task": CAR, "recipe": "paper", "kernel": "linear"},
    ]


def test_values_reach_learner_and_environment():
    paper = {"task": CAR, "recipe": "paper"}
    own = {"kernel": "matern52", "length_scale": 2, "gamma": 0.8, "lam": 0.5, "tie_break": "random"}
    settings = [
        {**paper, **own, "params.gravity": "0.003"},
        {"task": CAR, "rounds.bonus": "0.5", "rounds.centres": "64"},
        {"task": "Pendulum-v1", "recipe": "paper"},
        {**paper, "features": "taylor", "tolerance": 1e-4, "dtype": "float32"},
        {**paper, "features": "taylor", "tolerance": 1e-4, "beta": 0.3},
    ]
    own, recipe, plain, mapped, shared = make_cases(tidy_settings(settings), 40)
    cfg = own.learner
    assert (cfg.kernel, cfg.gamma, cfg.lam) == (kqljax.Matern52(length_scale=2.0), 0.8, 0.5)
    assert (cfg.tie_break, cfg.horizon, own.task.params.gravity) == ("random", 40, 0.003)
    assert recipe.learner == dataclasses.replace(rounds.DEFAULT, bonus=0.5, centres=64)
    assert (plain.learner.kernel, plain.learner.gamma) == (kqljax.RBF(eta=1.0), 0.95)
    assert (mapped.dtype, shared.dtype, shared.learner.beta) == ("float32", "float64", 0.3)
    assert mapped.learner.engine.features.error <= 1e-4
    assert mapped.learner.engine.features is shared.learner.engine.features


@pytest.mark.parametrize("features", ["linear", "fourier", "nystrom"])
def test_features_of_every_kind(features):
    own = {
        "linear": {"kernel": "linear"},
        "fourier": {"frequencies": 8},
        "nystrom": {"tolerance": 1e-2},
    }
    settings = tidy_settings(
        [{"task": CAR, "recipe": "paper", "features": features, **own[features]}]
    )
    (case,) = make_cases(settings, 40)
    assert case.learner.engine.features.num_features > 1


def test_groups_share_a_compile_and_keep_their_numbers():
    grid = {"task": [CAR, "CartPole-v0"], "recipe": ["paper", "default"]}
    grid |= {"eta": [0.1, 0.2], "rounds.gamma": [0.9, 0.5]}
    groups = make_groups(Sweep(settings=expand_grid(grid), steps=40), "name")
    assert [len(group.sweep.settings) for group in groups] == [2, 2, 2, 2]
    for group in groups:
        cases = group.cases()
        table = Table.of(cases)
        for place, case in enumerate(cases):
            leaves = jax.tree.leaves((case.task, case.learner))
            for one, same in zip(table.row(place), leaves, strict=True):
                np.testing.assert_array_equal(one, same)


@pytest.mark.parametrize(
    "grid, words",
    [
        ({"task": "MountainCat-v0"}, "unknown task 'MountainCat-v0'. Did you mean MountainCar-v0"),
        ({"eta": 0.1, "recipe": "paper"}, "a setting needs a task"),
        ({"task": CAR, "eta": 0.1}, r"eta means nothing beside .* Add recipe paper"),
        ({"task": CAR, "recipe": "papr"}, "unknown recipe 'papr'. Did you mean paper"),
        (
            {"task": CAR, "recipe": "paper", "gama": 0.9},
            "unknown setting 'gama'. Did you mean gamma",
        ),
        ({"task": CAR, "recipe": "paper", "gamma": "x"}, "gamma must be a finite number, got 'x'"),
        (
            {"task": CAR, "recipe": "paper", "gamma": 1.0},
            r"recipe=paper, gamma=1.0: gamma must be in \[0, 1\)",
        ),
        ({"task": CAR, "recipe": "paper", "dtype": "float32", "lam": 1e-6}, "float32"),
        ({"task": CAR, "rounds.gamma": 1.0}, r"gamma must be in \[0, 1\)"),
        (
            {"task": CAR, "rounds.gama": 1.0},
            "unknown setting 'rounds.gama'. Did you mean rounds.gamma",
        ),
        ({"task": CAR, "params.mass": 1.0}, "unknown setting 'params.mass'"),
        (
            {"task": CAR, "params.max_steps_in_episode": 10},
            "length of an episode is part of the task",
        ),
        ({"task": CAR, "recipe": "paper", "eta": []}, "eta has no values"),
    ],
)
def test_settings_that_cannot_run_are_refused(grid, words):
    with pytest.raises(LabError, match=words):
        make_cases(expand_grid(grid), 40)


@pytest.mark.parametrize("name", ["seeds", "steps", "episodes", "chunk"])
def test_sizes_are_checked(name, tmp_path):
    with pytest.raises(LabError, match=f"--{name} must be at least 1, got 0"):
        run_sweep(dataclasses.replace(walks(), **{name: 0}), tmp_path)


def test_the_figure_has_a_panel_a_task_and_name():
    def row(task, eta, seed):
        return {
            "task": task,
            "eta": eta,
            "seed": seed,
            "steps": 10,
            "is_sound": True,
            "return_mean": seed,
        }

    rows = [
        row(task, eta, seed)
        for task in (CAR, "CartPole-v0")
        for eta in (0.1, 0.2)
        for seed in (0, 1)
    ]
    figure = draw_sweep([*rows, row(CAR, None, 0)], ["task", "eta"])
    labels = [[tick.get_text() for tick in panel.get_xticklabels()] for panel in figure.axes]
    assert labels == [["0.1", "0.2", "default"], ["0.1", "0.2"]]
