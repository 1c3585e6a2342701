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

from kqljax.lab.grid import Group, Run, Sweep, Table
from kqljax.lab.settings import LabError
from kqljax.rounds import CPU_COMPILER_OPTIONS, Recipe
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


def train_and_evaluate(key: Array, task: Task, learner: Any, dtype: Any, sweep: Sweep) -> Outcome:
    """One run of a sweep."""
    train_key, eval_key = jax.random.split(key)
    curve: Any = {"eval_at": sweep.curve_steps, "eval_episodes": sweep.curve_episodes}
    run = train(train_key, task, learner, sweep.steps, dtype=dtype, **curve)
    returns = evaluate(eval_key, task, run, sweep.episodes)
    is_over = run.log.terminated | run.log.truncated
    count = jnp.sum(is_over, dtype=jnp.int32)
    total = jnp.sum(jnp.where(is_over, run.log.episode_return, 0.0))
    is_sound = run.is_sound & jnp.all(jnp.isfinite(returns))
    return Outcome(returns, run.curve, total / count, count, is_sound)


class Program(NamedTuple):
    """A compiled program for chunks of one size, its numbers, and the bytes a device needs."""

    compiled: Any
    table: Table
    bytes: int


@functools.lru_cache(maxsize=2)
def compile_group(group: Group, size: int) -> Program:
    """The program for `size` runs side by side."""
    cases = group.cases()
    tree, dtype = jax.tree.structure((cases[0].task, cases[0].learner)), cases[0].dtype

    def one(run: Array, table: Table) -> Outcome:
        task, learner = jax.tree.unflatten(tree, table.row(run[0]))
        return train_and_evaluate(jax.random.key(run[1]), task, learner, dtype, group.sweep)

    is_fast = isinstance(cases[0].learner, Recipe) and jax.default_backend() == "cpu"
    options = CPU_COMPILER_OPTIONS if is_fast else None
    program, table = jax.jit(across_seeds(one), compiler_options=options), Table.of(cases)
    compiled = program.lower(jnp.zeros((size, 2), jnp.int64), table).compile()
    memory = compiled.memory_analysis()  # None on backends that do not tell
    parts = ("temp_size_in_bytes", "argument_size_in_bytes", "output_size_in_bytes")
    return Program(compiled, table, sum(getattr(memory, part, 0) for part in parts))


def chunk_size(group: Group, at_most: int, memory: int | None) -> int:
    """Runs side by side: those whose compiled program fits into the memory of the devices here.

    On a CPU one run a device, which is faster one after the other, and each is a checkpoint. On
    accelerators as many as fit.

    Args:
      at_most: runs of a chunk, rounded up to the same number on every device.
      memory: bytes of a device, by default most of what it has.
    """
    with _ONE_AT_A_TIME, jax.enable_x64(True):
        devices = jax.local_devices()
        limit = memory or _device_memory(devices)
        runs = 1 if devices[0].platform == "cpu" else -(-at_most // len(devices))
        while (needed := compile_group(group, runs * len(devices)).bytes) > limit:
            if runs == 1:
                raise LabError(
                    f"one run of {group.sweep.steps} steps needs {needed / 1e6:.3g} MB, a device "
                    f"has {limit / 1e6:.3g} MB. Take features (--features nystrom), fewer --steps "
                    "or more --memory."
                )
            runs = max(1, min(runs - 1, int(0.95 * runs * limit / needed)))
        return runs * len(devices)


def run_chunk(group: Group, runs: Sequence[Run], size: int) -> dict[str, np.ndarray]:
    """The fields of `Outcome` for some runs of a group, `[len(runs), ...]`, and `seconds` a run."""
    with _ONE_AT_A_TIME, jax.enable_x64(True):
        program = compile_group(group, size)
        # One program for all chunks: the last one is filled up with its last run.
        padded = jnp.asarray([*runs, *[runs[-1]] * (size - len(runs))], jnp.int64)
        start = time.perf_counter()
        try:
            outcome = jax.block_until_ready(program.compiled(padded, program.table))
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            words = f"{size} runs side by side did not fit: {str(error).splitlines()[0]}"
            raise LabError(f"{words} Give --chunk or less --memory. Finished runs stay.") from None
        seconds = np.full(len(runs), (time.perf_counter() - start) / len(runs))
    found = {name: np.asarray(value)[: len(runs)] for name, value in outcome._asdict().items()}
    return found | {"seconds": seconds}


def _device_memory(devices: Sequence[Any]) -> int:
    """Most of what an accelerator has; on a CPU half of the machine's memory, shared out."""
    stats = devices[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(0.9 * stats["bytes_limit"])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (2 * len(devices))
