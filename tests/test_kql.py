"""The algorithm's surface: defaults, conventions, ties, capacity, and every wrong input."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import random_transitions, row

import kqljax
from kqljax import Transition, kql_act, kql_grow, kql_init, kql_predict, kql_step, kql_step_and_act

CAP = 20.0


def config(**changes):
    settings = {"kernel": kqljax.RBF(eta=0.5), "num_actions": 3, "horizon": 12, **changes}
    return kqljax.KQLConfig(**settings)


step = jax.jit(kql_step)


def learn(cfg, transitions, state=None):
    state = kql_init(cfg, 2) if state is None else state
    return jax.jit(lambda cfg, state, data: jax.lax.scan(lambda s, t: kql_step(cfg, s, t), state, data))(
        cfg, state, transitions
    )


def assert_same_but_for_a_slot(after, before):
    """A transition that is not learned from leaves its slot empty, and nothing else behind."""
    slot = before.posterior.next_slot
    assert int(after.posterior.next_slot) == int(slot) + 1
    assert_same(after._replace(posterior=after.posterior._replace(next_slot=slot)), before)


def assert_same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_defaults_are_the_papers():
    cfg = kqljax.KQLConfig(kernel=kqljax.RBF(), num_actions=3, horizon=1000)
    assert cfg.gamma == 0.95
    assert cfg.lam == pytest.approx(1e-4)
    assert cfg.beta == pytest.approx(np.sqrt(1e-4) / 0.05)
    assert (cfg.backups, cfg.tie_break, cfg.terminal_value) == (1, "first", 0.0)


def test_before_any_data_every_action_is_at_the_cap():
    cfg = config()
    action, q_tilde = kql_act(cfg, kql_init(cfg, 2), jnp.zeros(2))
    np.testing.assert_allclose(q_tilde, CAP)
    assert int(action) == 0
    q_hat, width = kql_predict(cfg, kql_init(cfg, 2), jnp.zeros(2))
    np.testing.assert_array_equal(q_hat, 0)
    np.testing.assert_allclose(width, 1 / np.sqrt(cfg.lam))


def test_terminal_value_is_the_target_of_an_end():
    cfg = config(terminal_value=7.0)
    first = Transition(jnp.zeros(2), 1, 0.25, jnp.ones(2), True)
    state, _ = kql_step(cfg, kql_init(cfg, 2), first)
    assert float(state.posterior.targets[0]) == pytest.approx(0.25 + 0.95 * 7.0)
    state, _ = kql_step(cfg, kql_init(cfg, 2), first._replace(terminated=False))
    assert float(state.posterior.targets[0]) == pytest.approx(0.25 + 0.95 * CAP)


def test_rows_belong_to_successors():
    """A reset between two transitions needs no care: the value of row tau is that of s'_tau, wherever the next one begins."""
    cfg = config()
    data = random_transitions(6)
    state, _ = learn(cfg, data)
    np.testing.assert_array_equal(state.table.obs[:6], data.next_obs)
    q_hat, width = jax.vmap(lambda obs: kql_predict(cfg, state, obs))(data.next_obs)
    np.testing.assert_allclose(state.q_hat[:6], q_hat, atol=1e-9)
    np.testing.assert_allclose(state.width[:6], width, atol=1e-8)


def test_step_and_act_is_step_then_act():
    cfg = config(tie_break="random")
    data = random_transitions(12, seed=3)
    one = two = kql_init(cfg, 2)
    together = jax.jit(kql_step_and_act)
    for i in range(12):
        key, query = jax.random.key(i), data.obs[(i + 5) % 12]
        one, info_one, action_one, q_one = together(cfg, one, row(data, i), query, key)
        two, info_two = step(cfg, two, row(data, i))
        action_two, q_two = kql_act(cfg, two, query, key)
        np.testing.assert_allclose(q_one, q_two, atol=1e-9)
        assert int(action_one) == int(action_two)
        np.testing.assert_allclose(info_one.residual, info_two.residual, atol=1e-9)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)


