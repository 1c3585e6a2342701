"""Kernels on (state, action) pairs.

A kernel is written for two single pairs, see `Kernel`; everything batched follows from that.
Subclasses become frozen dataclasses whose fields are pytree leaves, so that `jax.vmap` over a
length scale or a change of `eta` never recompiles.

The exact engine evaluates all actions at every stored successor at every step. A split kernel is

    k((s, a), (s', a')) = sum_j  terms_j(s, s') * scale[j, a, a']  +  shift[a, a'],

and its state part is stored once for all actions: `[T, J, T]` in place of `[T, A, T]`. Both
kernels of the paper have J = 1, the Matern kernels J = 2. A kernel that does not say how it
splits is stored with J = A, which is always right.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import warnings
from typing import Any, ClassVar, NamedTuple, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from kqljax._arrays import register
from kqljax._checks import describe, first_bad, is_known, require

Array = jax.Array


class NormalisationWarning(UserWarning):
    """The kernel or a number lies outside what the paper's theorem assumes; the algorithm runs on.

    Examples:
      >>> import warnings
      >>> with warnings.catch_warnings(record=True, action="always") as caught:
      ...     (4.0 * kqljax.RBF()).validate(obs_dim=2, num_actions=3)
      >>> caught[0].category.__name__
      'NormalisationWarning'
    """


class Pair(NamedTuple):
    """A point of the kernel's domain: a normalised observation `[l]`, a one-hot action `[A]`.

    Examples:
      >>> x = kqljax.Pair(obs=jnp.array([0.1, -0.2]), action=jnp.array([0.0, 1.0, 0.0]))
      >>> x.obs.shape, x.action.shape
      ((2,), (3,))
    """

    obs: Array
    action: Array


def every_action(obs: Array, num_actions: int) -> Pair:
    """The pairs (`[A, l]`, `[A, A]`) of one state `[l]` with each of the actions."""
    actions = jnp.eye(num_actions, dtype=obs.dtype)
    return Pair(jnp.broadcast_to(obs, (num_actions, *obs.shape)), actions)


class Mixing(NamedTuple):
    """How state terms combine over actions of the query and of the stored pair.

    `scale` `[J, A, A]` and `shift` `[A, A]` of the module's text; None where there is no shift.
    """

    scale: Array
    shift: Array | None


@dataclass_transform(frozen_default=True)
class Kernel:
    """Base class: implement `evaluate`, declare parameters as annotated fields.

    Examples:
      >>> class Near(kqljax.Kernel):
      ...     reach: float = 1.0
      ...
      ...     def evaluate(self, x, y):
      ...         distance = jnp.sum(jnp.abs(x.obs - y.obs))
      ...         return jnp.exp(-distance / self.reach) * jnp.dot(x.action, y.action)
      >>> points = kqljax.Pair(jnp.array([[0.0], [1.0]]), jnp.array([[1.0, 0.0], [1.0, 0.0]]))
      >>> Near(reach=2.0).matrix(points, points).round(4).tolist()
      [[1.0, 0.6065], [0.6065, 1.0]]
      >>> 0.5 * Near() + kqljax.RBF(eta=1.0)
      Sum(left=Scaled(kernel=Near(reach=1.0), factor=0.5), right=RBF(eta=1.0))
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = vars(cls)
        if "evaluate" in own:
            # A new formula: what is inherited would be of the old one.
            split = () if "terms" in own else ("is_split", "terms", "mixing")
            for name in {"matrix", "diag", *split} - set(own):
                setattr(cls, name, vars(Kernel)[name])
        dataclasses.dataclass(frozen=True)(cls)
        register(cls)

    def evaluate(self, x: Pair, y: Pair) -> Array:
        """The kernel `[]` of two single pairs (fields `[l]`, `[A]`)."""
        raise TypeError(
            f"{type(self).__name__} has no evaluate method. A kernel implements evaluate(self, x, "
            "y) for two pairs with fields obs [l] and action [A] (one-hot) and returns a scalar."
        )

    def matrix(self, rows: Pair, columns: Pair) -> Array:
        """Kernel matrix `[N, M]` of N and M pairs (fields `[N, l]`, `[N, A]`)."""
        return jax.vmap(lambda x: jax.vmap(lambda y: self.evaluate(x, y))(columns))(rows)

    def diag(self, pairs: Pair) -> Array:
        """k(x, x) `[N]` of N pairs."""
        return jax.vmap(lambda x: self.evaluate(x, x))(pairs)

    @property
    def is_split(self) -> bool:
        """Whether `terms` depends on the states alone (and so is shared by all actions)."""
        return False

    def terms(self, obs: Array, stored: Pair) -> Array:
        """State terms `[J]` between a query state `[l]` and one stored pair."""
        queries = every_action(obs, stored.action.shape[-1])
        return jax.vmap(lambda query: self.evaluate(query, stored))(queries)

    def mixing(self, obs_dim: int, num_actions: int, dtype: Any) -> Mixing:
        """The weights that turn `terms` into the kernel."""
        own = jnp.eye(num_actions, dtype=dtype)
        return Mixing(jnp.broadcast_to(own[:, :, None], (num_actions,) * 3), None)

    def domain(self, obs_dim: int) -> Any:
        """Observations `[N, l]` that `validate` tries the kernel out on; None: all of [-1, 1]^l."""
        parts = [part for part in vars(self).values() if isinstance(part, Kernel)]
        found = (part.domain(obs_dim) for part in parts)
        return next((states for states in found if states is not None), None)

    def validate(self, obs_dim: int, num_actions: int, *, warns: bool = True) -> None:
        """Tries the kernel out on states of its domain, with every action. Call it outside jit.

        ValueError where it is no kernel there, or a parameter is out of its range; by default
        NormalisationWarning where its norm leaves [1/2, 1].
        """
        check_shapes(self, obs_dim)
        states = self.domain(obs_dim)
        if states is None:
            states = np.random.default_rng(0).uniform(-1, 1, (16, obs_dim))
            states[0], states[1], states[2:8] = 0.0, 1.0, np.sign(states[2:8])
        # The kernel is known, but something else may be traced.
        with jax.ensure_compile_time_eval():
            each = jax.vmap(lambda obs: self.diag(every_action(obs, num_actions)))
            found = np.asarray(each(jnp.asarray(states, jnp.zeros(()).dtype)), np.float64)
        if not np.all(found > 0):
            raise ValueError(
                f"the kernel {self} gives k(x, x) = {first_bad(found, found > 0)}: expected "
                "positive numbers. Look at its parameters."
            )
        for name, value in _widths(self):
            require(f"the kernel's {name}", value, lambda x: x > 0, "above 0", "It is a width.")
        low, high, slack = np.sqrt(found.min()), np.sqrt(found.max()), 1e-6
        if warns and (low < 0.5 - slack or high > 1 + slack):
            warnings.warn(
                f"the kernel's norm ||K_x|| = sqrt(k(x, x)) runs from {low:.3g} to {high:.3g} on "
                f"[-1, 1]^{obs_dim}; the paper assumes [1/2, 1]. Scale it, for example "
                f"{1 / high**2:.3g} * kernel, to keep the theorem's constants.",
                NormalisationWarning,
                stacklevel=3,
            )

    def __add__(self, other: Kernel) -> Kernel:
        if not isinstance(other, Kernel):
            raise TypeError(
                f"a kernel + {describe(other)}: expected another kernel. Scale a kernel with *."
            )
        return Sum(self, other)

    def __radd__(self, other: Any) -> Kernel:
        # sum([k1, k2]) begins with 0.
        return self if isinstance(other, int) and other == 0 else self + other

    def __mul__(self, other: Any) -> Kernel:
        if isinstance(other, Kernel):
            return Product(self, other)
        if jnp.ndim(other) != 0 or isinstance(other, (str, bytes)):
            raise TypeError(f"a kernel * {describe(other)}: expected a kernel or a number.")
        return Scaled(self, other)

    __rmul__ = __mul__


