"""The report of a `kqljax table1` run."""

from __future__ import annotations

import functools
from html import escape
from typing import Any

from kqljax.algorithms import ALGORITHMS
from kqljax.report import page, plots
from kqljax.report.records import Document
from kqljax.report.table import seeds_of

_SETTINGS = {
    "steps": "steps of training",
    "episodes": "evaluation episodes a seed",
    "first_seed": "first seed",
    "seeds": "seeds asked for",
    "tuning": "tuning seeds",
    "curve_points": "points of a learning curve",
    "curve_seeds": "seeds with a learning curve",
}


def make_table_page(document: Document) -> str:
    """The page of a results document with its summary."""
    settings, summary = document["settings"], document["summary"]
    tasks = [task for task in settings["tasks"] if task in summary]
    lead = (
        f"<p>{settings['steps']} environment steps of training, then {settings['episodes']} episodes without learning; "
        f"{seeds_of(document)} a cell, from {settings['first_seed']} on. Seeds are the unit: each seed's "
        "episodes are averaged first.</p>"
    )
    sections = [
        page.Section("table", "Table", _warnings(document, tasks) + _table(document, tasks)),
        page.Section("figures", "Figures", _figures(document)),
        page.Section("seeds", "Every seed", _seeds(document, tasks)),
        page.Section("settings", "Settings", _settings(document)),
        page.Section("reproduce", "How to reproduce", _reproduce(document)),
    ]
    return page.make_page("KQL: the paper's Table 1", lead, sections, document)


def _table(document: Document, tasks: list[str]) -> str:
    rows = []
    for algorithm in document["settings"]["algorithms"]:
        cells = [document["summary"][task].get(algorithm) for task in tasks]
        about = ALGORITHMS.get(algorithm, "made by another program")
        name = f"<b>{escape(algorithm)}</b>"
        rows.append([f'<span title="{escape(about)}">{name}</span>', *map(_cell, cells)])
    note = (
        '<p class="quiet">IQM, the mean of the middle half of the seeds, with its 95% bootstrap interval over seeds. Below: '
        "the worst and the best seed, what the paper reports (mean ± standard deviation over the episodes of one run), and "
        "seconds of training a seed, compilation apart.</p>"
    )
    hint = '<p class="narrow quiet">The table moves sideways.</p>' if len(tasks) > 1 else ""
    return hint + page.table(["", *map(escape, tasks)], rows) + note


def _cell(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return '<span class="quiet">not run</span>'
    lines = [
        f"<b>{cell['iqm']:.1f}</b> [{cell['low']:.1f}, {cell['high']:.1f}]",
        f"<small>{cell['min']:.0f} .. {cell['max']:.0f}</small>",
    ]
    if cell["paper_mean"] is not None:
        lines.append(f"<small>paper {cell['paper_mean']:.2f} ± {cell['paper_std']:.2f}</small>")
    lines.append(f"<small>{cell['seconds_a_seed']:.2f} s</small>")
    return "<br>".join(lines)


def _warnings(document: Document, tasks: list[str]) -> str:
    asked = document["settings"]["seeds"]
    words = []
    for task in tasks:
        for algorithm, cell in document["summary"][task].items():
            if cell["unsound_seeds"]:
                words.append(f"numerical trouble: {algorithm} on {task}, seeds {', '.join(map(str, cell['unsound_seeds']))}")
            if cell["num_seeds"] < asked and algorithm in ALGORITHMS:
                words.append(f"{algorithm} on {task}: {cell['num_seeds']} of {asked} seeds are done")
    missing = set(document["settings"]["tasks"]) - set(tasks)
    if missing:
        words.append(f"nothing yet of {', '.join(sorted(missing))}")
    return "".join(f'<p class="warning">{escape(each)}</p>' for each in words)


def _figures(document: Document) -> str:
    parts = [
        page.drawn(
            functools.partial(plots.draw_strip, document),
            "Mean return of every seed, by task and algorithm",
            "Every dot is a seed. The spread between seeds, not between episodes, says what to expect of a new run.",
            2,
        )
    ]
    if document["curves"]:
        parts.append(
            page.drawn(
                functools.partial(plots.draw_curves, document),
                "Learning curves by task, single seeds and their interquartile mean with an interval",
                "The policy of each moment, evaluated without learning: single seeds, their IQM and its 95% interval.",
                2,
            )
        )
    return "".join(parts)


def _seeds(document: Document, tasks: list[str]) -> str:
    rows = [
        [
            f"{escape(r['task'])}, {escape(r['algorithm'])}",
            str(r["seed"]),
            "none" if r["return_mean"] is None else f"{r['return_mean']:.2f} ± {r['return_std']:.2f}",
            f"{r['seconds']:.2f}",
        ]
        for r in document["results"]
        if r["task"] in tasks
    ]
    head = ["task, algorithm", "seed", "return, mean ± std of episodes", "seconds of training"]
    return f"<details><summary>{len(rows)} runs</summary>{page.table(head, rows)}</details>"


def _settings(document: Document) -> str:
    settings = document["settings"]
    rows = {words: settings[name] for name, words in _SETTINGS.items() if name in settings}
    rows |= {f"version of {name}": value for name, value in document.get("versions", {}).items()}
    rows |= {f"device: {name.replace('_', ' ')}": value for name, value in document.get("device", {}).items()}
    if "dtype" in document:
        rows["precision"] = document["dtype"]
    return page.pairs(rows)


def reproduce_command(settings: dict[str, Any]) -> str:
    """The command line that makes the same results."""
    own = [name for name in settings["algorithms"] if name in ALGORITHMS]
    words = [f"kqljax table1 --seeds {settings['seeds']} --first-seed {settings['first_seed']}"]
    words += ["--tuning"] if settings.get("tuning") else []
    words += [f"--steps {settings['steps']} --episodes {settings['episodes']}"]
    words += [f"--curve-points {settings['curve_points']} --curve-seeds {settings['curve_seeds']}"]
    words += [f"--algorithms {' '.join(own)}", f"--tasks {' '.join(settings['tasks'])}", "--out results"]
    return " \\\n  ".join(words)


def _reproduce(document: Document) -> str:
    versions, settings = document.get("versions", {}), document["settings"]
    steps = [f"pip install 'kqljax[plots]=={versions.get('kqljax', '')}' jax=={versions.get('jax', '')}"]
    if "commit" in versions:
        commit = versions["commit"]
        steps = [f"git checkout {commit.removesuffix('-dirty')}", f"pip install -e '.[plots]' jax=={versions.get('jax', '')}"]
    command = reproduce_command(settings)
    text = "\n".join([*steps, command, "kqljax report results"])
    note = "Seeds decide: on the same machine and versions the returns come out the same. Seconds do not."
    if str(versions.get("commit", "")).endswith("-dirty"):
        note += " The code had changes that were not committed."
    others = [name for name in settings["algorithms"] if name not in ALGORITHMS]
    if others:
        note += f" {', '.join(others)}: made by another program, see benchmarks/."
    return f"<pre><code>{escape(text)}</code></pre><p>{escape(note)}</p>"
