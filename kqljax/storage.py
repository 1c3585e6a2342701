"""Trees of arrays in .npz files, with a header that says what they are.

Written whole or not at all, read without pickle, and checked on reading: zip keeps a checksum of every array, and names,
shapes and dtypes must be those of a template. Random keys are stored as key data.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from kqljax.io import replace_file

SCHEMA = 1
_HEADER = "header"
# What numpy, zipfile and json raise on files that are damaged or something else, as the tests of cut and flipped bytes found;
# NotImplementedError is zipfile's word for a compression that is none.
_WRONG = (OSError, ValueError, KeyError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error)


class StorageError(ValueError):
    """A file that cannot be read, or is not what was asked for; it is left untouched."""


def write_tree(path: Path, kind: str, header: dict[str, Any], tree: Any) -> None:
    """Writes the leaves of a tree by their paths."""
    arrays: dict[str, np.ndarray] = {}
    impls = {}
    for name, leaf in named_leaves(tree):
        if _is_key(leaf):
            impls[name] = str(jax.random.key_impl(leaf))
            leaf = jax.random.key_data(leaf)
        arrays[name] = np.asarray(leaf)
    text = json.dumps({"kind": kind, "schema": SCHEMA, "keys": impls, **header})
    # numpy's own names of arguments ("file") cannot clash: paths begin with a dot or a bracket.
    contents = {_HEADER: np.frombuffer(text.encode(), np.uint8), **arrays}
    replace_file(path, lambda file: np.savez(file, **contents))  # type: ignore[arg-type]


def read_arrays(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays by name; raises StorageError where the file is damaged or something else."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(arrays.pop(_HEADER).tobytes())
        found, schema = header["kind"], header["schema"]
    except _WRONG as error:
        raise StorageError(
            f"{path} cannot be read: it is damaged, cut short or not a file of kqljax ({error}). It was left as it is; "
            "move it away to go on without it."
        ) from error
    if (found, schema) != (kind, SCHEMA):
        raise StorageError(
            f"{path} holds {found!r} of schema {schema}; expected {kind!r} of schema {SCHEMA}. It was left as it is; give "
            "another path, or read it with the version of kqljax that wrote it."
        )
    return header, arrays


def as_tree(path: Path, header: dict[str, Any], arrays: dict[str, np.ndarray], template: Any) -> Any:
    """Arrays of a file in the structure of `template`, whose leaves have the shapes and dtypes that are expected."""
    expected = dict(named_leaves(template))
    for name in [*expected, *arrays]:
        if name not in arrays or name not in expected:
            place = "missing from it" if name not in arrays else "not expected in it"
            raise StorageError(f"{path} is of another config or version: {name} is {place}. It was left as it is.")
    leaves = []
    for name, want in expected.items():
        leaf: Any = arrays[name]
        if name in header["keys"]:
            leaf = jax.random.wrap_key_data(leaf, impl=header["keys"][name])
        if (tuple(leaf.shape), leaf.dtype) != (tuple(want.shape), want.dtype):
            raise StorageError(
                f"{path} is of another config or version: {name} has shape {tuple(leaf.shape)} and dtype {leaf.dtype}, "
                f"expected {tuple(want.shape)} and {want.dtype}. It was left as it is."
            )
        leaves.append(leaf)
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def named_leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """Leaves with their paths, as in '.posterior.weights'."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield jax.tree_util.keystr(path), leaf


def _is_key(leaf: Any) -> bool:
    return jax.numpy.issubdtype(getattr(leaf, "dtype", np.dtype(bool)), jax.dtypes.prng_key)
