"""Runs a sweep: chunks of runs go to an executor, and every chunk that is done is a file.

A run is known by its setting, its seed and the sizes of the sweep. What a directory has is read first,
and only what is missing is run: after an interruption, after more seeds or settings were asked for.
"""

from __future__ import annotations

import csv
import hashlib
import io as text_io
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import kqljax
from kqljax import io
from kqljax.lab.grid import Job, Run, Sweep, make_jobs
from kqljax.lab.programs import chunk_size, run_chunk
from kqljax.lab.settings import LabError

KIND = "sweep chunk"
Row = dict[str, Any]
Work = tuple[Job, list[Run]]
Done = Iterator[tuple[Job, Sequence[Run], dict[str, np.ndarray]]]


class Results(NamedTuple):
    """A sweep that is done.

    Attributes:
      rows: a row a setting and seed, as in results.csv, and with the `seconds` that the run took.
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
    """Runs what the directory `out` does not have yet, writes results.csv there and returns the results.

    The same call again goes on where an interrupted one stopped, and ends with the same numbers, bit for
    bit, on the same devices and versions.

    Args:
      client: a `distributed.Client`; its workers run the chunks. By default this process does, on all
        its devices.
      memory: bytes that a device may use, by default most of what it has.
      say: is given lines for the user.
      report: is told how many of all runs are done.

    Raises:
      LabError: what cannot be run.
    """
    sweep.validate()
    with jax.enable_x64(True):
        jobs = make_jobs(sweep, uuid.uuid4().hex)
    chunks = Path(out) / "chunks"
    try:
        chunks.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(
            f"cannot write to {out}: {error.strerror or error}. Give another --out."
        ) from error
    found = _read_chunks(chunks, say)
    work: list[Work] = [
        (job, [run for run in job.all_runs() if _name(job, run) not in found]) for job in jobs
    ]
    total, done = sum(len(job.all_runs()) for job in jobs), sum(len(job.all_runs()) for job in jobs)
    done -= sum(len(runs) for _, runs in work)
    if done:
        say(f"{done} of {total} runs are in {out} already")
    report(done, total)
    work = [(job, runs) for job, runs in work if runs]
    executor = _here(work, memory) if client is None else _on_cluster(client, work, memory)
    try:
        for job, runs, part in executor:
            found |= _write_chunk(chunks, job, runs, part)
            done += len(runs)
            report(done, total)
    finally:
        executor.close()  # type: ignore[attr-defined]
    results = _make_results(sweep, found)
    _write_csv(
        Path(out) / "results.csv",
        [{**row, "seconds": None} for row in results.rows],
        drop="seconds",
    )
    if results.curves:
        _write_csv(Path(out) / "curves.csv", results.curves)
    return results


# Executors -------------------------------------------------------------------------------------------


def _chunks(runs: Sequence[Run], size: int) -> list[Sequence[Run]]:
    return [runs[start : start + size] for start in range(0, len(runs), size)]


def _at_most(job: Job, workers: int) -> int:
    """Runs a chunk such that every worker gets one. Of all runs, so that a sweep that goes on has the same."""
    share = -(-len(job.all_runs()) // workers)
    return share if job.sweep.chunk is None else min(share, job.sweep.chunk)


def _here(work: Sequence[Work], memory: int | None) -> Done:
    """Chunks one after the other in this process, on all its devices."""
    for job, runs in work:
        size = chunk_size(job, _at_most(job, 1), memory)
        for chunk in _chunks(runs, size):
            yield job, chunk, run_chunk(job, chunk, size)


def _on_cluster(client: Any, work: Sequence[Work], memory: int | None) -> Done:
    """Chunks on the workers of a Dask cluster; those of a worker that is lost go to another one."""
    from distributed import KilledWorker, as_completed

    workers = max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
    futures: dict[Any, Any] = {}
    try:
        asked = [
            client.submit(chunk_size, job, _at_most(job, workers), memory, pure=False)
            for job, _ in work
        ]
        futures |= dict.fromkeys(asked)
        sizes = client.gather(asked)
        for (job, runs), size in zip(work, sizes, strict=True):
            for chunk in _chunks(runs, size):
                futures[client.submit(run_chunk, job, chunk, size, pure=False)] = job, chunk
        for future in as_completed([future for future, chunk in futures.items() if chunk]):
            yield *futures[future], future.result()
    except KilledWorker as error:
        raise LabError(
            f"a chunk ended several workers, which may have run out of memory: {error} Give a smaller --chunk "
            "or less --memory. Finished runs are kept."
        ) from error
    finally:
        client.cancel(list(futures))


# Checkpoints -----------------------------------------------------------------------------------------


def _name(job: Job, run: Run) -> str:
    return job.sweep.run_name(job.sweep.settings[run.place], run.seed)


def _made_by() -> dict[str, str]:
    """Versions and device, which decide the last bits of a result."""
    return {"kqljax": kqljax.__version__, "jax": jax.__version__, "numpy": np.__version__}


def _write_chunk(
    chunks: Path, job: Job, runs: Sequence[Run], part: dict[str, np.ndarray]
) -> dict[str, Row]:
    names = [_name(job, run) for run in runs]
    name = hashlib.sha256("".join(names).encode()).hexdigest()[:20]
    settings = [job.sweep.settings[run.place] for run in runs]
    content = {
        "made_by": _made_by(),
        "runs": names,
        "settings": settings,
        "seeds": [run.seed for run in runs],
    }
    io.save(chunks / f"{name}.npz", KIND, {**content, **part})
    return _by_run(names, part)


def _read_chunks(chunks: Path, say: Callable[[str], None]) -> dict[str, Row]:
    found: dict[str, Row] = {}
    others: set[str] = set()
    for path in sorted(chunks.glob("*.npz")):
        try:
            content = io.load(path, KIND)
        except io.SavedFileError as error:
            say(f"{error} Its runs are made again.")
            continue
        made_by = content.pop("made_by")
        if made_by != _made_by():
            others.add(", ".join(f"{name} {version}" for name, version in made_by.items()))
        found |= _by_run(
            content.pop("runs"),
            {key: content[key] for key in content if key not in ("settings", "seeds")},
        )
    for words in sorted(others):
        say(f"some runs in {chunks.parent} were made with {words}; they are kept")
    return found


def _by_run(names: Sequence[str], part: dict[str, np.ndarray]) -> dict[str, Row]:
    return {
        name: {key: value[index] for key, value in part.items()} for index, name in enumerate(names)
    }


# Results ---------------------------------------------------------------------------------------------


def _make_results(sweep: Sweep, found: dict[str, Row]) -> Results:
    """Tidy rows, setting by setting and seed by seed. A run with bad numbers has no returns."""
    results = Results([], [])
    for setting in sweep.settings:
        for seed in sweep.seed_list:
            run = found[sweep.run_name(setting, seed)]
            is_sound, returns, ended = (
                bool(run["is_sound"]),
                run["returns"],
                int(run["training_episodes"]),
            )
            own = {**{name: setting.get(name) for name in sweep.names}, "seed": seed}
            numbers = {"mean": np.mean, "std": np.std, "min": np.min, "max": np.max}
            results.rows.append(
                {
                    **own,
                    **{
                        f"return_{name}": float(f(returns)) if is_sound else None
                        for name, f in numbers.items()
                    },
                    "episodes": sweep.episodes,
                    "steps": sweep.steps,
                    "training_return": float(run["training_return"]) if ended else None,
                    "training_episodes": ended,
                    "is_sound": is_sound,
                    "seconds": float(run["seconds"]),
                }
            )
            # A learner with a loop of its own has no curve.
            for step, values in zip(sweep.curve_steps, run["curve"], strict=False):
                mean = float(np.mean(values)) if np.all(np.isfinite(values)) else None
                results.curves.append(
                    {**own, "step": step, "return_mean": mean, "episodes": sweep.curve_episodes}
                )
    return results


def _write_csv(path: Path, rows: Sequence[Row], drop: str = "") -> None:
    text = text_io.StringIO(newline="")
    columns = [name for name in rows[0] if name != drop]
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    try:
        io.replace_file(path, lambda file: file.write(text.getvalue().encode()))
    except OSError as error:
        words = (
            f"cannot write {path}: {error.strerror or error}. All runs are kept: free some space"
        )
        raise LabError(f"{words} and give the same command again.") from error
