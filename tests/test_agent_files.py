"""What an agent keeps: its history, and itself as a file."""

import itertools

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from agents import BOUNDS, Line

import kqljax
from kqljax import KQL
from kqljax.agent import history as keeping
from kqljax.agent.history import History
from kqljax.agent.loops import Steps

pytestmark = pytest.mark.usefixtures("compile_once")

# History ------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    """64 transitions are kept, the newest 32 and 16 older ones when others are left out."""
    monkeypatch.setattr(keeping, "SIZE", 64)
    monkeypatch.setattr(keeping, "NEWEST", 32)


NEXT = np.array([0, 1])


def play(histories, lengths, most=None):
    """Episodes of these lengths in each of n environments, all at once; the observation is (which
    episode, its step).

    Args:
      lengths: `[n]` lists.
      histories: a list to which the history after every step is added, beginning with the one it
        has.
      most: steps, where the last episodes shall not be over.
    """
    history, count = histories[-1], len(lengths)
    at, begun = np.zeros(count, int), list(range(count))
    number, now = count, [list(each) for each in lengths]
    while any(now) and len(histories) != most:
        env = np.array([i for i in range(count) if now[i]])
        obs = np.array([[begun[i], at[i]] for i in env], float)
        at[env] += 1
        is_over = np.array([at[i] == now[i][0] for i in env])
        nothing = np.zeros(len(env))
        history = history.added(
            Steps(env, obs, nothing, nothing, obs + NEXT, is_over, is_over & False, nothing)
        )
        for i in env[is_over]:
            now[i].pop(0)
            begun[i], at[i], number = number, 0, number + 1
        histories.append(history)
    return history


def begun(num_envs=1, offset=0):
    return History.empty(2)._replace(episodes=offset).begun(num_envs)


def is_whole(rows, episode):
    """Whether all steps of an episode are there, from the first to the last."""
    steps = rows["obs"][rows["episode"] == episode, 1]
    last = rows["terminated"][rows["episode"] == episode]
    return np.array_equal(steps, np.arange(len(steps))) and last[-1]


def stored(history):
    """As a file gives it back."""
    return history.trimmed()


def test_a_short_run_is_kept_whole(small):
    rows = play([begun()], [[3, 1, 5, 40]]).ordered()
    np.testing.assert_array_equal(rows["episode"], np.repeat([0, 1, 2, 3], [3, 1, 5, 40]))
    np.testing.assert_array_equal(rows["obs"][:, 0], rows["episode"])
    np.testing.assert_array_equal(np.flatnonzero(rows["is_first"]), [0, 3, 4, 9])
    np.testing.assert_array_equal(np.flatnonzero(rows["is_last"]), [2, 3, 8, 48])


def test_an_empty_history():
    for history in (History.empty(2), begun()):
        rows = history.ordered()
        assert {len(column) for column in rows.values()} == {0} and rows["is_last"].dtype == bool
        again = stored(history)
        assert again.num_kept == 0 and again.ordered().keys() == rows.keys()


def test_an_episode_that_goes_on_has_no_last_row():
    history = play([begun()], [[2, 5]], most=5)
    rows = history.ordered()
    assert rows["is_first"].tolist() == [True, False, True, False] and rows["is_last"].tolist() == [
        False,
        True,
        False,
        False,
    ]
    # Until the environment is reset; the same when the file was read.
    for each in (history, stored(history)):
        assert each.begun(1).ordered()["is_last"].tolist() == [False, True, False, True]
        assert play([each.begun(1)], [[1]]).ordered()["is_first"].tolist() == [
            True,
            False,
            True,
            False,
            True,
        ]


