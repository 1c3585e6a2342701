"""Baselines: DQN against a NumPy gradient, KOVI against a NumPy loop, both on probes with known answers."""

import collections
import dataclasses
import functools
import importlib.util
import itertools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kqljax.baselines import dqn, kovi, random
from kqljax.kernels import RBF, Pair
from kqljax.tasks import Task, make_task

KEY = jax.random.key(0)


class Probe:
    """The observation is -1 or 1 and the right action is its sign; with `clock`, it is the parity of the step. It pays 1.

    Episodes last `length` steps; with `ends` the end is the task's own, else a time limit.
    """

    name = "Probe"

    def __init__(self, length):
        self.length = length

    def _draw(self, key, params):
        return jnp.where(params["clock"] | jax.random.bernoulli(key), 1.0, -1.0)[None]

    def reset(self, key, params):
        obs = self._draw(key, params)
        return obs, {"obs": obs, "time": jnp.zeros((), jnp.int32)}

    def step(self, key, state, action, params):
        right = jnp.where(params["clock"], state["time"] % 2 == 1, state["obs"][0] > 0)
        reward = (action == right).astype(jnp.zeros(()).dtype)
        next_key, reset_key = jax.random.split(key)
        next_obs, time = self._draw(next_key, params), state["time"] + 1
        is_over = time >= self.length
        obs = jnp.where(is_over, self._draw(reset_key, params), next_obs)
        after = {"obs": obs, "time": jnp.where(is_over, 0, time)}
        info = {"final_observation": next_obs}
        return obs, after, reward, is_over & params["ends"], is_over & ~params["ends"], info

    def observation_space(self, params):
        return SimpleNamespace(low=-1.0, high=1.0, shape=(1,))

    def action_space(self, params):
        return SimpleNamespace(n=2)


PROBE_ENVS = {length: Probe(length) for length in (1, 3)}


def probe(length, ends=True, clock=False):
    params = {"ends": jnp.asarray(ends), "clock": jnp.asarray(clock)}
    return Task.wrap(PROBE_ENVS[length], params=params, reward_range=(0.0, 1.0), max_steps=length)


def small_dqn(**changes):
    sizes = {"hidden": (16,), "batch_size": 16, "gradient_steps": 8, "learning_starts": 20, "buffer_size": 100}
    return dqn.DQNConfig(**{"learning_rate": 1e-2, "gamma": 0.5, **sizes, **changes})


def small_kovi(task, **changes):
    return kovi.default_config(task, **{"num_steps": 60, "kernel": RBF(eta=1.0), "max_episodes": 20, **changes})


def short(name, max_steps):
    task = make_task(name)
    return dataclasses.replace(task, params=task.params.replace(max_steps_in_episode=max_steps), max_steps=max_steps)


class Case(NamedTuple):
    """One baseline on the probe; the tests share few sizes, for most of their time goes into compiling."""

    module: Any
    length: int
    num_steps: int
    config: Any
    field: str | None  # a number of the config to vmap over


CASES = {
    "random": Case(random, 3, 60, random.default_config, None),
    "dqn": Case(dqn, 1, 200, lambda task: small_dqn(), "learning_rate"),
    # Room for 20 episodes of 3 steps: the last 3 of 63 steps are not taken.
    "kovi": Case(kovi, 3, 63, small_kovi, "beta"),
    "kovi-pooled": Case(kovi, 3, 60, lambda task: small_kovi(task, pooled=True), "beta"),
}
TRACES = collections.Counter()


@functools.cache
def jitted(module):
    """`train` and `evaluate` of a module as one compiled function."""

    def run(task, cfg, key, num_steps):
        TRACES[module] += 1
        run = module.train(task, cfg, key, num_steps)
        return run, module.evaluate(task, cfg, run.state, key, 20)

    return jax.jit(run, static_argnames="num_steps")


