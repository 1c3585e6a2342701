"""KOVI on MountainCar in 1000 steps: does it make progress?

    python benchmarks/kovi.py            # ten seeds of both variants, minutes; results/kovi.json
    python benchmarks/kovi.py --page     # the table of docs/conventions.md from it
    python benchmarks/kovi.py --smoke    # seconds, for the tests

The paper (section 2) reports that KOVI could not be made to work here. `textbook` is KOVI as its
authors wrote it: step h of an episode learns from the data of step h alone. `pooled` learns from
all data at every step, which their analysis does not cover. Both with KQL's kernel and lambda,
beta = H sqrt(lambda), 100 evaluation episodes a seed.
"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np
import records
from kovi_learner import make_kovi
from tqdm import tqdm

import kqljax
from kqljax.report import summarise


def run(key, task, learner, num_steps, num_episodes):
    train_key, eval_key = jax.random.split(key)
    trained = kqljax.train(train_key, task, learner, num_steps)
    returns = kqljax.evaluate(eval_key, task, trained, num_episodes)
    is_sound = trained.is_sound & trained.log.info.is_stored.all()
    return returns.mean(), trained.log.terminated.sum(), is_sound


def table(document):
    """What docs/conventions.md shows, in Markdown."""
    lines = [
        "| variant | IQM [95%] | worst .. best seed | goals reached in training, all seeds |",
        "|---|---|---|---|",
    ]
    for row in document["rows"]:
        interval = f"{row['iqm']:.1f} [{row['low']:.1f}, {row['high']:.1f}]"
        spread = f"{row['worst']:.0f} .. {row['best']:.0f}"
        lines.append(f"| {row['variant']} | {interval} | {spread} | {row['goals']} |")
    return "\n".join(lines)


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10, help="seeds from 1000 on (default 10)")
    parser.add_argument("--smoke", action="store_true", help="one seed, 60 steps, 2 episodes")
    parser.add_argument("--page", action="store_true", help="the table of the results file alone")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "kovi.json")
    args = parser.parse_args(argv)
    if args.page:
        print(table(json.loads(args.out.read_text())))
        return
    jax.config.update("jax_enable_x64", True)
    steps, episodes, seeds = (60, 2, 1) if args.smoke else (1000, 100, args.seeds)
    task = kqljax.make_task("MountainCar-v0")
    rows = []
    for name in ("textbook", "pooled"):
        # No episode of MountainCar can end within 80 steps.
        room = max(2, -(-steps // 80))
        learner = make_kovi(task, steps, pooled=name == "pooled", max_episodes=room)
        program = jax.jit(run, static_argnums=(3, 4))
        bar = tqdm(range(1000, 1000 + seeds), desc=name, disable=args.smoke)
        runs = [program(jax.random.key(seed), task, learner, steps, episodes) for seed in bar]
        means, goals, is_sound = map(np.array, zip(*runs, strict=True))
        if not is_sound.all():
            raise SystemExit(f"{name}: a run is not sound; its returns are not worth printing.")
        found = summarise(means)
        numbers = {"iqm": found.iqm, "low": found.low, "high": found.high}
        numbers |= {"worst": found.min, "best": found.max}
        numbers = {key: float(value) for key, value in numbers.items()}
        rows.append({"variant": name, **numbers, "goals": int(np.sum(goals))})
    document = {"versions": records.versions(), "device": records.device(), "rows": rows}
    document |= {"seeds": [1000, 1000 + seeds], "steps": steps, "episodes": episodes}
    print(f"MountainCar-v0, {steps} steps, {seeds} seeds from 1000\n\n{table(document)}")
    if not args.smoke:
        records.write(args.out, document)


if __name__ == "__main__":
    main()
