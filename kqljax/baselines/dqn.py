"""DQN as Stable-Baselines3 does it, as a learner in JAX.

The paper compares KQL with the DQN of Stable-Baselines3 (section 6). This one follows its version
2.9 in what it does and in what order, on raw observations and raw rewards:

* step t (from 0): a random action while t < learning_starts, then epsilon-greedy with epsilon
  linear in t;
* the transition is stored; where t + 1 is a multiple of target_update_interval the target network
  is copied;
* where t + 1 > learning_starts, gradient_steps batches are drawn with replacement from all stored
  transitions;
* the loss is smooth L1, the gradient is clipped in norm, Adam follows;
* a time limit is bootstrapped through, an end is not;
* weights and biases start as torch's `nn.Linear`: uniform within 1 / sqrt(fan_in).

Differences: the stream of random numbers; the target network is evaluated once for all gradient
steps of one environment step, between which it does not change; and tasks that cut off normalised
observations at -1 and 1 (CartPole) cut off what the network sees too.

    run = train(key, task, paper_config("CartPole-v0"), num_steps=1000)

Networks, replay and arithmetic are float32 whether or not jax has float64 enabled.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax

from kqljax._arrays import register
from kqljax._checks import check_positive, is_known, require, whole_number
from kqljax.regression import largest
from kqljax.state import Transition
from kqljax.tasks import Task

Array = jax.Array


class QNetwork(nn.Module):
    """ReLU network `[..., l]` -> `[..., A]`, with the initial weights of torch's `nn.Linear`."""

    hidden: tuple[int, ...]
    num_actions: int

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        x = obs
        for index, width in enumerate((*self.hidden, self.num_actions)):
            init = functools.partial(_uniform, bound=x.shape[-1] ** -0.5)
            x = nn.Dense(width, kernel_init=init, bias_init=init)(x)
            x = x if index == len(self.hidden) else nn.relu(x)
        return x


def _uniform(key: Array, shape: Any, dtype: Any = jnp.float32, *, bound: float) -> Array:
    return jax.random.uniform(key, shape, dtype, -bound, bound)


class Units(NamedTuple):
    """Raw observations and rewards from normalised ones: offset + scale * normalised.

    Attributes:
      offset, scale: `[l]` of observations, float32.
      reward_offset, reward_scale: `[]`.
    """

    offset: Array
    scale: Array
    reward_offset: Array
    reward_scale: Array

    def observation(self, obs: Array) -> Array:
        return (self.offset + self.scale * obs).astype(jnp.float32)

    def reward(self, reward: Array) -> Array:
        return (self.reward_offset + self.reward_scale * reward).astype(jnp.float32)


