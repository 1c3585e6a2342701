"""The paper's Table 1: what `kqljax table1` runs, and the page of the committed results.

python benchmarks/table1.py --seeds 30 --out results/table1    # the same as kqljax table1; see its --help
python benchmarks/table1.py --page    # the table of docs/results.md from results/*.json; its figures are drawn anew
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kqljax import cli
from kqljax.experiment import FIRST_REPORTING_SEED, summarise_document
from kqljax.report import plots, records
from kqljax.report.table import markdown_table

RESULTS = Path(__file__).parent / "results"


def joined(
    document: records.Document, beside: Sequence[str | os.PathLike[str]], times: Sequence[str | os.PathLike[str]]
) -> records.Document:
    """The document with further rows, and with other seconds of training.

    Args:
      beside: results files of algorithms that do not run in the library (sb3_dqn.py), made with the same steps and episodes.
      times: results files whose seconds stand in place of the document's. Times are comparable only if they were taken in one
        go on a machine with nothing else to do, which the many hours of a full table rarely are: `make times`.
    """
    settings = document["settings"]
    added = []
    for path in beside:
        for record in records.read(Path(path), {"results"})["results"]:
            for name in ("episodes", "steps"):
                if record[name] != settings[name]:
                    raise records.ResultsError(f"{path} has {record[name]} {name} a seed, this table {settings[name]}.")
            if record["seed"] < FIRST_REPORTING_SEED:
                raise records.ResultsError(f"{path} has seed {record['seed']}; reported ones begin at {FIRST_REPORTING_SEED}.")
            if record["algorithm"] in settings["algorithms"]:
                raise records.ResultsError(f"{path} has {record['algorithm']}, which is a row of this table already.")
            if record["task"] in settings["tasks"]:
                added.append({"evaluation_seconds": 0.0, "is_sound": True, **record})
    names = dict.fromkeys(record["algorithm"] for record in added)
    both = {
        **document,
        "settings": {**settings, "algorithms": [*settings["algorithms"], *names]},
        "results": [*document["results"], *added],
    }
    both["summary"] = summarise_document(both)
    seconds = defaultdict(list)
    for path in times:
        for record in records.read(Path(path), {"results"})["results"]:
            seconds[record["task"], record["algorithm"]].append(record["seconds"])
    for task, cells in both["summary"].items():
        for algorithm, cell in cells.items():
            if (task, algorithm) in seconds:
                cell["seconds_a_seed"] = float(np.mean(seconds[task, algorithm]))
    return both


def main(arguments: Sequence[str]) -> int:
    if list(arguments) != ["--page"]:
        return cli.main(["table1", *arguments])
    document = joined(
        records.read(RESULTS / "table1.json"),
        [RESULTS / "sb3_dqn.json"],
        [RESULTS / "times.json", RESULTS / "times_sb3.json"],
    )
    print(markdown_table(document))
    plots.save_figures(document, RESULTS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
