"""States in files: bit for bit, checked on reading, never half written."""

import dataclasses
import errno
import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kqljax
from kqljax.storage import StorageError

TASK = kqljax.make_task("MountainCar-v0")
KERNEL = kqljax.RBF(eta=0.02)
CONFIGS = {
    "exact": TASK.config(horizon=24),
    "features": TASK.config(KERNEL, horizon=24, features=kqljax.features.taylor(KERNEL, 2, 3, order=4)),
}


@functools.cache
def trained(name):
    cfg = CONFIGS[name]
    return cfg, jax.jit(lambda cfg, key: kqljax.train(TASK, cfg, key, stages=2).state)(cfg, jax.random.key(0))


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
    np.testing.assert_array_equal(kqljax.kql_act(cfg, back, obs)[1], kqljax.kql_act(cfg, state, obs)[1])


def test_a_batch_comes_back(tmp_path):
    cfg = CONFIGS["exact"]
    states = jax.jit(jax.vmap(lambda key: kqljax.train(TASK, cfg, key, stages=2).state))(jax.random.split(jax.random.key(0), 3))
    kqljax.save_state(tmp_path / "states.npz", cfg, states)
    assert_same(kqljax.load_state(tmp_path / "states.npz", cfg), states)


def test_every_cut_and_every_flipped_byte_is_noticed_or_harmless(saved, tmp_path):
    path, cfg, state = saved
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    other = tmp_path / "other.npz"
    for length in [0, 1, len(whole) - 1, *rng.integers(2, len(whole) - 1, 12)]:
        other.write_bytes(whole[:length])
        with pytest.raises(StorageError, match="other.npz cannot be read"):
            kqljax.load_state(other, cfg)
        assert other.read_bytes() == whole[:length]
    noticed = 0
    for place in rng.integers(0, len(whole), 40):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        other.write_bytes(damaged)
        try:
            back = kqljax.load_state(other, cfg)
        except StorageError:
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
        "pickled.npz": lambda path: np.savez(path, header=np.array([{"kind": "kqljax state"}], dtype=object)),
    }.items():
        write(tmp_path / name)
        with pytest.raises(StorageError, match=f"{name} cannot be read: it is damaged, cut short or not a file of kqljax"):
            kqljax.load_state(tmp_path / name, cfg)
    with pytest.raises(StorageError, match="absent.npz cannot be read"):
        kqljax.load_state(tmp_path / "absent.npz", cfg)


def test_another_config_is_refused_by_name(saved):
    path, cfg, _ = saved
    with pytest.raises(StorageError, match=r"kernel\.eta was 0\.02, the config here has 0\.5"):
        kqljax.load_state(path, dataclasses.replace(cfg, kernel=kqljax.RBF(eta=0.5)))
    with pytest.raises(StorageError, match="structure was"):
        kqljax.load_state(path, CONFIGS["features"])
    close = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), cfg)
    assert kqljax.load_state(path, close).capacity == 24


def test_a_full_disk_leaves_the_old_file(saved, monkeypatch, tmp_path):
    path, cfg, state = saved
    before = path.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        kqljax.save_state(path, cfg, state)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["state.npz"]


def test_inside_jit_it_says_so(saved, tmp_path):
    _, cfg, state = saved
    with pytest.raises(ValueError, match="call it outside jax.jit"):
        jax.jit(lambda state: kqljax.save_state(tmp_path / "x.npz", cfg, state))(state)
