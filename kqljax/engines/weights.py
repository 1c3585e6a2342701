"""Algorithm 1 in weight space, on finitely many features: O(D^2 + t m) a step, fit for float32.

With features psi(s) `[m]` of states and a map's root R `[A, m, D]`, a pair (s, a) has the features
R[a]^T psi(s) `[D]`. The posterior keeps a square root S of the covariance of the weights, with R
folded in: S = R / sqrt(lam) at first, so that

    w(s, a) = S[a]^T psi(s),  width(s, a)^2 = |w(s, a)|^2,  mean(s, a) = w(s, a) . white,

with white = sum of y w over the stored pairs. A new pair with f = w(s, a), n = |f|^2 makes it S - c
(S f) f^T, c = 1 / ((1 + n) + sqrt(1 + n)), and f carries every change: at a pair z with change(z) =
w(z) . f the mean rises by change(z) (y - f . white) / (1 + n), and the squared width falls by
change(z)^2 / (1 + n). Widths are sums of squares that cannot go negative, and float32 is enough;
the covariance itself, updated in float32, ruins learning (docs/numerics.md).

What the features leave out of k(x, x) at a state, `FeatureMap.residual`, is never learned: residual
/ lam is added to squared widths, so that a state unlike all that the features were made for is as
unknown as in the exact engine.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from kqljax._arrays import dot, in_dtype, pad, register
from kqljax._checks import describe
from kqljax.engines.base import Sizes, Work, diagonal, pad_actions, put, shared
from kqljax.features import FeatureMap
from kqljax.kernels import Kernel
from kqljax.state import Prediction, Transition

Array = jax.Array


class WeightPosterior(NamedTuple):
    """Ridge regression on features of the pairs seen so far; zeros in slots without a pair.

    Attributes:
      lam: `[]` ridge parameter.
      next_slot: `[]` int32, where the next pair goes; it moves on at every call.
      psi: `[m, T]` features of the stored pairs' states.
      action: `[T]` int32, their actions; -1 in empty slots, which masks them.
      next_psi: `[m, T]` features of the states reached from them, to which the rows belong.
      root: `[m, A, D]` S; features first, to be a matrix as `[m, A D]` and as `[m A, D]`.
      white: `[D]` sum of y w over all pairs.
      rows: prediction `[A, T]` at the states reached.
    """

    lam: Array
    next_slot: Array
    psi: Array
    action: Array
    next_psi: Array
    root: Array
    white: Array
    rows: Prediction

    @property
    def capacity(self) -> int:
        """T."""
        return self.psi.shape[-1]


class Parts(NamedTuple):
    """The weight engine's part of `Work`; C rows: new pair, targets, next and query by action.

    Attributes:
      whitened: `[C, D]` w.
      overlaps: `[C, C]` whitened whitened^T.
      new: `[m, A]` features of the new pair, in the column of its action.
      norm: `[]` n, the squared width of the new pair within the features.
      direction: `[m, A]` S f before, after `update`.
      weights: `[m, A]` S white, after `update`: the mean is psi . weights[:, a].
      scale: `[]` 1 / (1 + n), after `update`; 0 where nothing is stored.
    """

    whitened: Array
    overlaps: Array
    new: Array
    norm: Array
    direction: Array
    weights: Array
    scale: Array


class WeightPredictor(NamedTuple):
    """What predictions share: `factor` `[m, A, K]`, `white` `[A, K]` and `lam` `[]`."""

    factor: Array
    white: Array
    lam: Array


@register
@dataclasses.dataclass(frozen=True)
class Weights:
    """The weight-space engine: for long runs and for float32.

    Attributes:
      features: a map of `kqljax.features`, which says how well it stands for the kernel.

    Examples:
      >>> kernel = kqljax.RBF(eta=0.02)
      >>> engine = kqljax.Weights(features.taylor(kernel, obs_dim=2, num_actions=3))
      >>> cfg = kqljax.KQLConfig(kernel=kernel, num_actions=3, horizon=50_000, engine=engine)
      >>> kqljax.kql_init(cfg, obs_dim=2).posterior.psi.shape
      (15, 50000)
    """

    features: FeatureMap

    def validate(self, kernel: Kernel, lam: Any, sizes: Sizes) -> None:
        if not isinstance(self.features, FeatureMap):
            raise ValueError(
                f"Weights takes a feature map, got {describe(self.features)}. Make one with "
                "kqljax.features, for example features.taylor(kernel, obs_dim, num_actions)."
            )
        self.features.check(kernel, sizes.obs_dim, sizes.num_actions, sizes.dtype)

    def check(self, posterior: WeightPosterior, kernel: Kernel, num_actions: int) -> int:
        if not isinstance(posterior, WeightPosterior):
            raise ValueError(
                f"the config has the engine Weights, the state has a {type(posterior).__name__}: "
                "another engine made it. Make the state with kql_init and this config."
            )
        (m, actions, width), expected = posterior.root.shape[-3:], self.features.root.shape[-3:]
        found = actions, m, width
        if found != expected:
            raise ValueError(
                f"the state was made for a feature map with root {found}, the config's has "
                f"{expected} (actions, features, weights). Make the state with kql_init and this "
                "config."
            )
        return self.features.obs_dim

    def init(self, kernel: Kernel, lam: Any, sizes: Sizes) -> WeightPosterior:
        num_actions, capacity, _, dtype = sizes
        features, lam = in_dtype((self.features, lam), dtype)
        zeros = functools.partial(jnp.zeros, dtype=dtype)
        m, d = features.num_features, features.num_weights
        return WeightPosterior(
            lam=lam,
            next_slot=jnp.zeros((), jnp.int32),
            psi=zeros((m, capacity)),
            action=jnp.full((capacity,), -1, jnp.int32),
            next_psi=zeros((m, capacity)),
            root=jnp.swapaxes(features.root, 0, 1) / jnp.sqrt(lam),
            white=zeros((d,)),
            rows=Prediction(zeros((num_actions, capacity)), zeros((num_actions, capacity))),
        )

    def resize(self, posterior: WeightPosterior, capacity: int, is_full: bool) -> WeightPosterior:
        more = capacity - posterior.capacity
        psi, next_psi, rows = jax.tree.map(
            lambda array: pad(array, more, 1), (posterior.psi, posterior.next_psi, posterior.rows)
        )
        action = pad_actions(posterior.action, more)
        return posterior._replace(psi=psi, action=action, next_psi=next_psi, rows=rows)

    def prepare(
        self,
        posterior: WeightPosterior,
        transition: Transition,
        is_valid: Array,
        targets: Array,
        query: Array | None,
    ) -> tuple[WeightPosterior, Work]:
        features, capacity, lam = self.features, posterior.capacity, posterior.lam
        m, num_actions, d = posterior.root.shape
        slot = shared(posterior.next_slot)
        is_stored = is_valid & (slot < capacity)
        chosen = jax.nn.one_hot(transition.action, num_actions, dtype=targets.dtype)
        states = [transition.obs, transition.next_obs] + ([] if query is None else [query])
        psi = jax.vmap(features.psi)(jnp.stack(states))
        unspanned = jax.vmap(features.residual)(jnp.stack(states), psi)

        # The new row goes in before the others are read: XLA would copy the array otherwise.
        posterior = posterior._replace(
            next_slot=jnp.minimum(slot + 1, capacity),
            psi=put(posterior.psi, slot, psi[0], is_stored),
            action=put(posterior.action, slot, transition.action, is_stored),
            next_psi=put(posterior.next_psi, slot, psi[1], is_stored),
        )
        others = jnp.where(jnp.arange(capacity) == slot, 0.0, targets)
        moment = sum_targets(posterior, others)
        new = psi[0][:, None] * chosen

        # Everything that this step asks of S: pairs with every action, in one pass.
        every = jnp.eye(num_actions, dtype=psi.dtype)[:, None]
        asked = [new[None], moment[None], *(each[:, None] * every for each in psi[1:])]
        whitened = dot(
            jnp.concatenate(asked).reshape(-1, m * num_actions), posterior.root.reshape(-1, d)
        )
        overlaps = dot(whitened, whitened.T)
        norms = diagonal(overlaps)
        of_next, of_query = (slice(2 + i * num_actions, 2 + (i + 1) * num_actions) for i in (0, 1))
        mean = dot(whitened, posterior.white)
        next_ = Prediction(mean[of_next], norms[of_next] + unspanned[1] / lam)
        query_ = None
        if query is not None:
            # Where nothing is stored the weights stay too, and the new targets are not used.
            updated = jnp.where(is_stored, overlaps[1, of_query], mean[of_query])
            query_ = Prediction(updated, norms[of_query] + unspanned[2] / lam)
        width_sq = norms[0] + jnp.sum(unspanned[0] * chosen) / lam
        error = jnp.max(unspanned[:2])
        parts = Parts(whitened, overlaps, new, norms[0], new, new, norms[0])
        return posterior, Work(next_, query_, slot, is_stored, width_sq, width_sq, error, parts)

    def update(
        self, posterior: WeightPosterior, work: Work, target: Array
    ) -> tuple[WeightPosterior, Work]:
        parts, is_stored = work.parts, work.is_stored
        n, f, moment = parts.norm, parts.whitened[0], parts.whitened[1]
        known = parts.overlaps[0, 1]
        scale = jnp.where(is_stored, 1.0 / (1.0 + n), 0.0)
        error = target - known
        root_n = jnp.sqrt(1.0 + n)
        shrink = jnp.where(is_stored, 1.0 / ((1.0 + n) + root_n), 0.0)
        # S_new^T v = S^T v - c f (f . S^T v): for the moment and the new pair, times its target.
        white = moment + (target / root_n - shrink * known) * f
        white = jnp.where(is_stored, white, posterior.white)
        columns = pad(jnp.stack([f, white], axis=1), 2, 1)  # two columns cost more than four
        both = dot(posterior.root.reshape(-1, len(f)), columns)
        direction, before = (both[:, i].reshape(parts.new.shape) for i in range(2))
        weights = before - shrink * jnp.sum(f * white) * direction
        root = posterior.root - (shrink * direction)[..., None] * f
        query = work.query
        if query is not None:
            change = parts.overlaps[0, 2 + len(query.mean) :]
            query = Prediction(
                query.mean + change * (error * scale),
                jnp.maximum(query.width_sq - change**2 * scale, 0.0),
            )
        # The mean at the new pair by two ways: from the weights, and from what it was before.
        residual = jnp.abs(jnp.sum(parts.new * weights) - (known + n * target) * scale)
        return posterior._replace(root=root, white=white), work._replace(
            query=query,
            residual=jnp.where(is_stored, residual, 0.0),
            parts=parts._replace(direction=direction, weights=weights, scale=scale),
        )

    def refresh(self, posterior: WeightPosterior, work: Work) -> WeightPosterior:
        parts, rows = work.parts, posterior.rows
        both = jnp.concatenate([parts.weights, parts.direction], axis=1).T
        mean, change = dot(both, posterior.next_psi).reshape(2, -1, posterior.capacity)
        before = put(rows.width_sq, work.slot, work.next.width_sq, work.is_stored)
        width_sq = jnp.maximum(before - change**2 * parts.scale, 0.0)
        return posterior._replace(rows=Prediction(mean, width_sq))

    def predictor(self, posterior: WeightPosterior, reuse: bool) -> WeightPredictor:
        """With `reuse` S is turned into `[m, A, m]` where that is smaller.

        By QR of S^T: a Cholesky factor of S S^T would lose half of float32's digits.
        """
        factor, white = posterior.root, posterior.white
        m, num_actions, d = factor.shape
        if reuse and m < d:
            turn, upper = jax.vmap(lambda root: tuple(jnp.linalg.qr(root.T)), in_axes=1)(factor)
            white = jnp.einsum("adk,d->ak", turn, white, precision="highest")
            return WeightPredictor(jnp.transpose(upper, (2, 0, 1)), white, posterior.lam)
        return WeightPredictor(factor, jnp.broadcast_to(white, (num_actions, d)), posterior.lam)

    def predict(self, predictor: WeightPredictor, obs: Array) -> Prediction:
        factor, white, lam = predictor
        m, num_actions, width = factor.shape
        psi = jax.vmap(self.features.psi)(obs)
        unspanned = jax.vmap(self.features.residual)(obs, psi)
        whitened = dot(psi, factor.reshape(m, -1)).reshape(-1, num_actions, width)
        mean = jnp.sum(whitened * white, axis=-1)
        return Prediction(mean.T, (jnp.sum(whitened**2, axis=-1) + unspanned / lam).T)


def sum_targets(posterior: WeightPosterior, targets: Array) -> Array:
    """`[m, A]` sum of y psi over the stored pairs, by action."""
    every = jnp.arange(posterior.rows.mean.shape[0])[:, None]
    return dot(jnp.where(posterior.action == every, targets, 0.0), posterior.psi.T).T
