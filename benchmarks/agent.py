"""What the agent costs: a first result in a fresh process, one prediction, and a step of a long
run.

    python benchmarks/agent.py            # a quarter of an hour; writes results/agent.json
    python benchmarks/agent.py --smoke    # a minute, for the tests

  fresh    CPU seconds of a whole process: import, compilation, `learn(1000)` and `evaluate(20)` on
           MountainCar; the same with what jax has compiled before on disk; and Algorithm 1 in plain
           NumPy (`numpy_kql.py`) for 1000 steps, for comparison
  predict  seconds of one observation, after the first; the median of 1000 long     `learn(200_000)`
  on CartPole-v1: seconds a step early and late, fits included, and the largest memory

Every part is a process of its own, one after another: leave the machine alone.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"
EARLY, LATE = (15_000, 25_000), (90_000, 110_000)
"""Steps of the long run that are compared."""
FULL = {
    "steps": 1000,
    "episodes": 20,
    "predictions": 1000,
    "long": 200_000,
    "early": EARLY,
    "late": LATE,
}
SMOKE = {
    "steps": 30,
    "episodes": 2,
    "predictions": 20,
    "long": 300,
    "early": (100, 150),
    "late": (200, 250),
}

# What runs in a process of its own ----------------------------------------------------------------


def run_agent(size: dict[str, Any], cache: str | None = None) -> dict:
    """A first result, as a user has it."""
    if cache:
        import jax

        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    import kqljax

    agent = kqljax.KQL("MountainCar-v0", seed=0).learn(size["steps"])
    return {"return": agent.evaluate(size["episodes"]).mean}


def run_numpy(size: dict[str, Any]) -> dict:
    """Algorithm 1, without evaluation."""
    import gymnasium
    from numpy_kql import NumpyKQL

    env = gymnasium.make("MountainCar-v0")
    learner = NumpyKQL(2, 3, size["steps"])

    def unit(obs: np.ndarray) -> np.ndarray:
        return (obs - [-0.3, 0.0]) / [0.9, 0.07]

    obs, _ = env.reset(seed=0)
    for _ in range(size["steps"]):
        action = learner.act(unit(obs))
        after, reward, terminated, truncated, _ = env.step(action)
        learner.step(unit(obs), action, reward + 1.0, unit(after))
        obs = env.reset()[0] if terminated or truncated else after
    return {}


def run_predict(size: dict[str, Any]) -> dict:
    """One observation after another."""
    import kqljax

    agent = kqljax.KQL("MountainCar-v0", seed=0).learn(size["steps"])
    asked = np.random.default_rng(0).uniform(
        [-1.2, -0.07], [0.6, 0.07], (size["predictions"] + 1, 2)
    )
    seconds = []
    for obs in asked:
        start = time.perf_counter()
        agent.predict(obs)
        seconds.append(time.perf_counter() - start)
    return {"median_seconds": float(np.median(seconds[1:])), "first_seconds": seconds[0]}


def run_long(size: dict[str, Any]) -> dict:
    """A long run; `time_at` holds the seconds at which the steps to compare began and ended."""
    import kqljax

    wanted = {*size["early"], *size["late"]}
    time_at: dict[int, float] = {}

    def watch(agent: kqljax.KQL, step: kqljax.AgentStep) -> None:
        if step.num_timesteps in wanted:
            time_at[step.num_timesteps] = time.perf_counter()

    start = time.perf_counter()
    agent = kqljax.KQL("CartPole-v1", seed=0).learn(size["long"], watch, progress_bar=True)
    seconds = time.perf_counter() - start

    def a_step(span: Sequence[int]) -> float:
        return (time_at[span[1]] - time_at[span[0]]) / (span[1] - span[0])

    return {
        "seconds": seconds,
        "early_seconds_a_step": a_step(size["early"]),
        "late_seconds_a_step": a_step(size["late"]),
        "return": agent.evaluate(size["episodes"]).mean,
        "agent": repr(agent),
    }


CHILDREN = {"agent": run_agent, "numpy": run_numpy, "predict": run_predict, "long": run_long}

# The parent ---------------------------------------------------------------------------------------


def child(name: str, is_smoke: bool, **more: Any) -> dict:
    """Runs a part in a fresh process on one core: its result, CPU seconds and largest memory."""
    command = [
        sys.executable,
        __file__,
        "--child",
        name,
        "--arguments",
        json.dumps(more),
        *(["--smoke"] if is_smoke else []),
    ]
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the part {name} failed; its error is above.")
    found = json.loads(printed.splitlines()[-1])
    return found | {
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "max_rss_gib": usage.ru_maxrss / 2**20,
    }


def measure(is_smoke: bool) -> dict:
    import records

    size = SMOKE if is_smoke else FULL
    found: dict[str, Any] = {"settings": size}
    with tempfile.TemporaryDirectory() as cache:
        found["numpy"] = child("numpy", is_smoke)
        found["cold"] = child("agent", is_smoke)
        child("agent", is_smoke, cache=cache)  # fills the cache
        found["warm"] = child("agent", is_smoke, cache=cache)
    found["predict"] = child("predict", is_smoke)
    found["long"] = child("long", is_smoke)
    numpy = found["numpy"]["cpu_seconds"]
    found["ratios"] = {
        "cold_to_numpy": found["cold"]["cpu_seconds"] / numpy,
        "warm_to_numpy": found["warm"]["cpu_seconds"] / numpy,
        "late_to_early_step": found["long"]["late_seconds_a_step"]
        / found["long"]["early_seconds_a_step"],
    }
    return found | {"versions": records.versions(), "device": records.device()}


def table(found: dict) -> str:
    """What docs/results.md shows, in Markdown."""
    size, numpy, long = found["settings"], found["numpy"], found["long"]
    ratios = found["ratios"]
    early, late = (f"steps {low:,} to {high:,}" for low, high in (size["early"], size["late"]))
    return "\n".join(
        [
            "| | CPU seconds | beside NumPy |",
            "|---|---|---|",
            f"| Algorithm 1 in NumPy, {size['steps']} steps of MountainCar | "
            f"{numpy['cpu_seconds']:.1f} | 1 |",
            f"| the agent in a fresh process, with {size['episodes']} episodes | "
            f"{found['cold']['cpu_seconds']:.1f} | {ratios['cold_to_numpy']:.1f} |",
            f"| the same, compiled before | {found['warm']['cpu_seconds']:.1f} | "
            f"{ratios['warm_to_numpy']:.1f} |",
            "",
            f"One prediction takes {1e3 * found['predict']['median_seconds']:.2f} ms. "
            f"`learn({size['long']:_})` on CartPole-v1 takes {long['max_rss_gib']:.2f} GiB and "
            f"{long['seconds']:.0f} s: {1e3 * long['early_seconds_a_step']:.2f} ms a step in "
            f"{early}, {1e3 * long['late_seconds_a_step']:.2f} ms in {late}.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="next to nothing, to see that it runs; nothing is written",
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="directory for agent.json (default %(default)s)"
    )
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    parser.add_argument("--arguments", default="{}", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        found = CHILDREN[options.child](
            SMOKE if options.smoke else FULL, **json.loads(options.arguments)
        )
        print(json.dumps(found))
        return found
    import records

    out = records.prepare_directory(options.out)
    found = measure(options.smoke)
    if not options.smoke:
        records.write(out / "agent.json", found)
    print(table(found))
    return found


if __name__ == "__main__":
    main()