def test_step_and_act_at_capacity_and_with_a_bad_transition():
    cfg = config()
    data = random_transitions(13, seed=4)
    state, _ = learn(cfg, jax.tree.map(lambda leaf: leaf[:12], data))
    for bad in (row(data, 12), row(data, 12)._replace(reward=jnp.asarray(2.0))):
        after, info, action, q_tilde = jax.jit(kql_step_and_act)(cfg, state, bad, jnp.zeros(2))
        assert not bool(info.is_stored)
        expected, expected_q = kql_act(cfg, after, jnp.zeros(2))
        np.testing.assert_allclose(q_tilde, expected_q, atol=1e-9)
        assert int(action) == int(expected)


def test_random_ties_are_exact_and_even():
    cfg = config(tie_break="random", num_actions=4)
    state = kql_init(cfg, 2)
    keys = jax.random.split(jax.random.key(0), 4000)
    actions = jax.jit(jax.vmap(lambda key: kql_act(cfg, state, jnp.zeros(2), key)[0]))(keys)
    counts = np.bincount(actions, minlength=4)
    assert np.all(np.abs(counts - 1000) < 120)
    lower = dataclasses.replace(cfg, beta=0.0)
    state, _ = kql_step(lower, state, Transition(jnp.zeros(2), 2, 1.0, jnp.ones(2), True))
    actions = jax.vmap(lambda key: kql_act(lower, state, jnp.zeros(2), key)[0])(keys[:50])
    np.testing.assert_array_equal(actions, 2)


def test_random_ties_need_a_key():
    cfg = config(tie_break="random")
    with pytest.raises(ValueError, match="give kql_act a key"):
        kql_act(cfg, kql_init(cfg, 2), jnp.zeros(2))


@pytest.mark.parametrize("backups", [1, 2])
def test_past_capacity_nothing_is_overwritten(backups):
    cfg = config(horizon=4, backups=backups)
    data = random_transitions(6, seed=5)
    state, info = learn(cfg, data)
    np.testing.assert_array_equal(info.is_full, [False] * 4 + [True] * 2)
    np.testing.assert_array_equal(info.is_stored, [True] * 4 + [False] * 2)
    shorter, _ = learn(cfg, jax.tree.map(lambda leaf: leaf[:4], data))
    assert_same(state, shorter)


@pytest.mark.parametrize("is_full", [False, True])
def test_growing_in_stages_is_the_same_run(is_full):
    cfg = config(kernel=kqljax.Matern32(length_scale=2.0))
    data = random_transitions(12, seed=6)
    whole, _ = learn(cfg, data)
    state = kql_init(cfg, 2, capacity=4)
    for start in (0, 4, 8):
        state = kql_grow(state, start + 4, is_full)
        state, info = learn(cfg, jax.tree.map(lambda leaf, s=start: leaf[s : s + 4], data), state)
        assert bool(info.is_stored.all())
    for name in ("q_hat", "width", "q_tilde", "reward", "terminated"):
        np.testing.assert_allclose(getattr(state, name), getattr(whole, name), atol=1e-9)
    np.testing.assert_allclose(state.posterior.weights, whole.posterior.weights, atol=1e-7)


BAD_TRANSITIONS = {
    "nan observation": ({"obs": jnp.array([jnp.nan, 0.0])}, r"transition.obs must be finite, got nan at index \(0,\)"),
    "infinite successor": ({"next_obs": jnp.array([0.0, jnp.inf])}, "transition.next_obs must be finite, got inf"),
    "nan reward": ({"reward": jnp.asarray(jnp.nan)}, r"transition.reward must be in \[0, 1\], got nan"),
    "reward above": ({"reward": jnp.asarray(1.5)}, r"must be in \[0, 1\], got 1.5. Map the task's raw rewards"),
    "reward below": ({"reward": jnp.asarray(-1.0)}, r"must be in \[0, 1\], got -1.0"),
    "action above": ({"action": jnp.asarray(3)}, r"transition.action must be in 0\.\.2, got 3"),
    "action below": ({"action": jnp.asarray(-1)}, r"must be in 0\.\.2, got -1"),
}


