"""DQN with the options that matter when there are only 1000 steps, and the search over them.

Beyond `kqljax.baselines.dqn` (Stable-Baselines3's DQN, which it is with `PAPER` settings): n-step
targets, LayerNorm, scaled observations and rewards, and random actions that are held for some steps
(temporally extended epsilon-greedy). `candidates` are the settings of the search in opponents.py.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import kqljax
from kqljax.baselines import dqn

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Settings:
    """All static: a setting is compiled once for a task.

    Attributes:
      learning_rate: of Adam.
      gradient_steps, batch_size: updates after each step, and transitions in one.
      learning_starts: steps with random actions before the first update.
      target_interval: steps between copies to the target network.
      hidden: widths of the hidden layers.
      layer_norm: whether a LayerNorm follows each of them.
      n_steps: rewards in a target before it bootstraps.
      epsilon_end, exploration_fraction: epsilon falls from 1 over this part of the run.
      hold: steps for which a random action is repeated.
      gamma: discount.
      scaled: observations in [-1, 1] and rewards divided by their range; else raw.
    """

    learning_rate: float
    gradient_steps: int
    batch_size: int
    learning_starts: int
    target_interval: int
    hidden: tuple[int, ...]
    layer_norm: bool
    n_steps: int
    epsilon_end: float
    exploration_fraction: float
    hold: int
    gamma: float
    scaled: bool


def paper_settings(task: str) -> Settings:
    """The paper's DQN in these terms."""
    cfg = dqn.paper_config(task)
    return Settings(
        learning_rate=cfg.learning_rate,
        gradient_steps=cfg.gradient_steps,
        batch_size=cfg.batch_size,
        learning_starts=cfg.learning_starts,
        target_interval=cfg.target_update_interval,
        hidden=cfg.hidden,
        layer_norm=False,
        n_steps=1,
        epsilon_end=cfg.epsilon_end,
        exploration_fraction=cfg.exploration_fraction,
        hold=1,
        gamma=cfg.gamma,
        scaled=False,
    )


MOST_WORK = 64 * 32 * 128**2
"""Most updates a step, times transitions in one, times the square of the width: 64 updates of 32 in
a net of 128, a quarter of the paper's DQN. Without a limit the search costs hours of CPU time."""


