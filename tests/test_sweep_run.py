"""`kqljax sweep` as a user meets it: results, going on, refusals, damaged files, full disks, bad numbers."""

import csv
import dataclasses
import errno
import json
import os
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kqljax
from kqljax import cli
from kqljax.sweep import Sweep, SweepError, expand_grid, run_sweep
from kqljax.sweep.segments import Programs
from kqljax.sweep.settings import make_cases

GRID = ["--task", "CartPole-v0", "--eta", "0.02", "0.1"]
COMMAND = [
    "sweep", *GRID, "--seeds", "2", "--steps", "24", "--stages", "2", "--every", "6", "--episodes", "3",
    "--curve-episodes", "3", "--keep-states",
]  # fmt: skip


pytestmark = pytest.mark.usefixtures("compile_once")


class Stop(Exception):
    """Ends a sweep from inside, as a kill would."""


@pytest.fixture(scope="module")
def done(tmp_path_factory, compile_once):
    """A finished sweep; tests that change something work on a copy."""
    out = tmp_path_factory.mktemp("sweep") / "out"
    assert cli.main([*COMMAND, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, compile_once):
    """A sweep that was ended after three of four segments, past the first capacity."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Stop):
            cli.main([*COMMAND, "--checkpoint-seconds", "0", "--out", str(out)])
    assert (out / "running-0000.npz").exists()
    return out


def stop_after(patch, count):
    segment, calls = Programs.segment, []

    def counted(*arguments):
        if len(calls) == count:
            raise Stop
        calls.append(None)
        return segment(*arguments)

    patch.setattr(Programs, "segment", counted)


def copy(directory, tmp_path):
    return shutil.copytree(directory, tmp_path / "copy")


def again(out, *more):
    return cli.main([*COMMAND, "--checkpoint-seconds", "0", "--no-figures", "--out", str(out), *more])


# Results -------------------------------------------------------------------------------------------------------------


def test_one_tidy_table_three_times(done):
    with (done / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["setting"], row["eta"], row["seed"]) for row in rows] == [
        ("0", "0.02", "0"), ("0", "0.02", "1"), ("1", "0.1", "0"), ("1", "0.1", "1"),
    ]  # fmt: skip
    document = json.loads((done / "results.json").read_text())
    assert [float(row["return_mean"]) for row in rows] == [row["return_mean"] for row in document["rows"]]
    assert all(row["is_sound"] and row["episodes"] == 3 and row["steps"] == 24 for row in document["rows"])
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = pd.read_parquet(done / "results.parquet")
    assert list(table["return_mean"]) == [row["return_mean"] for row in document["rows"]]
    assert list(table.columns) == list(rows[0])


def test_every_run_is_the_run_of_train_and_evaluate(done):
    """A seed in a chunk, in segments, among other settings, is the seed alone."""
    cases = make_cases(expand_grid({"task": "CartPole-v0", "eta": [0.02, 0.1]}), 24)
    rows = json.loads((done / "results.json").read_text())["rows"]
    curves = json.loads((done / "results.json").read_text())["curves"]

    def alone(task, cfg, key, eval_key):
        run = kqljax.train(task, cfg, key, stages=2, eval_at=(6, 12, 18, 24), eval_episodes=3)
        return run.state, run.log, run.curve, kqljax.evaluate(task, cfg, run.state, eval_key, 3)

    alone = jax.jit(alone)
    for row in rows:
        task, cfg, _ = cases[row["setting"]]
        state, log, curve, returns = alone(task, cfg, *jax.random.split(jax.random.key(row["seed"])))
        kept = kqljax.load_state(done / "states" / f"setting-{row['setting']:03d}-seed-{row['seed']}.npz", cfg)
        np.testing.assert_array_equal(kept.posterior.pairs.action, state.posterior.pairs.action)
        np.testing.assert_allclose(kept.q_tilde, state.q_tilde, atol=1e-9)
        assert row["return_mean"] == float(np.mean(np.asarray(returns)))
        assert row["return_std"] == pytest.approx(float(returns.std()))
        assert row["training_episodes"] == int((log.terminated | log.truncated).sum()) > 0
        mine = [c["return_mean"] for c in curves if (c["setting"], c["seed"]) == (row["setting"], row["seed"])]
        np.testing.assert_allclose(mine, curve.mean(axis=1))


def test_show_prints_the_best_first_and_draws(done, tmp_path, capsys):
    out = copy(done, tmp_path)
    (out / "sweep.png").unlink()
    assert cli.main(["sweep", "show", str(out)]) == 0
    text = capsys.readouterr().out
    summary = json.loads((out / "results.json").read_text())["summary"]
    best, worst = sorted(summary, key=lambda cell: -cell["iqm"])
    for cell in (best, worst):
        assert f"{cell['iqm']:.1f} [{cell['low']:.1f}, {cell['high']:.1f}]" in text
    assert text.index(f"{best['values']['eta']:g} │") < text.index(f"{worst['values']['eta']:g} │")
    from matplotlib import image

    pixels = image.imread(out / "sweep.png")
    assert pixels.shape[0] > 300 and pixels.shape[1] > 600
    assert 0.002 < np.mean(pixels[..., :3].min(axis=-1) < 0.9) < 0.5
    assert cli.main(["sweep", "show", str(tmp_path)]) == 2
    assert "has no results.json" in capsys.readouterr().err


# Going on ------------------------------------------------------------------------------------------------------------


def test_going_on_ends_with_the_same_bits(done, stopped, tmp_path):
    out = copy(stopped, tmp_path)
    assert not (out / "results.json").exists()
    assert again(out) == 0
    for name in ("results.csv", "results.json", "curves.csv"):
        assert (out / name).read_bytes() == (done / name).read_bytes()
    assert not (out / "running-0000.npz").exists()


def test_a_finished_sweep_is_not_run_again(done, tmp_path, monkeypatch):
    out = copy(done, tmp_path)
    monkeypatch.setattr(Programs, "begin", lambda *_: pytest.fail("a finished part was run again"))
    assert again(out) == 0


@pytest.mark.parametrize(
    "more, words",
    [
        (["--steps", "30"], "steps was 24, this command has 30"),
        (["--eta", "0.5"], "settings was a list of 2, this command has a list of 3"),
        (["--gamma", "0.5"], "settings was {'task': 'CartPole-v0', 'eta': 0.02}, this command has"),
        (["--curve-episodes", "1"], "curve episodes was 3, this command has 1"),
    ],
)
def test_another_command_is_refused_by_name(done, more, words, capsys):
    before = {path.name: path.stat().st_mtime_ns for path in done.iterdir() if path.name != ".lock"}
    assert again(done, *more) == 2
    assert words in capsys.readouterr().err
    assert {path.name: path.stat().st_mtime_ns for path in done.iterdir() if path.name != ".lock"} == before


def test_other_versions_are_said_and_kept(done, stopped, tmp_path, capsys):
    out = copy(stopped, tmp_path)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["versions"]["jax"] = "0.0.1"
    (out / "manifest.json").write_text(json.dumps(manifest))
    assert again(out) == 0
    assert "this sweep began under other versions or devices (jax 0.0.1 -> " in capsys.readouterr().err
    assert json.loads((out / "manifest.json").read_text())["earlier"][0]["versions"]["jax"] == "0.0.1"


def test_a_second_sweep_is_refused_while_the_first_runs(stopped, tmp_path, capsys):
    out = copy(stopped, tmp_path)
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom kqljax.sweep.lock import lock_directory\n"
        "with lock_directory(Path(sys.argv[1])):\n    print('locked', flush=True)\n    time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(out)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "locked\n"
        assert again(out) == 2
        assert f"a sweep is running in {out} (process {holder.pid} on " in capsys.readouterr().err
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    # The lock of a dead process is no obstacle.
    assert again(out) == 0


# Damage --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["running-0000.npz", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign", "empty"])
def test_damaged_files_are_named_and_left(stopped, tmp_path, name, damage, capsys):
    out = copy(stopped, tmp_path)
    path = out / name
    whole = path.read_bytes()
    middle = len(whole) // 2
    damaged = {
        "cut": whole[:middle],
        "flipped": whole[:middle] + bytes(byte ^ 0xFF for byte in whole[middle : middle + 8]) + whole[middle + 8 :],
        "foreign": b'{"results": []}',
        "empty": b"",
    }[damage]
    path.write_bytes(damaged)
    assert again(out) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert "cannot be read" in error or "cannot read" in error or "not a results file" in error
    assert path.read_bytes() == damaged


def test_a_checkpoint_of_another_sweep_is_refused(stopped, tmp_path, capsys):
    out = copy(stopped, tmp_path)
    command = [*COMMAND, "--first-seed", "7", "--checkpoint-seconds", "0", "--out", str(tmp_path / "other")]
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(Stop):
            cli.main(command)
    shutil.copy(tmp_path / "other" / "running-0000.npz", out)
    before = (out / "running-0000.npz").read_bytes()
    assert again(out) == 2
    assert "running-0000.npz belongs to another sweep" in capsys.readouterr().err
    assert (out / "running-0000.npz").read_bytes() == before


def test_a_full_disk_leaves_the_last_checkpoint(done, stopped, tmp_path, monkeypatch, capsys):
    out = copy(stopped, tmp_path)
    before = (out / "running-0000.npz").read_bytes()
    sync = os.fsync

    def full(handle):
        if os.fstat(handle).st_size > 1000:  # a checkpoint or a part
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert again(out) == 2
    error = capsys.readouterr().err
    assert "No space left on device. What was written before is intact. Free some space" in error
    assert (out / "running-0000.npz").read_bytes() == before
    assert not list(out.glob(".*.npz.*"))
    assert again(out) == 0
    assert (out / "results.csv").read_bytes() == (done / "results.csv").read_bytes()


def test_too_little_memory_is_said_and_smaller_chunks_can_follow(tmp_path, monkeypatch, capsys):
    def exhausted(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 12345 bytes.")

    with monkeypatch.context() as patch:
        patch.setattr(Programs, "segment", exhausted)
        assert again(tmp_path) == 2
        error = capsys.readouterr().err
        assert "4 runs side by side did not fit into memory after all: RESOURCE_EXHAUSTED" in error
        assert "Give less --memory" in error
        patch.setattr(Programs, "segment", lambda *_: pytest.fail("reached"))
        with pytest.raises(pytest.fail.Exception):
            again(tmp_path, "--memory", "100kB")
    assert json.loads((tmp_path / "manifest.json").read_text())["chunk_sizes"] == [2]


# Health --------------------------------------------------------------------------------------------------------------


class Exploding:
    """CartPole whose position becomes infinite in the long run, in some episodes."""

    def __init__(self, env):
        self.env, self.name = env, "Exploding"

    def __getattr__(self, name):
        return getattr(self.env, name)

    def step(self, key, state, action, params):
        obs, after, *rest, info = self.env.step(key, state, action, params)
        explodes = (state.time == 5) & (params.gravity > 9.9)
        obs = jnp.where(explodes, jnp.nan, obs)
        return obs, after, *rest, {**info, "final_observation": jnp.where(explodes, jnp.nan, info["final_observation"])}


@pytest.fixture(scope="module")
def exploded(tmp_path_factory):
    """A sweep of two chunks, one of which explodes; with what it said and told."""
    plain = kqljax.make_task("CartPole-v0")
    tasks = {"Exploding": dataclasses.replace(plain, name="Exploding", env=Exploding(plain.env))}
    settings = expand_grid({"task": "Exploding", "params.gravity": [9.8, 10.0]})
    sweep = Sweep(settings=settings, seeds=2, steps=24, stages=1, every=12, episodes=3, keep_states=True, chunk=2)
    out, said, told = tmp_path_factory.mktemp("exploded"), [], []
    document = run_sweep(sweep, out, memory=10**8, tasks=tasks, say=said.append, report=told.append)
    return out, document, said, told, make_cases(settings, 24, tasks)


def test_a_run_that_is_not_finite_is_stopped_marked_and_named(exploded, capsys):
    out, document, _, _, cases = exploded
    sound, broken = document["rows"][:2], document["rows"][2:]
    assert all(row["is_sound"] and row["stopped_at"] is None and row["return_mean"] > 5 for row in sound)
    assert all(not row["is_sound"] and row["stopped_at"] == 5 and row["return_mean"] is None for row in broken)
    assert [(each["setting"], each["seed"]) for each in document["stopped"]] == [(1, 0), (1, 1)]
    assert [cell["num_seeds"] for cell in document["summary"]] == [2, 0]
    assert document["summary"][1]["iqm"] is None
    # Nothing was learned after the stop, and the others went on to the end.
    states = [kqljax.load_state(out / "states" / f"setting-00{i}-seed-0.npz", cases[i].cfg) for i in (0, 1)]
    assert [int(state.num_stored) for state in states] == [24, 5]
    assert cli.main(["sweep", "show", str(out), "--no-figures"]) == 0
    assert "stopped, numbers not finite: task=Exploding, params.gravity=10, seeds 0, 1" in capsys.readouterr().out


def test_the_choice_of_chunks_is_printed_and_progress_told(exploded):
    _, _, (line,), told, _ = exploded
    assert re.fullmatch(
        r"2 settings of Exploding, 4 runs: about [\d.]+ kB a run, 100 MB a device, 1 device: 2 chunks of 2", line
    )
    assert [(each.chunk, each.step, each.done, each.going) for each in told] == [
        (1, 0, 0, 2), (1, 12, 24, 2), (1, 24, 48, 2), (2, 0, 48, 2), (2, 12, 72, 0), (2, 24, 96, 0),
    ]  # fmt: skip
    assert all((each.total, each.chunks, each.runs, each.steps) == (96, 2, 2, 24) for each in told)
    assert told[2].returns > 5  # an episode of CartPole has ended


def test_one_broken_seed_leaves_the_others_of_its_chunk_alone(stopped, done, tmp_path):
    """A number in the checkpoint of one run is made NaN: that run stops, the others end with the bits that they had."""
    out = copy(stopped, tmp_path)
    path = out / "running-0000.npz"
    with np.load(path) as file:
        arrays = dict(file)
    arrays["['carry'].run.state.posterior.weights"][1] = np.nan
    np.savez(path, **arrays)
    assert again(out) == 0
    rows, whole = (json.loads((each / "results.json").read_text())["rows"] for each in (out, done))
    assert [row["is_sound"] for row in rows] == [True, False, True, True]
    assert rows[1]["stopped_at"] in (18, 19)
    assert [row for row in rows if row["is_sound"]] == [whole[0], *whole[2:]]
    summary = json.loads((out / "results.json").read_text())["summary"]
    assert (summary[0]["num_seeds"], summary[0]["stopped_seeds"], summary[0]["mean"]) == (1, [1], whole[0]["return_mean"])


def test_float64_must_be_enabled(tmp_path):
    with jax.enable_x64(False), pytest.raises(SweepError, match="states are in float64"):
        run_sweep(Sweep(settings=[{"task": "CartPole-v0"}], steps=10), tmp_path)