# One interface -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_vmapped_over_seeds_and_numbers_equals_alone(name):
    case = CASES[name]
    task = probe(case.length)
    keys, values = jax.random.split(KEY, 3), jnp.array([1e-3, 0.3, 0.02])

    def run(key, value):
        cfg = case.config(task)
        cfg = dataclasses.replace(cfg, **{case.field: value}) if case.field else cfg
        return jitted(case.module)(task, cfg, key, case.num_steps)

    together, returns = jax.vmap(run)(keys, values)
    alone, its_returns = run(keys[2], 0.02)
    assert returns.shape == (3, 20) and together.log.raw_reward.shape == (3, case.num_steps)
    np.testing.assert_array_equal(together.log.action[2], alone.log.action)
    np.testing.assert_array_equal(returns[2], its_returns)
    assert len({tuple(actions) for actions in np.asarray(together.log.action).tolist()}) == 3
    if name == "dqn":
        # Batched products round otherwise, and 1400 gradient steps carry that far: only the first ones are compared.
        assert float(alone.log.loss[25]) > 0
        np.testing.assert_allclose(together.log.loss[2][:26], alone.log.loss[:26], rtol=1e-3)
        return
    for batched, single in zip(jax.tree.leaves(together.state), jax.tree.leaves(alone.state), strict=True):
        np.testing.assert_allclose(batched[2], single, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "x64", "task_name"),
    [
        ("dqn", True, "Pendulum-v1"),
        ("dqn", True, "Acrobot-v1"),
        ("dqn", True, "CartPole-v1"),
        ("dqn", False, "Pendulum-v1"),
        ("kovi", True, "MountainCar-v0"),
        ("kovi", False, "MountainCar-v0"),
    ],
)
def test_dtypes(name, x64, task_name):
    case = CASES[name]
    with jax.enable_x64(x64):
        task = make_task(task_name)
        cfg, key = case.config(task), jax.random.key(1)
        run, returns = jax.eval_shape(lambda key: jitted(case.module)(task, cfg, key, 12), key)
    floats = {leaf.dtype for leaf in jax.tree.leaves(run.state) if jnp.issubdtype(leaf.dtype, jnp.floating)}
    assert floats == {np.dtype("float64" if x64 and name == "kovi" else "float32")}
    assert returns.shape == (20,) and run.log.action.shape == (12,)


@pytest.mark.parametrize("name", ["dqn", "kovi"])
def test_numbers_do_not_recompile(name):
    case = CASES[name]
    task = probe(case.length)
    base = case.config(task)
    if name == "dqn":
        changed = dataclasses.replace(base, learning_rate=0.1, gamma=0.9, exploration_fraction=0.5)
    else:
        changed = dataclasses.replace(base, kernel=RBF(eta=0.5), lam=0.3, beta=0.1)
    (first, _), before = jitted(case.module)(task, base, KEY, case.num_steps), TRACES[case.module]
    second, _ = jitted(case.module)(task, changed, KEY, case.num_steps)
    assert TRACES[case.module] == before > 0
    weights = [jax.tree.leaves(run.state.params if name == "dqn" else run.state.plan.weights)[0] for run in (first, second)]
    assert not np.allclose(*weights)


# Random --------------------------------------------------------------------------------------------------------------


def test_random_policy_on_cart_pole():
    task, cfg = make_task("CartPole-v0"), random.RandomConfig()
    state = random.RandomState(jnp.zeros((), jnp.int32))
    returns = jax.jit(lambda key: random.evaluate(task, cfg, state, key, 2000))(KEY)
    assert 20.5 < float(returns.mean()) < 23.5 and float(returns.min()) >= 8


def test_random_policy_is_uniform():
    run, _ = jax.vmap(lambda key: jitted(random)(probe(3), random.RandomConfig(), key, 60))(jax.random.split(KEY, 3))
    assert abs(float(run.log.action.mean()) - 0.5) < 0.15
    np.testing.assert_allclose(run.log.episode_return[:, 2::3], run.log.raw_reward.reshape(3, -1, 3).sum(-1))


# DQN -----------------------------------------------------------------------------------------------------------------


def numpy_step(layers, moments, count, row, target, cfg):
    """One step of clipped Adam on the smooth L1 loss of a batch of copies of one transition, in float64."""
    obs, action = row
    inputs, x = [], obs
    for index, (weight, bias) in enumerate(layers):
        inputs.append(x)
        x = x @ weight + bias
        x = np.maximum(x, 0) if index < len(layers) - 1 else x
    back = np.zeros_like(x)
    back[action] = np.clip(x[action] - target, -1, 1)
    gradient = []
    for index in reversed(range(len(layers))):
        gradient[:0] = [np.outer(inputs[index], back), back]
        back = (layers[index][0] @ back) * (inputs[index] > 0)
    norm = np.sqrt(sum((part**2).sum() for part in gradient))
    gradient = [part * min(1.0, cfg.max_grad_norm / norm) for part in gradient]
    flat = [part for layer in layers for part in layer]
    for i, part in enumerate(gradient):
        moments[i] = (0.9 * moments[i][0] + 0.1 * part, 0.999 * moments[i][1] + 0.001 * part**2)
        first, second = moments[i][0] / (1 - 0.9**count), moments[i][1] / (1 - 0.999**count)
        flat[i] = flat[i] - cfg.learning_rate * first / (np.sqrt(second) + 1e-8)
    return list(zip(flat[::2], flat[1::2], strict=True)), norm


