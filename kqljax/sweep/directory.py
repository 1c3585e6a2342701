"""The directory of a sweep: a manifest, a checkpoint of the chunk that is running, and a part for each that is done.

manifest.json        schema, the sweep, sizes of its chunks, versions and devices, also of earlier starts
running-0003.npz     the runs of a chunk between two segments, and how far they are
part-0003.npz        what became of the runs of a chunk
states/              states at the end of runs, where they were asked for

All files are written whole or not at all. What cannot be read is left as it is, and said.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from kqljax import storage
from kqljax.report import records
from kqljax.sweep.errors import SweepError
from kqljax.sweep.plan import Chunk, Sweep, fingerprint
from kqljax.sweep.segments import ROWS

MANIFEST = "manifest.json"
MANIFEST_KIND, RUNNING_KIND, PART_KIND = "kqljax sweep", "kqljax sweep checkpoint", "kqljax sweep part"
SCHEMA = 1
_MANIFEST_PARTS = {"kind", "schema", "sweep", "chunk_sizes", "processes", "versions", "device", "earlier"}


class Directory:
    """Files of one process of a sweep. Whoever makes one holds the lock of the directory."""

    def __init__(self, path: Path, sweep: Sweep, processes: tuple[int, int]) -> None:
        self.path, self.sweep, self.processes = path, sweep, processes
        self.sizes: list[int] | None = None
        self._fingerprint = ""
        self.notes: list[str] = []
        self._sweep_up()

    def _sweep_up(self) -> None:
        """Removes temporary files that a killed process left: nobody else writes here."""
        for pattern in (".manifest.json.*", ".running-*.npz.*", ".part-*.npz.*"):
            for left in self.path.glob(pattern):
                left.unlink(missing_ok=True)

    def open(self) -> None:
        """Reads the manifest where there is one; raises SweepError where it is of something else."""
        path = self.path / MANIFEST
        if not path.exists():
            return
        try:
            stored = records.read(path, _MANIFEST_PARTS)
        except records.ResultsError as error:
            raise SweepError(str(error)) from error
        if (stored["kind"], stored["schema"]) != (MANIFEST_KIND, SCHEMA):
            raise SweepError(
                f"{path} holds {stored['kind']!r} of schema {stored['schema']}, expected {MANIFEST_KIND!r} of schema {SCHEMA}. "
                "Give another --out, or the version of kqljax that wrote it."
            )
        _check_same(path, stored["sweep"], self.sweep.as_json())
        if stored["processes"] != list(self.processes):
            raise SweepError(
                f"{path} is of process {stored['processes'][0]} of {stored['processes'][1]}, this is process "
                f"{self.processes[0]} of {self.processes[1]}. Start as many as before, or give another --out."
            )
        if self.sweep.shard == ROWS and stored["device"]["local_count"] != jax.local_device_count():
            raise SweepError(
                f"{path} spreads rows over {stored['device']['local_count']} devices, this process has "
                f"{jax.local_device_count()}. Give it as many as before, or another --out."
            )
        self.sizes = [int(size) for size in stored["chunk_sizes"]]
        self._go_on(stored)

    def _go_on(self, stored: records.Document) -> None:
        now = {"versions": records.versions(), "device": _device()}
        before = {name: stored[name] for name in now}
        self._fingerprint = fingerprint(self.sweep, self.sizes or [])
        if now == before:
            return
        changed = [
            f"{key} {before[name].get(key)} -> {now[name].get(key)}"
            for name in now
            for key in sorted({*before[name], *now[name]})
            if before[name].get(key) != now[name].get(key)
        ]
        self.notes.append(
            f"this sweep began under other versions or devices ({', '.join(changed)}): it goes on, but is not bit-identical "
            "to one in a single go."
        )
        self._write_manifest([*stored["earlier"], before])

    def begin(self, sizes: list[int]) -> None:
        """Writes the manifest of a new sweep."""
        self.sizes = sizes
        self._fingerprint = fingerprint(self.sweep, sizes)
        self._write_manifest([])

    def _write_manifest(self, earlier: list[Any]) -> None:
        document = {
            "kind": MANIFEST_KIND,
            "schema": SCHEMA,
            "sweep": self.sweep.as_json(),
            "chunk_sizes": self.sizes,
            "processes": list(self.processes),
            "versions": records.versions(),
            "device": _device(),
            "earlier": earlier,
        }
        self.write(self.path / MANIFEST, lambda path: records.write(path, document))

    @property
    def has_work(self) -> bool:
        """Whether anything was computed yet."""
        return any(self.path.glob("running-*.npz")) or any(self.path.glob("part-*.npz"))

    # Checkpoints -----------------------------------------------------------------------------------------------------

    def running_path(self, chunk: Chunk) -> Path:
        return self.path / f"running-{chunk.number:04d}.npz"

    def part_path(self, chunk: Chunk) -> Path:
        return self.path / f"part-{chunk.number:04d}.npz"

    def write_running(self, chunk: Chunk, segments_done: int, carry: Any, curve: list[np.ndarray]) -> None:
        """The runs of a chunk after some of its segments, with the learning curves so far."""
        header = {**self._header(chunk), "segments_done": segments_done}
        tree = {"carry": carry, "curve": curve}
        self.write(self.running_path(chunk), lambda path: storage.write_tree(path, RUNNING_KIND, header, tree))

    def read_running(self, chunk: Chunk, template: Callable[[int], Any]) -> tuple[int, Any, list[np.ndarray]] | None:
        """Segments done, runs and learning curves; None where the chunk has not begun.

        Args:
          template: segments done -> shapes of `{"carry": ..., "curve": ...}`.
        """
        path = self.running_path(chunk)
        if not path.exists():
            return None
        header, arrays = self._read(path, RUNNING_KIND, chunk)
        done = int(header["segments_done"])
        try:
            tree = storage.as_tree(path, header, arrays, template(done))
        except storage.StorageError as error:
            raise SweepError(str(error)) from error
        return done, tree["carry"], tree["curve"]

    def write_part(self, chunk: Chunk, part: dict[str, np.ndarray]) -> None:
        """What became of the runs of a chunk; its checkpoint is no longer needed then."""
        self.write(self.part_path(chunk), lambda path: storage.write_tree(path, PART_KIND, self._header(chunk), part))
        self.running_path(chunk).unlink(missing_ok=True)

    def read_part(self, chunk: Chunk) -> dict[str, np.ndarray] | None:
        path = self.part_path(chunk)
        if not path.exists():
            return None
        self.running_path(chunk).unlink(missing_ok=True)
        arrays = self._read(path, PART_KIND, chunk)[1]
        return {name.removeprefix("['").removesuffix("']"): array for name, array in arrays.items()}

    def _header(self, chunk: Chunk) -> dict[str, Any]:
        return {"sweep": self._fingerprint, "chunk": chunk.number}

    def _read(self, path: Path, kind: str, chunk: Chunk) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        try:
            header, arrays = storage.read_arrays(path, kind)
        except storage.StorageError as error:
            raise SweepError(str(error)) from error
        if (header.get("sweep"), header.get("chunk")) != (self._fingerprint, chunk.number):
            raise SweepError(
                f"{path} belongs to another sweep, or to another part of this one. It was left as it is; move it away to make "
                "this part anew."
            )
        return header, arrays

    def write(self, path: Path, write: Callable[[Path], None]) -> None:
        """Calls `write` with the path; a disk that is full or broken becomes a SweepError."""
        try:
            write(path)
        except OSError as error:
            hint = "Free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "Look after the disk"
            raise SweepError(
                f"cannot write {path}: {error.strerror or error}. What was written before is intact. {hint}, and give the same "
                "command again to go on."
            ) from error


def _device() -> dict[str, Any]:
    return {**records.device(), "local_count": jax.local_device_count()}


def _check_same(path: Path, stored: dict[str, Any], asked: dict[str, Any]) -> None:
    """Raises where another sweep was begun in this directory; the message names the difference."""
    for name in [*asked, *stored]:
        before, now = stored.get(name), asked.get(name)
        if before == now:
            continue
        if name == "settings" and isinstance(before, list) and isinstance(now, list):
            before, now = _first_difference(before, now)
        raise SweepError(
            f"{path} is of another sweep: {name.replace('_', ' ')} was {before}, this command has {now}. Give the same command "
            "to go on with it, or another --out."
        )


def _first_difference(before: list[Any], now: list[Any]) -> tuple[str, str]:
    for old, new in zip(before, now, strict=False):
        if old != new:
            return str(old), str(new)
    return f"a list of {len(before)}", f"a list of {len(now)}"
