"""benchmarks/table1.py: the sweep, the table and the page of the committed results."""

import itertools
import json

import pytest
import records
import table1

TASKS = ("MountainCar-v0", "CartPole-v0")
ROW = {
    "task": "CartPole-v0",
    "algorithm": "kql-rbf",
    "seed": 1000,
    "return_mean": 150.0,
    "return_std": 3.0,
}
ROW |= {"episodes": 2, "seconds": 1.0, "is_sound": True}
SB3 = {**ROW, "algorithm": "sb3-dqn", "return_mean": 120.0, "steps": 60, "seconds": 50.0}


@pytest.fixture
def document():
    """A table of one algorithm, one task and one seed."""
    settings = {
        "tasks": ["CartPole-v0"],
        "algorithms": ["kql-rbf"],
        "steps": 60,
        "episodes": 2,
        "first_seed": 1000,
    }
    return {"settings": settings, "results": [ROW], "curves": []}


def written(path, *rows):
    path.write_text(json.dumps({"settings": {}, "results": rows}))
    return path


def test_a_small_table(tmp_path, capsys):
    small = "--seeds 2 --steps 40 --episodes 2 --curve-points 2 --curve-seeds 1"
    names = ["kql-rbf", "kql-greedy", "random"]
    command = [*small.split(), "--tasks", *TASKS, "--algorithms", *names, "--out", str(tmp_path)]
    assert table1.main(command) == 0
    printed = capsys.readouterr().out
    assert "wrote" in printed and "kql-greedy" in printed and "132.55" in printed
    document = json.loads((tmp_path / "table1.json").read_text())
    places = [(row["algorithm"], row["task"], row["seed"]) for row in document["results"]]
    assert places == list(itertools.product(names, TASKS, (1000, 1001)))
    curve = [
        (row["algorithm"], row["task"], row["seed"], row["step"]) for row in document["curves"]
    ]
    assert curve == [
        ("kql-rbf", task, 1000, step)
        for task in ("MountainCar-v0", "CartPole-v0")
        for step in (20, 40)
    ]
    for name in ("table1.md", "results.csv", "seeds.png", "curves.png"):
        assert (tmp_path / name).stat().st_size > 100
    cell = table1.summarise_table(document)["MountainCar-v0"]["kql-rbf"]
    assert (cell["num_seeds"], cell["paper"]) == (2, (-132.55, 17.02))


@pytest.mark.parametrize("name", ["dqn", "kovi", "random"])
def test_baselines_are_learners_of_the_lab(name, tmp_path):
    command = [
        "--seeds",
        "1",
        "--steps",
        "12",
        "--episodes",
        "1",
        "--tasks",
        "CartPole-v0",
        "--algorithms",
        name,
    ]
    assert table1.main([*command, "--curve-points", "0", "--out", str(tmp_path)]) == 0
    (row,) = json.loads((tmp_path / "table1.json").read_text())["results"]
    assert row["is_sound"] and 1 <= row["return_mean"] <= 200


def test_other_programs_and_times_are_joined(document, tmp_path):
    before = json.dumps(document)
    beside = written(tmp_path / "sb3.json", SB3, SB3 | {"task": "Acrobot-v1"})
    times = [written(tmp_path / "a.json", ROW | {"seconds": 4.0}, ROW | {"seconds": 4.5})]
    both = table1.joined(document, [beside], times)
    assert json.dumps(document) == before
    assert both["settings"]["algorithms"] == ["kql-rbf", "sb3-dqn"] and len(both["results"]) == 2
    cells = table1.summarise_table(both)["CartPole-v0"]
    assert (cells["kql-rbf"]["seconds"], cells["sb3-dqn"]["seconds"]) == (4.25, 50.0)
    assert (cells["sb3-dqn"]["iqm"], cells["sb3-dqn"]["paper"]) == (120.0, (149.68, 4.75))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"episodes": 5}, "has 5 episodes a seed, this table 2"),
        ({"steps": 1000}, "has 1000 steps a seed, this table 60"),
        ({"seed": 3}, "has seed 3; reported ones begin at 1000"),
        ({"algorithm": "kql-rbf"}, "has kql-rbf, which is a row of this table already"),
    ],
)
def test_what_does_not_fit_is_not_joined(document, tmp_path, changes, words):
    with pytest.raises(records.ResultsError, match=words):
        table1.joined(document, [written(tmp_path / "sb3.json", SB3 | changes)], [])


def test_the_page(document, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(table1, "RESULTS", tmp_path)
    (tmp_path / "table1.json").write_text(json.dumps(document))
    written(tmp_path / "sb3_dqn.json", SB3)
    for name in ("times", "times_sb3"):
        written(tmp_path / f"{name}.json")
    assert table1.main(["--page"]) == 0
    assert (
        "| **sb3-dqn**, 1 seed: IQM [95%] | **120.0** [120.0, 120.0] |" in capsys.readouterr().out
    )
    assert (tmp_path / "seeds.png").stat().st_size > 1000


def test_seeds_with_bad_numbers_are_left_out_and_named(document, capsys):
    bad = ROW | {"seed": 1001, "return_mean": None, "return_std": None, "is_sound": False}
    document["results"] = [ROW, bad]
    table1.print_table(document)
    assert (
        "left out, numbers not finite: kql-rbf on CartPole-v0, seeds 1001"
        in capsys.readouterr().out
    )
    assert table1.summarise_table(document)["CartPole-v0"]["kql-rbf"]["num_seeds"] == 1


def test_wrong_sizes_end_with_a_line(tmp_path, capsys):
    assert table1.main(["--seeds", "0", "--out", str(tmp_path)]) == 2
    assert "--seeds must be at least 1" in capsys.readouterr().err
