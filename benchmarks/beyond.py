"""Beyond classic control, a first look: deep exploration, and a game of pixels, with up to 50,000 environment steps.

    python benchmarks/beyond.py                   # both parts, tens of minutes; writes results/beyond.json and beyond.png
    python benchmarks/beyond.py --parts deepsea   # one part; what the file holds of the other one stays
    python benchmarks/beyond.py --smoke           # seconds, for the tests

A run that is stopped goes on where it was. Everything is float32 and the weight-space engine; reported seeds are 1000 and
above, everything was tuned on seeds below 1000.

deepsea: bsuite's DeepSea in gymnax. From the top left corner of an N x N grid every step goes one row down, to the left or to
the right; right costs 0.01 / N, and 1 is paid for going right all N times. Which action is "right" is drawn for every cell,
anew for every seed. Random actions get there once in 2^N episodes. Both algorithms see the N^2 numbers of the grid, one of
them 1. On those RBF(2) is all but the kernel of a table, exp(-16) between two cells: no hint about neighbours is given. Its
features are Nystrom features of all cells that can be reached.
KQL gets 5 N^2 steps, that is 5 N episodes, with or without optimism (`kql-greedy` has beta = 0); DQN gets 50,000 steps at
every depth, one gradient step each, and epsilon falls from 1 to 0.1 over all of them. Solved means: after training, the policy
without exploration reaches the goal.

breakout: MinAtar's Breakout in gymnax, 400 binary pixels, +1 for a brick, the end where the paddle misses the ball. KQL has
256 random Fourier features, keeps a uniform sample of 4000 transitions and renews 32 rows of its table a step, so that no
step costs O(T). DQN makes one gradient step an environment step, not the 32 of the paper's comparison. All get 50,000 steps
and the same pixels. A policy without randomness plays at most two different games, one for each side the ball may start on,
so the table has two figures: the mean return of the episodes that ended in the last fifth of training (DQN still takes 5%
random actions there), and 100 episodes of the final policy.
"""

import argparse
import dataclasses
import itertools
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import records
from gymnax.environments import spaces
from paper import COLOURS
from tqdm import tqdm

import kqljax
from kqljax import features, rounds
from kqljax.baselines import dqn, random, train
from kqljax.report import style, summarise

PARTS = ("deepsea", "breakout")
FIRST_SEED = 1000
CURVE_POINTS = 25


class Size(NamedTuple):
    """How much is run: seeds of each algorithm, for each depth and for Breakout."""

    depths: dict[int, dict[str, int]]
    deepsea_dqn_steps: int
    breakout: dict[str, int]
    breakout_steps: int
    frequencies: int
    episodes: int
    compiler_options: dict


FULL = Size(
    depths={
        5: {"kql-rbf": 10, "kql-greedy": 10, "dqn": 10},
        10: {"kql-rbf": 10, "kql-greedy": 10, "dqn": 10},
        20: {"kql-rbf": 10, "dqn": 10},
        30: {"kql-rbf": 10, "dqn": 5},
    },
    deepsea_dqn_steps=50_000,
    breakout={"kql-rbf": 5, "dqn": 5, "random": 5},
    breakout_steps=50_000,
    frequencies=128,
    episodes=100,
    compiler_options={},
)
SMOKE = Size(
    depths={4: {"kql-rbf": 1, "dqn": 1}},
    deepsea_dqn_steps=120,
    breakout={"kql-rbf": 1},
    breakout_steps=120,
    frequencies=16,
    episodes=2,
    # Nearly all of the time goes to the compiler.
    compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True},
)


# Environments --------------------------------------------------------------------------------------------------------


class Flat:
    """A gymnax environment whose observation is a vector."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.name = env.name
        self.length = int(np.prod(env.observation_space(env.default_params).shape))

    @property
    def default_params(self) -> Any:
        return self.env.default_params

    def reset(self, key, params):
        obs, state = self.env.reset(key, params)
        return obs.ravel(), state

    def step(self, key, state, action, params):
        obs, state, reward, terminated, truncated, info = self.env.step(key, state, action, params)
        info = {**info, "final_observation": info["final_observation"].ravel()}
        return obs.ravel(), state, reward, terminated, truncated, info

    def observation_space(self, params):
        return spaces.Box(0, 1, (self.length,), jnp.float32)

    def action_space(self, params):
        return self.env.action_space(params)


class SeaParams(NamedTuple):
    """DeepSea's parameters, and `[N, N]` bool: the cells where action 0 is "right"."""

    inner: Any
    is_swapped: Any


