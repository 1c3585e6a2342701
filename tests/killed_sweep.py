"""Runs a sweep again and again and kills it each time, then to its end; `test_sweep_kills.py` looks at what is left.

    python killed_sweep.py DIR KILLS SEED      # in DIR/1, and in DIR/2 and so on where a sweep came to its end too soon

Half of the kills come from outside after a random time, half from inside at a random point of the work: in the middle of
writing a checkpoint, between writing and renaming it, after renaming, or between two segments. This process imports jax but
never starts it, so that a child is a fork that needs not import everything anew.
"""

import io
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from kqljax import cli
from kqljax.sweep import segments

COMMAND = [
    "sweep", "--task", "MountainCar-v0", "--eta", "0.02", "0.1", "--seeds", "3", "--chunk", "3", "--steps", "40",
    "--every", "2", "--stages", "1", "--episodes", "2", "--checkpoint-seconds", "0", "--no-figures",
]  # fmt: skip
POINTS = ("half written", "before rename", "after rename", "between segments")


def die():
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def arm(point, count):
    """Makes this process kill itself when it comes to the point for the count-th time."""
    left = [count]

    def is_time():
        left[0] -= 1
        return left[0] == 0

    savez, replace, segment = np.savez, os.replace, segments.Programs.segment

    def half(file, **arrays):
        if is_time():
            whole = io.BytesIO()
            savez(whole, **arrays)
            file.write(whole.getvalue()[: len(whole.getvalue()) // 2])
            file.flush()
            die()
        savez(file, **arrays)

    def rename(source, target):
        is_checkpoint = str(target).endswith(".npz")
        if is_checkpoint and point == "before rename" and is_time():
            die()
        replace(source, target)
        if is_checkpoint and point == "after rename" and is_time():
            die()

    def between(*arguments):
        if is_time():
            die()
        return segment(*arguments)

    if point == "half written":
        np.savez = half
    elif point == "between segments":
        segments.Programs.segment = between
    else:
        os.replace = rename


def start(out, point=None, count=1):
    """A child that runs the sweep; its number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        if point:
            arm(point, count)
        code = cli.main([*COMMAND, "--out", str(out)])
    finally:
        os._exit(code)


def main():
    top, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    killed, directories = [], 1
    longest = 4.0
    while len(killed) < kills:
        out = top / str(directories)
        if len(killed) % 2:
            point = POINTS[len(killed) // 2 % len(POINTS)]
            child = start(out, point, rng.randint(1, 3))
        else:
            point = "from outside"
            child = start(out)
            time.sleep(rng.uniform(0.3, longest))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            killed.append(point)
        elif os.waitstatus_to_exitcode(status) == 0:
            # It came to its end before it was killed: go on with another, and more quickly.
            directories += 1
            longest = max(1.0, 0.8 * longest)
        else:
            sys.exit(f"a child that was killed ({', '.join(killed)}) and started again ended with an error")
    status = os.waitpid(start(top / str(directories)), 0)[1]
    print(json.dumps({"killed": killed, "directories": directories, "code": os.waitstatus_to_exitcode(status)}))


if __name__ == "__main__":
    main()
