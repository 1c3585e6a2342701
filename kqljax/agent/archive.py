"""Pytrees of the library in one npz file: arrays, and a description in JSON that says how they belong together.

No pickle: a file can hold numbers, text, arrays, and objects of the classes listed in `_known`, and nothing in it is ever
executed. A kernel of the user's own is kept as its name alone; whoever reads the file gives the kernel again.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from kqljax.files import replace_file
from kqljax.kernels import Kernel

FORMAT = "kqljax"
_ABOUT = "about"
"""Name of the entry with the description."""


class SavedFileError(ValueError):
    """A file that cannot be read or written; the message says what to do."""


@functools.cache
def _known() -> dict[str, type]:
    """The classes that a file may hold, by name."""
    from kqljax import config, kernels, kql, rounds
    from kqljax.agent import by_rounds, by_steps, scaling
    from kqljax.features.fourier import FourierMap
    from kqljax.features.linear import LinearMap
    from kqljax.features.nystrom import NystromMap
    from kqljax.features.taylor import TaylorMap
    from kqljax.posterior import gram, weights
    from kqljax.rounds.ensemble import Ensemble
    from kqljax.rounds.model import Model

    classes: list[type] = [
        kernels.RBF, kernels.Linear, kernels.Matern32, kernels.Matern52, kernels.Scaled, kernels.Sum, kernels.Product,
        kernels.Pair, config.KQLConfig, kql.KQLState, gram.GramPosterior, gram.Table, weights.WeightPosterior, LinearMap,
        TaylorMap, FourierMap, NystromMap, scaling.Scaling, rounds.Recipe, Ensemble, Model, by_rounds.Fitted,
        by_steps.Learned,
    ]  # fmt: skip
    # Two tables, one name.
    return {each.__name__: each for each in classes} | {"WeightTable": weights.Table}


def write(path: str | os.PathLike[str], kind: str, version: int, content: dict[str, Any]) -> Path:
    """Writes `content` to `path`, whole or not at all.

    Args:
      kind: what the file is, for `read`.
      version: of what is in it.
      content: name -> numbers, text, None, arrays, lists, dicts with text keys, and objects of the library.
    """
    arrays: dict[str, np.ndarray] = {}
    about = {"format": FORMAT, "kind": kind, "version": version, "content": _encode(content, arrays)}
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        entries = {_ABOUT: np.array(json.dumps(about)), **arrays}
        replace_file(target, lambda file: np.savez_compressed(file, **entries))  # type: ignore[arg-type]
    except OSError as error:
        raise SavedFileError(f"cannot write {target}: {error.strerror or error}. Give another path.") from error
    return target


def read(path: str | os.PathLike[str], kind: str, version: int, kernel: Kernel | None = None) -> dict[str, Any]:
    """What `write` wrote; arrays are numpy's.

    Args:
      kernel: stands for a kernel that is not the library's.
    """
    target = Path(path)
    try:
        data = target.read_bytes()
    except OSError as error:
        raise SavedFileError(f"cannot read {target}: {error.strerror or error}.") from error
    foreign = SavedFileError(f"{target} is not a file that kqljax saved; expected one of kind {kind!r}.")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            about = json.loads(str(archive[_ABOUT]))
            if not isinstance(about, dict) or about.get("format") != FORMAT:
                raise foreign
            if about["kind"] != kind:
                raise SavedFileError(f"{target} holds a {about['kind']!r}, expected a {kind!r}.")
            if about["version"] != version:
                newer = "Install a newer kqljax." if about["version"] > version else "Train again, or use the kqljax of then."
                raise SavedFileError(
                    f"{target} was saved in version {about['version']} of the {kind} format, this kqljax reads "
                    f"version {version}. {newer}"
                )
            arrays = {name: archive[name] for name in archive.files if name != _ABOUT}
            return _decode(about["content"], arrays, target, kernel)
    except SavedFileError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError, zipfile.BadZipFile) as error:
        if zipfile.is_zipfile(io.BytesIO(data)):
            raise SavedFileError(f"{target} is damaged or not a file that kqljax saved ({error}).") from error
        raise foreign from error


def _encode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        name = f"array{len(arrays)}"
        arrays[name] = np.asarray(value)
        return {"array": name}
    if isinstance(value, dict):
        return {"dict": {key: _encode(each, arrays) for key, each in value.items()}}
    kind = next((name for name, known in _known().items() if type(value) is known), None)
    if kind is not None:
        names = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else value._fields
        return {"class": kind, "fields": {each: _encode(getattr(value, each), arrays) for each in names}}
    if isinstance(value, (list, tuple)):
        return {"list" if isinstance(value, list) else "tuple": [_encode(each, arrays) for each in value]}
    if isinstance(value, Kernel):
        return {"own kernel": f"{type(value).__module__}.{type(value).__qualname__}", "text": repr(value)}
    raise TypeError(f"cannot save {type(value).__module__}.{type(value).__qualname__}: it is not one of the library's classes.")


def _decode(value: Any, arrays: dict[str, np.ndarray], path: Path, kernel: Kernel | None) -> Any:
    if not isinstance(value, dict):
        return value

    def inner(each: Any) -> Any:
        return _decode(each, arrays, path, kernel)

    if "array" in value:
        return arrays[value["array"]]
    if "dict" in value:
        return {key: inner(each) for key, each in value["dict"].items()}
    if "list" in value:
        return [inner(each) for each in value["list"]]
    if "tuple" in value:
        return tuple(inner(each) for each in value["tuple"])
    if "own kernel" in value:
        if kernel is None:
            raise SavedFileError(
                f"{path} was saved with a kernel of its user's own, {value['text']} ({value['own kernel']}): give it again, "
                "load(path, kernel=...)."
            )
        return kernel
    return _known()[value["class"]](**{name: inner(each) for name, each in value["fields"].items()})