@pytest.mark.parametrize("backups", [1, 2])
@pytest.mark.parametrize("name", BAD_TRANSITIONS)
def test_bad_values_raise_outside_jit_and_flag_inside(name, backups):
    change, message = BAD_TRANSITIONS[name]
    cfg = config(backups=backups)
    empty = kql_init(cfg, 2)
    assert_same_but_for_a_slot(step(cfg, empty, row(random_transitions(1, seed=8), 0)._replace(**change))[0], empty)
    state, _ = learn(cfg, random_transitions(3, seed=7))
    bad = row(random_transitions(1, seed=8), 0)._replace(**change)
    with pytest.raises(ValueError, match=message):
        kql_step(cfg, state, bad)
    after, info = step(cfg, state, bad)
    assert not bool(info.is_valid)
    assert not bool(info.is_stored)
    assert bool(info.is_finite)
    assert_same_but_for_a_slot(after, state)
    again, info = step(cfg, after, row(random_transitions(1, seed=8), 0))
    assert bool(info.is_stored)
    assert int(again.num_stored) == 4


WRONG_KINDS = {
    "rank of obs": ({"obs": jnp.zeros((1, 2))}, r"transition.obs must have shape \(2,\).*Use jax.vmap"),
    "length of obs": ({"next_obs": jnp.zeros(3)}, r"transition.next_obs must have shape \(2,\), got .*shape \(3,\)"),
    "float action": ({"action": jnp.asarray(1.0)}, "transition.action must be an integer of shape"),
    "batched action": ({"action": jnp.zeros(2, int)}, "transition.action must be an integer of shape"),
    "complex reward": ({"reward": jnp.asarray(1j)}, "transition.reward must be a real number"),
    "float end": ({"terminated": jnp.asarray(0.0)}, "transition.terminated must be a bool of shape"),
    "complex obs": ({"obs": jnp.zeros(2, complex)}, "transition.obs must be real numbers"),
}


@pytest.mark.parametrize("wrapped", [kql_step, step], ids=["plain", "jit"])
@pytest.mark.parametrize("name", WRONG_KINDS)
def test_wrong_shapes_and_dtypes_raise_also_inside_jit(name, wrapped):
    change, message = WRONG_KINDS[name]
    cfg = config()
    bad = row(random_transitions(1), 0)._replace(**change)
    with pytest.raises(ValueError, match=message):
        wrapped(cfg, kql_init(cfg, 2), bad)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"lam": 0.0}, "lam must be above 0, got 0.0"),
        ({"lam": -1.0}, "lam must be above 0, got -1.0"),
        ({"gamma": 1.0}, r"gamma must be in \[0, 1\), got 1.0"),
        ({"gamma": -0.1}, r"gamma must be in \[0, 1\), got -0.1"),
        ({"gamma": np.array([0.9, 1.2])}, r"got 1.2 at index \(1,\)"),
        ({"beta": -0.5}, "beta must be at least 0, got -0.5"),
        ({"beta": float("nan")}, "beta must be at least 0, got nan"),
        ({"terminal_value": 25.0}, r"terminal_value must be in \[0, 1 / \(1 - gamma\)\], got 25.0"),
        ({"lam": "small"}, "lam must be a real number"),
    ],
)
def test_config_values_are_checked(changes, message):
    for check in (lambda cfg: cfg.validate(), lambda cfg: kql_init(cfg, 2)):
        with pytest.raises(ValueError, match=message):
            check(config(**{"beta": 1.0, **changes}))


@pytest.mark.parametrize("changes", [{"gamma": 1.0}, {"lam": -1.0}])
def test_values_that_no_default_beta_follows_from_are_refused_at_once(changes):
    with pytest.raises(ValueError, match=f"{next(iter(changes))} must be"):
        config(**changes)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"horizon": 0}, "horizon must be at least 1, got 0"),
        ({"horizon": 2.5}, "horizon must be a whole number"),
        ({"num_actions": 0}, "num_actions must be at least 1"),
        ({"backups": 0}, "backups must be at least 1"),
        ({"tie_break": "coin"}, "tie_break must be one of 'first', 'random', got 'coin'"),
        ({"kernel": "rbf"}, r"kernel must be a kqljax kernel, got 'rbf' \(str\)\. Use RBF"),
    ],
)
def test_config_sizes_are_checked_at_once(changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes)


def test_validate_belongs_outside_jit():
    with pytest.raises(ValueError, match="call it outside jax.jit"):
        jax.jit(lambda cfg: cfg.validate().lam)(config())


def test_a_wide_beta_warns():
    with pytest.warns(kqljax.NormalisationWarning, match="the range of Algorithm 1"):
        config(beta=1e4).validate()