class DeepSea(Flat):
    """DeepSea with its map of actions as a parameter: gymnax keeps it in the object, and every seed would compile anew."""

    def __init__(self, depth: int) -> None:
        super().__init__(gymnax.make("DeepSea-bsuite", size=depth)[0])
        self.depth = depth

    @property
    def default_params(self) -> SeaParams:
        return SeaParams(self.env.default_params.replace(randomize_actions=False), np.zeros((self.depth,) * 2, bool))

    def reset(self, key, params):
        return super().reset(key, params.inner)

    def step(self, key, state, action, params):
        is_swapped = jnp.asarray(params.is_swapped)[state.row, state.column]
        return super().step(key, state, jnp.where(is_swapped, 1 - action, action), params.inner)

    def action_space(self, params):
        return self.env.action_space(params.inner)


def deepsea_task(depth: int) -> kqljax.Task:
    cost = 0.01 / depth
    return kqljax.Task.wrap(DeepSea(depth), reward_range=(-cost, 1.0 - cost), max_steps=depth, name=f"DeepSea-{depth}")


def with_own_map(task: kqljax.Task, seed: int) -> kqljax.Task:
    is_swapped = np.random.default_rng(seed).random((task.env.depth,) * 2) < 0.5
    return dataclasses.replace(task, params=task.params._replace(is_swapped=is_swapped))


def breakout_task() -> kqljax.Task:
    env = Flat(gymnax.make("Breakout-MinAtar")[0])
    # A pixel becomes -1/4 or 1/4: another action (squared distance 2) then counts as much as eight other pixels. With
    # -1 and 1 it would count as half a pixel, and the kernel would see the three actions as one.
    bounds = np.full(env.length, -1.5), np.full(env.length, 2.5)
    return kqljax.Task.wrap(env, reward_range=(0.0, 1.0), obs_bounds=bounds)


# Settings, tuned on seeds below 1000 ---------------------------------------------------------------------------------


def deepsea_kql(task: kqljax.Task, depth: int, is_greedy: bool) -> kqljax.KQLConfig:
    kernel = kqljax.RBF(eta=2.0)
    # Every cell that can be reached, and the empty grid at the end.
    cells = np.ravel_multi_index(np.tril_indices(depth), (depth, depth))
    grids = np.concatenate([np.eye(depth**2)[cells], np.zeros((1, depth**2))])
    chosen = features.nystrom(kernel, task.normalise(grids), task.num_actions, tolerance=0.5)
    beta = {"beta": 0.0} if is_greedy else {}
    # After one visit the bonus is 1000 times smaller than before: in a world without noise one look is enough.
    return task.config(kernel, 5 * depth**2, lam=1e-6, features=chosen, tie_break="random", **beta)


def deepsea_dqn() -> dqn.DQN:
    return dqn.DQN(
        learning_rate=1e-3,
        gamma=0.99,
        exploration_fraction=1.0,
        epsilon_end=0.1,
        gradient_steps=1,
        batch_size=32,
        target_update_interval=100,
        buffer_size=50_000,
    )


def breakout_kql(task: kqljax.Task, steps: int, frequencies: int) -> kqljax.KQLConfig:
    kernel = kqljax.RBF(eta=0.2)
    chosen = features.fourier(kernel, task.obs_dim, task.num_actions, frequencies)
    rows = {"refresh_rows": 32, "memory": 4000, "eviction": "reservoir"}
    return task.config(kernel, steps, gamma=0.98, features=chosen, tie_break="random", **rows)


def breakout_dqn() -> dqn.DQN:
    return dqn.DQN(
        learning_rate=1e-3,
        gamma=0.99,
        exploration_fraction=0.2,
        epsilon_end=0.05,
        gradient_steps=1,
        batch_size=32,
        target_update_interval=500,
        hidden=(128, 128),
        buffer_size=50_000,
    )


