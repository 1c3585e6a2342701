"""Training in rounds, a fit from any transitions, and evaluation."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from kqljax import regression
from kqljax.rounds.ensemble import Ensemble, fit_ensemble, member_values
from kqljax.rounds.learner import Learner, append, fit_learner, optimistic, query
from kqljax.rounds.model import Model, fit_model
from kqljax.rounds.policy import Policy, finished_action
from kqljax.rounds.recipe import Recipe
from kqljax.rounds.transitions import Transitions
from kqljax.rounds.widths import Scales, fit_scales, initial_scales, displacements

Array = jax.Array
LIVE = True
RAW = True

class Round(NamedTuple):
    count: Array
    steps: Array
    refit: Array
    finish: Array


def schedule(recipe: Recipe, num_steps: int) -> list[tuple[int, int, bool, bool]]:
    """(transitions when a round begins, its steps, whether scales are fitted, whether the finished policy is), in order."""
    rounds = []
    count, next_fit, next_own = 0, recipe.first_fit, recipe.own_from
    while count < num_steps:
        steps = min(max(recipe.least_round, int(count * recipe.round_share)), num_steps - count)
        is_fit, is_own = count >= next_fit, count >= next_own
        if is_fit:
            next_fit = max(2 * next_fit, count)
        if is_own:
            next_own = int(np.ceil(recipe.own_growth * count)) if recipe.own_growth > 1 else count + 1
        rounds.append((count, steps, is_fit, is_own))
        count += steps
    return rounds


class Finished(NamedTuple):
    ensemble: Ensemble
    model: Model
    gap: Array
    is_finite: Array


def finish(recipe, transitions, scales, value, most_blocks=None):
    fitted = fit_ensemble(recipe, transitions, scales, most_blocks)
    model = fit_model(recipe, transitions, scales, fitted.centres)
    mean = jnp.mean(member_values(recipe, fitted.ensemble, transitions.next_obs), axis=0)
    goes_on = transitions.is_stored & ~transitions.ended
    promise = value * (1.0 - recipe.gamma) - jnp.max(mean, axis=1) * (1.0 - recipe.finish_gamma)
    gap = jnp.sum(jnp.where(goes_on, promise, 0.0)) / jnp.maximum(jnp.sum(goes_on), 1)
    return Finished(fitted.ensemble, model, gap, fitted.is_finite), fitted.backups


def train(key, task, recipe, num_steps, own_blocks=1):
    plan = schedule(recipe, num_steps)
    reset_key, step_key = jax.random.split(key)
    obs, env_state = task.reset(reset_key)
    num_actions = task.num_actions
    end_value = (0.0 - task.reward_low) / (task.reward_high - task.reward_low)
    transitions = Transitions.empty(num_steps, task.obs_dim, num_actions, end_value)
    cap = 1.0 / (1.0 - recipe.gamma)
    most_new = max(steps for _, steps, _, _ in plan)
    scales = initial_scales(recipe, task.obs_dim, num_actions)
    value = jnp.full(num_steps, cap)
    shapes = jax.eval_shape(lambda: finish(recipe, transitions, scales, value)[0])
    finished = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    # The last entry has no steps: the fit that the run ends with.
    plan = [*plan, (num_steps, 0, num_steps >= 10**9, True)]
    xs = Round(*(jnp.asarray(np.array(column), jnp.int32 if i < 2 else bool) for i, column in enumerate(zip(*plan, strict=True))))

    def one_round(carry, this):
        transitions, scales, value, finished, obs, env_state, episode = carry
        transitions = _at(transitions, this.count)
        scales = lax.cond(this.refit, lambda: fit_scales(recipe, transitions), lambda: scales)
        fitted = fit_learner(recipe, transitions, scales, value, most_new, not RAW)
        value = fitted.value
        is_last = this.steps == 0
        any_end = jnp.any(transitions.ended)
        due = this.finish & ((regression.largest(any_end.astype(jnp.int32)) > 0) | is_last)

        def anew():
            d = displacements(recipe, transitions, scales.weights)
            blocks = jnp.where(is_last, 10**6, own_blocks)
            return finish(recipe, transitions, scales._replace(displacement=d), value, blocks)[0]

        finished = lax.cond(due, anew, lambda: finished)
        is_own = due & any_end & (finished.gap < recipe.own_gap)

        def step(i, carry):
            transitions, learner, obs, env_state, episode = carry
            found = query(recipe, learner, scales, obs)
            values = optimistic(recipe, learner, found)
            action = jnp.where(jnp.all(jnp.isfinite(values)), jnp.argmax(values), -1).astype(jnp.int32)
            action = jnp.where(this.count == 0, 0, action)
            action = lax.cond(is_own, lambda: finished_action(recipe, finished.ensemble, finished.model, obs[None], recipe.own_unclear)[0], lambda: action)
            if LIVE: learner = append(recipe, learner, found, jnp.maximum(action, 0))
            after = task.step(jax.random.fold_in(step_key, this.count + i), env_state, jnp.maximum(action, 0))
            at = this.count + i
            put = lambda array, v: lax.dynamic_update_index_in_dim(array, jnp.asarray(v, array.dtype), at, 0)
            over = after.terminated | after.truncated
            t = transitions
            transitions = _at(Transitions(put(t.obs, obs), put(t.action, jnp.maximum(action, 0)), put(t.reward, after.reward), put(t.next_obs, after.next_obs),
                put(t.discount, jnp.where(after.terminated, 0.0, 1.0)), put(t.is_first, episode == 0), put(t.is_last, over), t.count, t.end_value, t.num_actions), at + 1)
            return transitions, learner, after.obs.astype(obs.dtype), after.env_state, jnp.where(over, 0, episode + 1)

        transitions, _, obs, env_state, episode = lax.fori_loop(0, this.steps, step, (transitions, fitted.learner, obs, env_state, episode))
        return (transitions, scales, value, finished, obs, env_state, episode), (fitted.backups, finished.gap, is_own, fitted.is_finite)

    carry = (transitions, scales, value, finished, obs, env_state, jnp.int32(0))
    carry, log = lax.scan(one_round, carry, xs)
    transitions, scales, value, finished = carry[:4]
    return Policy(recipe, finished.ensemble, finished.model, None, scales, finished.gap, jnp.asarray(False)), transitions, log


def _at(transitions, count):
    import dataclasses
    return dataclasses.replace(transitions, count=jnp.asarray(count, jnp.int32))


def evaluate(key, task, policy, num_episodes=100):
    """Undiscounted raw returns `[num_episodes]`."""
    policy = policy.astype(jnp.float32)
    reset_key, key = jax.random.split(key)
    obs, env_state = jax.vmap(task.reset)(jax.random.split(reset_key, num_episodes))

    def body(s):
        step, obs, env_state, returns, over = s
        action, _ = policy.act(key, (), obs)
        after = jax.vmap(task.step)(jax.random.split(jax.random.fold_in(key, step), num_episodes), env_state, jnp.maximum(action, 0))
        returns = returns + jnp.where(over, 0.0, jnp.where(action < 0, jnp.nan, after.raw_reward))
        return step + 1, after.obs, after.env_state, returns, over | after.terminated | after.truncated

    start = (jnp.int32(0), obs, env_state, jnp.zeros(num_episodes), jnp.zeros(num_episodes, bool))
    return lax.while_loop(lambda s: (s[0] < task.max_steps) & ~jnp.all(s[4]), body, start)[3]
