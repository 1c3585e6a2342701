"""A newcomer's mistakes: each gets an error that says what was wrong and what to do."""

import gymnasium
import numpy as np
import pytest
from agents import STEPS, Line
from gymnasium import spaces

import kqljax
from kqljax import KQL


class Odd(gymnasium.Env):
    """Any spaces; never run."""

    def __init__(self, observation_space, action_space=None):
        self.observation_space, self.action_space = observation_space, action_space or spaces.Discrete(2)


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
        (Odd(spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 2])), r"Give actions=, a list of actions"),
    ],
)
def test_environments(env, words):
    with pytest.raises(ValueError, match=words):
        KQL(env)


def test_what_is_no_environment():
    with pytest.raises(TypeError, match="expected the name of a gymnasium environment.*kqljax.Task.wrap"):
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
        ({"reward_range": (1, 2)}, "give terminal_value="),
        ({"gamma": 1.0}, "gamma must be"),
        ({"horizon": 0}, "horizon must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"dtype": "float32"}, "the exact engine cannot keep its factor in float32"),
        ({"kernel": "rbf"}, "kernel must be a kqljax kernel"),
        ({"features": "many"}, "features must be a feature map"),
        ({"memory": 10}, "option of the weight-space engine"),
    ],
)
def test_options(options, words):
    with pytest.raises(ValueError, match=words):
        KQL("Pendulum-v1", **options)


def test_an_option_that_does_not_exist():
    with pytest.raises(TypeError, match="learning_rate"):
        KQL("MountainCar-v0", learning_rate=1e-3)


def test_rewards_out_of_the_stated_range():
    agent = KQL(Line(reward=lambda place, is_end: float(place)), reward_range=(-1, 1), horizon=STEPS, seed=0)
    with pytest.raises(ValueError, match=r"paid -2, which is out of reward_range=\(-1, 1\).*reward_range=\(-2, 1\)"):
        agent.learn(STEPS)
    # Nothing false was learned, and the agent can be asked.
    assert agent.num_timesteps == 1 and agent.q_values(np.zeros(1)).shape == (2,)


def test_numbers_that_are_none():
    with pytest.raises(ValueError, match="a reward that is not a finite number"):
        KQL(Line(reward=lambda place, is_end: np.nan), seed=0).learn(5)


@pytest.mark.parametrize("steps", [0, -3, 2.5, "many"])
def test_numbers_of_steps(steps):
    with pytest.raises(ValueError, match="total_timesteps must be"):
        KQL("MountainCar-v0").learn(steps)


def test_a_run_that_the_memory_cannot_hold():
    with pytest.raises(ValueError, match="1000000 steps in the exact engine take .* GiB.*features='auto'"):
        KQL("MountainCar-v0").learn(1_000_000)


@pytest.mark.parametrize("obs", [np.zeros(3), np.zeros((2, 2, 2)), np.array([np.nan, 0.0]), "text", 1.0])
def test_observations_that_do_not_fit(obs):
    with pytest.raises(ValueError, match="observation"):
        KQL("MountainCar-v0").predict(obs)