def _widths(kernel: Kernel) -> list[tuple[str, Any]]:
    """Name and value of every `eta` and `length_scale`, also in the parts of a kernel."""
    named = jax.tree_util.tree_leaves_with_path(kernel)
    found = [(jax.tree_util.keystr(path).lstrip("."), leaf) for path, leaf in named]
    return [each for each in found if each[0].split(".")[-1] in ("eta", "length_scale")]


def check_shapes(kernel: Kernel, obs_dim: int) -> None:
    """Raises ValueError where a width is not for observations `[l]`; also for traced kernels."""
    for name, value in _widths(kernel):
        is_rbf, shape = name.endswith("eta"), jnp.shape(value)
        if shape and not (is_rbf and shape == (obs_dim,)):
            also = f" or {obs_dim} numbers, one a coordinate" if is_rbf else ""
            raise ValueError(f"the kernel's {name} must be a number{also}, got shape {shape}.")


def squared_distance(x: Array, y: Array) -> Array:
    """||x - y||^2 from differences: the expanded form loses 5e-5 in float32, this one 7e-8."""
    return jnp.sum((x - y) ** 2, axis=-1)


class RBF(Kernel):
    """Gaussian kernel of the paper's section 6.1, exp(-eta ||[s, a] - [s', a']||^2).

    That is a state part times 1 where the actions agree and exp(-2 eta) where they differ. With an
    eta for each coordinate the state part is exp(-sum_i eta_i (s_i - s'_i)^2), and the distance of
    actions is weighted by the mean of eta.

    Attributes:
      eta: inverse squared width, a number or `[l]`. The paper sets 0.02, and 1 for Pendulum.

    Examples:
      >>> x, y = (kqljax.Pair(jnp.zeros(2), action) for action in jnp.eye(3)[:2])
      >>> [round(float(kqljax.RBF(eta).evaluate(x, y)), 4) for eta in (0.02, [0.01, 0.03])]
      [0.9608, 0.9608]
    """

    eta: Any = 0.02

    def __post_init__(self) -> None:
        if isinstance(self.eta, (list, tuple)):  # A list would be a pytree with a leaf a number.
            eta = np.asarray(self.eta) if is_known(self.eta) else jnp.stack(self.eta)
            object.__setattr__(self, "eta", eta)

    def evaluate(self, x: Pair, y: Pair) -> Array:
        eta, between_states = self._eta_and_distance(x.obs, y.obs)
        return jnp.exp(-between_states - eta.mean() * squared_distance(x.action, y.action))

    def diag(self, pairs: Pair) -> Array:
        return jnp.ones(pairs.obs.shape[0], pairs.obs.dtype)

    is_split = True

    def terms(self, obs: Array, stored: Pair) -> Array:
        return jnp.exp(-self._eta_and_distance(obs, stored.obs)[1])[None]

    def mixing(self, obs_dim: int, num_actions: int, dtype: Any) -> Mixing:
        different = jnp.exp(-2.0 * jnp.asarray(self.eta, dtype).mean())
        return Mixing(jnp.where(jnp.eye(num_actions, dtype=bool), 1.0, different)[None], None)

    def _eta_and_distance(self, x: Array, y: Array) -> tuple[Array, Array]:
        # eta in the precision of the observations: a float64 array would promote the rest.
        eta = jnp.asarray(self.eta, jnp.result_type(x, float))
        return eta, eta * squared_distance(x, y) if eta.ndim == 0 else jnp.sum(eta * (x - y) ** 2)


