"""The weight-space engine against the exact one and the oracle, in float32, and under jit, vmap and donation."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from cases import random_transitions, row
from jax import export
from recordings import TASKS, record
from weight_cases import (
    CAP,
    LAZY,
    RBF,
    act,
    assert_close,
    assert_same,
    config,
    follow,
    jit,
    learn,
    predict_all,
    step,
)

import kqljax
from kqljax import Transition, features, kql_act, kql_grow, kql_init, kql_step, kql_step_and_act
from kqljax.kernels import every_action


class Wanderer:
    """A policy of held random actions."""

    def __init__(self, num_actions):
        self.rng, self.num_actions, self.action = np.random.default_rng(0), num_actions, 0

    def act(self, obs):
        if self.rng.random() < 0.3:
            self.action = int(self.rng.integers(self.num_actions))
        return self.action

    def step(self, *transition):
        pass


@functools.cache
def recorded(task, steps=400):
    recording = record(task, steps, Wanderer(TASKS[task][2]))
    return Transition(*(jnp.asarray(column) for column in recording[:5]))


@functools.cache
def exact_run(task, kernel_name, backups, steps):
    cfg = recorded_config(task, kernel_name, None, backups, steps)
    transitions = jax.tree.map(lambda leaf: leaf[:steps], recorded(task))
    return follow(cfg, kql_init(cfg, transitions.obs.shape[1]), transitions)[1]


def recorded_config(task, kernel_name, made, backups, steps):
    kernel = kqljax.Linear() if kernel_name == "linear" else kqljax.RBF(eta=0.02)
    _, _, num_actions, terminal_value, _ = TASKS[task]
    return kqljax.KQLConfig(
        kernel=kernel, num_actions=num_actions, horizon=steps, terminal_value=terminal_value, backups=backups, features=made
    )


TIGHT = 1e-10
AGAINST_EXACT = [
    ("MountainCar-v0", "taylor", 1, 400, 1e-6),
    ("CartPole-v1", "taylor", 1, 400, 1e-6),
    ("MountainCar-v0", "nystrom", 1, 400, 1e-6),
    ("CartPole-v1", "nystrom", 1, 400, 1e-6),
    ("MountainCar-v0", "taylor", 3, 100, 1e-6),
    ("CartPole-v1", "linear", 1, 400, 1e-9),
]


@pytest.mark.parametrize("task, name, backups, steps, atol", AGAINST_EXACT)
def test_engine_agrees_with_the_exact_engine(task, name, backups, steps, atol):
    transitions = jax.tree.map(lambda leaf: leaf[:steps], recorded(task))
    assert bool((transitions.reward > 0).any() | transitions.terminated.any() | (task == "MountainCar-v0"))
    length, num_actions = transitions.obs.shape[1], TASKS[task][2]
    kernel = kqljax.RBF(eta=0.02)
    made = {
        "taylor": lambda: features.taylor(kernel, length, num_actions, TIGHT),
        "nystrom": lambda: features.nystrom(
            kernel, np.concatenate([transitions.obs, transitions.next_obs]), num_actions, TIGHT / 100
        ),
        "linear": lambda: features.linear(kqljax.Linear(), length, num_actions),
    }[name]()
    cfg = recorded_config(task, "linear" if name == "linear" else "rbf", made, backups, steps)
    _, (believed, action, info, tables) = follow(cfg, kql_init(cfg, length), transitions)
    expected, expected_action, _, expected_tables = exact_run(task, "linear" if name == "linear" else "rbf", backups, steps)
    assert_close(believed, expected, atol)
    np.testing.assert_array_equal(action, expected_action)
    # Rows that are not taken yet mean nothing.
    is_taken = (np.arange(steps)[None] <= np.arange(steps)[:, None])[..., None]
    assert_close(*(jax.tree.map(lambda leaf: np.where(is_taken, leaf, 0), each) for each in (tables, expected_tables)), atol)
    assert bool(info.is_stored.all() & info.is_finite.all() & ~info.is_full.any())
    assert float(info.residual.max()) < 1e-7


def test_engine_agrees_with_the_oracle():
    task, steps = "CartPole-v1", 100
    transitions = jax.tree.map(lambda leaf: leaf[:steps], recorded(task))
    made = features.nystrom(kqljax.RBF(eta=0.02), np.concatenate([transitions.obs, transitions.next_obs]), 2, TIGHT / 100)
    cfg = recorded_config(task, "rbf", made, 1, steps)
    reference = oracle.Oracle(oracle.rbf(0.02), 2, cfg.gamma, cfg.lam, cfg.beta, cfg.terminal_value)
    _, (believed, action, _, tables) = follow(cfg, kql_init(cfg, 4), transitions)
    assert int(transitions.terminated.sum()) >= 3
    for i in range(steps):
        obs, *rest = (np.asarray(column[i]) for column in transitions)
        q_hat, width = reference.q_hat_and_width(obs)
        q_tilde = np.clip(q_hat + cfg.beta * width, 0, CAP)
        assert_close([column[i] for column in believed], [q_hat[0], width[0], q_tilde[0]], 1e-6)
        assert int(action[i]) == int(np.argmax(q_tilde[0]))
        reference.step(obs, *rest)
        if i % 30 == 29:
            assert_close([column[i, : i + 1] for column in tables], reference.tables(), 1e-6)


def test_step_and_act_is_step_then_act():
    cfg = config("nystrom", **LAZY["reservoir"])
    transitions = random_transitions(12, seed=3)
    one = two = kql_init(cfg, 2)
    together = jit(kql_step_and_act)
    for i in range(12):
        query = transitions.obs[(i + 5) % 12]
        one, info_one, action_one, q_one = together(cfg, one, row(transitions, i), query)
        two, info_two = step(cfg, two, row(transitions, i))
        action_two, q_two = act(cfg, two, query)
        np.testing.assert_allclose(q_one, q_two, atol=1e-8)
        assert int(action_one) == int(action_two)
        assert_close(info_one, info_two, 1e-8)
    assert_close(one, two, 1e-7)


@pytest.mark.parametrize("engine", ["weights", "exact"])
def test_a_policy_acts_as_its_state_does(engine):
    cfg = config("nystrom") if engine == "weights" else kqljax.KQLConfig(kernel=RBF, num_actions=3, horizon=12)
    transitions = random_transitions(12, seed=4)
    state = kql_init(cfg, 2)
    for i in range(8):
        state, _ = step(cfg, state, row(transitions, i))
    action, q_tilde = jit(jax.vmap(kqljax.kql_policy(cfg, state)))(transitions.obs)
    for i in range(12):
        expected, expected_q = act(cfg, state, transitions.obs[i])
        np.testing.assert_allclose(q_tilde[i], expected_q, atol=1e-9)
        assert int(action[i]) == int(expected)


@pytest.mark.parametrize("options", [{}, {"backups": 2}])
def test_past_capacity_nothing_is_overwritten(options):
    cfg = config("nystrom", **options)
    transitions = random_transitions(14, seed=5)
    state = kql_init(cfg, 2)
    for i in range(14):
        before, (state, info) = state, step(cfg, state, row(transitions, i))
        assert (bool(info.is_full), bool(info.is_stored)) == (i >= 12, i < 12)
    assert_same(state, before)


def test_growing_in_stages_is_the_same_run():
    """Through a first capacity up to a memory that then overflows."""
    cfg = config("grouped", memory=8)
    transitions = random_transitions(12, seed=6)
    whole, _ = learn(cfg, kql_init(cfg, 2), transitions)
    state = kql_init(cfg, 2, capacity=4)
    for i in range(12):
        state = kql_grow(state, 8) if i == 4 else state
        state, info = step(cfg, state, row(transitions, i))
        assert bool(info.is_stored)
    assert_close(state, whole, 1e-8)
    assert int(state.num_stored) == cfg.capacity == state.capacity == 8


# States unlike those that the features were made for -------------------------------------------------------------------

NARROW = kqljax.RBF(eta=20.0)
LEFT, RIGHT = np.linspace(-1.0, -0.2, 9)[:, None], np.linspace(0.3, 1.0, 9)[:, None]
MADE_ON_THE_LEFT = {
    "nystrom": (NARROW, lambda kernel: features.nystrom(kernel, LEFT, 2)),
    "nystrom of a product": (
        kqljax.RBF(eta=5.0) * kqljax.RBF(eta=15.0),
        lambda kernel: features.nystrom(kernel, LEFT, 2),
    ),
    "nystrom of a scaled kernel": (0.5 * NARROW, lambda kernel: features.nystrom(kernel, LEFT, 2)),
    "taylor": (NARROW, lambda kernel: features.taylor(kernel, 1, 2)),
    "taylor of a low order": (NARROW, lambda kernel: features.taylor(kernel, 1, 2, order=12)),
    "fourier": (NARROW, lambda kernel: features.fourier(kernel, 1, 2)),
    "fourier of matern": (kqljax.Matern32(length_scale=0.15), lambda kernel: features.fourier(kernel, 1, 2)),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", MADE_ON_THE_LEFT)
def test_an_unseen_state_is_as_unknown_as_in_the_exact_engine(name, dtype):
    """Nine states on the left, each seen ten times with both actions; the way leads to the right, where nothing was seen."""
    kernel, make = MADE_ON_THE_LEFT[name]
    sizes = {"kernel": kernel, "num_actions": 2, "horizon": 180, "lam": 1e-3}
    exact, cfg = kqljax.KQLConfig(**sizes), kqljax.KQLConfig(**sizes, features=make(kernel))
    seen = Transition(
        obs=jnp.asarray(np.tile(LEFT, (20, 1))),
        action=jnp.repeat(jnp.arange(2, dtype=jnp.int32), 90),
        reward=jnp.full(180, 0.5),
        next_obs=jnp.asarray(np.tile(np.concatenate([LEFT, RIGHT]), (10, 1))),
        terminated=jnp.zeros(180, bool),
    )
    with_kernel, _ = learn(exact, kql_init(exact, 1), seen)
    state, _ = learn(cfg, kql_init(cfg, 1, dtype), seen)
    expected = predict_all(exact, with_kernel, RIGHT)[1]
    np.testing.assert_allclose(expected, np.sqrt(np.full((9, 2), kernel.diag(every_action(jnp.ones(1), 2))) / 1e-3), rtol=0.01)
    np.testing.assert_allclose(predict_all(cfg, state, RIGHT)[1], expected, rtol=0.1)
    np.testing.assert_allclose(state.width[9:18], expected, rtol=0.1)
    # And what was seen is known: ten visits of a pair, and of its neighbours.
    if "low order" not in name:
        assert float(predict_all(cfg, state, LEFT)[1].max()) < 0.5


@pytest.mark.parametrize("frequencies, share", [(64, 0.45), (256, 0.84), (1000, 0.96)])
def test_fourier_features_run_out(frequencies, share):
    """400 places in the left of a square: the width on the right, in which the features cannot show what they lack."""
    rng = np.random.default_rng(1)
    places = rng.uniform(-1, 1, (400, 2)) * [0.4, 1] - [0.6, 0]
    made = features.fourier(NARROW, 2, 2, frequencies)
    cfg = kqljax.KQLConfig(kernel=NARROW, num_actions=2, horizon=400, lam=1e-3, features=made)
    seen = random_transitions(400, num_actions=2)._replace(obs=jnp.asarray(places))
    state, _ = learn(cfg, kql_init(cfg, 2), seen)
    width = predict_all(cfg, state, rng.uniform([0.4, -1], 1, (50, 2)))[1]
    np.testing.assert_allclose(width.mean(), share / np.sqrt(1e-3), rtol=0.1)


@pytest.mark.parametrize("options", [{}, {"backups": 2}, {"refresh_rows": 20}])
def test_every_width_is_that_of_predict(options):
    """Half of the states lie where the features leave much out: as the next pair, in the table, and as the state to act in."""
    cfg = config("nystrom", horizon=20, **options)
    transitions = jax.tree.map(lambda leaf: 3 * leaf if leaf.ndim == 2 else leaf, random_transitions(20, seed=40))
    state, ((_, believed, _), _, info, _) = follow(cfg, kql_init(cfg, 2), transitions)
    assert float(info.feature_error.max()) > 0.5
    np.testing.assert_allclose(info.width, believed[jnp.arange(20), transitions.action], atol=1e-9)
    q_hat, width = predict_all(cfg, state, transitions.next_obs)
    np.testing.assert_allclose(state.width, width, atol=1e-7)
    expected = np.clip(q_hat + cfg.beta * width, 0, CAP)
    np.testing.assert_allclose(jit(jax.vmap(kqljax.kql_policy(cfg, state)))(transitions.next_obs)[1], expected, atol=1e-8)


# float32 -------------------------------------------------------------------------------------------------------------


def assert_all_float32(tree):
    kinds = {leaf.dtype for leaf in jax.tree.leaves(tree)}
    assert kinds <= {jnp.dtype("float32"), jnp.dtype("int32"), jnp.dtype("bool")}, kinds
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(
    "name, options, stages", [("nystrom", {}, 1), ("nystrom", {"memory": 30, "refresh_rows": 16}, 2)]
)
def test_float32_without_x64(name, options, stages):
    """No float64 anywhere: a float32 process makes maps, steps, acts and trains, at the paper's lam."""
    with jax.enable_x64(False):
        cfg = config(name, horizon=1000, **options)
        state = kql_init(cfg, 2, capacity=30)
        assert state.q_tilde.dtype == jnp.float32
        transition = Transition(np.array([0.1, 0.2]), 1, 0.5, np.array([-0.3, 0.4]), False)
        assert_all_float32(jit(kql_step_and_act)(cfg, state, transition, np.array([0.1, 0.2])))
        # Two stages: the memory grows to its size, then overflows.
        task = kqljax.make_task("MountainCar-v0")
        run = jit(lambda key: kqljax.train(task, cfg, key, 100, stages=stages))(jax.random.key(0))
        assert_all_float32(run)
        assert bool(run.log.info.is_stored.all() & run.log.info.is_finite.all())
        assert int(run.state.num_stored) == run.state.capacity


