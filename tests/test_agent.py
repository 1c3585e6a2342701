"""The agent: learning, asking, going on, and what it makes of ends, bounds and rewards."""

import dataclasses
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import chex
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agents import BOUNDS, Line, compiles, transitions, unit, unit_reward
from gymnasium import spaces
from rounds_data import compiled as compiled_for

import kqljax
from kqljax import KQL, rounds
from kqljax.agent import by_rounds
from kqljax.agent.beliefs import compiled as program
from kqljax.agent.by_steps import room_for
from kqljax.agent.loops import Loop
from kqljax.rounds.round import begin, choose, nobody

STEPS = 130
"""Of learning in rounds: widths are fitted three times, and the finished policy has acted."""
SHORT = 60
"""Of Algorithm 1."""

pytestmark = pytest.mark.usefixtures("compile_once")


@pytest.fixture(scope="module")
def pole():
    return KQL("CartPole-v1", seed=3).learn(STEPS)


@pytest.fixture(scope="module")
def paper():
    return KQL("CartPole-v1", recipe="paper", seed=3).learn(SHORT)


@pytest.fixture
def line():
    return KQL(Line(), seed=0)


# Rounds -------------------------------------------------------------------------------------------


def test_the_agent_and_fit_hold_the_same_policy(pole):
    obs = np.random.default_rng(0).normal(size=(256 - STEPS, 4)) * [1.0, 1.0, 0.1, 1.5]
    obs = np.concatenate([pole.history["obs"], obs])

    def both(data, obs):
        policy = rounds.fit(None, rounds.DEFAULT, data).policy
        return policy.act(None, (), obs)[0], policy.values(obs)

    data = transitions(pole, 256)
    assert float(data.end_value) == 0.0 and np.asarray(data.ended).any()
    actions, values = compiled_for(both, data, unit(pole, obs))(data, unit(pole, obs))
    found = pole.beliefs(obs)
    for name in ("mean", "spread", "optimistic"):
        np.testing.assert_allclose(getattr(found, name), getattr(values, name), atol=1e-3)  # of 100
    np.testing.assert_array_equal(pole.choose(obs), actions)
    assert set(np.asarray(actions)) == {0, 1} and np.ptp(found.mean) > 10


def test_each_action_was_that_of_its_round(pole):
    """What was chosen while learning is what rounds' own schedule, fits and players make of the
    history.
    """
    # As numpy's, so that the program is the agent's own: what is in question here is what it is
    # given, and when.
    data = jax.tree.map(np.asarray, transitions(pole))
    rows, plan = pole.history, rounds.schedule(rounds.DEFAULT, STEPS)
    recipe = jax.tree.map(jnp.asarray, rounds.DEFAULT)
    most_new, act = (
        51 + 16,
        jax.jit(choose),
    )  # a twentieth of 1024, and as many as step side by side
    player, acted = nobody(recipe, data, most_new), set()
    for this in plan[:-1]:
        so_far = dataclasses.replace(data, count=np.int32(this.begins_at))
        player = program(begin, static_argnums=4)(
            recipe, so_far, player._replace(learner=None), this.due, most_new
        )
        for i in range(this.begins_at, this.begins_at + this.steps):
            action, player = act(recipe, player, data.obs[i])
            assert int(action) == rows["action"][i], (this, i)
        acted.add(bool(player.acts_finished))
    assert acted == {False, True}


def test_the_agent_and_the_environment_meet():
    """The agent's transitions are the environment's own, replayed with the same seed and
    actions.
    """
    agent = KQL(gymnasium.make("CartPole-v1", max_episode_steps=20), seed=5).learn(80)
    env = gymnasium.make("CartPole-v1", max_episode_steps=20)
    obs, _ = env.reset(seed=5)
    total, returns = 0.0, []
    for i in range(80):
        row = {name: values[i] for name, values in agent.history.items()}
        np.testing.assert_array_equal(row["obs"], obs)
        obs, reward, terminated, truncated, _ = env.step(int(row["action"]))
        np.testing.assert_array_equal(row["next_obs"], obs)
        assert (row["reward"], row["terminated"], row["truncated"]) == (
            reward,
            terminated,
            truncated and not terminated,
        )
        assert row["is_last"] == (terminated or truncated)
        total += reward
        if terminated or truncated:
            obs, _ = env.reset()
            returns.append(total)
            total = 0.0
    assert agent.history["truncated"].any() and agent.history["terminated"].any()
    assert agent.episode_returns == returns and agent.episode_lengths == [
        int(each) for each in returns
    ]
    assert agent.obs_bounds[1] == pytest.approx([2.4, 3.0, 0.2095, 3.5]) and agent.reward_range == (
        0.0,
        1.0,
    )
    _, learned_from = agent._learner._transitions(agent._memory)
    chex.assert_trees_all_close(learned_from, transitions(agent), rtol=1e-12)


