"""The `kqljax` command: a list of subcommands, and what becomes of wrong input.

Wrong input ends with exit code 2 and one line on stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import jax

import kqljax
from kqljax.commands import bounds, completion, evaluate, render, report, sweep, table1, train
from kqljax.commands.base import UsageError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.rstrip('.')}. See {self.prog} --help.")


class Command(NamedTuple):
    """A subcommand.

    Attributes:
      text: one line for the list of commands.
      add_options: adds the options to a parser.
      run: does the work and returns the exit code.
    """

    text: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


COMMANDS = {
    "train": Command("an agent in a gymnasium environment, saved to a file", train.add_options, train.run),
    "evaluate": Command("what a saved agent returns", evaluate.add_options, evaluate.run),
    "render": Command("an episode of a saved agent as an animated GIF", render.add_options, render.run),
    "table1": Command("the paper's Table 1: algorithms, tasks, many seeds", table1.add_options, table1.run),
    "report": Command("one HTML page of a table's results or of an agent", report.add_options, report.run),
    "sweep": Command("many settings and seeds, on many devices, with checkpoints", sweep.add_options, sweep.run),
    "bounds": Command("confidence width, dimensions and regret bound for a setting", bounds.add_options, bounds.run),
    "completion": Command("completion of this command's words in your shell", completion.add_options, completion.run),
}


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command."""
    parser = _Parser(
        prog="kqljax",
        description="Kernelized Q-learning in JAX.",
        epilog=(
            "examples:\n  kqljax train MountainCar-v0 --out car.npz\n  kqljax table1 --seeds 5 --out results\n\n"
            "kqljax COMMAND --help tells more."
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kqljax {kqljax.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        own = commands.add_parser(name, help=command.text, formatter_class=argparse.RawDescriptionHelpFormatter)
        command.add_options(own)
        own.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with the given words (by default those of the command line); returns the exit code."""
    # This is a program of its own: the library never touches jax's configuration, its user does. Here that is us.
    jax.config.update("jax_enable_x64", True)
    try:
        options = make_parser().parse_args(argv)
        return options.run(options)
    except UsageError as error:
        print(f"kqljax: error: {error}", file=sys.stderr)
        return 2
    except SystemExit as stop:  # argparse leaves this way after --help and --version
        return stop.code if isinstance(stop.code, int) else 1


if __name__ == "__main__":
    sys.exit(main())
