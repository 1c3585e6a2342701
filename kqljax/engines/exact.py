"""The exact engine: Algorithm 1 on `posterior.gram`, O(t^2) a step."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from kqljax.arrays import dot
from kqljax.engines import Glance, Learned
from kqljax.kernels import Kernel, Pair, every_action
from kqljax.posterior import gram

Array = jax.Array


class _Seen(NamedTuple):
    posterior: gram.GramPosterior
    is_wanted: Array
    pair: Pair
    own: Array
    query: Array | None
    columns: Array
    whitened: Array
    overlaps: Array
    targets: Array
    next_obs: Array
    next_terms: Array
    query_vectors: Array | None


@dataclasses.dataclass(frozen=True)
class ExactEngine:
    """See `kqljax.engines.Engine`."""

    kernel: Kernel
    lam: Any

    def init(self, obs_dim: int, num_actions: int, capacity: int, dtype: Any) -> tuple[gram.GramPosterior, gram.Table]:
        posterior = gram.init(obs_dim, num_actions, capacity, dtype)
        return posterior, gram.init_table(self.kernel, posterior, capacity)

    @staticmethod
    def grow(posterior: gram.GramPosterior, table: gram.Table, capacity: int, is_full: bool) -> Any:
        grown = gram.grow(posterior, capacity, is_full)
        return grown, gram.grow_table(table, capacity, posterior.capacity, capacity)

    def predict(self, posterior: gram.GramPosterior, obs: Array) -> tuple[Array, Array]:
        return gram.predict(self.kernel, self.lam, posterior, obs)

    def freeze(self, posterior: gram.GramPosterior) -> gram.GramPosterior:
        return posterior

    def ask(self, frozen: gram.GramPosterior, obs: Array) -> tuple[Array, Array]:
        vectors = gram.kernel_vectors(
            gram.stored_mixing(self.kernel, frozen.pairs), gram.state_terms(self.kernel, frozen.pairs, obs)
        )
        own = self.kernel.diag(every_action(obs, vectors.shape[-1]))
        whitened = gram.whiten(frozen, vectors, is_few=False)
        return dot(frozen.weights, vectors), gram.width_sq(self.lam, own, whitened)

    def glance(
        self,
        posterior: gram.GramPosterior,
        obs: Array,
        action: Array,
        next_obs: Array,
        query: Array | None,
        targets: Array | None,
        is_wanted: Array,
    ) -> Glance:
        kernel, num_actions = self.kernel, posterior.pairs.action.shape[-1]
        targets = posterior.targets if targets is None else targets
        pair = gram.one_pair(posterior, obs, action)

        # Everything this step asks of W_t in one pass: the new pair, the targets, and the state just reached.
        mixing = gram.stored_mixing(kernel, posterior.pairs)
        next_terms = gram.state_terms(kernel, posterior.pairs, next_obs)
        next_vectors = gram.kernel_vectors(mixing, next_terms)
        vectors = gram.kernel_vectors(mixing, gram.state_terms(kernel, posterior.pairs, obs))
        pair_vector = jnp.sum(vectors * pair.action, axis=1)
        parts, query_vectors = [pair_vector[:, None], targets[:, None], next_vectors], None
        if query is not None:
            query_vectors = gram.kernel_vectors(mixing, gram.state_terms(kernel, posterior.pairs, query))
            parts.append(query_vectors)
        columns = jnp.concatenate(parts, axis=1)
        whitened = gram.whiten(posterior, columns)
        overlaps = dot(whitened.T, whitened)

        # Lines 6-7 for the state just reached.
        of_next = slice(2, 2 + num_actions)
        next_mean = dot(posterior.weights, columns)[of_next]
        next_own = kernel.diag(every_action(next_obs, num_actions))
        next_width_sq = jnp.maximum(next_own - jnp.diagonal(overlaps)[of_next], 0.0) / self.lam
        seen = _Seen(
            posterior, is_wanted, pair, kernel.evaluate(pair, pair), query, columns, whitened, overlaps, targets, next_obs,
            next_terms, query_vectors,
        )  # fmt: skip
        return Glance(next_mean, next_width_sq, seen)

    def learn(self, table: gram.Table, glance: Glance, target: Array) -> tuple[gram.GramPosterior, gram.Table, Learned]:
        seen: _Seen = glance.inner
        posterior = seen.posterior
        slot = posterior.next_slot
        new, update = gram.border(
            self.lam, posterior, seen.pair, seen.own, seen.whitened[:, 0], seen.overlaps[0, 0], seen.targets,
            seen.whitened[:, 1], seen.overlaps[0, 1], target, seen.is_wanted,
        )  # fmt: skip
        table = gram.put_row(
            table, slot, seen.next_obs, seen.next_terms, glance.next_mean, glance.next_width_sq, update.is_stored
        )
        # (K + lam I) alpha - y in the row of the new pair: 0 in exact arithmetic.
        newest = jnp.minimum(slot, posterior.capacity - 1)
        fitted = dot(new.weights, seen.columns)[0] + (seen.own + self.lam) * new.weights[newest]
        learned = Learned(
            is_stored=update.is_stored,
            is_full=slot >= posterior.capacity,
            slot=slot,
            width_sq=update.width_sq,
            residual=jnp.abs(fitted - target),
            feature_error=jnp.zeros((), posterior.dtype),
            inner=update,
        )
        return new, table, learned

    def refresh(self, posterior: gram.GramPosterior, table: gram.Table, learned: Learned) -> gram.Table:
        return gram.refresh(self.kernel, self.lam, posterior, table, learned.inner)

    def asked(self, posterior: gram.GramPosterior, glance: Glance, learned: Learned) -> tuple[Array, Array]:
        seen: _Seen = glance.inner
        update: gram.Update = learned.inner
        assert seen.query is not None
        assert seen.query_vectors is not None
        query, num_actions = seen.query, glance.next_mean.shape[0]
        queries = every_action(query, num_actions)
        of_newest = jax.vmap(lambda each: self.kernel.evaluate(each, seen.pair))(queries)
        is_written = (jnp.arange(posterior.capacity) == learned.slot) & learned.is_stored
        vectors = jnp.where(is_written[:, None], of_newest, seen.query_vectors)
        mean, change = dot(jnp.stack([posterior.weights, update.direction]), vectors)
        own = self.kernel.diag(queries)
        before = jnp.maximum(own - jnp.diagonal(seen.overlaps)[2 + num_actions :], 0.0) / self.lam
        after = jnp.maximum(before - change**2 / (self.lam * update.kappa), 0.0)
        return mean, jnp.where(update.is_stored, after, before)

    def solve(self, posterior: gram.GramPosterior, table: gram.Table, targets: Array) -> tuple[gram.GramPosterior, gram.Table]:
        posterior = gram.solve(posterior, targets)
        (mean,) = gram.product(gram.stored_mixing(self.kernel, posterior.pairs), table.cross, posterior.weights)
        return posterior, table._replace(mean=mean)
