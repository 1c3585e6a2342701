"""What a process does for a sweep: the compiled program of a group, and chunks of its runs."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kqljax import rounds
from kqljax.config import KQLConfig
from kqljax.lab.grid import Job, Run, stack
from kqljax.lab.settings import LabError
from kqljax.seeds import across_seeds
from kqljax.tasks import Task
from kqljax.training import evaluate, train

Array = jax.Array
_ONE_AT_A_TIME = threading.Lock()
"""A worker with several threads has one set of devices."""


class Outcome(NamedTuple):
    """What came of a run.

    Attributes:
      returns: `[episodes]` raw returns after training.
      curve: `[points, curve_episodes]` raw returns on the way.
      training_return: `[]` mean return of the episodes that ended while learning; NaN without any.
      training_episodes: `[]` int32, how many.
      is_sound: `[]` bool, every step was learned from, and every number was finite.
    """

    returns: Array
    curve: Array
    training_return: Array
    training_episodes: Array
    is_sound: Array


def _run_one(keys: Array, task: Task, learner: Any, job: Job, dtype: str) -> Outcome:
    """Trains and evaluates one run; `keys` `[2]`."""
    sweep = job.sweep
    run = train(
        keys[0],
        task,
        learner,
        sweep.steps,
        dtype=dtype if isinstance(learner, KQLConfig) else None,
        eval_at=sweep.curve_steps,
        eval_episodes=sweep.curve_episodes,
    )
    returns = evaluate(keys[1], task, run, sweep.episodes)
    is_over = run.log.terminated | run.log.truncated
    count = jnp.sum(is_over, dtype=jnp.int32)
    total = jnp.sum(jnp.where(is_over, run.log.episode_return, 0.0))
    is_sound = run.is_sound & jnp.all(jnp.isfinite(returns))
    return Outcome(returns, run.curve, total / count, count, is_sound)


class Program(NamedTuple):
    """A compiled program for chunks of `size` runs, its tables of numbers, and the bytes it needs on a device."""

    compiled: Any
    tables: tuple[Any, Any]
    bytes: int


@functools.lru_cache(maxsize=2)
def _program(job: Job, size: int) -> Program:
    stacked = stack(job.cases())

    def one(run: Array, fixed: Any, varying: Any) -> Outcome:
        task, learner = stacked.case(fixed, varying, run[0])
        return _run_one(jax.random.split(jax.random.key(run[1])), task, learner, job, stacked.dtype)

    is_rounds = any(setting.get("recipe", "default") == "default" for setting in job.sweep.settings)
    options = rounds.CPU_COMPILER_OPTIONS if is_rounds and jax.default_backend() == "cpu" else None
    tables = stacked.fixed, stacked.varying
    program = jax.jit(across_seeds(one), compiler_options=options)
    compiled = program.lower(jnp.zeros((size, 2), jnp.int64), *tables).compile()
    memory = compiled.memory_analysis()  # None on backends that do not tell
    parts = ("temp_size_in_bytes", "argument_size_in_bytes", "output_size_in_bytes")
    return Program(compiled, tables, sum(getattr(memory, part, 0) for part in parts))


def chunk_size(job: Job, at_most: int | None, memory: int | None) -> int:
    """Runs side by side: those whose compiled program fits into the memory of the devices here.

    One run a device on CPU, which is faster one after the other: a checkpoint after each of them. On
    accelerators as many as fit, but at most `at_most`.

    Args:
      memory: bytes of a device, by default most of what it has.
    """
    with _ONE_AT_A_TIME, jax.enable_x64(True):
        devices = jax.local_devices()
        limit = _device_memory(devices) if memory is None else memory
        runs = 1 if devices[0].platform == "cpu" else -(-(at_most or 2**30) // len(devices))
        while True:
            needed = _program(job, runs * len(devices)).bytes
            if needed <= limit:
                return runs * len(devices)
            if runs == 1:
                raise LabError(
                    f"one run of {job.sweep.steps} steps needs {in_bytes(needed)}, a device has {in_bytes(limit)} "
                    "for it. Give features (--features nystrom), fewer --steps or more --memory."
                )
            runs = max(1, min(runs - 1, int(0.95 * runs * limit / needed)))


def run_chunk(job: Job, runs: Sequence[Run], size: int) -> dict[str, np.ndarray]:
    """What came of some runs of a group, `[len(runs), ...]` by field of `Outcome`, and `seconds` a run."""
    with _ONE_AT_A_TIME, jax.enable_x64(True):
        program = _program(job, size)
        # One size for all chunks, so that one program makes them all: the last run fills up.
        padded = jnp.asarray([*runs, *[runs[-1]] * (size - len(runs))], jnp.int64)
        start = time.perf_counter()
        try:
            outcome = jax.block_until_ready(program.compiled(padded, *program.tables))
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            words = (
                f"{size} runs side by side did not fit into memory: {str(error).splitlines()[0]}"
            )
            raise LabError(
                f"{words} Give --chunk, or less --memory. Finished runs are kept."
            ) from None
        seconds = (time.perf_counter() - start) / len(runs)
    found = {name: np.asarray(value)[: len(runs)] for name, value in outcome._asdict().items()}
    return found | {"seconds": np.full(len(runs), seconds)}


def _device_memory(devices: Sequence[Any]) -> int:
    stats = devices[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(0.9 * stats["bytes_limit"])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (2 * len(devices))


def in_bytes(count: float) -> str:
    """A number of bytes in words."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