def test_the_newest_stay_and_of_older_ones_whole_episodes(small):
    lengths = np.random.default_rng(0).integers(1, 9, 150)
    seen = [begun()]
    play(seen, [lengths])
    total = lengths.sum()
    everything = np.array(
        [(e, t) for e, length in enumerate(lengths) for t in range(length)], float
    )
    thinned = 0
    for n, (before, after) in enumerate(itertools.pairwise(seen), 1):
        assert after.total == n and after.num_kept <= 64
        np.testing.assert_array_equal(
            after.rows["obs"][: after.num_kept][-32:], everything[max(n - 32, 0) : n]
        )
        if after.num_kept > before.num_kept:
            continue
        thinned += 1
        rows, newest = after.ordered(), set(everything[n - 33 : n, 0])
        older = set(rows["obs"][:, 0]) - newest
        assert older and all(is_whole(rows, each) for each in older)
    assert n == total and thinned > 20
    # What was put down before does not change by what comes later.
    np.testing.assert_array_equal(seen[40].ordered()["obs"], everything[:40])


def survivors(lengths, offset, num_envs=1):
    """Which of the episodes older than the newest 64 rows are kept whole, `[n]` bool, and their
    lengths.
    """
    rows = play([begun(num_envs, offset)], np.reshape(lengths, (num_envs, -1))).ordered()
    # Side by side all episodes are of one length, and numbered as they begin.
    older = np.flatnonzero(np.cumsum(lengths) <= np.sum(lengths) - 64 * num_envs)
    present = set(rows["episode"].tolist())
    return np.array(
        [each + offset in present and is_whole(rows, each + offset) for each in older]
    ), np.array(lengths)[older]


@pytest.mark.parametrize("num_envs", [1, 3])
def test_every_older_episode_has_the_same_chance(small, num_envs):
    """Early or late, and about so whether short or long; the 16 rows for them hold a few."""
    rng, found = np.random.default_rng(0), []
    for run in range(300):
        lengths = rng.integers(2, 6, 45) if num_envs == 1 else np.full(90, 4)
        kept, sizes = survivors(lengths, 1000 * run, num_envs)
        found += zip(kept, np.arange(len(kept)) / len(kept), sizes, strict=True)
    kept, when, sizes = np.array(found).T
    share = kept.mean()
    assert share * np.mean(sizes) * len(kept) / 300 > 8  # rows of whole older episodes, out of 16
    groups = [when < 0.3, (when >= 0.3) & (when < 0.6), when >= 0.6]
    for group in groups:
        assert abs(kept[group].mean() - share) < 4 * np.sqrt(share / group.sum())
    for group in (sizes <= 2, sizes >= 5) if num_envs == 1 else ():
        assert abs(kept[group].mean() - share) < 0.25 * share + 4 * np.sqrt(share / group.sum())


def test_long_episodes_side_by_side_leave_whole_ones(monkeypatch):
    """Each of them is under way whenever older ones are left out: it must not lose its beginning
    for that.
    """
    monkeypatch.setattr(keeping, "SIZE", 256)
    monkeypatch.setattr(keeping, "NEWEST", 128)
    rows = play([begun(8)], np.full((8, 12), 21)).ordered()
    whole = [each for each in np.unique(rows["episode"]) if is_whole(rows, each)]
    assert len(whole) >= 2 and min(whole) < 8 * 10


def test_one_long_episode_does_not_drive_out_the_others(small):
    # Also where its number is so low that it would be the first to stay.
    low = [number for number in range(100, 3000) if np.random.default_rng(number).random() < 0.003]
    assert len(low) > 3
    for number in [*low, 500, 501]:
        rows = play([begun(offset=number - 20)], [[3] * 20 + [30] + [3] * 20]).ordered()
        assert not np.any(rows["episode"] == number)  # longer than the room there is
        older = {each for each in rows["episode"] if each < number}
        assert older and all(is_whole(rows, each) for each in older)


def test_an_episode_that_never_ends(small):
    history, env = begun(), np.zeros(1, int)
    for t in range(500):
        obs, nothing = np.array([[0.0, t]]), np.zeros(1)
        history = history.added(
            Steps(env, obs, nothing, nothing, obs + NEXT, nothing > 0, nothing > 0, nothing)
        )
        assert history.num_kept == min(t + 1, history.num_kept) <= 64
    rows = history.ordered()
    np.testing.assert_array_equal(rows["obs"][:, 1], np.arange(500 - history.num_kept, 500))
    assert history.num_kept >= 32 and not rows["is_first"].any() and not rows["is_last"].any()


