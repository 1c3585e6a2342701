"""Results files: JSON documents that grow as a benchmark runs and can always be read."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Set
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

import kqljax
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
        reason = error.strerror or error
        raise ResultsError(f"cannot write to {directory}: {reason}. Give another --out.") from error
    return directory


def read(path: Path, parts: Set[str] = frozenset({"settings", "results"})) -> Document:
    """The document at `path`, which must have these parts."""
    remedy = "Move it away or give another --out."
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ResultsError(f"cannot read {path}: {error}. {remedy}") from error
    if not isinstance(document, dict) or not parts <= document.keys():
        raise ResultsError(f"{path} is not a results file of kqljax. {remedy}")
    return document


def write(path: Path, document: Document) -> None:
    """Replaces the file in one move: a reader finds the old document or the new one."""
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    replace_file(path, lambda file: file.write(text.encode()))


def versions() -> dict[str, str]:
    """Of everything that can change a result, and the commit of a source checkout."""
    found = {"python": platform.python_version(), "kqljax": kqljax.__version__}
    for package in ("jax", "jaxlib", "numpy", "scipy", "gymnasium", "gymnax", "flax", "optax"):
        found[package] = metadata.version(package)
    root = Path(__file__).resolve().parent.parent
    command = ["git", "--no-optional-locks", "-C", str(root), "describe", "--always", "--dirty"]
    command += ["--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return found
    return found | {"commit": done.stdout.strip()}


def device() -> dict[str, Any]:
    """The device that the arrays live on."""
    first = jax.devices()[0]
    return {
        "platform": first.platform,
        "kind": first.device_kind,
        "count": jax.device_count(),
        "machine": platform.machine(),
        "cpu_cores": os.cpu_count(),
    }
