"""Whether speed has rotted: quick ratios against their committed values.

    python benchmarks/check.py            # about two minutes; exit code 1 where a ratio fell by more than a third
    python benchmarks/check.py --write    # takes today's ratios as the ones to keep (results/check.json)
    python benchmarks/check.py --smoke    # seconds, for the tests: tiny sizes, nothing compared

A ratio compares two things in one run on one machine, so it survives a change of machine better
than seconds do. Leave the machine alone while it runs; a ratio that is low is measured a second
time before it counts.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import records
import scaling
import step_time

import kqljax

COMMITTED = Path(__file__).parent / "results" / "check.json"
ALLOWED = 2 / 3


def against_numpy(horizon: int) -> float:
    """Plain NumPy's seconds over the exact engine's."""
    return step_time.measure(horizon, 3)["ratio"]


def features_against_exact(name: str, horizon: int) -> float:
    """The exact engine's seconds over those of the features in float32, one seed."""
    task = kqljax.make_task(name)
    feature_map = scaling.feature_map_of(task)
    exact, quick = (
        scaling.measure(task, feature_map, kind, horizon, 3)["seconds"]
        for kind in ("exact", "features32")
    )
    return exact / quick


def seeds_against_one(name: str, horizon: int, seeds: int) -> float:
    """Seconds of one seed alone over the seconds a seed of many with `across_seeds` on all devices,
    features in float32.
    """
    task = kqljax.make_task(name)
    cfg = task.config(horizon=horizon, engine=kqljax.Weights(scaling.feature_map_of(task)))

    def run(key, task, cfg):
        return kqljax.train(key, task, cfg, horizon, dtype=jnp.float32).log.info.residual

    def seconds(program, keys) -> float:
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            jax.block_until_ready(program(keys, task, cfg))
            best = min(best, time.perf_counter() - start)
        return best

    keys = jax.random.split(jax.random.key(0), seeds)
    return seconds(jax.jit(run), keys[0]) / (seconds(kqljax.across_seeds(run), keys) / seeds)


def measures(smoke: bool) -> dict[str, Callable[[], float]]:
    if smoke:
        return {
            "exact over NumPy, T = 20": lambda: against_numpy(20),
            "features32 over exact, MountainCar-v0, T = 20": lambda: features_against_exact(
                "MountainCar-v0", 20
            ),
            "2 seeds over one, MountainCar-v0, T = 20": lambda: seeds_against_one(
                "MountainCar-v0", 20, 2
            ),
        }
    tasks = ("MountainCar-v0", "CartPole-v0", "Pendulum-v1", "Acrobot-v1")
    return {
        "exact over NumPy, T = 500": lambda: against_numpy(500),
        "exact over NumPy, T = 1000": lambda: against_numpy(1000),
        **{
            f"features32 over exact, {name}, T = 1000": lambda name=name: features_against_exact(
                name, 1000
            )
            for name in tasks
        },
        **{
            f"32 seeds over one, {name}, T = 1000": lambda name=name: seeds_against_one(
                name, 1000, 32
            )
            for name in tasks
        },
    }


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--smoke", action="store_true", help="tiny sizes, nothing compared or written"
    )
    parser.add_argument(
        "--write", action="store_true", help="write results/check.json in place of comparing"
    )
    args = parser.parse_args(argv)
    if not args.smoke:
        jax.config.update("jax_num_cpu_devices", os.cpu_count())
    jax.config.update("jax_enable_x64", True)
    committed = {} if args.smoke or args.write else records.read(COMMITTED, {"ratios"})["ratios"]
    found, fallen = {}, []
    print("| ratio | now | committed |\n|---|---|---|")
    for name, measure in measures(args.smoke).items():
        found[name] = measure()
        least = ALLOWED * committed.get(name, 0.0)
        if found[name] < least:
            found[name] = max(found[name], measure())
        if found[name] < least:
            fallen.append(name)
        kept = f"{committed[name]:.2f}" if name in committed else ""
        print(f"| {name} | {found[name]:.2f} | {kept} |", flush=True)
    if args.write:
        records.write(
            COMMITTED, {"ratios": found, "versions": records.versions(), "device": records.device()}
        )
    if fallen:
        print(f"fell by more than a third: {'; '.join(fallen)}", file=sys.stderr)
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