def test_environments_side_by_side_are_kept_episode_after_episode(small):
    history = play([begun(3)], [[2, 3, 4], [4, 1, 1], [5, 5]])
    rows = history.ordered()
    assert np.all(np.diff(rows["episode"]) >= 0) and len(np.unique(rows["episode"])) == 8
    assert all(is_whole(rows, each) for each in range(8))
    np.testing.assert_array_equal(rows["is_last"], np.append(rows["is_first"][1:], True))
    again = stored(history)
    for name, column in again.ordered().items():
        np.testing.assert_array_equal(column, rows[name])
    assert again.total == history.total and again.episodes == history.episodes


# Files --------------------------------------------------------------------------------------------

OBS = np.array(
    [[0.0, 0.1, 0.01, -0.1], [0.5, -0.1, -0.05, 0.3], [0.0, 0.0, 0.1, 1.0], [-1.0, -1.0, 0.0, 0.0]]
)


@pytest.fixture(scope="module", params=["default", "paper"])
def recipe(request):
    return request.param


@pytest.fixture(scope="module")
def agent(recipe):
    return KQL("CartPole-v1", recipe=recipe, seed=3).learn(60)


@pytest.fixture(scope="module")
def path(agent, tmp_path_factory):
    path = tmp_path_factory.mktemp("agent") / "pole.npz"
    agent.save(path)
    return path


