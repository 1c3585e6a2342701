"""The whole of KQL's row of Table 1 with 100 seeds, against the time Stable-Baselines3 needs to train DQN once.

    python benchmarks/headline.py            # about ten minutes on two cores; writes results/headline.json and headline.png
    python benchmarks/headline.py --smoke    # under a minute, for the tests; without Stable-Baselines3

One run, each part warmed up, compilation apart, (a) and (c) in turns and the best of them counted:

  (a) Stable-Baselines3's DQN, one seed of CartPole, the paper's parameters (28,800 updates), training only
  (b) our DQN, the same
  (c) KQL with `features.auto` in float32: 100 seeds x four tasks x 1000 steps, with 100 evaluation episodes a seed
  (d) KQL with the exact engine in float64: 10 seeds of each task the same way, times ten
  (e) Algorithm 1 in plain NumPy on CartPole's transitions, one seed, learning and acting

Seeds run with `kqljax.across_seeds` on as many CPU devices as there are cores. Returns are checked before a time is printed:
the interquartile mean of (c) and (d) has to lie in the range that the committed table1.json has for its single seeds.
"""

import os

# One thread a product: the cores are used by running seeds side by side.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import sb3_dqn
from numpy_kql import NumpyKQL

import kqljax
from kqljax import features
from kqljax.baselines import dqn
from kqljax.report import records, summarise
from kqljax.rollout import STAGES

RESULTS = Path(__file__).parent / "results"
TASKS = ("MountainCar-v0", "CartPole-v0", "Pendulum-v1", "Acrobot-v1")
DQN_TASK = "CartPole-v0"
RATIO = "ratio_kql_100_seeds_to_one_sb3_dqn"


def clock(function: Callable, *arguments) -> tuple[float, object]:
    start = time.perf_counter()
    result = jax.block_until_ready(function(*arguments))
    return time.perf_counter() - start, result


class Row:
    """KQL on one task: a program for training alone and one for training and evaluation, compiled."""

    def __init__(self, name: str, engine: str, seeds: int, steps: int, episodes: int) -> None:
        stages = STAGES if steps >= 100 else 1  # a short run has no use for them
        self.task = kqljax.make_task(name)
        dtype = jnp.float32 if engine == "features" else jnp.float64
        start = time.perf_counter()
        feature_map = features.auto(kqljax.RBF(eta=self.task.eta), self.task, 1e-6) if engine == "features" else None
        self.cfg = self.task.config(horizon=steps, features=feature_map)
        self.feature_seconds = time.perf_counter() - start
        self.keys = jax.vmap(jax.random.key)(jnp.arange(1000, 1000 + seeds))

        def train(key, task, cfg):
            run = kqljax.train(task, cfg, jax.random.split(key)[0], dtype=dtype, stages=stages)
            return jnp.all(run.log.info.is_stored & run.log.info.is_finite)

        def both(key, task, cfg):
            train_key, eval_key = jax.random.split(key)
            run = kqljax.train(task, cfg, train_key, dtype=dtype, stages=stages)
            sound = jnp.all(run.log.info.is_stored & run.log.info.is_finite)
            return kqljax.evaluate(task, cfg, run.state, eval_key, episodes).mean(), sound

        start = time.perf_counter()
        self.both = kqljax.across_seeds(both).lower(*self.arguments).compile()
        self.compile_seconds = time.perf_counter() - start
        self.train = kqljax.across_seeds(train).lower(*self.arguments).compile()

    @property
    def arguments(self) -> tuple:
        return self.keys, self.task, self.cfg


