"""`kqljax train`, `evaluate`, `render` and `completion`."""

import json
import subprocess

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from kqljax import KQL, RBF, Linear, cli
from kqljax.commands import evaluate

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
    assert cli.main(["train", "kqljax_tests/Endless-v0", "--out", str(path), "--steps", "40", "--episodes", "1"]) == 0
    return path


def test_train_saves_the_agent_that_the_class_makes(car):
    loaded, own = KQL.load(car), KQL("MountainCar-v0", seed=3).learn(60)
    np.testing.assert_array_equal(loaded.history["obs"], own.history["obs"])
    assert repr(loaded) == repr(own)


def trained(directory, *words):
    out = directory / "paper.npz"
    small = ["--steps", "20", "--episodes", "1", "--force"]
    assert cli.main(["train", "MountainCar-v0", "--recipe", "paper", *words, "--out", str(out), *small]) == 0
    return KQL.load(out)


def test_algorithm_1_and_its_numbers(tmp_path):
    own = KQL("MountainCar-v0", recipe="paper", seed=0).learn(20)
    agent = trained(tmp_path)
    np.testing.assert_array_equal(agent.history["obs"], own.history["obs"])
    assert (agent.recipe.horizon, agent.recipe.lam, agent.recipe.kernel) == (20, 1 / 200, RBF(eta=0.02))
    agent = trained(tmp_path, "--kernel", "rbf", "--eta", "0.3", "--gamma", "0.9", "--horizon", "500")
    assert (agent.recipe.kernel, agent.recipe.gamma, agent.recipe.horizon) == (RBF(eta=0.3), 0.9, 500)
    assert agent.recipe.beta == pytest.approx(np.sqrt(1 / 5000) / 0.1)
    assert trained(tmp_path, "--kernel", "linear").recipe.kernel == Linear()


def test_lam_and_beta(tmp_path):
    lam = trained(tmp_path, "--lam", "0.01").recipe
    assert (lam.horizon, lam.lam) == (20, 0.01) and lam.beta == pytest.approx(0.1 / 0.05)
    beta = trained(tmp_path, "--beta", "0.5", "--gamma", "0.9", "--horizon", "500", "--eta", "0.3").recipe
    assert (beta.horizon, beta.lam, beta.beta, beta.gamma, beta.kernel) == (500, 1 / 5000, 0.5, 0.9, RBF(eta=0.3))
    # An end is worth what it is to the agent without a config: rewards of -1 become 0, and 0 for ever becomes 1 a step.
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
    found, own = json.loads(capsys.readouterr().out), KQL.load(car).evaluate(2)
    assert (found["returns"], found["lengths"]) == (own.returns.tolist(), own.lengths.tolist())
    assert (found["mean"], found["trained_steps"], found["cut_off"], found["max_steps"]) == (own.mean, 60, 0, None)
    assert cli.main(["evaluate", str(car), "--episodes", "1", "--seed", "5"]) == 0
    assert f"MountainCar-v0: {KQL.load(car).evaluate(1, seed=5)}" in capsys.readouterr().out


def test_evaluate_in_groups_is_evaluate(endless, capsys, monkeypatch):
    monkeypatch.setattr(evaluate, "_SIDE_BY_SIDE", 2)
    shown = []
    monkeypatch.setattr(evaluate.WorkBar, "show", lambda bar, done, total, words: shown.append(done))
    assert cli.main(["evaluate", str(endless), "--episodes", "5", "--max-steps", "8", "--json"]) == 0
    found, own = json.loads(capsys.readouterr().out), KQL.load(endless).evaluate(5, max_steps=8)
    assert found["returns"] == own.returns.tolist() and len(set(found["returns"])) > 1
    assert shown == [0, 0, 1, 2, 3, 5]


