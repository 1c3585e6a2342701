"""MDPs with known values, the regret measured on them, and whether the paper's lemma on optimism holds there."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kqljax
from kqljax import theory
from kqljax.baselines import q_learning

MDPS = [
    theory.chain(5),
    theory.grid(3, 2),
    theory.tree(3),
    theory.random_deterministic(0),
    theory.random_linear_mdp(0),
    theory.random_linear_mdp(1, stochastic=False),
]


def value_iteration(mdp, gamma):
    q = np.zeros(mdp.reward.shape)
    for _ in range(2000):
        q = mdp.reward + gamma * mdp.transition @ q.max(axis=1)
    return q


@pytest.mark.parametrize("mdp", MDPS, ids=lambda mdp: mdp.name)
@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.95])
def test_policy_iteration_agrees_with_value_iteration(mdp, gamma):
    found = jax.jit(theory.solve_tabular)(mdp.transition, mdp.reward, gamma)
    np.testing.assert_allclose(found.q, value_iteration(mdp, gamma), atol=1e-9)
    np.testing.assert_allclose(found.v, found.q.max(axis=1))
    np.testing.assert_allclose(found.q[np.arange(mdp.num_states), found.policy], found.v, atol=1e-9)


@pytest.mark.parametrize("mdp", MDPS, ids=lambda mdp: mdp.name)
def test_the_task_is_the_mdp(mdp):
    """Frequencies of successors, rewards and the kernel's norm on every pair."""
    task, kernel = mdp.task(), mdp.kernel()
    pairs = [(s, a) for s in range(mdp.num_states) for a in range(mdp.num_actions)][:12]

    @jax.jit
    @jax.vmap
    def draw(key, state, action):
        step = task.step(key, state, action)
        return jnp.argmax(step.next_obs), step.reward, step.terminated | step.truncated

    for s, a in pairs:
        keys = jax.random.split(jax.random.key(s), 2000)
        after, reward, is_over = draw(keys, jnp.full(2000, s), jnp.full(2000, a))
        frequency = np.bincount(after, minlength=mdp.num_states) / 2000
        np.testing.assert_allclose(frequency, mdp.transition[s, a], atol=0.06)
        assert np.all(frequency[mdp.transition[s, a] == 0] == 0)
        np.testing.assert_allclose(reward, mdp.reward[s, a], rtol=1e-6)
        assert not np.any(is_over)
    every = kqljax.Pair(
        jnp.repeat(jnp.eye(mdp.num_states), mdp.num_actions, 0), jnp.tile(jnp.eye(mdp.num_actions), (mdp.num_states, 1))
    )
    norms = np.sqrt(np.diag(kernel.matrix(every, every)))
    assert norms.min() >= 0.5 - 1e-9 and norms.max() <= 1 + 1e-9