def test_predict_is_that_of_stable_baselines(pole):
    obs = np.array([0.0, 0.1, 0.01, -0.1], np.float32)
    action, state = pole.predict(obs, deterministic=True)
    assert (
        state is None
        and action.shape == ()
        and gymnasium.make("CartPole-v1").action_space.contains(action)
    )
    actions, _ = pole.predict(
        np.stack([obs, -obs, obs]), state=None, episode_start=np.ones(3, bool)
    )
    assert actions.shape == (3,) and actions[0] == actions[2] == action
    assert pole.predict(obs.tolist())[0] == action


def test_a_batch_is_its_observations(pole):
    obs = pole.history["obs"][:4]
    values, believed = pole.q_values(obs), pole.beliefs(obs)
    np.testing.assert_array_equal(values, believed.mean)
    assert values.shape == (4, 2) and np.all((values >= 0) & (values <= 100.0))
    assert np.all(believed.spread >= 0) and np.all(
        believed.optimistic <= 1 / (1 - rounds.DEFAULT.gamma) + 1e-9
    )
    for i in range(4):
        np.testing.assert_allclose(pole.q_values(obs[i]), values[i], rtol=1e-9)
        for one, all_of_them in zip(pole.beliefs(obs[i]), believed, strict=True):
            assert one.shape == (2,)
            np.testing.assert_allclose(one, all_of_them[i], rtol=1e-6, atol=1e-9)
        assert pole.choose(obs[i]) == pole.choose(obs)[i]
    assert pole.choose(np.zeros((0, 4))).shape == (0,)


def test_an_agent_acts_before_it_has_learned():
    agent = KQL("CartPole-v1", seed=0)
    assert int(agent.predict(np.zeros(4))[0]) in (0, 1) and np.all(
        np.isfinite(agent.q_values(np.zeros(4)))
    )
    assert (
        agent.num_timesteps == 0
        and len(agent.history["reward"]) == 0
        and agent.episode_returns == []
    )


def test_the_policy_is_of_what_was_learned_last(line, monkeypatch):
    line.learn(20)
    before = line.q_values(np.ones(4))
    with monkeypatch.context() as patch:
        patch.setattr(by_rounds.Rounds, "finished", None)  # what answered once answers again
        np.testing.assert_array_equal(line.q_values(np.ones(4)), before)
    line.learn(20)
    assert not np.array_equal(line.q_values(np.ones(4)), before)


def test_nothing_is_compiled_twice(pole, tmp_path):
    """Not by a second call, nor for another seed, another agent, other numbers of the recipe or a
    file.
    """

    def life(seed, steps, recipe="default"):
        agent = KQL("CartPole-v1", recipe=recipe, seed=seed).learn(steps).learn(steps + 7)
        agent.evaluate(2, max_steps=5)
        agent.q_values(np.zeros(4)), agent.q_values(np.zeros((3, 4)))
        agent.save(tmp_path / "pole.npz")
        return KQL.load(tmp_path / "pole.npz").learn(5).beliefs(np.zeros(4))

    life(0, 20)
    with compiles() as found:
        life(1, 33)
        life(2, 61, rounds.Recipe(gamma=0.9, ridge=1e-3))
    assert found == []


def remember(agent, count):
    """As if the agent had made `count` steps at random."""
    loop, rng = Loop(agent.env, agent._observations, agent.actions), np.random.default_rng(0)
    loop.reset(seed=0)
    history = agent._memory.history.begun(1)
    for action in rng.integers(0, len(agent.actions), (count, 1)):
        history = history.added(loop.step(action))
    agent._memory = agent._memory._replace(history=history)


def test_a_long_run():
    """One more program for more than 1024 transitions, and at most 4096 are kept."""
    fits, agent = program(begin, static_argnums=4), KQL("CartPole-v1", seed=0)
    remember(agent, 1020)
    agent.learn(1)
    before = fits._cache_size()
    agent.learn(120).predict(np.zeros(4))  # some rounds on either side
    assert agent.num_timesteps == 1141 == len(agent.history["reward"])
    remember(agent, 2950)
    agent.learn(20)
    assert fits._cache_size() == before + 1
    assert agent.num_timesteps == 4111 and 3072 - 500 < len(agent.history["reward"]) < 3072 + 20
    assert "4111 steps" in repr(agent) and "at most 4096" in repr(agent)
    rows = agent.history
    np.testing.assert_array_equal(
        rows["is_first"], np.append(True, rows["episode"][1:] != rows["episode"][:-1])
    )
    assert agent.choose(rows["obs"][:4]).shape == (4,)


# Algorithm 1 --------------------------------------------------------------------------------------


kql_step, kql_act = jax.jit(kqljax.kql_step), jax.jit(kqljax.kql_act)
kql_predict = jax.jit(jax.vmap(kqljax.kql_predict, in_axes=(None, None, 0)))


def by_hand(agent, count):
    """The state that `kql_step` gives on the first `count` transitions of the agent."""
    rows, cfg = agent.history, agent.recipe
    state = kqljax.kql_init(cfg, rows["obs"].shape[1], capacity=128)
    for i in range(count):
        obs, next_obs = unit(agent, rows["obs"][i]), unit(agent, rows["next_obs"][i])
        moved = kqljax.Transition(
            obs,
            rows["action"][i],
            unit_reward(agent, rows["reward"][i]),
            next_obs,
            rows["terminated"][i],
        )
        state, info = kql_step(cfg, state, moved)
        assert bool(info.is_stored)
    return state