def test_an_environment_without_a_time_limit_is_cut_off(endless, capsys):
    assert cli.main(["evaluate", str(endless), "--episodes", "3", "--max-steps", "8"]) == 0
    assert "over 3 episodes; 3 of them cut off after 8 steps; the agent had 40 steps" in capsys.readouterr().out
    assert cli.main(["evaluate", str(endless), "--episodes", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["lengths"], found["cut_off"], found["max_steps"]) == ([1000, 1000], 2, 1000)


def test_evaluate_elsewhere(tmp_path, capsys):
    path = tmp_path / "pole.npz"
    KQL("CartPole-v1", seed=0).learn(20).save(path)
    gymnasium.register("kqljax_tests/ShortPole-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=5)
    assert cli.main(["evaluate", str(path), "--episodes", "2", "--env", "kqljax_tests/ShortPole-v0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["env"], found["returns"], found["cut_off"]) == ("kqljax_tests/ShortPole-v0", [5.0, 5.0], 0)


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
    assert cli.main(["render", str(car), "--out", str(out), "--width", "120", "--max-steps", "9"]) == 0
    assert "9 steps, return -9.0, cut off there" in capsys.readouterr().out


NEW = ["train", "MountainCar-v0", "--out", "a.npz"]


@pytest.mark.parametrize(
    "command, words",
    [
        (["train", "--out", "a.npz"], "which environment? For example: kqljax train MountainCar-v0"),
        (["train", "MountainCr-v0", "--out", "a.npz"], "Did you mean MountainCar-v0"),
        (["train", "MountainCarContinuous-v0", "--out", "a.npz"], "Give actions="),
        ([*NEW, "--steps", "0"], "--steps must be at least 1"),
        ([*NEW, "--episodes", "0"], "--episodes must be at least 1"),
        ([*NEW, "--recipe", "paper", "--horizon", "0"], "horizon must be"),
        ([*NEW, "--recipe", "paper", "--lam", "-1"], "lam must be"),
        ([*NEW, "--recipe", "paper", "--kernel", "linear", "--eta", "0.3"], "--eta is the width of the RBF kernel"),
        ([*NEW, "--reward-range", "0", "-1"], "reward_range must be (lowest, highest)"),
        (["train", "MountainCar-v0", "--out", "CAR"], "is there already. Give another --out, or --force"),
        (["train", "MountainCar-v0", "--out", "none/a.npz"], "there is no directory none. Make it"),
        (["train", "--from", "nothing.npz", "--out", "a.npz"], "cannot read nothing.npz"),
        (["evaluate", "nothing.npz"], "cannot read nothing.npz"),
        (["evaluate", "CAR", "--env", "CartPole-v1", "--episodes", "1"], "the agent learned from observations of shape (2,)"),
        (["evaluate", "CAR", "--env", "MountainCarContinuous-v0"], "is not an action of the environment"),
        (["evaluate", "CAR", "--env", "MountainCr-v0"], "Did you mean MountainCar-v0"),
        (["evaluate", "CAR", "--episodes", "0"], "--episodes must be at least 1"),
        (["evaluate", "CAR", "--max-steps", "0"], "max_steps must be at least 1"),
        (["render", "CAR", "--out", "a.gif", "--every", "0"], "every must be at least 1"),
        (["render", "ENDLESS", "--out", "a.gif"], "Endless-v0 cannot be drawn: its render modes are []"),
        (["completion", "fish"], "invalid choice: 'fish'"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(car, endless, tmp_path, capsys, monkeypatch, command, words):
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
    ["--kernel", "rbf"], ["--eta", "0.3"], ["--gamma", "0.9"], ["--horizon", "9"], ["--lam", "0.1"], ["--beta", "0"]
]  # fmt: skip


@pytest.mark.parametrize("option", ALGORITHM_1)
def test_rounds_refuse_options_of_algorithm_1(tmp_path, capsys, option):
    out = str(tmp_path / "a.npz")
    for recipe in ([], ["--recipe", "default"]):
        assert cli.main(["train", "MountainCar-v0", *option, *recipe, "--out", out]) == 2
        error = capsys.readouterr().err
        assert f"learning in rounds has no {option[0]}: add --recipe paper" in error and "kqljax.rounds.Recipe" in error


@pytest.mark.parametrize(
    "option",
    [
        *(["MountainCar-v0"], ["--seed", "0"], ["--recipe", "default"], ["--actions", "0", "1"], ["--reward-range", "0", "1"]),
        *ALGORITHM_1,
    ],
)
def test_an_agent_that_goes_on_is_as_it_is(car, tmp_path, capsys, option):
    assert cli.main(["train", *option, "--from", str(car), "--out", str(tmp_path / "a.npz")]) == 2
    name = "ENV" if option == ["MountainCar-v0"] else option[0]
    assert f"--from goes on with an agent as it is: leave {name} out." in capsys.readouterr().err


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
