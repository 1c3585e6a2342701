"""The algorithm's surface with both engines: defaults, ties, capacity, every wrong input."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from cases import (
    CAP,
    ENGINES,
    KEY,
    RBF,
    act,
    assert_close,
    assert_same,
    config,
    jit,
    learn,
    make_map,
    part,
    predict,
    random_transitions,
    row,
    step,
    step_and_act,
)

import kqljax
from kqljax import Transition, Weights, kql_act, kql_init, kql_predict, kql_resize, kql_step

every_engine = pytest.mark.parametrize("engine", ENGINES)


def assert_left_alone(after, before):
    """A transition that is not learned from leaves its slot empty, and changes no prediction."""
    assert int(after.posterior.next_slot) == int(before.posterior.next_slot) + 1
    largest = "whitener" if hasattr(before.posterior, "whitener") else "root"
    weights = "alpha" if hasattr(before.posterior, "alpha") else "white"
    for name in (largest, weights, "action"):
        assert_same(getattr(after.posterior, name), getattr(before.posterior, name))
    assert_same((after.reward, after.terminated), (before.reward, before.terminated))
    is_taken = before.posterior.action >= 0
    assert_close(
        (after.q_hat[is_taken], after.width[is_taken]),
        (before.q_hat[is_taken], before.width[is_taken]),
        1e-12,
    )


def test_defaults_are_the_papers():
    cfg = kqljax.KQLConfig(kernel=kqljax.RBF(), num_actions=3, horizon=1000)
    assert cfg.gamma == 0.95
    assert cfg.lam == pytest.approx(1e-4)
    assert cfg.beta == pytest.approx(np.sqrt(1e-4) / 0.05)
    assert (cfg.engine, cfg.tie_break, cfg.terminal_value) == (kqljax.Exact(), "first", 0.0)


# What is believed and done -----------------------------------------------------------------------


@every_engine
def test_before_any_data_every_action_is_at_the_cap(engine):
    cfg = config(engine)
    state = kql_init(cfg, 2)
    action, q_tilde = act(KEY, cfg, state, jnp.array([0.3, -0.2]))
    np.testing.assert_allclose(q_tilde, CAP)
    assert int(action) == 0
    # Also far from all that the features were made for.
    q_hat, width = predict(cfg, state, jnp.array([[0.3, -0.2], [0.0, 0.0], [5.0, 4.0]]))
    np.testing.assert_array_equal(q_hat, np.zeros((3, 3)))
    np.testing.assert_allclose(width, np.full((3, 3), 1 / np.sqrt(cfg.lam)), rtol=1e-9)


@every_engine
def test_terminal_value_is_the_target_of_an_end(engine):
    """One pair whose target is y: Q-hat there is y k / (k + lam)."""
    cfg = config(engine, terminal_value=7.0)
    here, there = jnp.zeros(2), jnp.ones(2)
    for terminated, target in ((True, 0.25 + 0.95 * 7.0), (False, 0.25 + 0.95 * CAP)):
        state, _ = step(
            cfg,
            kql_init(cfg, 2),
            Transition(here, jnp.int32(1), 0.25, there, jnp.asarray(terminated)),
        )
        own = (
            1.0
            if engine == "exact"
            else float(jnp.sum((make_map(engine).root[1].T @ make_map(engine).psi(here)) ** 2))
        )
        assert float(predict(cfg, state, here)[0][1]) == pytest.approx(
            target * own / (own + cfg.lam), rel=1e-9
        )


@every_engine
def test_rows_belong_to_successors(engine):
    """Row tau is the value of s'_tau, wherever the next one begins: a reset needs no care."""
    cfg = config(engine)
    data = random_transitions(12)
    state, _ = learn(cfg, kql_init(cfg, 2), data)
    assert_close((state.q_hat, state.width), predict(cfg, state, data.next_obs), 1e-7)
    tables = kqljax.kql_tables(cfg, state)
    np.testing.assert_allclose(
        tables.q_tilde, np.clip(state.q_hat + cfg.beta * state.width, 0, CAP), rtol=1e-12
    )