def assert_same(one, other):
    np.testing.assert_array_equal(one.choose(OBS), other.choose(OBS))
    for ours, theirs in zip(one.beliefs(OBS), other.beliefs(OBS), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for name in (
        "seed",
        "num_timesteps",
        "episode_returns",
        "episode_lengths",
        "reward_range",
        "env_name",
    ):
        assert getattr(one, name) == getattr(other, name)
    np.testing.assert_array_equal(one.obs_bounds, other.obs_bounds)
    chex.assert_trees_all_equal(one.recipe, other.recipe)
    for name, rows in one.history.items():
        np.testing.assert_array_equal(rows, other.history[name])


def test_a_loaded_agent_is_the_saved_one_and_goes_on_like_it(path, recipe):
    agent, loaded = KQL("CartPole-v1", recipe=recipe, seed=3).learn(60), KQL.load(path)
    assert_same(agent, loaded)
    assert_same(agent.learn(20), loaded.learn(20))
    assert loaded.num_timesteps == 80 and repr(loaded) == repr(agent)


def test_a_loaded_agent_fits_nothing_to_act(path, recipe, monkeypatch):
    if recipe == "paper":
        pytest.skip("Algorithm 1 fits nothing")
    loaded, fits = KQL.load(path), []
    finished = type(loaded._learner).finished
    monkeypatch.setattr(
        type(loaded._learner), "finished", lambda *args: fits.append(1) or finished(*args)
    )
    assert loaded.choose(OBS).shape == (4,) and not fits
    loaded.beliefs(OBS), loaded.q_values(OBS), loaded.beliefs(OBS), loaded.choose(OBS)
    assert len(fits) == 1  # for beliefs, of which a file keeps less


def test_a_run_of_300_steps_is_a_small_file(tmp_path):
    agent = KQL("MountainCar-v0", seed=0).learn(300)
    agent.save(tmp_path / "car.npz")
    assert (tmp_path / "car.npz").stat().st_size <= 50_000
    obs = np.random.default_rng(0).uniform(*agent.obs_bounds, (32, 2))
    np.testing.assert_array_equal(KQL.load(tmp_path / "car.npz").choose(obs), agent.choose(obs))


def test_an_agent_that_has_not_learned_comes_back(tmp_path, recipe):
    agent = KQL("CartPole-v1", recipe=recipe, seed=3)
    agent.save(tmp_path / "new.npz")
    loaded = KQL.load(tmp_path / "new.npz")
    assert_same(agent, loaded)
    assert_same(agent.learn(5), loaded.learn(5))


def test_estimates_come_back(tmp_path):
    agent = KQL(Line(), seed=0).learn(30)
    agent.save(tmp_path / "line.npz")
    loaded = KQL.load(tmp_path / "line.npz")
    assert loaded.env is None
    assert_same(agent, loaded)
    with pytest.raises(ValueError, match=r"no environment to learn in: learn\(..., env=...\)"):
        loaded.learn(5)
    assert_same(agent.learn(30), loaded.learn(30, env=Line()))
    assert not loaded._memory.ranges.is_obs_fixed
    with pytest.raises(
        ValueError, match=r"observations of shape \(4,\), this environment has shape \(2,\)"
    ):
        loaded.learn(5, env="MountainCar-v0")
    assert loaded.learn(5).num_timesteps == 65  # in the environment it has


def test_recipes_and_features_come_back(tmp_path):
    features = kqljax.features.taylor(kqljax.RBF(eta=0.02), 4, 2, 1e-3)
    cfg = kqljax.KQLConfig(
        kernel=kqljax.RBF(eta=0.02), num_actions=2, horizon=40, engine=kqljax.Weights(features)
    )
    for recipe in (cfg, kqljax.rounds.Recipe(gamma=0.9, etas=(0.1, 0.2, 0.3, 0.4, 0.5), bonus=0.5)):
        agent = KQL(
            "CartPole-v1", recipe=recipe, end_value=0.5 if recipe is not cfg else None, seed=0
        ).learn(20)
        agent.save(tmp_path / "pole.npz")
        loaded = KQL.load(tmp_path / "pole.npz")
        chex.assert_trees_all_equal(loaded.recipe, recipe)
        assert_same(agent, loaded)
        assert_same(agent.learn(10), loaded.learn(10))


class Own(kqljax.Kernel):
    scale: float = 0.1

    def evaluate(self, x, y):
        return jnp.exp(-self.scale * jnp.sum((x.obs - y.obs) ** 2)) * (
            0.5 + 0.5 * jnp.dot(x.action, y.action)
        )


def test_a_kernel_of_ones_own_is_given_again(tmp_path):
    agent = KQL(Line(), recipe="paper", kernel=Own(0.2), seed=0, **BOUNDS)
    agent.save(tmp_path / "own.npz")
    with pytest.raises(kqljax.SavedFileError, match=r"Own\(scale=0.2\).*give it, kernel="):
        KQL.load(tmp_path / "own.npz")
    assert KQL.load(tmp_path / "own.npz", kernel=Own(0.2)).recipe == agent.recipe


def test_sums_of_kernels_come_back(tmp_path):
    kernel = 0.5 * kqljax.RBF(eta=0.3) + 0.5 * kqljax.Linear()
    agent = KQL("MountainCar-v0", recipe="paper", kernel=kernel, seed=0)
    agent.save(tmp_path / "sum.npz")
    assert KQL.load(tmp_path / "sum.npz").recipe.kernel == kernel


def test_files_that_are_not_ours(path, tmp_path):
    (tmp_path / "text").write_text("not a zip")
    np.savez(tmp_path / "foreign.npz", weights=np.zeros(3))
    np.savez(tmp_path / "pickled.npz", about=np.array([{"format": "kqljax"}], object))
    (tmp_path / "cut.npz").write_bytes(path.read_bytes()[:-100])
    for name in ("text", "foreign.npz", "pickled.npz", "cut.npz"):
        with pytest.raises(kqljax.SavedFileError, match="not a file that kqljax saved"):
            KQL.load(tmp_path / name)
    with pytest.raises(kqljax.SavedFileError, match="cannot read"):
        KQL.load(tmp_path / "nothing.npz")
