"""Sweeps in processes of their own, which tests may give other devices, and kill."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


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