@every_engine
def test_step_and_act_is_step_then_act(engine):
    """Also at capacity and with a transition that is refused."""
    cfg = config(engine, tie_break="random")
    data = random_transitions(13, seed=3)
    rows = [row(data, i) for i in range(13)]
    rows.insert(5, rows[5]._replace(reward=jnp.asarray(2.0)))
    one = two = kql_init(cfg, 2)
    for i, transition in enumerate(rows):
        key, query = jax.random.key(i), data.obs[(i + 5) % 12]
        one, info_one, action_one, q_one = step_and_act(key, cfg, one, transition, query)
        two, info_two = step(cfg, two, transition)
        action_two, q_two = act(key, cfg, two, query)
        np.testing.assert_allclose(q_one, q_two, atol=1e-8)
        assert int(action_one) == int(action_two)
        assert_close(info_one, info_two, 1e-8)
        assert bool(info_one.is_stored) == (i not in (5, 12, 13))
    assert_close(one, two, 1e-7)


@every_engine
def test_a_policy_acts_as_its_state_does(engine):
    cfg = config(engine)
    data = random_transitions(12, seed=4)
    state, _ = learn(cfg, kql_init(cfg, 2), data)
    policy = jit(kqljax.kql_policy)(cfg, state)
    memory = policy.begin(KEY)
    ask = jit(lambda policy, obs: (policy.act(KEY, memory, obs)[0], policy.values(obs)))
    actions, values = ask(policy, data.obs)
    assert_close((values.q_hat, values.width), predict(cfg, state, data.obs), 1e-8)
    for i in range(3):
        expected, expected_q = act(KEY, cfg, state, data.obs[i])
        np.testing.assert_allclose(values.q_tilde[i], expected_q, atol=1e-8)
        assert int(actions[i]) == int(expected)
        alone, its_values = ask(policy, data.obs[i])
        assert (int(alone), alone.shape, alone.dtype) == (int(expected), (), jnp.int32)
        np.testing.assert_allclose(its_values.q_tilde, expected_q, atol=1e-8)


def test_random_ties_are_exact_and_even():
    cfg = config(tie_break="random", num_actions=4)
    state, lower = kql_init(cfg, 2), dataclasses.replace(cfg, beta=0.0)
    many = jit(
        lambda cfg, state: kqljax.kql_policy(cfg, state).act(KEY, (), jnp.zeros((1000, 2)))[0]
    )
    assert np.all(np.abs(np.bincount(many(cfg, state), minlength=4) - 250) < 60)
    found = [int(act(jax.random.key(i), cfg, state, jnp.zeros(2))[0]) for i in range(40)]
    assert np.all(np.bincount(found, minlength=4) >= 3)
    # An action that is better than the others is taken always.
    state, _ = step(lower, state, Transition(jnp.zeros(2), jnp.int32(2), 1.0, jnp.ones(2), True))
    np.testing.assert_array_equal(many(lower, state), 2)


@every_engine
def test_a_value_that_is_not_a_number_is_no_action(engine):
    cfg = config(engine)
    state = kql_init(cfg, 2)
    with pytest.raises(ValueError, match="obs must be finite, got nan"):
        kql_act(KEY, cfg, state, jnp.array([jnp.nan, 0.0]))
    action, q_tilde = act(KEY, cfg, state, jnp.array([jnp.nan, 0.0]))
    assert (int(action), action.dtype) == (-1, jnp.int32)
    assert np.all(np.isnan(q_tilde))
    # One number that is lost in the state shows in the next step and in every action.
    leaf = "alpha" if engine == "exact" else "white"
    broken = getattr(state.posterior, leaf).at[0].set(jnp.nan)
    broken = state._replace(posterior=state.posterior._replace(**{leaf: broken}))
    _, info = step(cfg, broken, row(random_transitions(1), 0))
    assert not bool(info.is_finite) and not bool(info.is_sound)
    broken, _ = learn(cfg, kql_init(cfg, 2), random_transitions(12))
    broken = jax.tree.map(lambda x: x * jnp.nan if x.dtype == float else x, broken)
    assert int(act(KEY, cfg, broken, jnp.zeros(2))[0]) == -1


# Capacity ----------------------------------------------------------------------------------------


