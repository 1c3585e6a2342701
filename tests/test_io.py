"""Files: what comes back is what was saved, bit for bit, or an error; never half written."""

import dataclasses
import errno
import functools
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kqljax
from kqljax import SavedFileError, io
from kqljax.training import EveryStep

TASK = kqljax.make_task("MountainCar-v0")
KERNEL = kqljax.RBF(eta=0.02)
CONFIGS = {
    "exact": TASK.config(horizon=24),
    "features": TASK.config(
        KERNEL, horizon=24, engine=kqljax.Weights(kqljax.features.taylor(KERNEL, 2, 3, order=4))
    ),
}


@functools.cache
def trained(name):
    cfg = CONFIGS[name]
    learner = EveryStep(cfg, 2)
    run = jax.jit(lambda learner, key: kqljax.train(key, TASK, learner, cfg.horizon).state)
    return cfg, run(learner, jax.random.key(0))


def assert_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    cfg, state = trained("exact")
    path = tmp_path_factory.mktemp("state") / "state.npz"
    kqljax.save_state(path, cfg, state)
    return path, cfg, state


@pytest.mark.parametrize("name", CONFIGS)
def test_a_state_comes_back_bit_for_bit_and_goes_on(name, tmp_path):
    cfg, state = trained(name)
    kqljax.save_state(tmp_path / "state.npz", cfg, state)
    back = kqljax.load_state(tmp_path / "state.npz", cfg)
    assert_same(back, state)
    obs = jnp.array([0.3, -0.1])
    np.testing.assert_array_equal(
        kqljax.kql_predict(cfg, back, obs), kqljax.kql_predict(cfg, state, obs)
    )


def test_a_batch_comes_back(tmp_path):
    cfg = CONFIGS["exact"]
    states = jax.jit(jax.vmap(lambda key: kqljax.train(key, TASK, EveryStep(cfg, 2), 24).state))(
        jax.random.split(jax.random.key(0), 3)
    )
    kqljax.save_state(tmp_path / "states.npz", cfg, states)
    assert_same(kqljax.load_state(tmp_path / "states.npz", cfg), states)


def test_a_policy_comes_back_and_acts_alike(tmp_path):
    rng = np.random.default_rng(0)
    obs, action = rng.uniform(-1, 1, (20, 2)), rng.integers(0, 3, 20)
    data = kqljax.rounds.Transitions.of(
        obs, action, obs[:, 0] > 0.5, obs + 0.1, np.zeros(20, bool), num_actions=3
    )
    policy = jax.jit(kqljax.rounds.fit)(None, kqljax.rounds.DEFAULT, data).policy
    kqljax.save_policy(tmp_path / "policy.npz", policy)
    back = kqljax.load_policy(tmp_path / "policy.npz")
    assert_same(back, policy)
    np.testing.assert_array_equal(back.values(obs).mean, policy.values(obs).mean)
    with (
        jax.enable_x64(False),
        pytest.raises(SavedFileError, match="holds float64, and jax computes in float32"),
    ):
        kqljax.load_policy(tmp_path / "policy.npz")
    with pytest.raises(TypeError, match=r"expected a policy with act\(key, memory, obs\)"):
        kqljax.save_policy(tmp_path / "policy.npz", data)


class Own(kqljax.Kernel):
    scale: float = 0.1

    def evaluate(self, x, y):
        return jnp.exp(-self.scale * jnp.sum((x.obs - y.obs) ** 2)) * (
            0.5 + 0.5 * jnp.dot(x.action, y.action)
        )


CONTENT = {
    "numbers": [1, 2.5, True, None, "text", float("inf"), np.float32(1.5)],
    "arrays": (
        np.arange(3),
        np.array(["a", "bc"]),
        np.zeros((0, 2), bool),
        jnp.ones(2, jnp.bfloat16) > 0,
    ),
    "key": jax.random.split(jax.random.key(3), 2),
    "kernel": 0.5 * kqljax.RBF(eta=0.3) + 0.5 * kqljax.Linear(),
    "own": Own(0.2),
    "nested": {"a": {"b": [(), {}]}},
}


@pytest.mark.parametrize("compress", [False, True])
def test_every_type_comes_back(tmp_path, compress):
    path = io.save(tmp_path / "new" / "all.npz", "all", CONTENT, compress=compress)
    back = io.load(path, "all", kernel=Own(0.2))
    assert back.keys() == CONTENT.keys()
    assert back["numbers"] == CONTENT["numbers"] and type(back["numbers"][2]) is bool
    assert_same(back["arrays"], tuple(np.asarray(each) for each in CONTENT["arrays"]))
    np.testing.assert_array_equal(
        jax.random.bits(back["key"][1]), jax.random.bits(CONTENT["key"][1])
    )
    assert (back["kernel"], back["own"], back["nested"]) == tuple(
        CONTENT[name] for name in ("kernel", "own", "nested")
    )
    with pytest.raises(
        SavedFileError,
        match=r"all.npz was saved with a kernel of its user's own, Own\(scale=0.2\) of",
    ):
        io.load(path, "all")


@pytest.mark.parametrize(
    "value", [np.array([{}], object), jnp.ones(2, jnp.bfloat16), {1: 2}, lambda: 0, TASK, {1}]
)
def test_what_a_file_cannot_hold_is_refused(value, tmp_path):
    with pytest.raises(TypeError, match="cannot save"):
        io.save(tmp_path / "x.npz", "all", {"value": [value]})
    assert not os.listdir(tmp_path)


