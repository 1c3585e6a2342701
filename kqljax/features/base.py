"""What all feature maps have, the checks they share, and the roots of product kernels.

Maps are made once, outside jit, in float64: their certificates need more digits than float32 has.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, NamedTuple, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from kqljax._arrays import dot, in_dtype, register
from kqljax._checks import is_known, require
from kqljax.kernels import Kernel, Pair, check_shapes, every_action, shapes

Array = jax.Array

MAX_FEATURES = 2000
"""State features that a map gets at most when its size follows from a tolerance."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureMap:
    """What all maps have. Make one with the functions of this package.

    Subclasses become frozen dataclasses and pytrees; `static` names fields that are no leaves.

    Attributes:
      kernel: the kernel it stands for.
      root: `[A, m, D]` R, how features of states become features of pairs.
      error: largest difference from the kernel.
      obs_dim: l, static.
      error_kind: "exact", "bound" or "measured", static.

    Examples:
      >>> found = features.linear(kqljax.Linear(), obs_dim=2, num_actions=3)
      >>> found.num_features, found.num_weights, found.root.shape, found.error_kind
      (3, 5, (3, 3, 5), 'exact')
      >>> found.psi(jnp.array([0.1, -0.2])).tolist()
      [0.1, -0.2, 1.0]
    """

    kernel: Kernel
    root: Any
    error: Any
    obs_dim: int
    error_kind: str

    def __init_subclass__(cls, static: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        register(cls, static=("obs_dim", "error_kind", *static))

    @property
    def num_actions(self) -> int:
        """A."""
        return self.root.shape[-3]

    @property
    def num_features(self) -> int:
        """m, features of a state."""
        return self.root.shape[-2]

    @property
    def num_weights(self) -> int:
        """D, features of a pair."""
        return self.root.shape[-1]

    def psi(self, obs: Array) -> Array:
        """Features `[m]` of a state `[l]`."""
        raise TypeError(f"{type(self).__name__} has no psi method.")

    def residual(self, obs: Array, psi: Array) -> Array:
        """`[A]` what the features of a state `[l]` leave out of k(x, x): it counts as not known."""
        return jnp.zeros((self.num_actions,), psi.dtype)

    def check(
        self, kernel: Kernel, obs_dim: int | None, num_actions: int, dtype: Any = None
    ) -> None:
        """ValueError where the map was made for something else; `dtype` is None where not known."""
        text = "the feature map was made for {}, not {}. Make it anew."
        if obs_dim not in (None, self.obs_dim):
            raise ValueError(text.format(f"observations of length {self.obs_dim}", obs_dim))
        if num_actions != self.num_actions:
            raise ValueError(text.format(f"{self.num_actions} actions", num_actions))
        one, other = (jax.tree.structure(each) for each in (kernel, self.kernel))
        same: bool = one == other  # type: ignore[operator]
        if same and is_known(kernel, self.kernel):
            pairs = zip(jax.tree.leaves(kernel), jax.tree.leaves(self.kernel), strict=True)
            same = all(np.allclose(*pair, rtol=1e-6, atol=0) for pair in pairs)
        if not same:
            raise ValueError(
                f"the feature map stands for the kernel {self.kernel}, the config has {kernel}. "
                "Make the map from the config's kernel."
            )


def check_tolerance(tolerance: Any) -> float:
    what = "It is the largest error in the kernel, whose values are up to 1."
    return float(require("tolerance", tolerance, lambda x: (x > 0) & (x < 1), "in (0, 1)", what))


def check_kernel(kernel: Any, kinds: tuple[type, ...], name: str) -> None:
    if not isinstance(kernel, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"features.{name} is for the kernel {names}, got {kernel}.")


def on_host(function: Any, *args: Any) -> np.ndarray:
    """The result in float64, also where jax has only float32, or while something is traced."""
    cpu = jax.default_device(jax.devices("cpu")[0])
    with jax.enable_x64(True), jax.ensure_compile_time_eval(), cpu:
        return np.asarray(function(*in_dtype(args, jnp.float64)), np.float64)


def kernel_error(features: FeatureMap, states: np.ndarray) -> float:
    """Largest difference from the kernel over all pairs of states `[N, l]` and actions.

    Examples:
      >>> states = np.random.default_rng(0).uniform(-1, 1, (10, 2))
      >>> found = features.taylor(kqljax.RBF(eta=0.02), obs_dim=2, num_actions=3, order=3)
      >>> features.kernel_error(found, states) < found.error
      True
    """

    def difference(features: FeatureMap, states: Array) -> Array:
        psi = jax.vmap(features.psi)(states)
        rooted = jnp.einsum("nm,amd->nad", psi, features.root).reshape(-1, features.num_weights)
        by_state = jax.vmap(lambda obs: every_action(obs, features.num_actions))(states)
        pairs = Pair(*(leaf.reshape(-1, leaf.shape[-1]) for leaf in by_state))
        return jnp.max(jnp.abs(dot(rooted, rooted.T) - features.kernel.matrix(pairs, pairs)))

    return float(on_host(difference, features, np.asarray(states)))


class ProductMap(FeatureMap):
    """A map of a state part times an action part. The root's rows are orthogonal.

    `shares` `[A, m]` is what each feature, squared, adds to k(x, x).
    """

    shares: Any

    def residual(self, obs: Array, psi: Array) -> Array:
        own = self.kernel.diag(every_action(obs, self.num_actions))
        return jnp.maximum(own - dot(jnp.asarray(self.shares, psi.dtype), psi**2), 0.0)


def action_gram(kernel: Kernel, obs_dim: int, num_actions: int, name: str) -> Any:
    """G `[A, A]` of a kernel that is a state part times G; an error for others."""
    check_shapes(kernel, obs_dim)
    scale, shift = shapes(kernel, obs_dim, num_actions)
    if not kernel.is_split or len(scale) != 1 or shift is not None:
        raise ValueError(
            f"{name} wants a kernel that is a state part times an action part, such as RBF; "
            f"{kernel} is not. Use features.fourier for the Matern kernels, features.linear for "
            "Linear, or the exact engine."
        )
    if not is_known(kernel):
        return kernel.mixing(obs_dim, num_actions, jnp.zeros(()).dtype).scale[0]
    return on_host(lambda known: known.mixing(obs_dim, num_actions, jnp.float64).scale[0], kernel)


class Group(NamedTuple):
    """An eigenspace of the action Gram matrix: its share of k(x, x), and square roots `[A, r]`.

    Each is a kernel of its own and needs only as many features as its share is worth.
    """

    share: float
    factor: Any


def groups_of(action_gram: Any) -> list[Group]:
    """Eigenspaces of G, largest first; a traced G is one group."""
    if not is_known(action_gram):
        return [Group(1.0, jnp.linalg.cholesky(action_gram))]
    values, vectors = np.linalg.eigh(action_gram)
    downwards = range(len(values))[::-1]
    groups: list[Group] = []
    for _, equal in itertools.groupby(downwards, lambda i: round(values[i] / values[-1], 9)):
        members = [i for i in equal if values[i] > 1e-12]
        if members:
            factor = vectors[:, members] * np.sqrt(values[members])
            groups.append(Group(float((factor**2).sum(axis=1).max()), factor))
    return groups


def grouped_root(groups: list[Group], sizes: list[int]) -> dict[str, Any]:
    """`root` and `shares` for features of which group i uses the first sizes[i]."""
    lib: Any = np if is_known(groups) else jnp
    parts = []
    for group, size in zip(groups, sizes, strict=True):
        block = lib.einsum("jk,ai->ajki", np.eye(max(sizes))[:, :size], group.factor)
        parts.append(block.reshape(*block.shape[:2], -1))
    root = lib.concatenate(parts, axis=2)
    return {"root": root, "shares": (root**2).sum(axis=-1)}
