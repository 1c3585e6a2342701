"""Planning in a learned model: the obvious rival of learning values directly.

The same regression (`kqljax.regression`), kernel widths and rounds as the default agent. What is
learned is the environment: s' - s, the reward and the end of each pair. There are two planners:

  value iteration  on stored states, for all actions, in the model; between them Q is a regression.
                   Optimism as in KQL: what is not known is worth up to the cap, as in GP-Rmax
                   (Jung and Stone 2010). The finished policy is fitted without it. Actions are
                   chosen one step ahead in the model.
  shooting         at every step the cross-entropy method over sequences of held actions, valued by
                   the model's rewards and the same optimism, without a value function.

`Planner.horizon` = 0 is value iteration.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import kqljax
from kqljax import regression, rounds
from kqljax._arrays import register
from kqljax.rounds import widths

Array = jax.Array

SIZE, BLOCK = 128, 64
"""Stored pairs in a block of rows, and centres that are chosen at a time."""


@dataclasses.dataclass(frozen=True)
class Planner:
    """All static.

    Attributes:
      gamma, finish_gamma: discount in learning and of the finished policy.
      bonus: standard deviations of optimism in learning, times the cap.
      known_scale, known_coupling, known_ridge: of the regression whose deviation is the bonus;
        the scale in units of the model's.
      coupling, ridge, ends_ridge, narrow: of the model; see `rounds.Recipe`.
      centres: of the model.
      support: states on which values are iterated.
      members: scale, in the same units, and ridge of regressions between them. In learning the
        first one counts; the finished policy iterates with each and acts by the mean.
      sweeps, tolerance: most sweeps, and the change, as a share of the cap, below which they end.
      horizon, hold: decisions in a sequence of shooting, and steps that each is held. A horizon of
        0 is value iteration.
      samples, elites, iterations: of the cross-entropy method.
    """

    gamma: float = 0.97
    finish_gamma: float = 0.98
    bonus: float = 1.0
    known_scale: float = 0.2
    known_coupling: float = 0.99
    known_ridge: float = 3e-4
    coupling: float = 0.9
    ridge: float = 1e-4
    ends_ridge: float = 1e-2
    narrow: float = 0.01
    centres: int = 512
    support: int = 384
    members: tuple[tuple[float, float], ...] = ((1.0, 1e-3), (1.0, 1e-2), (3.0, 1e-3))
    sweeps: int = 300
    tolerance: float = 1e-3
    horizon: int = 0
    hold: int = 3
    samples: int = 48
    elites: int = 6
    iterations: int = 3


class Model(NamedTuple):
    """The environment as regressed on m centres.

    Attributes:
      obs `[m, l]`, action `[m]`, is_used `[m]`: the centres.
      weights: `[m, l + 2]` of s' - s, reward, end.
      mean: `[l + 2]`.
      scale: `[l]` inverse squared widths.
      end_value: `[]` of an end, as a share of the cap.
    """

    obs: Array
    action: Array
    is_used: Array
    weights: Array
    mean: Array
    scale: Array
    end_value: Array


class Known(NamedTuple):
    """Which pairs have been seen, by a wider kernel than the model's.

    Attributes:
      obs `[m, l]`, action `[m]`, is_used `[m]`: centres.
      lower: `[m, m]` factor of the kernel between them.
      inverse: `[m, m]` L with L^T L = (F^T F + ridge I)^-1.
      scale: `[l]`.
    """

    obs: Array
    action: Array
    is_used: Array
    lower: Array
    inverse: Array
    scale: Array


def kernel(planner: Planner, scale: Array, x: Array, z: Array) -> Array:
    """exp(-d) and a little of a narrow kernel, which keeps a wall local."""
    distance = widths.squared_distances(x, z, scale)
    return jnp.exp(-distance) + planner.narrow * jnp.exp(-27.0 * distance)


def centres(between: Any, count: Array, size: int, most: int, prior: float) -> Any:
    """Centres among `count` stored inputs in `size` rows, and the features of all rows.

    between(rows, index) is the kernel. Choice and features are those of `regression.span`.
    """
    rows = regression.Rows(count, blocks=size // SIZE, size=SIZE, groups=1)
    found = regression.span(
        lambda r, index: between(r * SIZE + jnp.arange(SIZE), index),
        lambda index: between(index, index),
        rows,
        most=most,
        block=BLOCK,
        tolerance=1e-6,
        prior=prior,
    )
    return found, regression.dense(found, rows, rows.blocks, most)[0]


def fit_model(planner: Planner, data: rounds.Transitions, scale: Array) -> Model:
    def between(i: Array, j: Array) -> Array:
        same = widths.agree(data.action[i], data.action[j], planner.coupling)
        return kernel(planner, scale, data.obs[i], data.obs[j]) * same

    found, features = centres(
        between, data.count, data.capacity, planner.centres, 1 + planner.narrow
    )
    is_stored = data.is_stored[:, None]
    ended = data.ended.astype(data.obs.dtype)[:, None]
    targets = jnp.concatenate([data.next_obs - data.obs, data.reward[:, None], ended], axis=1)
    mean = jnp.sum(jnp.where(is_stored, targets, 0.0), axis=0) / jnp.maximum(data.count, 1)
    mean = mean.at[-1].set(0.0)
    projected = features.T @ jnp.where(is_stored, targets - mean, 0.0)
    near = regression.ridge_on_features(features, planner.ridge)
    far = regression.ridge_on_features(features, planner.ends_ridge)
    weights = [
        near.inverse.T @ (near.inverse @ projected[:, :-1]),
        far.inverse.T @ (far.inverse @ projected[:, -1:]),
    ]
    return Model(
        obs=data.obs[found.pivot],
        action=data.action[found.pivot],
        is_used=found.is_used,
        weights=regression.solve_lower_transposed(found.lower, jnp.concatenate(weights, axis=1)),
        mean=mean,
        scale=scale,
        end_value=data.end_value,
    )


def fit_known(planner: Planner, data: rounds.Transitions, scale: Array) -> Known:
    scale = planner.known_scale * scale

    def between(i: Array, j: Array) -> Array:
        same = widths.agree(data.action[i], data.action[j], planner.known_coupling)
        return jnp.exp(-widths.squared_distances(data.obs[i], data.obs[j], scale)) * same

    most = planner.centres // 2
    found, features = centres(between, data.count, data.capacity, most, 1.0)
    inverse = regression.ridge_on_features(features, planner.known_ridge).inverse
    return Known(
        data.obs[found.pivot], data.action[found.pivot], found.is_used, found.lower, inverse, scale
    )


def deviation(planner: Planner, known: Known, obs: Array, action: Array) -> Array:
    """How little is known of pairs, `[n]` in [0, 1]."""
    cross = jnp.exp(-widths.squared_distances(obs, known.obs, known.scale))
    cross = cross * widths.agree(action, known.action, planner.known_coupling) * known.is_used
    features = regression.solve_lower(known.lower, cross.T)
    left = 1.0 - jnp.sum(features**2, axis=0)
    left = left + planner.known_ridge * jnp.sum((known.inverse @ features) ** 2, axis=0)
    return jnp.sqrt(jnp.clip(left, 0.0, 1.0))


class Steps(NamedTuple):
    """Attributes: `next_obs` `[n, l]`, `reward` `[n]`, `end` `[n]` in [0, 1]."""

    next_obs: Array
    reward: Array
    end: Array


def predict(planner: Planner, model: Model, obs: Array, action: Array) -> Steps:
    """What the model makes of pairs `[n, l]`, `[n]`."""
    cross = kernel(planner, model.scale, obs, model.obs)
    cross = cross * widths.agree(action, model.action, planner.coupling) * model.is_used
    found = cross @ model.weights + model.mean
    reward, end = jnp.clip(found[:, -2], 0.0, 1.0), jnp.clip(found[:, -1], 0.0, 1.0)
    return Steps(obs + found[:, :-2], reward, end)


def every_action(obs: Array, num_actions: int) -> tuple[Array, Array]:
    """All pairs of states `[n, l]`: `[n * A, l]` and `[n * A]`."""
    actions = jnp.tile(jnp.arange(num_actions, dtype=jnp.int32), obs.shape[0])
    return jnp.repeat(obs, num_actions, axis=0), actions


@functools.partial(register, static=("planner", "num_actions"))
@dataclasses.dataclass(frozen=True)
class Policy:
    """Acts by the model; `kqljax.rounds.evaluate` takes it.

    Attributes:
      planner, num_actions: static.
      model: of the environment.
      support: `[S, l]` states on which values were iterated.
      weights: `[S, A]` of Q between them, for each member in use.
      known: what the bonus is made of in learning, None after it.
      gamma: `[]`.
      prior: `[]` value where no state of the support is near.
    """

    planner: Planner
    num_actions: int
    model: Model
    support: Array
    weights: tuple[Array, ...]
    known: Known | None
    gamma: Array
    prior: Array

    def begin(self, key: Array) -> tuple[()]:
        return ()

    def act(self, key: Array, memory: Any, obs: Array) -> tuple[Array, Any]:
        """Actions `[n]` at `[n, l]`."""
        values = self.shoot(key, obs) if self.planner.horizon else self.look(obs)
        good = jnp.all(jnp.isfinite(values), axis=1)
        return jnp.where(good, jnp.argmax(values, axis=1), -1).astype(jnp.int32), memory

    @property
    def cap(self) -> Array:
        return 1.0 / (1.0 - self.gamma)

    def bonus(self, obs: Array, action: Array) -> Any:
        """Optimism `[n]` at pairs."""
        if self.known is None:
            return 0.0
        return self.planner.bonus * self.cap * deviation(self.planner, self.known, obs, action)

    def targets(self, steps: Steps, value: Array, bonus: Any) -> Array:
        """Values of pairs `[n]` from the values of their successors."""
        after = steps.end * self.model.end_value * self.cap + (1.0 - steps.end) * value
        return jnp.clip(steps.reward + self.gamma * after + bonus, 0.0, self.cap)

    def look(self, obs: Array) -> Array:
        """`[n, A]` one step ahead in the model."""
        pairs = every_action(obs, self.num_actions)
        steps = predict(self.planner, self.model, *pairs)
        members = [
            self.clipped(self.cross(steps.next_obs, scale), weights)
            for (scale, _), weights in zip(self.planner.members, self.weights, strict=False)
        ]
        value = jnp.max(sum(members) / len(members), axis=1)
        return self.targets(steps, value, self.bonus(*pairs)).reshape(obs.shape[0], -1)

    def clipped(self, operator: Array, table: Array) -> Array:
        """Q `[n, A]` from an operator `[n, S]` on a table `[S, A]` of Q less the prior."""
        return jnp.clip(self.prior + operator @ table, 0.0, self.cap)

    def cross(self, obs: Array, scale: float) -> Array:
        """Kernel `[n, S]` between states and the support."""
        return jnp.exp(-widths.squared_distances(obs, self.support, scale * self.model.scale))

    def shoot(self, key: Array, obs: Array) -> Array:
        """`[n, A]` how often the elite begins with an action."""
        planner, count = self.planner, obs.shape[0]
        shape = count, planner.horizon, self.num_actions

        def value(plans: Array) -> Array:
            def step(carry: Any, action: Array) -> Any:
                obs, total, going = carry
                steps = predict(planner, self.model, obs, action)
                total = total + going * self.targets(steps, 0.0, self.bonus(obs, action))
                return (steps.next_obs, total, going * self.gamma * (1.0 - steps.end)), None

            actions = jnp.repeat(plans.reshape(-1, planner.horizon).T, planner.hold, axis=0)
            many = jnp.repeat(obs, planner.samples, axis=0)
            nothing = jnp.zeros(many.shape[0])
            return lax.scan(step, (many, nothing, nothing + 1.0), actions)[0][1].reshape(count, -1)

        def improve(logits: Array, key: Array) -> tuple[Array, None]:
            plans = jax.random.categorical(
                key, logits[:, None], shape=(count, planner.samples, planner.horizon)
            )
            best = jnp.argsort(-value(plans), axis=1)[:, : planner.elites]
            elite = jnp.take_along_axis(plans, best[..., None], axis=1)
            share = jnp.mean(jax.nn.one_hot(elite, self.num_actions), axis=1)
            return jnp.log(0.9 * share + 0.1 / self.num_actions), None

        logits, _ = lax.scan(improve, jnp.zeros(shape), jax.random.split(key, planner.iterations))
        return logits[:, 0]


def fit(planner: Planner, data: rounds.Transitions, scale: Array, is_last: bool) -> Policy:
    """Model and values from all transitions, with the given widths; at the end without optimism."""
    model = fit_model(planner, data, scale)
    known = None if is_last else fit_known(planner, data, scale)
    gamma = planner.finish_gamma if is_last else planner.gamma
    prior = 0.0 if is_last else 1.0 / (1.0 - gamma)
    wide = planner.members[0][0] * scale

    def between(i: Array, j: Array) -> Array:
        return jnp.exp(-widths.squared_distances(data.obs[i], data.obs[j], wide))

    found, _ = centres(between, data.count, data.capacity, planner.support, 1.0)
    support, is_used = data.obs[found.pivot], found.is_used
    numbers = jnp.asarray(gamma), jnp.asarray(prior)
    policy = Policy(planner, data.num_actions, model, support, (), known, *numbers)
    if planner.horizon:
        return policy
    pairs = every_action(support, data.num_actions)
    steps, bonus = predict(planner, model, *pairs), policy.bonus(*pairs)
    nothing = jnp.zeros((planner.support, data.num_actions))

    def iterate(member: tuple[float, float]) -> Array:
        width, ridge = member
        fitted = regression.factor(policy.cross(support, width), ridge, is_used)
        cross = policy.cross(steps.next_obs, width)
        ahead = regression.solve(fitted, cross.T).T  # [S A, S]

        def sweep(carry: Any) -> Any:
            table, made, _ = carry
            value = jnp.max(policy.clipped(ahead, table), axis=1)
            new = policy.targets(steps, value, bonus).reshape(table.shape) - prior
            new = jnp.where(is_used[:, None], new, 0.0)
            return new, made + 1, jnp.max(jnp.abs(new - table))

        def is_going(carry: Any) -> Array:
            return (carry[2] > planner.tolerance * policy.cap) & (carry[1] < planner.sweeps)

        # From the prior: from the cap in learning, from 0 after it.
        table, _, _ = lax.while_loop(is_going, sweep, (nothing, 0, jnp.inf))
        return regression.solve(fitted, table)

    members = planner.members if is_last else planner.members[:1]
    return dataclasses.replace(policy, weights=tuple(map(iterate, members)))


def finish(planner: Planner, data: rounds.Transitions) -> Policy:
    """The policy after a run."""
    scale = widths.fit_weights(rounds.DEFAULT, data)
    return fit(planner, data, scale, is_last=True)


def train(key: Array, task: kqljax.Task, planner: Planner, num_steps: int) -> rounds.Transitions:
    """The transitions of a run in the default recipe's rounds."""
    plan = rounds.schedule(rounds.DEFAULT, num_steps)[:-1]
    end_value = (0.0 - task.reward_low) / (task.reward_high - task.reward_low)
    capacity = -(-num_steps // SIZE) * SIZE
    data = rounds.Transitions.empty(capacity, task.obs_dim, task.num_actions, end_value)
    obs, env_state = task.reset(jax.random.fold_in(key, num_steps))

    def one_round(carry: Any, this: Any) -> Any:
        data, scale, acting = carry
        scale = lax.cond(
            this.due.scales, lambda: widths.fit_weights(rounds.DEFAULT, data), lambda: scale
        )
        policy = fit(planner, data, scale, is_last=False)

        def step(i: Array, carry: Any) -> Any:
            data, (obs, env_state, is_first) = carry
            at = this.begins_at + i
            act_key, env_key = jax.random.split(jax.random.fold_in(key, at))
            action = jnp.maximum(policy.act(act_key, (), obs[None])[0][0], 0)
            after = task.step(env_key, env_state, action)
            is_last = after.terminated | after.truncated
            discount = jnp.where(after.terminated, 0.0, 1.0)
            names = ("obs", "action", "reward", "next_obs", "discount", "is_first", "is_last")
            row = (obs, action, after.reward, after.next_obs, discount, is_first, is_last)
            put = {
                name: getattr(data, name).at[at].set(each)
                for name, each in zip(names, row, strict=True)
            }
            data = dataclasses.replace(data, count=jnp.int32(at + 1), **put)
            return data, (after.obs.astype(obs.dtype), after.env_state, is_last)

        data, acting = lax.fori_loop(0, this.steps, step, (data, acting))
        return (data, scale, acting), None

    each = jax.tree.map(lambda *column: jnp.asarray(np.array(column, np.int32)), *plan)
    scale = jnp.full(task.obs_dim, rounds.DEFAULT.start_width)
    start = data, scale, (obs, env_state, jnp.array(True))
    return lax.scan(one_round, start, each)[0][0]
