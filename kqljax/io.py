"""The one file format of the library: an npz archive with a description in JSON.

A file holds numbers, text, arrays, random keys, and the library's own NamedTuples and frozen
dataclasses. There is no pickle: nothing in a file is executed or imported. A kernel of the user's
own is kept by name, and whoever reads the file gives it again. A file is replaced in one move, and
zip keeps a checksum of every array: what comes back is what was saved, or a `SavedFileError`.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np

from kqljax._checks import describe

StrPath = str | os.PathLike[str]
FORMAT, VERSION = "kqljax", 1


class SavedFileError(ValueError):
    """A file that cannot be written or read, or holds something else; the message says what to do.

    Examples:
      >>> try:
      ...     kqljax.load_policy("nowhere.npz")
      ... except kqljax.SavedFileError as error:
      ...     print(error)
      cannot read nowhere.npz: No such file or directory.
    """


def save(path: StrPath, kind: str, content: dict[str, Any], *, compress: bool = True) -> Path:
    """Writes `content` to `path`, whole or not at all; missing directories are made.

    Args:
      kind: what the file is; `load` asks for the same.
      content: name -> numbers, text, None, arrays, random keys, objects of the library, and lists,
        tuples and dicts (with text keys) of these.
      compress: smaller, but slower for large arrays.
    """
    arrays: dict[str, Any] = {}
    about = {"format": FORMAT, "version": VERSION, "kind": kind}
    about |= {"content": _encode(content, arrays)}
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    target, write = Path(path), np.savez_compressed if compress else np.savez
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, lambda file: write(file, **arrays))
    except OSError as error:
        words = f"cannot write {path}: {error.strerror or error}. Give another path."
        raise SavedFileError(words) from error
    return target


def load(path: StrPath, kind: str, kernel: Any = None) -> dict[str, Any]:
    """What `save` wrote; arrays are numpy's. The file is left as it is, whatever is in it.

    Args:
      kernel: stands for a kernel that is not the library's.

    Raises:
      SavedFileError: a ValueError; the file is damaged, or of another kind, version or program.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise SavedFileError(f"cannot read {path}: {error.strerror or error}.") from error
    try:
        # Whole members, whose checksums zipfile has compared, before anything looks into them.
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: io.BytesIO(archive.read(name)) for name in archive.namelist()}
        arrays = {
            name.removesuffix(".npy"): np.lib.format.read_array(member, allow_pickle=False)
            for name, member in members.items()
        }
        about = json.loads(arrays.pop("about").tobytes())
        found, version, content = about["kind"], about["version"], about["content"]
        if about["format"] != FORMAT:
            raise ValueError("another format")
        if (found, version) == (kind, VERSION):
            return _decode(content, arrays, kernel)
    except SavedFileError as error:
        raise SavedFileError(f"{path} {error}") from None
    except Exception as error:  # whatever the bytes of a foreign or damaged file lead to
        raise SavedFileError(
            f"{path} is damaged, cut short or not a file that kqljax saved ({error!r}). It was "
            f"left as it is: give another path, or write the {kind} again."
        ) from error
    if found != kind:
        raise SavedFileError(f"{path} holds a {found}, expected a {kind}. Give another path.")
    raise SavedFileError(
        f"{path} has version {version} of the format, this kqljax reads version {VERSION}. "
        + ("Install a newer kqljax." if version > VERSION else "Make it again with this one.")
    )


def save_state(path: StrPath, cfg: Any, state: Any) -> Path:
    """Writes a state of Algorithm 1, or a batch of them from a vmap, and what its config was.

    Examples:
      >>> import os, tempfile
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(), num_actions=2, horizon=5)
      >>> state = kqljax.kql_init(cfg, obs_dim=3)
      >>> with tempfile.TemporaryDirectory() as directory:
      ...     path = kqljax.save_state(os.path.join(directory, "state.npz"), cfg, state)
      ...     kqljax.load_state(path, cfg).q_hat.shape
      (5, 2)
    """
    if not (hasattr(cfg, "kernel") and hasattr(state, "posterior")):
        raise TypeError(f"expected a config and a state, got {describe(cfg)}, {describe(state)}.")
    return save(path, "state", {"config": _numbers(cfg), "state": state})


def load_state(path: StrPath, cfg: Any) -> Any:
    """The state that `save_state` wrote, bit for bit; see `save_state`.

    Args:
      cfg: the config that it was made with; another one is refused with a `SavedFileError`.
    """
    found = load(path, "state", cfg.kernel)
    before, now = found["config"], _numbers(cfg)
    for name in [*before, *now]:
        old, new = before.get(name), now.get(name)
        if not _is_close(old, new):
            raise SavedFileError(
                f"{path} was saved with another config: {name.lstrip('.')} was {old}, the config "
                f"here has {new}. Give the config that the state was made with."
            )
    return _on_device(found["state"], path)


