"""Runs a sweep: chunk by chunk, segment by segment, and nothing is lost when it is ended in between."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from kqljax.io import save_state
from kqljax.report import records
from kqljax.sweep.directory import MANIFEST, Directory
from kqljax.sweep.errors import SweepError
from kqljax.sweep.groups import Group, Segment, chunk_size, make_groups, make_schedule, memory_a_run
from kqljax.sweep.hosts import OneProcess
from kqljax.sweep.lock import lock_directory
from kqljax.sweep.plan import Chunk, Sweep, make_chunks
from kqljax.sweep.results import make_curves, make_document, make_rows, write_results
from kqljax.sweep.segments import ROWS, Programs, RunCarry
from kqljax.sweep.settings import SettingError, make_cases
from kqljax.tasks import Task

CHECKPOINT_SECONDS = 60.0
"""Seconds between two checkpoints of a chunk, at least: what is lost at most when a sweep is ended."""


class Progress(NamedTuple):
    """How far a sweep is.

    Attributes:
      done, total: steps of all runs of this process; those of parts that were there already do not count.
      chunk, chunks: number of the chunk that is running, from 1, and how many this process has.
      step, steps: of its runs.
      going, runs: runs of the chunk whose numbers are all finite, and all of them.
      returns: mean return of episodes while learning so far, or None before the first ended.
    """

    done: int
    total: int
    chunk: int
    chunks: int
    step: int
    steps: int
    going: int
    runs: int
    returns: float | None


def run_sweep(
    sweep: Sweep,
    out: str | os.PathLike[str],
    *,
    memory: int | None = None,
    tasks: Mapping[str, Task] | None = None,
    hosts: OneProcess | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    say: Callable[[str], None] = lambda text: None,
    report: Callable[[Progress], None] = lambda progress: None,
) -> records.Document | None:
    """Runs what is not yet in the directory `out`, writes the results there and returns them.

    The same call again goes on where an interrupted one stopped, and ends with the same numbers, bit for bit, on the same
    devices and versions.

    Args:
      memory: bytes that a device may use, by default most of what it has.
      tasks: tasks of one's own, by the name that settings call them.
      hosts: the processes of the sweep, see `kqljax.sweep.hosts.connect`; by default this one alone.
      checkpoint_seconds: time between two checkpoints, at least.
      say: is given lines for the user.
      report: is called between segments.

    Returns:
      the document of results.json; None at all processes but the first.

    Raises:
      SweepError: what cannot be run, or a directory that is of something else.
    """
    sweep.validate()
    hosts = OneProcess() if hosts is None else hosts
    if not jax.config.jax_enable_x64 and any(s.get("dtype", "float64") == "float64" for s in sweep.settings):  # type: ignore[attr-defined]
        raise SweepError("states are in float64: jax.config.update('jax_enable_x64', True), or give settings dtype float32.")
    try:
        groups = make_groups(make_cases(sweep.settings, sweep.steps, tasks))
        top = records.prepare_directory(out)
        own = records.prepare_directory(_own_directory(top, hosts))
    except (SettingError, records.ResultsError) as error:
        raise SweepError(str(error)) from error
    with lock_directory(own):
        directory = Directory(own, sweep, (hosts.index, hosts.count))
        directory.open()
        for note in directory.notes:
            say(note)
        _Run(sweep, groups, directory, hosts, checkpoint_seconds, say, report).prepare(memory).work()
        document = _merge(sweep, groups, directory, hosts, top)
        hosts.finish()
        return document


def _own_directory(top: Path, hosts: OneProcess) -> Path:
    """Where this process keeps its files: the directory itself, or one of its own where there are several."""
    others = sorted(top.glob("process-*"))
    if hosts.count == 1:
        if others:
            raise SweepError(
                f"{top} is of a sweep of several processes ({', '.join(each.name for each in others)}). Start as many as "
                "before, or give another --out."
            )
        return top
    if (top / MANIFEST).exists():
        raise SweepError(f"{top} is of a sweep of one process, this one has {hosts.count}. Give another --out.")
    return top / f"process-{hosts.index}"


class _Run:
    """The work of one process."""

    def __init__(
        self,
        sweep: Sweep,
        groups: list[Group],
        directory: Directory,
        hosts: OneProcess,
        checkpoint_seconds: float,
        say: Callable[[str], None],
        report: Callable[[Progress], None],
    ) -> None:
        self.sweep, self.groups, self.directory, self.hosts = sweep, groups, directory, hosts
        self.checkpoint_seconds, self.say, self.report = checkpoint_seconds, say, report
        self.devices = jax.local_devices()
        self.schedules = [schedule_of(sweep, group, len(self.devices)) for group in groups]
        self.chunks: list[Chunk] = []
        self.done = self.total = 0

    def prepare(self, memory: int | None) -> _Run:
        """Settles the sizes of chunks: those of the manifest, or those that fit."""
        if memory is not None and self.hosts.count == 1 and not self.directory.has_work:
            # Nothing was made with the old sizes, which may have been too large.
            self.directory.sizes = None
        sizes = self.directory.sizes
        if sizes is None and self.hosts.index == 0:
            sizes = self._fitting_sizes(memory)
        agreed = self.hosts.agree("chunk_sizes", sizes)
        if self.directory.sizes is None:
            self.directory.begin(agreed)
        elif agreed != self.directory.sizes:
            raise SweepError(
                f"{self.directory.path} has chunks of {self.directory.sizes} runs, the first process {agreed}. They are of two "
                "sweeps: give another --out."
            )
        every = make_chunks(self.sweep, self.groups, agreed)
        self.chunks = [chunk for chunk in every if chunk.number % self.hosts.count == self.hosts.index]
        return self

    def _fitting_sizes(self, memory: int | None) -> list[int]:
        limit = device_memory(self.devices) if memory is None else memory
        sizes = []
        for group, schedule in zip(self.groups, self.schedules, strict=True):
            longest = max(segment.stop - segment.start for segment in schedule)
            need = memory_a_run(group, max(self.sweep.episodes, self.sweep.curve_episodes), longest)
            shared = len(self.devices) if self.sweep.shard == ROWS else 1
            fitting = int(limit * shared // need) * (len(self.devices) // shared)
            if not fitting:
                raise SweepError(
                    f"one run of {self.sweep.steps} steps needs about {in_bytes(need)}, a device has {in_bytes(limit)} for it. "
                    "Give --features auto, fewer --steps, --shard rows over several devices, or more --memory."
                )
            runs = len(group.settings) * self.sweep.seeds
            at_most = fitting if self.sweep.chunk is None else min(fitting, self.sweep.chunk)
            size = chunk_size(runs, at_most, 1 if self.sweep.shard == ROWS else len(self.devices), self.hosts.count)
            self.say(
                f"{_count(len(group.settings), 'setting')} of {group.case.task.name}, {_count(runs, 'run')}: about "
                f"{in_bytes(need)} a run, {in_bytes(limit)} a device, {_count(len(self.devices), 'device')}: "
                f"{_count(-(-runs // size), 'chunk')} of {size}"
            )
            sizes.append(size)
        return sizes

    def work(self) -> None:
        """Makes all parts of this process."""
        left = [chunk for chunk in self.chunks if self.directory.read_part(chunk) is None]
        self.total = sum(len(chunk.seeds) for chunk in left) * self.sweep.steps
        programs: dict[int, Programs] = {}
        for chunk in left:
            if chunk.group not in programs:
                # Programs of an earlier group are not needed again.
                programs = {chunk.group: self._programs(chunk)}
            try:
                self._run_chunk(chunk, programs[chunk.group])
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error):
                    raise
                raise SweepError(
                    f"{_count(chunk.size, 'run')} side by side did not fit into memory after all: {str(error).splitlines()[0]} "
                    "What was written before is intact. Give less --memory; where parts are done already, another --out too."
                ) from error

    def _programs(self, chunk: Chunk) -> Programs:
        devices = self.devices
        if self.sweep.shard != ROWS:
            # A sweep that goes on with another number of devices keeps its chunks, and uses as many as can share them.
            devices = devices[: max(n for n in range(1, len(devices) + 1) if chunk.size % n == 0)]
        return Programs(self.groups[chunk.group], self.sweep.shard, devices)

    def _run_chunk(self, chunk: Chunk, programs: Programs) -> None:
        group, schedule = self.groups[chunk.group], self.schedules[chunk.group]
        rows = group.rows(chunk.padded(chunk.places))
        seeds = np.asarray(chunk.padded(chunk.seeds), np.uint32)
        first, carry, curve = self._resume(chunk, programs, rows, seeds)
        self.done += (schedule[first - 1].stop if first else 0) * len(chunk.seeds)
        self._tell(chunk, carry, schedule[first - 1].stop if first else 0)
        written = time.monotonic()
        for number, segment in enumerate(schedule[first:], start=first):
            if segment.capacity > carry.run.state.capacity:
                carry = programs.grow(rows, carry, segment.capacity)
            if np.any(np.asarray(carry.health.is_going)):
                carry = programs.segment(rows, carry, segment)
            if self.sweep.curve_episodes:
                curve.append(programs.evaluate(rows, carry, self.sweep.curve_episodes, segment.stop))
            self.done += (segment.stop - segment.start) * len(chunk.seeds)
            self._tell(chunk, carry, segment.stop)
            is_last = number == len(schedule) - 1
            if not is_last and (time.monotonic() - written >= self.checkpoint_seconds or self.hosts.is_broken):
                self.directory.write_running(chunk, number + 1, carry, curve)
                written = time.monotonic()
            self.hosts.check()
        returns = programs.evaluate(rows, carry, self.sweep.episodes)
        count = len(chunk.seeds)
        if self.sweep.keep_states:
            self._keep_states(chunk, group, carry)
        part = {name: np.asarray(value)[:count] for name, value in carry.health._asdict().items()}
        part |= {"returns": returns[:count]}
        if self.sweep.curve_episodes:
            part["curve"] = np.stack(curve, axis=1)[:count]
        self.directory.write_part(chunk, part)

    def _resume(self, chunk: Chunk, programs: Programs, rows: Any, seeds: np.ndarray) -> tuple[int, RunCarry, list[np.ndarray]]:
        schedule = self.schedules[chunk.group]

        def template(done: int) -> Any:
            shape = (chunk.size, self.sweep.curve_episodes)
            curve = [jax.ShapeDtypeStruct(shape, np.float64)] * (done if self.sweep.curve_episodes else 0)
            if not 0 < done < len(schedule):
                path = self.directory.running_path(chunk)
                raise SweepError(f"{path} says {done} of {len(schedule)} segments are done. It was left as it is.")
            return {"carry": programs.template(rows, seeds, schedule[:done]), "curve": curve}

        found = self.directory.read_running(chunk, template)
        if found is None:
            return 0, programs.begin(rows, seeds, schedule[0].capacity), []
        done, carry, curve = found
        return done, programs.place(carry), curve

    def _keep_states(self, chunk: Chunk, group: Group, carry: RunCarry) -> None:
        directory = self.directory.path / "states"
        directory.mkdir(exist_ok=True)
        states = jax.tree.map(np.asarray, carry.run.state)
        for index, (place, seed) in enumerate(zip(chunk.places, chunk.seeds, strict=True)):
            # All runs share the next slot.
            state = jax.tree.map(lambda leaf, index=index: leaf if leaf.ndim == 0 else leaf[index], states)
            _, cfg = group.join(group.fixed, jax.tree.map(lambda leaf: leaf[0], group.rows([place])))
            path = directory / f"setting-{group.settings[place]:03d}-seed-{seed}.npz"
            self.directory.write(path, functools.partial(save_state, cfg=cfg, state=state))

    def _tell(self, chunk: Chunk, carry: RunCarry, step: int) -> None:
        count = len(chunk.seeds)
        health = jax.tree.map(lambda leaf: np.asarray(leaf)[:count], carry.health)
        episodes = int(health.episodes.sum())
        self.report(
            Progress(
                done=self.done,
                total=self.total,
                chunk=self.chunks.index(chunk) + 1,
                chunks=len(self.chunks),
                step=step,
                steps=self.sweep.steps,
                going=int(health.is_going.sum()),
                runs=count,
                returns=float(health.return_sum.sum() / episodes) if episodes else None,
            )
        )


def schedule_of(sweep: Sweep, group: Group, num_devices: int) -> list[Segment]:
    """Segments of a group's runs."""
    multiple = num_devices if sweep.shard == ROWS else 1
    return make_schedule(group.case, sweep.steps, sweep.num_stages, sweep.every, multiple)