def test_rho_bounds_the_norms():
    """The least-norm reward and, over many bounded functions, their expectation have norm at most rho in the RKHS."""
    for mdp in MDPS:
        phi = np.eye(mdp.reward.size) if mdp.phi is None else mdp.phi.reshape(mdp.reward.size, -1)
        rng = np.random.default_rng(0)
        functions = [np.ones(mdp.num_states), *rng.choice([-1.0, 1.0], (50, mdp.num_states))]
        targets = [mdp.reward.ravel(), *((mdp.transition @ f).ravel() for f in functions)]
        for target in targets:
            weights, *_ = np.linalg.lstsq(phi, target, rcond=None)
            np.testing.assert_allclose(phi @ weights, target, atol=1e-9)
            assert np.linalg.norm(weights) <= mdp.rho + 1e-9
        assert mdp.sigma == 0 or mdp.phi is not None


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: theory.chain(1), "length must be at least 2"),
        (lambda: theory.chain(4, small=2.0), "small must be in"),
        (lambda: theory.solve_tabular(np.ones((2, 2, 2)), np.ones((2, 2)), 0.9), "probability distribution"),
        (lambda: theory.solve_tabular(np.ones((2, 2)), np.ones((2, 2)), 0.9), r"transition must be \[S, A, S\]"),
        (lambda: theory.solve_tabular(theory.chain(3).transition, theory.chain(3).reward, 1.0), "gamma must be in"),
        (lambda: theory.solve_tabular(theory.chain(3).transition, np.full((3, 2), np.nan), 0.9), "reward must be finite"),
    ],
)
def test_wrong_mdps(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Regret ---------------------------------------------------------------------------------------------------------------


def test_regret_of_the_optimal_and_of_the_worst_policy():
    """Always right on the chain has no regret; always left pays 0.05 for ever."""
    mdp, gamma, steps = theory.chain(4), 0.8, 200
    best = np.asarray(theory.solve_tabular(mdp.transition, mdp.reward, gamma).v)
    right = np.minimum(np.arange(steps), 3)
    regret = theory.measured_regret(best[right], (right == 3) * 1.0, gamma)
    # Only the unseen rest tells: lower counts it as 1 each, which is what the optimal policy gets.
    np.testing.assert_allclose(regret.lower, 0, atol=1e-9)
    assert 0 < regret.upper[-1] <= gamma / (1 - gamma) + 1e-9
    assert regret.upper[-60] < 1e-5
    stay = theory.measured_regret(np.full(steps, best[0]), np.full(steps, 0.05), gamma)
    expected = (1 - gamma) * (best[0] - 0.05 / (1 - gamma)) * np.arange(1, steps + 1)
    np.testing.assert_allclose(stay.upper[:100], expected[:100], rtol=1e-6)
    assert theory.growth_exponent(np.arange(50, 100), stay.upper[50:100]) == pytest.approx(1.0, abs=0.05)
    with pytest.raises(ValueError, match=r"must both be \[N\]"):
        theory.measured_regret(best, np.zeros(3), gamma)


def test_kql_explores_the_chain_and_q_learning_does_not():
    mdp, gamma, steps = theory.chain(8), 0.9, 400
    task, best = mdp.task(), theory.solve_tabular(mdp.transition, mdp.reward, gamma).v
    cfg = kqljax.KQLConfig(kernel=mdp.kernel(), num_actions=2, horizon=steps, gamma=gamma, tie_break="random")
    run = jax.jit(lambda key: kqljax.train(task, cfg, key, stages=1))(jax.random.key(0))
    visited = np.concatenate([[0], np.argmax(run.state.table.obs, axis=1)[:-1]])
    kql = theory.measured_regret(best[visited], run.log.raw_reward, gamma).upper[-1]

    def regret_of_table(cfg, key):
        run = q_learning.train(task, cfg, key, steps)
        return theory.measured_regret(best[run.visited], run.log.raw_reward, gamma).upper[-1]

    regrets = jax.jit(jax.vmap(regret_of_table, in_axes=(None, 0)))
    keys = jax.random.split(jax.random.key(0), 9)
    assert kql < 40 < 100 < np.median(regrets(q_learning.default_config(task, gamma=gamma), keys))
    # An optimistic table explores as well: the environment is not the obstacle.
    keen = q_learning.default_config(task, gamma=gamma, initial_value=10.0, epsilon=0.0)
    assert np.max(regrets(keen, keys)) < 70


def test_q_learning_solves_the_chain_when_it_explores():
    mdp, gamma = theory.chain(4), 0.9
    task, best = mdp.task(max_steps=50), theory.solve_tabular(mdp.transition, mdp.reward, gamma)
    cfg = q_learning.default_config(task, gamma=gamma, epsilon=1.0)
    run = jax.jit(lambda key: q_learning.train(task, cfg, key, 4000))(jax.random.key(0))
    np.testing.assert_allclose(run.state.q, best.q, atol=1e-3)
    assert np.all(q_learning.evaluate(task, cfg, run.state, jax.random.key(1), 3) == 47)


# Optimism -------------------------------------------------------------------------------------------------------------


def watched(mdp, steps, gamma=0.9, share=1.0, seeds=4, **assumed):
    cfg = kqljax.KQLConfig.from_theory(
        mdp.kernel(), obs_dim=mdp.num_states, num_actions=mdp.num_actions, horizon=steps, rho=mdp.rho, gamma=gamma,
        sigma=mdp.sigma, tie_break="random", **assumed,
    )  # fmt: skip
    cfg = dataclasses.replace(cfg, beta=share * cfg.beta)
    run = jax.jit(jax.vmap(lambda key: theory.watch_optimism(mdp, cfg, key)))
    return cfg, run(jax.random.split(jax.random.key(7), seeds))


@pytest.mark.parametrize(
    "mdp, steps, assumed",
    [
        (theory.chain(6), 200, {}),
        (theory.grid(3, 3), 200, {}),
        (theory.random_deterministic(2), 200, {"lam": 1e-2}),
        (theory.random_linear_mdp(3, stochastic=False), 200, {}),
        (theory.random_linear_mdp(0, num_features=2), 450, {"lam": 1.0}),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_optimism_holds_with_the_theorem_s_beta(mdp, steps, assumed):
    """Q* <= Q-tilde_t <= Q* + U_t at every pair and step, over seeds: the paper's U_t too on these MDPs."""
    cfg, seen = watched(mdp, steps, **assumed)
    cap = 2 * np.sqrt(steps + cfg.lam) / (1 - cfg.gamma)
    assert cfg.beta < 0.9 * cap, "at its cap beta is optimistic without any theory"
    tolerance = 1e-7
    assert np.min(seen.above) >= -tolerance
    assert np.min(seen.below) >= -tolerance
    assert np.min(seen.below_as_printed) >= -tolerance


@pytest.mark.parametrize("mdp", [theory.chain(6), theory.random_deterministic(2)], ids=lambda mdp: mdp.name)
def test_a_beta_far_too_small_is_seen(mdp):
    _, seen = watched(mdp, 200, share=1e-3)
    assert np.min(seen.above) < -1.0


def test_the_upper_bound_as_printed_fails_on_a_tree():
    """The paper's induction takes the width of (s, a) for that of its successors. At the root of a tree the difference shows:
    it is visited often while leaves are still unseen, whose promise its value rests on."""
    _, seen = watched(theory.tree(4), 500, lam=1e-5, seeds=2)
    assert np.min(seen.above) >= -1e-7
    assert np.min(seen.below) >= -1e-7
    assert np.min(seen.below_as_printed[..., 0, :]) < -1.0
