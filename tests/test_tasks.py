"""Tasks: parity with gymnasium's own environments, normalisation, and wrapping one's own."""

import dataclasses

import gymnasium
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments.classic_control import acrobot, cartpole, mountain_car, pendulum

import kqljax

NAMES = ("MountainCar-v0", "Pendulum-v1", "Acrobot-v1", "CartPole-v0", "CartPole-v1")


STATES = {
    "MountainCar-v0": (mountain_car.EnvState, ("position", "velocity"), {}),
    "Pendulum-v1": (pendulum.EnvState, ("theta", "theta_dot"), {"last_u": jnp.array(0.0)}),
    "Acrobot-v1": (
        acrobot.EnvState,
        ("joint_angle1", "joint_angle2", "velocity_1", "velocity_2"),
        {},
    ),
    "CartPole-v1": (cartpole.EnvState, ("x", "x_dot", "theta", "theta_dot"), {}),
}


def _their_state(env, name):
    """The state of a gymnasium environment as gymnax writes it."""
    make, fields, rest = STATES[name]
    values = (jnp.asarray(value, jnp.float64) for value in env.unwrapped.state)
    return make(**dict(zip(fields, values, strict=True)), **rest, time=0)


@pytest.mark.parametrize("name", STATES)
def test_same_trajectory_as_gymnasium(name):
    """From the same state, the same actions lead to the same observations, rewards and ends."""
    task = kqljax.make_task(name)
    env = gymnasium.make(name)
    env.reset(seed=3)
    key = jax.random.key(0)
    env_state = task._stable(key, _their_state(env, name))
    step = jax.jit(task.step)
    rng = np.random.default_rng(0)
    # Acrobot is chaotic and its state is float32 there: stop before rounding shows.
    for _ in range(40):
        action = int(rng.integers(task.num_actions))
        theirs = (
            np.array([task.actions[action]], np.float64) if task.actions is not None else action
        )
        obs, reward, terminated, _, _ = env.step(theirs)
        ours = step(key, env_state, action)
        np.testing.assert_allclose(ours.next_obs, task.normalise(obs), atol=2e-5)
        assert float(ours.raw_reward) == pytest.approx(float(reward), abs=1e-4)
        assert bool(ours.terminated) == bool(terminated)
        env_state = ours.env_state
        if terminated:
            break


class Sticky:
    """A wrapper in gymnax's manner: a step of its own, all else is the environment's."""

    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        return getattr(self.env, name)

    def step(self, key, state, action, params):
        obs, state, reward, *rest = self.env.step(key, state, action, params)
        return obs, state, reward - 0.25, *rest


def theirs(task, key, env_state, action):
    """A step of the environment itself, written as a `TaskStep`."""
    raw_action = action if task.actions is None else jnp.asarray(task.actions)[action]
    obs, new, reward, terminated, truncated, info = task.env.step(
        key, env_state, raw_action, task.params
    )
    return kqljax.TaskStep(
        obs=task.normalise(obs),
        env_state=jax.tree.map(lambda leaf, old: leaf.astype(old.dtype), new, env_state),
        next_obs=task.normalise(info["final_observation"]),
        reward=task.unit_reward(jnp.asarray(reward, float)),
        raw_reward=jnp.asarray(reward, float),
        terminated=terminated,
        truncated=truncated & ~terminated,
    )


def played(task, step_of, count):
    """Steps of random actions."""

    def body(env_state, key):
        action = jax.random.randint(jax.random.fold_in(key, 1), (), 0, task.num_actions)
        step = step_of(task, key, env_state, action)
        return step.env_state, step

    _, env_state = task.reset(jax.random.key(2))
    return jax.lax.scan(body, env_state, jax.random.split(jax.random.key(3), count))[1]


@pytest.mark.parametrize("name", [*NAMES[:4], "wrapped"])
def test_a_step_is_the_environments_own(name):
    """Bit for bit, over ends and time limits; a wrapper's own step is not left out."""
    if name == "wrapped":
        plain = kqljax.make_task("CartPole-v0")
        task = dataclasses.replace(plain, env=Sticky(plain.env))
    else:
        task = kqljax.make_task(name)
        task = kqljax.Task.wrap(
            task.env,
            reward_range=(task.reward_low, task.reward_high),
            obs_bounds=(task.centre - task.half_width, task.centre + task.half_width),
            actions=task.actions,
            max_steps=15,
        )
    assert task._is_open == (name != "wrapped")
    expected, found = (
        jax.jit(lambda step_of=step_of: played(task, step_of, 50))()
        for step_of in (theirs, kqljax.Task.step)
    )
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)
    assert bool((expected.terminated | expected.truncated).any())
    assert name != "wrapped" or set(np.unique(found.raw_reward)) == {0.75}


