"""Measured gamma-regret against the bound of Theorem 1, on a chain where epsilon-greedy exploration
fails.

    python benchmarks/regret.py            # a few minutes; writes results/regret.json and results/regret.png
    python benchmarks/regret.py --smoke    # seconds, for the tests

A row of eight states: the left end, where the run starts, pays 0.05 for staying, the right end pays
1. Deterministic, with the indicator kernel, so that the assumptions of the theorem hold with
epsilon = sigma = 0 and rho = sqrt(S A). Four learners, gamma = 0.9:

  kql           beta of Theorem 1, lam = 1 / (10 T)
  kql-paper     beta of the paper's section 6, sqrt(lam) / (1 - gamma)
  kql-greedy    beta = 0
  q-learning    tabular, epsilon = 0.1, step size 0.5

Each horizon T is a run of its own, since lam and beta depend on it. Regret is (1 - gamma) times the
sum of V*(s_t) - V_t; what the run would have got after its end counts as nothing (`upper` of
`theory.measured_regret`), which is to its disadvantage.
"""

import argparse
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import records
from mdps import MDP, chain, growth_exponent, solve_tabular
from q_learning import QLearning
from tqdm import tqdm

import kqljax
from kqljax import features, theory, train
from kqljax.report import summarise
from kqljax.training import EveryStep

RESULTS = Path(__file__).parent / "results"
GAMMA = 0.9
LENGTH = 8
HORIZONS = (250, 500, 1000, 2000, 4000)
LEARNERS = ("kql", "kql-paper", "kql-greedy", "q-learning")
COLOURS = {
    "kql": "#0072B2",
    "kql-paper": "#009E73",
    "kql-greedy": "#D55E00",
    "q-learning": "#CC79A7",
}


def assumptions(mdp: MDP, horizon: int) -> theory.Assumptions:
    sizes = {"obs_dim": mdp.num_states, "num_actions": mdp.num_actions}
    return theory.assume(
        mdp.kernel(), **sizes, horizon=horizon, rho=mdp.rho, gamma=GAMMA, sigma=mdp.sigma
    )


def config(mdp: MDP, learner: str, horizon: int) -> kqljax.KQLConfig:
    """The indicator kernel as features, which are exact: one for each state."""
    assumed = assumptions(mdp, horizon)
    beta = {"kql": float(theory.confidence_width(assumed)), "kql-paper": None, "kql-greedy": 0.0}[
        learner
    ]
    kernel = mdp.kernel()
    table = features.nystrom(kernel, np.eye(mdp.num_states), mdp.num_actions)
    return kqljax.KQLConfig(
        kernel=kernel,
        num_actions=mdp.num_actions,
        horizon=horizon,
        gamma=GAMMA,
        beta=beta,
        engine=kqljax.Weights(table),
        tie_break="random",
    )


@functools.partial(jax.jit, static_argnames=("horizon",))
def run_kql(task, cfg, best, keys, horizon):
    """Cumulative regret `[seeds, T]`; seeds differ by how ties are broken."""

    def one(key):
        run = kqljax.train(
            key, task, EveryStep(cfg, 1), horizon
        )  # a step is cheap at any capacity; stages cost compile time
        # Slot t holds the features of the state reached at step t; the run starts on the left.
        places = jax.vmap(cfg.engine.features.psi)(jnp.eye(task.obs_dim))
        distance = jnp.sum((run.state.posterior.next_psi.T[:, None] - places) ** 2, axis=-1)
        reached = jnp.argmin(distance, axis=1)
        visited = jnp.concatenate([jnp.zeros((1,), reached.dtype), reached[:-1]])
        sound = jnp.all(run.log.info.is_stored & run.log.info.is_finite)
        return theory.measured_regret(best[visited], run.log.raw_reward, cfg.gamma), sound

    return jax.vmap(one)(keys)


@functools.partial(jax.jit, static_argnames=("horizon",))
def run_q_learning(task, best, keys, horizon):
    learner = QLearning(gamma=GAMMA)

    def one(key):
        run = train(key, task, learner, horizon)
        optimal = best[run.log.info.state]
        return theory.measured_regret(optimal, run.log.raw_reward, GAMMA), run.is_sound

    return jax.vmap(one)(keys)


