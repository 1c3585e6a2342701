"""DQN of Stable-Baselines3 at the paper's settings: the figures that `kqljax.baselines.dqn` is
compared with.

    python benchmarks/sb3_dqn.py --task CartPole-v0 --task MountainCar-v0 --seeds 2 --out sb3_dqn.json

It needs stable-baselines3 (`pip install 'kqljax[sb3]'`) and knows nothing of the library: raw
observations, raw rewards, gymnasium's own environments. Every seed is trained for --steps steps and
evaluated greedily on --episodes episodes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

MISSING = (
    "stable-baselines3 is not installed ({error}). This benchmark compares with it: pip install "
    "'kqljax[sb3]', or pip install stable-baselines3."
)

# RL Baselines3 Zoo, with what the paper's section 6 changes (SHARED).
SHARED: dict[str, Any] = {
    "batch_size": 64,
    "learning_starts": 100,
    "target_update_interval": 10,
    "train_freq": 1,
    "gradient_steps": 32,
    "gamma": 0.95,
}
TASKS: dict[str, dict[str, Any]] = {
    "MountainCar-v0": {
        "learning_rate": 4e-3,
        "exploration_final_eps": 0.07,
        "exploration_fraction": 0.2,
        "buffer_size": 10_000,
        "net_arch": [256, 256],
    },
    "Acrobot-v1": {
        "learning_rate": 6.3e-4,
        "exploration_final_eps": 0.1,
        "exploration_fraction": 0.12,
        "buffer_size": 50_000,
        "net_arch": [256, 256],
    },
    "CartPole-v0": {
        "learning_rate": 2.3e-3,
        "exploration_final_eps": 0.04,
        "exploration_fraction": 0.16,
        "buffer_size": 100_000,
        "net_arch": [256, 256],
    },
    "Pendulum-v1": {
        "learning_rate": 1e-4,
        "exploration_final_eps": 0.05,
        "exploration_fraction": 0.1,
        "buffer_size": 1_000_000,
        "net_arch": [64, 64],
    },
}
TASKS["CartPole-v1"] = TASKS["CartPole-v0"]
TORQUES = (-2.0, 0.0, 2.0)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--task", action="append", choices=sorted(TASKS), help="repeatable; all tasks by default"
    )
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds a task")
    parser.add_argument(
        "--first-seed", type=int, default=1000, help="seeds below 1000 are for tuning"
    )
    parser.add_argument("--steps", type=int, default=1000, help="training steps a seed")
    parser.add_argument("--episodes", type=int, default=100, help="evaluation episodes a seed")
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="threads of torch; small networks gain nothing from more",
    )
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    parser.add_argument(
        "--smoke", action="store_true", help="a few steps of everything, to see that it runs"
    )
    options = parser.parse_args(arguments)
    for name in ("seeds", "steps", "episodes", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    if options.smoke:
        options.seeds, options.steps, options.episodes = 1, 110, 1
    return options


def make_env(task: str) -> Any:
    """The gymnasium environment of a task: three torques for Pendulum, 200 steps for
    CartPole-v0.
    """
    import gymnasium
    import numpy as np

    class Torques(gymnasium.ActionWrapper):
        """Pendulum with the paper's discrete actions, as multiples of the largest torque."""

        def __init__(self, env: Any) -> None:
            super().__init__(env)
            self.action_space = gymnasium.spaces.Discrete(len(TORQUES))

        def action(self, action: Any) -> Any:
            return np.array([TORQUES[int(action)]], np.float32)

    if task == "CartPole-v0":
        return gymnasium.make("CartPole-v1", max_episode_steps=200)
    env = gymnasium.make(task)
    return Torques(env) if task == "Pendulum-v1" else env


def run(task: str, seed: int, steps: int, episodes: int) -> dict[str, Any]:
    """One record: trains one seed and evaluates it greedily."""
    import numpy as np
    from stable_baselines3 import DQN
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    parameters = dict(TASKS[task])
    net_arch = parameters.pop("net_arch")
    model = DQN(
        "MlpPolicy", Monitor(make_env(task)), seed=seed, device="cpu", policy_kwargs={"net_arch": net_arch},
        **SHARED, **parameters,
    )  # fmt: skip
    start, cpu_start = time.perf_counter(), time.process_time()
    model.learn(total_timesteps=steps)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    env = Monitor(make_env(task))
    env.reset(seed=10_000 + seed)
    returns, _ = evaluate_policy(model, env, n_eval_episodes=episodes, return_episode_rewards=True)
    return {
        "task": task,
        "algorithm": "sb3-dqn",
        "seed": seed,
        "return_mean": float(np.mean(returns)),
        "return_std": float(np.std(returns)),
        "episodes": episodes,
        "steps": steps,
        "seconds": seconds,
        # On a busy machine the processor's time is the fairer measure; with one thread both are the
        # same.
        "cpu_seconds": cpu_seconds,
    }


def versions() -> dict[str, str]:
    import gymnasium
    import numpy as np
    import stable_baselines3
    import torch

    found = {
        module.__name__: str(module.__version__)
        for module in (stable_baselines3, torch, gymnasium, np)
    }
    return {
        **found,
        "python": platform.python_version(),
        "cpu": platform.machine(),
        "cores": str(os.cpu_count()),
    }


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        import stable_baselines3  # noqa: F401
        import torch
    except ImportError as error:
        print(MISSING.format(error=error), file=sys.stderr)
        return 1
    from tqdm import tqdm

    torch.set_num_threads(options.threads)
    tasks = list(dict.fromkeys(options.task or TASKS))
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    results = []
    with tqdm(total=len(tasks) * len(seeds), desc="sb3-dqn", unit="run") as bar:
        for task in tasks:
            for seed in seeds:
                record = run(task, seed, options.steps, options.episodes)
                results.append(record)
                bar.set_postfix_str(
                    f"{task} seed {seed}: {record['return_mean']:.1f} in {record['seconds']:.1f} s"
                )
                bar.update()
    parameters = {task: {**SHARED, **TASKS[task]} for task in tasks}
    report = {
        "results": results,
        "versions": versions(),
        "threads": options.threads,
        "parameters": parameters,
    }
    text = json.dumps(report, indent=2)
    if options.out is None:
        print(text)
    else:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