@pytest.mark.parametrize("x64", [True, False], ids=["x64", "x32"])
@pytest.mark.parametrize("name", NAMES)
def test_random_play_stays_normalised(name, x64):
    with jax.enable_x64(x64):
        task = kqljax.make_task(name)

        @jax.jit
        def play(task, key):
            obs, env_state = task.reset(key)

            def body(carry, key):
                obs, env_state = carry
                action_key, step_key = jax.random.split(key)
                step = task.step(
                    step_key, env_state, jax.random.randint(action_key, (), 0, task.num_actions)
                )
                return (step.obs, step.env_state), (obs, step)

            return jax.lax.scan(body, (obs, env_state), jax.random.split(key, 700))[1]

        obs, steps = play(task, jax.random.key(1))
        assert obs.shape == (700, task.obs_dim)
        assert obs.dtype == (jnp.float64 if x64 else jnp.float32)
        for seen in (obs, steps.next_obs):
            assert np.all(np.abs(seen) <= 1 + 1e-5)
        assert np.all((steps.reward >= 0) & (steps.reward <= 1))
        over = np.asarray(steps.terminated | steps.truncated)
        assert over.any()
        assert not np.any(steps.terminated & steps.truncated)
        # Between episodes the observation to act on is a new start, not the successor.
        last = np.flatnonzero(over[:-1])
        assert not np.allclose(np.asarray(steps.next_obs)[last], np.asarray(obs)[last + 1])
        going = np.flatnonzero(~over[:-1])
        np.testing.assert_array_equal(np.asarray(steps.next_obs)[going], np.asarray(obs)[going + 1])


@pytest.mark.parametrize(
    "name, length, actions, end, steps",
    [
        ("MountainCar-v0", 2, 3, 20.0, 200),
        ("Pendulum-v1", 3, 3, 20.0, 200),
        ("Acrobot-v1", 6, 3, 20.0, 500),
        ("CartPole-v0", 4, 2, 0.0, 200),
        ("CartPole-v1", 4, 2, 0.0, 500),
    ],
)
def test_task_facts(name, length, actions, end, steps):
    task = kqljax.make_task(name)
    cfg = task.config(horizon=50)
    assert (task.obs_dim, task.num_actions, task.max_steps) == (length, actions, steps)
    assert cfg.terminal_value == pytest.approx(end)
    assert (cfg.num_actions, cfg.horizon) == (actions, 50)
    assert cfg.kernel == kqljax.RBF(eta=1.0 if name == "Pendulum-v1" else 0.02)
    assert task.config(gamma=0.9).terminal_value == pytest.approx(end / 2)
    assert task.config(terminal_value=1.5).terminal_value == 1.5


def test_unknown_task():
    with pytest.raises(
        ValueError, match=r"unknown task 'MountainCar'. Known: MountainCar-v0, .* kqljax.Task.wrap"
    ):
        kqljax.make_task("MountainCar")


def test_wrapping():
    env, params = gymnax.make("Pendulum-v1")
    with pytest.raises(ValueError, match="Pendulum-v1 has continuous actions: give actions="):
        kqljax.Task.wrap(env, params, reward_range=(-17.0, 0.0))
    with pytest.raises(ValueError, match="reward_range must be"):
        kqljax.Task.wrap(env, params, reward_range=(0.0, 0.0), actions=(-1.0, 1.0))
    task = kqljax.Task.wrap(env, params, reward_range=(-17.0, 0.0), actions=(-1.0, 1.0))
    assert task.num_actions == 2
    np.testing.assert_allclose(task.half_width, [1, 1, 8])
    cart, params = gymnax.make("CartPole-v1")
    with pytest.raises(ValueError, match=r"every bound must be finite.*Give obs_bounds"):
        kqljax.Task.wrap(cart, params, reward_range=(0.0, 1.0))
    with pytest.raises(ValueError, match="two vectors of one length"):
        kqljax.Task.wrap(
            cart, params, reward_range=(0.0, 1.0), obs_bounds=(np.zeros(3), np.ones(4))
        )


def test_rewards_out_of_range_are_not_hidden():
    task = kqljax.make_task("MountainCar-v0")
    assert float(task.unit_reward(1e-8)) == 1.0
    assert float(task.unit_reward(5.0)) == 6.0


def test_an_end_outside_the_reward_range_needs_a_value():
    env, params = gymnax.make("MountainCar-v0")
    task = kqljax.Task.wrap(env, params, reward_range=(1.0, 2.0))
    with pytest.raises(ValueError, match="give terminal_value="):
        task.config(horizon=10)
    assert task.config(horizon=10, terminal_value=3.0).terminal_value == 3.0


def test_a_shorter_episode_is_the_environments_too():
    env, params = gymnax.make("MountainCar-v0")
    task = kqljax.Task.wrap(env, params, reward_range=(-1.0, 0.0), max_steps=30)
    assert task.params.max_steps_in_episode == 30

    class Left:
        def begin(self, key):
            return ()

        def act(self, key, memory, obs):
            return jnp.zeros(len(obs), jnp.int32), memory

    returns = jax.jit(lambda key: kqljax.evaluate(key, task, Left(), 2))(jax.random.key(0))
    np.testing.assert_array_equal(returns, -30.0)


def test_vmapped_over_environment_parameters():
    task = kqljax.make_task("MountainCar-v0")
    forces = jnp.array([0.001, 0.002])

    def speed(force):
        changed = dataclasses.replace(task, params=task.params.replace(force=force))
        _, env_state = changed.reset(jax.random.key(0))
        return changed.step(jax.random.key(1), env_state, 2).env_state.velocity

    slow, fast = jax.vmap(speed)(forces)
    assert float(fast - slow) == pytest.approx(0.001, rel=1e-6)
