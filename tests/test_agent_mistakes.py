"""A newcomer's mistakes: each gets an error that says what was wrong and what to do."""

import gymnasium
import numpy as np
import pytest
from agents import BOUNDS, Line
from gymnasium import spaces

import kqljax
from kqljax import KQL


class Odd(gymnasium.Env):
    """Any spaces; never run."""

    def __init__(self, observation_space, action_space=None):
        self.observation_space, self.action_space = (
            observation_space,
            action_space or spaces.Discrete(2),
        )


IMAGE = spaces.Box(0, 255, (84, 84, 3), np.uint8)
TABLE = spaces.Dict({"place": spaces.Box(-1, 1, (2,)), "goal": spaces.Discrete(3)})


@pytest.mark.parametrize(
    "env, words",
    [
        ("MountainCr-v0", r"unknown environment 'MountainCr-v0'. Did you mean MountainCar-v0"),
        ("mountaincar-v7", r"Did you mean MountainCar-v0"),
        ("Nothing", r"unknown environment 'Nothing'. gymnasium.registry lists all"),
        (gymnasium.make("MountainCarContinuous-v0"), r"continuous.*actions=\[-1.0, 0.0, 1.0\]"),
        (Odd(IMAGE), r"images of shape \(84, 84, 3\).*give it a vector"),
        (Odd(TABLE), r"is a Dict.*gymnasium.wrappers.FlattenObservation"),
        (Odd(spaces.Tuple([spaces.Discrete(2)])), r"is a Tuple.*FlattenObservation"),
        (Odd(spaces.MultiBinary(4)), r"is a MultiBinary.*FlattenObservation"),
        (Odd(spaces.Box(-1, 1, (2, 2))), r"shape \(2, 2\).*FlattenObservation"),
        (Odd(spaces.Text(3)), r"TransformObservation"),
        (
            Odd(spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 2])),
            r"Give actions=, a list of actions",
        ),
    ],
)
def test_environments(env, words):
    with pytest.raises(ValueError, match=words):
        KQL(env)


def test_what_is_no_environment():
    with pytest.raises(
        TypeError, match="expected the name of a gymnasium environment.*kqljax.Task.wrap"
    ):
        KQL(kqljax.make_task("MountainCar-v0"))


@pytest.mark.parametrize(
    "options, words",
    [
        ({"actions": [-5.0]}, "-5.0 is not an action of the environment"),
        ({"actions": [[1.0, 2.0]]}, "has shape"),
        ({"actions": []}, "actions is empty"),
        ({"obs_bounds": (0, 1, 2)}, "obs_bounds must be"),
        ({"obs_bounds": (1.0, -1.0)}, "low below high"),
        ({"reward_range": (1, 0)}, "lowest < highest"),
        ({"reward_range": "guess"}, "or 'estimate'"),
        ({"reward_range": (1, 2)}, "give end_value="),
        (
            {"end_value": 20.0},
            r"end_value must be in \[0, 1\].*share of the largest value.*got 20.0",
        ),
        ({"end_value": "none"}, r"end_value must be in \[0, 1\]"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"recipe": "paper", "reward_range": (1, 2)}, "give end_value="),
        ({"recipe": "paper", "gamma": 1.0}, "gamma must be"),
        ({"recipe": "paper", "gamma": "much"}, "gamma must be a real number"),
        ({"recipe": "paper", "horizon": 0}, "horizon must be at least 1"),
        ({"recipe": "paper", "kernel": "rbf"}, "kernel must be a kqljax kernel"),
        ({"recipe": kqljax.rounds.Recipe(gamma=1.0)}, r"gamma must be in \[0, 1\)"),
    ],
)
def test_options(options, words):
    with pytest.raises(ValueError, match=words):
        KQL("Pendulum-v1", **options)


CONFIG = kqljax.KQLConfig(kernel=kqljax.RBF(), num_actions=3, horizon=100)
GIVEN = {
    "kernel": kqljax.RBF(eta=0.02),
    "gamma": 0.9,
    "horizon": 100,
}


@pytest.mark.parametrize("recipe", ["default", kqljax.rounds.Recipe(gamma=0.9)])
@pytest.mark.parametrize(
    "name, words",
    [
        ("kernel", "kernel: learning in rounds fits its kernel.*or give recipe='paper' too"),
        (
            "gamma",
            r"gamma: .*recipe=dataclasses.replace\(kqljax.rounds.DEFAULT, gamma=0.95, finish_gamma=0.98\).*'paper'",
        ),
        ("horizon", "horizon: .*Leave it out, or give recipe='paper'"),
    ],
)
def test_what_learning_in_rounds_does_not_take(recipe, name, words):
    with pytest.raises(ValueError, match=words):
        KQL("Pendulum-v1", recipe=recipe, **{name: GIVEN[name]})
    assert KQL("Pendulum-v1", recipe="paper", **{name: GIVEN[name]}).num_timesteps == 0