def described(cfg: Any) -> dict:
    """The numbers of a config, for the results file."""
    if isinstance(cfg, kqljax.KQLConfig):
        names = ("horizon", "gamma", "lam", "beta", "terminal_value", "refresh_rows", "memory", "eviction", "tie_break")
        shown = {name: getattr(cfg, name) for name in names}
        size = {"num_features": cfg.features.num_features, "num_weights": cfg.features.num_weights}
        return {**shown, "kernel": str(cfg.kernel), "features": type(cfg.features).__name__, **size}
    return {field.name: getattr(cfg, field.name) for field in dataclasses.fields(cfg)}


# Runs ----------------------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """`[T]` rewards, returns so far and ends of episodes in training; `[E]` returns after it; worst KQL residual."""

    raw_reward: Any
    episode_return: Any
    is_over: Any
    returns: Any
    residual: Any


def train_and_evaluate(task, cfg, key, steps: int, episodes: int) -> Outcome:
    train_key, eval_key = jax.random.split(key)
    residual = jnp.zeros(())
    if isinstance(cfg, kqljax.KQLConfig):
        run = kqljax.train(task, cfg, train_key, steps, dtype=jnp.float32, stages=1)
        returns = kqljax.evaluate(task, cfg, run.state, eval_key, episodes)
        residual = jnp.max(run.log.info.residual)
    else:
        run = train(train_key, task, cfg, steps)
        returns = rounds.evaluate(eval_key, task, run.policy, episodes)
    log = run.log
    return Outcome(log.raw_reward, log.episode_return, log.terminated | log.truncated, returns, residual)


class Bench:
    """The results document, and a bar over all runs that are still to be made."""

    def __init__(self, out: Path | None, total: int, compiler_options: dict) -> None:
        self.out = out
        self.compiler_options = compiler_options
        self.document: dict = {"settings": {}, "results": []}
        if out is not None:
            records.prepare_directory(out.parent)
            if out.exists():
                self.document = records.read(out)
        self.bar = tqdm(total=total, unit="run", disable=out is None)

    def run(self, task: kqljax.Task, name: str, cfg: Any, steps: int, episodes: int, seeds: range, make_task=None, sum_up=None):
        """Records of one algorithm on one task, those in the file and new ones."""
        # As it will be read from the file: a tuple comes back as a list.
        settings = json.loads(json.dumps({"steps": steps, "episodes": episodes, **described(cfg)}))
        of_task = self.document["settings"].setdefault(task.name, {})
        if of_task.get(name) != settings:
            self.document["results"] = [r for r in self.document["results"] if (r["task"], r["algorithm"]) != (task.name, name)]
        of_task[name] = settings
        done = {r["seed"]: r for r in self.document["results"] if (r["task"], r["algorithm"]) == (task.name, name)}
        self.bar.set_description(f"{task.name} {name}")
        if not done.keys() >= set(seeds):
            program = jax.jit(train_and_evaluate, static_argnums=(3, 4))
            program = program.lower(task, cfg, jax.random.key(0), steps, episodes)
            program = program.compile(compiler_options=self.compiler_options)
        for seed in seeds:
            if seed not in done:
                start = time.perf_counter()
                outcome = self._wait(program(make_task(task, seed) if make_task else task, cfg, jax.random.key(seed)))
                seconds = time.perf_counter() - start
                done[seed] = {"task": task.name, "algorithm": name, "seed": seed, **sum_up(outcome), "seconds": seconds}
                self.document["results"].append(done[seed])
                # Of the run, not of a later call that only draws the figure.
                self.document |= {"versions": records.versions(), "device": records.device(), "dtype": "float32"}
                self.save()
            self.bar.update()
        return [done[seed] for seed in seeds]

    def _wait(self, outcome: Outcome) -> Outcome:
        # A run is one call and may take minutes: the bar's clock goes on meanwhile.
        while not all(leaf.is_ready() for leaf in outcome):
            time.sleep(0.1)
            self.bar.refresh()
        return Outcome(*(np.asarray(leaf) for leaf in outcome))

    def save(self) -> None:
        if self.out is not None:
            records.write(self.out, self.document)


