"""What needs four devices; `test_sweep_devices.py` runs it in a process that has them, and reads the answers.

python sharded_sweep.py DIR
"""

import contextlib
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

import kqljax
from kqljax import cli, sharding
from kqljax.sweep import expand_grid, groups, segments, settings

SWEEP = [
    "sweep", "--task", "MountainCar-v0", "--seeds", "16", "--steps", "40", "--stages", "1", "--every", "10", "--episodes", "2",
    "--keep-states", "--no-figures", "--checkpoint-seconds", "0",
]  # fmt: skip
HORIZON = 256


def bytes_a_device(tree):
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))


def transitions(count):
    rng = np.random.default_rng(0)
    obs, next_obs = rng.uniform(-1, 1, (2, count, 2))
    return kqljax.Transition(
        jnp.asarray(obs), jnp.asarray(rng.integers(0, 3, count)), jnp.asarray(rng.uniform(size=count)), jnp.asarray(next_obs),
        jnp.asarray(rng.uniform(size=count) < 0.1),
    )  # fmt: skip


def rows():
    """The row-sharded exact engine beside the unsharded one: difference of results, and memory a device."""
    cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.5), num_actions=3, horizon=HORIZON)
    data = transitions(HORIZON + 8)  # the last ones find no room: a full state must stay as it is

    def learn(cfg, state, data):
        return jax.lax.scan(lambda state, each: kqljax.kql_step(cfg, state, each), state, data)

    mesh = sharding.row_mesh()
    found = {}
    for name in ("whole", "rows"):
        state = kqljax.kql_init(cfg, 2)
        if name == "rows":
            state = sharding.shard_rows(state, mesh)
        places = jax.tree.map(lambda leaf: leaf.sharding, state)
        with jax.set_mesh(mesh) if name == "rows" else contextlib.nullcontext():
            jitted = jax.jit(learn, donate_argnames="state", out_shardings=(places, None))
            program = jitted.lower(cfg, state, data).compile()
            need = program.memory_analysis()
            held = bytes_a_device(state)
            after, info = program(cfg, state, data)
        found[name] = {"held": held, "held_after": bytes_a_device(after), "temporary": need.temp_size_in_bytes}
        found[name]["moved"] = program.as_text().count(" all-to-all(")
        found[name]["state"], found[name]["stored"] = after, np.asarray(info.is_stored)
    whole, spread = found["whole"].pop("state"), found["rows"].pop("state")
    found["difference"] = float(np.max(np.abs(np.asarray(whole.q_tilde) - np.asarray(spread.q_tilde))))
    # Weights are in the thousands: relative to the largest of each array.
    pairs = [(np.asarray(a, float), np.asarray(b, float)) for a, b in zip(*map(jax.tree.leaves, (whole, spread)), strict=True)]
    found["relative"] = max(float(np.max(np.abs(a - b)) / max(1.0, np.max(np.abs(a)))) for a, b in pairs)
    found["stored"] = [int(found[name].pop("stored").sum()) for name in ("whole", "rows")]
    return found


def lowered():
    """Devices and platforms for which the sharded sweep's segment was lowered."""
    case = settings.make_cases(expand_grid({"task": "MountainCar-v0", "eta": [0.02, 0.1]}), 16)
    group = groups.make_groups(case)[0]
    (segment,) = groups.make_schedule(group.case, 16, 1, None)
    found = {}
    for shard in segments.SHARDS:
        programs = segments.Programs(group, shard, jax.devices())
        varying, seeds = group.rows([0, 1, 0, 1]), np.arange(4, dtype=np.uint32)
        carry = programs.template(varying, seeds, [segment])
        program = programs.segment_program(carry, 16)
        with programs.context():
            exported = export.export(program, platforms=("cuda", "tpu"))(group.fixed, varying, carry, np.int32(0))
        text = exported.mlir_module()
        found[shard] = {"devices": exported.nr_devices, "platforms": exported.platforms, "callback": "callback" in text}
    return found


def main():
    out = sys.argv[1]
    found = {"devices": jax.device_count(), "rows": rows(), "lowered": lowered()}
    found["seeds_code"] = cli.main([*SWEEP, "--out", f"{out}/seeds"])
    found["rows_code"] = cli.main([*SWEEP, "--shard", "rows", "--out", f"{out}/rows"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