@functools.cache
def candidates(count: int = 12) -> tuple[Settings, ...]:
    """Settings drawn at random, the same for every task, at most `MOST_WORK` each."""
    rng = np.random.default_rng(0)

    def one_of(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    found: list[Settings] = []
    while len(found) < count:
        drawn = Settings(
            learning_rate=float(f"{10 ** rng.uniform(-3.5, -2.3):.1e}"),
            gradient_steps=one_of(8, 16, 32, 64),
            batch_size=one_of(32, 64, 128),
            learning_starts=one_of(32, 100, 200),
            target_interval=one_of(3, 10, 30, 100),
            hidden=one_of((64, 64), (128, 128), (256, 256)),
            layer_norm=one_of(True, False),
            n_steps=one_of(1, 3, 5),
            epsilon_end=one_of(0.01, 0.05, 0.1),
            exploration_fraction=one_of(0.1, 0.3, 0.5),
            hold=one_of(1, 8),
            gamma=one_of(0.95, 0.98, 0.99, 0.995),
            scaled=one_of(True, False),
        )
        if drawn.gradient_steps * drawn.batch_size * drawn.hidden[0] ** 2 <= MOST_WORK:
            found.append(drawn)
    return tuple(found)


# The network -------------------------------------------------------------------------------------


def init_network(key: Array, obs_dim: int, num_actions: int, settings: Settings) -> list[Any]:
    """Weights and biases as torch's `nn.Linear` draws them: uniform within 1 / sqrt(fan_in)."""
    widths = (obs_dim, *settings.hidden, num_actions)
    layers = []
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
        bound = fan_in**-0.5
        keys = jax.random.split(jax.random.fold_in(key, i))
        weights = jax.random.uniform(keys[0], (fan_in, fan_out), jnp.float32, -bound, bound)
        bias = jax.random.uniform(keys[1], (fan_out,), jnp.float32, -bound, bound)
        layers.append((weights, bias))
    return layers


def values(settings: Settings, params: list[Any], obs: Array) -> Array:
    """`[..., A]` at `[..., l]`."""
    x = obs.astype(jnp.float32)
    for weights, bias in params[:-1]:
        x = x @ weights + bias
        if settings.layer_norm:
            x = jax.nn.standardize(x)
        x = jax.nn.relu(x)
    weights, bias = params[-1]
    return x @ weights + bias


def act(settings: Settings, params: list[Any], obs: Array) -> Array:
    """The greedy action `[]`; -1 where a value is not a number."""
    found = values(settings, params, obs)
    return jnp.where(jnp.all(jnp.isfinite(found)), jnp.argmax(found), -1).astype(jnp.int32)


class Greedy(NamedTuple):
    """The greedy policy of a network, for `kqljax.evaluate`."""

    settings: Settings
    params: list[Any]

    def begin(self, key: Array) -> tuple[()]:
        return ()

    def act(self, key: Array, memory: Any, obs: Array) -> tuple[Array, Any]:
        return jax.vmap(lambda row: act(self.settings, self.params, row))(obs), memory


# Training ----------------------------------------------------------------------------------------


class Replay(NamedTuple):
    """Every transition of the run in order, `[C]` rows.

    Attributes:
      obs, next_obs: `[C, l]`. action, reward, terminated, is_last: `[C]`.
      next_value: `[C]` max of the target network at next_obs.
    """

    obs: Array
    action: Array
    reward: Array
    next_obs: Array
    terminated: Array
    is_last: Array
    next_value: Array


def targets(settings: Settings, replay: Replay, count: Array) -> Array:
    """n-step targets `[C]`: rewards to the end of the episode, of the n steps, or of the run."""
    index = jnp.arange(replay.reward.size)
    total, discount = jnp.zeros(index.shape, jnp.float32), 1.0
    going, last = jnp.ones(index.shape, bool), index
    for k in range(settings.n_steps):
        at = jnp.minimum(index + k, replay.reward.size - 1)
        going = going & (index + k < count)
        total = total + jnp.where(going, settings.gamma**k * replay.reward[at], 0.0)
        last = jnp.where(going, at, last)
        discount = jnp.where(going, settings.gamma ** (k + 1), discount)
        going = going & ~replay.is_last[at]
    return total + jnp.where(replay.terminated[last], 0.0, discount * replay.next_value[last])


class Run(NamedTuple):
    """Attributes: `params`, those after each of S checkpoints; `is_finite` `[]` bool."""

    params: Any
    is_finite: Array


def view(task: kqljax.Task, settings: Settings) -> tuple[kqljax.Task, Any]:
    """The task as the network sees it, and what its rewards are divided by."""
    if settings.scaled:
        return task, task.reward_high - task.reward_low
    length = task.obs_dim
    raw = {"centre": np.zeros(length), "half_width": np.ones(length), "clips": False}
    return dataclasses.replace(task, **raw), 1.0


def train(key: Array, task: kqljax.Task, settings: Settings, steps: tuple[int, ...]) -> Run:
    """A run of steps[-1] steps; the network after each of `steps` is kept."""
    seen, unit = view(task, settings)
    num_steps = steps[-1]
    optimiser = optax.chain(
        optax.clip_by_global_norm(10.0), optax.adam(settings.learning_rate, eps=1e-8)
    )
    reset_key, init_key, step_key = jax.random.split(key, 3)
    obs, env_state = seen.reset(reset_key)
    params = init_network(init_key, task.obs_dim, task.num_actions, settings)
    number, flag = jnp.zeros(num_steps, jnp.float32), jnp.zeros(num_steps, bool)
    rows = jnp.zeros((num_steps, task.obs_dim), jnp.float32)
    replay = Replay(rows, jnp.zeros(num_steps, jnp.int32), number, rows, flag, flag, number)

    def state_values(params: Any, obs: Array) -> Array:
        return jnp.max(values(settings, params, obs), axis=-1)

    def update(replay: Replay, count: Array, params: Any, opt_state: Any, key: Array) -> Any:
        shape = settings.gradient_steps, settings.batch_size
        index = jax.random.randint(key, shape, 0, count)
        target = targets(settings, replay, count)

        def loss(params: Any, batch: Array) -> Array:
            found = values(settings, params, replay.obs[batch])
            chosen = jnp.take_along_axis(found, replay.action[batch][:, None], axis=1)[:, 0]
            return jnp.mean(optax.huber_loss(chosen, target[batch]))

        def one(carry: Any, batch: Array) -> Any:
            params, opt_state = carry
            change, opt_state = optimiser.update(jax.grad(loss)(params, batch), opt_state)
            return (optax.apply_updates(params, change), opt_state), None

        return lax.scan(one, (params, opt_state), index)[0]

    def step(t: Array, carry: Any) -> Any:
        obs, env_state, held, params, target_params, opt_state, replay = carry
        keys = jax.random.split(jax.random.fold_in(step_key, t), 4)
        fallen = jnp.minimum(t / (num_steps * settings.exploration_fraction), 1.0)
        epsilon = jnp.where(
            t < settings.learning_starts, 1.0, 1.0 + fallen * (settings.epsilon_end - 1.0)
        )
        # held: the random action that is repeated, and for how many more steps.
        starts = (held[1] == 0) & (jax.random.uniform(keys[0]) < epsilon)
        drawn = jax.random.randint(keys[1], (), 0, task.num_actions, jnp.int32)
        held = (
            jnp.where(starts, drawn, held[0]),
            jnp.where(starts, settings.hold, held[1]),
        )
        action = jnp.where(held[1] > 0, held[0], jnp.maximum(act(settings, params, obs), 0))
        after = seen.step(keys[2], env_state, action)
        is_last = after.terminated | after.truncated
        next_value = state_values(target_params, after.next_obs)
        row = Replay(
            obs,
            action,
            after.raw_reward / unit,
            after.next_obs,
            after.terminated,
            is_last,
            next_value,
        )
        replay = jax.tree.map(lambda all, one: all.at[t].set(one.astype(all.dtype)), replay, row)

        def copied() -> Any:
            return params, replay._replace(next_value=state_values(params, replay.next_obs))

        is_due = (t + 1) % settings.target_interval == 0
        target_params, replay = lax.cond(is_due, copied, lambda: (target_params, replay))
        params, opt_state = lax.cond(
            t + 1 > settings.learning_starts,
            lambda: update(replay, t + 1, params, opt_state, keys[3]),
            lambda: (params, opt_state),
        )
        held = held[0], jnp.where(is_last, 0, jnp.maximum(held[1] - 1, 0))
        return after.obs, after.env_state, held, params, target_params, opt_state, replay

    def checkpoint(carry: Any, ends: tuple[Array, Array]) -> Any:
        carry = lax.fori_loop(*ends, step, carry)
        return carry, carry[3]

    held = jnp.int32(0), jnp.int32(0)
    carry = obs, env_state, held, params, params, optimiser.init(params), replay
    ends = jnp.asarray((0, *steps[:-1]), jnp.int32), jnp.asarray(steps, jnp.int32)
    _, kept = lax.scan(checkpoint, carry, ends)
    is_finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(kept)]))
    return Run(kept, is_finite)


def evaluate(
    key: Array, task: kqljax.Task, settings: Settings, params: Any, episodes: int
) -> Array:
    """Raw returns `[episodes]` of the greedy policy."""
    seen, _ = view(task, settings)
    return kqljax.evaluate(key, seen, Greedy(settings, params), episodes)
