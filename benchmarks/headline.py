"""100 seeds x four tasks of learning in rounds, against the time Stable-Baselines3 needs to train
DQN once.

    python benchmarks/headline.py            # a quarter of an hour on two cores; writes results/headline.json and headline.png
    python benchmarks/headline.py --smoke    # under a minute, for the tests; without Stable-Baselines3

One run, each part warmed up, compilation apart, (a) and (b) in turns and the smallest of each
counted:

  (a) Stable-Baselines3's DQN, one seed of CartPole, the paper's parameters (28,800 updates),
  training only (b) learning in rounds (`kqljax.rounds.DEFAULT`): 100 seeds x four tasks x 1000
  steps and 100 evaluation episodes a seed,
      training and evaluation in one program; training alone in a second one, evaluation is what is left
  (c) our DQN, one seed of CartPole, training only
  (d) Algorithm 1 in plain NumPy on the transitions of a seed of CartPole, learning and acting

Seeds run with `kqljax.across_seeds` on as many CPU devices as there are cores. They are 2000 and
above: nothing was tuned on them. Returns are checked before a time is printed: every run must be
finite, and the interquartile mean of each task at least the paper's figure (199 on CartPole).
"""

import os

# One thread a product: the cores are used by running seeds side by side. What the caller has set
# comes later and wins.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["XLA_FLAGS"] = (
    f"--xla_cpu_multi_thread_eigen=false {os.environ.get('XLA_FLAGS', '')}".strip()
)

import argparse
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import records
import sb3_dqn
from numpy_kql import NumpyKQL
from paper import PAPER, PAPER_TASKS

import kqljax
from kqljax import rounds
from kqljax.baselines import dqn
from kqljax.report import style, summarise

RESULTS = Path(__file__).parent / "results"
DQN_TASK = "CartPole-v0"
DQN_SEED = 1000
FIRST_SEED = 2000
FLOORS = {task: PAPER["kql-rbf"][task][0] for task in PAPER_TASKS} | {"CartPole-v0": 199.0}
"""An interquartile mean below this says that something is broken."""
RATIO = "ratio_kql_100_seeds_to_one_sb3_dqn"


class Size(NamedTuple):
    """How much is run."""

    tasks: tuple[str, ...]
    seeds: int
    steps: int
    dqn_steps: int
    episodes: int
    recipe: rounds.Recipe


FULL = Size(PAPER_TASKS, 100, 1000, 1000, 100, rounds.DEFAULT)
SMALL = dataclasses.replace(
    rounds.DEFAULT, centres=32, finish_centres=64, model_centres=64, backups=5, finish_backups=5
)  # fmt: skip
SMOKE = Size((DQN_TASK,), 2, 60, 150, 2, SMALL)


