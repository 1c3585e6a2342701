"""The `kqljax` command. A subcommand is a dataclass: its fields are options, `run` does the work.

tyro reads the dataclasses, and writes help and shell completion. Nothing here imports jax before a
command runs. Wrong input ends with exit code 2 and a line on stderr that names the remedy.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from kqljax.cli.agents import Evaluate, Render, Report, Train
from kqljax.cli.base import INTERRUPTED, UsageError
from kqljax.cli.sweep import SweepCommand

COMMANDS: dict[str, tuple[Any, str]] = {
    "train": (Train, "an agent in a gymnasium environment, saved to a file"),
    "evaluate": (Evaluate, "what a saved agent returns"),
    "render": (Render, "an episode of a saved agent as an animated GIF"),
    "report": (Report, "one HTML page about a saved agent"),
    "sweep": (SweepCommand, "many settings and seeds, with checkpoints, here or on a Dask cluster"),
}
_ABOUT = """Kernelized Q-learning in JAX.

examples:
  kqljax train MountainCar-v0 --out car.npz
  kqljax sweep --task MountainCar-v0 --seeds 4 --out results

kqljax COMMAND --help tells more. For completion in the shell:
  kqljax --tyro-print-completion bash"""
_STYLE = (
    tyro.conf.OmitArgPrefixes,
    tyro.conf.FlagCreatePairsOff,
    tyro.conf.DisallowNone,
    tyro.conf.PositionalMetavarFromFieldName,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with these words, by default the command line's; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words == ["--version"]:
            import kqljax

            print(f"kqljax {kqljax.__version__}")
            return 0
        return _parse(words).run()
    except UsageError as error:
        print(f"kqljax: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as stop:  # tyro leaves this way after --help and after wrong options
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)


def _parse(words: list[str]) -> Any:
    if words and words[0] in COMMANDS:
        # A parser of its own, whose help has the whole docstring of the command.
        kind: Any = COMMANDS[words[0]][0]
        return tyro.cli(kind, prog=f"kqljax {words[0]}", args=words[1:], config=_STYLE)
    kinds: list[Any] = [
        Annotated[kind, tyro.conf.subcommand(name, description=text)]
        for name, (kind, text) in COMMANDS.items()
    ]
    every = functools.reduce(operator.or_, kinds)
    return tyro.cli(every, prog="kqljax", description=_ABOUT, args=words, config=_STYLE)
