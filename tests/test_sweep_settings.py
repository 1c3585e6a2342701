"""Settings: grids, lists, files, groups that share shapes, and chunks that fit."""

import re

import jax
import numpy as np
import pytest

import kqljax
from kqljax import cli
from kqljax.commands import sweep as command
from kqljax.sweep import SettingError, Sweep, SweepError, expand_grid, tidy_settings
from kqljax.sweep.groups import Segment, chunk_size, make_groups, make_schedule, memory_a_run
from kqljax.sweep.plan import make_chunks
from kqljax.sweep.settings import make_cases

TASK = "MountainCar-v0"


def parse(*words):
    return command.make_sweep(cli.make_parser().parse_args(["sweep", "--out", "x", *words]))


def test_a_grid_is_all_combinations_without_what_means_nothing():
    found = expand_grid({"task": TASK, "kernel": ["rbf", "linear"], "eta": [0.1, 0.2], "gamma": [0.9]})
    assert found == [
        {"task": TASK, "kernel": "rbf", "eta": 0.1, "gamma": 0.9},
        {"task": TASK, "kernel": "rbf", "eta": 0.2, "gamma": 0.9},
        {"task": TASK, "kernel": "linear", "gamma": 0.9},
    ]


@pytest.mark.parametrize(
    "grid, words",
    [
        ({"task": TASK, "etta": [0.1]}, "unknown setting 'etta'. Did you mean eta?"),
        ({"task": TASK, "eta": ["wide"]}, "eta must be a finite number, got 'wide'"),
        ({"task": TASK, "eta": ["nan"]}, "eta must be a finite number, got 'nan'"),
        ({"task": TASK, "backups": [1.5]}, "backups must be a whole number, got 1.5"),
        ({"task": TASK, "kernel": ["rbff"]}, "unknown kernel 'rbff'. Did you mean rbf?"),
        ({"task": TASK, "length_scale": [1.0]}, "length_scale means nothing beside the other settings"),
        ({"task": TASK, "memory": [10]}, "memory means nothing beside the other settings"),
        ({"task": TASK, "eta": []}, "eta has no values"),
        ({"eta": [0.1]}, "a setting needs a task"),
    ],
)
def test_wrong_grids_are_refused(grid, words):
    with pytest.raises(SettingError, match=words.replace("?", r"\?")):
        expand_grid(grid)


@pytest.mark.parametrize(
    "setting, words",
    [
        ({"task": "MountainCat-v0"}, "unknown task 'MountainCat-v0'. Did you mean MountainCar-v0"),
        ({"task": TASK, "gamma": 1.0}, r"task=MountainCar-v0, gamma=1: gamma must be in \[0, 1\)"),
        ({"task": TASK, "dtype": "float32", "lam": 1e-6}, "cannot keep its factor in float32"),
        ({"task": TASK, "params.mass": 1.0}, "unknown setting 'params.mass'"),
        ({"task": TASK, "params.max_steps_in_episode": 10}, "length of an episode is part of the task"),
        ({"task": TASK, "kernel": "linear", "features": "taylor"}, "features.taylor is for the kernel RBF"),
    ],
)
def test_settings_that_cannot_run_are_refused(setting, words):
    with pytest.raises(SettingError, match=words):
        make_cases(tidy_settings([setting]), 40)


def test_values_reach_config_and_environment():
    setting = {
        "task": TASK, "kernel": "matern52", "length_scale": 2.0, "gamma": 0.8, "lam": 0.5, "beta": 0.1, "backups": 2,
        "tie_break": "random", "params.gravity": 0.003,
    }  # fmt: skip
    (case,) = make_cases(tidy_settings([setting]), 40)
    assert case.cfg.kernel == kqljax.Matern52(length_scale=2.0)
    assert (case.cfg.gamma, case.cfg.lam, case.cfg.beta, case.cfg.backups) == (0.8, 0.5, 0.1, 2)
    assert (case.cfg.tie_break, case.cfg.horizon, case.task.params.gravity) == ("random", 40, 0.003)
    (paper,) = make_cases([{"task": "Pendulum-v1"}], 1000)
    assert (paper.cfg.kernel, paper.cfg.gamma, paper.cfg.lam) == (kqljax.RBF(eta=1.0), 0.95, 1e-4)


def test_features_of_every_kind():
    settings = [
        {"task": TASK, "features": "taylor", "tolerance": 1e-3},
        {"task": TASK, "features": "fourier", "frequencies": 8, "memory": 10},
        {"task": TASK, "kernel": "linear", "features": "linear"},
        {"task": TASK, "features": "taylor", "tolerance": 1e-3, "gamma": 0.5},
    ]
    cases = make_cases(tidy_settings(settings), 40)
    assert [type(case.cfg.features).__name__ for case in cases] == ["TaylorMap", "FourierMap", "LinearMap", "TaylorMap"]
    assert cases[0].cfg.features is cases[3].cfg.features
    assert cases[1].cfg.capacity == 10
    assert [group.settings for group in make_groups(cases)] == [(0, 3), (1,), (2,)]


def test_groups_share_shapes_and_give_every_setting_its_numbers():
    grid = {"task": [TASK, "CartPole-v0"], "eta": [0.1, 0.2], "gamma": [0.9, 0.5], "params.gravity": [0.002, 0.003]}
    settings = expand_grid(grid)
    cases = make_cases(settings, 40)
    groups = make_groups(cases)
    assert [len(group.settings) for group in groups] == [8, 8]
    for group in groups:
        for place, position in enumerate(group.settings):
            row = jax.tree.map(lambda leaf: leaf[0], group.rows([place]))
            joined, own = group.join(group.fixed, row), (cases[position].task, cases[position].cfg)
            assert jax.tree.structure(joined) == jax.tree.structure(own)
            for a, b in zip(jax.tree.leaves(joined), jax.tree.leaves(own), strict=True):
                np.testing.assert_array_equal(a, b)
    # What is the same everywhere is kept once: eta, gamma, beta and gravity differ, and where the end pays, its value.
    assert [sum(leaf is not None for leaf in group.varying) for group in groups] == [5, 4]


