"""The policy of a finished run: against NumPy, with empty slots, under vmap, and what it refuses."""

import dataclasses
import itertools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import kqljax
from kqljax import Afterstate, TwoScale
from kqljax.committee import MOST_HELD, Panel, committee_policy, convene

COUNT, ACTIONS, GAMMA = 30, 3, 0.9
PANEL = Panel(members=2, widest=0.5, ridge=2.0, gamma=0.8, sweeps=150, depth=0, hope=1.0)
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
    return cfg, _replayed(cfg, kqljax.kql_init(cfg, 2, capacity=capacity), jax.tree.map(jnp.asarray, seen))


@jax.jit
def _replayed(cfg, state, seen):
    return jax.lax.scan(lambda state, one: kqljax.kql_step(cfg, state, one), state, seen)[0]


CAP = 1 / (1 - PANEL.gamma)
END = 4.0 * (1 - GAMMA) / (1 - PANEL.gamma)  # the same reward at every step after the end


def agreed(seen, obs):
    """Values `[A]` at one state, from the definition: NumPy, float64, loops over members and actions."""
    after = seen.obs + EFFECT[seen.action]

    def kernel(states, action, scale):
        difference = (states + EFFECT[action])[:, None, :] - after[None, :, :]
        distance = (difference**2 * np.array([1.0, 2.0]) * scale).sum(-1)
        return np.exp(-distance) * np.where(np.asarray(action).reshape(-1, 1) == seen.action, 1.0, np.exp(-2 * 0.05))

    values = []
    for scale in (0.5, 1.5):
        inverse = np.linalg.inv(kernel(seen.obs, seen.action, scale) + 2.0 * 1e-3 * np.eye(COUNT))
        targets = np.zeros(COUNT)
        for _ in range(PANEL.sweeps):
            weights = inverse @ targets
            reached = [kernel(seen.next_obs, np.full(COUNT, action), scale) @ weights for action in range(ACTIONS)]
            best = np.clip(reached, 0, CAP).max(axis=0)
            targets = seen.reward + PANEL.gamma * np.where(seen.terminated, END, best)
        weights = inverse @ targets
        at = [kernel(obs[None], np.array([action]), scale)[0] @ weights for action in range(ACTIONS)]
        values.append(np.clip(at, 0, CAP))
    return np.mean(values, axis=0)


def foreseen(seen, obs, action):
    """Next state, reward and share of an end, from the definition of the model."""

    def kernels(states, actions):
        distance = ((states[:, None, :] - seen.obs) ** 2 * np.array([1.0, 2.0])).sum(-1)
        same = np.where(np.asarray(actions)[:, None] == seen.action, 1.0, 0.9)
        return (0.99 * np.exp(-distance) + 0.01 * np.exp(-27 * distance)) * same, np.exp(-3 * distance) * same

    outcome = np.column_stack([seen.next_obs - seen.obs, seen.reward])
    of_pairs, of_ends = kernels(seen.obs, seen.action)
    here, here_ends = kernels(obs[None], [action])
    mean = outcome.mean(axis=0)
    found = mean + here @ np.linalg.solve(of_pairs + 1e-4 * np.eye(COUNT), outcome - mean)
    ends = here_ends @ np.linalg.solve(of_ends + 1e-2 * np.eye(COUNT), seen.terminated.astype(float))
    return obs + found[0, :2], np.clip(found[0, 2], 0, 1), np.clip(2 * ends[0] - 0.5, 0, 1)


def planned(seen, obs, depth, held):
    """What each first action `[A]` is worth with the best plan that begins with it: every plan, one after the other."""
    worth = np.full(ACTIONS, -np.inf)
    for plan in itertools.product(range(ACTIONS), repeat=depth):
        place, gained, goes_on = obs, 0.0, 1.0
        for action in np.repeat(plan, held):
            place, reward, ends = foreseen(seen, place, action)
            gained += goes_on * (reward + PANEL.gamma * ends * END)
            goes_on *= PANEL.gamma * (1 - ends)
        worth[plan[0]] = max(worth[plan[0]], gained + goes_on * agreed(seen, place).max())
    return worth


@pytest.fixture(scope="module")
def seen():
    return transitions()