def assert_is_algorithm_1(agent):
    obs = np.random.default_rng(0).uniform(*agent.obs_bounds, (4, 4))
    state, found = by_hand(agent, agent.num_timesteps), agent.beliefs(obs)
    q_hat, width = kql_predict(agent.recipe, state, unit(agent, obs))
    np.testing.assert_allclose(found.mean, q_hat, atol=1e-8)
    np.testing.assert_allclose(found.spread, width, atol=1e-6)
    np.testing.assert_allclose(
        found.optimistic, np.clip(q_hat + agent.recipe.beta * width, 0, 20), atol=1e-6
    )
    np.testing.assert_array_equal(agent.q_values(obs), found.optimistic)
    np.testing.assert_array_equal(
        agent.choose(obs),
        np.argmax(found.optimistic >= found.optimistic.max(axis=1)[:, None] - 1e-9, 1),
    )


def test_the_papers_recipe_is_algorithm_1(paper):
    assert_is_algorithm_1(paper)
    cfg = paper.recipe
    assert (cfg.kernel, cfg.gamma, cfg.engine, cfg.horizon) == (
        kqljax.RBF(eta=0.02),
        0.95,
        kqljax.Exact(),
        SHORT,
    )
    assert cfg.lam == pytest.approx(1 / (10 * SHORT)) and cfg.beta == pytest.approx(
        cfg.lam**0.5 * 20
    )
    assert cfg.terminal_value == 0.0 and paper.history["terminated"].any()
    # The last action was the best of the state before it.
    action, _ = kql_act(
        jax.random.key(0), cfg, by_hand(paper, SHORT - 1), unit(paper, paper.history["obs"][-1])
    )
    assert int(action) == paper.history["action"][-1]


def test_algorithm_1_goes_on_with_its_lam_and_beta():
    agent = KQL("CartPole-v1", recipe="paper", seed=4).learn(SHORT)
    numbers = agent.recipe
    with compiles() as found:
        agent.learn(30).learn(7)
        KQL("CartPole-v1", recipe="paper", seed=5, gamma=0.9).learn(20)
    assert found == [] and agent.num_timesteps == SHORT + 37
    assert (agent.recipe.lam, agent.recipe.beta) == (numbers.lam, numbers.beta)
    assert_is_algorithm_1(agent)


def test_the_room_of_algorithm_1():
    """It doubles when it is full, and ends at the horizon."""
    assert [
        room_for(need, room, 60) for room, need in ((8, 8), (8, 9), (8, 17), (32, 33), (60, 61))
    ] == [8, 16, 32, 60, 120]


def test_a_horizon_sets_lam_and_beta():
    agent = KQL(
        "MountainCar-v0", recipe="paper", horizon=500, gamma=0.9, kernel=kqljax.Linear(), seed=0
    )
    agent._learner = agent._learner.sized(0, 10)
    assert agent.recipe.lam == pytest.approx(1 / 5000) and agent.recipe.beta == pytest.approx(
        (1 / 5000) ** 0.5 * 10
    )
    assert agent.recipe.kernel == kqljax.Linear() and agent.recipe.terminal_value == pytest.approx(
        10
    )
    assert KQL(
        "MountainCar-v0", recipe="paper", end_value=0.5
    ).recipe.terminal_value == pytest.approx(10)


def test_a_config_is_taken_as_it_is():
    features = kqljax.features.taylor(kqljax.RBF(eta=0.02), 4, 2, 1e-3)
    cfg = kqljax.KQLConfig(
        kernel=kqljax.RBF(eta=0.02),
        num_actions=2,
        horizon=30,
        engine=kqljax.Weights(features),
        lam=0.1,
    )
    agent = KQL("CartPole-v1", recipe=cfg, seed=0).learn(20).learn(10)
    chex.assert_trees_all_equal(agent.recipe, cfg)
    assert agent.num_timesteps == 30 == int(agent._memory.now.state.num_stored)


def test_algorithm_1_needs_bounds_that_stay():
    words = r"bounds that never move.*give obs_bounds=\(low, high\) and reward_range=\(lowest, highest\), or .*recipe='default'"
    with pytest.raises(ValueError, match=words):
        KQL(Line(), recipe="paper")
    with pytest.raises(ValueError, match=r"give reward_range=\(lowest, highest\), or"):
        KQL(Line(), recipe="paper", obs_bounds=(-10, 10))
    with pytest.raises(ValueError, match=r"give obs_bounds=\(low, high\), or"):
        KQL(Line(), recipe="paper", obs_bounds=(-10, np.inf), reward_range=(0, 1))
    cfg = kqljax.KQLConfig(kernel=kqljax.RBF(), num_actions=2, horizon=10)
    with pytest.raises(ValueError, match="reward_range"):
        KQL(Line(), recipe=cfg, obs_bounds=(-10, 10), reward_range="estimate")
    assert KQL(Line(), recipe=cfg, **BOUNDS).learn(5).num_timesteps == 5


