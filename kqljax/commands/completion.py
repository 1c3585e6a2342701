"""`kqljax completion`."""

from __future__ import annotations

import argparse

import shtab

SHELLS = ("bash", "zsh")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Prints a script that lets a shell complete the command's words with the Tab key."
    parser.epilog = (
        "examples:\n"
        '  eval "$(kqljax completion bash)"                                # in this shell; put it into ~/.bashrc\n'
        "  kqljax completion zsh > ~/.zfunc/_kqljax                        # a directory of your fpath"
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=" or ".join(SHELLS))


def run(options: argparse.Namespace) -> int:
    from kqljax.cli import make_parser

    print(shtab.complete(make_parser(), shell=options.shell))
    return 0
