"""Runs a sweep: chunks of runs go to an executor, and every chunk that is done is a file.

A run is known by its setting, its seed, steps and episodes. What the directory has is read first,
and only what is missing is run: after an interruption, or when more is asked for.
"""

from __future__ import annotations

import csv
import hashlib
import io as text_io
import os
import uuid
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import kqljax
from kqljax import io
from kqljax.lab.grid import Group, Run, Sweep, make_groups
from kqljax.lab.programs import chunk_size, run_chunk
from kqljax.lab.settings import LabError

KIND = "sweep chunk"
Row = dict[str, Any]
Work = list[tuple[Group, list[Run]]]
Done = Generator[tuple[Group, list[Run], dict[str, np.ndarray]]]
_NUMBERS: dict[str, Any] = {"mean": np.mean, "std": np.std, "min": np.min, "max": np.max}


class Results(NamedTuple):
    """A sweep that is done.

    Attributes:
      rows: a row a setting and seed: what results.csv has, and the `seconds` that the run took.
      curves: a row a setting, seed and point of the learning curve, as in curves.csv.
    """

    rows: list[Row]
    curves: list[Row]


def run_sweep(
    sweep: Sweep,
    out: str | os.PathLike[str],
    *,
    client: Any = None,
    memory: int | None = None,
    say: Callable[[str], None] = lambda text: None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Results:
    """Runs what the directory `out` does not have yet, writes results.csv and returns the results.

    The same call again goes on where an interrupted one stopped, and ends with the same numbers,
    bit for bit, on the same devices and versions.

    Args:
      client: a `distributed.Client`, whose workers run the chunks; by default this process does, on
        all its devices.
      memory: bytes that a device may use, by default most of what it has.
      say: is given lines for the user.
      report: is told how many of all runs are done.

    Raises:
      LabError: what cannot be run.
    """
    sweep.validate()
    chunks = Path(out) / "chunks"
    try:
        chunks.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"cannot write to {out}: {error.strerror}. Give another --out.") from error
    with jax.enable_x64(True):
        groups = make_groups(sweep, uuid.uuid4().hex)
    found = _read_chunks(chunks, say)
    work = [(group, [run for run in group.runs() if group.run_name(run) not in found])
            for group in groups]  # fmt: skip
    total = len(sweep.settings) * sweep.seeds
    done = total - sum(len(runs) for _, runs in work)
    if done:
        say(f"{done} of {total} runs are in {out} already")
    report(done, total)
    work = [(group, runs) for group, runs in work if runs]
    executor = _here(work, memory) if client is None else _on_cluster(client, work, memory)
    try:
        for group, runs, part in executor:
            found |= _write_chunk(chunks, group, runs, part)
            done += len(runs)
            report(done, total)
    finally:
        executor.close()
    results = _make_results(sweep, found)
    _write_csv(Path(out) / "results.csv", results.rows)
    if results.curves:
        _write_csv(Path(out) / "curves.csv", results.curves)
    return results


# Executors ---------------------------------------------------------------------------------------


def _chunks(runs: list[Run], size: int) -> list[list[Run]]:
    return [runs[start : start + size] for start in range(0, len(runs), size)]


