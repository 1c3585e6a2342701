"""One sweep a directory: a lock that the system itself takes back when its process ends, however it ends."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from kqljax.sweep.errors import SweepError

LOCK_FILE = ".lock"


@contextlib.contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Holds the directory while the block runs; raises SweepError where another process does."""
    try:
        import fcntl
    except ImportError:  # no Unix
        raise SweepError("sweeps lock their directory, which needs Linux or macOS.") from None
    # Opened for writing without cutting it off: who holds the lock has its name in there.
    handle = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(handle, 200).decode(errors="replace").strip() or "another process"
            raise SweepError(
                f"a sweep is running in {directory} ({holder}). Wait for it or end it, or give another --out."
            ) from error
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        os.close(handle)