def test_before_learning_algorithm_1_holds_everything_for_the_best():
    agent = KQL("CartPole-v1", recipe="paper", seed=0)
    np.testing.assert_allclose(agent.q_values(np.zeros(4)), 20.0)
    assert agent.predict(np.zeros(4))[0] == 0
    cfg = dataclasses.replace(agent.recipe, tie_break="random")
    drawn = KQL("CartPole-v1", recipe=cfg, seed=0).learn(
        8
    )  # while learning; predict has no randomness
    assert set(drawn.history["action"][:3]) | set(drawn.history["action"]) == {0, 1}


class Slope(Line):
    """A line whose action is a push."""

    action_space = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self):
        super().__init__()
        self.taken = []

    def step(self, action):
        assert self.action_space.contains(action)
        self.taken.append(action)
        return super().step(int(action[0] > 0))


def test_continuous_actions_from_a_list():
    pendulum = KQL("Pendulum-v1", recipe="paper", seed=0)
    np.testing.assert_array_equal(pendulum.actions, [[-2.0], [0.0], [2.0]])
    assert pendulum.recipe.kernel == kqljax.RBF(eta=1.0) and pendulum.recipe.num_actions == 3
    agent = KQL(Slope(), actions=[-0.5, 1.0], seed=0).learn(20)
    assert {each.item() for each in agent.env.taken} == {-0.5, 1.0}
    action, _ = agent.predict(np.zeros(4))
    assert (
        action.shape == (1,)
        and action.dtype == np.float32
        and agent.env.action_space.contains(action)
    )
    assert agent.predict(np.zeros((4, 4)))[0].shape == (4, 1)


# Learning -----------------------------------------------------------------------------------------


def test_learning_goes_on(pole):
    agent = KQL("CartPole-v1", seed=3).learn(STEPS)
    before = agent.history
    for name, rows in pole.history.items():
        np.testing.assert_array_equal(before[name], rows)
    assert not before["is_last"][-1]
    assert agent.learn(30) is agent and agent.num_timesteps == STEPS + 30
    for name in before:
        if name != "is_last":
            np.testing.assert_array_equal(agent.history[name][:STEPS], before[name])
    # A new episode has begun, and the one before is over.
    assert agent.history["is_last"][STEPS - 1] and agent.history["is_first"][STEPS]
    assert agent.history["episode"][STEPS] == agent.history["episode"][STEPS - 1] + 1
    assert not np.array_equal(agent.history["obs"][STEPS], agent.history["next_obs"][STEPS - 1])


def test_seeds_decide():
    first, second, other = (KQL("CartPole-v1", seed=seed).learn(30).history for seed in (7, 7, 8))
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    assert not np.array_equal(first["obs"], other["obs"])
    assert KQL("CartPole-v1").seed != KQL("CartPole-v1").seed


def test_no_two_calls_have_the_same_seed():
    seeds = []
    for seed in (0, 1, 5, 10):
        agent = KQL(Line(goal=99), recipe="paper", seed=seed, **BOUNDS)
        for _ in range(3):
            agent.learn(5)
        assert agent.env.seeds[0] == seed
        seeds += [*agent.env.seeds, agent.evaluation_seed]
    assert len(set(seeds)) == len(seeds) == 16


def test_callbacks_see_every_step_and_can_stop(line):
    seen, others = [], []

    def watch(agent, step):
        seen.append(step)
        assert step.num_timesteps == agent.num_timesteps == len(agent.history["reward"])

    agent = line.learn(
        10,
        [
            watch,
            lambda agent, step: agent.num_timesteps < 6,
            lambda agent, step: others.append(step),
        ],
    )
    assert [step.num_timesteps for step in seen] == [1, 2, 3, 4, 5, 6] and agent.num_timesteps == 6
    assert others == seen  # all are called, also after one has said no
    for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated"):
        np.testing.assert_array_equal(
            [getattr(step, name) for step in seen], agent.history[name][:6]
        )


def test_progress_bar(capsys, line):
    line.learn(10, progress_bar=True)
    captured = capsys.readouterr()
    assert "10/10" in captured.err and "steps" in captured.err and not captured.out


# Interruptions ------------------------------------------------------------------------------------


class Interruption:
    """Counts the calls that the agent's package makes and gets in a block; at number `stop` comes a
    Ctrl-C.
    """

    package = str(Path(kqljax.agent.__file__).parent)

    def __init__(self, stop=None):
        self.stop, self.count = stop, 0

    def __enter__(self):
        sys.setprofile(self.event)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def event(self, frame, event, arg):
        frames = {"call": (frame, frame.f_back), "c_call": (frame,)}.get(event, ())
        if any(each and each.f_code.co_filename.startswith(self.package) for each in frames):
            self.count += 1
            if self.count == self.stop:
                raise KeyboardInterrupt


class Back(Line):
    """A line whose first action leads to the end."""

    def step(self, action):
        return super().step(1 - action)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # where an interruption met a finaliser
