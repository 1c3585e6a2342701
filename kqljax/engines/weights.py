"""The weight-space engine: Algorithm 1 on `posterior.weights`, O(D^2 + t m) a step, fit for float32."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from kqljax.arrays import dot, few_columns, write
from kqljax.engines import Glance, Learned
from kqljax.features import FeatureMap
from kqljax.posterior import weights

Array = jax.Array


class _Seen(NamedTuple):
    """`unspanned` `[2 or 3, A]` is what the features leave out at the states left, reached and asked about."""

    posterior: weights.WeightPosterior
    slot: Array
    is_full: Array
    is_taken: Array
    has_row: Array
    psi: Array
    next_psi: Array
    next_obs: Array
    unspanned: Array
    chosen: Array
    white: Array
    white_moment: Array
    query_white: Array | None


@dataclasses.dataclass(frozen=True)
class WeightEngine:
    """See `kqljax.engines.Engine`.

    Attributes:
      memory: transitions kept, or None for all of them up to the capacity.
      eviction: "oldest" or "reservoir", which transition leaves a full memory.
    """

    features: FeatureMap
    lam: Any
    memory: int | None = None
    eviction: str = "oldest"

    def init(self, obs_dim: int, num_actions: int, capacity: int, dtype: Any) -> tuple[weights.WeightPosterior, weights.Table]:
        posterior = weights.init(self.features, self.lam, capacity, dtype)
        return posterior, weights.init_table(posterior, obs_dim, capacity)

    @staticmethod
    def grow(posterior: weights.WeightPosterior, table: weights.Table, capacity: int, is_full: bool) -> Any:
        return weights.grow(posterior, capacity), weights.grow_table(table, capacity)

    def predict(self, posterior: weights.WeightPosterior, obs: Array) -> tuple[Array, Array]:
        return weights.predict(self.features, self.lam, posterior, obs)

    def freeze(self, posterior: weights.WeightPosterior) -> weights.Condensed:
        return weights.condense(posterior)

    def ask(self, frozen: weights.Condensed, obs: Array) -> tuple[Array, Array]:
        psi = self.features.psi(obs)
        mean, width_sq = weights.at_features(frozen, psi)
        return mean, width_sq + self.features.residual(obs, psi) / self.lam

    def glance(
        self,
        posterior: weights.WeightPosterior,
        obs: Array,
        action: Array,
        next_obs: Array,
        query: Array | None,
        targets: Array | None,
        is_wanted: Array,
    ) -> Glance:
        features, capacity = self.features, posterior.capacity
        # Where an action is out of range the one-hot is zero and the transition is not wanted.
        chosen = jax.nn.one_hot(action, posterior.action.shape[-1], dtype=posterior.dtype)
        slot, is_full = self._slot(posterior)
        is_taken = is_wanted & ~is_full
        has_row = is_taken & (slot < capacity)

        states = jnp.stack([obs, next_obs] if query is None else [obs, next_obs, query])
        psi = jax.vmap(features.psi)(states)
        unspanned = jax.vmap(features.residual)(states, psi)

        # The new row goes in before the others are read: reading first would make XLA copy the array at every step.
        is_lazy = targets is None
        targets = posterior.targets if targets is None else targets
        # With lazy targets the moment is carried on and holds all pairs already.
        rest = posterior.rest if is_lazy else self._rest(posterior, slot, targets, has_row)
        posterior = weights.put_pair(posterior._replace(rest=rest), slot, psi[0], chosen, has_row)
        others = jnp.where((jnp.arange(capacity) == slot) & has_row, 0.0, targets)
        moment = posterior.moment if is_lazy else weights.sum_targets(posterior, others)

        # Everything this step asks of S: the states with every action, and the targets.
        whitened = weights.whiten(posterior, psi)
        next_white = whitened[1]
        seen = _Seen(
            posterior=posterior._replace(
                targets=jnp.where(is_taken, others, posterior.targets), moment=jnp.where(is_taken, moment, posterior.moment)
            ),
            slot=slot,
            is_full=is_full,
            is_taken=is_taken,
            has_row=has_row,
            psi=psi[0],
            next_psi=psi[1],
            next_obs=next_obs,
            unspanned=unspanned,
            chosen=chosen,
            white=dot(chosen, whitened[0]),
            white_moment=weights.whiten_moment(posterior, moment),
            query_white=None if query is None else whitened[2],
        )
        return Glance(dot(next_white, posterior.white), jnp.sum(next_white**2, axis=1) + unspanned[1] / self.lam, seen)

    def learn(
        self, table: weights.Table, glance: Glance, target: Array
    ) -> tuple[weights.WeightPosterior, weights.Table, Learned]:
        seen: _Seen = glance.inner
        posterior, slot, has_row = seen.posterior, seen.slot, seen.has_row
        new, update = weights.absorb(posterior, seen.psi, seen.chosen, seen.white, seen.white_moment, target, seen.is_taken)
        new = new._replace(targets=write(new.targets, slot, target, has_row))
        if self._is_ring(posterior.capacity):
            # A pair that found no slot stays in the regression with the target it has now.
            passes = jnp.where(seen.is_taken & ~has_row, target, 0.0)
            new = new._replace(rest=new.rest + passes * seen.psi[:, None] * seen.chosen)
        else:
            new = new._replace(next_slot=jnp.minimum(new.next_slot, posterior.capacity))
        table = weights.Table(
            psi=write(table.psi, slot, seen.next_psi, has_row),
            obs=write(table.obs, slot, seen.next_obs, has_row),
            mean=write(table.mean, slot, glance.next_mean, has_row),
            width_sq=write(table.width_sq, slot, glance.next_width_sq, has_row),
        )
        # The mean at the new pair by two ways: from the weights, and from what it was before.
        fitted = dot(dot(seen.psi, new.weights), seen.chosen)
        known = jnp.dot(seen.white, seen.white_moment)
        expected = (known + update.width_sq * target) / (1.0 + update.width_sq)
        learned = Learned(
            is_stored=seen.is_taken,
            is_full=seen.is_full,
            slot=jnp.where(has_row, slot, posterior.capacity),
            width_sq=update.width_sq + jnp.dot(seen.chosen, seen.unspanned[0]) / self.lam,
            residual=jnp.abs(fitted - expected),
            feature_error=jnp.max(seen.unspanned[:2]),
            inner=update,
        )
        return new, table, learned

    def _slot(self, posterior: weights.WeightPosterior) -> tuple[Array, Array]:
        """Where the next pair goes (the capacity: nowhere), and whether it has to be refused."""
        calls, capacity = posterior.next_slot, posterior.capacity
        if not self._is_ring(capacity):
            return calls, calls >= capacity
        if self.eviction == "oldest":
            return calls % capacity, jnp.zeros((), bool)
        # Reservoir sampling: after N pairs each of them is stored with probability capacity / N.
        drawn = jax.random.randint(jax.random.fold_in(jax.random.key(0), calls), (), 0, calls + 1)
        return jnp.where(calls < capacity, calls, jnp.minimum(drawn, capacity)), jnp.zeros((), bool)

    def _is_ring(self, capacity: int) -> bool:
        """Whether a new pair takes the place of another: once the memory has grown to its full size."""
        return self.memory is not None and capacity >= self.memory

    def _rest(self, posterior: weights.WeightPosterior, slot: Array, targets: Array, has_row: Array) -> Array:
        """The sum of pairs that are no longer stored, with the one that has to leave the slot."""
        if not self._is_ring(posterior.capacity):
            return posterior.rest
        at = jnp.minimum(slot, posterior.capacity - 1)
        leaving = targets[at] * posterior.psi[at][:, None] * posterior.action[at]
        return posterior.rest + jnp.where(has_row, leaving, 0.0)

    def refresh(self, posterior: weights.WeightPosterior, table: weights.Table, learned: Learned) -> weights.Table:
        update: weights.Update = learned.inner
        return weights.refresh(posterior, table, update)

    def asked(self, posterior: weights.WeightPosterior, glance: Glance, learned: Learned) -> tuple[Array, Array]:
        seen: _Seen = glance.inner
        update: weights.Update = learned.inner
        assert seen.query_white is not None
        shrink = jnp.where(learned.is_stored, update.shrink, 0.0)
        white = seen.query_white - shrink * dot(seen.query_white, update.white)[:, None] * update.white
        return dot(white, posterior.white), jnp.sum(white**2, axis=1) + seen.unspanned[2] / self.lam

    def solve(
        self, posterior: weights.WeightPosterior, table: weights.Table, targets: Array
    ) -> tuple[weights.WeightPosterior, weights.Table]:
        posterior = weights.solve(posterior, weights.sum_targets(posterior, targets))._replace(targets=targets)
        return posterior, table._replace(mean=few_columns(table.psi, posterior.weights))