def test_float32_agrees_with_float64():
    cfg = config("grouped", horizon=1000)
    transitions = random_transitions(150, seed=9)
    wide, (believed, *_) = follow(cfg, kql_init(cfg, 2, capacity=150), transitions)
    narrow, (nearly, _, info, _) = follow(cfg, kql_init(cfg, 2, jnp.float32, capacity=150), transitions)
    assert bool(info.is_finite.all()) and narrow.q_tilde.dtype == jnp.float32
    assert_close(nearly, believed, 0.02)
    # What the features leave out is a difference of numbers near 1.
    rounding = 4 * float(jnp.finfo("float32").eps) / cfg.lam
    np.testing.assert_allclose(narrow.width**2, wide.width**2, rtol=0.02, atol=rounding)
    assert float(info.residual.max()) < 0.01


# JAX manners ---------------------------------------------------------------------------------------------------------


def test_one_compile_for_a_run_and_for_every_number():
    chex.clear_trace_counter()
    traced = jit(chex.assert_max_traces(kql_step, n=1))

    def of(eta):
        kernel = kqljax.RBF(eta=eta)
        return {"kernel": kernel, "features": features.taylor(kernel, 2, 3, order=4)}

    for cfg in (
        config(**of(0.5)),
        config(**of(0.02)),
        config(**of(0.5), gamma=0.9),
        config(**of(0.5), lam=0.3, beta=2.0),
        config(**of(0.5), terminal_value=3.0),
    ):
        state = kql_init(cfg, 2)
        for i in range(3):
            state, _ = traced(cfg, state, row(random_transitions(3), i))
    assert int(state.num_stored) == 3