@every_engine
def test_past_capacity_nothing_is_overwritten(engine):
    cfg = config(engine)
    data = random_transitions(14, seed=5)
    full, info = learn(cfg, kql_init(cfg, 2), part(data, 0, 12))
    assert bool(info.is_stored.all()) and not bool(info.is_full.any())
    state = full
    for i in (12, 13):
        state, info = step(cfg, state, row(data, i))
        assert bool(info.is_full) and bool(info.is_valid) and bool(info.is_finite)
        assert not bool(info.is_stored) and not bool(info.is_sound)
    assert_close(state, full, 1e-9)
    assert int(state.num_stored) == 12


@pytest.mark.parametrize("engine", ["exact", "taylor"])
def test_stages_are_the_same_run(engine):
    """Full states that grow outside of jit, half-full ones inside, say what one capacity says."""
    cfg = config(
        engine, **({"kernel": kqljax.Matern32(length_scale=2.0)} if engine == "exact" else {})
    )
    data = random_transitions(12, seed=6)
    whole, _ = learn(cfg, kql_init(cfg, 2), data)
    inside = jit(kql_resize, static_argnames="capacity")
    for first, resize in ((4, kql_resize), (2, inside)):
        state, done = kql_init(cfg, 2, capacity=4), 0
        for stop, capacity in ((first, 8), (8, 12), (12, 12)):
            for i in range(done, stop):
                state, info = step(cfg, state, row(data, i))
                assert bool(info.is_stored)
            state, done = resize(cfg, state, capacity=capacity), stop
            assert state.capacity == capacity
        assert int(state.num_stored) == 12
        for name in ("q_hat", "width", "reward", "terminated"):
            np.testing.assert_allclose(getattr(state, name), getattr(whole, name), atol=1e-7)
        assert_close(predict(cfg, state, data.obs), predict(cfg, whole, data.obs), 1e-7)
        if engine == "exact":
            # A full state closes its block, which saves zeros; inside of jit that is not known.
            assert len(state.posterior.whitener) == (3 if resize is kql_resize else 1)
    with pytest.raises(
        ValueError, match="cannot shrink a state from capacity 12 to 11: transitions would be lost"
    ):
        kql_resize(cfg, state, 11)


def test_room_that_is_not_the_horizon():
    cfg = config(horizon=5)
    assert kql_init(cfg, 2).capacity == 5
    assert kql_init(cfg, 2, capacity=9).capacity == 9


# Wrong transitions -------------------------------------------------------------------------------

BAD_TRANSITIONS = {
    "nan observation": (
        {"obs": jnp.array([jnp.nan, 0.0])},
        r"transition.obs must be finite, got nan at index \(0,\)",
    ),
    "infinite successor": (
        {"next_obs": jnp.array([0.0, jnp.inf])},
        "transition.next_obs must be finite, got inf",
    ),
    "nan reward": (
        {"reward": jnp.asarray(jnp.nan)},
        r"transition.reward must be in \[0, 1\], got nan",
    ),
    "reward above": (
        {"reward": jnp.asarray(1.5)},
        r"must be in \[0, 1\], got 1.5. Map the task's raw rewards",
    ),
    "reward below": ({"reward": jnp.asarray(-1.0)}, r"must be in \[0, 1\], got -1.0"),
    "action above": (
        {"action": jnp.asarray(3, jnp.int32)},
        r"transition.action must be in 0\.\.2, got 3",
    ),
    "action below": ({"action": jnp.asarray(-1, jnp.int32)}, r"must be in 0\.\.2, got -1"),
}


@every_engine
def test_bad_values_raise_outside_jit_and_flag_inside(engine):
    cfg = config(engine)
    good, last = random_transitions(5, seed=7), row(random_transitions(5, seed=7), 4)
    fuller = kql_init(cfg, 2)
    for i in range(4):
        fuller, _ = step(cfg, fuller, row(good, i))
    for change, message in BAD_TRANSITIONS.values():
        bad = last._replace(**change)
        with pytest.raises(ValueError, match=message):
            kql_step(cfg, fuller, bad)
        for state in (kql_init(cfg, 2), fuller):
            after, info = step(cfg, state, bad)
            assert not bool(info.is_valid) and not bool(info.is_stored) and not bool(info.is_full)
            assert bool(info.is_finite) and float(info.residual) == 0
            assert_left_alone(after, state)
    again, info = step(cfg, after, last)
    plain, _ = step(cfg, fuller, last)
    assert bool(info.is_stored)
    assert int(again.num_stored) == 5
    assert_close(predict(cfg, again, good.obs), predict(cfg, plain, good.obs), 1e-9)