@pytest.mark.parametrize(
    "env, options",
    [(lambda: Back(goal=1), {}), (lambda: Back(goal=2), {"recipe": "paper", **BOUNDS})],
)
def test_an_interruption_at_any_call_loses_nothing(tmp_path, env, options):
    def new():
        return KQL(env(), seed=0, **options)

    new().learn(2).learn(3).predict(np.zeros(4))  # compiles
    undisturbed = new()
    with Interruption() as everything:
        undisturbed.learn(2)
    assert undisturbed.history["terminated"].any() and everything.count > 300
    whole, kept, path, obs = (
        undisturbed.history,
        set(),
        tmp_path / "agent.npz",
        np.array([[-2.0], [0.0]]) * np.eye(4)[0],
    )
    for k in range(1, everything.count + 1):
        agent, was_stopped = new(), False
        try:
            with Interruption(k):
                agent.learn(2)
        except (
            KeyboardInterrupt,
            SystemError,
        ):  # numpy makes the latter of the former, where C code calls Python
            was_stopped = True
        count = agent.num_timesteps
        kept.add(count)
        assert was_stopped or count == 2  # Python says nothing of what is raised in a finaliser
        for name in ("obs", "action", "reward", "next_obs", "terminated", "episode", "is_first"):
            np.testing.assert_array_equal(agent.history[name], whole[name][:count])
        assert (
            len(agent.episode_returns)
            == len(agent.episode_lengths)
            == agent.history["terminated"].sum()
        )
        if "recipe" in options and count:
            assert int(agent._memory.now.state.num_stored) == count
        if k % 10 == 0:
            assert set(agent.choose(obs)) <= {0, 1}
        if k % 50 == 0:
            agent.save(path)
            loaded = KQL.load(path, env=env())
            assert loaded.num_timesteps == count
            np.testing.assert_array_equal(agent.choose(obs), loaded.choose(obs))
            agent.learn(3), loaded.learn(3)
            assert (
                agent.num_timesteps
                == loaded.num_timesteps
                == len(agent.history["obs"])
                == count + 3
            )
            np.testing.assert_array_equal(agent.history["action"], loaded.history["action"])
    assert kept == set(range(3))


def test_a_callback_that_fails_leaves_the_agent_whole(line):
    def fail(agent, step):
        if step.num_timesteps == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        line.learn(20, fail)
    assert line.num_timesteps == 8
    assert line.learn(5).num_timesteps == 13


class Breaking(Line):
    """It breaks at the 17th step, or when it is reset after it."""

    steps, at_reset = 0, False

    def step(self, action):
        self.steps += 1
        if self.steps == 17 and not self.at_reset:
            raise RuntimeError("the environment is broken")
        return super().step(action)

    def reset(self, **options):
        if self.steps >= 17 and self.at_reset:
            raise RuntimeError("the environment is broken")
        return super().reset(**options)


@pytest.mark.parametrize("at_reset", [False, True])
def test_an_environment_that_breaks(tmp_path, at_reset):
    env = Breaking()
    env.at_reset = at_reset
    agent = KQL(gymnasium.wrappers.TimeLimit(env, 10), seed=0)
    with pytest.raises(RuntimeError, match="is broken"):
        agent.learn(60)
    count = agent.num_timesteps
    assert 16 <= count == env.steps - 1 == len(agent.history["obs"])
    agent.save(tmp_path / "agent.npz")
    assert KQL.load(tmp_path / "agent.npz").num_timesteps == count
    assert agent.learn(5, env=Line()).num_timesteps == count + 5


# Bounds and rewards -------------------------------------------------------------------------------