def strong(leaf):
    return jnp.asarray(leaf, jnp.float64) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf


@pytest.mark.parametrize("options", LAZY)
def test_dtypes_are_kept(options):
    """A config of strong float64 numbers does not promote a float32 state: seen in the shapes, without a compile."""
    dtype = "float32"
    cfg = jax.tree.map(strong, config("nystrom", **LAZY[options]))
    state = kql_init(cfg, 2, dtype)
    kinds = jax.tree.map(lambda leaf: leaf.dtype, state)
    after, info, action, q_tilde = jax.eval_shape(kql_step_and_act, cfg, state, row(random_transitions(1), 0), jnp.zeros(2))
    assert jax.tree.map(lambda leaf: leaf.dtype, after) == kinds
    assert (after.q_tilde.dtype, action.dtype, q_tilde.dtype) == (dtype, jnp.int32, dtype)
    assert {info.residual.dtype, info.width.dtype, info.feature_error.dtype} == {jnp.dtype(dtype)}
    # No weak types in a state, new or later: they would cost a second trace.
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((state, after)))


def run(cfg, seeds):
    def body(state, seed):
        obs, next_obs = jax.random.uniform(jax.random.key(seed), (2, 2), minval=-1, maxval=1)
        action, _ = kql_act(cfg, state, obs)
        return kql_step(cfg, state, Transition(obs, action, jnp.abs(obs[0]), next_obs, seed % 3 == 0))

    return jax.lax.scan(body, kql_init(cfg, 2), seeds)


