"""Agents as files: what comes back, and what is refused."""

import json

import chex
import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

import kqljax
from kqljax import KQL
from kqljax.agent import archive

STEPS = 40
OBS = np.array([[-0.5, 0.0], [0.3, 0.02]])


@pytest.fixture(scope="module")
def agent():
    return KQL("MountainCar-v0", horizon=2 * STEPS, seed=3).learn(STEPS)


@pytest.fixture(scope="module")
def path(agent, tmp_path_factory):
    path = tmp_path_factory.mktemp("agent") / "car.npz"
    agent.save(path)
    return path


def same(one, other):
    np.testing.assert_array_equal(one.q_values(OBS), other.q_values(OBS))
    assert one._learner.committee == other._learner.committee  # who decides in predict
    np.testing.assert_array_equal(one.predict(OBS)[0], other.predict(OBS)[0])
    assert (one.seed, one.num_timesteps, one.episode_returns) == (other.seed, other.num_timesteps, other.episode_returns)
    for name, rows in one.history.items():
        np.testing.assert_array_equal(rows, other.history[name])


def test_a_loaded_agent_is_the_saved_one_and_goes_on_like_it(path):
    agent = KQL("MountainCar-v0", horizon=2 * STEPS, seed=3).learn(STEPS)
    loaded = KQL.load(path)
    same(agent, loaded)
    assert loaded.env is None
    chex.assert_trees_all_equal(loaded.config, agent.config)
    same(agent.learn(20), loaded.learn(20))
    assert loaded.num_timesteps == STEPS + 20


def test_estimates_and_features_come_back(tmp_path):
    env = gymnasium.make("CartPole-v1")
    unbounded = (-np.inf, np.inf)
    features = kqljax.features.taylor(kqljax.RBF(eta=0.02), 4, 2, 1e-3)
    agent = KQL(env, features=features, obs_bounds=unbounded, reward_range="estimate", horizon=STEPS, seed=0).learn(20)
    agent.save(tmp_path / "pole.npz")
    loaded = KQL.load(tmp_path / "pole.npz")
    np.testing.assert_array_equal(agent.obs_bounds, loaded.obs_bounds)
    np.testing.assert_array_equal(agent.q_values(np.zeros(4)), loaded.q_values(np.zeros(4)))
    with pytest.raises(ValueError, match=r"no environment to learn in: learn\(..., env=...\)"):
        loaded.learn(5)
    assert loaded.learn(5, env=env).num_timesteps == 25
    with pytest.raises(ValueError, match="observations of shape"):
        loaded.learn(5, env="MountainCar-v0")


class Own(kqljax.Kernel):
    scale: float = 0.1

    def evaluate(self, x, y):
        return jnp.exp(-self.scale * jnp.sum((x.obs - y.obs) ** 2)) * (0.5 + 0.5 * jnp.dot(x.action, y.action))


def test_a_kernel_of_ones_own_is_given_again(tmp_path):
    agent = KQL("MountainCar-v0", kernel=Own(0.2), horizon=STEPS, seed=0).learn(10)
    agent.save(tmp_path / "own.npz")
    with pytest.raises(archive.SavedFileError, match=r"Own\(scale=0.2\).*give it again, load\(path, kernel=...\)"):
        KQL.load(tmp_path / "own.npz")
    loaded = KQL.load(tmp_path / "own.npz", kernel=Own(0.2))
    np.testing.assert_array_equal(agent.q_values(OBS), loaded.q_values(OBS))


def test_sums_of_kernels_come_back(tmp_path):
    kernel = 0.5 * kqljax.RBF(eta=0.3) + 0.5 * kqljax.Linear()
    agent = KQL("MountainCar-v0", kernel=kernel, seed=0)
    agent.save(tmp_path / "sum.npz")
    assert KQL.load(tmp_path / "sum.npz").config.kernel == kernel


def altered(path, target, **changes):
    with np.load(path) as archive:
        arrays = dict(archive)
    about = json.loads(str(arrays["about"])) | changes
    np.savez(target, **arrays | {"about": np.array(json.dumps(about))})
    return target


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"version": 99}, "version 99 of the agent format, this kqljax reads version 1. Install a newer kqljax"),
        ({"version": 0}, "version 0 of the agent format, this kqljax reads version 1. Train again"),
        ({"kind": "sweep"}, "holds a 'sweep', expected a 'agent'"),
        ({"format": "other"}, "is not a file that kqljax saved"),
        ({"content": {"class": "System", "fields": {}}}, "damaged or not a file that kqljax saved"),
    ],
)
def test_other_versions_and_kinds(path, tmp_path, changes, words):
    with pytest.raises(archive.SavedFileError, match=words):
        KQL.load(altered(path, tmp_path / "other.npz", **changes))


def test_files_that_are_not_ours(path, tmp_path):
    (tmp_path / "text").write_text("not a zip")
    np.savez(tmp_path / "foreign.npz", weights=np.zeros(3))
    np.savez(tmp_path / "pickled.npz", about=np.array([{"format": "kqljax"}], object))
    (tmp_path / "cut.npz").write_bytes(path.read_bytes()[:-100])
    for name in ("text", "foreign.npz", "pickled.npz", "cut.npz"):
        with pytest.raises(archive.SavedFileError, match="not a file that kqljax saved"):
            KQL.load(tmp_path / name)
    with pytest.raises(archive.SavedFileError, match="cannot read"):
        KQL.load(tmp_path / "nothing.npz")


def test_files_are_written_whole_or_not_at_all(agent, path, tmp_path, monkeypatch):
    target = tmp_path / "agent.npz"
    target.write_bytes(path.read_bytes())
    monkeypatch.setattr(
        np, "savez_compressed", lambda file, **_: file.write(b"half") and (_ for _ in ()).throw(OSError("full"))
    )
    with pytest.raises(archive.SavedFileError, match="cannot write .*full"):
        agent.save(target)
    assert [each.name for each in tmp_path.iterdir()] == ["agent.npz"]
    same(agent, KQL.load(target))


def test_a_place_that_cannot_be_written(agent, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(archive.SavedFileError, match="cannot write"):
        agent.save(tmp_path / "file" / "agent.npz")
