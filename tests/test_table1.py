"""The whole command `kqljax table1`, in small."""

import json

import numpy as np
import pytest

from kqljax import cli, experiment
from kqljax.algorithms import ALGORITHMS as KNOWN
from kqljax.algorithms import make_algorithm
from kqljax.report import records, style, to_rliable
from kqljax.tasks import make_task

TASKS = ["MountainCar-v0", "CartPole-v0"]
ALGORITHMS = ["kql-rbf", "kql-linear", "random"]
SMALL = ["--seeds", "2", "--steps", "60", "--episodes", "2", "--curve-points", "2", "--curve-seeds", "2"]
COMMAND = ["table1", *SMALL, "--tasks", *TASKS, "--algorithms", *ALGORITHMS]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A directory with one finished run; tests that change results work in another."""
    directory = tmp_path_factory.mktemp("table1")
    assert cli.main([*COMMAND, "--out", str(directory)]) == 0
    return directory


def _read(directory):
    return json.loads((directory / "table1.json").read_text())


def _place(record):
    return record["task"], record["algorithm"], record["seed"]


def test_records(out):
    document = _read(out)
    places = {_place(record) for record in document["results"]}
    assert places == {(task, name, seed) for task in TASKS for name in ALGORITHMS for seed in (1000, 1001)}
    assert len(document["results"]) == len(places)
    for record in document["results"]:
        assert record["episodes"] == 2
        assert record["seconds"] > 0
        assert record["evaluation_seconds"] > 0
        assert record["is_sound"]
        low, high = (-200, 0) if record["task"] == "MountainCar-v0" else (1, 200)
        assert low <= record["return_mean"] <= high
        assert record["return_std"] >= 0
    assert to_rliable(document["results"])["kql-rbf"].shape == (2, 2)


def test_what_stands_beside_the_records(out):
    document = _read(out)
    assert document["settings"]["steps"] == 60
    assert document["settings"]["algorithms"] == ALGORITHMS
    assert {"python", "jax", "jaxlib", "numpy", "gymnax", "kqljax"} <= document["versions"].keys()
    assert document["device"]["platform"] == "cpu"
    assert document["dtype"] == "float64"
    cell = document["summary"]["MountainCar-v0"]["kql-rbf"]
    assert cell["num_seeds"] == 2
    assert (cell["paper_mean"], cell["paper_std"]) == (-132.55, 17.02)
    assert cell["low"] <= cell["iqm"] <= cell["high"]
    assert cell["compile_seconds"] > 0
    assert document["summary"]["CartPole-v0"]["random"]["paper_mean"] is None
    mine = [r for r in document["results"] if (r["task"], r["algorithm"]) == ("MountainCar-v0", "kql-rbf")]
    assert cell["pooled_mean"] == pytest.approx(np.mean([r["return_mean"] for r in mine]))


def test_learning_curves(out):
    curves = _read(out)["curves"]
    assert {_place(curve) for curve in curves} == {(task, "kql-rbf", seed) for task in TASKS for seed in (1000, 1001)}
    for curve in curves:
        assert curve["steps"] == [30, 60]
        assert len(curve["return_mean"]) == len(curve["return_std"]) == 2


def test_figures_show_something(out):
    from matplotlib import image

    for name in ("seeds.png", "curves.png"):
        pixels = image.imread(out / name)
        assert pixels.shape[0] > 300 and pixels.shape[1] > 600
        assert 0.002 < np.mean(pixels[..., :3].min(axis=-1) < 0.9) < 0.5, f"{name} is blank or black"


def test_a_finished_run_is_not_done_again(out, capsys, monkeypatch):
    before = _read(out)
    monkeypatch.setattr(experiment, "run_chunk", lambda *_: pytest.fail("a stored seed was run again"))
    assert cli.main([*COMMAND, "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == before["summary"]
    assert _read(out)["results"] == before["results"]


def test_table_in_the_terminal(out, capsys):
    assert cli.main([*COMMAND, "--out", str(out), "--no-figures"]) == 0
    text = capsys.readouterr().out
    for words in (*TASKS, *ALGORITHMS, "2 seeds from 1000", "-132.55 ± 17.02", "IQM [95%]", "s a seed", "table1.json"):
        assert words in text
    iqm = _read(out)["summary"]["CartPole-v0"]["random"]["iqm"]
    assert f"{iqm:.1f} [" in text


def test_table_in_markdown(out, capsys):
    assert cli.main([*COMMAND, "--out", str(out), "--markdown", "--no-figures"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[0] == "| | MountainCar-v0 | CartPole-v0 |"
    cell = _read(out)["summary"]["CartPole-v0"]["kql-rbf"]
    row = next(line for line in lines if line.startswith("| **kql-rbf**, 2 seeds: IQM"))
    assert f"**{cell['iqm']:.1f}** [{cell['low']:.1f}, {cell['high']:.1f}]" in row
    assert "| paper, mean ± std of episodes | -132.55 ± 17.02 | 200.00 ± 0.00 |" in lines


def test_an_interrupted_run_goes_on(out, tmp_path):
    whole = _read(out)
    lost = {("CartPole-v0", "random", 1001), ("MountainCar-v0", "kql-linear", 1001)}
    kept = [record for record in whole["results"] if _place(record) not in lost]
    records.write(tmp_path / "table1.json", whole | {"results": kept, "summary": {}})
    assert cli.main([*COMMAND, "--out", str(tmp_path), "--no-figures"]) == 0
    resumed = _read(tmp_path)
    assert resumed["results"][: len(kept)] == kept
    assert {_place(record) for record in resumed["results"][len(kept) :]} == lost
    # Seeds decide: what was run again is what it was.
    for old, new in zip(sorted(whole["results"], key=_place), sorted(resumed["results"], key=_place), strict=True):
        assert _place(old) == _place(new)
        assert new["return_mean"] == pytest.approx(old["return_mean"])
    assert resumed["summary"].keys() == whole["summary"].keys()


def test_an_interruption_keeps_what_is_done(tmp_path, capsys, monkeypatch):
    run_chunk = experiment.run_chunk

    def stop_at_the_second_task(algorithm, task, *rest):
        if task.name == "CartPole-v0":
            raise KeyboardInterrupt
        return run_chunk(algorithm, task, *rest)

    monkeypatch.setattr(experiment, "run_chunk", stop_at_the_second_task)
    command = ["table1", *SMALL, "--algorithms", "random", "--tasks", *TASKS, "--out", str(tmp_path)]
    assert cli.main(command) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert [(r["task"], r["seed"]) for r in _read(tmp_path)["results"]] == [(TASKS[0], 1000), (TASKS[0], 1001)]
    assert [path.name for path in tmp_path.iterdir()] == ["table1.json"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--steps", "50"], "--steps 60, this command has --steps 50"),
        (["--episodes", "3"], "--episodes 2, this command has --episodes 3"),
        (["--first-seed", "2000"], "--first-seed 1000, this command has --first-seed 2000"),
        (["--seeds", "1"], "--seeds 2, this command has --seeds 1"),
        (["--tasks", "Acrobot-v1"], "--tasks MountainCar-v0 CartPole-v0, this command has --tasks Acrobot-v1"),
    ],
)
def test_other_settings_do_not_mix(out, capsys, change, words):
    before = _read(out)
    assert cli.main([*COMMAND, *change, "--out", str(out)]) == 2
    assert words in capsys.readouterr().err
    assert _read(out) == before


def test_more_seeds_and_algorithms_may_be_added(out):
    document = _read(out)
    settings = experiment.Table1Settings(
        seeds=3,
        steps=60,
        episodes=2,
        curve_points=2,
        curve_seeds=2,
        tasks=tuple(TASKS),
        algorithms=(*ALGORITHMS, "dqn"),
    )
    records.check_same_settings(out, document["settings"], settings.as_json())
    left = experiment.plan(settings, document)
    assert {(w.algorithm, w.task, w.seeds) for w in left if w.algorithm != "dqn"} == {
        (name, task, (1002,)) for name in ALGORITHMS for task in TASKS
    }
    assert sum(len(w.seeds) for w in left if w.algorithm == "dqn") == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tasks", "mountaincar"], "unknown task 'mountaincar'. Did you mean MountainCar-v0? Known: MountainCar-v0,"),
        (["--algorithms", "kql-rfb"], "unknown algorithm 'kql-rfb'. Did you mean kql-rbf? Known: kql-rbf, kql-rounds,"),
        (["--algorithms", "zzz"], "unknown algorithm 'zzz'. Known:"),
        (["--tasks", "CartPole-v0", "CartPole-v0"], "task CartPole-v0 is given twice"),
        (["--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--steps", "many"], "invalid int value: 'many'"),
        (["--first-seed", "999"], "seeds below 1000 are for tuning, got --first-seed 999"),
        (["--tuning", "--first-seed", "990", "--seeds", "20"], "--tuning keeps to seeds 0..999"),
        (["--recipe", "default", "--algorithms", "random"], "--recipe says what stands for kql-rbf, which is not among"),
        (["--recipe", "robust"], "invalid choice: 'robust'"),
        (["--colour", "red"], "unrecognized arguments: --colour red"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(tmp_path, capsys, arguments, words):
    assert cli.main(["table1", "--out", str(tmp_path), *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.startswith("kqljax: error: ") and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_output_directory_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["table1", "--out", str(tmp_path / "file" / "results")]) == 2
    error = capsys.readouterr().err
    assert "cannot write to" in error and "Give another --out" in error and error.count("\n") == 1


def test_a_file_that_is_not_ours(tmp_path, capsys):
    for text in ("not json", "[1, 2]", '{"results": []}'):
        (tmp_path / "table1.json").write_text(text)
        assert cli.main(["table1", "--out", str(tmp_path)]) == 2
        assert "table1.json" in capsys.readouterr().err
        assert (tmp_path / "table1.json").read_text() == text


def test_tuning_seeds_are_apart():
    experiment.Table1Settings(first_seed=0, seeds=1000, tuning=True).validate()
    experiment.Table1Settings(first_seed=1000).validate()
    with pytest.raises(experiment.SettingsError, match="for tuning"):
        experiment.Table1Settings(first_seed=0).validate()


def test_help_has_an_example(capsys):
    assert cli.main(["table1", "--help"]) == 0
    text = capsys.readouterr().out
    assert "example:" in text and "--first-seed" in text and "kql-rbf" in text
    assert cli.main([]) == 2


def test_missing_matplotlib_is_told_before_the_run(tmp_path, capsys, monkeypatch):
    def missing():
        raise ImportError("figures need matplotlib, the extra `plots`: pip install 'kqljax[plots]'.")

    monkeypatch.setattr(style, "require_matplotlib", missing)
    assert cli.main(["table1", "--out", str(tmp_path)]) == 2
    assert "kqljax[plots]" in capsys.readouterr().err


@pytest.mark.parametrize("name", KNOWN)
def test_every_algorithm_has_a_config_and_a_chunk(name):
    algorithm = make_algorithm(name)
    assert algorithm.name == name
    assert algorithm.chunk >= 1
    assert algorithm.config(make_task("CartPole-v0"), 60) is not None


def test_programs_are_made_once_and_numbers_do_not_count():
    task, programs = make_task("CartPole-v0"), experiment.Programs()
    rbf, greedy, linear = (make_algorithm(name).config(task, 60) for name in ("kql-rbf", "kql-greedy", "kql-linear"))
    program, seconds = programs.get("double", lambda cfg: 2.0 * cfg.beta, rbf)
    assert seconds > 0
    assert float(program(rbf)) == pytest.approx(2 * rbf.beta)
    again, seconds = programs.get("double", lambda cfg: 2.0 * cfg.beta, greedy)
    assert again is program and seconds == 0.0
    assert float(again(greedy)) == 0.0
    assert programs.get("double", lambda cfg: 2.0 * cfg.beta, linear)[0] is not program


def test_rounds_stand_for_kql(tmp_path, capsys):
    command = ["table1", "--seeds", "1", "--steps", "130", "--episodes", "2", "--curve-points", "2", "--curve-seeds", "1"]
    command += ["--tasks", "MountainCar-v0", "--algorithms", "kql-rbf", "random", "--recipe", "default"]
    assert cli.main([*command, "--out", str(tmp_path)]) == 0
    document = _read(tmp_path)
    assert {record["algorithm"] for record in document["results"]} == {"kql-rounds", "random"}
    assert all(record["is_sound"] for record in document["results"])
    (curve,) = document["curves"]
    assert (curve["algorithm"], curve["steps"]) == ("kql-rounds", [65, 130])
    assert all(-200 <= value <= 0 for value in curve["return_mean"])
    assert document["summary"]["MountainCar-v0"]["kql-rounds"]["paper_mean"] == -132.55
    assert "kql-rounds" in capsys.readouterr().out


def test_a_row_with_features(tmp_path):
    small = ["--seeds", "1", "--steps", "40", "--episodes", "2", "--curve-points", "0", "--no-figures"]
    command = ["table1", *small, "--tasks", "MountainCar-v0", "--algorithms", "kql-features32", "--out", str(tmp_path)]
    assert cli.main(command) == 0
    (record,) = _read(tmp_path)["results"]
    assert record["is_sound"]


def test_a_seed_without_a_return_is_named_and_left_out(out, tmp_path, capsys):
    document = _read(out)
    broken = document["results"][0]
    broken.update(return_mean=None, return_std=None, is_sound=False)
    (tmp_path / "table1.json").write_text(json.dumps(document))
    assert cli.main([*COMMAND, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    task, algorithm, seed = _place(broken)
    assert f"numerical trouble: {algorithm} on {task}, seeds {seed}" in printed
    assert _read(tmp_path)["summary"][task][algorithm]["num_seeds"] == 1
