"""Builds the notebooks from their text and runs them: python scripts/build_notebooks.py --out
results/notebooks

`--short` runs them with little work, to see that everything works; the tests do that.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SHORT = "KQLJAX_SHORT"


def notebooks() -> list[Path]:
    """The texts, in alphabetical order."""
    return sorted((ROOT / "notebooks").glob("*.py"))


def execute(path: Path, is_short: bool) -> Any:
    """The notebook of a text, with what its cells gave; raises where one fails."""
    import jupytext
    from nbclient import NotebookClient

    notebook = jupytext.read(path)
    # A kernel of its own takes over the environment: the threads of several notebooks would fight
    # for the cores.
    environment = {**os.environ, **({SHORT: "1"} if is_short else {})}
    client = NotebookClient(
        notebook, timeout=1200, kernel_name="python3", extra_arguments=["--log-level=40"]
    )
    client.execute(env=environment)
    return notebook


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        default=ROOT / "results" / "notebooks",
        type=Path,
        help="default %(default)s",
    )
    parser.add_argument(
        "--short", action="store_true", help="little work, to see that everything runs"
    )
    options = parser.parse_args(argv)

    import jupytext
    from rich.console import Console
    from rich.progress import track

    options.out.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    for path in track(notebooks(), "notebooks", console=console):
        target = options.out / f"{path.stem}.ipynb"
        jupytext.write(execute(path, options.short), target)
        console.print(f"wrote {target}", highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
