"""Recipes: what a run takes besides the task and the number of steps, the same for every task.

    cfg = ROBUST.config(task, horizon=1000)
    run = train(task, cfg, key)          # fits the kernel on the way
    returns = evaluate(task, cfg, run.state, key)

`paper` is section 6 of the paper: its kernel width is set by hand for each task. `robust` is for one run on a task that nobody
has tuned for: nothing in it depends on the task but through the transitions seen. docs/recipe.md has what each part buys, and
what was tried and left out.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from kqljax import checks, rollout
from kqljax.arrays import in_dtype
from kqljax.committee import Panel, committee_policy, convene
from kqljax.config import KQLConfig
from kqljax.errors import is_known, unknown_name
from kqljax.fitting import FIRST_FIT, fit_counts, fit_kernel, is_fittable
from kqljax.kernels import Afterstate, Kernel, TwoScale
from kqljax.kql import kql_act, kql_grow, kql_init, kql_step
from kqljax.pytrees import register
from kqljax.rollout import Carry, RunKeys, TrainLog
from kqljax.state import KQLState, Transition
from kqljax.tasks import Task

Array = jax.Array


@functools.partial(register, static=("name", "backups", "first_fit", "committee"))
@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to run KQL.

    lam and beta are the paper's in both, lam = 1 / (10 T) and beta = sqrt(lam) / (1 - gamma): all values start at their cap.

    Attributes:
      name: for tables and errors.
      gamma: discount factor.
      backups: Bellman backups a step.
      kernel: what a run begins with; None is the paper's RBF with the task's own width.
      first_fit: transitions before the kernel is fitted for the first time, then at twice as many each time; None is never.
      committee: how the policy decides when the run is over (`kqljax.committee`); None is as in learning, by Q-tilde.

    Examples:
      >>> from kqljax.recipes import PAPER, ROBUST
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> PAPER.config(task, 1000).gamma, ROBUST.config(task, 1000).gamma
      (0.95, 0.97)
    """

    name: str
    gamma: Any = KQLConfig.gamma
    backups: int = KQLConfig.backups
    kernel: Kernel | None = None
    first_fit: int | None = None
    committee: Panel | None = None

    def config(self, task: Task, horizon: int, **overrides: Any) -> KQLConfig:
        """The config that a run of `horizon` steps begins with."""
        kernel = self.kernel_for(task.obs_dim, task.num_actions)
        return task.config(**{"kernel": kernel, "horizon": horizon, "gamma": self.gamma, "backups": self.backups} | overrides)

    def kernel_for(self, obs_dim: int, num_actions: int) -> Kernel | None:
        """The kernel to begin with, with a width for each coordinate and an effect of each action where they will be fitted."""
        kernel = self.kernel
        if isinstance(kernel, Afterstate) and isinstance(kernel.kernel, TwoScale):
            effect = _filled(kernel.effect, (num_actions, obs_dim))
            return dataclasses.replace(kernel, kernel=_with_widths(kernel.kernel, obs_dim), effect=effect)
        return _with_widths(kernel, obs_dim) if isinstance(kernel, TwoScale) else kernel


def _with_widths(kernel: TwoScale, obs_dim: int) -> TwoScale:
    return dataclasses.replace(kernel, eta=_filled(kernel.eta, (obs_dim,)))


def _filled(value: Any, shape: tuple[int, ...]) -> Any:
    """An array with `value` in every entry."""
    # In numpy where that can be: a jax array would take the precision that jax has enabled now.
    return np.full(shape, value, np.float64) if is_known(value) and np.ndim(value) == 0 else jnp.broadcast_to(value, shape)


PAPER = Recipe(name="paper")
ROBUST = Recipe(
    name="robust",
    gamma=0.97,
    backups=2,
    kernel=Afterstate(TwoScale(eta_action=0.002, share=0.1)),
    first_fit=FIRST_FIT,
    committee=Panel(),
)

RECIPES = {recipe.name: recipe for recipe in (PAPER, ROBUST)}


def make_recipe(name: str | Recipe) -> Recipe:
    """A recipe by name; one that is given as such is returned.

    Examples:
      >>> from kqljax.recipes import make_recipe
      >>> make_recipe("robust").backups
      2
    """
    if isinstance(name, Recipe):
        return name
    if name not in RECIPES:
        raise ValueError(unknown_name("recipe", str(name), RECIPES))
    return RECIPES[name]


# A run ---------------------------------------------------------------------------------------------------------------


class Fitted(NamedTuple):
    """What was learned, with the kernel it was learned with.

    Attributes:
      kernel: as the last fit left it.
      state: KQL's state.
    """

    kernel: Kernel
    state: KQLState

    def config(self, cfg: KQLConfig) -> KQLConfig:
        """The config with the fitted kernel: what `kql_act` and the others want beside `state`."""
        return dataclasses.replace(cfg, kernel=self.kernel)


class FittedRun(NamedTuple):
    """Result of `train`.

    Attributes:
      state: what was learned.
      log: what happened at each step.
      curve: `[E, num_episodes]` returns at the steps of `eval_at`.
    """

    state: Fitted
    log: TrainLog
    curve: Array


