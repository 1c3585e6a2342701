"""Lazy tables and a bounded memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import random_pairs, random_transitions, row
from scipy import stats
from weight_cases import (
    CAP,
    assert_close,
    batch_ridge,
    config,
    explicit,
    follow,
    jit,
    learn,
    make_map,
    predict_all,
    step,
)

from kqljax import kql_init, kql_step
from kqljax.kql import targets_of


def test_refreshing_all_rows_is_the_default():
    transitions = random_transitions(30, seed=20)
    eager, lazy = config("nystrom", horizon=30), config("nystrom", horizon=30, refresh_rows=30)
    state, (believed, action, info, _) = follow(eager, kql_init(eager, 2), transitions)
    after, (lazily, lazy_action, lazy_info, _) = follow(lazy, kql_init(lazy, 2), transitions)
    assert_close(lazily, believed, 1e-8)
    np.testing.assert_array_equal(action, lazy_action)
    np.testing.assert_allclose(lazy_info.width, info.width, atol=1e-8)
    np.testing.assert_allclose(after.q_hat, state.q_hat, atol=1e-7)
    np.testing.assert_allclose(after.width, state.width, atol=1e-7)
    # A lazy step ends with the targets that the next one begins with.
    np.testing.assert_allclose(after.posterior.targets, targets_of(eager, state), atol=1e-7)


def test_refreshing_some_rows_touches_no_others_and_leaves_none_out():
    cfg = config("grouped", horizon=40, refresh_rows=5)
    transitions = random_transitions(40, seed=23)
    state = kql_init(cfg, 2)
    refreshed = np.zeros(40, int)
    phi = explicit(cfg.features, transitions.obs)[np.arange(40), np.asarray(transitions.action)]
    queries = random_pairs(22, 3)[0]
    for i in range(40):
        before, (state, _) = state, step(cfg, state, row(transitions, i))
        changed = np.flatnonzero(np.any(np.asarray(before.q_hat != state.q_hat), axis=1))
        changed = changed[changed != i]
        assert len(changed) <= 5
        refreshed[changed] += 1
        q_hat, width = predict_all(cfg, state, transitions.next_obs)
        np.testing.assert_allclose(state.q_hat[changed], q_hat[changed], atol=1e-8)
        np.testing.assert_allclose(state.width[changed], width[changed], atol=1e-7)
        # The new pair is learned from at once, the others with the targets that they had.
        q_hat, width = predict_all(cfg, before, transitions.next_obs[i : i + 1])
        best = np.clip(q_hat + cfg.beta * width, 0, CAP).max()
        newest = transitions.reward[i] + cfg.gamma * (cfg.terminal_value if transitions.terminated[i] else best)
        targets = np.append(before.posterior.targets[:i], newest)
        expected = batch_ridge(phi[: i + 1], targets, cfg.lam, explicit(cfg.features, queries))
        assert_close(predict_all(cfg, state, queries), expected, 1e-7)
        # What the next step will solve for is the sum over all pairs with the targets that they have now.
        post = state.posterior
        np.testing.assert_allclose(post.moment, post.psi.T @ (post.action * post.targets[:, None]), atol=1e-8)
    assert np.all(refreshed[:30] > 0)


class Remembering:
    """Algorithm 1 with a bounded memory, in NumPy: every step solves afresh, pairs that left keep their last target."""

    def __init__(self, cfg):
        self.cfg, self.made = cfg, cfg.features
        self.phi, self.targets, self.slots = [], [], {}  # slots: row of the table -> pair, reward, successor, end

    def at(self, states):
        # Always nine rows, for psi to be compiled once.
        padded = np.zeros((9, 2))
        padded[: len(states)] = states
        queries = explicit(self.made, padded)[: len(states)]
        if not self.phi:
            return np.zeros(queries.shape[:2]), np.full(queries.shape[:2], np.sqrt(1 / self.cfg.lam))
        return batch_ridge(np.array(self.phi), np.array(self.targets), self.cfg.lam, queries)

    def value(self, states, ends):
        q_hat, width = self.at(states)
        best = np.clip(q_hat + self.cfg.beta * width, 0, CAP).max(axis=1)
        return np.where(ends, self.cfg.terminal_value, best)

    def step(self, slot, obs, action, reward, next_obs, end):
        rows = [(len(self.phi), reward, next_obs, end), *self.slots.values()]
        index, rewards, states, ends = (np.array(column) for column in zip(*rows, strict=True))
        fresh = rewards + self.cfg.gamma * self.value(states, ends)
        self.phi.append(explicit(self.made, np.tile(obs, (9, 1)))[0, action])
        self.targets.append(0.0)
        for i, target in zip(index, fresh, strict=True):
            self.targets[i] = target
        if slot is not None:
            self.slots[slot] = rows[0]


@pytest.mark.parametrize("eviction", ["oldest", "reservoir"])
def test_pairs_that_left_the_memory_keep_their_last_target(eviction):
    cfg = config("grouped", horizon=60, memory=8, eviction=eviction, lam=1e-2, terminal_value=3.0)
    transitions = random_transitions(45, seed=24)
    reference = Remembering(cfg)
    state = kql_init(cfg, 2)
    assert state.capacity == 8
    queries = random_pairs(25, 3)[0]
    kept = passed = 0
    for i in range(45):
        before, (state, info) = state, step(cfg, state, row(transitions, i))
        assert bool(info.is_stored) and not bool(info.is_full)
        written = np.flatnonzero(np.any(np.asarray(before.table.obs != state.table.obs), axis=1))
        assert len(written) <= 1
        if i < 8 or eviction == "oldest":
            np.testing.assert_array_equal(written, [i % 8])
        kept, passed = kept + len(written), passed + 1 - len(written)
        slot = int(written[0]) if len(written) else None
        reference.step(slot, *(np.asarray(column[i]) for column in transitions))
        assert_close(predict_all(cfg, state, queries), reference.at(queries), 1e-8)
        for slot, (_, _, next_obs, _) in reference.slots.items():
            np.testing.assert_array_equal(state.table.obs[slot], next_obs)
        q_hat, width = reference.at(state.table.obs)
        taken = slice(0, min(i + 1, 8))
        np.testing.assert_allclose(state.q_hat[taken], q_hat[taken], atol=1e-7)
        np.testing.assert_allclose(state.width[taken], width[taken], atol=1e-7)
    assert int(state.num_stored) == 8
    if eviction == "reservoir":
        assert kept > 12 and passed > 12


def test_a_memory_that_is_never_full_is_the_default():
    transitions = random_transitions(12, seed=26)
    plain, with_memory = config("nystrom"), config("nystrom", memory=12, eviction="reservoir")
    state = after = kql_init(plain, 2)
    for i in range(12):
        state, info = step(plain, state, row(transitions, i))
        after, info_after = step(with_memory, after, row(transitions, i))
        assert_close((after, info_after), (state, info), 1e-10)


def test_a_memory_with_more_backups_and_with_lazy_rows_keeps_the_regression():
    """Pairs that left are neither lost nor counted twice, whatever else is on: the widths are those of all pairs."""
    transitions = random_transitions(40, seed=27)
    phi = explicit(make_map("grouped"), transitions.obs)[np.arange(40), np.asarray(transitions.action)]
    for options, eviction in (({"backups": 3}, "reservoir"), ({"refresh_rows": 3}, "oldest")):
        # Without discount the targets are the rewards, whenever they were computed.
        cfg = config("grouped", horizon=60, memory=6, eviction=eviction, gamma=0.0, lam=0.01, **options)
        state, info = learn(cfg, kql_init(cfg, 2), transitions)
        assert bool(info.is_stored.all()) and not bool(info.is_full.any())
        queries = random_pairs(28, 3)[0]
        expected = batch_ridge(phi, np.asarray(transitions.reward), 0.01, explicit(cfg.features, queries))
        assert_close(predict_all(cfg, state, queries), expected, 1e-8)


def test_a_reservoir_is_a_uniform_sample():
    """2000 steps, 50 slots: what is stored in the end, how often something was, and where."""
    steps, slots = 2000, 50
    cfg = config("linear", horizon=steps, memory=slots, eviction="reservoir")
    when = jnp.arange(steps) / steps
    transitions = random_transitions(steps)._replace(next_obs=jnp.stack([when, when], axis=1))

    @jit
    def run(cfg, state, transitions):
        def body(state, transition):
            state, info = kql_step(cfg, state, transition)
            return state, (info.is_full, jnp.argmax(state.table.obs[:, 0]), jnp.max(state.table.obs[:, 0]))

        return jax.lax.scan(body, state, transitions)

    state, (is_full, newest, latest) = run(cfg, kql_init(cfg, 2), transitions)
    assert not bool(is_full.any())
    kept = np.sort(np.asarray(state.table.obs[:, 0]))
    assert len(np.unique(kept)) == slots
    assert stats.kstest(kept, "uniform").pvalue > 0.01
    # The t-th is stored with probability 50 / t: 184 +- 13 of those that come after the first 50, in slots evenly.
    was_stored = np.asarray(latest == when)[slots:]
    assert 145 < was_stored.sum() < 225
    counts = np.bincount(np.asarray(newest)[slots:][was_stored], minlength=slots)
    assert stats.chisquare(counts).pvalue > 0.001
