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
    psi: Array
    next_psi: Array
    next_obs: Array
    chosen: Array
    white: Array
    white_moment: Array
    moment: Array
    query_white: Array | None
    targets: Array
    basis: Any
    is_basis_full: Array
    feature_error: Array


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
        return weights.predict(self.features, posterior, obs)

    def freeze(self, posterior: weights.WeightPosterior) -> tuple[Any, weights.Condensed]:
        return posterior.basis, weights.condense(posterior)

    def ask(self, frozen: tuple[Any, weights.Condensed], obs: Array) -> tuple[Array, Array]:
        basis, condensed = frozen
        return weights.at_features(condensed, self.features.psi(basis, obs))

    def glance(
        self,
        posterior: weights.WeightPosterior,
        obs: Array,
        action: Array,
        next_obs: Array,
        query: Array | None,
        targets: Array | None,
    ) -> Glance:
        features, dtype = self.features, posterior.dtype
        # Where an action is out of range the one-hot is zero and the transition is not wanted.
        chosen = jax.nn.one_hot(action, posterior.action.shape[-1], dtype=dtype)
        basis, is_basis_full = features.extend(posterior.basis, obs, True)
        basis, is_full_at_next = features.extend(basis, next_obs, True)
        states = [obs, next_obs] if query is None else [obs, next_obs, query]
        psi = jax.vmap(lambda state: features.psi(basis, state))(jnp.stack(states))
        gaps = jax.vmap(lambda state, row: features.gap(basis, state, row))(jnp.stack(states[:2]), psi[:2])
        if targets is None:
            moment, targets = posterior.moment, posterior.targets
        else:
            moment = weights.sum_targets(posterior, targets)

        # Everything this step asks of S: the states with every action, and the targets.
        whitened = weights.whiten(posterior, psi)
        next_white = whitened[1]
        seen = _Seen(
            psi=psi[0],
            next_psi=psi[1],
            next_obs=next_obs,
            chosen=chosen,
            white=dot(chosen, whitened[0]),
            white_moment=weights.whiten_moment(posterior, moment),
            moment=moment,
            query_white=None if query is None else whitened[2],
            targets=targets,
            basis=basis,
            is_basis_full=is_basis_full | is_full_at_next,
            feature_error=jnp.max(gaps),
        )
        return Glance(dot(next_white, posterior.white), jnp.sum(next_white**2, axis=1), seen)

    def learn(
        self, posterior: weights.WeightPosterior, table: weights.Table, glance: Glance, target: Array, is_wanted: Any
    ) -> tuple[weights.WeightPosterior, weights.Table, Learned]:
        seen: _Seen = glance.inner
        capacity = posterior.capacity
        slot, is_full = self._slot(posterior)
        is_taken = is_wanted & ~is_full
        posterior = posterior._replace(
            basis=jax.tree.map(lambda new, old: jnp.where(is_taken, new, old), seen.basis, posterior.basis),
            targets=jnp.where(is_taken, seen.targets, posterior.targets),
            moment=jnp.where(is_taken, seen.moment, posterior.moment),
        )
        new, update = weights.absorb(posterior, seen.psi, seen.chosen, seen.white, seen.white_moment, target, is_taken)
        has_row = is_taken & (slot < capacity)
        if self.memory is not None:
            new = new._replace(rest=self._rest(posterior, seen, slot, target, is_taken))
        new = weights.store(new, slot, seen.psi, seen.chosen, target, has_row)
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
            is_stored=is_taken,
            is_full=is_full,
            slot=jnp.where(has_row, slot, capacity),
            width_sq=update.width_sq,
            residual=jnp.abs(fitted - expected),
            feature_error=seen.feature_error,
            is_basis_full=seen.is_basis_full,
            inner=update,
        )
        return new, table, learned

    def _slot(self, posterior: weights.WeightPosterior) -> tuple[Array, Array]:
        """Where the next pair goes (the capacity: nowhere), and whether it has to be refused."""
        taken, capacity = posterior.num_taken, posterior.capacity
        if self.memory is None or capacity < self.memory:
            return taken, taken >= capacity
        if self.eviction == "oldest":
            return taken % capacity, jnp.zeros((), bool)
        # Reservoir sampling: after N pairs each of them is stored with probability capacity / N.
        drawn = jax.random.randint(jax.random.fold_in(jax.random.key(0), taken), (), 0, taken + 1)
        return jnp.where(taken < capacity, taken, jnp.minimum(drawn, capacity)), jnp.zeros((), bool)

    def _rest(self, posterior: weights.WeightPosterior, seen: _Seen, slot: Array, target: Array, is_taken: Array) -> Array:
        """The sum of pairs that are no longer stored: the one that leaves, or the new one where it found no slot."""
        capacity = posterior.capacity
        at = jnp.minimum(slot, capacity - 1)
        leaving = posterior.targets[at] * posterior.psi[at][:, None] * posterior.action[at]
        passing = target * seen.psi[:, None] * seen.chosen
        gone = jnp.where(slot < capacity, leaving, passing)
        return posterior.rest + jnp.where(is_taken, gone, 0.0)

    def refresh(self, posterior: weights.WeightPosterior, table: weights.Table, learned: Learned) -> weights.Table:
        update: weights.Update = learned.inner
        return weights.refresh(posterior, table, update)

    def asked(self, posterior: weights.WeightPosterior, glance: Glance, learned: Learned) -> tuple[Array, Array]:
        seen: _Seen = glance.inner
        update: weights.Update = learned.inner
        assert seen.query_white is not None
        shrink = jnp.where(learned.is_stored, update.shrink, 0.0)
        white = seen.query_white - shrink * dot(seen.query_white, update.white)[:, None] * update.white
        return dot(white, posterior.white), jnp.sum(white**2, axis=1)

    def solve(
        self, posterior: weights.WeightPosterior, table: weights.Table, targets: Array
    ) -> tuple[weights.WeightPosterior, weights.Table]:
        posterior = weights.solve(posterior, weights.sum_targets(posterior, targets))._replace(targets=targets)
        return posterior, table._replace(mean=few_columns(table.psi, posterior.weights))
