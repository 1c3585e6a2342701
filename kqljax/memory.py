"""How much memory a run takes, before it takes it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from kqljax import checks
from kqljax.config import KQLConfig
from kqljax.kql import kql_init


def estimate_memory(cfg: KQLConfig, num_seeds: int = 1, *, obs_dim: int | None = None, dtype: Any = None) -> int:
    """Bytes that the states of `num_seeds` runs hold when they are full.

    This is what stays between steps. A compiled run needs up to about as much again while it grows from one capacity to
    the next, and where a state is not donated.

    Args:
      obs_dim: l, by default that of the config's features; without either, observations are counted as one number each,
        which is little beside the T x T arrays of the exact engine.
      dtype: as for `kql_init`.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(), num_actions=3, horizon=1000)
      >>> f"{kqljax.estimate_memory(cfg, num_seeds=10, obs_dim=2) / 2**20:.0f} MiB"
      '154 MiB'
    """
    checks.whole_number("num_seeds", num_seeds, 1, "It is the number of runs side by side.")
    if obs_dim is None:
        obs_dim = 1 if cfg.features is None else cfg.features.obs_dim
    # Shapes only. The config's numbers are hidden from kql_init: whether float32 is wise is not the question here.
    wanted = checks.widest_float() if dtype is None else dtype
    state = jax.eval_shape(lambda cfg: kql_init(cfg, obs_dim, wanted), cfg)
    return num_seeds * sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
