"""DQN as Stable-Baselines3 does it, in one `lax.scan`.

The paper compares KQL with the DQN of Stable-Baselines3 (section 6). This one follows its version 2.9 in what it does and
in what order, on raw observations and raw rewards:

* step t (from 0): a random action while t < learning_starts, then epsilon-greedy with epsilon linear in t;
* the transition is stored; where t + 1 is a multiple of target_update_interval the target network is copied;
* where t + 1 > learning_starts, gradient_steps batches are drawn with replacement from all stored transitions;
* the loss is smooth L1, the gradient is clipped in norm, Adam follows;
* a time limit is bootstrapped through, an end is not;
* weights and biases start as torch's `nn.Linear`: uniform within 1 / sqrt(fan_in).

What differs is the stream of random numbers, and that the target network is asked once for all gradient steps of one
environment step: it does not change between them.

    cfg = paper_config("CartPole-v0")
    run = jax.jit(train, static_argnames="num_steps")(task, cfg, key, num_steps=1000)
    returns = evaluate(task, cfg, run.state, key, num_episodes=100)

Networks, replay and arithmetic are float32 whether or not jax has float64 enabled.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from kqljax import checks
from kqljax.errors import first_bad, is_known
from kqljax.pytrees import register
from kqljax.rollout import rollout_returns
from kqljax.tasks import Task

Array = jax.Array

_STATIC = ("hidden", "buffer_size", "batch_size", "gradient_steps", "learning_starts", "target_update_interval")


@functools.partial(register, static=_STATIC)
@dataclasses.dataclass(frozen=True, kw_only=True)
class DQNConfig:
    """Parameters of DQN. The defaults are those the paper sets for every task, else those of Stable-Baselines3.

    Numbers are pytree leaves: changing or vmapping them does not recompile. Sizes and counts are static.

    Attributes:
      learning_rate: of Adam.
      gamma: discount factor in [0, 1].
      epsilon_start: probability of a random action at step 0.
      epsilon_end: the same after the exploration fraction.
      exploration_fraction: part of the run over which epsilon falls, in (0, 1].
      max_grad_norm: the gradient is scaled down to this norm.
      hidden: widths of the hidden layers (static).
      buffer_size: transitions that the replay holds; the oldest make room (static).
      batch_size: transitions in a gradient step (static).
      gradient_steps: gradient steps after each environment step (static).
      learning_starts: steps with random actions and without learning (static).
      target_update_interval: environment steps between copies to the target network (static).
    """

    learning_rate: Any = 1e-4
    gamma: Any = 0.95
    epsilon_start: Any = 1.0
    epsilon_end: Any = 0.05
    exploration_fraction: Any = 0.1
    max_grad_norm: Any = 10.0
    hidden: tuple[int, ...] = (64, 64)
    buffer_size: int = 1_000_000
    batch_size: int = 64
    gradient_steps: int = 32
    learning_starts: int = 100
    target_update_interval: int = 10

    def validate(self) -> DQNConfig:
        """Raises ValueError where a value is out of range; returns the config. Call it outside jit."""
        _check_static(self)
        ranges = {
            "learning_rate": (lambda x: x > 0, "above 0"),
            "gamma": (lambda x: (x >= 0) & (x <= 1), "in [0, 1]"),
            "epsilon_start": (lambda x: (x >= 0) & (x <= 1), "in [0, 1]"),
            "epsilon_end": (lambda x: (x >= 0) & (x <= 1), "in [0, 1]"),
            "exploration_fraction": (lambda x: (x > 0) & (x <= 1), "in (0, 1]"),
            "max_grad_norm": (lambda x: x > 0, "above 0"),
        }
        for name, (is_good, words) in ranges.items():
            values = np.asarray(getattr(self, name), np.float64)
            good = np.isfinite(values) & is_good(values)
            if not np.all(good):
                raise ValueError(
                    f"{name} must be {words}, got {first_bad(values, good)}. paper_config(name) has the paper's values."
                )
        return self


# RL Baselines3 Zoo; Pendulum has the defaults of Stable-Baselines3, for the zoo has no discrete Pendulum.
_PAPER: dict[str, dict[str, Any]] = {
    "MountainCar-v0": {
        "learning_rate": 4e-3, "epsilon_end": 0.07, "exploration_fraction": 0.2, "buffer_size": 10_000,
        "hidden": (256, 256),
    },
    "Acrobot-v1": {
        "learning_rate": 6.3e-4, "epsilon_end": 0.1, "exploration_fraction": 0.12, "buffer_size": 50_000,
        "hidden": (256, 256),
    },
    "CartPole-v0": {
        "learning_rate": 2.3e-3, "epsilon_end": 0.04, "exploration_fraction": 0.16, "buffer_size": 100_000,
        "hidden": (256, 256),
    },
    "Pendulum-v1": {},
}  # fmt: skip
_PAPER["CartPole-v1"] = _PAPER["CartPole-v0"]


def paper_config(task_name: str) -> DQNConfig:
    """The parameters of the paper's comparison for one of its tasks."""
    if task_name not in _PAPER:
        raise ValueError(
            f"the paper has no DQN parameters for {task_name!r}. Known: {', '.join(_PAPER)}. For another task use "
            "DQNConfig(learning_rate=..., hidden=(64, 64))."
        )
    return DQNConfig(**_PAPER[task_name])