def measure(mdp: MDP, learner: str, horizon: int, seeds: int) -> dict:
    task, best = mdp.task(), solve_tabular(mdp.transition, mdp.reward, GAMMA).v
    keys = jax.vmap(jax.random.key)(jnp.arange(1000, 1000 + seeds))
    if learner == "q-learning":
        regret, sound = run_q_learning(task, best, keys, horizon)
    else:
        regret, sound = run_kql(task, config(mdp, learner, horizon), best, keys, horizon)
    if not np.all(sound):
        raise SystemExit(
            f"{learner}, T = {horizon}: a run is not sound; its regret is not worth printing."
        )
    found = summarise(np.asarray(regret.upper[:, -1], float))
    assumed = assumptions(mdp, horizon)
    return {
        "learner": learner,
        "horizon": horizon,
        "seeds": seeds,
        "regret_iqm": found.iqm,
        "regret_low": found.low,
        "regret_high": found.high,
        "regret_worst": found.max,
        "unseen_tail": float(jnp.max(regret.upper[:, -1] - regret.lower[:, -1])),
        "beta": None if learner == "q-learning" else float(config(mdp, learner, horizon).beta),
        "bound": float(theory.regret_bound(assumed).total),
        "curve_steps": np.unique(np.geomspace(1, horizon, 200).astype(int)).tolist(),
        "curve": np.median(np.asarray(regret.upper), axis=0)[
            np.unique(np.geomspace(1, horizon, 200).astype(int)) - 1
        ].tolist(),
    }


def draw(rows: list[dict], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2))
    longest = max(row["horizon"] for row in rows)
    for learner in LEARNERS:
        mine = [row for row in rows if row["learner"] == learner]
        steps = [row["horizon"] for row in mine]
        slope = growth_exponent(steps, [row["regret_iqm"] for row in mine])
        label = f"{learner} (exponent {slope:.2f})"
        left.plot(
            steps,
            [row["regret_iqm"] for row in mine],
            "o-",
            color=COLOURS[learner],
            label=label,
            markersize=4,
        )
        left.fill_between(
            steps,
            [row["regret_low"] for row in mine],
            [row["regret_high"] for row in mine],
            color=COLOURS[learner],
            alpha=0.2,
        )
        last = next(row for row in mine if row["horizon"] == longest)
        right.plot(last["curve_steps"], last["curve"], color=COLOURS[learner], label=learner)
    bounds = sorted({(row["horizon"], row["bound"]) for row in rows})
    left.plot(*zip(*bounds, strict=True), "k--", label="bound of Theorem 1", linewidth=1)
    left.plot(
        *zip(*((steps, steps) for steps, _ in bounds), strict=True),
        "k:",
        label="T, no regret is larger",
        linewidth=1,
    )
    left.set(xscale="log", yscale="log", xlabel="horizon T", ylabel="gamma-regret after T steps")
    left.set_xticks([steps for steps, _ in bounds], labels=[str(steps) for steps, _ in bounds])
    left.minorticks_off()
    right.set(
        xscale="log",
        yscale="log",
        xlabel=f"step of a run with T = {longest}",
        ylabel="gamma-regret so far (median)",
        ylim=(0.3, None),
    )
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="seeds from 1000 on (default 20)")
    parser.add_argument(
        "--smoke", action="store_true", help="two seeds, T up to 80, nothing written"
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="directory for regret.json and regret.png"
    )
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    mdp = chain(4 if args.smoke else LENGTH)
    horizons, seeds = ((40, 80), 2) if args.smoke else (HORIZONS, args.seeds)
    print(f"{mdp.name}, gamma = {GAMMA}, {seeds} seeds from 1000, regret after T steps")
    print(
        "| learner | T | beta | regret IQM [95%] | worst seed | bound |\n|---|---|---|---|---|---|"
    )
    rows = []
    for learner, horizon in tqdm(
        [(name, steps) for name in LEARNERS for steps in horizons], disable=args.smoke
    ):
        row = measure(mdp, learner, horizon, seeds)
        rows.append(row)
        interval = f"{row['regret_iqm']:.1f} [{row['regret_low']:.1f}, {row['regret_high']:.1f}]"
        beta = "" if row["beta"] is None else f"{row['beta']:.3g}"
        print(
            f"| {learner} | {horizon} | {beta} | {interval} | {row['regret_worst']:.1f} | "
            f"{row['bound']:.3g} |",
            flush=True,
        )
    exponents = {
        learner: growth_exponent(
            horizons, [row["regret_iqm"] for row in rows if row["learner"] == learner]
        )
        for learner in LEARNERS
    }
    print(
        "growth exponents: "
        + ", ".join(f"{learner} {slope:.2f}" for learner, slope in exponents.items())
    )
    if args.smoke:
        return
    args.out.mkdir(parents=True, exist_ok=True)
    document = {
        "mdp": mdp.name,
        "gamma": GAMMA,
        "versions": records.versions(),
        "exponents": exponents,
        "rows": rows,
    }
    records.write(args.out / "regret.json", document)
    draw(rows, args.out / "regret.png")


if __name__ == "__main__":
    main()