@functools.partial(register, static=("network",))
@dataclasses.dataclass(frozen=True)
class DQNPolicy:
    """The greedy policy of a Q-network. Observations are normalised: `[l]`, or `[n, l]`.

    Attributes:
      network: its layers (static).
      params: its weights and biases.
      units: from normalised observations to those of the network.
    """

    network: QNetwork
    params: Any
    units: Units

    def begin(self, key: Array) -> tuple[()]:
        """What is remembered within an episode: nothing."""
        return ()

    def act(self, key: Array, memory: Any, obs: Array) -> tuple[Array, Any]:
        """Actions `[]` or `[n]` int32; -1 where a value is not finite."""
        values = self.values(obs)
        is_finite = jnp.all(jnp.isfinite(values), axis=-1)
        return jnp.where(is_finite, jnp.argmax(values, axis=-1), -1).astype(jnp.int32), memory

    def values(self, obs: Array) -> Array:
        """Q `[A]` or `[n, A]`, in units of the raw reward."""
        found: Any = self.network.apply(self.params, self.units.observation(obs))
        return found


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
      policy: the network that learns.
      target_params: its weights and biases, `target_update_interval` steps behind.
      opt_state: moments of Adam.
      replay: stored transitions, capacity C = min(buffer_size, num_steps).
      step: `[]` int32, t.
      num_steps: `[]` int32, length of the run; epsilon falls with it.
    """

    policy: DQNPolicy
    target_params: Any
    opt_state: Any
    replay: Replay
    step: Array
    num_steps: Array


class DQNInfo(NamedTuple):
    """Diagnostics of a step.

    Attributes:
      loss: `[]` mean over the gradient steps; 0 before learning starts.
      is_sound: `[]` bool, the loss is finite.
    """

    loss: Array
    is_sound: Array


_COUNTS = ("buffer_size", "batch_size", "gradient_steps", "target_update_interval")
_STATIC = ("hidden", "learning_starts", *_COUNTS)


@functools.partial(register, static=_STATIC)
@dataclasses.dataclass(frozen=True, kw_only=True)
class DQN:
    """DQN as a learner. The defaults are the paper's, else those of Stable-Baselines3.

    Numbers are pytree leaves: changing or vmapping them does not recompile. Sizes and counts are
    static.

    Attributes:
      learning_rate: of Adam.
      gamma: discount factor in [0, 1].
      epsilon_start: probability of a random action at step 0.
      epsilon_end: the same after the exploration fraction.
      exploration_fraction: part of the run over which epsilon falls, in (0, 1].
      max_grad_norm: the gradient is scaled down to this norm.
      hidden: widths of the hidden layers (static).
      buffer_size: transitions that the replay holds; the oldest are overwritten (static).
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

    def validate(self) -> DQN:
        """Raises ValueError where a value is out of range; returns the learner.

        Values that are not known yet, inside jit, are not looked at.
        """
        for name in _COUNTS:
            whole_number(name, getattr(self, name), 1, "It is a count.")
        whole_number("learning_starts", self.learning_starts, 0, "It is a number of steps.")
        remedy = "It is a tuple of layer widths, for example (64, 64)."
        if not isinstance(self.hidden, tuple):
            raise ValueError(f"hidden must be a tuple, got {self.hidden!r}. {remedy}")
        for width in self.hidden:
            whole_number("hidden", width, 1, remedy)
        if not is_known(self):
            return self
        remedy = "paper_config(name) has the paper's values."
        for name in ("learning_rate", "max_grad_norm"):
            check_positive(name, getattr(self, name), remedy)
        for name in ("gamma", "epsilon_start", "epsilon_end"):
            require(name, getattr(self, name), lambda x: (x >= 0) & (x <= 1), "in [0, 1]", remedy)
        share = self.exploration_fraction
        require("exploration_fraction", share, lambda x: (x > 0) & (x <= 1), "in (0, 1]", remedy)
        return self

    # The learner -------------------------------------------------------------------------------

    def stages(self, num_steps: int) -> tuple[int, ...]:
        """One: the replay has its full size from the beginning."""
        return (num_steps,)

    def begin(self, key: Array, task: Task, capacity: int, dtype: Any) -> DQNState:
        """A fresh network and an empty replay, for a run of `capacity` steps; always float32."""
        self.validate()
        network = QNetwork(self.hidden, task.num_actions)
        params = network.init(key, jnp.zeros(task.obs_dim, jnp.float32))
        numbers = task.centre, task.half_width, task.reward_low, task.reward_high - task.reward_low
        units = Units(*(jnp.asarray(each, jnp.float32) for each in numbers))
        room = min(self.buffer_size, capacity)
        obs, number = jnp.zeros((room, task.obs_dim), jnp.float32), jnp.zeros(room, jnp.float32)
        replay = Replay(obs, jnp.zeros(room, jnp.int32), number, obs, jnp.zeros(room, bool))
        opt_state = self._float32()._optimiser().init(params)
        start, steps = jnp.zeros((), jnp.int32), jnp.asarray(capacity, jnp.int32)
        return DQNState(DQNPolicy(network, params, units), params, opt_state, replay, start, steps)

    def act(self, key: Array, state: DQNState, obs: Array) -> tuple[Array, DQNState]:
        """The action `[]` at one observation `[l]`: random with probability epsilon."""
        draw_key, explore_key = jax.random.split(key)
        is_random = jax.random.uniform(draw_key, dtype=jnp.float32) < self.epsilon(state)
        is_random |= state.step < self.learning_starts
        num_actions = state.policy.network.num_actions
        drawn = jax.random.randint(explore_key, (), 0, num_actions, jnp.int32)
        # A network that has diverged acts at random; `is_sound` says so.
        greedy, _ = state.policy.act(key, (), obs)
        return jnp.where(is_random | (greedy < 0), drawn, greedy), state

    def observe(
        self, key: Array, state: DQNState, transition: Transition, truncated: Array, obs: Array
    ) -> tuple[DQNState, Array, DQNInfo]:
        """Stores a transition and learns; the state, the action at `obs` and diagnostics."""
        learn_key, act_key = jax.random.split(key)
        # Under vmap the counter of all seeds: each cond stays a branch.
        t, units = largest(state.step), state.policy.units
        room = state.replay.reward.shape[0]
        row = Replay(
            units.observation(transition.obs),
            transition.action,
            units.reward(transition.reward),
            units.observation(transition.next_obs),
            transition.terminated,
        )
        replay = jax.tree.map(
            lambda all, one: all.at[t % room].set(jnp.asarray(one, all.dtype)), state.replay, row
        )
        target_params = lax.cond(
            (t + 1) % self.target_update_interval == 0,
            lambda new, old: new,
            lambda new, old: old,
            *(state.policy.params, state.target_params),
        )
        state = state._replace(replay=replay, target_params=target_params)
        state, loss = lax.cond(
            t + 1 > self.learning_starts,
            lambda state: self.learn(learn_key, state, jnp.minimum(t + 1, room)),
            lambda state: (state, jnp.zeros((), jnp.float32)),
            state,
        )
        state = state._replace(step=state.step + 1)
        return state, self.act(act_key, state, obs)[0], DQNInfo(loss, jnp.isfinite(loss))

    def policy(self, state: DQNState, is_end: bool) -> DQNPolicy:
        return state.policy

    # Its parts ---------------------------------------------------------------------------------

    def epsilon(self, state: DQNState) -> Array:
        """Probability `[]` of a random action."""
        progress = state.step.astype(jnp.float32) / state.num_steps
        share = progress / self.exploration_fraction
        falling = self.epsilon_start + share * (self.epsilon_end - self.epsilon_start)
        return jnp.where(progress > self.exploration_fraction, self.epsilon_end, falling)

    def learn(self, key: Array, state: DQNState, num_stored: Any) -> tuple[DQNState, Array]:
        """`gradient_steps` steps of Adam on batches of the replay; the state and the mean loss."""
        cfg, network = self._float32(), state.policy.network
        optimiser = cfg._optimiser()
        index = jax.random.randint(key, (cfg.gradient_steps, cfg.batch_size), 0, num_stored)
        batches = jax.tree.map(lambda stored: stored[index], state.replay)

        def target(batch: Replay) -> Array:
            values: Any = network.apply(state.target_params, batch.next_obs)
            after = jnp.where(batch.terminated, 0.0, cfg.gamma * jnp.max(values, axis=-1))
            return batch.reward + after

        # Cheaper on every stored successor once than on every drawn one, where fewer are stored.
        is_small = state.replay.reward.shape[0] < index.size
        targets = target(state.replay)[index] if is_small else target(batches)

        def loss_of(params: Any, batch: Replay, targets: Array) -> Array:
            values: Any = network.apply(params, batch.obs)
            chosen = jnp.take_along_axis(values, batch.action[..., None], axis=-1)[..., 0]
            return jnp.mean(optax.huber_loss(chosen, targets, delta=1.0))

        def one(carry: Any, data: Any) -> tuple[Any, Array]:
            params, opt_state = carry
            loss, gradient = jax.value_and_grad(loss_of)(params, *data)
            change, opt_state = optimiser.update(gradient, opt_state)
            return (optax.apply_updates(params, change), opt_state), loss

        start = state.policy.params, state.opt_state
        (params, opt_state), losses = lax.scan(one, start, (batches, targets))
        policy = dataclasses.replace(state.policy, params=params)
        return state._replace(policy=policy, opt_state=opt_state), jnp.mean(losses)

    def _optimiser(self) -> optax.GradientTransformation:
        return optax.chain(
            optax.clip_by_global_norm(self.max_grad_norm),
            optax.scale_by_adam(eps=1e-8),
            optax.scale_by_learning_rate(self.learning_rate),
        )

    def _float32(self) -> DQN:
        """With its numbers in float32: a strong float64 would promote the network."""
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), self)


# learning_rate, epsilon_end, exploration_fraction, buffer_size of RL Baselines3 Zoo.
_ZOO = {
    "MountainCar-v0": (4e-3, 0.07, 0.2, 10_000),
    "Acrobot-v1": (6.3e-4, 0.1, 0.12, 50_000),
    "CartPole-v0": (2.3e-3, 0.04, 0.16, 100_000),
    "CartPole-v1": (2.3e-3, 0.04, 0.16, 100_000),
}


def paper_config(task_name: str) -> DQN:
    """DQN with the parameters of the paper's comparison for one of its tasks."""
    if task_name == "Pendulum-v1":
        return DQN()  # the zoo has no discrete Pendulum: the defaults of Stable-Baselines3
    if task_name not in _ZOO:
        raise ValueError(
            f"the paper has no DQN parameters for {task_name!r}. Known: {', '.join(_ZOO)}, "
            "Pendulum-v1. For another task use DQN(learning_rate=..., hidden=(64, 64))."
        )
    rate, epsilon, fraction, size = _ZOO[task_name]
    return DQN(
        learning_rate=rate,
        epsilon_end=epsilon,
        exploration_fraction=fraction,
        buffer_size=size,
        hidden=(256, 256),
    )
