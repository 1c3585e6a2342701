"""`kqljax report`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from kqljax import experiment
from kqljax.agent import KQL
from kqljax.commands.agents import add_file, errors_for_people
from kqljax.commands.base import UsageError
from kqljax.io import replace_file
from kqljax.report import records, style


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Makes one HTML page of results, with everything inside: it can be mailed, and opens without a network.\n"
        "Of a directory that kqljax table1 wrote: the table with intervals, figures, settings, how to reproduce it.\n"
        "Of an agent that kqljax train wrote: maps of value, spread and policy, an episode, its numbers."
    )
    parser.epilog = (
        "examples:\n  kqljax report results/                       # writes results/report.html\n"
        "  kqljax report car.npz --out car.html\n"
    )
    add = parser.add_argument
    add_file(parser, "source", metavar="DIR", help="directory of kqljax table1, or a file of kqljax train")
    add_file(parser, "--out", metavar="FILE", help="the page (default: report.html in DIR, or beside the agent)")
    add("--axes", metavar=("I", "J"), type=int, nargs=2, help="entries of the state for an agent's maps (default 0 1)")
    add("--json", action="store_true", help="print what was written as JSON")


def run(options: argparse.Namespace) -> int:
    source = Path(options.source)
    with errors_for_people():
        style.require_matplotlib()
        if source.is_dir():
            text, out = _of_table(source, options), source / "report.html"
        elif source.is_file():
            text, out = _of_agent(source, options), source.with_suffix(".html")
        else:
            raise UsageError(f"{source} is not there. Give a directory of kqljax table1, or an agent of kqljax train.")
    out = Path(options.out) if options.out else out
    try:
        replace_file(out, lambda file: file.write(text.encode()))
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror or error}. Give another --out.") from error
    if options.json:
        print(json.dumps({"file": str(out), "bytes": len(text.encode())}))
    else:
        print(f"wrote {out}, {len(text.encode()) / 1e6:.1f} MB")
    return 0


def _of_table(directory: Path, options: argparse.Namespace) -> str:
    from kqljax.report.table_page import make_table_page

    if options.axes:
        raise UsageError("--axes are of the maps of an agent; the page of a table has none: leave them out.")
    path = directory / experiment.RESULTS_FILE
    if not path.exists():
        raise UsageError(f"{directory} has no {experiment.RESULTS_FILE}: make one with kqljax table1 --out {directory}.")
    document = records.read(path, {"settings", "results", "curves", "compile_seconds"})
    # A run that was interrupted has results and no summary yet.
    document["summary"] = document.get("summary") or experiment.summarise_document(document)
    if not document["summary"]:
        raise UsageError(f"{path} holds no finished seed yet.")
    return make_table_page(document)


def _of_agent(path: Path, options: argparse.Namespace) -> str:
    from kqljax.report.agent_page import make_agent_page

    agent = KQL.load(path)
    if agent.env_name is None:
        raise UsageError(f"{path} does not say which environment it learned in; make its page from Python, kqljax.report.")
    if agent.num_timesteps == 0:
        raise UsageError(f"{path} has learned nothing yet.")
    return make_agent_page(agent, tuple(options.axes or (0, 1)))