def default_config(task: Task) -> DQNConfig:
    """The paper's parameters where it has them, else `DQNConfig()`."""
    return paper_config(task.name) if task.name in _PAPER else DQNConfig()


class Replay(NamedTuple):
    """Stored transitions, or a batch of them with other leading axes than `[C]`.

    Attributes:
      obs: `[C, l]` float32 raw observation.
      action: `[C]` int32.
      reward: `[C]` float32 raw reward.
      next_obs: `[C, l]` float32 the true successor.
      terminated: `[C]` bool, False where only the time was up.
    """

    obs: Array
    action: Array
    reward: Array
    next_obs: Array
    terminated: Array


class DQNState(NamedTuple):
    """What the next step needs.

    Attributes:
      params: the network's weights and biases.
      target_params: the same, `target_update_interval` steps behind.
      opt_state: moments of Adam.
      replay: stored transitions, capacity C = min(buffer_size, num_steps).
    """

    params: Any
    target_params: Any
    opt_state: Any
    replay: Replay


class DQNLog(NamedTuple):
    """What happened at each of N steps.

    Attributes:
      action: `[N]`.
      raw_reward: `[N]` the environment's own rewards.
      terminated: `[N]` bool.
      truncated: `[N]` bool.
      episode_return: `[N]` sum of raw rewards of the episode up to and with this step.
      loss: `[N]` mean over the gradient steps; 0 before learning starts.
      is_finite: `[N]` bool, the loss is a number.
    """

    action: Array
    raw_reward: Array
    terminated: Array
    truncated: Array
    episode_return: Array
    loss: Array
    is_finite: Array


class DQNRun(NamedTuple):
    """Result of `train`.

    Attributes:
      state: the state after the last step.
      log: what happened at each step.
    """

    state: DQNState
    log: DQNLog


class QNetwork(nn.Module):
    """ReLU network `[..., l]` -> `[..., A]`, with the initial weights of torch's `nn.Linear`."""

    hidden: tuple[int, ...]
    num_actions: int

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        x = obs
        for index, width in enumerate((*self.hidden, self.num_actions)):
            bound = x.shape[-1] ** -0.5
            x = nn.Dense(width, kernel_init=_uniform(bound), bias_init=_uniform(bound))(x)
            x = x if index == len(self.hidden) else nn.relu(x)
        return x


def _uniform(bound: float) -> Any:
    def init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32, **_: Any) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def _check_static(cfg: DQNConfig) -> None:
    for name in ("buffer_size", "batch_size", "gradient_steps", "target_update_interval"):
        checks.whole_number(name, getattr(cfg, name), 1, "It is a count.")
    checks.whole_number("learning_starts", cfg.learning_starts, 0, "It is a number of environment steps.")
    if not isinstance(cfg.hidden, tuple):
        raise ValueError(f"hidden must be a tuple of widths, for example (64, 64), got {cfg.hidden!r}.")
    for width in cfg.hidden:
        checks.whole_number("hidden", width, 1, "It is a tuple of layer widths, for example (64, 64).")