meet = jax.jit(convene, static_argnames="panel")
ask = jax.jit(
    lambda cfg, state, committee, panel, obs, key=None: committee_policy(cfg, state, committee, panel)(obs, key),
    static_argnames="panel",
)


def decide(cfg, state, panel, obs, key=None):
    """Action and values at one state, all anew."""
    return ask(cfg, state, meet(cfg, state, panel), panel, obs, key)


def test_values_are_those_of_numpy(seen):
    cfg, state = learned(seen)
    committee = meet(cfg, state, PANEL)
    for obs in np.random.default_rng(1).uniform(-1, 1, (6, 2)):
        action, value = ask(cfg, state, committee, PANEL, obs)
        wanted = agreed(seen, obs)
        np.testing.assert_allclose(value, wanted, atol=2e-4)  # backups are in float32
        assert wanted[int(action)] == pytest.approx(wanted.max(), abs=2e-4)


def test_a_goal_that_is_rewarded_once_is_worth_going_to():
    """A corridor: left and right from each of 40 places, 1 for reaching its end, 0 for all else. What the backups began with
    must not outweigh it."""
    places, step = np.repeat(np.linspace(-1.0, 0.95, 40), 2), 0.05
    action = np.tile([0, 1], 40)
    reached = np.clip(places + np.where(action == 1, step, -step), -1.0, 1.0)
    is_goal = reached > 1.0 - step / 2
    obs, next_obs = (np.stack([each, np.zeros(80)], axis=1) for each in (places, reached))
    seen = kqljax.Transition(obs, action, is_goal.astype(float), next_obs, is_goal)
    effect = np.array([[-step, 0.0], [step, 0.0]])
    kernel = Afterstate(TwoScale(eta=np.array([100.0, 1.0]), eta_action=0.05), effect=effect)
    cfg, state = learned(seen, capacity=80, kernel=kernel, num_actions=2, terminal_value=0.0)
    panel = Panel(members=1, widest=1.0, depth=0, hope=1.0)
    committee = meet(cfg, state, panel)
    for at in (-0.9, -0.3, 0.4, 0.9):
        chosen, value = ask(cfg, state, committee, panel, np.array([at, 0.0]))
        assert int(chosen) == 1
        assert float(value[1]) == pytest.approx(panel.gamma ** (round((1.0 - at) / step) - 1), abs=0.1)


def test_empty_slots_do_not_count(seen):
    cfg, state = learned(seen)
    roomy_cfg, roomy = learned(seen, capacity=COUNT + 7)
    obs = np.array([0.2, -0.4])
    panel = PANEL._replace(depth=1)
    value = decide(cfg, state, panel, obs)[1]
    committee = meet(roomy_cfg, roomy, panel)
    np.testing.assert_array_equal(committee.weights[:, COUNT:], 0.0)
    np.testing.assert_array_equal(committee.model.weights[COUNT:], 0.0)
    np.testing.assert_allclose(ask(roomy_cfg, roomy, committee, panel, obs)[1], value, atol=1e-4)


def test_a_state_that_has_seen_nothing():
    cfg, _ = learned(transitions())
    state = kqljax.kql_init(cfg, 2, capacity=5)
    committee = meet(cfg, state, PANEL)
    action, value = ask(cfg, state, committee, PANEL, np.zeros(2))
    assert int(action) == 0
    np.testing.assert_array_equal(value, 0.0)
    assert 1 <= int(committee.held) <= MOST_HELD


@pytest.mark.parametrize("depth", [1, 2])
def test_plans_are_those_of_numpy(seen, depth):
    cfg, state = learned(seen)
    panel = PANEL._replace(depth=depth)
    committee = meet(cfg, state, panel)._replace(held=jnp.int32(3))
    for obs in np.random.default_rng(1).uniform(-1, 1, (3, 2)):
        action, value = ask(cfg, state, committee, panel, obs)
        wanted = planned(seen, obs, depth, held=3)
        np.testing.assert_allclose(value, wanted, atol=1e-3)
        assert wanted[int(action)] == pytest.approx(wanted.max(), abs=1e-3)