def test_unknown_bounds_are_estimated(line):
    line.learn(60)
    rows, (low, high) = line.history, line.obs_bounds
    everything = np.concatenate([rows["obs"], rows["next_obs"]])
    assert low[0] <= everything.min() and everything.max() <= high[0]
    assert high[0] - low[0] <= 3 * (everything.max() - everything.min())
    assert (
        low[1:].tolist() == [-1.0] * 3 and high[1:].tolist() == [1.0] * 3
    )  # nothing is known of what never moves
    assert line.reward_range == (0.0, 1.0) and rows["terminated"].any()
    # The policy is that of the bounds as they are now, for every transition.
    known = KQL(Line(), obs_bounds=line.obs_bounds, reward_range=line.reward_range, seed=0)
    known._memory = known._memory._replace(history=line._memory.history)
    obs = 6.0 * np.arange(-2, 2)[:, None] * np.eye(4)[0]
    for ours, theirs in zip(line.beliefs(obs), known.beliefs(obs), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_moved_bounds_count_from_the_next_fit_on(line):
    fits = []

    def watch(agent, step):
        low, high, *_ = agent._memory.now.scaling
        fits.append((float(high[0] - low[0]), agent.obs_bounds, agent._memory.now.ends))

    line.learn(60, watch)
    widths = [float(high[0] - low[0]) for _, (low, high), _ in fits]
    moved = [i for i in range(1, 60) if widths[i] != widths[i - 1]]
    assert len(moved) >= 3
    for i, (width, _, ends) in enumerate(fits[1:], 1):
        begun = ends != fits[i - 1][2]
        # A round that began at this step took the bounds of the step before.
        assert width == (widths[i - 1] if begun else fits[i - 1][0])
    assert len({width for width, _, _ in fits}) >= 3


def test_nothing_that_was_fitted_with_other_bounds_acts():
    """When bounds move, the policy that acts while learning is fitted anew, though the schedule
    would keep it.
    """
    agent = KQL("CartPole-v1", seed=3).learn(110)
    learner, memory = agent._learner, agent._memory
    fresh = memory._replace(now=None)
    before = learner._begin(fresh, 1)
    kept = learner._begin(memory._replace(now=before), 1)
    np.testing.assert_array_equal(
        kept.player.finished.ensemble.place, before.player.finished.ensemble.place
    )
    wider = memory.ranges._replace(low=2 * memory.ranges.low, high=2 * memory.ranges.high)
    moved, anew = (
        learner._begin(memory._replace(ranges=wider, now=each), 1) for each in (before, None)
    )
    assert np.any(moved.player.finished.ensemble.place != before.player.finished.ensemble.place)
    jax.tree.map(np.testing.assert_array_equal, moved.player.finished, anew.player.finished)
    jax.tree.map(np.testing.assert_array_equal, moved.player.scales, anew.player.scales)


def test_half_known_bounds():
    agent = KQL(Line(), obs_bounds=(-10.0, np.inf), reward_range=(0, 1), seed=0).learn(20)
    low, high = agent.obs_bounds
    assert (
        low[0] == -10.0 and np.isfinite(high).all() and high[0] >= agent.history["next_obs"].max()
    )
    assert KQL(Line(), obs_bounds=(-10, 10), seed=0).learn(20).obs_bounds[1][0] == 10


def test_the_range_of_rewards_is_estimated_with_0_in_it():
    falling = Line(reward=lambda place, is_end: -1.0 - abs(place))
    agent = KQL(falling, seed=0).learn(60)
    worst = agent.history["reward"].min()
    assert 1.5 * worst <= agent.reward_range[0] <= worst and agent.reward_range[1] == 0.0
    # An end pays 0, which is the best there is.
    assert agent._memory.ranges.scaling().end_value == 1.0


def test_rewards_out_of_the_stated_range():
    agent = KQL(
        Line(reward=lambda place, is_end: float(place)),
        recipe="paper",
        obs_bounds=(-10, 10),
        reward_range=(-1, 1),
    )
    with pytest.raises(
        ValueError, match=r"paid -2, which is out of reward_range=\(-1, 1\).*reward_range=\(-2, 1\)"
    ):
        agent.learn(60)
    # Nothing false was learned, and the agent can be asked and go on.
    assert agent.num_timesteps == 1 == len(agent.history["reward"]) and agent.q_values(
        np.zeros(4)
    ).shape == (2,)
    assert agent.learn(2, env=Line()).num_timesteps == 3


class Odd(Line):
    """At the third step, or at once, its place is no number."""

    at_once = False

    def _obs(self):
        return (
            np.full(4, np.nan, np.float32) if self.at_once or self.place == -3 else super()._obs()
        )


def test_numbers_that_are_none(line):
    rewards = Line(reward=lambda place, is_end: np.nan if place == -3 else 0.0)
    for env, what in ((Odd(), "an observation"), (rewards, "a reward")):
        agent = KQL(env, recipe="paper", **BOUNDS)
        with pytest.raises(ValueError, match=f"gave {what} that is not a finite number"):
            agent.learn(10)
        assert agent.num_timesteps == 2 and np.all(np.isfinite(agent.history["next_obs"]))
    env = Odd()
    env.at_once = True
    with pytest.raises(ValueError, match="an observation that is not a finite number"):
        KQL(env).learn(3)


def test_the_value_of_an_end_can_be_stated():
    agent = KQL(
        Line(reward=lambda place, is_end: 2.0), reward_range=(1, 3), end_value=0.25, seed=0
    ).learn(5)
    assert agent._learner._transitions(agent._memory)[1].end_value == 0.25
    # -1 a step and 0 after the end: by itself an end is worth the most.
    car = KQL("MountainCar-v0")
    assert car._learner._transitions(car._memory)[1].end_value == 1.0


def test_discrete_observations_become_one_hot():
    agent = KQL(Line(goal=2, space=spaces.Discrete(4)), seed=0).learn(30)
    assert agent.history["obs"].shape == (30, 4) and agent.history["terminated"].any()
    np.testing.assert_array_equal(agent.history["obs"].sum(axis=1), 1.0)
    np.testing.assert_array_equal(agent.history["obs"][0], np.eye(4)[1])
    assert agent.predict(np.int64(3))[0].shape == () and agent.predict(np.array([0, 1, 2]))[
        0
    ].shape == (3,)
    assert agent.q_values(3).shape == (2,)
    with pytest.raises(ValueError, match=r"whole numbers in 0\.\.3"):
        agent.predict(4)


def test_many_discrete_observations_take_little_memory():
    agent = KQL(Line(space=spaces.Discrete(5000)))
    tracemalloc.start()
    try:
        vector = agent._observations.vectors(4999)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert vector.shape == (5000,) and vector[4999] == 1.0 == vector.sum()
    assert most < 1e6


# Presets ------------------------------------------------------------------------------------------


class TimeLimit(gymnasium.RewardWrapper):
    """A wrapper of the user's own, with a name of gymnasium's."""

    def reward(self, reward):
        return 2.0 * reward


def _car():
    return gymnasium.make("MountainCar-v0")


def _cars(mode, **options):
    return gymnasium.make_vec("MountainCar-v0", num_envs=2, vectorization_mode=mode, **options)


def _shifted(env):
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs + 1, env.observation_space)