def raw_view(task: Task) -> Task:
    """The same task with observations as the environment gives them."""
    length = task.obs_dim
    return dataclasses.replace(task, centre=np.zeros(length), half_width=np.ones(length), clips=False)


def network(task: Task, cfg: DQNConfig) -> QNetwork:
    """The Q-network for a task."""
    return QNetwork(cfg.hidden, task.num_actions)


def epsilon(cfg: DQNConfig, step: Array, num_steps: int) -> Array:
    """Probability `[]` of a random action at step `step` (from 0) of a run of `num_steps`."""
    progress = jnp.asarray(step, jnp.float32) / num_steps
    falling = cfg.epsilon_start + progress * (cfg.epsilon_end - cfg.epsilon_start) / cfg.exploration_fraction
    return jnp.where(progress > cfg.exploration_fraction, cfg.epsilon_end, falling)


def td_target(net: QNetwork, cfg: DQNConfig, target_params: Any, batch: Replay) -> Array:
    """r + gamma max_a Q_target(s', a) for a batch `[...]`; r alone where the task ended."""
    next_values: Any = net.apply(target_params, batch.next_obs)
    next_value = jnp.max(next_values, axis=-1)
    return batch.reward + jnp.where(batch.terminated, 0.0, cfg.gamma * next_value)


def td_loss(net: QNetwork, params: Any, batch: Replay, target: Array) -> Array:
    """Mean smooth L1 distance `[]` between Q(s, a) and the target."""
    values: Any = net.apply(params, batch.obs)
    chosen = jnp.take_along_axis(values, batch.action[..., None], axis=-1)[..., 0]
    return jnp.mean(optax.huber_loss(chosen, target, delta=1.0))


def _optimiser(cfg: DQNConfig) -> optax.GradientTransformation:
    return optax.chain(
        optax.clip_by_global_norm(cfg.max_grad_norm),
        optax.scale_by_adam(eps=1e-8),
        optax.scale_by_learning_rate(cfg.learning_rate),
    )


def init(task: Task, cfg: DQNConfig, key: Array, capacity: int) -> DQNState:
    """A fresh network and an empty replay with room for `capacity` transitions."""
    cfg = _float32(cfg)
    params = network(task, cfg).init(key, jnp.zeros(task.obs_dim, jnp.float32))
    replay = Replay(
        obs=jnp.zeros((capacity, task.obs_dim), jnp.float32),
        action=jnp.zeros(capacity, jnp.int32),
        reward=jnp.zeros(capacity, jnp.float32),
        next_obs=jnp.zeros((capacity, task.obs_dim), jnp.float32),
        terminated=jnp.zeros(capacity, bool),
    )
    return DQNState(params, params, _optimiser(cfg).init(params), replay)


def learn(net: QNetwork, cfg: DQNConfig, state: DQNState, num_stored: Array, key: Array) -> tuple[DQNState, Array]:
    """`gradient_steps` steps of Adam on batches drawn with replacement; returns the state and the mean loss `[]`."""
    cfg = _float32(cfg)
    optimiser = _optimiser(cfg)
    index = jax.random.randint(key, (cfg.gradient_steps, cfg.batch_size), 0, num_stored)
    batches = jax.tree.map(lambda stored: stored[index], state.replay)
    if state.replay.reward.shape[0] < index.size:
        # Cheaper to ask the target network about every stored successor once than about every drawn one.
        targets = td_target(net, cfg, state.target_params, state.replay)[index]
    else:
        targets = td_target(net, cfg, state.target_params, batches)

    def one(carry: Any, data: Any) -> tuple[Any, Array]:
        params, opt_state = carry
        loss, gradient = jax.value_and_grad(lambda params: td_loss(net, params, *data))(params)
        change, opt_state = optimiser.update(gradient, opt_state)
        return (optax.apply_updates(params, change), opt_state), loss

    (params, opt_state), losses = lax.scan(one, (state.params, state.opt_state), (batches, targets))
    return state._replace(params=params, opt_state=opt_state), jnp.mean(losses)