def _merge(
    sweep: Sweep, groups: Sequence[Group], directory: Directory, hosts: OneProcess, top: Path
) -> records.Document | None:
    """Every process's rows to the first, which writes them."""
    rows: list[Any] = []
    curves: list[Any] = []
    for chunk in make_chunks(sweep, groups, directory.sizes or []):
        if chunk.number % hosts.count != hosts.index:
            continue
        part = directory.read_part(chunk)
        assert part is not None
        group = groups[chunk.group]
        rows += make_rows(sweep, group, chunk, part)
        curves += make_curves(sweep, group, chunk, part, schedule_of(sweep, group, len(jax.local_devices())))
    collected = hosts.collect({"rows": rows, "curves": curves})
    if collected is None:
        return None
    all_rows = [row for each in collected for row in each["rows"]]
    all_curves = [row for each in collected for row in each["curves"]]
    document = make_document(sweep, all_rows, all_curves)
    try:
        write_results(top, document)
    except OSError as error:
        raise SweepError(
            f"cannot write the results into {top}: {error.strerror or error}. All parts are there: free some space and give "
            "the same command again."
        ) from error
    return document


def device_memory(devices: Sequence[Any]) -> int:
    """Bytes of a device that a sweep may use: most of what an accelerator has, half of a machine's memory on CPU."""
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


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