PLAIN = {
    "as it is": _car,
    "time limit": lambda: gymnasium.wrappers.TimeLimit(_car(), 40),
    "statistics": lambda: gymnasium.wrappers.RecordEpisodeStatistics(_car()),
    "another length": lambda: gymnasium.make("MountainCar-v0", max_episode_steps=40),
    "sync": lambda: _cars("sync"),
    "sync, statistics": lambda: _cars(
        "sync", wrappers=[gymnasium.wrappers.RecordEpisodeStatistics]
    ),
    "vector, statistics": lambda: gymnasium.wrappers.vector.RecordEpisodeStatistics(_cars("sync")),
    "vector": lambda: gymnasium.make_vec("CartPole-v1", num_envs=2),
}
CHANGED = {
    "rewards": lambda: gymnasium.wrappers.NormalizeReward(_car()),
    "observations": lambda: _shifted(_car()),
    "below the time limit": lambda: gymnasium.wrappers.TimeLimit(_shifted(_car()), 40),
    "one's own": lambda: TimeLimit(_car()),
    "sync, rewards": lambda: _cars("sync", wrappers=[gymnasium.wrappers.NormalizeReward]),
    "sync, observations": lambda: _cars("sync", wrappers=[_shifted]),
    "async, rewards": lambda: _cars(
        "async", wrappers=[gymnasium.wrappers.NormalizeReward], vector_kwargs={"context": "spawn"}
    ),
    "vector, rewards": lambda: gymnasium.wrappers.vector.NormalizeReward(_cars("sync")),
    "vector, observations": lambda: gymnasium.wrappers.vector.TransformObservation(
        gymnasium.make_vec("CartPole-v1", num_envs=2), lambda obs: obs + 1
    ),
    "another task": lambda: gymnasium.make("CartPole-v1", sutton_barto_reward=True),
    "another task, vector": lambda: gymnasium.make_vec(
        "CartPole-v1", num_envs=2, sutton_barto_reward=True
    ),
}


def has_preset(env):
    """Whether the agent knows the rewards, which no space says."""
    return KQL(env)._memory.ranges.is_reward_fixed


@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_the_papers_numbers_are_taken_through_harmless_wrappers(make):
    env = make()
    assert has_preset(env)
    env.close()


@pytest.mark.parametrize("make", CHANGED.values(), ids=CHANGED)
def test_the_papers_numbers_are_not_taken_where_something_is_changed(make):
    env = make()
    assert not has_preset(env)
    env.close()


def test_what_is_given_goes_before_the_papers_numbers():
    agent = KQL("MountainCar-v0", obs_bounds=(-2.0, 2.0), reward_range="estimate")
    assert agent.obs_bounds[0].tolist() == [-2.0, -2.0] and agent.reward_range == (0.0, 1.0)
    assert KQL("MountainCar-v0", reward_range=(-3, 1)).reward_range == (-3.0, 1.0)


# Evaluation ---------------------------------------------------------------------------------------


def test_evaluate(pole):
    found = pole.evaluate(3)
    assert found.returns.shape == found.lengths.shape == (3,) and np.all(found.returns > 0)
    np.testing.assert_array_equal(found.returns, found.lengths)
    np.testing.assert_array_equal(found.returns, pole.evaluate(3).returns)
    assert found.max_steps is None and not found.was_cut.any() and "cut" not in str(found)
    assert found.mean == pytest.approx(found.returns.mean()) and found.std == pytest.approx(
        found.returns.std()
    )
    assert pole.evaluate(2, seed=1).returns.tolist() != pole.evaluate(2, seed=2).returns.tolist()


def test_evaluation_ends_where_the_environment_has_no_time_limit():
    agent = KQL("CliffWalking-v1", recipe="paper", reward_range=(-100, 0), seed=0)
    found = agent.evaluate(1)
    assert (
        found.lengths.tolist() == [1000]
        and found.was_cut.tolist() == [True]
        and found.max_steps == 1000
    )
    assert "1 of them cut off after 1000 steps" in str(found)
    short = agent.evaluate(2, max_steps=7)
    assert short.lengths.tolist() == [7, 7] and "2 of them cut off after 7 steps" in str(short)
    with pytest.raises(ValueError, match="max_steps must be at least 1"):
        agent.evaluate(1, max_steps=0)
    car = KQL("MountainCar-v0", recipe="paper", seed=0).evaluate(1, max_steps=30)
    assert car.lengths.tolist() == [30] and car.was_cut.all()


