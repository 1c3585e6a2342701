"""`kqljax render`."""

from __future__ import annotations

import argparse
import json

from kqljax.commands.agents import add_agent, add_file, errors_for_people, load_agent
from kqljax.report import gif


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Draws one episode of a saved agent as an animated GIF."
    parser.epilog = (
        "example:\n  kqljax render car.npz --out car.gif\n\n"
        "Needs the extra `render`: pip install 'kqljax[render]' (pygame, with which gymnasium draws, and pillow)."
    )
    add_agent(parser)
    add_file(parser, "--out", metavar="FILE", required=True, help="the GIF")
    parser.add_argument("--width", metavar="PIXELS", type=int, default=320, help="of the picture (default %(default)s)")
    parser.add_argument("--every", metavar="N", type=int, default=2, help="keeps every N-th frame (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    agent = load_agent(options)
    with errors_for_people():
        episode = gif.save_episode(
            agent, options.out, seed=options.seed, max_steps=options.max_steps, width=options.width, every=options.every
        )
    steps = len(episode.obs) - 1
    if options.json:
        told = {"file": options.out, "return": episode.total, "steps": steps}
        print(json.dumps({**told, "terminated": episode.terminated, "cut_off": episode.was_cut}, indent=1))
        return 0
    end = "the task ended" if episode.terminated else "cut off there" if episode.was_cut else "the time was over"
    print(f"wrote {options.out}: {steps} steps, return {episode.total:.1f}, {end}")
    return 0
