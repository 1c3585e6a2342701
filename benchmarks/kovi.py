"""KOVI on MountainCar in 1000 steps: does it make progress?

    python benchmarks/kovi.py            # ten seeds of both variants, about two minutes
    python benchmarks/kovi.py --smoke    # seconds, for the tests

The paper (section 2) reports that KOVI could not be made to work here. `textbook` is KOVI as its authors wrote it: step h of
an episode learns from the data of step h alone. `pooled` learns from all data at every step, which their analysis does not
cover. Both with KQL's kernel and lambda, beta = H sqrt(lambda), 100 evaluation episodes a seed.
"""

import argparse

import jax
import numpy as np
from tqdm import tqdm

import kqljax
from kqljax.baselines import kovi
from kqljax.report import summarise


def run(task, cfg, key, num_steps, num_episodes):
    train_key, eval_key = jax.random.split(key)
    trained = kovi.train(task, cfg, train_key, num_steps)
    returns = kovi.evaluate(task, cfg, trained.state, eval_key, num_episodes)
    return returns.mean(), (trained.log.terminated & trained.log.is_taken).sum()


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="seeds from 1000 on (default 10)")
    parser.add_argument("--smoke", action="store_true", help="one seed, 60 steps, 2 episodes")
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    steps, episodes, seeds = (60, 2, 1) if args.smoke else (1000, 100, args.seeds)
    task = kqljax.make_task("MountainCar-v0")
    print(f"MountainCar-v0, {steps} steps, {seeds} seeds from 1000")
    print("| variant | IQM [95%] | worst .. best seed | goals reached in training, all seeds |\n|---|---|---|---|")
    for name in ("textbook", "pooled"):
        # No episode of MountainCar can end within 80 steps.
        cfg = kovi.default_config(task, steps, pooled=name == "pooled", max_episodes=max(2, steps // 80))
        program = jax.jit(run, static_argnums=(3, 4))
        bar = tqdm(range(1000, 1000 + seeds), desc=name, disable=args.smoke)
        means, goals = zip(*(program(task, cfg, jax.random.key(seed), steps, episodes) for seed in bar), strict=True)
        found = summarise(np.array(means, float))
        interval = f"{found.iqm:.1f} [{found.low:.1f}, {found.high:.1f}]"
        print(f"| {name} | {interval} | {found.min:.0f} .. {found.max:.0f} | {int(np.sum(goals))} |", flush=True)


if __name__ == "__main__":
    main()
