"""The exact engine with its T x T arrays spread over devices by rows, for horizons that one device cannot hold.

    mesh = sharding.row_mesh()
    state = sharding.shard_rows(kql_init(cfg, obs_dim), mesh)
    places = sharding.row_shardings(state, mesh), None
    step = jax.jit(kql_step, donate_argnames="state", out_shardings=places)
    with jax.set_mesh(mesh):
        state, info = step(cfg, state, transition)

Every device holds T / devices rows of the whitener and of the cross Gram, works on them alone, and tells the others vectors of
length T: a step moves O(T) numbers between devices and none of the T^2. The mesh must be set (`jax.set_mesh`) while a step is
traced, so that new rows are written where they belong (`arrays.write`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from kqljax.arrays import ROWS
from kqljax.kql import KQLState
from kqljax.posterior.gram import GramPosterior
from kqljax.storage import named_leaves


def row_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh of one axis over the devices, by default all of this process."""
    devices = jax.local_devices() if devices is None else devices
    return Mesh(np.asarray(devices), (ROWS,), axis_types=(AxisType.Auto,))


def row_shardings(tree: Any, mesh: Mesh) -> Any:
    """A sharding for each leaf of a tree that holds exact states, alone or batched: rows of the large arrays, copies else.

    Raises:
      ValueError: where the rows do not divide evenly.
    """
    shardings = []
    for name, leaf in named_leaves(tree):
        is_large = ".whitener[" in name or name.endswith(".cross")
        if is_large and leaf.shape[-2] % mesh.shape[ROWS]:
            raise ValueError(
                f"{name} has {leaf.shape[-2]} rows, which {mesh.shape[ROWS]} devices cannot share evenly. Give kql_init a "
                "capacity that is a multiple of the number of devices; empty slots do no harm."
            )
        before = (None,) * (len(leaf.shape) - 2)
        spec = PartitionSpec(*before, ROWS, None) if is_large else PartitionSpec()
        shardings.append(NamedSharding(mesh, spec))
    return jax.tree.unflatten(jax.tree.structure(tree), shardings)


def shard_rows(state: KQLState, mesh: Mesh) -> KQLState:
    """The state with its large arrays spread over the devices of the mesh."""
    if not isinstance(state.posterior, GramPosterior):
        raise ValueError("only the exact engine has T x T arrays to spread: a state with features fits on one device.")
    return jax.device_put(state, row_shardings(state, mesh))
