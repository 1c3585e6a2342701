"""The command `kqljax`: what each subcommand does, and what it says of wrong input."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from kqljax import KQL, RBF, Linear, cli
from kqljax.cli.sweep import SweepCommand, parse_bytes

SMALL = ["--steps", "60", "--episodes", "2", "--seed", "3"]


class Endless(gymnasium.Env):
    """A place in [-1, 1] that moves left or right; nothing ends, and the right is paid for."""

    metadata = {"render_modes": []}  # noqa: RUF012
    observation_space = spaces.Box(-1.0, 1.0, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1, 1)
        return np.array([self.place], np.float32), {}

    def step(self, action):
        self.place = np.clip(self.place + 0.2 * (2 * action - 1), -1, 1)
        return np.array([self.place], np.float32), float(self.place > 0), False, False, {}


gymnasium.register("kqljax_tests/Endless-v0", Endless)


@pytest.fixture(scope="module")
def car(tmp_path_factory):
    path = tmp_path_factory.mktemp("agents") / "car.npz"
    assert cli.main(["train", "MountainCar-v0", "--out", str(path), *SMALL]) == 0
    return path


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    path = tmp_path_factory.mktemp("agents") / "endless.npz"
    assert (
        cli.main(
            [
                "train",
                "kqljax_tests/Endless-v0",
                "--out",
                str(path),
                "--steps",
                "40",
                "--episodes",
                "1",
            ]
        )
        == 0
    )
    return path


def test_train_saves_the_agent_that_the_class_makes(car):
    loaded, own = KQL.load(car), KQL("MountainCar-v0", seed=3).learn(60)
    np.testing.assert_array_equal(loaded.history["obs"], own.history["obs"])
    assert repr(loaded) == repr(own)


def trained(directory, *words):
    out = directory / "paper.npz"
    small = ["--steps", "20", "--episodes", "1", "--force"]
    assert (
        cli.main(
            ["train", "MountainCar-v0", "--recipe", "paper", *words, "--out", str(out), *small]
        )
        == 0
    )
    return KQL.load(out)


def test_algorithm_1_and_its_numbers(tmp_path):
    own = KQL("MountainCar-v0", recipe="paper", seed=0).learn(20)
    agent = trained(tmp_path)
    np.testing.assert_array_equal(agent.history["obs"], own.history["obs"])
    assert (agent.recipe.horizon, agent.recipe.lam, agent.recipe.kernel) == (
        20,
        1 / 200,
        RBF(eta=0.02),
    )
    agent = trained(
        tmp_path, "--kernel", "rbf", "--eta", "0.3", "--gamma", "0.9", "--horizon", "500"
    )
    assert (agent.recipe.kernel, agent.recipe.gamma, agent.recipe.horizon) == (
        RBF(eta=0.3),
        0.9,
        500,
    )
    assert agent.recipe.beta == pytest.approx(np.sqrt(1 / 5000) / 0.1)
    assert trained(tmp_path, "--kernel", "linear").recipe.kernel == Linear()


def test_lam_and_beta(tmp_path):
    lam = trained(tmp_path, "--lam", "0.01").recipe
    assert (lam.horizon, lam.lam) == (20, 0.01) and lam.beta == pytest.approx(0.1 / 0.05)
    beta = trained(
        tmp_path, "--beta", "0.5", "--gamma", "0.9", "--horizon", "500", "--eta", "0.3"
    ).recipe
    assert (beta.horizon, beta.lam, beta.beta, beta.gamma, beta.kernel) == (
        500,
        1 / 5000,
        0.5,
        0.9,
        RBF(eta=0.3),
    )
    # As without a config: rewards of -1 become 0, and a raw 0 for ever becomes 1 a step.
    assert beta.terminal_value == pytest.approx(1 / (1 - 0.9))


def test_train_tells_in_words_and_in_json(tmp_path, capsys):
    out = str(tmp_path / "car.npz")
    assert cli.main(["train", "MountainCar-v0", "--out", out, *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["env"], found["steps"], found["file"]) == ("MountainCar-v0", 60, out)
    assert found["evaluation"]["episodes"] == 2 and -200 <= found["evaluation"]["mean"] < 0
    assert cli.main(["train", "MountainCar-v0", "--out", out, *SMALL, "--force"]) == 0
    captured = capsys.readouterr()
    assert "for 60 steps" in captured.out and f"wrote {out}" in captured.out
    assert f"after training: {KQL.load(out).evaluate(2)}" in captured.out
    assert "60/60 steps" in captured.err


def test_train_goes_on(car, tmp_path):
    out = tmp_path / "more.npz"
    assert (
        cli.main(
            ["train", "--from", str(car), "--out", str(out), "--steps", "10", "--episodes", "1"]
        )
        == 0
    )
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
    assert (
        f"stopped after 7 steps; go on: kqljax train --from {out} --out {out} --steps 53"
        in capsys.readouterr().err
    )
    assert KQL.load(out).num_timesteps == 7


def test_evaluate(car, capsys):
    assert cli.main(["evaluate", str(car), "--episodes", "2", "--json"]) == 0
    found, own = json.loads(capsys.readouterr().out), KQL.load(car).evaluate(2)
    assert (found["returns"], found["lengths"]) == (own.returns.tolist(), own.lengths.tolist())
    assert (found["mean"], found["trained_steps"], found["cut_off"], found["max_steps"]) == (
        own.mean,
        60,
        0,
        None,
    )
    assert cli.main(["evaluate", str(car), "--episodes", "1", "--seed", "5"]) == 0
    assert f"MountainCar-v0: {KQL.load(car).evaluate(1, seed=5)}" in capsys.readouterr().out


def test_an_environment_without_a_time_limit_is_cut_off(endless, capsys):
    assert cli.main(["evaluate", str(endless), "--episodes", "3", "--max-steps", "8"]) == 0
    assert (
        "over 3 episodes; 3 of them cut off after 8 steps; the agent had 40 steps"
        in capsys.readouterr().out
    )
    assert cli.main(["evaluate", str(endless), "--episodes", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["lengths"], found["cut_off"], found["max_steps"]) == ([1000, 1000], 2, 1000)


def test_evaluate_elsewhere(tmp_path, capsys):
    path = tmp_path / "pole.npz"
    KQL("CartPole-v1", seed=0).learn(20).save(path)
    gymnasium.register(
        "kqljax_tests/ShortPole-v0",
        "gymnasium.envs.classic_control:CartPoleEnv",
        max_episode_steps=5,
    )
    assert (
        cli.main(
            [
                "evaluate",
                str(path),
                "--episodes",
                "2",
                "--env",
                "kqljax_tests/ShortPole-v0",
                "--json",
            ]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert (found["env"], found["returns"], found["cut_off"]) == (
        "kqljax_tests/ShortPole-v0",
        [5.0, 5.0],
        0,
    )


def test_render_writes_a_moving_picture(car, tmp_path, capsys):
    pytest.importorskip("pygame", reason="pip install 'kqljax[render]'")
    from PIL import Image

    out = tmp_path / "car.gif"
    assert (
        cli.main(
            ["render", str(car), "--out", str(out), "--width", "120", "--every", "20", "--json"]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    with Image.open(out) as image:
        assert image.width == 120 and image.n_frames > 3
        first = np.asarray(image.convert("RGB"), int)
        image.seek(image.n_frames // 2)
        assert np.abs(np.asarray(image.convert("RGB"), int) - first).max() > 50
    assert found["steps"] > 0 and found["return"] < 0
    assert (
        cli.main(["render", str(car), "--out", str(out), "--width", "120", "--max-steps", "9"]) == 0
    )
    assert "9 steps, return -9.0, cut off there" in capsys.readouterr().out


NEW = ["train", "MountainCar-v0", "--out", "a.npz"]
SWEEP = ["sweep", "--task", "MountainCar-v0", "--steps", "40", "--out", "."]


@pytest.mark.parametrize(
    "command, words",
    [
        (
            ["train", "--out", "a.npz"],
            "which environment? For example: kqljax train MountainCar-v0",
        ),
        (["train", "MountainCr-v0", "--out", "a.npz"], "Did you mean MountainCar-v0"),
        (["train", "MountainCarContinuous-v0", "--out", "a.npz"], "Give actions="),
        ([*NEW, "--steps", "0"], "--steps must be at least 1"),
        ([*NEW, "--episodes", "0"], "--episodes must be at least 1"),
        ([*NEW, "--recipe", "paper", "--horizon", "0"], "--horizon must be"),
        ([*NEW, "--recipe", "paper", "--lam", "-1"], "lam must be"),
        (
            [*NEW, "--recipe", "paper", "--kernel", "linear", "--eta", "0.3"],
            "--eta is the width of the RBF kernel",
        ),
        ([*NEW, "--reward-range", "0", "-1"], "reward_range must be (lowest, highest)"),
        (
            ["train", "MountainCar-v0", "--out", "CAR"],
            "is there already. Give another --out, or --force",
        ),
        (["train", "MountainCar-v0", "--out", "none/a.npz"], "no directory none. Make it"),
        (["train", "--from", "nothing.npz", "--out", "a.npz"], "cannot read nothing.npz"),
        (["evaluate", "nothing.npz"], "cannot read nothing.npz"),
        (
            ["evaluate", "CAR", "--env", "CartPole-v1", "--episodes", "1"],
            "the agent learned from observations of shape (2,)",
        ),
        (
            ["evaluate", "CAR", "--env", "MountainCarContinuous-v0"],
            "is not an action of the environment",
        ),
        (["evaluate", "CAR", "--env", "MountainCr-v0"], "Did you mean MountainCar-v0"),
        (["evaluate", "CAR", "--episodes", "0"], "--episodes must be at least 1"),
        (["evaluate", "CAR", "--max-steps", "0"], "--max-steps must be at least 1"),
        (["render", "CAR", "--out", "a.gif", "--every", "0"], "--every must be at least 1"),
        (
            ["render", "ENDLESS", "--out", "a.gif"],
            "Endless-v0 cannot be drawn: its render modes are []",
        ),
        (["report", "nothing.npz"], "cannot read nothing.npz"),
        (["sweep", "--out", "."], "--task is missing, for example: kqljax sweep --task"),
        ([*SWEEP, "--seeds", "0"], "--seeds must be at least 1, got 0"),
        ([*SWEEP, "--memory", "many"], "--memory must be a number of bytes such as 8GB"),
        ([*SWEEP, "--set", "gamma"], "--set takes NAME=VALUE, got 'gamma'"),
        ([*SWEEP, "--recipe", "paper", "--eta", "-1"], "eta must be above 0"),
        ([*SWEEP, "--eta", "0.1"], "Add recipe paper (--recipe paper)"),
        ([*SWEEP, "--file", "none.toml"], "cannot read none.toml"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    car, endless, tmp_path, capsys, monkeypatch, command, words
):
    if "render" in command:
        pytest.importorskip("pygame", reason="pip install 'kqljax[render]'")
    monkeypatch.chdir(tmp_path)
    files = {"CAR": str(car), "ENDLESS": str(endless)}
    assert cli.main([files.get(word, word) for word in command]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.splitlines()[-1].startswith("kqljax: error: ")
    assert not (tmp_path / "a.npz").exists() and not (tmp_path / "a.gif").exists()


ALGORITHM_1 = [
    ["--kernel", "rbf"], ["--eta", "0.3"], ["--gamma", "0.9"],
    ["--horizon", "9"], ["--lam", "0.1"], ["--beta", "0"],
]  # fmt: skip


@pytest.mark.parametrize("option", ALGORITHM_1)
def test_rounds_refuse_options_of_algorithm_1(tmp_path, capsys, option):
    out = str(tmp_path / "a.npz")
    for recipe in ([], ["--recipe", "default"]):
        assert cli.main(["train", "MountainCar-v0", *option, *recipe, "--out", out]) == 2
        error = capsys.readouterr().err
        assert (
            f"learning in rounds has no {option[0]}: add --recipe paper" in error
            and "kqljax.rounds.Recipe" in error
        )


@pytest.mark.parametrize(
    "option",
    [
        *(
            ["MountainCar-v0"],
            ["--seed", "0"],
            ["--recipe", "default"],
            ["--actions", "0", "1"],
            ["--reward-range", "0", "1"],
        ),
        *ALGORITHM_1,
    ],
)
def test_an_agent_that_goes_on_is_as_it_is(car, tmp_path, capsys, option):
    assert cli.main(["train", *option, "--from", str(car), "--out", str(tmp_path / "a.npz")]) == 2
    name = "ENV" if option == ["MountainCar-v0"] else option[0]
    assert f"--from goes on with an agent as it is: leave {name} out." in capsys.readouterr().err


@pytest.mark.parametrize(
    "command, words",
    [
        (["trian"], ["trian", "train, evaluate, render, report, sweep"]),
        (["train", "MountainCar-v0"], ["--out FILE", "Where the agent goes"]),
        ([*NEW, "--stesp", "4"], ["--stesp", "--steps INT"]),
        ([*NEW, "--seed", "x"], ["--seed", "invalid literal"]),
        ([*NEW, "--recipe", "papr"], ["--recipe", "papr"]),
    ],
)
def test_wrong_options_are_named(capsys, command, words):
    assert cli.main(command) == 2
    error = capsys.readouterr().err
    for each in words:
        assert each in error


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_explains_itself_with_an_example(name, capsys):
    assert cli.main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert "example" in text and f"kqljax {name} " in text


def test_the_list_of_commands(capsys):
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, (_, words) in cli.COMMANDS.items():
        assert name in text and words[:30] in text
    assert cli.main(["--version"]) == 0


# Sweeps ------------------------------------------------------------------------------------------


def test_sweep(tmp_path, capsys):
    words = [
        "--recipe",
        "paper",
        "--eta",
        "0.1",
        "0.3",
        "--seeds",
        "2",
        "--steps",
        "20",
        "--episodes",
        "2",
    ]
    command = ["sweep", "--task", "CartPole-v0", *words, "--out", str(tmp_path)]
    assert cli.main(command) == 0
    captured = capsys.readouterr()
    assert (
        "CartPole-v0: 20 steps, 2 evaluation episodes a seed" in captured.out
        and "4/4" in captured.err
    )
    assert f"wrote {tmp_path / 'results.csv'}, {tmp_path / 'sweep.png'}" in captured.out
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 5
    assert cli.main([*command, "--json", "--no-figure"]) == 0
    captured = capsys.readouterr()
    assert [cell["setting"]["eta"] for cell in json.loads(captured.out)] == [0.1, 0.3]
    assert "4 of 4 runs are in" in captured.err


def parse(**options):
    return SweepCommand(out=Path("."), **options).make_sweep()


def test_options_and_files_say_the_same(tmp_path):
    grid = 'seeds = 3\nsteps = 50\n[grid]\ntask = "MountainCar-v0"\nrecipe = "paper"\n'
    grid += "eta = [0.1, 0.2]\n"
    (tmp_path / "grid.toml").write_text(grid + '"params.gravity" = [0.002]\n')
    (tmp_path / "grid.json").write_text(
        '{"seeds": 3, "steps": 50, "grid": {"task": ["MountainCar-v0"], "recipe": "paper",'
        ' "eta": [0.1, 0.2],'
        ' "params.gravity": 0.002}}'
    )
    one = '[[settings]]\ntask = "MountainCar-v0"\nrecipe = "paper"\neta = '
    (tmp_path / "list.toml").write_text(f"seeds = 3\nsteps = 50\n{one}0.1\n{one}0.2\n")
    gravity = ("params.gravity=0.002",)
    words = {"task": ("MountainCar-v0",), "recipe": ("paper",), "eta": ("0.1", "0.2")}
    expected = parse(**words, seeds=3, steps=50, other=gravity)
    assert len(expected.settings) == 2
    assert parse(file=tmp_path / "grid.toml") == expected
    assert parse(file=tmp_path / "grid.json") == expected
    assert parse(file=tmp_path / "list.toml", other=gravity) == expected
    assert parse(file=tmp_path / "grid.toml", seeds=7).seeds == 7
    (tmp_path / "wrong.toml").write_text("sedes = 3\n")
    with pytest.raises(cli.UsageError, match=r"wrong.toml: unknown sedes. Known: grid"):
        parse(file=tmp_path / "wrong.toml")


def test_bytes():
    assert [parse_bytes(text) for text in ("8GB", "500 MiB", "1", "1.5kb")] == [
        8 * 10**9,
        500 * 2**20,
        1,
        1500,
    ]


# The program -------------------------------------------------------------------------------------


def test_the_program_and_its_completion():
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    script = "import sys, kqljax.cli; sys.exit(kqljax.cli.main())"
    command = [sys.executable, "-c", script, "--tyro-print-completion", "bash"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "kqljax" in done.stdout and "--reward-range" in done.stdout
    subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True)