def clock(function: Callable, *arguments: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = jax.block_until_ready(function(*arguments))
    return time.perf_counter() - start, result


def compiled(run: Callable, *arguments: Any) -> Any:
    """The program of `run`, a seed after the other on every device."""
    options = rounds.CPU_COMPILER_OPTIONS if jax.default_backend() == "cpu" else None
    return kqljax.across_seeds(run).lower(*arguments).compile(compiler_options=options)


class Programs:
    """Learning in rounds on one task, compiled.

    `both(keys)` trains and evaluates: mean returns `[seeds]`, and whether each run was finite.
    `train(keys)` trains: the transitions, and a sum of the whole policy, so that no part of it is
    left out as not needed.
    """

    def __init__(self, name: str, size: Size) -> None:
        task = kqljax.make_task(name)
        self.keys = jax.vmap(jax.random.key)(jnp.arange(FIRST_SEED, FIRST_SEED + size.seeds))

        def both(key: Any) -> Any:
            train_key, eval_key = jax.random.split(key)
            run = kqljax.train(train_key, task, size.recipe, num_steps=size.steps)
            return kqljax.evaluate(
                eval_key, task, run, num_episodes=size.episodes
            ).mean(), run.is_sound

        def train(key: Any) -> Any:
            run = kqljax.train(jax.random.split(key)[0], task, size.recipe, num_steps=size.steps)
            return run.state.transitions, sum(jnp.sum(leaf) for leaf in jax.tree.leaves(run.policy))

        start = time.perf_counter()
        self.both = compiled(both, self.keys)
        self.compile_seconds = time.perf_counter() - start
        self.train = compiled(train, self.keys)


def finite_returns(name: str, found: Any) -> np.ndarray:
    """The seeds' mean returns, if all of them are numbers of sound runs."""
    means, is_finite = (np.asarray(each) for each in found)
    bad = np.flatnonzero(~(is_finite & np.isfinite(means)))
    if bad.size:
        seeds = ", ".join(str(FIRST_SEED + i) for i in bad)
        raise SystemExit(f"{name}: not finite in seeds {seeds}; no time is worth printing.")
    return means


def check_returns(returns: dict[str, np.ndarray]) -> None:
    """The middle of the seeds has to reach the floor of each task."""
    for name, means in returns.items():
        found = summarise(means).iqm
        if not found >= FLOORS[name]:
            raise SystemExit(
                f"{name}: interquartile mean {found:.2f}, below {FLOORS[name]}; no time is worth "
                "printing."
            )


def run_rounds(
    size: Size, repeats: int, between: Callable[[], None], checked: bool = True
) -> tuple[dict, Any]:
    """A row for each task, seconds the smallest of `repeats`, and the first seed's transitions of
    each task.

    Everything runs once before anything is timed, and its returns are checked; `between` runs after
    each repeat.
    """
    programs = {name: Programs(name, size) for name in size.tasks}
    warm = {
        name: finite_returns(name, jax.block_until_ready(each.both(each.keys)))
        for name, each in programs.items()
    }
    if checked:
        check_returns(warm)
    rows, transitions = {}, {}
    for name, each in programs.items():
        numbers = {
            "seconds": float("inf"),
            "training_seconds": float("inf"),
            "compile_seconds": each.compile_seconds,
        }
        rows[name] = numbers | {"iqm": summarise(warm[name]).iqm, "returns": warm[name].tolist()}
    for _ in range(repeats):
        for name, each in programs.items():
            seconds, found = clock(each.both, each.keys)
            if not np.array_equal(finite_returns(name, found), warm[name]):
                raise SystemExit(
                    f"{name}: two runs of the same seeds returned differently; no time is worth "
                    "printing."
                )
            trained, (stored, _) = clock(each.train, each.keys)
            rows[name]["seconds"] = min(rows[name]["seconds"], seconds)
            rows[name]["training_seconds"] = min(rows[name]["training_seconds"], trained)
            transitions[name] = jax.tree.map(lambda leaf: np.asarray(leaf[0]), stored)
        between()
    return rows, transitions


def run_our_dqn(steps: int, episodes: int) -> dict:
    task = kqljax.make_task(DQN_TASK)
    learner = dqn.paper_config(DQN_TASK)
    start = time.perf_counter()
    program = (
        jax.jit(lambda key: kqljax.train(key, task, learner, steps).policy)
        .lower(jax.random.key(1))
        .compile()
    )
    compile_seconds = time.perf_counter() - start
    jax.block_until_ready(program(jax.random.key(1)))
    seconds, policy = clock(program, jax.random.key(DQN_SEED))
    mean = float(kqljax.evaluate(jax.random.key(FIRST_SEED), task, policy, episodes).mean())
    return {"seconds": seconds, "compile_seconds": compile_seconds, "return": mean}


def run_numpy(transitions: rounds.Transitions) -> dict:
    """Plain NumPy on a recorded run of CartPole: acting and learning at every step."""
    task = kqljax.make_task(DQN_TASK)
    rows = (transitions.obs, transitions.action, transitions.reward, transitions.next_obs)
    steps = int(transitions.count)

    def learn(count: int) -> None:
        agent = NumpyKQL(task.obs_dim, task.num_actions, steps, task.eta)
        for obs, action, reward, next_obs in zip(*(column[:count] for column in rows), strict=True):
            agent.act(obs)
            agent.step(obs, int(action), float(reward), next_obs)

    learn(min(steps, 50))
    return {"seconds": clock(learn, steps)[0], "steps": steps}


def table(document: dict) -> str:
    """What docs/results.md shows, in Markdown."""
    seconds, settings, rows = document["seconds"], document["settings"], document["rounds"]
    count = {1: "one task", 4: "four tasks"}.get(len(rows), f"{len(rows)} tasks")
    ours = f"learning in rounds, {settings['seeds']} seeds × {count}, training and evaluation"  # noqa: RUF001
    lines = ["| | seconds |", "|---|---|"]
    if "sb3_dqn" in seconds:
        lines.append(f"| SB3 DQN, one seed of CartPole, training | {seconds['sb3_dqn']:.1f} |")
    lines.append(f"| **{ours}** | **{seconds['rounds']:.1f}** |")
    if RATIO in document:
        lines.append(f"| the ratio of these two | {document[RATIO]:.2f} |")
    lines += [
        f"| our DQN, one seed of CartPole, training | {seconds['our_dqn']:.1f} |",
        f"| Algorithm 1 in NumPy, one seed of CartPole, training | {seconds['numpy']:.1f} |",
        "",
        f"| task | {settings['seeds']} seeds, seconds | of these training | evaluation | "
        "compilation, apart | IQM over the seeds | must be at least |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        evaluation = row["seconds"] - row["training_seconds"]
        lines.append(
            f"| {name} | {row['seconds']:.1f} | {row['training_seconds']:.1f} | {evaluation:.1f} "
            f"| {row['compile_seconds']:.1f} | {row['iqm']:.1f} | {settings['floors'][name]:.2f} |"
        )
    return "\n".join(lines)


def draw(document: dict, path: Path) -> Path:
    """Return against seconds: every seed at the time that all seeds of its task took, DQN's one
    seed at its own.
    """
    rows, ours, floors = document["rounds"], document["our_dqn"], document["settings"]["floors"]
    sb3 = {record["task"]: record for record in document["sb3_of_tasks"]}
    times = [each["seconds"] for each in (*rows.values(), *sb3.values(), ours)]
    ends = min(times) / 1.6, max(times) * 1.6
    ticks = [
        tick
        for tick in (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)
        if ends[0] <= tick <= ends[1]
    ]
    dots = {"marker": "o", "color": "#0072B2", "alpha": 0.4, "linewidth": 0}
    cross, diamond = {"marker": "X", "color": "#D55E00"}, {"marker": "D", "color": "#009E73"}
    floor = {"color": style.QUIET, "lw": 1, "ls": "--"}
    figure, axes = style.panels(len(rows), 2.8, 3.0, share_y=False, columns=4)
    for axis, (name, row) in zip(axes, rows.items(), strict=True):
        axis.axhline(floors[name], **floor)
        axis.scatter(np.full(len(row["returns"]), row["seconds"]), row["returns"], s=14, **dots)
        if name in sb3:
            axis.scatter(sb3[name]["seconds"], sb3[name]["return_mean"], s=60, **cross)
        if name == DQN_TASK:
            axis.scatter(ours["seconds"], ours["return"], s=40, **diamond)
        axis.set(xscale="log", title=name, xlabel="seconds", xlim=ends)
        axis.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("mean return of a seed")
    seeds, cores = document["settings"]["seeds"], document["device"]["cpu_cores"]
    marks = [
        style.line(
            f"learning in rounds, all {seeds} seeds",
            linestyle="",
            **(dots | {"alpha": 0.7, "linewidth": 1}),
        ),
        style.line("SB3 DQN, one seed", linestyle="", **cross),
        style.line("our DQN, one seed", linestyle="", **diamond),
        style.line(f"the paper's figure ({FLOORS['CartPole-v0']:.0f} on CartPole)", **floor),
    ]
    return style.save(style.finish(figure, marks, f"1000 steps a seed, {cores} cores"), path)


def prepare_sb3() -> None:
    """Torch and SB3, warm."""
    try:
        import stable_baselines3  # noqa: F401
        import torch
    except ImportError as error:
        raise SystemExit(sb3_dqn.MISSING.format(error=error)) from error
    torch.set_num_threads(1)  # small networks gain nothing from more
    sb3_dqn.run(DQN_TASK, 1, 150, 1)  # its first steps load and allocate


def main(argv: Sequence[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="one task, two seeds, 60 steps, two episodes, no SB3, nothing written",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=2,
        help="turns of (a) and (b), the smallest counts (default 2)",
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="directory for headline.json and headline.png"
    )
    args = parser.parse_args(argv)
    if args.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {args.repeats}")
    jax.config.update("jax_enable_x64", True)
    size, repeats = (SMOKE, 1) if args.smoke else (FULL, args.repeats)
    sb3: list[dict] = []

    def train_sb3() -> None:
        sb3.append(sb3_dqn.run(DQN_TASK, DQN_SEED, size.dqn_steps, size.episodes))
        print(f"SB3 DQN, one seed of {DQN_TASK}: {sb3[-1]['seconds']:.1f} s", flush=True)

    if not args.smoke:
        jax.config.update(
            "jax_num_cpu_devices", os.cpu_count()
        )  # fails after jax's first use: the tests do without
        style.require_matplotlib()
        records.prepare_directory(args.out)
        prepare_sb3()
    rows, transitions = run_rounds(
        size, repeats, (lambda: None) if args.smoke else train_sb3, checked=not args.smoke
    )
    ours, plain = run_our_dqn(size.dqn_steps, size.episodes), run_numpy(transitions[DQN_TASK])
    total = sum(row["seconds"] for row in rows.values())
    document = {
        "seconds": {"rounds": total, "our_dqn": ours["seconds"], "numpy": plain["seconds"]},
        "settings": {
            "seeds": size.seeds,
            "first_seed": FIRST_SEED,
            "steps": size.steps,
            "episodes": size.episodes,
            "repeats": repeats,
            "floors": FLOORS,
            "recipe": repr(size.recipe),
        },
        "rounds": rows,
        "our_dqn": ours,
        "numpy": plain,
        "versions": records.versions(),
        "device": records.device(),
    }
    if not args.smoke:
        best = min(sb3, key=lambda record: record["seconds"])
        others = [
            name for name in size.tasks if name != DQN_TASK
        ]  # one seed of these too, for the figure
        of_tasks = [
            best,
            *(sb3_dqn.run(name, DQN_SEED, size.dqn_steps, size.episodes) for name in others),
        ]
        document = {
            RATIO: total / best["seconds"],
            **document,
            "sb3": sb3,
            "sb3_of_tasks": of_tasks,
        }
        document["seconds"] = {"sb3_dqn": best["seconds"], **document["seconds"]}
        records.write(args.out / "headline.json", document)
        print(
            f"wrote {args.out / 'headline.json'} and {draw(document, args.out / 'headline.png')}\n"
        )
    print(table(document))
    return document


if __name__ == "__main__":
    main()
