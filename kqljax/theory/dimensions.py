"""Effective and pseudo dimension of data under a kernel (section 3.1 of the paper).

With the Gram matrix K of n pairs and a scale lam > 0:

    d_eff = tr((K + lam I)^-1 K)          degrees of freedom of the ridge regression
    d_pse = ln det(I + K / lam)           twice the information gain

    theory.effective_dimension(RBF(eta=0.02), states, actions, lam=1e-4)
    theory.state_dimensions(cfg, state)                       # of a run, from its state
    theory.dimensions_over_time(cfg, state).effective         # [T], after each of its pairs

Everything is computed in float64. The small eigenvalues of a Gram matrix are lost in float32, and
each lost one counts as a dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kqljax import regression
from kqljax._arrays import dot, in_dtype
from kqljax._checks import check_positive, describe, is_known
from kqljax.config import KQLConfig
from kqljax.engines.exact import ExactPosterior
from kqljax.kernels import Kernel, Pair
from kqljax.state import KQLInfo, KQLState

Array = jax.Array


class Dimensions(NamedTuple):
    """Both dimensions of the same pairs.

    Attributes:
      effective: d_eff, at most the number of pairs.
      pseudo: d_pse, between d_eff and ln(e (n + lam) / lam) d_eff.
    """

    effective: Any
    pseudo: Any


def effective_dimension(
    kernel: Kernel, states: Any, actions: Any, lam: Any, num_actions: int | None = None
) -> Any:
    """d_eff `[]` of pairs with states `[n, l]` and actions `[n]`; 0 of none.

    Known values are computed in float64 whatever jax has enabled. Inside jit the states have to be
    float64.

    Args:
      num_actions: A, by default the largest action plus one; it must be given inside jit.

    Examples:
      >>> states, actions = np.random.default_rng(0).uniform(-1, 1, (50, 2)), np.arange(50) % 3
      >>> found = theory.effective_dimension(kqljax.Linear(), states, actions, lam=1e-4)
      >>> round(float(found), 3)  # at most l + A = 5
      5.0
    """
    return _of_pairs(kernel, states, actions, lam, num_actions).effective


def pseudo_dimension(
    kernel: Kernel, states: Any, actions: Any, lam: Any, num_actions: int | None = None
) -> Any:
    """d_pse `[]`, with the arguments of `effective_dimension`.

    Examples:
      >>> states, actions = np.random.default_rng(0).uniform(-1, 1, (50, 2)), np.arange(50) % 3
      >>> round(float(theory.pseudo_dimension(kqljax.Linear(), states, actions, lam=1e-4)), 2)
      53.61
    """
    return _of_pairs(kernel, states, actions, lam, num_actions).pseudo


def state_dimensions(cfg: KQLConfig, state: KQLState) -> Dimensions:
    """Both dimensions `[]` of all pairs that a run has learned from.

    With features: of the kernel that the features stand for, without forming a Gram matrix. Inside
    jit the state has to be float64.

    Examples:
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> cfg = task.config(horizon=20)
      >>> train = jax.jit(lambda key: kqljax.train(key, task, cfg, 20))
      >>> run = train(jax.random.key(0))
      >>> bool(theory.state_dimensions(cfg, run.state).effective < 20)
      True
    """
    if isinstance(state.posterior, ExactPosterior):
        over_time = dimensions_over_time(cfg, state)
        return Dimensions(over_time.effective[-1], over_time.pseudo[-1])
    engine: Any = cfg.engine
    return _in_float64(_of_features, engine.features.root, *_stored(cfg, state), cfg.lam)


def dimensions_over_time(cfg: KQLConfig, state: KQLState) -> Dimensions:
    """Both dimensions `[T]` after each slot of the exact engine's state.

    Inside jit the state has to be float64.

    Examples:
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> cfg = task.config(horizon=20)
      >>> train = jax.jit(lambda key: kqljax.train(key, task, cfg, 20))
      >>> run = train(jax.random.key(0))
      >>> theory.dimensions_over_time(cfg, run.state).effective.shape
      (20,)
    """
    if not isinstance(state.posterior, ExactPosterior):
        raise ValueError(
            "dimensions_over_time reads the pairs that the exact engine stores; the state has "
            "features. state_dimensions gives their last values, pseudo_dimension_over_time the "
            "pseudo dimension of every step."
        )
    return _in_float64(_of_prefixes, cfg.kernel, *_stored(cfg, state), cfg.lam)


def pseudo_dimension_over_time(info: KQLInfo) -> Array:
    """d_pse `[N]` after each step of a run, from its log: the sum of ln(1 + Gamma-hat^2).

    Args:
      info: `run.log.info`, of either engine.

    Examples:
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> cfg = task.config(horizon=20)
      >>> run = jax.jit(lambda key: kqljax.train(key, task, cfg, 20))(jax.random.key(0))
      >>> theory.pseudo_dimension_over_time(run.log.info).shape
      (20,)
    """
    return jnp.cumsum(jnp.where(info.is_stored, jnp.log1p(info.width**2), 0.0), axis=-1)


def _stored(cfg: KQLConfig, state: KQLState) -> tuple[Array, Array]:
    """What a state stores: observations `[T, l]` or their features, one-hot actions `[T, A]`.

    The action of an empty slot is 0 everywhere. The one place that reads an engine's posterior.
    """
    post: Any = state.posterior
    columns = post.obs if isinstance(post, ExactPosterior) else post.psi
    return columns.T, jax.nn.one_hot(post.action, cfg.num_actions, dtype=columns.dtype)


def _of_pairs(
    kernel: Kernel, states: Any, actions: Any, lam: Any, num_actions: int | None
) -> Dimensions:
    shapes = np.shape(states), np.shape(actions)
    if len(shapes[0]) != 2 or len(shapes[1]) != 1 or shapes[0][0] != shapes[1][0]:
        raise ValueError(
            f"states must be [n, l] and actions [n], got {describe(states)} and "
            f"{describe(actions)}. Stack them, one row a pair."
        )
    if is_known(lam):
        check_positive("lam", lam, "It is the scale of the dimension; the paper uses 1 / (10 T).")
    if num_actions is None:
        if not is_known(actions):
            raise ValueError("inside jit give num_actions=, the number of actions: it is a size.")
        num_actions = int(np.max(actions, initial=0)) + 1
    if shapes[0][0] == 0:
        return Dimensions(np.float64(0.0), np.float64(0.0))
    one_hot = np.eye(num_actions)[actions] if is_known(actions) else jnp.eye(num_actions)[actions]
    return _in_float64(_of_gram, kernel, states, one_hot, lam)


def _in_float64(function: Callable[..., Dimensions], *args: Any) -> Dimensions:
    """The function with all numbers in float64, on a CPU; inside jit they have to be float64."""
    if is_known(args):
        with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
            found = _programs[function](*in_dtype(jax.tree.map(np.asarray, args), jnp.float64))
        return Dimensions(*(np.asarray(each)[()] for each in found))
    dtype = jnp.result_type(args[1])
    if dtype != jnp.float64:
        raise ValueError(
            f"inside jit the dimensions want float64 states, got {dtype}: enable jax_enable_x64, "
            "or call this outside jit."
        )
    return function(*args)


def _of_gram(kernel: Kernel, obs: Array, action: Array, lam: Any) -> Dimensions:
    return _of_spectrum(_gram(kernel, obs, action), lam)


def _of_features(root: Array, psi: Array, action: Array, lam: Any) -> Dimensions:
    phi = jnp.einsum("tm,ta,amd->td", psi, action, jnp.asarray(root, psi.dtype))
    return _of_spectrum(dot(phi.T, phi), lam)


def _of_spectrum(matrix: Array, lam: Any) -> Dimensions:
    values = jnp.linalg.eigvalsh(matrix)
    # Eigenvalues below rounding are zero. They come out negative too, and at a small lam each of
    # them would count as a dimension.
    rounding = values.shape[0] * jnp.finfo(values.dtype).eps * values[-1]
    values = jnp.where(values > rounding, values, 0.0)
    return Dimensions(jnp.sum(values / (values + lam)), jnp.sum(jnp.log1p(values / lam)))


def _of_prefixes(kernel: Kernel, obs: Array, action: Array, lam: Any) -> Dimensions:
    """Of the first 1, 2, ... T slots, whose Cholesky factors are leading blocks of the last one."""
    is_taken = jnp.sum(action, axis=-1) > 0
    fitted = regression.factor(_gram(kernel, obs, action), lam, is_taken)
    inverse = regression.solve_lower(fitted.lower, jnp.eye(len(obs), dtype=obs.dtype))
    effective = jnp.where(is_taken, 1.0 - lam * jnp.sum(inverse**2, axis=1), 0.0)
    log_lam = jnp.log(jnp.asarray(lam, obs.dtype))
    pseudo = jnp.where(is_taken, 2.0 * jnp.log(jnp.diagonal(fitted.lower)) - log_lam, 0.0)
    return Dimensions(jnp.cumsum(effective), jnp.cumsum(pseudo))


def _gram(kernel: Kernel, obs: Array, action: Array) -> Array:
    pairs = Pair(obs, action)
    return kernel.matrix(pairs, pairs)


_programs = {each: jax.jit(each) for each in (_of_gram, _of_features, _of_prefixes)}
