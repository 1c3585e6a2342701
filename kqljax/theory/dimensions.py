"""How large the data are in the eyes of a kernel: effective and pseudo dimension (section 3.1 of the paper).

With the Gram matrix K of n pairs and a scale lam > 0:

    d_eff = tr((K + lam I)^-1 K)          degrees of freedom of the ridge regression
    d_pse = ln det(I + K / lam)           twice the information gain

    theory.effective_dimension(RBF(eta=0.02), states, actions, lam=1e-4)
    theory.state_dimensions(cfg, state)                       # of a run, from what its state holds
    theory.dimensions_over_time(cfg, state).effective         # [T], after each of its pairs
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kqljax.arrays import HIGHEST, in_dtype
from kqljax.checks import check_positive
from kqljax.config import KQLConfig
from kqljax.errors import describe, is_known
from kqljax.kernels import Kernel, Pair
from kqljax.posterior.gram import GramPosterior
from kqljax.state import KQLInfo, KQLState

Array = jax.Array


class Dimensions(NamedTuple):
    """Both dimensions of the same pairs.

    Attributes:
      effective: d_eff, at most the number of pairs.
      pseudo: d_pse, between d_eff and ln(e (n + lam) / lam) d_eff.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=10)
      >>> theory.state_dimensions(cfg, kqljax.kql_init(cfg, obs_dim=2)).effective.tolist()
      0.0
    """

    effective: Array
    pseudo: Array


def effective_dimension(kernel: Kernel, states: Any, actions: Any, lam: Any, num_actions: int | None = None) -> Any:
    """d_eff `[]` of pairs with states `[n, l]` and actions `[n]`; 0 of none.

    Known values are computed in float64 whatever jax has enabled. Inside jit the states have to be float64: the small
    eigenvalues of a Gram matrix are lost in float32, and each lost one counts as a dimension.

    Args:
      num_actions: A, by default the largest action and one; it must be given inside jit.

    Examples:
      >>> states, actions = np.random.default_rng(0).uniform(-1, 1, (50, 2)), np.arange(50) % 3
      >>> round(theory.effective_dimension(kqljax.Linear(), states, actions, lam=1e-4), 3)  # at most l + A = 5
      5.0
    """
    return _dimensions(kernel, states, actions, lam, num_actions).effective


def pseudo_dimension(kernel: Kernel, states: Any, actions: Any, lam: Any, num_actions: int | None = None) -> Any:
    """d_pse `[]`, with the arguments of `effective_dimension`.

    Examples:
      >>> states, actions = np.random.default_rng(0).uniform(-1, 1, (50, 2)), np.arange(50) % 3
      >>> round(theory.pseudo_dimension(kqljax.Linear(), states, actions, lam=1e-4), 2)
      53.61
    """
    return _dimensions(kernel, states, actions, lam, num_actions).pseudo


def _dimensions(kernel: Kernel, states: Any, actions: Any, lam: Any, num_actions: int | None) -> Dimensions:
    if np.ndim(states) != 2 or np.ndim(actions) != 1 or np.shape(states)[0] != np.shape(actions)[0]:
        raise ValueError(
            f"states must be [n, l] and actions [n], got {describe(states)} and {describe(actions)}. "
            "Stack them, one row a pair."
        )
    known = is_known(kernel, states, actions, lam)
    if known:
        check_positive("lam", lam, "It is the scale at which the dimension is measured; the paper uses 1 / (10 T).")
    if num_actions is None:
        if not is_known(actions):
            raise ValueError("inside jit give num_actions=, the number of actions: it is a size.")
        num_actions = int(np.max(actions, initial=0)) + 1
    if np.shape(states)[0] == 0:
        return Dimensions(jnp.zeros(()), jnp.zeros(()))
    if not known:
        dtype = jnp.result_type(states)
        if dtype != jnp.float64:
            raise ValueError(
                f"inside jit the dimensions want float64 states, got {dtype}: enable jax_enable_x64, or call this outside jit."
            )
        return _of_gram(kernel, states, actions, lam, num_actions)
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        kernel, states, lam = in_dtype((kernel, np.asarray(states), lam), jnp.float64)
        found = _of_gram_jitted(kernel, states, np.asarray(actions), lam, num_actions)
    return Dimensions(*(float(value) for value in found))  # type: ignore[arg-type]


def _of_gram(kernel: Kernel, states: Array, actions: Array, lam: Any, num_actions: int) -> Dimensions:
    pairs = Pair(states, jax.nn.one_hot(actions, num_actions, dtype=states.dtype))
    values = jnp.linalg.eigvalsh(kernel.matrix(pairs, pairs))
    # What is below rounding is zero: it comes out negative too, and at a small lam each of it would count as a dimension.
    values = jnp.where(values > values.shape[0] * jnp.finfo(values.dtype).eps * values[-1], values, 0.0)
    return Dimensions(jnp.sum(values / (values + lam)), jnp.sum(jnp.log1p(values / lam)))


_of_gram_jitted = jax.jit(_of_gram, static_argnums=4)


# Of a run ------------------------------------------------------------------------------------------------------------


def state_dimensions(cfg: KQLConfig, state: KQLState) -> Dimensions:
    """Both dimensions `[]` of all pairs a run has learned from, without forming their Gram matrix; jittable.

    With features they are those of the kernel that the features stand for.

    Examples:
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> cfg = task.config(horizon=20)
      >>> run = jax.jit(kqljax.train)(task, cfg, jax.random.key(0))
      >>> bool(theory.state_dimensions(cfg, run.state).effective < 20)
      True
    """
    if isinstance(state.posterior, GramPosterior):
        over_time = dimensions_over_time(cfg, state)
        return Dimensions(over_time.effective[-1], over_time.pseudo[-1])
    assert cfg.features is not None
    post, lam = state.posterior, jnp.asarray(cfg.lam, state.posterior.dtype)
    num_weights = post.root.shape[-1]
    # S = B X, with B how features of states become features of pairs, and X X^T = (sum of phi phi^T + lam I)^-1.
    lift = jnp.swapaxes(jnp.asarray(cfg.features.root, post.dtype), 0, 1).reshape(-1, num_weights)
    root = jnp.sqrt(lam) * jnp.matmul(jnp.linalg.pinv(lift), post.root.reshape(-1, num_weights), precision=HIGHEST)
    return Dimensions(num_weights - jnp.sum(root**2), -2.0 * jnp.linalg.slogdet(root)[1])


def dimensions_over_time(cfg: KQLConfig, state: KQLState) -> Dimensions:
    """Both dimensions `[T]` after each slot of the exact engine's state; jittable.

    Row i of the inverse factor P is the same whatever comes later, so one state tells of its whole past:
    d_eff = t - lam sum ||P_i||^2 and d_pse = -sum ln(lam P_ii^2) over the first t rows.

    Examples:
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> cfg = task.config(horizon=20)
      >>> run = jax.jit(kqljax.train)(task, cfg, jax.random.key(0))
      >>> theory.dimensions_over_time(cfg, run.state).effective.shape
      (20,)
    """
    post = state.posterior
    if not isinstance(post, GramPosterior):
        raise ValueError(
            "dimensions_over_time reads the exact engine's factor; the state has features. state_dimensions gives their last "
            "values, pseudo_dimension_over_time the pseudo dimension of every step."
        )
    lam = jnp.asarray(cfg.lam, post.dtype)
    squares = jnp.concatenate([jnp.sum(block**2, axis=1) for block in post.whitener])
    starts = np.cumsum([0, *(block.shape[0] for block in post.whitener)])
    diagonal = jnp.concatenate(
        [jnp.diagonal(block, offset=int(start)) for block, start in zip(post.whitener, starts, strict=False)]
    )
    gains = jnp.where(post.is_taken, -jnp.log(lam * jnp.where(post.is_taken, diagonal, 1.0) ** 2), 0.0)
    stored = jnp.cumsum(post.is_taken.astype(post.dtype))
    return Dimensions(stored - lam * jnp.cumsum(squares), jnp.cumsum(gains))


def pseudo_dimension_over_time(info: KQLInfo) -> Array:
    """d_pse `[N]` after each step of a run, from its log (`run.log.info`): the sum of ln(1 + Gamma-hat^2); either engine.

    Examples:
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> run = jax.jit(kqljax.train)(task, task.config(horizon=20), jax.random.key(0))
      >>> theory.pseudo_dimension_over_time(run.log.info).shape
      (20,)
    """
    return jnp.cumsum(jnp.where(info.is_stored, jnp.log1p(info.width**2), 0.0), axis=-1)