def act(net: QNetwork, params: Any, obs: Array) -> Array:
    """The greedy action `[]` at one raw observation `[l]`; -1 where a value is not a number."""
    values: Any = net.apply(params, jnp.asarray(obs, jnp.float32))
    return jnp.where(jnp.all(jnp.isfinite(values)), jnp.argmax(values), -1).astype(jnp.int32)


class _Carry(NamedTuple):
    state: DQNState
    env_state: Any
    obs: Array
    episode_return: Array


def train(task: Task, cfg: DQNConfig, key: Array, num_steps: int) -> DQNRun:
    """Runs DQN for `num_steps` environment steps.

    Pure: jit it (with `num_steps` static), vmap it over keys and over the numbers in `cfg`.
    """
    checks.whole_number("num_steps", num_steps, 1, "It is the number of environment steps.")
    _check_static(cfg)
    if is_known(cfg):
        cfg.validate()
    cfg = _float32(cfg)
    raw, net = raw_view(task), network(task, cfg)
    reset_key, init_key, step_key = jax.random.split(key, 3)
    obs, env_state = raw.reset(reset_key)
    capacity = min(cfg.buffer_size, num_steps)
    carry = _Carry(init(task, cfg, init_key, capacity), env_state, obs, jnp.zeros(()))

    def body(carry: _Carry, now: tuple[Array, Array]) -> tuple[_Carry, DQNLog]:
        # The step counter comes with the scan and is the same for all seeds: under vmap each cond stays a branch.
        t, key = now
        draw_key, explore_key, env_key, learn_key = jax.random.split(key, 4)
        is_random = (t < cfg.learning_starts) | (jax.random.uniform(draw_key, dtype=jnp.float32) < epsilon(cfg, t, num_steps))
        drawn = jax.random.randint(explore_key, (), 0, task.num_actions, jnp.int32)
        # A network that has diverged acts at random in the environment; the log's is_finite says so.
        greedy = act(net, carry.state.params, carry.obs)
        action = jnp.where(is_random | (greedy < 0), drawn, greedy)
        step = raw.step(env_key, carry.env_state, action)

        row = Replay(carry.obs, action, step.raw_reward, step.next_obs, step.terminated)
        replay = jax.tree.map(lambda all, one: all.at[t % capacity].set(one.astype(all.dtype)), carry.state.replay, row)
        is_due = (t + 1) % cfg.target_update_interval == 0
        target_params = lax.cond(is_due, lambda new, old: new, lambda new, old: old, *carry.state[:2])
        state = carry.state._replace(replay=replay, target_params=target_params)
        state, loss = lax.cond(
            t + 1 > cfg.learning_starts,
            lambda state: learn(net, cfg, state, jnp.minimum(t + 1, capacity), learn_key),
            lambda state: (state, jnp.zeros((), jnp.float32)),
            state,
        )

        total = carry.episode_return + step.raw_reward
        log = DQNLog(action, step.raw_reward, step.terminated, step.truncated, total, loss, jnp.isfinite(loss))
        is_over = step.terminated | step.truncated
        return _Carry(state, step.env_state, step.obs, jnp.where(is_over, 0.0, total)), log

    steps = jnp.arange(num_steps, dtype=jnp.int32)
    carry, log = lax.scan(body, carry, (steps, jax.random.split(step_key, num_steps)))
    return DQNRun(carry.state, log)


def evaluate(task: Task, cfg: DQNConfig, state: DQNState, key: Array, num_episodes: int = 100) -> Array:
    """Undiscounted raw returns `[num_episodes]` of the greedy policy, without learning."""
    checks.whole_number("num_episodes", num_episodes, 1, "It is the number of evaluation episodes.")
    net = network(task, cfg)
    return rollout_returns(raw_view(task), lambda obs, key: act(net, state.params, obs), key, num_episodes)


def _float32(cfg: DQNConfig) -> DQNConfig:
    """The config with its numbers in float32: a strong float64 would promote the network."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), cfg)
