"""`kqljax bounds`."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

import jax
from rich.table import Table

from kqljax import theory
from kqljax.commands.base import UsageError, console_for_tables
from kqljax.kernels import RBF, Kernel, Linear
from kqljax.rollout import train
from kqljax.tasks import TASKS, make_task

KERNELS = ("rbf", "linear")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "What Theorem 1 of the paper says for a setting: the confidence width beta, the effective dimension, the covering\n"
        "numbers and the regret bound, term by term. A bound above T says nothing: no regret is larger than T."
    )
    parser.epilog = (
        "examples:\n"
        "  kqljax bounds --kernel rbf --eta 0.02 --horizon 1000 --obs-dim 2 --actions 3\n"
        "  kqljax bounds --kernel linear --horizon 100000 --lam 1 --rho 2 --sigma 1\n"
        "  kqljax bounds --task MountainCar-v0 --measure      # with the dimensions of a real run beside the bounds\n"
    )
    add = parser.add_argument
    add("--kernel", choices=KERNELS, default="rbf", help="default %(default)s")
    add("--eta", type=float, help="inverse squared width of the RBF kernel (default 0.02, or the task's)")
    add("--task", metavar="NAME", help=f"takes --obs-dim, --actions and --eta from a task: {', '.join(TASKS)}")
    add("--obs-dim", metavar="L", type=int, help="length of an observation (default 2)")
    add("--actions", metavar="A", type=int, help="number of actions (default 3)")
    add("--horizon", metavar="T", type=int, default=1000, help="number of steps (default %(default)s)")
    add("--gamma", type=float, default=0.95, help="discount factor (default %(default)s)")
    add("--lam", type=float, help="ridge parameter (default 1 / (10 T), as in the paper)")
    add("--rho", type=float, default=1.0, help="norms of reward and transition in the RKHS (default %(default)s)")
    add("--epsilon", type=float, default=0.0, help="how far they are from the RKHS (default %(default)s)")
    add("--sigma", type=float, default=0.0, help="stochasticity: 0 deterministic, 1 always holds (default %(default)s)")
    add("--p", type=float, default=0.05, help="probability that the bound fails (default %(default)s)")
    add("--d-lambda", type=float, help="bound on the effective dimension (default: from the kernel)")
    add("--c-lambda", type=float, help="bound on the log covering numbers (default: from the kernel)")
    add("--measure", action="store_true", help="train on --task with the paper's settings and measure the dimensions too")
    add("--seed", type=int, default=1000, help="of that run (default %(default)s)")
    add("--json", action="store_true", help="print JSON in place of the table")


def run(options: argparse.Namespace) -> int:
    if options.measure and not options.task:
        raise UsageError("--measure trains on a task: give --task too.")
    try:
        found = _compute(options)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if options.json:
        # JSON has no infinity.
        print(json.dumps({key: value if _is_finite(value) else None for key, value in found.items()}, indent=1))
    else:
        _print(found)
    return 0


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _compute(options: argparse.Namespace) -> dict[str, Any]:
    task = make_task(options.task) if options.task else None
    sizes = {
        "obs_dim": options.obs_dim or (task.obs_dim if task else 2),
        "num_actions": options.actions or (task.num_actions if task else 3),
    }
    for name, value in (("--obs-dim", options.obs_dim), ("--actions", options.actions), ("--horizon", options.horizon)):
        if value is not None and value < 1:
            raise UsageError(f"{name} must be at least 1, got {value}.")
    eta = options.eta if options.eta is not None else (task.eta if task else 0.02)
    if options.kernel == "rbf" and not (math.isfinite(eta) and eta >= 0):
        raise UsageError(f"--eta must be at least 0, got {eta}.")
    kernel: Kernel = RBF(eta=eta) if options.kernel == "rbf" else Linear()
    assumed = theory.assume(
        kernel,
        **sizes,
        horizon=options.horizon,
        rho=options.rho,
        gamma=options.gamma,
        lam=options.lam,
        epsilon=options.epsilon,
        sigma=options.sigma,
        p=options.p,
        d_lambda=options.d_lambda,
        c_lambda=options.c_lambda,
    )
    parts, bound = theory.width_parts(assumed), theory.regret_bound(assumed)
    covering = theory.covering_term(
        kernel, **sizes, horizon=options.horizon, gamma=options.gamma, lam=assumed.lam
    )  # fmt: skip
    gap = 1 - options.gamma
    found: dict[str, Any] = {
        "kernel": f"rbf, eta = {eta:g}" if options.kernel == "rbf" else "linear",
        **sizes,
        "horizon": options.horizon,
        "gamma": options.gamma,
        "lam": assumed.lam,
        "rho": options.rho,
        "epsilon": options.epsilon,
        "sigma": options.sigma,
        "p": options.p,
        "d_lambda": assumed.d_lambda,
        "covering_term": covering,
        "c_lambda": assumed.c_lambda,
        "beta": theory.confidence_width(assumed),
        "beta_rho": parts.rho / gap,
        "beta_epsilon": parts.epsilon / gap,
        "beta_sigma": parts.sigma / gap,
        "beta_cap": parts.cap / gap,
        "paper_beta": theory.paper_beta(assumed.lam, options.gamma),
        "regret_bound": bound.total,
        **{f"regret_{name}": value for name, value in bound._asdict().items()},
    }
    if options.measure:
        assert task is not None
        cfg = task.config(kernel, horizon=options.horizon, gamma=options.gamma, lam=assumed.lam)
        state = jax.jit(lambda task, cfg, key: train(task, cfg, key).state)(task, cfg, jax.random.key(options.seed))
        measured = theory.state_dimensions(cfg, state)
        found |= {"measured_effective_dimension": measured.effective, "measured_pseudo_dimension": measured.pseudo}
    return {key: value if isinstance(value, (int, float, str)) else float(value) for key, value in found.items()}


def _print(found: dict[str, Any]) -> None:
    table = Table(title="Theorem 1", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()

    def section(*rows: tuple[str, str, str]) -> None:
        for words, key, remark in rows:
            if key in found:
                value = found[key]
                table.add_row(words, value if isinstance(value, str) else f"{value:.4g}", remark)
        table.add_section()

    section(
        ("kernel", "kernel", f"observations of length {found['obs_dim']}, {found['num_actions']} actions"),
        ("horizon T", "horizon", ""),
        ("discount gamma", "gamma", ""),
        ("ridge lambda", "lam", ""),
        ("norms rho", "rho", ""),
        ("misfit epsilon", "epsilon", ""),
        ("stochasticity sigma", "sigma", ""),
        ("failure probability p", "p", ""),
    )
    section(
        ("d_lambda", "d_lambda", "bounds the effective dimension; at most T"),
        ("  measured d_eff", "measured_effective_dimension", "of a run with the paper's beta"),
        ("  measured d_pse", "measured_pseudo_dimension", "of the same run"),
        ("covering numbers", "covering_term", "the least c_lambda that the theorem allows"),
        ("c_lambda", "c_lambda", "0 where sigma is: it does not matter then"),
    )
    capped = found["beta"] >= found["beta_cap"] * (1 - 1e-9)
    section(
        ("beta", "beta", "at its cap: the bonus alone is 1 / (1 - gamma) everywhere" if capped else ""),
        ("  part of rho", "beta_rho", ""),
        ("  part of epsilon", "beta_epsilon", ""),
        ("  part of sigma", "beta_sigma", ""),
        ("  cap", "beta_cap", "2 sqrt(T + lambda) / (1 - gamma)"),
        ("paper's heuristic beta", "paper_beta", "sqrt(lambda) / (1 - gamma), section 6"),
    )
    empty = found["regret_bound"] >= found["horizon"]
    section(
        ("regret bound", "regret_bound", "above T: it says nothing" if empty else "below T"),
        ("  part of rho", "regret_rho", ""),
        ("  part of epsilon", "regret_epsilon", ""),
        ("  part of sigma", "regret_sigma", ""),
        ("  approximation", "regret_approximation", "6 epsilon T / (1 - gamma)^2"),
        ("  martingale", "regret_martingale", "sigma sqrt(2 T ln(2 / p)) / (1 - gamma)"),
        ("  boundary", "regret_boundary", "2 / (1 - gamma)"),
    )
    console_for_tables().print(table)