@pytest.mark.parametrize("name", [*GIVEN, "end_value"])
def test_what_a_config_says_itself(name):
    where = "terminal_value" if name == "end_value" else "the config"
    with pytest.raises(
        ValueError, match=f"{name}: a KQLConfig says these itself; set them in {where}"
    ):
        KQL("Pendulum-v1", recipe=CONFIG, **{name: (GIVEN | {"end_value": 0.5})[name]})


@pytest.mark.parametrize("recipe", ["robust", "Paper", None, 3, kqljax.RBF()])
def test_other_recipes(recipe):
    with pytest.raises(
        ValueError,
        match=r"recipe must be 'default', 'paper', a kqljax.rounds.Recipe or a kqljax.KQLConfig",
    ):
        KQL("Pendulum-v1", recipe=recipe)


def test_a_config_for_other_actions():
    with pytest.raises(
        ValueError, match="the KQLConfig has num_actions=3, the agent has 2 actions"
    ):
        KQL("CartPole-v1", recipe=CONFIG)


@pytest.mark.parametrize(
    "name", ["learning_rate", "lam", "beta", "memory", "dtype", "terminal_value", "features"]
)
def test_an_option_that_does_not_exist(name):
    with pytest.raises(TypeError, match=name):
        KQL("MountainCar-v0", **{name: 1})


@pytest.mark.parametrize("steps", [0, -3, 2.5, "many"])
def test_numbers_of_steps(steps):
    with pytest.raises(ValueError, match="total_timesteps must be"):
        KQL("MountainCar-v0").learn(steps)


def test_a_run_that_the_memory_cannot_hold():
    agent = KQL("MountainCar-v0", recipe="paper")
    with pytest.raises(
        ValueError, match="1000000 steps of Algorithm 1 take .* GiB.*recipe='default'.*features"
    ):
        agent.learn(1_000_000)
    assert agent.num_timesteps == 0


class LikeSb3:
    """What Stable-Baselines3's callbacks look like: objects that cannot be called."""

    def init_callback(self, model): ...

    def on_step(self):
        return True


def locals_and_globals(locals_, globals_):
    return True


OURS = r"A callback is a function of the agent and the step: def watch\(agent, step\): print\(step.num_timesteps, step.reward\)"


@pytest.mark.parametrize(
    "callback, words",
    [
        (LikeSb3(), "LikeSb3 object.* is not a callback of kqljax. " + OURS),
        ([lambda agent, step: True, LikeSb3()], "is not a callback of kqljax. " + OURS),
        (locals_and_globals, "takes locals and globals, as in Stable-Baselines3. " + OURS),
        (
            lambda locals, globals: True,
            "takes locals and globals, as in Stable-Baselines3. " + OURS,
        ),
        (
            lambda _locals, _globals: True,
            "takes locals and globals, as in Stable-Baselines3. " + OURS,
        ),
        (lambda agent: True, "must take two arguments.*" + OURS),
        (lambda agent, step, more: True, "must take two arguments.*" + OURS),
        ("print", "is not a callback of kqljax. " + OURS),
        (7, "is not a callback of kqljax. " + OURS),
    ],
)
def test_callbacks_of_another_kind(callback, words):
    agent = KQL(Line(), recipe="paper", **BOUNDS)
    with pytest.raises(TypeError, match=words):
        agent.learn(10, callback)
    assert agent.num_timesteps == 0 and agent.env.seeds == []


class Watcher:
    def __call__(self, agent, step, *, strict=True):
        self.seen = step.num_timesteps

    def method(self, agent, step=None):
        self.seen = step.num_timesteps


@pytest.mark.parametrize("read", [lambda each: each, lambda each: each.method, lambda each: [each]])
def test_callbacks_of_ours(read):
    watcher = Watcher()
    KQL(Line(), recipe="paper", **BOUNDS).learn(2, read(watcher))
    assert watcher.seen == 2


@pytest.mark.parametrize(
    "obs",
    [
        np.zeros(3),
        np.zeros((2, 2, 2)),
        np.zeros((2, 3)),
        np.array([np.nan, 0.0]),
        [[0.0, np.inf]],
        "text",
        1.0,
        [None, 0.0],
    ],
)
def test_observations_that_do_not_fit(obs):
    agent = KQL("MountainCar-v0")
    for ask in (agent.predict, agent.choose, agent.q_values, agent.beliefs):
        with pytest.raises(ValueError, match="observation"):
            ask(obs)


def test_too_many_environments_side_by_side():
    agent = KQL(gymnasium.make_vec("CartPole-v1", num_envs=2000))
    with pytest.raises(ValueError, match="2000 environments side by side.*take at most 1024"):
        agent.learn(2000)
