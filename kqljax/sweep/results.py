"""The results of a sweep: one tidy table, a row a seed and setting."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kqljax.io import replace_file
from kqljax.report import records
from kqljax.report.statistics import summarise
from kqljax.sweep.groups import Group, Segment
from kqljax.sweep.plan import Chunk, Sweep

RESULTS = "results"
KIND = "kqljax sweep results"
OWN_COLUMNS = (
    "seed", "return_mean", "return_std", "return_min", "return_max", "episodes", "steps", "training_return_mean",
    "training_episodes", "refused_steps", "largest_residual", "is_sound", "stopped_at",
)  # fmt: skip

Row = dict[str, Any]


def make_rows(sweep: Sweep, group: Group, chunk: Chunk, part: dict[str, np.ndarray]) -> list[Row]:
    """Rows of a chunk. A run whose numbers were not finite has no returns, and says at which step it stopped."""
    rows = []
    for index, (place, seed) in enumerate(zip(chunk.places, chunk.seeds, strict=True)):
        position = group.settings[place]
        returns = part["returns"][index]
        stopped_at = int(part["stopped_at"][index])
        # The policy of a sound run may still meet a value that is not a number: that is noticed after the last step.
        is_sound = stopped_at < 0 and bool(np.all(np.isfinite(returns)))
        finished = int(part["episodes"][index])
        rows.append(
            {
                "setting": position,
                **{name: sweep.settings[position].get(name) for name in sweep.names},
                "seed": seed,
                "return_mean": float(np.mean(returns)) if is_sound else None,
                "return_std": float(np.std(returns)) if is_sound else None,
                "return_min": float(np.min(returns)) if is_sound else None,
                "return_max": float(np.max(returns)) if is_sound else None,
                "episodes": sweep.episodes,
                "steps": sweep.steps,
                "training_return_mean": float(part["return_sum"][index] / finished) if finished else None,
                "training_episodes": finished,
                "refused_steps": int(part["refused"][index]),
                "largest_residual": float(part["residual"][index]),
                "is_sound": is_sound,
                "stopped_at": (stopped_at if stopped_at >= 0 else sweep.steps) if not is_sound else None,
            }
        )
    return rows


def make_curves(
    sweep: Sweep, group: Group, chunk: Chunk, part: dict[str, np.ndarray], schedule: Sequence[Segment]
) -> list[Row]:
    """Learning curves of a chunk, a row a run and visit of the host."""
    if not sweep.curve_episodes:
        return []
    curves = []
    for index, (place, seed) in enumerate(zip(chunk.places, chunk.seeds, strict=True)):
        for segment, returns in zip(schedule, part["curve"][index], strict=True):
            mean = float(np.mean(returns))
            curves.append(
                {
                    "setting": group.settings[place],
                    "seed": seed,
                    "step": segment.stop,
                    "return_mean": mean if np.isfinite(mean) else None,
                    "episodes": sweep.curve_episodes,
                }
            )
    return curves


def make_document(sweep: Sweep, rows: list[Row], curves: list[Row]) -> records.Document:
    """All that is known, in the order of settings and seeds."""
    rows = sorted(rows, key=lambda row: (row["setting"], row["seed"]))
    curves = sorted(curves, key=lambda row: (row["setting"], row["seed"], row["step"]))
    stopped = [{name: row[name] for name in ("setting", "seed", "stopped_at")} for row in rows if not row["is_sound"]]
    return {
        "kind": KIND,
        "sweep": sweep.as_json(),
        "swept": sweep.swept,
        "versions": records.versions(),
        "device": records.device(),
        "rows": rows,
        "curves": curves,
        "stopped": stopped,
        "summary": summarise_rows(sweep, rows),
    }


def summarise_rows(sweep: Sweep, rows: Sequence[Row]) -> list[Row]:
    """One row a setting: statistics over its sound seeds, and which seeds were stopped."""
    summary = []
    for position, setting in enumerate(sweep.settings):
        own = [row for row in rows if row["setting"] == position]
        sound = [row for row in own if row["is_sound"]]
        found = {"setting": position, "values": dict(setting), "stopped_seeds": [r["seed"] for r in own if not r["is_sound"]]}
        if sound:
            found |= summarise([row["return_mean"] for row in sound], [row["seed"] for row in sound])._asdict()
        else:
            found |= dict.fromkeys(("iqm", "mean", "median", "min", "max", "low", "high")) | {"num_seeds": 0}
        summary.append(found)
    return summary


def write_results(directory: Path, document: records.Document) -> list[Path]:
    """results.csv and results.json, curves.csv where there are curves, and a Parquet file where its libraries are there."""
    written = [directory / f"{RESULTS}.csv", directory / f"{RESULTS}.json"]
    columns = ["setting", *_setting_names(document), *OWN_COLUMNS]
    _write_csv(written[0], columns, document["rows"])
    records.write(written[1], document)
    if document["curves"]:
        written.append(directory / "curves.csv")
        _write_csv(written[-1], list(document["curves"][0]), document["curves"])
    if importlib.util.find_spec("pandas") and importlib.util.find_spec("pyarrow"):
        written.append(directory / f"{RESULTS}.parquet")
        _write_parquet(written[-1], columns, document["rows"])
    return written


def read_results(directory: Path) -> records.Document:
    """The document of a finished sweep."""
    path = directory / f"{RESULTS}.json"
    if not path.exists():
        hint = " The sweep there is not finished: give its command again." if (directory / "manifest.json").exists() else ""
        raise records.ResultsError(f"{directory} has no {RESULTS}.json.{hint}")
    document = records.read(path, {"kind", "sweep", "rows", "summary", "swept"})
    if document["kind"] != KIND:
        raise records.ResultsError(f"{path} holds {document['kind']!r}, expected {KIND!r}.")
    return document


def _setting_names(document: records.Document) -> list[str]:
    return list(dict.fromkeys(name for setting in document["sweep"]["settings"] for name in setting))


def _write_csv(path: Path, columns: list[str], rows: Sequence[Row]) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    replace_file(path, lambda file: file.write(text.getvalue().encode()))


def _write_parquet(path: Path, columns: list[str], rows: Sequence[Row]) -> None:
    import pandas as pd

    table = pd.DataFrame(rows, columns=columns).convert_dtypes()
    contents = table.to_parquet(index=False)
    assert contents is not None
    replace_file(path, lambda file: file.write(contents))
