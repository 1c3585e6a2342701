"""`kqljax train`, `evaluate`, `render` and `completion`."""

import json
import subprocess

import chex
import numpy as np
import pytest

from kqljax import KQL, cli

SMALL = ["--steps", "60", "--episodes", "2", "--seed", "3"]


@pytest.fixture(scope="module")
def car(tmp_path_factory):
    path = tmp_path_factory.mktemp("agents") / "car.npz"
    assert cli.main(["train", "MountainCar-v0", "--out", str(path), *SMALL]) == 0
    return path


def test_train_saves_the_agent_that_the_class_makes(car):
    loaded, own = KQL.load(car), KQL("MountainCar-v0", seed=3).learn(60)
    np.testing.assert_array_equal(loaded.history["obs"], own.history["obs"])
    chex.assert_trees_all_equal(loaded.config, own.config)


def test_train_tells_in_words_and_in_json(tmp_path, capsys):
    out = str(tmp_path / "car.npz")
    assert cli.main(["train", "MountainCar-v0", "--out", out, *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["env"], found["steps"], found["file"]) == ("MountainCar-v0", 60, out)
    assert found["evaluation"]["episodes"] == 2 and -200 <= found["evaluation"]["mean"] < 0
    assert cli.main(["train", "MountainCar-v0", "--out", out, *SMALL, "--force"]) == 0
    captured = capsys.readouterr()
    assert "for 60 steps" in captured.out and f"wrote {out}" in captured.out
    assert "60/60 steps" in captured.err


def test_train_goes_on(car, tmp_path):
    out = tmp_path / "more.npz"
    assert cli.main(["train", "--from", str(car), "--out", str(out), "--steps", "10", "--episodes", "1"]) == 0
    assert KQL.load(out).num_timesteps == 70
    assert KQL.load(car).num_timesteps == 60


def test_an_interruption_saves_what_was_learned(tmp_path, capsys, monkeypatch):
    learn = KQL.learn

    def stop(agent, total, **_):
        learn(agent, 7)
        raise KeyboardInterrupt

    monkeypatch.setattr(KQL, "learn", stop)
    out = str(tmp_path / "car.npz")
    assert cli.main(["train", "MountainCar-v0", "--out", out, "--steps", "60"]) == 130
    assert f"stopped after 7 steps; to go on: kqljax train --from {out} --out {out} --steps 53" in capsys.readouterr().err
    assert KQL.load(out).num_timesteps == 7


def test_evaluate(car, capsys):
    assert cli.main(["evaluate", str(car), "--episodes", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(found["returns"], KQL.load(car).evaluate(2))
    assert found["mean"] == pytest.approx(np.mean(found["returns"])) and found["trained_steps"] == 60
    assert cli.main(["evaluate", str(car), "--episodes", "1", "--seed", "5"]) == 0
    assert "MountainCar-v0: mean return" in capsys.readouterr().out


def test_render_writes_a_moving_picture(car, tmp_path, capsys):
    pytest.importorskip("pygame", reason="pip install 'kqljax[render]'")
    from PIL import Image

    out = tmp_path / "car.gif"
    assert cli.main(["render", str(car), "--out", str(out), "--width", "120", "--every", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    with Image.open(out) as image:
        assert image.width == 120 and image.n_frames > 3
        first = np.asarray(image.convert("RGB"), int)
        image.seek(image.n_frames // 2)
        assert np.abs(np.asarray(image.convert("RGB"), int) - first).max() > 50
    assert found["steps"] > 0 and found["return"] < 0


@pytest.mark.parametrize(
    "command, words",
    [
        (["train", "--out", "a.npz"], "which environment? For example: kqljax train MountainCar-v0"),
        (["train", "MountainCr-v0", "--out", "a.npz"], "Did you mean MountainCar-v0"),
        (["train", "MountainCarContinuous-v0", "--out", "a.npz"], "Give actions="),
        (["train", "MountainCar-v0", "--out", "a.npz", "--steps", "0"], "total_timesteps must be at least 1"),
        (["train", "MountainCar-v0", "--out", "CAR"], "is there already. Give another --out, or --force"),
        (
            ["train", "MountainCar-v0", "--from", "CAR", "--out", "a.npz"],
            "--from goes on with an agent as it is: leave env out",
        ),
        (["train", "--from", "nothing.npz", "--out", "a.npz"], "cannot read nothing.npz"),
        (["evaluate", "nothing.npz"], "cannot read nothing.npz"),
        (["evaluate", "CAR", "--env", "CartPole-v1", "--episodes", "1"], "an observation has shape"),
        (["evaluate", "CAR", "--episodes", "0"], "num_episodes must be at least 1"),
        (["render", "CAR", "--out", "a.gif", "--every", "0"], "every must be at least 1"),
        (["completion", "fish"], "invalid choice: 'fish'"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(car, tmp_path, capsys, monkeypatch, command, words):
    monkeypatch.chdir(tmp_path)
    assert cli.main([str(car) if word == "CAR" else word for word in command]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.splitlines()[-1].startswith("kqljax: error: ")
    assert not (tmp_path / "a.npz").exists() and not (tmp_path / "a.gif").exists()


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_explains_itself_with_an_example(name, capsys):
    assert cli.main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert "example" in text and f"kqljax {name} " in text


def test_completion(capsys):
    for shell in ("bash", "zsh"):
        assert cli.main(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert "evaluate" in script and "--reward-range" in script
        if shell == "bash":
            ask = 'COMP_WORDS=(kqljax tr); COMP_CWORD=1; COMP_LINE="kqljax tr"; _shtab_kqljax; echo "${COMPREPLY[@]}"'
            done = subprocess.run(["bash", "-c", script + "\n" + ask], capture_output=True, text=True, check=True)
            assert done.stdout.split() == ["train"]
