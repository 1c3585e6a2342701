"""The committee of a finished run: against NumPy, with empty slots, under vmap, and what it refuses."""

import dataclasses

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import kqljax
from kqljax import Afterstate, TwoScale
from kqljax.committee import Panel, committee_policy, convene

COUNT, ACTIONS, GAMMA = 30, 3, 0.9
PANEL = Panel(scales=(0.3, 2.0), gamma=0.8, sweeps=150)
EFFECT = np.array([[0.1, 0.0], [0.0, 0.0], [-0.1, 0.05]])


def transitions(seed=0):
    rng = np.random.default_rng(seed)
    obs = rng.uniform(-1, 1, (COUNT, 2))
    action = rng.integers(0, ACTIONS, COUNT)
    moved = np.clip(obs + EFFECT[action] + rng.normal(0, 0.05, obs.shape), -1, 1)
    return kqljax.Transition(obs, action, rng.uniform(0, 1, COUNT), moved, rng.uniform(size=COUNT) < 0.2)


def learned(seen, capacity=COUNT, **changes):
    kernel = Afterstate(TwoScale(eta=np.array([1.0, 2.0]), eta_action=0.05), effect=EFFECT)
    given = {"kernel": kernel, "num_actions": ACTIONS, "horizon": 100, "gamma": GAMMA, "lam": 1e-3, "terminal_value": 4.0}
    cfg = kqljax.KQLConfig(**given | changes)
    state = kqljax.kql_init(cfg, 2, capacity=capacity)
    state, _ = jax.lax.scan(lambda state, one: kqljax.kql_step(cfg, state, one), state, jax.tree.map(jnp.asarray, seen))
    return cfg, state


def by_hand(seen, obs):
    """Values `[A]` at one state, from the definition: NumPy, float64, loops over members and actions."""
    after = seen.obs + EFFECT[seen.action]

    def kernel(states, action, scale):
        difference = (states + EFFECT[action])[:, None, :] - after[None, :, :]
        distance = (difference**2 * np.array([1.0, 2.0]) * scale).sum(-1)
        return np.exp(-distance) * np.where(np.asarray(action).reshape(-1, 1) == seen.action, 1.0, np.exp(-2 * 0.05))

    cap = 1 / (1 - PANEL.gamma)
    end = 4.0 * (1 - GAMMA) / (1 - PANEL.gamma)  # the same reward at every step after the end
    values = []
    for scale in PANEL.scales:
        inverse = np.linalg.inv(kernel(seen.obs, seen.action, scale) + 1e-3 * np.eye(COUNT))
        targets = np.full(COUNT, cap)
        for _ in range(PANEL.sweeps):
            weights = inverse @ targets
            reached = [kernel(seen.next_obs, np.full(COUNT, action), scale) @ weights for action in range(ACTIONS)]
            best = np.clip(reached, 0, cap).max(axis=0)
            targets = seen.reward + PANEL.gamma * np.where(seen.terminated, end, best)
        weights = inverse @ targets
        at = [kernel(obs[None], np.array([action]), scale)[0] @ weights for action in range(ACTIONS)]
        values.append(np.clip(at, 0, cap))
    return np.mean(values, axis=0)


@pytest.fixture(scope="module")
def seen():
    return transitions()


def test_values_are_those_of_numpy(seen):
    cfg, state = learned(seen)
    act = jax.jit(committee_policy(cfg, convene(cfg, state, PANEL)))
    for obs in np.random.default_rng(1).uniform(-1, 1, (6, 2)):
        action, value = act(obs)
        wanted = by_hand(seen, obs)
        np.testing.assert_allclose(value, wanted, atol=2e-4)  # backups are in float32
        assert wanted[int(action)] == pytest.approx(wanted.max(), abs=2e-4)


def test_empty_slots_do_not_count(seen):
    cfg, state = learned(seen)
    roomy_cfg, roomy = learned(seen, capacity=COUNT + 7)
    obs = np.array([0.2, -0.4])
    value = committee_policy(cfg, convene(cfg, state, PANEL))(obs)[1]
    committee = convene(roomy_cfg, roomy, PANEL)
    np.testing.assert_array_equal(committee.weights[:, COUNT:], 0.0)
    np.testing.assert_allclose(committee_policy(roomy_cfg, committee)(obs)[1], value, atol=1e-4)


def test_a_state_that_has_seen_nothing():
    cfg, _ = learned(transitions())
    state = kqljax.kql_init(cfg, 2, capacity=5)
    action, value = committee_policy(cfg, convene(cfg, state, PANEL))(np.zeros(2))
    assert int(action) == 0
    np.testing.assert_array_equal(value, 0.0)


def test_a_vmap_is_one_after_the_other(seen):
    states = [learned(each)[1] for each in (seen, transitions(1))]
    cfg, _ = learned(seen)
    together = jax.jit(jax.vmap(lambda state: convene(cfg, state, PANEL).weights))(
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    )
    for state, weights in zip(states, together, strict=True):
        alone = convene(cfg, state, PANEL).weights
        np.testing.assert_allclose(weights, alone, atol=1e-3 * np.abs(alone).max())


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_it_lowers_for_accelerators(seen, platform):
    cfg, state = learned(seen)

    def ask(state, obs):
        return committee_policy(cfg, convene(cfg, state, PANEL))(obs)

    exported = jax.export.export(jax.jit(ask), platforms=[platform])(state, jnp.zeros(2))
    assert "callback" not in exported.mlir_module()


def test_what_is_not_a_number_is_no_action(seen):
    cfg, state = learned(seen)
    broken = convene(cfg, state._replace(reward=state.reward.at[3].set(jnp.nan)), PANEL)
    assert int(committee_policy(cfg, broken)(np.zeros(2))[0]) == -1


def test_ties_are_broken_as_the_config_says(seen):
    cfg, _ = learned(seen)
    empty = convene(cfg, kqljax.kql_init(cfg, 2, capacity=5), PANEL)
    at_random = committee_policy(dataclasses.replace(cfg, tie_break="random"), empty)
    drawn = {int(at_random(np.zeros(2), jax.random.key(i))[0]) for i in range(20)}
    assert drawn == {0, 1, 2}


def test_it_needs_a_kernel_with_a_width_to_change(seen):
    cfg, state = learned(seen, kernel=kqljax.RBF(eta=0.5))
    with pytest.raises(ValueError, match="made of a TwoScale, or an Afterstate of it, the config's kernel is RBF"):
        convene(cfg, state, PANEL)


def test_it_needs_the_exact_engine():
    cfg = kqljax.KQLConfig(
        kernel=kqljax.Linear(),
        num_actions=3,
        horizon=5,
        features=kqljax.features.linear(kqljax.Linear(), obs_dim=2, num_actions=3),
    )
    with pytest.raises(ValueError, match="exact engine's pairs: ask kqljax.kql_policy"):
        convene(cfg, kqljax.kql_init(cfg, 2), PANEL)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"scales": ()}, "scales must be positive numbers, one for each member, got \\(\\)"),
        ({"scales": (0.1, -1.0)}, "scales must be positive"),
        ({"gamma": 1.0}, "gamma must be in \\[0, 1\\), got 1.0"),
        ({"sweeps": 0}, "sweeps"),
    ],
)
def test_a_panel_that_cannot_be(seen, change, words):
    cfg, state = learned(seen)
    with pytest.raises(ValueError, match=words):
        convene(cfg, state, PANEL._replace(**change))