def _at_most(group: Group, workers: int) -> int:
    """Runs a chunk, at least one chunk a worker.

    Of all runs, not of those that are left: a sweep that goes on has the same chunks.
    """
    share = -(-len(group.runs()) // workers)
    return min(share, group.sweep.chunk or share)


def _here(work: Work, memory: int | None) -> Done:
    """Chunks one after the other in this process, on all its devices."""
    for group, runs in work:
        size = chunk_size(group, _at_most(group, 1), memory)
        for chunk in _chunks(runs, size):
            yield group, chunk, run_chunk(group, chunk, size)


def _on_cluster(client: Any, work: Work, memory: int | None) -> Done:
    """Chunks on the workers of a Dask cluster; those of a worker that is lost go to another one."""
    from distributed import KilledWorker, as_completed

    workers = max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
    asked = [client.submit(chunk_size, group, _at_most(group, workers), memory, pure=False)
             for group, _ in work]  # fmt: skip
    chunks: dict[Any, tuple[Group, list[Run]]] = {}
    try:
        for (group, runs), size in zip(work, client.gather(asked), strict=True):
            for chunk in _chunks(runs, size):
                chunks[client.submit(run_chunk, group, chunk, size, pure=False)] = group, chunk
        for future in as_completed(chunks):
            yield *chunks[future], future.result()
    except KilledWorker as error:
        words = f"a chunk ended several workers, which may have run out of memory: {error}"
        raise LabError(f"{words} Give --chunk or less --memory. Finished runs stay.") from error
    except (CancelledError, OSError) as error:
        words = f"the Dask scheduler was lost ({type(error).__name__})"
        raise LabError(f"{words}. Finished runs stay: the same command goes on.") from error
    finally:
        client.cancel([*asked, *chunks])


# Checkpoints -------------------------------------------------------------------------------------


def _made_by() -> str:
    """Versions, which decide the last bits of a result."""
    return f"kqljax {kqljax.__version__}, jax {jax.__version__}, numpy {np.__version__}"


def _write_chunk(
    chunks: Path, group: Group, runs: Sequence[Run], part: dict[str, np.ndarray]
) -> dict[str, Row]:
    names = [group.run_name(run) for run in runs]
    settings = [group.sweep.settings[run.place] for run in runs]
    about = {"made_by": _made_by(), "settings": settings, "seeds": [run.seed for run in runs]}
    path = chunks / f"{hashlib.sha256(' '.join(names).encode()).hexdigest()[:20]}.npz"
    try:
        io.save(path, KIND, {**about, "names": names, "part": part})
    except io.SavedFileError as error:
        raise LabError(f"{error} Finished runs stay: the same command goes on.") from error
    return _by_name(names, part)


def _read_chunks(chunks: Path, say: Callable[[str], None]) -> dict[str, Row]:
    found: dict[str, Row] = {}
    others = set()
    for path in sorted(chunks.glob("*.npz")):
        try:
            content = io.load(path, KIND)
        except io.SavedFileError as error:
            say(f"{error} Its runs are made again.")
            continue
        others |= {content["made_by"]} - {_made_by()}
        found |= _by_name(content["names"], content["part"])
    for words in sorted(others):
        say(f"some runs in {chunks.parent} were made with {words}; they are kept")
    return found


def _by_name(names: Sequence[str], part: dict[str, np.ndarray]) -> dict[str, Row]:
    return {name: {key: part[key][i] for key in part} for i, name in enumerate(names)}


# Results -----------------------------------------------------------------------------------------


def _make_results(sweep: Sweep, found: dict[str, Row]) -> Results:
    """Tidy rows, setting by setting and seed by seed. A run with bad numbers has no returns."""
    results = Results([], [])
    for setting in sweep.settings:
        for seed in sweep.seed_list:
            run = found[sweep.run_name(setting, seed)]
            is_sound, ended = bool(run["is_sound"]), int(run["training_episodes"])
            own = {**{name: setting.get(name) for name in sweep.names}, "seed": seed}
            returns = {f"return_{name}": float(number(run["returns"])) if is_sound else None
                       for name, number in _NUMBERS.items()}  # fmt: skip
            training = float(run["training_return"]) if ended else None
            sizes = {"episodes": sweep.episodes, "steps": sweep.steps}
            learned = {"training_return": training, "training_episodes": ended}
            about = {"is_sound": is_sound, "seconds": float(run["seconds"])}
            results.rows.append({**own, **returns, **sizes, **learned, **about})
            for step, values in zip(sweep.curve_steps, run["curve"], strict=True):
                mean = float(np.mean(values)) if np.all(np.isfinite(values)) else None
                point = {"step": step, "return_mean": mean, "episodes": sweep.curve_episodes}
                results.curves.append({**own, **point})
    return results


def _write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Without the seconds: the file is the same however the runs were made."""
    text = text_io.StringIO(newline="")
    names = [name for name in rows[0] if name != "seconds"]
    writer = csv.DictWriter(text, names, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    try:
        io.replace_file(path, lambda file: file.write(text.getvalue().encode()))
    except OSError as error:
        words = f"cannot write {path}: {error.strerror or error}. All runs are kept"
        raise LabError(f"{words}: free some space and give the same command again.") from error