def run_kql(
    tasks: Sequence[str], engine: str, seeds: int, steps: int, episodes: int, repeats: int, between: Callable[[], None]
) -> dict:
    """Seconds of each task, training and evaluation apart, the best of `repeats`; `between` runs after each round."""
    rows = {name: Row(name, engine, seeds, steps, episodes) for name in tasks}
    for row in rows.values():
        jax.block_until_ready(row.train(*row.arguments))  # memory is new the first time
    best = dict.fromkeys(tasks, float("inf"))
    trained = dict(best)
    returns = {}
    for _ in range(repeats):
        for name, row in rows.items():
            seconds, (means, sound) = clock(row.both, *row.arguments)
            if not np.all(sound):
                raise SystemExit(f"{name}, {engine}: a run is not sound; no time is worth printing.")
            best[name] = min(best[name], seconds)
            returns[name] = np.asarray(means, float)
            trained[name] = min(trained[name], clock(row.train, *row.arguments)[0])
        between()
    return {
        name: {
            "seconds": best[name],
            "training_seconds": trained[name],
            "compile_seconds": row.compile_seconds,
            "feature_seconds": row.feature_seconds,
            "returns": returns[name].tolist(),
            "iqm": summarise(returns[name]).iqm,
        }
        for name, row in rows.items()
    }


def check_returns(found: dict, engine: str) -> None:
    """The middle of the seeds has to lie where the committed table has it."""
    committed = json.loads((RESULTS / "table1.json").read_text())["results"]
    algorithm = "kql-features32" if engine == "features" else "kql-rbf"
    for name, row in found.items():
        seeds = [record["return_mean"] for record in committed if (record["task"], record["algorithm"]) == (name, algorithm)]
        if not min(seeds) <= row["iqm"] <= max(seeds):
            raise SystemExit(
                f"{name}, {engine}: interquartile mean {row['iqm']:.1f} outside of the committed seeds "
                f"{min(seeds):.1f} .. {max(seeds):.1f}; no time is worth printing."
            )


def run_our_dqn(steps: int, episodes: int) -> dict:
    task = kqljax.make_task(DQN_TASK)
    cfg = dqn.default_config(task)
    train = jax.jit(lambda key: dqn.train(task, cfg, key, steps).state)
    compile_seconds, state = clock(train, jax.random.key(1))
    seconds, state = clock(train, jax.random.key(1000))
    mean = float(dqn.evaluate(task, cfg, state, jax.random.key(2000), episodes).mean())
    return {"seconds": seconds, "compile_seconds": compile_seconds - seconds, "return": mean}


def run_numpy(steps: int) -> dict:
    """Plain NumPy on the transitions of a recorded run of CartPole: acting and learning at every step."""
    task = kqljax.make_task(DQN_TASK)
    run = jax.jit(lambda key: kqljax.train(task, task.config(horizon=steps), key))(jax.random.key(1000))
    pairs, reached = run.state.posterior.pairs, np.asarray(run.state.table.obs)
    obs, actions = np.asarray(pairs.obs), np.argmax(pairs.action, axis=1)
    agent = NumpyKQL(task.obs_dim, task.num_actions, steps, task.eta)
    start = time.perf_counter()
    for t in range(steps):
        agent.act(obs[t])
        agent.step(obs[t], int(actions[t]), float(run.state.reward[t]), reached[t])
    return {"seconds": time.perf_counter() - start}


