"""Kernels on (state, action) pairs.

A kernel is written for two single pairs; everything batched is derived from that one method:

    class Periodic(Kernel):
        period: float = 1.0

        def evaluate(self, x, y):
            waves = jnp.sin(jnp.pi * (x.obs - y.obs) / self.period) ** 2
            return jnp.exp(-waves.sum()) * jnp.dot(x.action, y.action)

Subclasses become frozen dataclasses whose fields are pytree leaves, so that `jax.vmap` over a length scale or
a change of `eta` never recompiles.

Split kernels
-------------
The exact engine evaluates all actions at every stored successor at every step. Where a kernel is

    k((s, a), (s', a')) = sum_j  terms_j(s, s') * scale[j, a, a']  +  shift[a, a'],

the state part is stored once for all actions: an array `[T, J, T]` in place of `[T, A, T]`. Both kernels of the
paper have J = 1, the Matern kernels J = 2. A kernel that says nothing is stored with J = A, which is always right.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, dataclass_transform

import jax
import jax.numpy as jnp

from kqljax.errors import describe
from kqljax.pytrees import register

Array = jax.Array


class Pair(NamedTuple):
    """A point of the kernel's domain.

    Attributes:
      obs: `[l]` normalised observation.
      action: `[A]` one-hot action.

    Examples:
      >>> x = kqljax.Pair(obs=jnp.array([0.1, -0.2]), action=jnp.array([0.0, 1.0, 0.0]))
      >>> x.obs.shape, x.action.shape
      ((2,), (3,))
    """

    obs: Array
    action: Array


class Mixing(NamedTuple):
    """How the state terms of a kernel combine over actions.

    Attributes:
      scale: `[J, A, A]` weight of state term j between the query's action and the stored pair's action.
      shift: `[A, A]` part that does not depend on the states, or None where there is none.
    """

    scale: Array
    shift: Array | None


@dataclass_transform(frozen_default=True)
class Kernel:
    """Base class: implement `evaluate`, declare parameters as annotated fields.

    `evaluate` is given two pairs with obs `[l]` and action `[A]` and returns a number `[]`.

    Examples:
      >>> class Near(kqljax.Kernel):
      ...     reach: float = 1.0
      ...
      ...     def evaluate(self, x, y):
      ...         return jnp.exp(-jnp.sum(jnp.abs(x.obs - y.obs)) / self.reach) * jnp.dot(x.action, y.action)
      >>> x, y = (kqljax.Pair(jnp.array([place]), jnp.array([1.0, 0.0])) for place in (0.0, 1.0))
      >>> round(float(Near(reach=2.0).evaluate(x, y)), 4)
      0.6065
      >>> 0.5 * Near() + 0.5 * kqljax.RBF(eta=1.0)
      Sum(left=Scaled(kernel=Near(reach=1.0), factor=0.5), right=Scaled(kernel=RBF(eta=1.0), factor=0.5))
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = vars(cls)
        if "evaluate" in own and "terms" not in own:
            # A new formula: what an inherited split says would be of the old one.
            for name in ("is_split", "terms", "mixing"):
                setattr(cls, name, vars(Kernel)[name])
        dataclasses.dataclass(frozen=True)(cls)
        register(cls)

    def evaluate(self, x: Pair, y: Pair) -> Array:
        """The kernel of two single pairs, a scalar."""
        raise TypeError(
            f"{type(self).__name__} has no evaluate method. A kernel implements evaluate(self, x, y) for two pairs "
            "with fields obs [l] and action [A] (one-hot) and returns a scalar."
        )

    @property
    def is_split(self) -> bool:
        """Whether `terms` depends on the states alone (and so is shared by all actions)."""
        return False

    def terms(self, obs: Array, stored: Pair) -> Array:
        """State terms `[J]` between a query state `[l]` and one stored pair."""
        every_action = jnp.eye(stored.action.shape[-1], dtype=stored.action.dtype)
        return jax.vmap(lambda action: self.evaluate(Pair(obs, action), stored))(every_action)

    def mixing(self, obs_dim: int, num_actions: int, dtype: Any) -> Mixing:
        """The weights that turn `terms` into the kernel; see the module's text."""
        own = jnp.eye(num_actions, dtype=dtype)
        return Mixing(jnp.broadcast_to(own[:, :, None], (num_actions,) * 3), None)

    def domain(self, obs_dim: int) -> Any:
        """Observations `[N, l]` of the kind that the kernel is for; None is anywhere in [-1, 1]^l.

        The kernel is tried out there when a run begins. A kernel made of others takes their word.
        """
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            part = getattr(self, field.name)
            found = part.domain(obs_dim) if isinstance(part, Kernel) else None
            if found is not None:
                return found
        return None

    def __add__(self, other: Kernel) -> Kernel:
        return Sum(_operand(self, "+"), _operand(other, "+"))

    def __mul__(self, other: Any) -> Kernel:
        if isinstance(other, Kernel):
            return Product(self, other)
        return Scaled(self, _factor(other))

    def __rmul__(self, other: Any) -> Kernel:
        return Scaled(self, _factor(other))


