"""Results of other programs and of other runs beside a table: further rows, and times taken in one go."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kqljax.experiment import FIRST_REPORTING_SEED, summarise_document
from kqljax.report import records


def place_beside(document: records.Document, path: str | os.PathLike[str]) -> records.Document:
    """The document with the records of another results file as further rows, for the table and the figures.

    For algorithms that do not run here, such as the DQN of Stable-Baselines3 (benchmarks/sb3_dqn.py). The other file must
    have been made with the same steps and episodes; its records of tasks that are not in the table are left out.
    """
    settings = document["settings"]
    other = records.read(Path(path), {"results"})
    added = []
    for number, record in enumerate(other["results"]):
        missing = {"task", "algorithm", "seed", "return_mean", "return_std", "episodes", "steps", "seconds"} - set(record)
        if missing:
            raise records.ResultsError(f"{path}: record {number} has no {', '.join(sorted(missing))}.")
        for name, asked in (("episodes", settings["episodes"]), ("steps", settings["steps"])):
            if record[name] != asked:
                raise records.ResultsError(f"{path} has {record[name]} {name} a seed, this table {asked}. Make it anew.")
        if record["task"] not in settings["tasks"]:
            continue
        if not settings["tuning"] and record["seed"] < FIRST_REPORTING_SEED:
            raise records.ResultsError(f"{path} has seed {record['seed']}; reported seeds begin at {FIRST_REPORTING_SEED}.")
        if record["algorithm"] in settings["algorithms"]:
            raise records.ResultsError(f"{path} has records of {record['algorithm']}, which is a row of this table already.")
        added.append({"evaluation_seconds": 0.0, "is_sound": True, **record})
    names = dict.fromkeys(record["algorithm"] for record in added)
    both = {
        **document,
        "settings": {**settings, "algorithms": [*settings["algorithms"], *names]},
        "results": [*document["results"], *added],
    }
    both["summary"] = summarise_document(both)
    return both


def take_times(document: records.Document, paths: Sequence[str | os.PathLike[str]]) -> records.Document:
    """The document with the seconds of training of other results files in place of its own.

    Times are comparable only if they were taken in one go on a machine with nothing else to do, which the many hours of a
    full table rarely are: `make times` trains one seed of everything, one after another.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for path in paths:
        for number, record in enumerate(records.read(Path(path), {"results"})["results"]):
            missing = {"task", "algorithm", "seconds"} - set(record)
            if missing:
                raise records.ResultsError(f"{path}: record {number} has no {', '.join(sorted(missing))}.")
            found[record["task"], record["algorithm"]].append(record["seconds"])
    summary = {
        task: {
            algorithm: {**cell, "seconds_a_seed": float(np.mean(found.get((task, algorithm), [cell["seconds_a_seed"]])))}
            for algorithm, cell in cells.items()
        }
        for task, cells in document["summary"].items()
    }
    return {**document, "summary": summary}
