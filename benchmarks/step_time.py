"""Seconds of a whole exact run against plain NumPy, and against the machine's memory bandwidth.

    python benchmarks/step_time.py            # T = 250, 500, 1000, 2000; about two minutes; writes results/step_time.json
    python benchmarks/step_time.py --smoke    # seconds, for the tests

Both sides act and learn for T steps on the same transitions, in float64, one seed. Before a time is
printed the actions they would take and their values are compared. The engine runs as one jitted
scan through five capacities, as `kqljax.train` does; its compile time stands apart. NumPy is
`numpy_kql.py`: incremental inverse, arrays that grow with t.

Bandwidth: a step at t stored pairs must read the cross Gram once (t^2 numbers) and the triangular
factor twice (t^2 / 2 each: the second product needs the first one's result). The column says what
share of the measured read bandwidth those bytes, over the whole run, amount to; 100% would be a run
that does nothing but read.

Products alone: the same scan with the step's three products and nothing else, each after the one
before as in the step. NumPy's seconds over these is the ratio that an engine with nothing to do
besides would reach.
"""

import argparse
import itertools
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import records
from numpy_kql import NumpyKQL

import kqljax
from kqljax._arrays import few_columns, pad
from kqljax.engines.exact import unwhiten, whiten
from kqljax.kql import resize
from kqljax.training import EveryStep

NUM_ACTIONS, OBS_DIM, ETA = 3, 4, 1.0


def observations(horizon: int) -> np.ndarray:
    """`[T + 1, 4]`: two points going round two circles at speeds that never meet. Deterministic, as
    the paper's tasks are: on noise the backups amplify rounding, and the two sides could not be
    compared."""
    phases = np.arange(horizon + 1)[:, None] * np.array([0.1, 0.1 * np.sqrt(2)])
    return np.concatenate([np.sin(phases), np.cos(phases)], axis=1)


def reward(obs):
    return 0.5 + 0.5 * obs[..., 0]


def taken(step):
    """The action stored at each step. Fixed, so that a tie broken by rounding does not send the two
    sides apart.
    """
    return (7 * step) % 5 % NUM_ACTIONS


def engine_run(cfg, obs):
    """Actions `[T]` it would take and the final state: the loop of `kqljax.train` without an
    environment.
    """
    capacities, key = (
        EveryStep(cfg).stages(cfg.horizon),
        jax.random.key(0),
    )  # ties go to the first action

    def body(carry, inputs):
        state, would = carry
        step, seen, reached = inputs
        transition = kqljax.Transition(seen, taken(step), reward(seen), reached, jnp.asarray(False))
        state, _, chosen, _ = kqljax.kql_step_and_act(key, cfg, state, transition, reached)
        return (state, chosen), would

    state = kqljax.kql_init(cfg, OBS_DIM, capacity=capacities[0])
    carry, actions, done = (state, kqljax.kql_act(key, cfg, state, obs[0])[0]), [], 0
    for capacity in capacities:
        carry = (resize(cfg, carry[0], capacity, is_full=True), carry[1])
        carry, chosen = jax.lax.scan(
            body,
            carry,
            (jnp.arange(done, capacity), obs[done:capacity], obs[done + 1 : capacity + 1]),
        )
        actions.append(chosen)
        done = capacity
    return jnp.concatenate(actions), carry[0]


def products_run(states):
    """What is left of `engine_run` when only its products with the large arrays are made; `states`,
    one for each stage, hold zeros, which take as long to multiply as any other numbers."""
    num_columns = 2 + 2 * NUM_ACTIONS

    def body(posterior, cross, columns):
        whitened = whiten(posterior, columns)
        direction, weights = unwhiten(posterior, whitened.T[:2])
        asked = jnp.repeat(jnp.stack([direction, weights], axis=1), NUM_ACTIONS, axis=1)
        return columns + pad(few_columns(cross, asked), num_columns - 2 * NUM_ACTIONS, 1)

    done, found = 0, []
    for posterior, cross in states:
        columns = jnp.ones((posterior.capacity, num_columns))
        found.append(
            jax.lax.fori_loop(
                done,
                posterior.capacity,
                lambda _, each, p=posterior, c=cross: body(p, c, each),
                columns,
            )
        )
        done = posterior.capacity
    return found


def empty_states(cfg) -> list:
    """Whitener and cross Gram matrix at each stage of a run."""
    capacities = EveryStep(cfg).stages(cfg.horizon)
    state, found = kqljax.kql_init(cfg, OBS_DIM, capacity=capacities[0]), []
    for capacity in capacities:
        state = resize(cfg, state, capacity, is_full=True)
        found.append((state.posterior, jnp.zeros((capacity, capacity))))
    return found


