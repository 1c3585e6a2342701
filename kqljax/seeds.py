"""Many seeds at once: the same run for a list of keys, on all devices.

program = across_seeds(lambda key, task, cfg: kqljax.train(key, task, cfg, 1000).log.episode_return)
returns = program(jax.random.split(key, 100), task, cfg)              # [100, 1000]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

Array = jax.Array


def across_seeds(
    run: Callable[..., Any], *, batch_size: int | None = None, devices: Sequence[Any] | None = None
) -> Callable[..., Any]:
    """A jitted program that makes `run(key, *arguments)` for every key, the keys shared out over
    the devices.

    On an accelerator the seeds of a device run side by side, as in `jax.vmap`. A CPU is faster with
    one after the other: the arrays of one run stay in its cache, and small products gain nothing
    from a batch. To use all its cores, give jax as many CPU devices before its first use:
    `jax.config.update("jax_num_cpu_devices", cores)`.

    Args:
      run: a pure function of a random key and any arrays or pytrees.
      batch_size: seeds side by side on a device; by default 1 on CPU and all of them elsewhere.
      devices: by default all local ones.

    Returns:
      program(keys `[N]`, *arguments) -> the results of `run`, with a leading axis N.

    Examples:
      >>> program = kqljax.across_seeds(lambda key, scale: scale * jax.random.normal(key, (3,)))
      >>> program(jax.random.split(jax.random.key(0), 5), 2.0).shape
      (5, 3)
    """
    devices = jax.local_devices() if devices is None else list(devices)
    mesh = Mesh(np.array(devices), ("seeds",))
    one_by_one = devices[0].platform == "cpu" if batch_size is None else batch_size == 1

    def share(keys: Array, arguments: Any) -> Any:
        def one(key: Array) -> Any:
            return run(key, *arguments)

        if one_by_one:
            return lax.map(one, keys)
        return lax.map(one, keys, batch_size=batch_size) if batch_size else jax.vmap(one)(keys)

    over_devices = jax.shard_map(
        share,
        mesh=mesh,
        in_specs=(PartitionSpec("seeds"), PartitionSpec()),
        out_specs=PartitionSpec("seeds"),
        check_vma=False,  # nothing is exchanged between the devices
    )

    @jax.jit
    def program(keys: Array, *arguments: Any) -> Any:
        count = keys.shape[0]
        # Every device gets the same number; the last key is run again where they do not come out
        # even.
        missing = -count % len(devices)
        padded = (
            jnp.concatenate([keys, jnp.repeat(keys[-1:], missing, axis=0)]) if missing else keys
        )
        return jax.tree.map(lambda leaf: leaf[:count], over_devices(padded, arguments))

    return program