@pytest.mark.parametrize("options", [{}, {"recipe": "paper", **BOUNDS}])
def test_evaluating_while_learning_leaves_the_environment_alone(options):
    def look(agent, step):
        if step.num_timesteps % 7 == 0:
            assert agent.evaluate(1, max_steps=4).lengths.tolist() == [4]

    agent, undisturbed = (KQL(Line(goal=9), seed=0, **options) for _ in range(2))
    rows, wanted = agent.learn(40, look).history, undisturbed.learn(40).history
    for name in rows:
        np.testing.assert_array_equal(rows[name], wanted[name])
    assert np.abs(rows["next_obs"] - rows["obs"]).max() <= 2


def test_the_environment_of_an_evaluation(tmp_path, line):
    agent = line.learn(5)

    def length(agent, **options):
        return agent.evaluate(1, **options).lengths.tolist()

    def limited(steps):
        return gymnasium.wrappers.TimeLimit(Line(goal=99), steps)

    assert length(agent, env=limited(3)) == [3]
    agent.learn(1, env=limited(6))
    assert length(agent) == [6]
    agent.save(tmp_path / "line.npz")
    assert length(KQL.load(tmp_path / "line.npz", env=limited(4))) == [4]
    with pytest.raises(ValueError, match="has no environment: give env="):
        KQL.load(tmp_path / "line.npz").evaluate(1)
    with pytest.raises(ValueError, match="single environments: give env="):
        agent.evaluate(1, env=gymnasium.make_vec("CartPole-v1", num_envs=2))


class Stuck(Line):
    def __deepcopy__(self, memo):
        raise TypeError("it holds a socket")


def test_an_environment_that_cannot_be_copied():
    agent = KQL(Stuck(), recipe="paper", **BOUNDS)
    with pytest.raises(
        ValueError,
        match=r"cannot be copied \(it holds a socket\).*give env=, another environment to play in",
    ):
        agent.evaluate(1)
    assert agent.evaluate(1, env=Stuck(), max_steps=3).lengths.tolist() == [3]


class Watched(Line):
    """Counts how many of its kind were opened and closed, copies too."""

    counts = {"opened": 0, "closed": 0}  # noqa: RUF012

    def __init__(self):
        super().__init__(goal=9)
        self.counts["opened"] += 1

    def close(self):
        super().close()
        self.counts["closed"] += 1


def test_what_the_agent_opens_it_closes(monkeypatch):
    monkeypatch.setitem(
        gymnasium.registry, "Watched-v0", gymnasium.envs.registration.EnvSpec("Watched-v0", Watched)
    )
    counts = {"opened": 0, "closed": 0}
    monkeypatch.setattr(Watched, "counts", counts)
    options = {"recipe": "paper", **BOUNDS}
    agent = KQL("Watched-v0", **options)
    agent.learn(3)
    assert counts == {"opened": 1, "closed": 0}
    agent.evaluate(3, max_steps=2)
    assert counts == {"opened": 4, "closed": 3}
    agent.close()
    assert counts == {"opened": 4, "closed": 4}
    agent.learn(3)  # opens it again
    agent.learn(3, env=agent.env)  # its own: nothing changes
    assert counts == {"opened": 5, "closed": 4} and agent.env_name == "Watched-v0"
    with pytest.raises(ValueError, match="observations of shape"):
        agent.learn(3, env="MountainCar-v0")
    given = Watched()
    agent.learn(3, env=given)
    assert counts == {"opened": 6, "closed": 5} and agent.env_name is None
    # What was given is the user's, and its copy is the agent's.
    agent.evaluate(1, max_steps=2)
    agent.evaluate(1, env=given, max_steps=2)
    agent.close()
    agent.learn(3, env=Line())
    assert counts["closed"] == 6 and given.closed == 0


# jax as it comes ----------------------------------------------------------------------------------

X64_OFF = f"""
import warnings
warnings.simplefilter("error")
import jax, jax.numpy as jnp
import kqljax
for recipe, steps in (("default", {STEPS}), ("paper", {SHORT})):
    agent = kqljax.KQL("CartPole-v1", recipe=recipe, seed=3).learn(steps)
    assert agent.q_values([0.0] * 4).dtype == "float64"
    assert not jax.config.jax_enable_x64 and jnp.zeros(1).dtype == "float32"
    print(agent.history["action"].tolist())
"""


def test_jax_as_it_comes(pole, compiled):
    """Float32 as jax's default: no warning, jax's configuration as it was, and the same run."""
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    done = subprocess.run(
        [sys.executable, "-c", X64_OFF],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | cache,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == str(pole.history["action"].tolist())


def test_it_learns():
    """300 steps of CartPole, from which DQN learns nothing."""
    returns = [
        KQL("CartPole-v1", seed=seed).learn(300).evaluate(3, max_steps=200).mean
        for seed in range(3)
    ]
    assert np.median(returns) > 150, returns
