"""Seconds a step against the horizon T: the exact engine and the weight-space engine, in one run.

    python benchmarks/scaling.py            # about fifteen minutes; writes results/scaling.json and results/scaling.png
    python benchmarks/scaling.py --smoke    # seconds, for the tests

Each figure is a whole `kqljax.train` on the task, one seed, environment and acting included,
compilation apart. `exact` and `features` are float64, `features32` is float32, with
`features.nystrom` at a tolerance of 1e-6. `vmapped32` is features32 with 16 seeds in one vmap,
seconds a seed. Times are printed only of runs that are sound: every transition stored, every value
a number, and the features within ten times the tolerance at 99% of the states.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import records

import kqljax
from kqljax import features
from kqljax.training import EveryStep

RESULTS = Path(__file__).parent / "results"
TOLERANCE = 1e-6
TASKS = ("MountainCar-v0", "CartPole-v0", "Pendulum-v1", "Acrobot-v1")
KINDS = ("exact", "features", "features32", "vmapped32")
COLOURS = {
    "exact": "#0072B2",
    "features": "#D55E00",
    "features32": "#009E73",
    "vmapped32": "#E69F00",
}
SEEDS = 16
SHORT = (250, 500, 1000, 2000, 4000)
STEPS = {"exact": SHORT, "features": SHORT, "features32": (*SHORT, 20_000), "vmapped32": (1000,)}


def feature_map_of(task: kqljax.Task) -> features.FeatureMap:
    kernel, states = kqljax.RBF(eta=task.eta), kqljax.tasks.sample_states(task)
    return features.nystrom(kernel, states, task.num_actions, TOLERANCE)


def config(
    task: kqljax.Task, feature_map: features.FeatureMap, kind: str, horizon: int
) -> kqljax.KQLConfig:
    if kind == "exact":
        return task.config(horizon=horizon)
    return task.config(horizon=horizon, engine=kqljax.Weights(feature_map))


def measure(
    task: kqljax.Task, feature_map: features.FeatureMap, kind: str, horizon: int, repeats: int
) -> dict:
    """Seconds of one run, the fastest of `repeats`, and whether it was sound."""
    cfg = config(task, feature_map, kind, horizon)
    dtype = jnp.float32 if kind.endswith("32") else jnp.float64

    def run(task, cfg, key):
        return kqljax.train(key, task, EveryStep(cfg), horizon, dtype=dtype).log.info

    keys, seeds = jax.random.key(0), 1
    if kind == "vmapped32":
        run, keys, seeds = (
            jax.vmap(run, in_axes=(None, None, 0)),
            jax.random.split(keys, SEEDS),
            SEEDS,
        )
    arguments = task, cfg, keys
    start = time.perf_counter()
    program = jax.jit(run).lower(*arguments).compile()
    compiled = time.perf_counter() - start
    seconds = []
    # The first run of a program is the slower one (its memory is new); a very long one hides that.
    for _ in range(repeats if horizon <= 4000 else 1):
        start = time.perf_counter()
        info = jax.block_until_ready(program(*arguments))
        seconds.append((time.perf_counter() - start) / seeds)
    worst = float(np.quantile(info.feature_error, 0.99))
    sound = bool(np.all(info.is_stored & info.is_finite)) and worst <= 10 * TOLERANCE
    if not sound:
        raise SystemExit(
            f"{task.name}, {kind}, T = {horizon}: not sound (feature error {worst:.1e}); no time "
            "is worth printing."
        )
    return {
        "task": task.name,
        "engine": kind,
        "horizon": horizon,
        "seconds": min(seconds),
        "microseconds_a_step": 1e6 * min(seconds) / horizon,
        "compile_seconds": compiled,
        "feature_error_99": worst,
        "residual": float(np.max(info.residual)),
    }


def exponents(rows: list[dict]) -> dict[str, float]:
    """Slope of log(seconds a step) against log(T) by engine, from T = 1000 on (below, the overhead
    of a step hides it).
    """
    found = {}
    for kind in dict.fromkeys(row["engine"] for row in rows):
        points = [
            (r["horizon"], r["microseconds_a_step"])
            for r in rows
            if r["engine"] == kind and r["horizon"] >= 1000
        ]
        if len(points) > 1:
            found[kind] = float(np.polyfit(*np.log(np.array(points)).T, 1)[0])
    return found


def draw(rows: list[dict], path: Path) -> None:
    import matplotlib.pyplot as plt

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure, axes = plt.subplots(
        1,
        len(tasks),
        figsize=(3.4 * len(tasks) + 0.6, 3.6),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for axis, task in zip(axes[0], tasks, strict=True):
        for kind in dict.fromkeys(row["engine"] for row in rows):
            points = [
                (r["horizon"], r["microseconds_a_step"])
                for r in rows
                if r["task"] == task and r["engine"] == kind
            ]
            if points:
                axis.plot(
                    *zip(*points, strict=True), "o-", label=kind, color=COLOURS[kind], markersize=4
                )
        axis.set(xscale="log", yscale="log", title=task, xlabel="horizon T")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("microseconds a step (one seed)")
    axes[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def kept_rows(path: Path, engines: Sequence[str]) -> list[dict]:
    """Rows of an earlier run of other engines than these."""
    if not path.exists():
        return []
    return [row for row in records.read(path, {"rows"})["rows"] if row["engine"] not in engines]


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="one task, T = 30, nothing written")
    parser.add_argument(
        "--engines",
        nargs="+",
        choices=KINDS,
        default=KINDS,
        help="all by default; others keep their figures",
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="directory for scaling.json and scaling.png"
    )
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    # Figures of engines that are not measured now stay as they are; ratios are of one run only.
    others = [] if args.smoke else kept_rows(args.out / "scaling.json", args.engines)
    rows: list[dict] = []
    columns = (
        "task",
        "engine",
        "T",
        "seconds",
        "us a step",
        "times exact",
        "compile s",
        "weights D",
    )
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for name in TASKS[:1] if args.smoke else TASKS:
        task = kqljax.make_task(name)
        feature_map = feature_map_of(task)
        for kind in args.engines:
            for horizon in (30,) if args.smoke else STEPS[kind]:
                # Long horizons on the two tasks with few features; the others are compared up to
                # the paper's T.
                if horizon > 1000 and name not in TASKS[:2]:
                    continue
                row = measure(task, feature_map, kind, horizon, repeats=1 if args.smoke else 3)
                same = [
                    r
                    for r in rows
                    if (r["task"], r["engine"], r["horizon"]) == (name, "exact", horizon)
                ]
                row["times_exact"] = same[0]["seconds"] / row["seconds"] if same else None
                rows.append(row)
                times = f"{row['times_exact']:.1f}" if same else ""
                print(
                    f"| {name} | {kind} | {horizon} | {row['seconds']:.3f} | "
                    f"{row['microseconds_a_step']:.0f} | {times} | {row['compile_seconds']:.1f} | "
                    f"{'' if kind == 'exact' else feature_map.num_weights} |",
                    flush=True,
                )
    for name in dict.fromkeys(row["task"] for row in rows):
        slopes = exponents([row for row in rows if row["task"] == name])
        if slopes:
            print(
                f"growth exponents of a step, {name}: "
                + ", ".join(f"{kind} {slope:.2f}" for kind, slope in slopes.items())
            )
    if args.smoke:
        return
    args.out.mkdir(parents=True, exist_ok=True)
    document = {
        "tolerance": TOLERANCE,
        "versions": records.versions(),
        "device": records.device(),
        "rows": [*others, *rows],
    }
    records.write(args.out / "scaling.json", document)
    draw(document["rows"], args.out / "scaling.png")


if __name__ == "__main__":
    main()