class Linear(Kernel):
    """Linear kernel of the paper's section 6.1, [s, a].[s', a'] / (2 (l + 1)) + 1/2.

    Examples:
      >>> x, y = (kqljax.Pair(jnp.zeros(2), action) for action in jnp.eye(3)[:2])
      >>> round(float(kqljax.Linear().evaluate(x, x)), 4), float(kqljax.Linear().evaluate(x, y))
      (0.6667, 0.5)
    """

    def evaluate(self, x: Pair, y: Pair) -> Array:
        inner = jnp.dot(x.obs, y.obs) + jnp.dot(x.action, y.action)
        return inner / (2 * (x.obs.shape[-1] + 1)) + 0.5

    is_split = True

    def terms(self, obs: Array, stored: Pair) -> Array:
        return (jnp.dot(obs, stored.obs) / (2 * (obs.shape[-1] + 1)))[None]

    def mixing(self, obs_dim: int, num_actions: int, dtype: Any) -> Mixing:
        shift = 0.5 + jnp.eye(num_actions, dtype=dtype) / (2 * (obs_dim + 1))
        return Mixing(jnp.ones((1, num_actions, num_actions), dtype), shift)


class _Radial(Kernel):
    """A function of ||[s, a] - [s', a']||: one term where the actions agree, one where not."""

    length_scale: Any = 1.0
    profile: ClassVar[Any]  # the kernel as a function of distance / length_scale

    def _of_squared(self, squared: Array) -> Array:
        # A square root has no gradient at zero; the substituted 1 keeps the unused branch finite.
        positive = squared > 0
        root = jnp.where(positive, jnp.sqrt(jnp.where(positive, squared, 1.0)), 0.0)
        return self.profile(root / self.length_scale)

    def evaluate(self, x: Pair, y: Pair) -> Array:
        between_actions = squared_distance(x.action, y.action)
        return self._of_squared(squared_distance(x.obs, y.obs) + between_actions)

    is_split = True

    def terms(self, obs: Array, stored: Pair) -> Array:
        squared = squared_distance(obs, stored.obs)
        return jnp.stack([self._of_squared(squared), self._of_squared(squared + 2.0)])

    def mixing(self, obs_dim: int, num_actions: int, dtype: Any) -> Mixing:
        same = jnp.eye(num_actions, dtype=dtype)
        return Mixing(jnp.stack([same, 1.0 - same]), None)