WRONG_KINDS = {
    "rank of obs": (
        {"obs": jnp.zeros((1, 2))},
        r"transition.obs must have shape \(2,\).*Use jax.vmap",
    ),
    "length of obs": (
        {"next_obs": jnp.zeros(3)},
        r"transition.next_obs must have shape \(2,\), got .*shape \(3,\)",
    ),
    "float action": ({"action": jnp.asarray(1.0)}, "transition.action must be an integer of shape"),
    "batched action": (
        {"action": jnp.zeros(2, int)},
        "transition.action must be an integer of shape",
    ),
    "complex reward": ({"reward": jnp.asarray(1j)}, "transition.reward must be a real number"),
    "float end": (
        {"terminated": jnp.asarray(0.0)},
        "transition.terminated must be a bool of shape",
    ),
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


def test_observations_are_checked_and_may_be_lists():
    cfg = config()
    state = kql_init(cfg, 2)
    assert jax.eval_shape(lambda: kql_act(KEY, cfg, state, [0.1, 0.2]))[1].shape == (3,)
    with pytest.raises(ValueError, match=r"obs must have shape \(2,\)"):
        kql_act(KEY, cfg, state, [0.1])
    with pytest.raises(ValueError, match=r"obs must have shape \(2,\) or \[n, 2\], got"):
        kql_predict(cfg, state, jnp.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"obs must have shape \(2,\), got .*Use jax.vmap"):
        kqljax.kql_step_and_act(KEY, cfg, state, row(random_transitions(1), 0), jnp.zeros((4, 2)))


# Wrong configs and states ------------------------------------------------------------------------


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
        ({"tie_break": "coin"}, "tie_break must be one of 'first', 'random', got 'coin'"),
        ({"kernel": "rbf"}, r"kernel must be a kqljax kernel, got 'rbf' \(str\)\. Use RBF"),
        (
            {"engine": "exact"},
            r"engine must be kqljax.Exact\(\) or kqljax.Weights\(features\), got 'exact'",
        ),
        (
            {"engine": Weights("taylor")},
            r"Weights takes a feature map, got 'taylor' \(str\)\. Make one with",
        ),
        (
            {"engine": Weights(make_map("nystrom")), "kernel": kqljax.Matern32()},
            "stands for the kernel RBF.*has Matern32",
        ),
        (
            {"engine": Weights(make_map("nystrom")), "kernel": kqljax.RBF(eta=0.4)},
            "Make the map from the config's kernel",
        ),
        (
            {"engine": Weights(make_map("nystrom")), "num_actions": 2},
            "was made for 3 actions, not 2. Make it anew",
        ),
    ],
)
def test_config_sizes_and_engines_are_checked_at_once(changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes)


def test_what_is_only_a_rounding_apart_is_the_same_kernel():
    cfg = config("nystrom", kernel=kqljax.RBF(eta=jnp.float32(0.5)))
    assert float(cfg.kernel.eta) == 0.5


def test_validate_belongs_outside_jit():
    with pytest.raises(ValueError, match="call it outside jax.jit"):
        jax.jit(lambda cfg: cfg.validate().lam)(config())


def test_a_wide_beta_warns():
    with pytest.warns(kqljax.NormalisationWarning, match="the range of Algorithm 1"):
        config(beta=1e4).validate()


def test_init_arguments():
    with pytest.raises(ValueError, match="obs_dim must be at least 1"):
        kql_init(config(), 0)
    with pytest.raises(ValueError, match="made for observations of length 2, not 3"):
        kql_init(config("taylor"), 3)
    with pytest.raises(ValueError, match="capacity must be at least 1"):
        kql_init(config(), 2, capacity=0)
    with pytest.raises(ValueError, match="dtype must be float32 or float64, got int32"):
        kql_init(config(), 2, jnp.int32)
    with (
        jax.enable_x64(False),
        pytest.raises(ValueError, match="float64 is switched off in jax. Set the environment"),
    ):
        kql_init(config(), 2, jnp.float64)