def _operand(kernel: Any, sign: str) -> Kernel:
    if not isinstance(kernel, Kernel):
        raise TypeError(f"a kernel {sign} {describe(kernel)}: expected another kernel. Scale a kernel with *.")
    return kernel


def _factor(value: Any) -> Any:
    if jnp.ndim(value) != 0 or isinstance(value, (str, bytes)):
        raise TypeError(f"a kernel * {describe(value)}: expected a kernel or a number.")
    return value


def squared_distance(x: Array, y: Array) -> Array:
    """||x - y||^2 from differences: the expanded form loses 5e-5 in float32, this one 7e-8."""
    return jnp.sum((x - y) ** 2, axis=-1)


def _agreement(num_actions: int, same: Any, different: Any, dtype: Any) -> Array:
    """`[A, A]`: `same` on the diagonal, `different` elsewhere."""
    return jnp.where(jnp.eye(num_actions, dtype=bool), jnp.asarray(same, dtype), jnp.asarray(different, dtype))


class RBF(Kernel):
    """Gaussian kernel of the paper's section 6.1, exp(-eta ||[s, a] - [s', a']||^2).

    Two different one-hot actions lie at squared distance 2, so the kernel is a state part times
    1 where the actions agree and exp(-2 eta) where they differ.

    Attributes:
      eta: inverse squared width. The paper sets 0.02, and 1 for Pendulum.

    Examples:
      >>> x, y = (kqljax.Pair(jnp.zeros(2), action) for action in jnp.eye(3)[:2])
      >>> kernel = kqljax.RBF(eta=0.02)
      >>> float(kernel.evaluate(x, x)), round(float(kernel.evaluate(x, y)), 4)
      (1.0, 0.9608)
    """

    eta: Any = 0.02

    def evaluate(self, x: Pair, y: Pair) -> Array:
        return jnp.exp(-self.eta * (squared_distance(x.obs, y.obs) + squared_distance(x.action, y.action)))

    @property
    def is_split(self) -> bool:
        return True

    def terms(self, obs: Array, stored: Pair) -> Array:
        return jnp.exp(-self.eta * squared_distance(obs, stored.obs))[None]

    def mixing(self, obs_dim: int, num_actions: int, dtype: Any) -> Mixing:
        return Mixing(_agreement(num_actions, 1.0, jnp.exp(-2.0 * jnp.asarray(self.eta, dtype)), dtype)[None], None)


