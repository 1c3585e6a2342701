"""A single KQL state in a file: `save_state` and `load_state`."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from kqljax import checks
from kqljax.config import KQLConfig
from kqljax.errors import is_known
from kqljax.kql import KQLState, kql_grow, kql_init
from kqljax.storage import StorageError, as_tree, named_leaves, read_arrays, write_tree

KIND = "kqljax state"
_BLOCK = ".posterior.whitener["


def save_state(path: str | os.PathLike[str], cfg: KQLConfig, state: KQLState) -> None:
    """Writes a state, and what its config was, to an .npz file: whole or not at all, and without pickle.

    The state may be one of `kql_init` or a batch of a vmap. Call it outside jit.

    Examples:
      >>> import os, tempfile
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(), num_actions=2, horizon=5)
      >>> with tempfile.TemporaryDirectory() as directory:
      ...     path = os.path.join(directory, "state.npz")
      ...     kqljax.save_state(path, cfg, kqljax.kql_init(cfg, obs_dim=3))
      ...     kqljax.load_state(path, cfg).q_tilde.shape
      (5, 2)
    """
    checks.check_state(cfg, state)
    if not is_known(cfg, state):
        raise ValueError("save_state writes numbers to a file: call it outside jax.jit and jax.vmap.")
    write_tree(Path(path), KIND, {"config": _fingerprint(cfg)}, state)


def load_state(path: str | os.PathLike[str], cfg: KQLConfig) -> KQLState:
    """The state that `save_state` wrote, bit for bit.

    Args:
      cfg: the config that it was made with; another one is refused.

    Raises:
      kqljax.storage.StorageError: a ValueError; the file is damaged, or of another config. It is left untouched.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(), num_actions=2, horizon=5)
      >>> kqljax.load_state("nowhere.npz", cfg)  # doctest: +ELLIPSIS
      Traceback (most recent call last):
      ...
      kqljax.storage.StorageError: nowhere.npz cannot be read: ...
    """
    header, arrays = read_arrays(Path(path), KIND)
    _check_config(Path(path), header["config"], _fingerprint(cfg))
    template = _template(Path(path), cfg, arrays)
    return jax.tree.map(jax.numpy.asarray, as_tree(Path(path), header, arrays, template))


def _template(path: Path, cfg: KQLConfig, arrays: dict[str, np.ndarray]) -> KQLState:
    """Shapes of the state: the config says all but the stages that it grew through and the size of a batch."""
    try:
        obs_dim, dtype = arrays[".table.obs"].shape[-1], arrays[".reward"].dtype
        *batch, capacity = arrays[".reward"].shape
    except (KeyError, IndexError):
        raise StorageError(f"{path} has no table: it is no state of this version. It was left as it is.") from None
    blocks = sum(name.startswith(_BLOCK) for name in arrays)
    heights = [arrays[f"{_BLOCK}{block}]"].shape[-2] for block in range(blocks)] or [capacity]

    def make(cfg: KQLConfig) -> KQLState:
        state = kql_init(cfg, obs_dim, dtype, capacity=heights[0])
        for size in np.cumsum(heights)[1:]:
            state = kql_grow(state, int(size), is_full=True)
        return state

    one = jax.eval_shape(make, cfg)
    many = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*batch, *leaf.shape), leaf.dtype), one)
    # All runs of a vmap may share the next slot.
    if arrays[".posterior.next_slot"].ndim == 0:
        many = many._replace(posterior=many.posterior._replace(next_slot=one.posterior.next_slot))
    return many


def _fingerprint(cfg: KQLConfig) -> dict[str, Any]:
    """What a state depends on: sizes and choices in words, numbers as they are, arrays by their digest."""
    found: dict[str, Any] = {"structure": str(jax.tree.structure(cfg))}
    for name, leaf in named_leaves(cfg):
        array = np.asarray(leaf, np.float64)
        is_small = array.size <= 64
        found[name] = array.tolist() if is_small else hashlib.sha256(array.tobytes()).hexdigest()
    return found


def _check_config(path: Path, stored: dict[str, Any], asked: dict[str, Any]) -> None:
    for name in [*stored, *asked]:
        before, now = stored.get(name), asked.get(name)
        if before != now and not _is_close(before, now):
            raise StorageError(
                f"{path} was saved with another config: {name.lstrip('.')} was {before}, the config here has {now}. Give the "
                "config that the state was made with."
            )


def _is_close(before: Any, now: Any) -> bool:
    """Numbers that are the same in float32: a config may have been through arrays of it."""
    try:
        return bool(np.allclose(before, now, rtol=1e-6, atol=0))
    except (TypeError, ValueError):
        return False