@pytest.mark.parametrize(
    "cfg, made_with, message",
    [
        (
            config(),
            config(num_actions=2),
            "made for 2 actions, the config has num_actions=3. Make the state with kql_init",
        ),
        (
            config(),
            config(kernel=kqljax.Matern32()),
            "stores 2 terms a pair, the kernel RBF has 1: the state was made with",
        ),
        (
            config(lam=0.5),
            config(),
            r"made with lam=0.0083\d*, the config has lam=0.5; lam is part of a state's factor",
        ),
        (
            config("taylor", lam=0.5),
            config("taylor"),
            "the config has lam=0.5; lam is part of a state's factor",
        ),
        (
            config(),
            config("taylor"),
            "has the engine Exact, the state has a WeightPosterior: another engine made it",
        ),
        (
            config("taylor"),
            config(),
            "has the engine Weights, the state has a ExactPosterior: another engine made it",
        ),
        (
            config("taylor"),
            config("fourier"),
            r"made for a feature map with root \(3, 16, 16\), the config's has \(3, 10, 30\)",
        ),
        (
            config("taylor"),
            config("taylor", num_actions=2),
            r"with root \(2, 10, 20\), the config's has \(3, 10, 30\)",
        ),
    ],
)
def test_state_and_config_must_fit(cfg, made_with, message):
    state, transition = kql_init(made_with, 2), row(random_transitions(1), 0)
    for use in (
        lambda: kql_step(cfg, state, transition),
        lambda: kql_act(KEY, cfg, state, jnp.zeros(2)),
        lambda: kqljax.kql_policy(cfg, state),
    ):
        with pytest.raises(ValueError, match=message):
            use()
    if "lam" not in message:  # a value, which jit does not show
        with pytest.raises(ValueError, match=message):
            step(cfg, state, transition)


# float32 -----------------------------------------------------------------------------------------


def test_the_exact_engine_refuses_float32_where_it_would_diverge():
    paper = config(horizon=1000)
    refused = pytest.raises(
        ValueError, match=r"cannot keep its factor in float32 at lam=0.0001.*lam of"
    )
    for x64 in (True, False):
        with jax.enable_x64(x64), refused:
            kql_init(paper, 2, jnp.float32)
    with jax.enable_x64(False), pytest.raises(ValueError, match="JAX_ENABLE_X64=1"):
        kql_init(paper, 2)
    with jax.enable_x64(False), pytest.raises(ValueError, match="inside jit it cannot see lam"):
        jax.jit(lambda cfg: kql_init(cfg, 2))(paper)
    with pytest.raises(ValueError, match="and 5000 transitions"):
        kql_init(config(horizon=100, lam=0.001), 2, jnp.float32, capacity=5000)
    assert kql_init(config(horizon=1000, lam=0.01), 2, jnp.float32).width.dtype == jnp.float32
    assert kql_init(config("taylor", horizon=1000), 2, jnp.float32).width.dtype == jnp.float32


def test_a_step_says_what_the_features_leave_out():
    made, cfg = make_map("nystrom"), config("nystrom")
    inside, outside = (
        Transition(
            jnp.zeros(2), jnp.int32(0), jnp.asarray(0.5), jnp.full(2, at), jnp.asarray(False)
        )
        for at in (0.1, 3.0)
    )
    errors = [
        float(step(cfg, kql_init(cfg, 2), each)[1].feature_error) for each in (inside, outside)
    ]
    assert errors[0] <= 2 * made.error < errors[1]
    # By hand: what is left of the state reached, projected on the chosen ones.
    cross = oracle.rbf(RBF.eta)(made.points, np.asarray(outside.next_obs)[None], 2)
    left = 1 - cross.T @ np.linalg.solve(oracle.rbf(RBF.eta)(made.points, made.points, 2), cross)
    assert errors[1] == pytest.approx(left.item(), rel=1e-3)
    assert float(step(config(), kql_init(config(), 2), outside)[1].feature_error) == 0


def test_float64_on_a_tpu_says_what_to_do(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    with pytest.raises(
        ValueError, match=r"no float64.*dtype=jnp.float32 with engine=kqljax.Weights"
    ):
        kql_init(config("exact"), 2)
    assert kql_init(config("taylor"), 2, jnp.float32).reward.dtype == jnp.float32