class Linear(Kernel):
    """Linear kernel of the paper's section 6.1, [s, a].[s', a'] / (2 (l + 1)) + 1/2.

    Examples:
      >>> x, y = (kqljax.Pair(jnp.zeros(2), action) for action in jnp.eye(3)[:2])
      >>> kernel = kqljax.Linear()
      >>> round(float(kernel.evaluate(x, x)), 4), float(kernel.evaluate(x, y))
      (0.6667, 0.5)
    """

    def evaluate(self, x: Pair, y: Pair) -> Array:
        inner = jnp.dot(x.obs, y.obs) + jnp.dot(x.action, y.action)
        return inner / (2 * (x.obs.shape[-1] + 1)) + 0.5

    @property
    def is_split(self) -> bool:
        return True

    def terms(self, obs: Array, stored: Pair) -> Array:
        return (jnp.dot(obs, stored.obs) / (2 * (obs.shape[-1] + 1)))[None]

    def mixing(self, obs_dim: int, num_actions: int, dtype: Any) -> Mixing:
        shift = 0.5 + _agreement(num_actions, 1.0 / (2 * (obs_dim + 1)), 0.0, dtype)
        return Mixing(jnp.ones((1, num_actions, num_actions), dtype), shift)


class _Radial(Kernel):
    """A function of ||[s, a] - [s', a']||: one term where the actions agree, one where they differ."""

    length_scale: Any = 1.0

    def profile(self, distance: Array) -> Array:
        """The kernel as a function of distance / length_scale."""
        raise TypeError(f"{type(self).__name__} has no profile method.")

    def _of_squared(self, squared: Array) -> Array:
        # A square root has no gradient at zero; the substituted 1 keeps the unused branch finite.
        positive = squared > 0
        root = jnp.where(positive, jnp.sqrt(jnp.where(positive, squared, 1.0)), 0.0)
        return self.profile(root / self.length_scale)

    def evaluate(self, x: Pair, y: Pair) -> Array:
        return self._of_squared(squared_distance(x.obs, y.obs) + squared_distance(x.action, y.action))

    @property
    def is_split(self) -> bool:
        return True

    def terms(self, obs: Array, stored: Pair) -> Array:
        squared = squared_distance(obs, stored.obs)
        return jnp.stack([self._of_squared(squared), self._of_squared(squared + 2.0)])

    def mixing(self, obs_dim: int, num_actions: int, dtype: Any) -> Mixing:
        same = _agreement(num_actions, 1.0, 0.0, dtype)
        return Mixing(jnp.stack([same, 1.0 - same]), None)


class Matern32(_Radial):
    """Matern kernel of smoothness 3/2 on the Euclidean distance of [s, a]: (1 + r) exp(-r), r = sqrt(3) d / length_scale.

    Examples:
      >>> x, y = (kqljax.Pair(jnp.zeros(2), action) for action in jnp.eye(3)[:2])
      >>> round(float(kqljax.Matern32(length_scale=2.0).evaluate(x, y)), 4)
      0.6537
    """

    def profile(self, distance: Array) -> Array:
        r = jnp.sqrt(3.0) * distance
        return (1.0 + r) * jnp.exp(-r)


class Matern52(_Radial):
    """Matern kernel of smoothness 5/2: (1 + r + r^2 / 3) exp(-r), r = sqrt(5) d / length_scale.

    Examples:
      >>> x, y = (kqljax.Pair(jnp.zeros(2), action) for action in jnp.eye(3)[:2])
      >>> round(float(kqljax.Matern52(length_scale=2.0).evaluate(x, y)), 4)
      0.7025
    """

    def profile(self, distance: Array) -> Array:
        r = jnp.sqrt(5.0) * distance
        return (1.0 + r + r**2 / 3.0) * jnp.exp(-r)


class Scaled(Kernel):
    """factor * kernel, written `2.0 * kernel`."""

    kernel: Kernel
    factor: Any

    def evaluate(self, x: Pair, y: Pair) -> Array:
        return self.factor * self.kernel.evaluate(x, y)

    @property
    def is_split(self) -> bool:
        return self.kernel.is_split

    def terms(self, obs: Array, stored: Pair) -> Array:
        return self.kernel.terms(obs, stored)

    def mixing(self, obs_dim: int, num_actions: int, dtype: Any) -> Mixing:
        scale, shift = self.kernel.mixing(obs_dim, num_actions, dtype)
        factor = jnp.asarray(self.factor, dtype)
        return Mixing(factor * scale, None if shift is None else factor * shift)