def test_schedule():
    (case,) = make_cases([{"task": TASK}], 100)
    assert make_schedule(case, 100, 2, None) == [Segment(50, 0, 50), Segment(100, 50, 100)]
    assert make_schedule(case, 100, 2, 30) == [
        Segment(50, 0, 30), Segment(50, 30, 50), Segment(100, 50, 80), Segment(100, 80, 100),
    ]  # fmt: skip
    assert make_schedule(case, 90, 2, None, multiple=8) == [Segment(48, 0, 48), Segment(96, 48, 90)]
    (short,) = make_cases([{"task": TASK, "features": "taylor", "memory": 20}], 100)
    assert make_schedule(short, 100, 2, None) == [Segment(10, 0, 10), Segment(20, 10, 20), Segment(20, 20, 100)]


def test_chunks_hold_every_run_once():
    sweep = Sweep(settings=expand_grid({"task": TASK, "eta": [0.1, 0.2, 0.3]}), seeds=3, first_seed=5, steps=40)
    groups = make_groups(make_cases(sweep.settings, sweep.steps))
    chunks = make_chunks(sweep, groups, [4])
    runs = [(place, seed) for chunk in chunks for place, seed in zip(chunk.places, chunk.seeds, strict=True)]
    assert runs == [(place, seed) for place in range(3) for seed in (5, 6, 7)]
    assert [len(chunk.seeds) for chunk in chunks] == [4, 4, 1]
    assert chunks[2].padded(chunks[2].seeds) == [7, 7, 7, 7]


def test_sizes_of_chunks():
    assert chunk_size(10, 100, 1, 1) == 10
    assert chunk_size(10, 4, 1, 1) == 4  # three chunks of nearly one size
    assert chunk_size(16, 100, 4, 1) == 16
    assert chunk_size(16, 100, 2, 2) == 8
    assert chunk_size(3, 100, 4, 1) == 4
    (group,) = make_groups(make_cases([{"task": TASK}], 500))
    need = memory_a_run(group, 100, 500)
    assert 2 < need / kqljax.estimate_memory(group.case.cfg, 1, obs_dim=2) < 6


def test_flags_and_files_say_the_same(tmp_path):
    grid = 'seeds = 3\nsteps = 50\n[grid]\ntask = "MountainCar-v0"\neta = [0.1, 0.2]\n"params.gravity" = [0.002]\n'
    (tmp_path / "grid.toml").write_text(grid)
    (tmp_path / "grid.json").write_text(
        '{"seeds": 3, "steps": 50, "grid": {"task": ["MountainCar-v0"], "eta": [0.1, 0.2], "params.gravity": 0.002}}'
    )
    (tmp_path / "list.toml").write_text(
        'seeds = 3\nsteps = 50\n[[settings]]\ntask = "MountainCar-v0"\neta = 0.1\n'
        '[[settings]]\ntask = "MountainCar-v0"\neta = 0.2\n'
    )
    flags = ("--task", TASK, "--eta", "0.1", "--eta", "0.2", "--seeds", "3", "--steps", "50", "--set", "params.gravity=0.002")
    expected = parse(*flags)
    assert expected.swept == ["eta"]
    assert parse("--file", str(tmp_path / "grid.toml")) == expected
    assert parse("--file", str(tmp_path / "grid.json")) == expected
    assert parse("--file", str(tmp_path / "list.toml"), "--set", "params.gravity=0.002") == expected
    assert parse("--file", str(tmp_path / "grid.toml"), "--seeds", "7").seeds == 7
    (tmp_path / "wrong.toml").write_text("sedes = 3\n")
    with pytest.raises(SweepError, match="wrong.toml: unknown sedes"):
        parse("--file", str(tmp_path / "wrong.toml"))
    with pytest.raises(SweepError, match="cannot read .*absent.toml"):
        parse("--file", str(tmp_path / "absent.toml"))


@pytest.mark.parametrize(
    "words, message",
    [
        (["--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["--shard", "rows", "--features", "taylor"], "--shard rows is for the exact engine"),
        (["--memory", "many"], "--memory must be a number of bytes such as 8GB"),
        (["--memory", "10kB"], "needs about .* a device has 10 kB for it. Give --features nystrom"),
        (["--set", "gamma"], "--set takes NAME=VALUE, got 'gamma'"),
        (["--eta", "-1"], "eta must be above 0"),
    ],
)
def test_wrong_commands_end_with_one_line(words, message, tmp_path, capsys):
    assert cli.main(["sweep", "--task", TASK, "--steps", "40", "--out", str(tmp_path), *words]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("kqljax: error: ")
    assert re.search(message, error), error


def test_bytes():
    assert [command.parse_bytes(text) for text in ("8GB", "500 MiB", "1", "1.5kb")] == [8 * 10**9, 500 * 2**20, 1, 1500]


def test_missing_words(capsys):
    assert cli.main(["sweep", "--task", TASK]) == 2
    assert "--out is missing" in capsys.readouterr().err
    assert cli.main(["sweep", "--out", "x"]) == 2
    assert "--task is missing" in capsys.readouterr().err
    assert cli.main(["sweep", "show"]) == 2
    assert "kqljax sweep show DIR" in capsys.readouterr().err