@pytest.fixture(scope="module")
def members(saved):
    with np.load(saved[0]) as archive:
        return dict(archive)


def alter(path, members, **changes):
    about = json.loads(members["about"].tobytes()) | changes
    np.savez(path, **members | {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)})


@pytest.mark.parametrize(
    "changes, words",
    [
        (
            {"version": 99},
            "version 99 of the format, this kqljax reads version 1. Install a newer kqljax",
        ),
        ({"version": 0}, "version 0 of the format, this kqljax reads version 1. Make it again"),
        ({"kind": "agent"}, "holds a agent, expected a state"),
        ({"format": "other"}, "not a file that kqljax saved"),
        (
            {"content": {"class": ["os", "system"], "fields": {"command": "true"}}},
            "os.system is no class of kqljax",
        ),
        (
            {"content": {"class": ["kqljax.io", "Path"], "fields": {}}},
            "kqljax.io.Path is no class of kqljax",
        ),
        (
            {"content": {"class": ["kqljax.io", "io"], "fields": {}}},
            "kqljax.io.io is no class of kqljax",
        ),
        (
            {"content": {"class": ["kqljax.absent", "X"], "fields": {}}},
            "not a file that kqljax saved",
        ),
        ({"content": {"array": "absent"}}, "not a file that kqljax saved"),
        ({"content": {"unknown": 1}}, "not a file that kqljax saved"),
    ],
)
def test_other_versions_kinds_and_classes(saved, members, tmp_path, changes, words):
    alter(tmp_path / "other.npz", members, **changes)
    with pytest.raises(SavedFileError, match=words):
        kqljax.load_state(tmp_path / "other.npz", saved[1])


def test_every_cut_and_every_flipped_byte_is_noticed_or_harmless(saved, tmp_path):
    path, cfg, state = saved
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    other = tmp_path / "other.npz"
    for length in [0, 1, len(whole) - 1, *rng.integers(2, len(whole) - 1, 12)]:
        other.write_bytes(whole[:length])
        with pytest.raises(
            SavedFileError, match="other.npz is damaged, cut short or not a file that kqljax saved"
        ):
            kqljax.load_state(other, cfg)
        assert other.read_bytes() == whole[:length]
    # The compression method, in the header of the first member and in the directory at the end.
    method = bytearray(whole)
    for place in (8, whole.index(b"PK\x01\x02") + 10):
        method[place] = 99
    other.write_bytes(method)
    with pytest.raises(SavedFileError, match="damaged, cut short"):
        kqljax.load_state(other, cfg)
    noticed = 0
    for place in rng.integers(0, len(whole), 40):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        other.write_bytes(damaged)
        try:
            back = kqljax.load_state(other, cfg)
        except SavedFileError:
            noticed += 1
        else:
            assert_same(back, state)
        assert other.read_bytes() == damaged
    assert noticed > 30


def test_foreign_files_are_refused(saved, tmp_path):
    _, cfg, _ = saved
    for name, write in {
        "text.npz": lambda path: path.write_text("not a state"),
        "plain.npz": lambda path: np.savez(path, weights=np.zeros(3)),
        "pickled.npz": lambda path: np.savez(
            path, about=np.array([{"kind": "state"}], dtype=object)
        ),
    }.items():
        write(tmp_path / name)
        with pytest.raises(
            SavedFileError, match=f"{name} is damaged, cut short or not a file that kqljax saved"
        ):
            kqljax.load_state(tmp_path / name, cfg)
    with pytest.raises(SavedFileError, match="cannot read .*absent.npz: No such file"):
        kqljax.load_state(tmp_path / "absent.npz", cfg)


def test_another_config_is_refused_by_name(saved):
    path, cfg, _ = saved
    with pytest.raises(SavedFileError, match=r"kernel\.eta was 0\.02, the config here has 0\.5"):
        kqljax.load_state(path, dataclasses.replace(cfg, kernel=kqljax.RBF(eta=0.5)))
    with pytest.raises(SavedFileError, match="structure was"):
        kqljax.load_state(path, CONFIGS["features"])
    close = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), cfg)
    assert kqljax.load_state(path, close).capacity == 24


def test_a_full_disk_leaves_the_old_file(saved, monkeypatch, tmp_path):
    path, cfg, state = saved
    before = path.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SavedFileError, match="cannot write .*No space left"):
        kqljax.save_state(path, cfg, state)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["state.npz"]


def test_an_interruption_leaves_the_old_file(saved, monkeypatch):
    path, cfg, state = saved
    before = path.read_bytes()

    def interrupt(file, **_):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez_compressed", interrupt)
    with pytest.raises(KeyboardInterrupt):
        kqljax.save_state(path, cfg, state)
    assert path.read_bytes() == before and os.listdir(path.parent) == ["state.npz"]


def test_a_place_that_cannot_be_written(saved, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SavedFileError, match="cannot write"):
        kqljax.save_state(tmp_path / "file" / "state.npz", *saved[1:])


def test_inside_jit_it_says_so(saved, tmp_path):
    _, cfg, state = saved
    with pytest.raises(ValueError, match="save outside of jax.jit"):
        jax.jit(lambda state: kqljax.save_state(tmp_path / "x.npz", cfg, state))(state)
