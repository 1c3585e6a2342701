"""What float32 costs both engines: recorded runs of the four tasks, replayed in float32 and compared with float64.

    python benchmarks/numerics.py            # the tables of docs/numerics.md, about three minutes
    python benchmarks/numerics.py --smoke    # seconds, for the tests

For each task and ridge parameter one run is recorded in float64; its transitions are then replayed through the engine in
both precisions. Errors are in units of value, whose range is 0 to 1 / (1 - gamma) = 20.
"""

import argparse
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import kqljax
from kqljax.checks import least_float32_lam
from kqljax.config import KQLConfig
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
    return kqljax.Transition(post.obs.T, post.action, state.reward, post.next_obs.T, state.terminated)


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


def print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def errors(row: dict) -> tuple[str, ...]:
    return (
        f"{row['q_hat']:.2g}", f"{row['bonus']:.2g}", f"{row['same']:.1%}", f"{row['residual']:.2g}",
        "yes" if row["finite"] else "no", f"{row['residual64']:.1g}",
    )  # fmt: skip


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="one task, 60 steps")
    parser.add_argument("--horizon", type=int, default=1000, help="steps of each run (default 1000)")
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    horizon = 60 if args.smoke else args.horizon
    least = least_float32_lam(horizon)
    print(f"T = {horizon}, jax {jax.__version__} on {jax.devices()[0].platform}. float32 is refused below lam = {least:.2g}.\n")
    shared = ("error of Q-hat", "of beta * width", "same action", "residual", "finite", "residual in float64")
    tasks = [kqljax.make_task(name) for name in (TASKS[:1] if args.smoke else TASKS)]
    recorded = {}

    print("The exact engine:\n")
    columns = ("task", "lam", *shared)
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for task in tasks:
        for lam in (1.0 / (10 * horizon), least / 4, least, 4 * least):
            cfg = task.config(horizon=horizon, lam=lam)
            transitions = record(task, cfg)
            recorded.setdefault(task.name, transitions)
            print_row(task.name, f"{lam:.1e}", *errors(compare(task, cfg, transitions)))

    paper = 1.0 / (10 * horizon)
    print(f"\nThe weight-space engine, features.nystrom at several tolerances, the paper's lam = {paper:.1e}:\n")
    columns = ("task", "tolerance", "weights D", "float32", *shared)
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for task in tasks:
        kernel, states = kqljax.RBF(eta=task.eta), kqljax.tasks.sample_states(task)
        for tolerance in TOLERANCES[:3] if args.smoke else TOLERANCES:
            made = kqljax.features.nystrom(kernel, states, task.num_actions, tolerance)
            verdict = "refused" if made.needs_float64 else "taken"
            # What is refused is measured too.
            cfg = task.config(horizon=horizon, engine=kqljax.Weights(dataclasses.replace(made, needs_float64=False)))
            row = errors(compare(task, cfg, recorded[task.name]))
            print_row(task.name, f"{tolerance:g}", str(made.num_weights), verdict, *row)


if __name__ == "__main__":
    main()
