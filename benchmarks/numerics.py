"""What float32 costs both engines: recorded runs of the four tasks, replayed in float32 and
compared with float64.

    python benchmarks/numerics.py            # about three minutes; writes results/numerics.json
    python benchmarks/numerics.py --page     # the tables of docs/numerics.md from it
    python benchmarks/numerics.py --smoke    # seconds, for the tests

For each task and ridge parameter one run is recorded in float64; its transitions are then replayed
through the engine in both precisions. Errors are in units of value, whose range is 0 to 1 / (1 -
gamma) = 20.
"""

import argparse
import dataclasses
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import records

import kqljax
from kqljax.config import KQLConfig
from kqljax.engines.exact import least_float32_lam
from kqljax.state import KQLState

TASKS = ("MountainCar-v0", "CartPole-v0", "Pendulum-v1", "Acrobot-v1")
TOLERANCES = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)


def replay(cfg: KQLConfig, state: KQLState, transitions: kqljax.Transition):
    """Q-hat, width and action before each transition, and what Info said of it."""
    key = jax.random.key(0)  # ties go to the first action

    def body(state, transition):
        q_hat, width = kqljax.kql_predict(cfg, state, transition.obs)
        action, _ = kqljax.kql_act(key, cfg, state, transition.obs)
        state, info = kqljax.kql_step(cfg, state, transition)
        return state, (q_hat, width, action, info)

    return jax.lax.scan(body, state, transitions)[1]


def empty(cfg: KQLConfig, obs_dim: int, dtype) -> KQLState:
    # kql_init refuses what this script measures. A traced lam it cannot see.
    return jax.jit(lambda cfg: kqljax.kql_init(cfg, obs_dim, dtype))(cfg)


def record(task: kqljax.Task, cfg: KQLConfig) -> kqljax.Transition:
    """The transitions of one run of the exact engine in float64, fields `[T, ...]`."""
    state = jax.jit(lambda key: kqljax.train(key, task, cfg, cfg.horizon).state)(jax.random.key(0))
    post = state.posterior
    return kqljax.Transition(
        post.obs.T, post.action, state.reward, post.next_obs.T, state.terminated
    )


def compare(task: kqljax.Task, cfg: KQLConfig, transitions: kqljax.Transition) -> dict:
    """float32 beside float64 on the same transitions: largest errors over all steps and actions."""
    run = jax.jit(replay)
    q64, w64, a64, info64 = run(cfg, empty(cfg, task.obs_dim, jnp.float64), transitions)
    q32, w32, a32, info = run(cfg, empty(cfg, task.obs_dim, jnp.float32), transitions)
    return {
        "q_hat": float(np.abs(np.asarray(q32, np.float64) - q64).max()),
        "bonus": float(np.abs(np.asarray(w32, np.float64) - w64).max() * cfg.beta),
        "same": float(np.mean(np.asarray(a32 == a64))),
        "residual": float(np.max(info.residual)),
        "residual64": float(np.max(info64.residual)),
        "finite": bool(np.all(info.is_finite)),
    }


SHARED = (
    "error of Q-hat",
    "of beta * width",
    "same action",
    "residual",
    "finite",
    "residual in float64",
)
COLUMNS = {
    "exact": ("task", "lam", *SHARED),
    "weights": ("task", "tolerance", "weights D", "float32", *SHARED),
}


def table(document: dict, engine: str) -> str:
    """What docs/numerics.md shows of "exact" or "weights", in Markdown."""
    lines = [f"| {' | '.join(COLUMNS[engine])} |", "|---" * len(COLUMNS[engine]) + "|"]
    lines += [
        f"| {' | '.join(cells(row))} |" for row in document["rows"] if row["engine"] == engine
    ]
    return "\n".join(lines)


def cells(row: dict) -> tuple[str, ...]:
    def number(name: str, digits: int = 2) -> str:
        return "nan" if row[name] is None else f"{row[name]:.{digits}g}"

    own: tuple[str, ...] = (row["task"], f"{row['lam']:.1e}")
    if row["engine"] == "weights":
        own = (
            row["task"],
            f"{row['tolerance']:g}",
            str(row["weights"]),
            "taken" if row["is_taken"] else "refused",
        )
    found = number("q_hat"), number("bonus"), f"{row['same']:.1%}", number("residual")
    return (*own, *found, "yes" if row["finite"] else "no", number("residual64", 1))


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="one task, 60 steps, nothing written")
    parser.add_argument(
        "--horizon", type=int, default=1000, help="steps of each run (default 1000)"
    )
    parser.add_argument(
        "--page",
        action="store_true",
        help="prints the tables of the results file; measures nothing",
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "numerics.json"
    )
    args = parser.parse_args(argv)
    if args.page:
        document = json.loads(args.out.read_text())
        print(*(table(document, engine) for engine in COLUMNS), sep="\n\n")
        return
    jax.config.update("jax_enable_x64", True)
    horizon = 60 if args.smoke else args.horizon
    least, paper = least_float32_lam(horizon), 1.0 / (10 * horizon)
    print(f"T = {horizon}. The exact engine refuses float32 below lam = {least:.2g}.\n")
    tasks = [kqljax.make_task(name) for name in (TASKS[:1] if args.smoke else TASKS)]
    recorded, rows = {}, []

    def add(engine: str, task: kqljax.Task, **fields) -> None:
        # JSON has no NaN.
        fields = {
            name: None if isinstance(x, float) and math.isnan(x) else x
            for name, x in fields.items()
        }
        rows.append({"engine": engine, "task": task.name, **fields})
        print(f"| {' | '.join(cells(rows[-1]))} |", flush=True)

    for task in tasks:
        for lam in (paper, least / 4, least, 4 * least):
            cfg = task.config(horizon=horizon, lam=lam)
            transitions = record(task, cfg)
            recorded.setdefault(task.name, transitions)
            add("exact", task, lam=lam, **compare(task, cfg, transitions))
    print("\nThe weights engine, features.nystrom at several tolerances, the paper's lam:\n")
    for task in tasks:
        kernel, states = kqljax.RBF(eta=task.eta), kqljax.tasks.sample_states(task)
        for tolerance in TOLERANCES[:3] if args.smoke else TOLERANCES:
            made = kqljax.features.nystrom(kernel, states, task.num_actions, tolerance)
            # What is refused is measured too.
            cfg = task.config(
                horizon=horizon,
                engine=kqljax.Weights(dataclasses.replace(made, needs_float64=False)),
            )
            own = {
                "tolerance": tolerance,
                "weights": made.num_weights,
                "is_taken": not made.needs_float64,
            }
            add("weights", task, lam=paper, **own, **compare(task, cfg, recorded[task.name]))
    if not args.smoke:
        found = {
            "versions": records.versions(),
            "device": records.device(),
            "horizon": horizon,
            "seed": 0,
        }
        records.write(args.out, {**found, "least_lam": least, "rows": rows})


if __name__ == "__main__":
    main()