def numpy_forward(layers, x):
    for index, (weight, bias) in enumerate(layers):
        x = x @ weight + bias
        x = np.maximum(x, 0) if index < len(layers) - 1 else x
    return x


def as_numpy(params):
    layers = [params["params"][f"Dense_{i}"] for i in range(len(params["params"]))]
    return [tuple(np.asarray(layer[name], np.float64) for name in ("kernel", "bias")) for layer in layers]


LEARN = jax.jit(dqn.learn, static_argnames="net")


def learn_cfg(**changes):
    return small_dqn(**{"hidden": (7, 5), "batch_size": 64, "gradient_steps": 4, "gamma": 0.9, **changes})


@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("max_grad_norm", [0.05, 10.0])
def test_update_against_numpy(terminated, max_grad_norm):
    task, cfg = make_task("CartPole-v0"), learn_cfg(max_grad_norm=max_grad_norm)
    state = dqn.init(task, cfg, KEY, 10)
    net = dqn.network(task, cfg)
    other = net.init(jax.random.key(5), jnp.zeros(4, jnp.float32))
    obs, next_obs = np.array([0.5, -1.0, 0.2, 2.0]), np.array([-0.3, 0.8, 1.5, -0.7])
    row = dqn.Replay(*(jnp.asarray(x) for x in (obs, 1, 0.7, next_obs, terminated)))
    # One stored transition: every batch is made of copies of it, whatever is drawn.
    replay = jax.tree.map(lambda all, one: all.at[0].set(one.astype(all.dtype)), state.replay, row)
    state = state._replace(replay=replay, target_params=other)
    learned, loss = LEARN(net, cfg, state, 1, KEY)

    target = 0.7 + (0.0 if terminated else 0.9 * numpy_forward(as_numpy(other), next_obs).max())
    layers, moments, norms, losses = as_numpy(state.params), [(0.0, 0.0)] * 6, [], []
    for count in range(1, 5):
        error = abs(numpy_forward(layers, obs)[1] - target)
        losses.append(0.5 * error**2 if error < 1 else error - 0.5)
        layers, norm = numpy_step(layers, moments, count, (obs, 1), target, cfg)
        norms.append(norm)
    assert (min(norms) > max_grad_norm) == (max_grad_norm == 0.05)  # one case clips, the other does not
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-5)
    for (weight, bias), (its_weight, its_bias) in zip(layers, as_numpy(learned.params), strict=True):
        np.testing.assert_allclose(its_weight, weight, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(its_bias, bias, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(learned.target_params["params"]["Dense_0"]["bias"], other["params"]["Dense_0"]["bias"])


def test_targets_of_small_and_large_replays_agree():
    # A replay larger than all batches together (256) is asked about the drawn transitions only.
    task, cfg, rng = make_task("CartPole-v0"), learn_cfg(), np.random.default_rng(0)
    rows = dqn.Replay(
        rng.normal(size=(7, 4)), rng.integers(0, 2, 7), rng.normal(size=7), rng.normal(size=(7, 4)), rng.random(7) < 0.5
    )
    losses = []
    for capacity in (10, 300):
        state = dqn.init(task, cfg, KEY, capacity)
        replay = jax.tree.map(lambda all, some: all.at[:7].set(some.astype(all.dtype)), state.replay, rows)
        losses.append(LEARN(dqn.network(task, cfg), cfg, state._replace(replay=replay), 7, KEY)[1])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


def test_batches_are_drawn_from_what_is_stored():
    task, cfg = make_task("CartPole-v0"), learn_cfg()
    state = dqn.init(task, cfg, KEY, 10)
    state = state._replace(replay=state.replay._replace(reward=state.replay.reward.at[6:].set(jnp.nan)))
    assert bool(jnp.isfinite(LEARN(dqn.network(task, cfg), cfg, state, 6, KEY)[1]))
    assert not bool(jnp.isfinite(LEARN(dqn.network(task, cfg), cfg, state, 7, KEY)[1]))


def test_epsilon_schedule():
    cfg = dqn.DQNConfig(epsilon_start=1.0, epsilon_end=0.04, exploration_fraction=0.16)
    found = [float(dqn.epsilon(cfg, step, 1000)) for step in (0, 40, 80, 160, 161, 999)]
    np.testing.assert_allclose(found, [1.0, 0.76, 0.52, 0.04, 0.04, 0.04], atol=1e-6)


def test_initial_weights_are_torch_like():
    task = make_task("Acrobot-v1")
    state = dqn.init(task, dqn.paper_config("Acrobot-v1"), KEY, 1)
    for weight, bias in as_numpy(state.params):
        bound = weight.shape[0] ** -0.5
        assert 0.98 * bound < np.abs(weight).max() <= bound
        assert np.abs(weight).std() > 0.25 * bound and np.abs(weight.mean()) < 0.1 * bound
        assert 0 < np.abs(bias).max() <= bound


def test_learning_starts_and_target_network():
    def run(**changes):
        return jax.jit(lambda key: dqn.train(probe(1), small_dqn(learning_starts=12, **changes), key, 20))(KEY)

    def distance(first, second):
        pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
        return max(float(jnp.abs(a - b).max()) for a, b in pairs)

    learned = run(target_update_interval=21)
    # With t counted from 0 the first updates come after step 12: Stable-Baselines3 asks num_timesteps > learning_starts.
    np.testing.assert_array_equal(np.asarray(learned.log.loss) > 0, np.arange(20) >= 12)
    initial = learned.state.target_params  # never copied
    assert distance(learned.state.params, initial) > 0
    # The copy of the last step comes before its gradient steps.
    copied = run(target_update_interval=20).state
    assert distance(copied.target_params, initial) > 0 and distance(copied.target_params, copied.params) > 0


def test_replay_holds_raw_transitions_and_wraps():
    task, cfg = short("MountainCar-v0", 7), small_dqn(buffer_size=10)
    run = jax.jit(lambda key: dqn.train(task, cfg, key, 24))(KEY)
    replay = jax.tree.map(np.asarray, run.state.replay)
    assert replay.obs.shape == (10, 2) and np.all(replay.reward == -1) and not replay.terminated.any()
    # Step 21 began an episode and lies in slot 1; the raw start is in [-0.6, -0.4], at rest.
    assert -0.6 <= replay.obs[1, 0] <= -0.4 and replay.obs[1, 1] == 0
    np.testing.assert_array_equal(replay.next_obs[1], replay.obs[2])
    # Step 20 reached the time limit; its successor is where the car was, not where the next episode begins.
    assert replay.next_obs[0, 1] != 0 and np.abs(replay.next_obs[0, 0] - replay.obs[0, 0]) < 0.07
    np.testing.assert_array_equal(replay.action[[1, 2, 3]], np.asarray(run.log.action)[21:])


@pytest.mark.parametrize(("ends", "right", "wrong"), [(True, 1.0, 0.0), (False, 2.0, 1.0)])
def test_dqn_learns_the_probe(ends, right, wrong):
    task, cfg = probe(1, ends=ends), small_dqn()
    run, returns = jitted(dqn)(task, cfg, KEY, 200)
    values = dqn.network(task, cfg).apply(run.state.params, jnp.array([[-1.0], [1.0]], jnp.float32))
    # A time limit is bootstrapped through, for ever: 1 / (1 - 0.5). An end is not.
    np.testing.assert_allclose(values, [[right, wrong], [wrong, right]], atol=0.1)
    assert np.all(returns == 1)


def test_diverged_network_is_told():
    run, _ = jitted(dqn)(probe(1), small_dqn(max_grad_norm=1e-3, learning_rate=1e38), KEY, 200)
    assert not bool(run.log.is_finite[-1]) and set(np.asarray(run.log.action)) == {0, 1}


# KOVI ----------------------------------------------------------------------------------------------------------------


def numpy_kovi(episodes, length, eta, lam, beta, end_reward, num_actions, pooled):
    """Q_h as functions of (obs, action), by loops over steps; `episodes` holds lists of transitions."""

    def kernel(x, y):
        return np.exp(-eta * (((x[0] - y[0]) ** 2).sum() + 2.0 * (x[1] != y[1])))

    functions = {length: lambda obs, action: 0.0}
    for h in reversed(range(length)):
        data = [row for episode in episodes for step, row in enumerate(episode) if pooled or step == h]
        points = [(obs, action) for obs, action, *_ in data]
        gram = np.array([[kernel(x, y) for y in points] for x in points]).reshape(len(data), len(data))
        inverse = np.linalg.inv(gram + lam * np.eye(len(data)))
        after = functions[h + 1]
        targets = np.array(
            [
                reward + ((length - h - 1) * end_reward if ended else max(after(next_obs, a) for a in range(num_actions)))
                for _, _, reward, next_obs, ended in data
            ]
        )

        def q(obs, action, points=points, inverse=inverse, targets=targets, h=h):
            vector = np.array([kernel((obs, action), x) for x in points])
            width = np.sqrt(max(1 - vector @ inverse @ vector, 0) / lam)
            return float(np.clip(vector @ inverse @ targets + beta * width, 0, length - h))

        functions[h] = q
    return functions


def episodes_of(run):
    """The transitions of a run of KOVI, episode by episode, from data that are not pooled."""
    data = jax.tree.map(np.asarray, run.state.data)
    length, room = data.is_stored.shape
    return [
        [
            (data.pairs.obs[h, e], int(data.pairs.action[h, e].argmax()), float(data.reward[h, e]),
             data.next_obs[h, e], bool(data.terminated[h, e]))
            for h in range(length) if data.is_stored[h, e]
        ]
        for e in range(room) if data.is_stored[0, e]
    ]  # fmt: skip


LENGTH = 11


@pytest.fixture(scope="module")
def kovi_run():
    # 11 steps: some episodes of CartPole end by themselves, some by the time limit.
    task = short("CartPole-v0", LENGTH)
    cfg = kovi.KOVIConfig(kernel=RBF(eta=0.5), lam=0.03, beta=0.4, tie_break="random", max_episodes=7)
    return cfg, jax.jit(lambda key: kovi.train(task, cfg, key, 50))(KEY)


def test_kovi_run_is_what_it_should_be(kovi_run):
    _, run = kovi_run
    ends = np.flatnonzero(run.log.terminated | run.log.truncated)
    assert bool(run.log.terminated.any()) and bool(run.log.truncated.any()) and bool(run.log.is_taken.all())
    lengths = np.diff([-1, *ends, 49] if ends[-1] != 49 else [-1, *ends])
    assert [len(episode) for episode in episodes_of(run)] == lengths.tolist()
    assert int(run.num_episodes) == len(lengths)
    np.testing.assert_array_equal(run.log.episode_return[ends], np.diff([-1, *ends]))


@pytest.mark.parametrize("end_reward", [0.0, 1.0])
@pytest.mark.parametrize("pooled", [False, True])
def test_kovi_against_numpy(kovi_run, pooled, end_reward):
    cfg, run = kovi_run
    episodes = episodes_of(run)
    cfg = dataclasses.replace(cfg, pooled=pooled)
    data = run.state.data
    if pooled:
        data = jax.tree.map(lambda x: jnp.asarray(x).reshape(1, -1, *x.shape[2:]), data)
    points = np.random.default_rng(0).uniform(-1, 1, (5, 4))

    def values(data, end_reward):
        state = kovi.KOVIState(data, kovi.plan_values(cfg, data, LENGTH, end_reward))
        every_state = jax.vmap(lambda h, obs: kovi.q_values(cfg, state, obs, h), (None, 0))
        return jax.vmap(every_state, (0, None))(jnp.arange(LENGTH), points)

    found = jax.jit(values)(data, end_reward)
    functions = numpy_kovi(episodes, LENGTH, 0.5, 0.03, 0.4, end_reward, 2, pooled)
    expected = [[[functions[h](obs, a) for a in range(2)] for obs in points] for h in range(LENGTH)]
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8)
    assert np.ptp(expected) > 1  # not all at a cap


def test_kovi_acts_on_earlier_episodes_only(kovi_run):
    _, run = kovi_run
    episodes = episodes_of(run)
    gaps = []
    for index, episode in enumerate(episodes):
        functions = numpy_kovi(episodes[:index], LENGTH, 0.5, 0.03, 0.4, 0.0, 2, False)
        for h, (obs, action, *_) in enumerate(episode):
            values = [functions[h](obs, a) for a in range(2)]
            assert values[action] >= max(values) - 1e-9
            gaps.append(np.ptp(values))
    assert np.sum(np.array(gaps) > 1e-3) > 10  # not all were ties


@pytest.mark.parametrize("name", ["kovi", "kovi-pooled"])
def test_kovi_learns_the_probe(name):
    # A time limit: pooled data hold that the state tells everything, and an end after 3 steps it does not tell.
    case = CASES[name]
    task = probe(3, ends=False)
    run, returns = jitted(kovi)(task, case.config(task), KEY, case.num_steps)
    assert np.all(returns == 3) and float(run.log.raw_reward[:15].mean()) < 1


def test_kovi_policy_follows_the_clock():
    # The observation tells nothing: only a policy that knows the step gets all of it.
    task = probe(3, clock=True)
    _, returns = jitted(kovi)(task, small_kovi(task), KEY, 63)
    assert np.all(returns == 3)


def test_kovi_stops_when_there_is_no_room():
    task = probe(3)
    run, _ = jitted(kovi)(task, small_kovi(task), KEY, 63)
    np.testing.assert_array_equal(run.log.is_taken, np.arange(63) < 60)
    assert int(run.num_episodes) == 20


# Errors and parameters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: small_dqn(gamma=1.5).validate(), r"gamma must be in \[0, 1\], got 1.5"),
        (lambda: small_dqn(learning_rate=np.array([0.1, -1.0])).validate(), r"-1.0 at index \(1,\)"),
        (lambda: small_dqn(hidden=[8]).validate(), "hidden must be a tuple"),
        (lambda: small_dqn(batch_size=0).validate(), "batch_size must be at least 1"),
        (lambda: dqn.train(make_task("CartPole-v0"), small_dqn(), KEY, 0), "num_steps must be at least 1"),
        (lambda: dqn.paper_config("Pong"), "no DQN parameters for 'Pong'. Known: MountainCar-v0"),
        (lambda: kovi.KOVIConfig(kernel=RBF(), lam=0.0, beta=1.0).validate(), "lam must be above 0, got 0.0"),
        (lambda: kovi.KOVIConfig(kernel=RBF(), lam=1.0, beta=1.0, tie_break="last").validate(), "tie_break must be one"),
        (lambda: kovi.KOVIConfig(kernel=0.02, lam=1.0, beta=1.0).validate(), "kernel must be a kqljax kernel"),
    ],
)  # fmt: skip
def test_errors_say_what_to_do(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.fixture
def sb3_dqn():
    path = Path(__file__).parents[1] / "benchmarks" / "sb3_dqn.py"
    spec = importlib.util.spec_from_file_location("sb3_dqn", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_benchmark_has_the_same_parameters(sb3_dqn):
    names = {"exploration_final_eps": "epsilon_end", "net_arch": "hidden"}
    for task, parameters in sb3_dqn.TASKS.items():
        cfg = dqn.paper_config(task)
        for name, value in itertools.chain(parameters.items(), sb3_dqn.SHARED.items()):
            if name == "train_freq":
                assert value == 1
                continue
            expected = tuple(value) if isinstance(value, list) else value
            assert getattr(cfg, names.get(name, name)) == expected, (task, name)


def test_benchmark_without_stable_baselines(sb3_dqn, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    assert sb3_dqn.main(["--smoke"]) == 1
    assert "pip install" in capsys.readouterr().err


def test_benchmark_smoke(sb3_dqn, tmp_path):
    pytest.importorskip("stable_baselines3")
    out = tmp_path / "results.json"
    assert sb3_dqn.main(["--smoke", "--task", "Pendulum-v1", "--out", str(out)]) == 0
    assert '"algorithm": "sb3-dqn"' in out.read_text()


def test_pair_layout_matches_the_kernels():
    # numpy_kovi compares action indices; the library one-hot vectors.
    x, y = (Pair(jnp.zeros(2), jnp.eye(2)[a]) for a in (0, 1))
    np.testing.assert_allclose(RBF(eta=0.5).evaluate(x, y), np.exp(-1.0))