def test_init_arguments():
    with pytest.raises(ValueError, match="obs_dim must be at least 1"):
        kql_init(config(), 0)
    with pytest.raises(ValueError, match="capacity must be at least 1"):
        kql_init(config(), 2, capacity=0)
    with pytest.raises(ValueError, match="dtype must be float32 or float64, got int32"):
        kql_init(config(), 2, jnp.int32)


def test_state_and_config_must_fit():
    cfg = config()
    for use in (
        lambda state: kql_step(cfg, state, row(random_transitions(1), 0)),
        lambda state: kql_act(cfg, state, jnp.zeros(2)),
    ):
        with pytest.raises(ValueError, match="made for 2 actions, the config has num_actions=3"):
            use(kql_init(config(num_actions=2), 2))
        with pytest.raises(ValueError, match="stores 2 terms a pair, the kernel RBF has 1: the state was made with another"):
            use(kql_init(config(kernel=kqljax.Matern32()), 2))


def test_lists_are_observations_too():
    cfg = config()
    state = kql_init(cfg, 2)
    np.testing.assert_allclose(kql_act(cfg, state, [0.1, 0.2])[1], CAP)
    with pytest.raises(ValueError, match=r"obs must have shape \(2,\)"):
        kql_act(cfg, state, [0.1])


def test_observation_for_acting_is_checked():
    cfg = config()
    state = kql_init(cfg, 2)
    with pytest.raises(ValueError, match=r"obs must have shape \(2,\)"):
        kql_act(cfg, state, jnp.zeros((4, 2)))
    with pytest.raises(ValueError, match="obs must be finite"):
        kql_act(cfg, state, jnp.array([jnp.nan, 0.0]))
    action, q_tilde = jax.jit(kql_act)(cfg, state, jnp.array([jnp.nan, 0.0]))
    assert int(action) == -1
    assert np.all(np.isnan(q_tilde))


def test_float64_needs_x64():
    with jax.enable_x64(False), pytest.raises(ValueError, match="float64 is switched off in jax. Set the environment"):
        kql_init(config(), 2, jnp.float64)


def test_float32_is_refused_where_it_would_diverge():
    paper = config(horizon=1000)
    for x64 in (True, False):
        with (
            jax.enable_x64(x64),
            pytest.raises(ValueError, match=r"cannot keep its factor in float32 at lam=0.0001.*lam of"),
        ):
            kql_init(paper, 2, jnp.float32)
    with jax.enable_x64(False), pytest.raises(ValueError, match="JAX_ENABLE_X64=1"):
        kql_init(paper, 2)
    with jax.enable_x64(False), pytest.raises(ValueError, match="inside jit it cannot see lam"):
        jax.jit(lambda cfg: kql_init(cfg, 2))(paper)
    with pytest.raises(ValueError, match="and 5000 transitions"):
        kql_init(config(horizon=100, lam=0.001), 2, jnp.float32, capacity=5000)
    kql_init(config(horizon=1000, lam=0.01), 2, jnp.float32)


def test_float32_agrees_where_it_is_taken():
    cfg = config(horizon=200, lam=0.01)
    data = random_transitions(200, seed=9)
    wide, _ = learn(cfg, data)
    narrow, info = learn(cfg, data, kql_init(cfg, 2, jnp.float32))
    assert bool(info.is_finite.all())
    assert narrow.q_tilde.dtype == jnp.float32
    np.testing.assert_allclose(narrow.q_tilde, wide.q_tilde, atol=0.02)
    np.testing.assert_allclose(narrow.width, wide.width, atol=0.02)


def test_float32_divergence_is_flagged_where_lam_is_traced():
    """What kql_init cannot see inside jit, Info reports."""
    obs = np.linspace(-1, 1, 400)[:, None] * np.ones(2) * 0.1
    data = random_transitions(400)._replace(obs=jnp.asarray(obs), next_obs=jnp.asarray(obs))
    cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=400, lam=1e-6)
    state = jax.jit(lambda cfg: kql_init(cfg, 2, jnp.float32))(cfg)
    _, info = learn(cfg, data, state)
    assert not bool(info.is_finite.all()) or float(info.residual.max()) > 1.0
    _, info = learn(cfg, data)
    assert bool(info.is_finite.all())
    assert float(info.residual.max()) < 1e-4
