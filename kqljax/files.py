"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO


def replace_file(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Replaces a file in one move: whoever reads, also after a crash, finds the old file or the new one.

    Args:
      write: given the open file, writes the contents.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=temporary_prefix(path))
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files for the owner alone; results are as public as any other file.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def temporary_prefix(path: Path) -> str:
    """How the temporary names of a file begin; a killed process may leave one behind."""
    return f".{path.name}."


def _sync_directory(directory: Path) -> None:
    """The new name itself survives a loss of power only when the directory is flushed too."""
    try:
        handle = os.open(directory, os.O_RDONLY)
    except OSError:  # not every system opens directories
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