def test_an_action_is_held_for_half_a_width(seen):
    """Steps of 0.2 widths are held twice or three times, tiny ones for no more than the most, large ones once."""
    for step, held in ((0.2, {2, 3}), (1e-3, {MOST_HELD}), (2.0, {1})):
        moved = seen._replace(next_obs=seen.obs + np.array([step, 0.0]))
        assert int(meet(*learned(moved), PANEL).held) in held


def test_where_one_step_goes_far_there_is_no_looking_ahead(seen):
    cfg, state = learned(seen)
    panel = PANEL._replace(depth=2)
    committee = meet(cfg, state, panel)._replace(held=jnp.int32(1))
    obs = np.array([0.3, 0.1])
    _, value = ask(cfg, state, committee, panel, obs)
    np.testing.assert_allclose(value, agreed(seen, obs), atol=2e-4)


def test_hope_is_what_optimism_promises_beyond_the_data(seen):
    """Where it is greater than the panel allows, the policy is the one of learning; otherwise it is not."""
    cfg, state = learned(seen)
    committee = meet(cfg, state, PANEL)
    values = np.array([agreed(seen, place).max() for place in seen.next_obs]) * (1 - PANEL.gamma)
    excess = np.maximum(np.asarray(state.q_tilde).max(axis=1) * (1 - GAMMA) - values, 0)
    assert float(committee.hope) == pytest.approx(excess[~seen.terminated].mean(), abs=1e-4)
    obs, hope = np.array([0.3, 0.1]), float(committee.hope)
    assert 0.02 < hope < 0.98
    action, value = ask(cfg, state, committee, PANEL._replace(hope=hope - 0.01), obs)
    wanted, q_tilde = kqljax.kql_act(cfg, state, obs)
    assert int(action) == int(wanted)
    np.testing.assert_allclose(value, q_tilde * (1 - GAMMA) / (1 - PANEL.gamma), rtol=1e-5)
    _, value = ask(cfg, state, committee, PANEL._replace(hope=hope + 0.01), obs)
    np.testing.assert_allclose(value, agreed(seen, obs), atol=2e-4)


def test_a_vmap_is_one_after_the_other(seen):
    states = [learned(each)[1] for each in (seen, transitions(1))]
    cfg, _ = learned(seen)
    together = jax.jit(jax.vmap(lambda state: convene(cfg, state, PANEL).weights))(
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    )
    for state, weights in zip(states, together, strict=True):
        alone = meet(cfg, state, PANEL).weights
        np.testing.assert_allclose(weights, alone, atol=1e-3 * np.abs(alone).max())


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_it_lowers_for_accelerators(seen, platform):
    cfg, state = learned(seen)

    program = jax.jit(lambda state, obs: decide(cfg, state, PANEL._replace(depth=2), obs))
    exported = jax.export.export(program, platforms=[platform])(state, jnp.zeros(2))
    assert "callback" not in exported.mlir_module()


def test_what_is_not_a_number_is_no_action(seen):
    cfg, state = learned(seen)
    broken = state._replace(reward=state.reward.at[3].set(jnp.nan))
    for depth in (0, 1):
        assert int(decide(cfg, broken, PANEL._replace(depth=depth), np.zeros(2))[0]) == -1


def test_ties_are_broken_as_the_config_says(seen):
    cfg, _ = learned(seen)
    at_random, empty = dataclasses.replace(cfg, tie_break="random"), kqljax.kql_init(cfg, 2, capacity=5)
    drawn = {int(decide(at_random, empty, PANEL, np.zeros(2), jax.random.key(i))[0]) for i in range(20)}
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
        ({"members": 0}, "members"),
        ({"widest": 0.0}, "widest must be a positive number, got 0.0"),
        ({"ridge": float("nan")}, "ridge must be a positive number, got nan"),
        ({"depth": -1}, "depth"),
        ({"hope": 1.5}, "hope must be in \\[0, 1\\], a share of the range of values, got 1.5"),
        ({"gamma": 1.0}, "gamma must be in \\[0, 1\\), got 1.0"),
        ({"sweeps": 0}, "sweeps"),
    ],
)
def test_a_panel_that_cannot_be(seen, change, words):
    cfg, state = learned(seen)
    with pytest.raises(ValueError, match=words):
        convene(cfg, state, PANEL._replace(**change))
