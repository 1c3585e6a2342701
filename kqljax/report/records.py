"""The results file: one JSON document that grows as an experiment runs and can always be read.

settings   what was asked for
versions   of Python, jax and the others, and the commit; `earlier_versions` where a run went on under other ones
device, dtype
results    list of records: task, algorithm, seed, return_mean, return_std, episodes, seconds (training),
           evaluation_seconds, is_sound
curves     list of learning curves: task, algorithm, seed, steps, return_mean, return_std, episodes
compile_seconds   task -> algorithm -> seconds
summary    task -> algorithm -> statistics, filled when all results are in
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Mapping, Set
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from kqljax.io import replace_file

Document = dict[str, Any]


class ResultsError(ValueError):
    """A results file that cannot be read, written or continued; the message says what to do."""


def prepare_directory(out: str | os.PathLike[str]) -> Path:
    """Makes the directory and tries to write in it, so that a long run does not fail at its end."""
    directory = Path(out)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ResultsError(f"cannot write to {directory}: {error.strerror or error}. Give another --out.") from error
    return directory


def read(path: Path, parts: Set[str] = frozenset({"settings", "results"})) -> Document:
    """The document at `path`, which must have these parts."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ResultsError(f"cannot read {path}: {error}. Move it away or give another --out.") from error
    if not isinstance(document, dict) or not parts <= document.keys():
        raise ResultsError(f"{path} is not a results file of kqljax. Move it away or give another --out.")
    return document


def write(path: Path, document: Document) -> None:
    """Replaces the file in one move: a reader, or a run that goes on, finds the old document or the new one."""
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    replace_file(path, lambda file: file.write(text.encode()))


def check_same_settings(path: Path, stored: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raises where results of `asked` may not stand beside those of `stored`.

    Seeds, algorithms and tasks may be added; every other setting changes what a record means.
    """
    may_grow = {"algorithms", "tasks"}
    for name, value in asked.items():
        before = stored.get(name)
        if name in may_grow and set(before or []) <= set(value):
            continue
        if name == "seeds" and isinstance(before, int) and before <= value:
            continue
        if before != value:
            option = f"--{name.replace('_', '-')}"
            raise ResultsError(
                f"{path} was made with {option} {_words(before)}, this command has {option} {_words(value)}. "
                "Give the same settings to go on with it, or another --out."
            )


def _words(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def versions() -> dict[str, str]:
    """Of everything that can change a result."""
    import kqljax

    found = {"python": platform.python_version(), "kqljax": kqljax.__version__}
    for package in ("jax", "jaxlib", "numpy", "scipy", "gymnasium", "gymnax", "flax", "optax"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    commit = _commit(Path(kqljax.__file__).resolve().parent.parent)
    return found | ({"commit": commit} if commit else {})


def _commit(root: Path) -> str | None:
    """The commit of a source checkout; None for an installed package, which may lie inside another repository."""
    if not (root / ".git").exists():
        return None
    command = ["git", "--no-optional-locks", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def device() -> dict[str, Any]:
    """What the arrays live on."""
    first = jax.devices()[0]
    return {
        "platform": first.platform,
        "kind": first.device_kind,
        "count": jax.device_count(),
        "machine": platform.machine(),
        "cpu_cores": os.cpu_count(),
    }
