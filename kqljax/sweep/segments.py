"""The compiled parts of a sweep: runs side by side, over the devices of this process.

A program works on a chunk of B runs, each a seed of a setting. Seeds need nothing of each other, so that every device runs
its own share of them and no device waits for another; or, where a single run is too large for one device, all devices share
the rows of its T x T arrays.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from kqljax import rollout, sharding
from kqljax.arrays import in_dtype
from kqljax.kql import kql_grow
from kqljax.sweep.groups import Group, Segment

Array = jax.Array

SEEDS, ROWS = "seeds", "rows"
SHARDS = (SEEDS, ROWS)


class Health(NamedTuple):
    """What became of a run so far.

    Attributes:
      is_going: `[]` bool; False from the step on at which a number was not finite. Nothing is learned after that.
      stopped_at: `[]` int32, that step, or -1.
      episodes: `[]` int32, episodes that came to an end while learning.
      return_sum: `[]` sum of their raw returns.
      refused: `[]` int32, transitions that were left out (see `KQLInfo.is_stored`).
      residual: `[]` largest residual, a certificate of the arithmetic.
    """

    is_going: Array
    stopped_at: Array
    episodes: Array
    return_sum: Array
    refused: Array
    residual: Array


class RunCarry(NamedTuple):
    """A run between two segments.

    Attributes:
      run: state of learner and environment.
      keys: random keys of the training.
      eval_key: random key of the evaluation at the end.
      health: what became of it so far.
    """

    run: rollout.Carry
    keys: rollout.RunKeys
    eval_key: Array
    health: Health


# One run -------------------------------------------------------------------------------------------------------------


def begin_run(task: Any, cfg: Any, seed: Array, dtype: str, capacity: int) -> RunCarry:
    """A run before its first step; the same random numbers as seed `seed` of `kqljax table1`."""
    train_key, eval_key = jax.random.split(jax.random.key(seed))
    keys = rollout.split_key(train_key)
    run = rollout.begin(task, cfg, keys, dtype, capacity)
    none = jnp.zeros((), jnp.int32)
    health = Health(jnp.ones((), bool), none - 1, none, jnp.zeros(()), none, jnp.zeros((), dtype))
    return RunCarry(run, keys, eval_key, health)


def run_segment(task: Any, cfg: Any, carry: RunCarry, start: Array, length: int) -> RunCarry:
    """`length` steps from step `start` on."""
    cfg = in_dtype(cfg, carry.run.state.reward.dtype)

    def body(inner: Any, key: Array) -> Any:
        run, was_going = inner
        run, log = rollout.advance(task, cfg, run, key)
        is_sound = log.info.is_finite & (run.action >= 0) & jnp.all(jnp.isfinite(run.obs)) & jnp.isfinite(log.raw_reward)
        is_going = was_going & is_sound
        # Without an action nothing is learned: the state stays what it was when the trouble was noticed.
        return (run._replace(action=jnp.where(is_going, run.action, -1)), is_going), (log, was_going, is_going)

    before = carry.health
    (run, is_going), (log, was_going, going) = lax.scan(
        body, (carry.run, before.is_going), rollout.step_keys(carry.keys, start, length)
    )
    is_over = (log.terminated | log.truncated) & going
    stops_here = before.is_going & ~is_going
    health = Health(
        is_going=is_going,
        stopped_at=jnp.where(stops_here, start + jnp.argmin(going), before.stopped_at).astype(jnp.int32),
        episodes=before.episodes + jnp.sum(is_over, dtype=jnp.int32),
        return_sum=before.return_sum + jnp.sum(jnp.where(is_over, log.episode_return, 0.0)),
        refused=before.refused + jnp.sum(was_going & ~log.info.is_stored, dtype=jnp.int32),
        residual=jnp.maximum(before.residual, jnp.max(jnp.where(going, log.info.residual, 0.0))),
    )
    return RunCarry(run, carry.keys, carry.eval_key, health)


def evaluate_run(task: Any, cfg: Any, carry: RunCarry, key: Array, num_episodes: int) -> Array:
    """Raw returns `[num_episodes]`."""
    return rollout.evaluate(task, cfg, carry.run.state, key, num_episodes)


# Many runs -----------------------------------------------------------------------------------------------------------


class Programs:
    """The compiled programs of a group, each made once.

    Args:
      shard: "seeds" spreads runs over the devices, "rows" the T x T arrays of each run.
      devices: of this process; a chunk of runs must be a multiple of their number where seeds are spread.
    """

    def __init__(self, group: Group, shard: str, devices: Sequence[Any]) -> None:
        self.group, self.shard = group, shard
        if shard == ROWS:
            self.mesh = sharding.row_mesh(devices)
        else:
            self.mesh = Mesh(np.asarray(devices), (SEEDS,), axis_types=(AxisType.Auto,))
        self._made: dict[Any, Callable[..., Any]] = {}

    def begin(self, rows: Any, seeds: np.ndarray, capacity: int) -> RunCarry:
        """Runs `[B]` before their first step."""
        make = functools.partial(begin_run, dtype=self.group.dtype, capacity=capacity)
        template = self._template(rows, seeds, capacity)
        return self._call(("begin", capacity), make, rows, jnp.asarray(seeds), (), template)

    def grow(self, rows: Any, carry: RunCarry, capacity: int) -> RunCarry:
        """The same runs with room for more transitions; their slots are all taken."""

        def make(task: Any, cfg: Any, carry: RunCarry) -> RunCarry:
            return _grown(carry, capacity)

        return self._call(("grow", capacity), make, rows, carry, (), _grown_shapes(carry, capacity))

    def segment(self, rows: Any, carry: RunCarry, segment: Segment) -> RunCarry:
        """The runs after a segment. The old ones are donated."""
        program = self.segment_program(carry, segment.stop - segment.start)
        with self.context():
            return program(self.group.fixed, rows, carry, np.int32(segment.start))

    def segment_program(self, carry: RunCarry, length: int) -> Callable[..., RunCarry]:
        """The jitted (fixed, rows, runs, start) -> runs for runs of these shapes, for who wants to lower or export it."""
        make = functools.partial(run_segment, length=length)
        return self._program(("segment", carry.run.state.capacity, length), make, carry, 1, carry, is_donated=True)

    def evaluate(self, rows: Any, carry: RunCarry, num_episodes: int, step: int | None = None) -> np.ndarray:
        """Raw returns `[B, num_episodes]`: at the end, or after `step` for a learning curve."""

        def make(task: Any, cfg: Any, carry: RunCarry, step: Array) -> Array:
            key = jnp.where(step < 0, carry.eval_key, jax.random.fold_in(carry.keys.evaluate, step))
            return evaluate_run(task, cfg, carry, key, num_episodes)

        batch = carry.health.is_going.shape[0]
        template = jax.ShapeDtypeStruct((batch, num_episodes), jnp.zeros(()).dtype)
        at = np.int32(-1 if step is None else step)
        capacity = carry.run.state.capacity
        return np.asarray(self._call(("evaluate", num_episodes, capacity), make, rows, carry, (at,), template), np.float64)

    def template(self, rows: Any, seeds: np.ndarray, segments: Sequence[Segment]) -> RunCarry:
        """Shapes of the runs after these segments."""
        carry = self._template(rows, seeds, segments[0].capacity)
        for segment in segments:
            if segment.capacity > carry.run.state.capacity:
                carry = _grown_shapes(carry, segment.capacity)
        return carry

    def place(self, carry: RunCarry) -> RunCarry:
        """Arrays of a file on the devices where they belong."""
        return jax.device_put(carry, self._shardings(carry))

    def _template(self, rows: Any, seeds: np.ndarray, capacity: int) -> RunCarry:
        def make(fixed: Any, row: Any, seed: Array) -> RunCarry:
            task, cfg = self.group.join(fixed, row)
            return begin_run(task, cfg, seed, self.group.dtype, capacity)

        one = jax.tree.map(lambda leaf: leaf[0], rows)
        # Capacity and shapes are those of any run; its seed does not matter.
        carry = jax.eval_shape(make, self.group.fixed, one, jnp.asarray(seeds)[0])
        axes = _axes(carry)
        batch = len(seeds)
        return jax.tree.map(
            lambda leaf, axis: leaf if axis is None else jax.ShapeDtypeStruct((batch, *leaf.shape), leaf.dtype), carry, axes
        )

    def _call(self, name: Any, function: Callable[..., Any], rows: Any, runs: Any, more: tuple[Any, ...], out: Any) -> Any:
        program = self._program(name, function, runs, len(more), out)
        with self.context():
            return program(self.group.fixed, rows, runs, *more)

    def context(self) -> Any:
        """Where rows are spread, the mesh must be known while a step is traced."""
        return jax.set_mesh(self.mesh) if self.shard == ROWS else contextlib.nullcontext()

    def _program(
        self, name: Any, function: Callable[..., Any], runs: Any, num_more: int, out: Any, is_donated: bool = False
    ) -> Any:
        if name not in self._made:
            self._made[name] = self._make(function, runs, num_more, out, is_donated)
        return self._made[name]

    def _make(self, function: Callable[..., Any], runs: Any, num_more: int, out: Any, is_donated: bool) -> Any:
        def one(fixed: Any, row: Any, run: Any, *more: Any) -> Any:
            return function(*self.group.join(fixed, row), run, *more)

        many = jax.vmap(one, in_axes=(None, 0, _axes(runs), *[None] * num_more), out_axes=_axes(out))
        donated = (2,) if is_donated else ()
        if self.shard == ROWS:
            whole = NamedSharding(self.mesh, PartitionSpec())
            places = (whole, whole, self._shardings(runs), *[whole] * num_more)
            return jax.jit(many, in_shardings=places, out_shardings=self._shardings(out), donate_argnums=donated)
        common, own = PartitionSpec(), PartitionSpec(SEEDS)
        specs = (common, own, self._specs(runs), *[common] * num_more)
        # Devices share nothing and say nothing to each other: there is nothing to check.
        shared = jax.shard_map(many, mesh=self.mesh, in_specs=specs, out_specs=self._specs(out), check_vma=False)
        return jax.jit(shared, donate_argnums=donated)

    def _specs(self, tree: Any) -> Any:
        axes = _axes(tree)
        leaves = jax.tree.leaves(axes, is_leaf=lambda axis: axis is None)
        specs = [PartitionSpec() if axis is None else PartitionSpec(SEEDS) for axis in leaves]
        return jax.tree.unflatten(jax.tree.structure(tree), specs)

    def _shardings(self, tree: Any) -> Any:
        if self.shard == ROWS:
            return sharding.row_shardings(tree, self.mesh)
        return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), self._specs(tree))


def _axes(tree: Any) -> Any:
    """Batch axis of every leaf: all runs fill their slots in step, so that the next one is the same for all of them.

    Batched, it would turn the writing of one row into a copy of the whole array.
    """
    if not isinstance(tree, RunCarry):
        return jax.tree.map(lambda _: 0, tree)
    axes = jax.tree.map(lambda _: 0, tree)
    state = axes.run.state
    state = state._replace(posterior=state.posterior._replace(next_slot=None))
    return axes._replace(run=axes.run._replace(state=state))


def _grown(carry: RunCarry, capacity: int) -> RunCarry:
    return carry._replace(run=carry.run._replace(state=kql_grow(carry.run.state, capacity, is_full=True)))


def _grown_shapes(carry: RunCarry, capacity: int) -> RunCarry:
    one = functools.partial(_grown, capacity=capacity)
    # The shapes of a grown state are known only by growing it.
    after = jax.eval_shape(lambda carry: jax.vmap(one, in_axes=(_axes(carry),))(carry), carry)
    state = after.run.state
    state = state._replace(posterior=state.posterior._replace(next_slot=carry.run.state.posterior.next_slot))
    return after._replace(run=after.run._replace(state=state))
