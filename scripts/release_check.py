"""Builds the package and tries the wheel as a user would: python scripts/release_check.py

In a temporary directory: an sdist, the wheel that is made from it, a look at what is in the wheel,
a fresh virtual environment with nothing but the wheel and what it asks for, and there an import, a
short training and its evaluation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SMOKE = """
import pathlib, sys
import kqljax
place = pathlib.Path(kqljax.__file__).resolve()
assert place.is_relative_to(sys.prefix), f"imported from {place}, not from the environment"
agent = kqljax.KQL("MountainCar-v0", seed=0).learn(30)
agent.save("car.npz")
assert kqljax.KQL.load("car.npz").num_timesteps == 30
print(kqljax.__version__)
"""


def strangers(names: list[str]) -> list[str]:
    """Files of a wheel that should not be in it; and what should be and is not."""
    wrong = [name for name in names if not (name.startswith("kqljax/") or ".dist-info/" in name)]
    wrong += [
        f"{name} is missing"
        for name in ("kqljax/py.typed", "kqljax/__init__.py")
        if name not in names
    ]
    return wrong


def run(words: list[str | Path], directory: Path) -> str:
    """What a program prints; ends this one where it fails."""
    print("$", *(Path(words[0]).name, *words[1:]), flush=True)
    # Without this the environment would find the repository, where it is on the path of the caller.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    }
    done = subprocess.run(
        [str(word) for word in words],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode or "Warning" in done.stderr:
        sys.exit(
            f"{done.stdout}{done.stderr}release-check: failed with exit code {done.returncode}, or "
            "with a warning."
        )
    return done.stdout


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name).resolve()
        run([sys.executable, "-m", "build", "--outdir", directory, ROOT], directory)
        (wheel,) = directory.glob("*.whl")
        wrong = strangers(zipfile.ZipFile(wheel).namelist())
        if wrong:
            sys.exit(f"release-check: {wheel.name} holds {', '.join(wrong)}")
        venv.create(directory / "venv", with_pip=True)
        binaries = directory / "venv" / "bin"
        run(
            [
                binaries / "python",
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                wheel,
            ],
            directory,
        )
        (directory / "smoke.py").write_text(SMOKE)
        version = run([binaries / "python", "smoke.py"], directory).strip()
        run(
            [
                binaries / "kqljax",
                "train",
                "CartPole-v1",
                "--steps",
                "30",
                "--episodes",
                "2",
                "--out",
                "pole.npz",
            ],
            directory,
        )
        played = json.loads(
            run(
                [binaries / "kqljax", "evaluate", "pole.npz", "--episodes", "2", "--json"],
                directory,
            )
        )
        assert played["trained_steps"] == 30
        print(
            f"release-check: {wheel.name} ({wheel.stat().st_size // 1024} KiB), version {version}, "
            "installs and works"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