def save_policy(path: StrPath, policy: Any) -> Path:
    """Writes a policy of the library, for example `run.policy`.

    Examples:
      >>> import os, tempfile
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(), num_actions=2, horizon=5)
      >>> policy = kqljax.kql_policy(cfg, kqljax.kql_init(cfg, obs_dim=3))
      >>> with tempfile.TemporaryDirectory() as directory:
      ...     path = kqljax.save_policy(os.path.join(directory, "policy.npz"), policy)
      ...     kqljax.load_policy(path).values(jnp.zeros(3)).q_tilde.round(6).tolist()
      [20.0, 20.0]
    """
    if not callable(getattr(policy, "act", None)):
        raise TypeError(f"expected a policy with act(key, memory, obs), got {describe(policy)}.")
    return save(path, "policy", {"policy": policy})


def load_policy(path: StrPath, kernel: Any = None) -> Any:
    """The policy that `save_policy` wrote, bit for bit; see `save_policy`.

    Args:
      kernel: the policy's kernel, where that is not one of the library's.
    """
    return _on_device(load(path, "policy", kernel)["policy"], path)


def replace_file(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Replaces a file in one move: whoever reads, also after a crash, finds the old or the new one.

    Args:
      write: given the open file, writes the contents.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files for the owner alone; results are as public as any other file.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the new name outlives a loss of power when its directory is flushed
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _is_ours(cls: Any) -> bool:
    """Whether a file may hold objects of a class: data of this library."""
    if not (isinstance(cls, type) and cls.__module__.startswith(f"{__package__}.")):
        return False
    is_frozen = dataclasses.is_dataclass(cls) and cls.__dataclass_params__.frozen  # type: ignore
    return is_frozen or (issubclass(cls, tuple) and hasattr(cls, "_fields"))


def _encode(value: Any, arrays: dict[str, Any]) -> Any:
    cls = type(value)
    if value is None or cls in (bool, int, float, str):
        return value
    if isinstance(value, jax.core.Tracer):
        raise ValueError("a file holds numbers: save outside of jax.jit and jax.vmap.")
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = _encode(jax.random.key_data(value), arrays)
        return {"key": str(jax.random.key_impl(value)), "data": data}
    if isinstance(value, (np.ndarray, np.generic, jax.Array)) and value.dtype.kind in "biufcU":
        name = f"array{len(arrays)}"
        arrays[name] = np.asarray(value)
        return {"array": name}
    if cls is dict and all(isinstance(name, str) for name in value):
        return {"dict": {name: _encode(each, arrays) for name, each in value.items()}}
    if cls in (list, tuple):
        return {cls.__name__: [_encode(each, arrays) for each in value]}
    if _is_ours(cls):
        names = getattr(cls, "_fields", None) or [each.name for each in dataclasses.fields(value)]
        fields = {name: _encode(getattr(value, name), arrays) for name in names}
        return {"class": [cls.__module__, cls.__qualname__], "fields": fields}
    if callable(getattr(value, "evaluate", None)):
        return {"own kernel": f"{value!r} of {cls.__module__}.{cls.__qualname__}"}
    raise TypeError(f"cannot save {describe(value)}: its class is not one of kqljax.")


def _decode(value: Any, arrays: dict[str, Any], kernel: Any) -> Any:
    if not isinstance(value, dict):
        return value
    match value:
        case {"array": name}:
            return arrays[name]
        case {"key": impl, "data": data}:
            return jax.random.wrap_key_data(_decode(data, arrays, kernel), impl=impl)
        case {"dict": items}:
            return {name: _decode(each, arrays, kernel) for name, each in items.items()}
        case {"list": items}:
            return [_decode(each, arrays, kernel) for each in items]
        case {"tuple": items}:
            return tuple(_decode(each, arrays, kernel) for each in items)
        case {"own kernel": words}:
            if kernel is None:
                words = f"was saved with a kernel of its user's own, {words}: give it, kernel=..."
                raise SavedFileError(words)
            return kernel
    module, name = value["class"]
    cls = getattr(sys.modules[module], name)
    if not _is_ours(cls) or cls.__module__ != module:
        raise TypeError(f"{module}.{name} is no class of kqljax")
    return cls(**{name: _decode(each, arrays, kernel) for name, each in value["fields"].items()})


def _on_device(tree: Any, path: StrPath) -> Any:
    """With arrays of jax in place of numpy's."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            return leaf
        if jnp.asarray(leaf).dtype != leaf.dtype:
            raise SavedFileError(
                f"{path} holds {leaf.dtype}, and jax computes in float32 here. Call "
                'jax.config.update("jax_enable_x64", True) when the program begins.'
            )
        return jnp.asarray(leaf)

    return jax.tree.map(move, tree)


def _numbers(cfg: Any) -> dict[str, Any]:
    """What a state depends on: sizes and choices in words, numbers as they are."""
    leaves = jax.tree_util.tree_leaves_with_path(cfg)
    numbers = {jax.tree_util.keystr(path): np.asarray(leaf, np.float64) for path, leaf in leaves}
    return {"structure": str(jax.tree.structure(cfg)), **numbers}


def _is_close(old: Any, new: Any) -> bool:
    """Also where one of two configs has been through arrays of float32."""
    if isinstance(old, np.ndarray) and isinstance(new, np.ndarray):
        return old.shape == new.shape and np.allclose(old, new, rtol=1e-6, atol=0)
    return type(old) is type(new) and bool(old == new)