def test_a_vmapped_seed_is_the_seed_alone():
    cfg = config("nystrom", memory=5, eviction="reservoir", refresh_rows=3)
    seeds = jnp.arange(24).reshape(2, 12)
    together, _ = jit(jax.vmap(run, in_axes=(None, 0)))(cfg, seeds)
    assert_close(row(together, 1), jit(run)(cfg, seeds[1])[0], 1e-8)
    assert not np.allclose(together.q_tilde[0], together.q_tilde[1])


def test_the_width_of_the_kernel_can_be_vmapped():
    def of(eta):
        kernel = kqljax.RBF(eta=eta)
        made = features.taylor(kernel, 2, 3, order=4)
        return run(kqljax.KQLConfig(kernel=kernel, num_actions=3, horizon=8, features=made, lam=0.1), jnp.arange(8))[0].q_tilde

    etas = (0.1, 0.6)
    together = jit(jax.vmap(of))(jnp.array(etas))
    np.testing.assert_allclose(together[1], jit(lambda: of(etas[1]))(), atol=1e-8)
    assert not np.allclose(*together)


def test_a_donated_step_in_a_python_loop():
    cfg = config("nystrom", **LAZY["reservoir"])
    donated = jit(kql_step, donate_argnames="state")
    transitions = random_transitions(8, seed=30)
    state, kept = kql_init(cfg, 2), kql_init(cfg, 2)
    for i in range(8):
        before = state
        state, info = donated(cfg, state, row(transitions, i))
        assert bool(info.is_stored)
        assert before.posterior.root.is_deleted() and before.q_tilde.is_deleted()
        kept, _ = step(cfg, kept, row(transitions, i))
    assert_close(state, kept, 1e-12)