def numpy_run(horizon: int, obs: np.ndarray) -> tuple[list[int], NumpyKQL]:
    agent = NumpyKQL(OBS_DIM, NUM_ACTIONS, horizon, ETA)
    actions = []
    for t in range(horizon):
        actions.append(agent.act(obs[t]))
        agent.step(obs[t], taken(t), reward(obs[t]), obs[t + 1])
    return actions, agent


def read_bandwidth(num_bytes: int, repeats: int) -> float:
    """Bytes a second that a matrix-vector product reads, for a matrix of about `num_bytes`; the
    best of several.
    """
    side = max(64, int(np.sqrt(num_bytes / 8)))
    matrix, vector = jnp.ones((side, side)), jnp.ones(side)
    product = jax.jit(lambda matrix, vector: matrix @ vector)
    product(matrix, vector).block_until_ready()
    best = 0.0
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(10):
            result = product(matrix, vector)
        result.block_until_ready()
        best = max(best, 10 * matrix.nbytes / (time.perf_counter() - start))
    return best


def measure(horizon: int, repeats: int) -> dict:
    obs = observations(horizon)
    cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=ETA), num_actions=NUM_ACTIONS, horizon=horizon)
    start = time.perf_counter()
    compiled = jax.jit(engine_run).lower(cfg, jnp.asarray(obs)).compile()
    compile_seconds = time.perf_counter() - start
    actions, state = jax.block_until_ready(compiled(cfg, jnp.asarray(obs)))

    states, products = empty_states(cfg), jax.jit(products_run)
    jax.block_until_ready(products(states))

    engine_seconds, product_seconds, numpy_seconds = [], [], []
    for repeat in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(cfg, jnp.asarray(obs)))
        engine_seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
        jax.block_until_ready(products(states))
        product_seconds.append(time.perf_counter() - start)
        if repeat == 0 or horizon <= 1000:
            start = time.perf_counter()
            numpy_actions, agent = numpy_run(horizon, obs)
            numpy_seconds.append(time.perf_counter() - start)

    agreement = float(np.mean(np.asarray(numpy_actions) == np.asarray(actions)))
    if agreement < 0.99:
        raise SystemExit(
            f"T={horizon}: the two sides agree on {agreement:.1%} of actions; no time is worth "
            "printing."
        )
    error = float(np.abs(agent.q_hat - state.q_hat).max())
    # NumPy's explicit inverse is the less exact of the two, by about the condition number: up to T
    # / lam.
    if not error < 1e-2:
        raise SystemExit(f"T={horizon}: Q-hat differs by {error:.2g}; no time is worth printing.")
    state_bytes = 1.5 * 8 * horizon**2
    must_read = 2 * 8 * horizon**3 / 3
    bandwidth = read_bandwidth(int(state_bytes), repeats)
    return {
        "horizon": horizon,
        "engine_seconds": min(engine_seconds),
        "product_seconds": min(product_seconds),
        "numpy_seconds": min(numpy_seconds),
        "ratio": min(numpy_seconds) / min(engine_seconds),
        "compile_seconds": compile_seconds,
        "bandwidth_gb_s": bandwidth / 1e9,
        "share_of_bandwidth": must_read / min(engine_seconds) / bandwidth,
        "q_hat_difference": error,
        "same_action": agreement,
    }


def exponents(rows: list[dict], name: str) -> list[float]:
    """Growth exponent between neighbouring horizons: 3 is a run of T steps at O(t^2) each."""
    return [
        float(np.log(b[name] / a[name]) / np.log(b["horizon"] / a["horizon"]))
        for a, b in itertools.pairwise(rows)
    ]


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--smoke", action="store_true", help="T = 20 and 40, one repeat, nothing written"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="timed runs, the best counts (default 5)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "step_time.json"
    )
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    horizons, repeats = ((20, 40), 1) if args.smoke else ((250, 500, 1000, 2000), args.repeats)

    print(
        "|    T | engine s | products alone s | NumPy s | ratio | compile s | bandwidth GB/s | "
        "share of bandwidth |"
    )
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    for horizon in horizons:
        row = measure(horizon, repeats)
        rows.append(row)
        print(
            f"| {horizon:4d} | {row['engine_seconds']:.3f} | {row['product_seconds']:.3f} | "
            f"{row['numpy_seconds']:.3f} | {row['ratio']:.1f} | {row['compile_seconds']:.1f} | "
            f"{row['bandwidth_gb_s']:.1f} | {row['share_of_bandwidth']:.0%} |",
            flush=True,
        )
    growth = {name: exponents(rows, f"{name}_seconds") for name in ("engine", "numpy")}
    for name, values in growth.items():
        print(f"growth exponent, {name}: " + ", ".join(f"{value:.2f}" for value in values))
    if not args.smoke:
        records.prepare_directory(args.out.parent)
        found = {"versions": records.versions(), "device": records.device(), "dtype": "float64"}
        records.write(args.out, {**found, "rows": rows, "exponents": growth})
        print(f"written to {args.out}")


if __name__ == "__main__":
    main()
