"""Settings that share shapes, as one vmap; and how many runs of it go side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kqljax.memory import estimate_memory
from kqljax.rollout import stage_capacities
from kqljax.sweep.settings import Case

WORKING_SPACE = 2.5
"""Memory that a compiled segment takes, in units of the states it holds: a state grows into a new one beside it."""


class Segment(NamedTuple):
    """Steps between two visits of the host.

    Attributes:
      capacity: of the state during it.
      start, stop: the steps start .. stop - 1.
    """

    capacity: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class Group:
    """Settings whose tasks and configs differ in numbers alone: one compile serves them all.

    Attributes:
      settings: positions in the sweep's list.
      tree: structure of (task, config).
      fixed: leaves that are the same in all settings; None at the places of the others.
      varying: leaves that differ, `[settings, ...]`; None at the places of the others.
      dtype: of the states.
      case: one of the cases, for its sizes.
    """

    settings: tuple[int, ...]
    tree: Any
    fixed: tuple[Any, ...]
    varying: tuple[Any, ...]
    dtype: str
    case: Case

    def rows(self, places: Sequence[int]) -> tuple[Any, ...]:
        """The varying leaves `[B, ...]` of B runs, whose settings are at these places in the group."""
        index = np.asarray(places, int)
        return tuple(None if leaf is None else leaf[index] for leaf in self.varying)

    def join(self, fixed: Sequence[Any], row: Sequence[Any]) -> Any:
        """(task, config) of one run, from the fixed leaves and its own row of the varying ones."""
        leaves = [own if common is None else common for common, own in zip(fixed, row, strict=True)]
        return jax.tree.unflatten(self.tree, leaves)


def make_groups(cases: Sequence[Case]) -> list[Group]:
    """The settings in groups, in the order of their first members."""
    members: list[tuple[Any, list[int]]] = []
    for position, case in enumerate(cases):
        signature = _signature(case)
        for known, positions in members:
            if known == signature:
                positions.append(position)
                break
        else:
            members.append((signature, [position]))
    return [_stack(positions, [cases[position] for position in positions]) for _, positions in members]


def _signature(case: Case) -> Any:
    leaves, tree = jax.tree.flatten((case.task, case.cfg))
    return case.dtype, tree, [(np.shape(leaf), str(jnp.result_type(leaf))) for leaf in leaves]


def _stack(positions: Iterable[int], cases: Sequence[Case]) -> Group:
    columns = list(zip(*(jax.tree.leaves((case.task, case.cfg)) for case in cases), strict=True))
    fixed: list[Any] = []
    varying: list[Any] = []
    for column in columns:
        # As they are where they are the same: a number then stays a number, as in a run of its own.
        is_same = all(np.array_equal(leaf, column[0]) for leaf in column[1:])
        fixed.append(column[0] if is_same else None)
        varying.append(None if is_same else np.stack([np.asarray(leaf) for leaf in column]))
    tree = jax.tree.structure((cases[0].task, cases[0].cfg))
    return Group(tuple(positions), tree, tuple(fixed), tuple(varying), cases[0].dtype, cases[0])


# Chunks in time ------------------------------------------------------------------------------------------------------


def make_schedule(case: Case, num_steps: int, stages: int, every: int | None, multiple: int = 1) -> list[Segment]:
    """The segments of a run: its capacity stages, cut where they are longer than `every` steps.

    Capacities are rounded up to a `multiple`, so that rows can be spread evenly over devices.
    """
    sizes = sorted({-(-size // multiple) * multiple for size in stage_capacities(case.cfg, num_steps, stages)})
    stops = sorted({*(size for size in sizes if size < num_steps), num_steps})
    segments, start = [], 0
    for stop in stops:
        capacity = next((size for size in sizes if size >= stop), sizes[-1])
        while start < stop:
            end = stop if every is None else min(stop, start + every)
            segments.append(Segment(capacity, start, end))
            start = end
    return segments


# Chunks of runs ------------------------------------------------------------------------------------------------------


def memory_a_run(group: Group, num_episodes: int, longest: int) -> int:
    """Bytes that one run takes with its working space: training, its log, and the evaluation of its policy."""
    case = group.case
    size = np.dtype(group.dtype).itemsize
    states = estimate_memory(case.cfg, 1, obs_dim=case.task.obs_dim, dtype=group.dtype)
    own = sum(leaf[0].nbytes for leaf in group.varying if leaf is not None)
    log = longest * (6 * size + 8)
    # Each episode asks the posterior about one state with every action, in blocks of four columns, twice over.
    width = case.cfg.capacity if case.cfg.features is None else case.cfg.features.num_weights
    asked = num_episodes * width * (2 * case.cfg.num_actions + 8) * size
    return int(WORKING_SPACE * states + own + log + asked)


def chunk_size(num_runs: int, fitting: int, num_devices: int, num_processes: int) -> int:
    """Runs side by side: nearly equal chunks, at least one for each process, and the same number on every device.

    Args:
      fitting: runs that fit into the memory of all devices of a process.
    """
    chunks = max(-(-num_runs // max(fitting, 1)), min(num_processes, num_runs))
    size = -(-num_runs // chunks)
    return -(-size // num_devices) * num_devices
