"""What the commands about agents share: reading one, and words for wrong input."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kqljax.agent import KQL
from kqljax.commands.base import UsageError


@contextmanager
def errors_for_people() -> Iterator[None]:
    """What the agent says of wrong input is one line for the user, not a traceback."""
    try:
        yield
    except (ValueError, TypeError, ImportError) as error:
        raise UsageError(str(error)) from error


def add_agent(parser: argparse.ArgumentParser) -> None:
    """The options that say which agent, where and for how long."""
    add_file(parser, "agent", metavar="AGENT", help="file that kqljax train wrote")
    parser.add_argument("--env", metavar="NAME", help="environment, by default the one it learned in")
    parser.add_argument("--seed", type=int, help="of the episodes (default: one that training has not used)")
    parser.add_argument(
        "--max-steps", metavar="N", type=int,
        help="episodes are cut off then (default: the environment's time limit; 1000 where it has none)",
    )  # fmt: skip


def add_file(parser: argparse.ArgumentParser, *names: str, **options: Any) -> None:
    """An option or argument that is a path, for completion in the shell."""
    import shtab

    parser.add_argument(*names, **options).complete = shtab.FILE  # type: ignore[attr-defined]


def load_agent(options: argparse.Namespace) -> KQL:
    """The agent, in the environment that was asked for or in its own."""
    with errors_for_people():
        agent = KQL.load(options.agent, env=options.env)
        if agent.env_name is None:
            raise UsageError(f"{options.agent} does not say which environment it learned in: give --env NAME.")
        return agent