def train(
    task: Task,
    cfg: KQLConfig,
    key: Array,
    num_steps: int | None = None,
    *,
    first_fit: int | None = ROBUST.first_fit,
    committee: Panel | None = ROBUST.committee,
    dtype: Any = None,
    eval_at: tuple[int, ...] = (),
    eval_episodes: int = 20,
) -> FittedRun:
    """`kqljax.train` with a kernel that is fitted on the way. Pure, and compiled once, as that.

    After 125, 250, 500, ... transitions the kernel's widths are fitted to them, and they are learned from anew in their order:
    the state is at any time what Algorithm 1 holds after the same transitions with the kernel of now.

    Args:
      cfg: of `Recipe.config`; its kernel is an `Afterstate` of a `TwoScale`, or a `TwoScale`, with a width for each coordinate.
      first_fit: None for no fits.
      committee: of the policy that is evaluated at the steps of `eval_at`.

    Examples:
      >>> from kqljax import recipes
      >>> task = kqljax.make_task("MountainCar-v0")
      >>> cfg = recipes.ROBUST.config(task, horizon=20)
      >>> run = jax.jit(lambda key: recipes.train(task, cfg, key, first_fit=10))(jax.random.key(0))
      >>> int(run.state.state.num_stored), run.state.kernel.kernel.eta.shape, run.state.kernel.effect.shape
      (20, (2,), (3, 2))
    """
    num_steps = cfg.horizon if num_steps is None else num_steps
    rollout.check_run(cfg, num_steps, eval_at)
    fits = () if first_fit is None else fit_counts(num_steps, first_fit)
    if fits and not is_fittable(cfg.kernel):
        raise ValueError(
            f"only TwoScale, and Afterstate of it, can be fitted, the config's kernel is {type(cfg.kernel).__name__}. "
            "Take the kernel of recipes.ROBUST, or first_fit=None."
        )
    if fits and cfg.features is not None:
        raise ValueError("features are made for one kernel, which a fit would change: give first_fit=None, or no features.")
    if not fits and not (eval_at and committee is not None):
        plain = rollout.train(task, cfg, key, num_steps, dtype=dtype, eval_at=eval_at, eval_episodes=eval_episodes)
        return FittedRun(Fitted(cfg.kernel, plain.state), plain.log, plain.curve)
    keys = rollout.split_key(key)
    sizes = _stages(fits, num_steps)
    stops = sorted({*sizes, *eval_at})
    capacities = [next(size for size in sizes if size >= stop) for stop in stops]
    carry = rollout.begin(task, cfg, keys, dtype, capacities[0])
    cfg = in_dtype(cfg, carry.state.reward.dtype)

    logs: list[TrainLog] = []
    parts: list[Transition] = []
    curve, done = [], 0
    for stop, capacity in zip(stops, capacities, strict=True):
        if done in fits:
            seen = _joined(parts)
            cfg = dataclasses.replace(cfg, kernel=fit_kernel(cfg.kernel, seen))
            carry = _learn_anew(task, cfg, carry, seen, keys)
        if capacity > carry.state.capacity:
            carry = carry._replace(state=kql_grow(carry.state, capacity, is_full=True))

        def step(carry: Carry, key: Array, cfg: KQLConfig = cfg) -> tuple[Carry, tuple[TrainLog, Transition]]:
            carry, log, transition = rollout.advance_and_tell(task, cfg, carry, key)
            return carry, (log, in_dtype(transition, carry.state.reward.dtype))

        carry, (log, transitions) = lax.scan(step, carry, rollout.step_keys(keys, done, stop - done))
        logs.append(log)
        parts.append(transitions)
        done = stop
        if stop in eval_at:
            eval_key = jax.random.fold_in(keys.evaluate, stop)
            fitted = Fitted(cfg.kernel, carry.state)
            curve.append(evaluate(task, cfg, fitted, eval_key, eval_episodes, committee=committee))
    returns = jnp.stack(curve) if curve else jnp.zeros((0, eval_episodes))
    return FittedRun(Fitted(cfg.kernel, carry.state), _joined(logs), returns)


def evaluate(
    task: Task,
    cfg: KQLConfig,
    fitted: Fitted,
    key: Array,
    num_episodes: int = 100,
    *,
    committee: Panel | None = ROBUST.committee,
) -> Array:
    """`kqljax.evaluate` with the fitted kernel, and with the recipe's committee where it has one."""
    cfg = fitted.config(cfg)
    if committee is None:
        return rollout.evaluate(task, cfg, fitted.state, key, num_episodes)
    checks.whole_number("num_episodes", num_episodes, 1, "It is the number of evaluation episodes.")
    policy = committee_policy(cfg, fitted.state, convene(cfg, fitted.state, committee), committee)
    return rollout.rollout_returns(task, lambda obs, key: policy(obs, key)[0], key, num_episodes)


def _joined(parts: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def _stages(fits: tuple[int, ...], num_steps: int) -> list[int]:
    """Capacities of a run: up to each fit, and one halfway where fits are far apart, since a step costs capacity squared."""
    ends = [*fits, num_steps]
    return sorted({*ends, *((low + high) // 2 for low, high in itertools.pairwise(ends) if high - low > 2 * FIRST_FIT)})


def _learn_anew(task: Task, cfg: KQLConfig, carry: Carry, seen: Transition, keys: RunKeys) -> Carry:
    """The run with a state that has learned from the same transitions with another kernel, and the action that it takes."""
    count = seen.reward.shape[0]
    empty = kql_init(cfg, task.obs_dim, carry.state.reward.dtype, capacity=count)
    state, _ = lax.scan(lambda state, transition: (kql_step(cfg, state, transition)[0], None), empty, seen)
    action, _ = kql_act(cfg, state, carry.obs, jax.random.fold_in(keys.act, count))
    return carry._replace(state=state, action=action)