def sum_up_deepsea(outcome: Outcome) -> dict:
    goals = np.flatnonzero(outcome.raw_reward > 0.5)
    before = int(outcome.is_over[: goals[0]].sum()) if goals.size else None
    return {
        "episodes": int(outcome.is_over.sum()),
        "first_goal_episode": None if before is None else before + 1,
        "num_goals": int(goals.size),
        "return_mean": float(outcome.returns.mean()),
        "is_solved": bool(np.all(outcome.returns > 0.5)),
        "residual": float(outcome.residual),
    }


def sum_up_breakout(outcome: Outcome) -> dict:
    ends = np.flatnonzero(outcome.is_over)
    returns, steps = outcome.episode_return[ends], len(outcome.is_over)
    edges = np.linspace(0, steps, CURVE_POINTS + 1)
    # One number for each stretch of training; a stretch in which no episode ended has none.
    curve = [returns[(ends >= low) & (ends < high)] for low, high in itertools.pairwise(edges)]
    late = returns[ends >= 0.8 * steps]
    return {
        "episodes": int(ends.size),
        "training_return": float(late.mean()) if late.size else None,
        "return_mean": float(outcome.returns.mean()),
        "curve_steps": [float(edge) for edge in edges[1:]],
        "curve": [float(part.mean()) if part.size else None for part in curve],
        "residual": float(outcome.residual),
    }


def deepsea(bench: Bench, size: Size) -> None:
    rows = []
    for depth, counts in size.depths.items():
        task = deepsea_task(depth)
        for name, count in counts.items():
            cfg = deepsea_dqn() if name == "dqn" else deepsea_kql(task, depth, name == "kql-greedy")
            steps = size.deepsea_dqn_steps if name == "dqn" else cfg.horizon
            seeds = range(FIRST_SEED, FIRST_SEED + count)
            found = bench.run(task, name, cfg, steps, 1, seeds, with_own_map, sum_up_deepsea)
            firsts = [r["first_goal_episode"] for r in found if r["first_goal_episode"] is not None]
            solved = sum(r["is_solved"] for r in found)
            first = f"{np.median(firsts):.0f} ({min(firsts)} .. {max(firsts)})" if firsts else "never"
            seconds = np.median([r["seconds"] for r in found])
            rows.append(
                f"| {depth} | {name} | {steps} | {solved} of {count} | {len(firsts)} of {count} | {first} | {seconds:.1f} |"
            )
    tqdm.write("| depth | algorithm | steps | solved | goal seen | first goal, episode: median (range) | seconds a seed |")
    tqdm.write("|---|---|---|---|---|---|---|\n" + "\n".join(rows))


def breakout(bench: Bench, size: Size) -> None:
    task = breakout_task()
    steps = size.breakout_steps
    configs = {
        "kql-rbf": breakout_kql(task, steps, size.frequencies),
        "dqn": breakout_dqn(),
        "random": random.Random(),
    }
    rows = []
    for name, count in size.breakout.items():
        seeds = range(FIRST_SEED, FIRST_SEED + count)
        found = bench.run(task, name, configs[name], steps, size.episodes, seeds, None, sum_up_breakout)
        seconds = np.median([r["seconds"] for r in found])
        rows.append(f"| {name} | {count} | {_cell(found, 'training_return')} | {_cell(found, 'return_mean')} | {seconds:.1f} |")
    tqdm.write(f"{task.name}, {steps} steps, seeds from {FIRST_SEED}: IQM [95%], worst .. best seed")
    tqdm.write("| algorithm | seeds | last fifth of training | policy after training | seconds a seed |\n|---|---|---|---|---|")
    tqdm.write("\n".join(rows))


def _cell(found: list[dict], name: str) -> str:
    values = [r[name] for r in found if r[name] is not None]
    if not values:
        return "no episode ended"
    s = summarise(values)
    return f"{s.iqm:.2f} [{s.low:.2f}, {s.high:.2f}], {s.min:.2f} .. {s.max:.2f}"


# Figure --------------------------------------------------------------------------------------------------------------


def draw(document: dict, path: Path) -> None:
    """Left: episodes until the goal of DeepSea was first reached. Right: learning curves of Breakout."""
    style.require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 4.2), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_deepsea(left, [r for r in document["results"] if "first_goal_episode" in r])
    _draw_breakout(right, [r for r in document["results"] if "curve" in r])
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#E8E8E8", lw=0.7)
        panel.set_axisbelow(True)
    left.legend(frameon=False, fontsize=8.5, loc="upper right", bbox_to_anchor=(1.0, 0.87))
    right.legend(frameon=False, fontsize=8.5, loc="upper left")
    figure.savefig(path, facecolor="white")