@pytest.mark.parametrize(
    "name, lazy", [*(("grouped", lazy) for lazy in LAZY), ("nystrom", "default"), ("nystrom", "reservoir")]
)
def test_lowers_for_every_platform(name, lazy):
    cfg = config(name, **LAZY[lazy])
    transition = row(random_transitions(1), 0)
    assert_lowers(kql_step, cfg, kql_init(cfg, 2), transition)
    states = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), kql_init(cfg, 2, "float32"))
    assert_lowers(jax.vmap(kql_step_and_act, in_axes=(None, 0, None, None)), cfg, states, transition, jnp.zeros(2))


@pytest.mark.parametrize("name, lazy", [("grouped", "default"), ("nystrom", "reservoir")])
def test_training_lowers_for_every_platform(name, lazy):
    cfg, task = config(name, **LAZY[lazy]), kqljax.make_task("MountainCar-v0")
    assert_lowers(lambda cfg, seed: kqljax.train(task, cfg, jax.random.key(seed), stages=1).log.action, cfg, 0)


def assert_lowers(function, *arguments):
    exported = export.export(jax.jit(function), platforms=("cpu", "cuda", "tpu"))(*arguments)
    assert exported.platforms == ("cpu", "cuda", "tpu")
    assert "callback" not in exported.mlir_module()
