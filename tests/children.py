"""Sweeps in processes of their own, which tests may give other devices, and kill."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import kqljax
from kqljax.sweep import expand_grid
from kqljax.sweep.settings import make_cases

ROOT = Path(__file__).parent.parent
TOLERANCE = 1e-9
"""Of Q-tilde, whose range is 20: batches of another size are summed up in another order."""


def environment(cache, devices=1):
    """Variables for a child: so many virtual devices, one BLAS thread, and a cache so that only the first child compiles."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "1",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def start(arguments, cache, devices=1):
    """A child that runs `python ARGUMENTS`; its output is kept."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment(cache, devices), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )


def finish(child, seconds=240):
    """Exit code and output of a child; one that hangs is killed."""
    try:
        output, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        output, _ = child.communicate()
        output += f"\n[killed after {seconds} s]"
    return child.returncode, output


def assert_same_sweep(one, other, states=("states",)):
    """Two directories of `sharded_sweep.SWEEP`: the same returns, the same actions, and values within the tolerance."""
    rows, others = (json.loads((out / "results.json").read_text())["rows"] for out in (one, other))
    assert len(rows) == 16
    for row, twin in zip(rows, others, strict=True):
        assert (row["seed"], row["is_sound"]) == (twin["seed"], twin["is_sound"])
        assert row["return_mean"] == twin["return_mean"]
    (case,) = make_cases(expand_grid({"task": "MountainCar-v0"}), 40)
    for seed in range(16):
        name = f"setting-000-seed-{seed}.npz"
        path = next(path for each in states if (path := other / each / name).exists())
        mine, twin = (kqljax.load_state(each, case.cfg) for each in (one / "states" / name, path))
        np.testing.assert_array_equal(mine.posterior.pairs.action, twin.posterior.pairs.action)
        np.testing.assert_allclose(mine.q_tilde, twin.q_tilde, atol=TOLERANCE)