def _draw_deepsea(panel: Any, found: list[dict]) -> None:
    panel.set_title("DeepSea: how long until the goal is seen", loc="left", fontsize=10.5)
    panel.set_xlabel("depth N")
    panel.set_ylabel("episodes until the goal is first reached")
    panel.set_yscale("log")
    if not found:
        return
    depths = sorted({int(r["task"].split("-")[1]) for r in found})
    never = 2e5
    rng = np.random.default_rng(0)
    for offset, name in ((-1.0, "kql-rbf"), (0.0, "kql-greedy"), (1.0, "dqn")):
        mine = [r for r in found if r["algorithm"] == name]
        if not mine:
            continue
        x = np.array([int(r["task"].split("-")[1]) for r in mine]) + offset + rng.uniform(-0.4, 0.4, len(mine))
        seen = np.array([r["first_goal_episode"] is not None for r in mine])
        y = np.array([r["first_goal_episode"] or never * np.exp(rng.uniform(-0.25, 0.25)) for r in mine])
        solved = np.array([r["is_solved"] for r in mine])
        colour = COLOURS[name]
        if np.any(solved):
            panel.scatter(x[solved], y[solved], s=22, color=colour, linewidths=0, label=f"{name}, solved at the end")
        if np.any(seen & ~solved):
            open_ = seen & ~solved
            panel.scatter(x[open_], y[open_], s=22, facecolors="none", edgecolors=colour, label=f"{name}, seen, not solved")
        if np.any(~seen):
            panel.scatter(x[~seen], y[~seen], s=20, marker="x", lw=1.0, color=colour, label=f"{name}, never seen")
    line = np.linspace(depths[0], 17.2, 50)
    panel.plot(line, 2.0**line, color=COLOURS["random"], lw=1.2, ls=(0, (5, 3)), label="random actions: $2^N$ expected")
    panel.axhline(never / 1.7, color="#8C8C8C", lw=0.8)
    panel.set_xticks(depths)
    panel.set_ylim(0.7, 4.5e5)
    panel.set_yticks([1, 10, 100, 1000, 10_000, never], ["1", "10", "100", "1000", "10 000", "never"])
    panel.minorticks_off()


def _draw_breakout(panel: Any, found: list[dict]) -> None:
    panel.set_title("Breakout-MinAtar: return of training episodes", loc="left", fontsize=10.5)
    panel.set_xlabel("environment steps")
    panel.set_ylabel("return")
    for name in dict.fromkeys(r["algorithm"] for r in found):
        mine = [r for r in found if r["algorithm"] == name]
        steps = np.array(mine[0]["curve_steps"])
        curves = np.array([[np.nan if value is None else value for value in r["curve"]] for r in mine])
        for one in curves:
            panel.plot(steps, one, color=COLOURS[name], lw=0.7, alpha=0.45)
        panel.plot(
            steps, np.nanmean(curves, axis=0), color=COLOURS[name], lw=2.2, label=f"{name}, mean of {len(mine)} seeds"
        )
    panel.set_ylim(bottom=0)


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to run (default both)")
    parser.add_argument("--smoke", action="store_true", help="depth 4 and 120 steps, one seed, nothing written")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "beyond.json", help="results file")
    args = parser.parse_args(argv)
    size = SMOKE if args.smoke else FULL
    counts = {"deepsea": sum(sum(of.values()) for of in size.depths.values()), "breakout": sum(size.breakout.values())}
    # float32 also where a caller has float64 enabled.
    with jax.enable_x64(False):
        bench = Bench(None if args.smoke else args.out, sum(counts[part] for part in args.parts), size.compiler_options)
        for part in args.parts:
            {"deepsea": deepsea, "breakout": breakout}[part](bench, size)
        bench.bar.close()
    if not args.smoke:
        bench.save()
        figure = args.out.with_suffix(".png")
        draw(bench.document, figure)
        print(f"written to {args.out} and {figure}")


if __name__ == "__main__":
    main()
