"""Baselines: DQN against a NumPy gradient and on probes with known answers, KOVI against loops."""

import dataclasses
import functools
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sb3_dqn
from kovi_learner import KOVI, make_kovi

from kqljax import evaluate, train
from kqljax.baselines import dqn, random
from kqljax.kernels import RBF
from kqljax.tasks import Task, make_task

KEY = jax.random.key(0)
TRACES = []


class Probe:
    """The observation is -1 or 1 and the right action is its sign, which pays 1.

    With `clock` the right action is the parity of the step, which the observation does not tell.
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
        after, info = (
            {"obs": obs, "time": jnp.where(is_over, 0, time)},
            {"final_observation": next_obs},
        )
        return obs, after, reward, is_over & params["ends"], is_over & ~params["ends"], info

    def observation_space(self, params):
        return SimpleNamespace(low=-1.0, high=1.0, shape=(1,))

    def action_space(self, params):
        return SimpleNamespace(n=2)


PROBES = {length: Probe(length) for length in (1, 3)}


def probe(length, ends=True, clock=False):
    params = {"ends": jnp.asarray(ends), "clock": jnp.asarray(clock)}
    return Task.wrap(PROBES[length], params, reward_range=(0.0, 1.0), max_steps=length)


def small_dqn(**changes):
    sizes = {"batch_size": 16, "gradient_steps": 8, "learning_starts": 20, "buffer_size": 100}
    return dqn.DQN(**{"learning_rate": 1e-2, "gamma": 0.5, "hidden": (16,), **sizes, **changes})


@functools.partial(jax.jit, static_argnames="num_steps")
def train_and_evaluate(key, task, learner, num_steps):
    TRACES.append(type(learner))
    run = train(key, task, learner, num_steps)
    return run, evaluate(KEY, task, run.policy, 20)


# One interface -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["random", "dqn"])
def test_vmapped_over_seeds_and_numbers_equals_alone(name):
    keys, rates = jax.random.split(KEY, 3), jnp.array([1e-3, 0.3, 0.02])
    learner, rate = (random.Random(), None) if name == "random" else (small_dqn(), rates)

    def run(key, rate):
        changed = learner if rate is None else dataclasses.replace(learner, learning_rate=rate)
        return train_and_evaluate(key, probe(1), changed, 200)

    together, returns = jax.vmap(run)(keys, rate)
    alone, its_returns = run(keys[2], None if rate is None else 0.02)
    assert returns.shape == (3, 20) and together.log.raw_reward.shape == (3, 200)
    np.testing.assert_array_equal(together.log.action[2], alone.log.action)
    np.testing.assert_array_equal(returns[2], its_returns)
    assert len({tuple(actions) for actions in np.asarray(together.log.action).tolist()}) == 3
    assert bool(together.is_sound.all())
    if name == "dqn":  # batched products round otherwise, and 1400 gradient steps carry that far
        assert float(alone.log.info.loss[25]) > 0
        losses = together.log.info.loss[2], alone.log.info.loss
        np.testing.assert_allclose(*(loss[:26] for loss in losses), rtol=1e-3)


@pytest.mark.parametrize("x64, name", [(True, "Acrobot-v1"), (False, "Pendulum-v1")])
def test_dqn_is_float32(x64, name):
    with jax.enable_x64(x64):
        task, key = make_task(name), jax.random.key(1)
        shapes = jax.eval_shape(lambda key: train(key, task, small_dqn(), 12), key)
        reals = [leaf.dtype for leaf in jax.tree.leaves(shapes.state) if leaf.dtype.kind == "f"]
    assert set(reals) == {np.dtype("float32")}


def test_numbers_do_not_recompile():
    task, base = probe(1), small_dqn()
    changed = small_dqn(learning_rate=0.1, gamma=0.9, exploration_fraction=0.5)
    first, _ = train_and_evaluate(KEY, task, base, 200)
    before = len(TRACES)
    second, _ = train_and_evaluate(KEY, task, changed, 200)
    assert len(TRACES) == before
    weights = [jax.tree.leaves(run.policy.params)[0] for run in (first, second)]
    assert not np.allclose(*weights)


def test_random_policy():
    task = make_task("CartPole-v0")
    policy = random.Random().begin(KEY, task, 1, None)
    returns = jax.jit(lambda key: evaluate(key, task, policy, 2000))(KEY)
    assert 20.5 < float(returns.mean()) < 23.5 and float(returns.min()) >= 8
    run, _ = train_and_evaluate(KEY, probe(3), random.Random(), 200)
    assert abs(float(run.log.action.mean()) - 0.5) < 0.15
    rewards = run.log.raw_reward[:198].reshape(-1, 3)
    np.testing.assert_allclose(run.log.episode_return[2:198:3], rewards.sum(-1))


# DQN ---------------------------------------------------------------------------------------------


def numpy_step(layers, moments, count, row, target, cfg):
    """One step of clipped Adam on the smooth L1 loss of copies of one transition, in float64."""
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
    return [
        tuple(np.asarray(layer[name], np.float64) for name in ("kernel", "bias"))
        for layer in layers
    ]


LEARN = jax.jit(dqn.DQN.learn)


def learner_of(**changes):
    """A learner and its state, with room for 10 transitions, before its first step on CartPole."""
    sizes = {"hidden": (7, 5), "batch_size": 64, "gradient_steps": 4, "buffer_size": 10}
    learner = small_dqn(**{"gamma": 0.9, **sizes, **changes})
    return learner, learner.begin(KEY, make_task("CartPole-v0"), 1000, None)


@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("max_grad_norm", [0.05, 10.0])
def test_update_against_numpy(terminated, max_grad_norm):
    cfg, state = learner_of(max_grad_norm=max_grad_norm)
    other = state.policy.network.init(jax.random.key(5), jnp.zeros(4, jnp.float32))
    obs, next_obs = np.array([0.5, -1.0, 0.2, 2.0]), np.array([-0.3, 0.8, 1.5, -0.7])
    row = dqn.Replay(*(jnp.asarray(x) for x in (obs, 1, 0.7, next_obs, terminated)))
    # One stored transition: every batch is made of copies of it, whatever is drawn.
    replay = jax.tree.map(lambda all, one: all.at[0].set(one.astype(all.dtype)), state.replay, row)
    state = state._replace(replay=replay, target_params=other)
    learned, loss = LEARN(cfg, KEY, state, 1)

    after = 0.0 if terminated else 0.9 * numpy_forward(as_numpy(other), next_obs).max()
    layers, moments, norms, losses = as_numpy(state.policy.params), [(0.0, 0.0)] * 6, [], []
    for count in range(1, 5):
        error = abs(numpy_forward(layers, obs)[1] - 0.7 - after)
        losses.append(0.5 * error**2 if error < 1 else error - 0.5)
        layers, norm = numpy_step(layers, moments, count, (obs, 1), 0.7 + after, cfg)
        norms.append(norm)
    assert (min(norms) > max_grad_norm) == (max_grad_norm == 0.05)  # one case clips, one does not
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-5)
    for ours, theirs in zip(as_numpy(learned.policy.params), layers, strict=True):
        for one, other_one in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other_one, rtol=1e-4, atol=1e-5)
    assert jax.tree.all(jax.tree.map(np.array_equal, learned.target_params, other))


def test_batches_are_of_what_is_stored_and_targets_agree_for_any_replay():
    rng, losses = np.random.default_rng(0), []
    obs, reward = rng.normal(size=(2, 7, 4)), rng.normal(size=7)
    rows = dqn.Replay(obs[0], rng.integers(0, 2, 7), reward, obs[1], rng.random(7) < 0.5)
    # A replay larger than all batches together (256): targets of the drawn transitions only.
    for room in (10, 300):
        learner, state = learner_of(buffer_size=room)
        replay = jax.tree.map(
            lambda all, some: all.at[:7].set(some.astype(all.dtype)), state.replay, rows
        )
        broken = replay._replace(reward=replay.reward.at[7:].set(jnp.nan))
        losses.append(LEARN(learner, KEY, state._replace(replay=broken), 7)[1])
        assert not bool(jnp.isfinite(LEARN(learner, KEY, state._replace(replay=broken), 8)[1]))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


def test_epsilon_and_initial_weights():
    learner = dqn.DQN(epsilon_start=1.0, epsilon_end=0.04, exploration_fraction=0.16)
    state = learner.begin(KEY, make_task("Acrobot-v1"), 1000, None)
    for step, expected in ((0, 1.0), (40, 0.76), (80, 0.52), (160, 0.04), (161, 0.04), (999, 0.04)):
        assert learner.epsilon(state._replace(step=jnp.int32(step))) == pytest.approx(expected)
    state = dqn.paper_config("Acrobot-v1").begin(KEY, make_task("Acrobot-v1"), 1, None)
    for weight, bias in as_numpy(state.policy.params):  # as torch's nn.Linear
        bound = weight.shape[0] ** -0.5
        assert 0.98 * bound < np.abs(weight).max() <= bound
        assert np.abs(weight).std() > 0.25 * bound and np.abs(weight.mean()) < 0.1 * bound
        assert 0 < np.abs(bias).max() <= bound


def test_learning_starts_and_target_network():
    def run(**changes):
        learner = small_dqn(learning_starts=12, **changes)
        return jax.jit(lambda key: train(key, probe(1), learner, 20))(KEY)

    def distance(first, second):
        return max(jax.tree.leaves(jax.tree.map(lambda a, b: abs(a - b).max(), first, second)))

    learned = run(target_update_interval=21)
    # With t counted from 0 the first updates come after step 12, as in Stable-Baselines3.
    np.testing.assert_array_equal(np.asarray(learned.log.info.loss) > 0, np.arange(20) >= 12)
    initial = learned.state.target_params  # never copied
    assert distance(learned.policy.params, initial) > 0
    # The copy of the last step comes before its gradient steps.
    copied = run(target_update_interval=20)
    assert distance(copied.state.target_params, initial) > 0
    assert distance(copied.state.target_params, copied.policy.params) > 0


def test_replay_holds_raw_transitions_and_wraps():
    task = make_task("MountainCar-v0")
    params = task.params.replace(max_steps_in_episode=7)
    task = dataclasses.replace(task, params=params, max_steps=7)
    run = jax.jit(lambda key: train(key, task, small_dqn(buffer_size=10), 24))(KEY)
    replay = jax.tree.map(np.asarray, run.state.replay)
    assert replay.obs.shape == (10, 2) and not replay.terminated.any()
    np.testing.assert_allclose(replay.reward, -1)
    # Step 21 began an episode and lies in slot 1; the raw start is in [-0.6, -0.4], at rest.
    assert -0.6 <= replay.obs[1, 0] <= -0.4 and abs(replay.obs[1, 1]) < 1e-7
    np.testing.assert_array_equal(replay.next_obs[1], replay.obs[2])
    # Step 20 reached the time limit: its successor is where the car was, not the next start.
    assert abs(replay.next_obs[0, 1]) > 1e-5
    assert abs(replay.next_obs[0, 0] - replay.obs[0, 0]) < 0.07
    np.testing.assert_array_equal(replay.action[[1, 2, 3]], np.asarray(run.log.action)[21:])


@pytest.mark.parametrize("ends, right, wrong", [(True, 1.0, 0.0), (False, 2.0, 1.0)])
def test_dqn_learns_the_probe(ends, right, wrong):
    run, returns = train_and_evaluate(KEY, probe(1, ends=ends), small_dqn(), 200)
    # A time limit is bootstrapped through, for ever: 1 / (1 - 0.5). An end is not.
    values = run.policy.values(jnp.array([[-1.0], [1.0]]))
    np.testing.assert_allclose(values, [[right, wrong], [wrong, right]], atol=0.1)
    assert np.all(returns == 1)


def test_a_diverged_network_is_told():
    wild = small_dqn(max_grad_norm=1e-3, learning_rate=1e38)
    run, returns = train_and_evaluate(KEY, probe(1), wild, 200)
    assert not bool(run.is_sound) and set(np.asarray(run.log.action).tolist()) == {0, 1}
    assert int(run.policy.act(KEY, (), jnp.zeros(1))[0]) == -1 and np.isnan(returns).all()


# KOVI --------------------------------------------------------------------------------------------

LENGTH = 11


def numpy_kovi(episodes, eta, lam, beta, end_reward, num_actions):
    """Q_h as functions of (obs, action), by loops over steps of lists of transitions."""

    def kernel(x, y):
        return np.exp(-eta * (((x[0] - y[0]) ** 2).sum() + 2.0 * (x[1] != y[1])))

    functions = {LENGTH: lambda obs, action: 0.0}
    for h in reversed(range(LENGTH)):
        data = [row for episode in episodes for step, row in enumerate(episode) if step == h]
        points = [(obs, action) for obs, action, *_ in data]
        gram = np.array([[kernel(x, y) for y in points] for x in points])
        inverse = np.linalg.inv(gram.reshape(len(data), len(data)) + lam * np.eye(len(data)))
        after = functions[h + 1]
        targets = np.array([
            reward
            + (LENGTH - h - 1) * end_reward * ended
            + (not ended) * max(after(next_obs, a) for a in range(num_actions))
            for _, _, reward, next_obs, ended in data
        ])  # fmt: skip

        def q(obs, action, points=points, inverse=inverse, targets=targets, h=h):
            vector = np.array([kernel((obs, action), x) for x in points])
            width = np.sqrt(max(1 - vector @ inverse @ vector, 0) / lam)
            return float(np.clip(vector @ inverse @ targets + beta * width, 0, LENGTH - h))

        functions[h] = q
    return functions


def test_kovi_against_numpy():
    # 11 steps: some episodes of CartPole end by themselves, some by the time limit.
    task = make_task("CartPole-v0")
    params = task.params.replace(max_steps_in_episode=LENGTH)
    task = dataclasses.replace(task, params=params, max_steps=LENGTH)
    learner = KOVI(kernel=RBF(eta=0.5), lam=0.03, beta=0.4, length=LENGTH, max_episodes=7)
    run = jax.jit(lambda key: train(key, task, learner, 50))(jax.random.key(7))
    assert bool(run.is_sound) and bool(run.log.info.is_stored.all())
    assert bool(run.log.terminated.any()) and bool(run.log.truncated.any())
    data, end_reward = jax.tree.map(np.asarray, run.state.data), float(run.state.end_reward)
    episodes = [
        [
            (data.pairs.obs[h, e], data.pairs.action[h, e].argmax(), data.reward[h, e],
             data.next_obs[h, e], data.terminated[h, e])
            for h in range(LENGTH) if data.is_stored[h, e]
        ]
        for e in range(7) if data.is_stored[0, e]
    ]  # fmt: skip
    ends = np.flatnonzero(run.log.terminated | run.log.truncated)
    assert [len(episode) for episode in episodes] == np.diff([-1, *ends, 49]).tolist()
    # Every episode acted on what the earlier ones give.
    gaps = []
    for index, episode in enumerate(episodes):
        functions = numpy_kovi(episodes[:index], 0.5, 0.03, 0.4, end_reward, 2)
        for h, (obs, action, *_) in enumerate(episode):
            values = [functions[h](obs, a) for a in range(2)]
            assert values[action] >= max(values) - 1e-9
            gaps.append(np.ptp(values))
    assert np.sum(np.array(gaps) > 1e-3) > 10  # not all were ties
    # The last plan is of all but the last episode, which was not over.
    points = np.random.default_rng(0).uniform(-1, 1, (5, 4))
    found = [run.policy.values(jnp.asarray(points), h) for h in range(LENGTH)]
    expected = [[[functions[h](x, a) for a in range(2)] for x in points] for h in range(LENGTH)]
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("pooled", [False, True])
def test_kovi_learns_the_probe(pooled):
    # Textbook KOVI follows the clock, which the observation does not tell. Pooled data hold that
    # the state tells everything: it gets the probe whose observation does.
    task = probe(3, ends=False, clock=not pooled)
    learner = make_kovi(task, 60, kernel=RBF(eta=1.0), max_episodes=20, pooled=pooled)
    run, returns = train_and_evaluate(KEY, task, learner, 63)
    assert np.all(returns == 3) and float(run.log.raw_reward[:15].mean()) < 1
    # 63 steps are an episode more than there is room for where data are not pooled.
    np.testing.assert_array_equal(run.log.info.is_stored, (np.arange(63) < 60) | pooled)


# Errors and the benchmark of Stable-Baselines3 ----------------------------------------------------


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: small_dqn(gamma=1.5).validate(), r"gamma must be in \[0, 1\], got 1.5"),
        (
            lambda: small_dqn(learning_rate=np.array([0.1, -1.0])).validate(),
            r"-1.0 at index \(1,\)",
        ),
        (lambda: small_dqn(hidden=[8]).validate(), "hidden must be a tuple"),
        (lambda: small_dqn(batch_size=0).validate(), "batch_size must be at least 1"),
        (lambda: train(KEY, probe(1), small_dqn(), 0), "num_steps must be at least 1"),
        (lambda: dqn.paper_config("Pong"), "no DQN parameters for 'Pong'. Known: MountainCar-v0"),
    ],
)
def test_errors_say_what_to_do(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_benchmark_has_the_same_parameters():
    names = {"exploration_final_eps": "epsilon_end", "net_arch": "hidden"}
    for task, parameters in sb3_dqn.TASKS.items():
        learner = dqn.paper_config(task)
        for name, value in {**parameters, **sb3_dqn.SHARED}.items():
            expected = tuple(value) if isinstance(value, list) else value
            ours = 1 if name == "train_freq" else getattr(learner, names.get(name, name))
            assert ours == expected, (task, name)


def test_benchmark_without_stable_baselines(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    assert sb3_dqn.main(["--smoke"]) == 1
    assert "pip install" in capsys.readouterr().err


def test_benchmark_smoke(tmp_path):
    pytest.importorskip("stable_baselines3")
    out = tmp_path / "results.json"
    assert sb3_dqn.main(["--smoke", "--task", "Pendulum-v1", "--out", str(out)]) == 0
    assert '"algorithm": "sb3-dqn"' in out.read_text()
