"""Several processes of one sweep, on one host or many, through jax.distributed.

Each process runs chunks of its own on its own devices and keeps files of its own, so that no common file system is needed; the
first collects the results. What they tell each other is little and goes through the store of jax's coordination service: the
sizes of chunks at the start, signs of life, and rows of the result at the end. No collectives: a process that dies is missed by
the others, who say which one it was, instead of waiting for it for ever.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax

from kqljax.sweep.errors import SweepError

PATIENCE = 60.0
"""Seconds without a sign of life after which a process counts as lost."""

_PIECE = 500_000  # characters a message: gRPC refuses messages of some megabytes


class OneProcess:
    """A sweep of one process: nobody to tell, nobody to wait for."""

    index, count = 0, 1

    @property
    def is_broken(self) -> bool:
        """Whether a process was lost."""
        return False

    def check(self) -> None:
        """Raises SweepError where a process was lost."""

    def agree(self, name: str, value: Any) -> Any:
        """The first process's value."""
        return value

    def collect(self, value: Any) -> list[Any] | None:
        """Values of all processes at the first, None at the others; returns when all have theirs."""
        return [value]

    def finish(self) -> None:
        """After the results were written: lets all go."""


class ManyProcesses(OneProcess):
    """One of several processes; jax.distributed is initialised.

    Args:
      patience: seconds without a sign of life after which another process counts as lost.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        # The store of the coordination service has no public name in jax; this is the only place that knows it.
        from jax._src import distributed

        self._store: Any = distributed.global_state.client
        self.index, self.count = jax.process_index(), jax.process_count()
        self._patience = patience
        self._lost: dict[int, float] = {}
        self._has_ended = threading.Event()
        self._put("who", self.index, f"process {os.getpid()} on {socket.gethostname()}")
        self._thread = threading.Thread(target=self._watch, name="kqljax-signs-of-life", daemon=True)
        self._thread.start()

    @property
    def is_broken(self) -> bool:
        return bool(self._lost)

    def check(self) -> None:
        if self._lost:
            who = self._everyone("who")
            words = ", ".join(
                f"process {index} of {self.count} ({who.get(index, 'never heard of')}), silent for {seconds:.0f} s"
                for index, seconds in sorted(self._lost.items())
            )
            raise SweepError(
                f"lost {words}. The checkpoints of all processes are intact: start the same command on all hosts again to go "
                "on."
            )

    def agree(self, name: str, value: Any) -> Any:
        if self.index == 0:
            self._put(name, 0, json.dumps(value))
            return value
        return json.loads(self._wait(name, {0})[0])

    def collect(self, value: Any) -> list[Any] | None:
        text = json.dumps(value)
        pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
        for number, piece in enumerate(pieces):
            self._put(f"value-{number}", self.index, piece)
        self._put("done", self.index, str(len(pieces)))
        if self.index > 0:
            return None
        counts = self._wait("done", set(range(self.count)))
        texts = [
            "".join(self._everyone(f"value-{number}")[index] for number in range(int(counts[index])))
            for index in range(self.count)
        ]
        return [json.loads(text) for text in texts]

    def finish(self) -> None:
        if self.index == 0:
            self._put("written", 0, "yes")
            # The store lives in this process: it must not go before the others have let go of it.
            self._wait("left", set(range(1, self.count)))
            time.sleep(0.5)
        else:
            self._wait("written", {0})
            self._put("left", self.index, "yes")

    def close(self) -> None:
        """Ends the signs of life."""
        self._has_ended.set()
        self._thread.join()

    # The store -------------------------------------------------------------------------------------------------------

    def _put(self, name: str, index: int, value: str) -> None:
        self._store.key_value_set(f"kqljax/{name}/{index}", value, allow_overwrite=True)

    def _everyone(self, name: str) -> dict[int, str]:
        found = self._store.key_value_dir_get(f"kqljax/{name}/")
        return {int(key.rsplit("/", 1)[1]): value for key, value in found}

    def _wait(self, name: str, wanted: set[int]) -> dict[int, str]:
        """Values under `name` as soon as those of all wanted processes are there."""
        while True:
            found = self._everyone(name)
            if wanted <= found.keys():
                return found
            self.check()
            time.sleep(0.1)

    def _watch(self) -> None:
        """Gives signs of life and looks for those of the others."""
        seen = {index: ("", time.monotonic()) for index in range(self.count) if index != self.index}
        beat = 0
        while not self._has_ended.wait(min(1.0, self._patience / 5)):
            beat += 1
            try:
                self._put("alive", self.index, str(beat))
                signs, left = self._everyone("alive"), {*self._everyone("done"), *self._everyone("left")}
            except Exception:  # the service is gone, and jax ends this process for that
                return
            now = time.monotonic()
            for index, (last, when) in list(seen.items()):
                sign = signs.get(index, "")
                if sign != last:
                    seen[index] = sign, now
                elif now - when > self._patience and index not in left:
                    self._lost[index] = now - when


@contextlib.contextmanager
def connect(
    coordinator: str | None, num_processes: int | None, process_id: int | None, patience: float = PATIENCE
) -> Iterator[OneProcess]:
    """The processes of this sweep: as said, or as jax finds them on a cluster, or this one alone.

    Must come before anything that makes jax look for devices. The connection is closed when the block ends.
    """
    given = [coordinator is not None, num_processes is not None, process_id is not None]
    if num_processes == 1 and coordinator is None:
        yield OneProcess()
        return
    if any(given) and not all(given):
        raise SweepError("several processes need all of --coordinator HOST:PORT, --num-processes N and --process-id I.")
    if any(given) or not _has_devices():
        # Else the death of one process would end the others at once, in the middle of their work.
        before = jax.config.jax_enable_recoverability  # type: ignore[attr-defined]
        jax.config.update("jax_enable_recoverability", True)
        try:
            jax.distributed.initialize(coordinator, num_processes, process_id)
        except (ValueError, RuntimeError) as error:
            jax.config.update("jax_enable_recoverability", before)
            if any(given) or "coordinator_address" not in str(error):
                raise SweepError(f"cannot connect to the other processes: {error}") from error
            yield OneProcess()
            return
    if jax.process_count() == 1:
        yield OneProcess()
        return
    processes = ManyProcesses(patience)
    try:
        yield processes
    finally:
        processes.close()
        jax.distributed.shutdown()


def _has_devices() -> bool:
    """Whether jax has looked for devices, after which it is too late to look for other processes."""
    from jax._src import xla_bridge

    return xla_bridge.backends_are_initialized()