class Matern32(_Radial):
    """Matern kernel of smoothness 3/2, (1 + r) exp(-r), r = sqrt(3) d / length_scale, d as in RBF.

    Examples:
      >>> x, y = (kqljax.Pair(jnp.zeros(2), action) for action in jnp.eye(3)[:2])
      >>> round(float(kqljax.Matern32(length_scale=2.0).evaluate(x, y)), 4)
      0.6537
    """

    def profile(self, distance: Array) -> Array:
        r = jnp.sqrt(3.0) * distance
        return (1.0 + r) * jnp.exp(-r)


class Matern52(_Radial):
    """Matern kernel of smoothness 5/2, (1 + r + r^2 / 3) exp(-r), r = sqrt(5) d / length_scale.

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

    is_split = property(lambda self: self.kernel.is_split)

    def terms(self, obs: Array, stored: Pair) -> Array:
        return self.kernel.terms(obs, stored)

    def mixing(self, obs_dim: int, num_actions: int, dtype: Any) -> Mixing:
        mixing = self.kernel.mixing(obs_dim, num_actions, dtype)
        return jax.tree.map(lambda weight: jnp.asarray(self.factor, dtype) * weight, mixing)


class _OfTwo(Kernel):
    """A kernel made of two, split where both are. Sum and Product say how values and terms join."""

    left: Kernel
    right: Kernel
    _of_values: ClassVar[Any]
    _of_terms: ClassVar[Any]
    _of_mixings: ClassVar[Any]

    def evaluate(self, x: Pair, y: Pair) -> Array:
        return self._of_values(self.left.evaluate(x, y), self.right.evaluate(x, y))

    is_split = property(lambda self: self.left.is_split and self.right.is_split)

    def terms(self, obs: Array, stored: Pair) -> Array:
        if not self.is_split:
            return super().terms(obs, stored)
        sizes = obs.shape[-1], stored.action.shape[-1]
        return self._of_terms(self.left.terms(obs, stored), self.right.terms(obs, stored), sizes)

    def mixing(self, obs_dim: int, num_actions: int, dtype: Any) -> Mixing:
        if not self.is_split:
            return super().mixing(obs_dim, num_actions, dtype)
        sizes = obs_dim, num_actions, dtype
        return self._of_mixings(self.left.mixing(*sizes), self.right.mixing(*sizes))


class Sum(_OfTwo):
    """left + right; `sum` takes a list of kernels."""

    _of_values = staticmethod(operator.add)
    _of_terms = staticmethod(lambda left, right, sizes: jnp.concatenate([left, right]))

    def _of_mixings(self, left: Mixing, right: Mixing) -> Mixing:
        shifts = [each.shift for each in (left, right) if each.shift is not None]
        shift = functools.reduce(operator.add, shifts) if shifts else None
        return Mixing(jnp.concatenate([left.scale, right.scale]), shift)


class Product(_OfTwo):
    """left * right: every term with every term, where a shift counts as a term that is 1."""

    _of_values = staticmethod(operator.mul)

    def _of_terms(self, left: Array, right: Array, sizes: tuple[int, int]) -> Array:
        one, other = (shapes(part, *sizes).shift is not None for part in (self.left, self.right))
        left, right = jnp.append(left, 1) if one else left, jnp.append(right, 1) if other else right
        both = jnp.outer(left, right).ravel()
        return both[:-1] if one and other else both  # shift times shift is no term

    def _of_mixings(self, left: Mixing, right: Mixing) -> Mixing:
        first, second = (
            scale if shift is None else jnp.append(scale, shift[None], 0)
            for scale, shift in (left, right)
        )
        both = (first[:, None] * second).reshape(-1, *first.shape[1:])
        is_one = left.shift is None or right.shift is None
        return Mixing(both, None) if is_one else Mixing(both[:-1], both[-1])


def shapes(kernel: Kernel, obs_dim: int, num_actions: int) -> Any:
    """`mixing` with shapes in place of arrays."""
    return jax.eval_shape(lambda: kernel.mixing(obs_dim, num_actions, jnp.float32))


def num_terms(kernel: Kernel, obs_dim: int, num_actions: int) -> int:
    """J, the number of state terms the engine stores for this kernel."""
    return shapes(kernel, obs_dim, num_actions).scale.shape[0]