class Sum(Kernel):
    """left + right."""

    left: Kernel
    right: Kernel

    def evaluate(self, x: Pair, y: Pair) -> Array:
        return self.left.evaluate(x, y) + self.right.evaluate(x, y)

    @property
    def is_split(self) -> bool:
        return self.left.is_split and self.right.is_split

    def terms(self, obs: Array, stored: Pair) -> Array:
        if not self.is_split:
            return super().terms(obs, stored)
        return jnp.concatenate([self.left.terms(obs, stored), self.right.terms(obs, stored)])

    def mixing(self, obs_dim: int, num_actions: int, dtype: Any) -> Mixing:
        if not self.is_split:
            return super().mixing(obs_dim, num_actions, dtype)
        left = self.left.mixing(obs_dim, num_actions, dtype)
        right = self.right.mixing(obs_dim, num_actions, dtype)
        if left.shift is None or right.shift is None:
            shift = right.shift if left.shift is None else left.shift
        else:
            shift = left.shift + right.shift
        return Mixing(jnp.concatenate([left.scale, right.scale]), shift)


class Product(Kernel):
    """left * right.

    Split factors multiply out: every term with every term, and every term with the other's shift.
    """

    left: Kernel
    right: Kernel

    def evaluate(self, x: Pair, y: Pair) -> Array:
        return self.left.evaluate(x, y) * self.right.evaluate(x, y)

    @property
    def is_split(self) -> bool:
        return self.left.is_split and self.right.is_split

    def _has_shift(self, kernel: Kernel, obs_dim: int, num_actions: int) -> bool:
        return jax.eval_shape(lambda: kernel.mixing(obs_dim, num_actions, jnp.float32)).shift is not None

    def terms(self, obs: Array, stored: Pair) -> Array:
        if not self.is_split:
            return super().terms(obs, stored)
        left, right = self.left.terms(obs, stored), self.right.terms(obs, stored)
        parts = [jnp.outer(left, right).ravel()]
        sizes = obs.shape[-1], stored.action.shape[-1]
        if self._has_shift(self.right, *sizes):
            parts.append(left)
        if self._has_shift(self.left, *sizes):
            parts.append(right)
        return jnp.concatenate(parts)

    def mixing(self, obs_dim: int, num_actions: int, dtype: Any) -> Mixing:
        if not self.is_split:
            return super().mixing(obs_dim, num_actions, dtype)
        left = self.left.mixing(obs_dim, num_actions, dtype)
        right = self.right.mixing(obs_dim, num_actions, dtype)
        both = left.scale[:, None] * right.scale[None, :]
        parts = [both.reshape(-1, num_actions, num_actions)]
        if right.shift is not None:
            parts.append(left.scale * right.shift)
        if left.shift is not None:
            parts.append(right.scale * left.shift)
        constant = None if left.shift is None or right.shift is None else left.shift * right.shift
        return Mixing(jnp.concatenate(parts), constant)


def num_terms(kernel: Kernel, obs_dim: int, num_actions: int) -> int:
    """J, the number of state terms the engine stores for this kernel."""
    return jax.eval_shape(lambda: kernel.mixing(obs_dim, num_actions, jnp.float32)).scale.shape[0]


def self_kernel(kernel: Kernel, obs: Array, num_actions: int) -> Array:
    """k(x, x) `[A]` of one state `[l]` with every action."""
    every_action = jnp.eye(num_actions, dtype=obs.dtype)
    return jax.vmap(lambda action: kernel.evaluate(Pair(obs, action), Pair(obs, action)))(every_action)


def gram(kernel: Kernel, rows: Pair, columns: Pair) -> Array:
    """Kernel matrix `[N, M]` of N row pairs and M column pairs (fields `[N, l]`, `[N, A]`)."""
    return jax.vmap(lambda x: jax.vmap(lambda y: kernel.evaluate(x, y))(columns))(rows)