def draw(document: dict, path: Path) -> None:
    """Return against seconds: every seed of KQL at the time its 100 seeds took, DQN's one seed at its own."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(TASKS), figsize=(3.3 * len(TASKS), 3.6))
    sb3 = {(row["task"]): row for row in document["sb3_other_tasks"]}
    for axis, name in zip(axes, TASKS, strict=True):
        for engine, colour, label in (("features", "#0072B2", "KQL features32"), ("exact", "#56B4E9", "KQL exact")):
            row = document[engine][name]
            seeds = len(row["returns"])
            axis.scatter(
                np.full(seeds, row["seconds"]),
                row["returns"],
                s=8,
                alpha=0.4,
                color=colour,
                label=f"{label}, all {seeds} seeds",
            )
        if name in sb3:
            axis.scatter(
                sb3[name]["seconds"], sb3[name]["return_mean"], marker="X", s=60, color="#D55E00", label="SB3 DQN, one seed"
            )
        if name == DQN_TASK:
            ours = document["our_dqn"]
            axis.scatter(ours["seconds"], ours["return"], marker="D", s=40, color="#009E73", label="our DQN, one seed")
        axis.set(xscale="log", title=name, xlabel="seconds, two cores")
        axis.set_xlim(1, 200)
        axis.set_xticks([1, 10, 100], labels=["1", "10", "100"])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("mean return of a seed")
    axes[1].legend(fontsize=7, loc="lower left")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--smoke", action="store_true", help="one task, two seeds, 60 steps, two episodes, no SB3, nothing written"
    )
    parser.add_argument("--repeats", type=int, default=2, help="rounds of (a) and (c), the best counts (default 2)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory for headline.json and headline.png")
    args = parser.parse_args(argv)
    if not args.smoke:
        jax.config.update("jax_num_cpu_devices", os.cpu_count())  # fails after jax's first use: the tests do without
    jax.config.update("jax_enable_x64", True)
    seeds, few, steps, episodes = (2, 2, 60, 2) if args.smoke else (100, 10, 1000, 100)

    sb3: list[dict] = []

    def train_sb3() -> None:
        sb3.append(sb3_dqn.run(DQN_TASK, 1000, steps, episodes))
        print(f"(a) SB3 DQN, one seed of {DQN_TASK}: {sb3[-1]['seconds']:.1f} s", flush=True)

    if not args.smoke:
        import torch

        torch.set_num_threads(1)  # small networks gain nothing from more
        sb3_dqn.run(DQN_TASK, 1, 150, 1)  # its first steps load and allocate
    tasks = TASKS[:1] if args.smoke else TASKS
    kql = run_kql(
        tasks,
        "features",
        seeds,
        steps,
        episodes,
        1 if args.smoke else args.repeats,
        (lambda: None) if args.smoke else train_sb3,
    )
    exact = run_kql(tasks, "exact", few, steps, episodes, 1, lambda: None)
    if not args.smoke:
        check_returns(kql, "features")
        check_returns(exact, "exact")
    ours, plain = run_our_dqn(150 if args.smoke else steps, episodes), run_numpy(steps)

    print("| task | seeds | seconds | training | evaluation | compile | exact engine, the same number of seeds | IQM |")
    print("|---|---|---|---|---|---|---|---|")
    for name, row in kql.items():
        scaled = exact[name]["seconds"] * seeds / few
        print(
            f"| {name} | {seeds} | {row['seconds']:.1f} | {row['training_seconds']:.1f} | "
            f"{row['seconds'] - row['training_seconds']:.1f} | {row['compile_seconds']:.1f} | {scaled:.1f} | {row['iqm']:.1f} |"
        )
    total = sum(row["seconds"] for row in kql.values())
    scaled = sum(row["seconds"] for row in exact.values()) * seeds / few
    print(f"(b) our DQN, one seed: {ours['seconds']:.1f} s; compile {ours['compile_seconds']:.1f} s")
    print(f"(c) KQL, {seeds} seeds x {len(tasks)} tasks, training and evaluation: {total:.1f} s")
    print(f"(d) the same with the exact engine, scaled from {few} seeds: {scaled:.1f} s")
    print(f"(e) NumPy, one seed, training alone: {plain['seconds']:.1f} s")
    if args.smoke:
        return
    one = min(record["seconds"] for record in sb3)
    document = {
        RATIO: total / one,
        "seconds": {
            "sb3_dqn": one,
            "our_dqn": ours["seconds"],
            "kql": total,
            "kql_exact_scaled": scaled,
            "numpy": plain["seconds"],
        },
        "settings": {"seeds": seeds, "exact_seeds": few, "steps": steps, "episodes": episodes, "repeats": args.repeats},
        "features": kql,
        "exact": exact,
        "our_dqn": ours,
        "sb3": sb3,
        "sb3_other_tasks": [min(sb3, key=lambda record: record["seconds"]), *_other_tasks(steps, episodes)],
        "versions": records.versions(),
        "device": records.device(),
    }
    print(f"(c) / (a) = {total / one:.2f}")
    records.prepare_directory(args.out)
    records.write(args.out / "headline.json", document)
    draw(document, args.out / "headline.png")


def _other_tasks(steps: int, episodes: int) -> list[dict]:
    """SB3's seed on the other tasks, for the figure."""
    return [sb3_dqn.run(name, 1000, steps, episodes) for name in TASKS if name != DQN_TASK]


if __name__ == "__main__":
    main()
