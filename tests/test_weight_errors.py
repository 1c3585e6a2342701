"""Wrong maps, options, states and transitions in the weight-space engine."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from cases import random_transitions, row
from weight_cases import (
    CAP,
    LAZY,
    RBF,
    assert_same,
    config,
    make_map,
    step,
)

import kqljax
from kqljax import Transition, kql_act, kql_init, kql_step


def test_a_map_of_something_else_is_refused():
    made = make_map("taylor")
    for changes, message in (
        ({"kernel": kqljax.Matern32()}, "the feature map stands for the kernel RBF.*the config has Matern32"),
        ({"kernel": kqljax.RBF(eta=0.4)}, "Make the map from the config's kernel"),
        ({"num_actions": 2, "features": made}, "the feature map was made for 3 actions, not 2. Make it anew"),
        ({"features": "taylor"}, r"features must be a feature map or None, got 'taylor' \(str\)"),
    ):
        with pytest.raises(ValueError, match=message):
            config(**changes)
    with pytest.raises(ValueError, match="made for observations of length 2, not 3"):
        kql_init(config(), 3)
    # What is only a rounding apart is the same kernel.
    config(kernel=kqljax.RBF(eta=jnp.float32(0.5)))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"refresh_rows": 0}, "refresh_rows must be at least 1, got 0"),
        ({"refresh_rows": 1.5}, "refresh_rows must be a whole number"),
        ({"memory": 0}, "memory must be at least 1, got 0"),
        ({"memory": 2.5}, "memory must be a whole number"),
        ({"eviction": "newest"}, "eviction must be one of 'oldest', 'reservoir', got 'newest'"),
        ({"backups": 2, "refresh_rows": 4}, "use one or the other"),
    ],
)
def test_bad_options(changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes)


@pytest.mark.parametrize("option", [{"refresh_rows": 4}, {"memory": 8}, {"eviction": "reservoir"}])
def test_options_of_the_weight_space_engine_need_features(option):
    name = next(iter(option))
    with pytest.raises(ValueError, match=f"{name}=.* is an option of the weight-space engine: give features="):
        kqljax.KQLConfig(kernel=RBF, num_actions=3, horizon=12, **option)


def test_more_capacity_than_memory_is_refused():
    with pytest.raises(ValueError, match="capacity=9 is more than memory=8"):
        kql_init(config(memory=8), 2, capacity=9)


def test_state_and_config_must_fit():
    exact = kqljax.KQLConfig(kernel=RBF, num_actions=3, horizon=12)
    for cfg, other, message in (
        (exact, config(), "the state was made with features, the config has none"),
        (config(), exact, "the config has features, the state was made without"),
        (config(), config("fourier"), r"the state was made for a feature map with root \(3, 16, 16\)"),
        (config(), config(num_actions=2), "the state was made for 2 actions, the config has num_actions=3"),
    ):
        state = kql_init(other, 2)
        for use in (kql_step, step):
            with pytest.raises(ValueError, match=message):
                use(cfg, state, row(random_transitions(1), 0))
        with pytest.raises(ValueError, match=message):
            kql_act(cfg, state, jnp.zeros(2))


def test_a_step_says_what_the_features_leave_out():
    made = make_map("nystrom")
    cfg = config("nystrom")
    inside, outside = (Transition(np.zeros(2), 0, 0.5, np.full(2, at), False) for at in (0.1, 3.0))
    for transition, is_small in ((inside, True), (outside, False)):
        info = step(cfg, kql_init(cfg, 2), transition)[1]
        assert (float(info.feature_error) <= 2 * made.error) == is_small
    # By hand: what is left of the state reached, projected on the chosen ones.
    cross = oracle.rbf(0.5)(made.points, outside.next_obs[None], 2)
    left = 1 - cross.T @ np.linalg.solve(oracle.rbf(0.5)(made.points, made.points, 2), cross)
    assert float(info.feature_error) == pytest.approx(left.item(), rel=1e-3)
    exact = kqljax.KQLConfig(kernel=RBF, num_actions=3, horizon=12)
    assert float(step(exact, kql_init(exact, 2), outside)[1].feature_error) == 0


BAD_TRANSITIONS = {
    "nan observation": {"obs": jnp.array([jnp.nan, 0.0])},
    "infinite successor": {"next_obs": jnp.array([0.0, jnp.inf])},
    "nan reward": {"reward": jnp.asarray(jnp.nan)},
    "reward above": {"reward": jnp.asarray(1.5)},
    "action above": {"action": jnp.asarray(3, jnp.int32)},
    "action below": {"action": jnp.asarray(-1, jnp.int32)},
}


@pytest.mark.parametrize(
    "name, options",
    [("nystrom", "default"), ("nystrom", "more backups"), ("nystrom", "reservoir"), ("grouped", "some rows")],
)
def test_bad_values_leave_the_state_alone(name, options):
    cfg = config(name, **LAZY.get(options, {"backups": 2}))
    good = random_transitions(9, seed=32)
    fuller = kql_init(cfg, 2)
    for i in range(8):
        fuller, _ = step(cfg, fuller, row(good, i))
    for state in (kql_init(cfg, 2), fuller):
        for change in BAD_TRANSITIONS.values():
            after, info = step(cfg, state, row(good, 8)._replace(**change))
            assert not bool(info.is_valid) and not bool(info.is_stored)
            assert bool(info.is_finite)
            slot = state.posterior.next_slot
            assert int(after.posterior.next_slot) == int(slot) + 1
            assert_same(after._replace(posterior=after.posterior._replace(next_slot=slot)), state)
    again, info = step(cfg, after, row(good, 8))
    assert bool(info.is_stored)
    assert int(again.num_stored) == min(9, cfg.capacity)


def test_bad_values_raise_outside_jit():
    cfg = config("nystrom")
    for change in BAD_TRANSITIONS.values():
        name = next(iter(change))
        with pytest.raises(ValueError, match=f"transition.{name} must be"):
            kql_step(cfg, kql_init(cfg, 2), row(random_transitions(1), 0)._replace(**change))


def test_defaults_are_those_of_the_exact_engine():
    cfg = config()
    action, q_tilde = kql_act(cfg, kql_init(cfg, 2), jnp.zeros(2))
    np.testing.assert_allclose(q_tilde, CAP)
    assert int(action) == 0
    assert dataclasses.replace(cfg, features=None).engine != cfg.engine


@pytest.mark.parametrize("lazy", [{}, {"refresh_rows": 16}], ids=["all rows", "some rows"])
@pytest.mark.parametrize("batched", [False, True], ids=["one seed", "vmapped"])
def test_rows_of_features_are_written_in_place(lazy, batched):
    """No copy of a `[T, m]` array in the loop of a whole run: at T = 50,000 one took thirty times as long as the step."""
    size = 403
    kernel = kqljax.RBF(eta=0.3)
    cfg = kqljax.KQLConfig(
        kernel=kernel, num_actions=3, horizon=size, features=kqljax.features.taylor(kernel, 2, 3, order=4), **lazy
    )

    def run(obs):
        def body(state, obs):
            transition = Transition(obs, jnp.int32(0), jnp.float32(0), -obs, jnp.asarray(False))
            return kqljax.kql_step_and_act(cfg, state, transition, obs)[:2]

        return jax.lax.scan(body, kql_init(cfg, 2, jnp.float32), obs)[0]

    shape = (3, 9, 2) if batched else (9, 2)
    text = jax.jit(jax.vmap(run) if batched else run).lower(jnp.zeros(shape, jnp.float32)).compile().as_text()
    rows = f"[{'3,' if batched else ''}{size},{cfg.features.num_features}]"
    loops = [part for part in text.split("\n\n") if "region" in part.lstrip().split("(")[0]]
    assert any(f"f32{rows}" in part and "dynamic-update-slice" in part for part in loops)
    copies = [line for part in loops for line in part.splitlines() if f"= f32{rows}" in line and " copy(" in line]
    assert not copies, copies
