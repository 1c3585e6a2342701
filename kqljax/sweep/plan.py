"""What a sweep is, and the order in which its runs are made."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from kqljax import checks
from kqljax.errors import unknown_name
from kqljax.rollout import STAGES
from kqljax.sweep.errors import SweepError
from kqljax.sweep.groups import Group
from kqljax.sweep.segments import SEEDS, SHARDS
from kqljax.sweep.settings import Setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """Settings times seeds.

    Attributes:
      settings: flat names and values, see `kqljax.sweep.expand_grid`.
      seeds, first_seed: the seeds are first_seed, first_seed + 1, and so on. A sweep is tuning: report on other seeds.
      steps: environment steps of training.
      episodes: evaluation episodes after training.
      stages: capacities that the state grows through; by default one for 200 steps, at most five.
      every: steps after which the host looks at the runs at the latest; by default the end of a stage.
      curve_episodes: evaluation episodes at each such visit, for learning curves; 0 for none.
      shard: "seeds" spreads runs over devices; "rows" the T x T arrays of each run, where one device cannot hold them.
      chunk: runs side by side at most; by default as many as fit into the memory.
      keep_states: writes the state of every run at its end, for `kqljax.load_state`.
    """

    settings: Sequence[Setting]
    seeds: int = 8
    first_seed: int = 0
    steps: int = 1000
    episodes: int = 100
    stages: int | None = None
    every: int | None = None
    curve_episodes: int = 0
    shard: str = SEEDS
    chunk: int | None = None
    keep_states: bool = False

    def validate(self) -> Sweep:
        """Raises SweepError where something cannot be run; returns the sweep."""
        for name, remedy in _REMEDIES.items():
            smallest = 0 if name in ("first_seed", "curve_episodes") else 1
            value = getattr(self, name)
            if value is not None:
                try:
                    checks.whole_number(f"--{name.replace('_', '-')}", value, smallest, remedy)
                except ValueError as error:
                    raise SweepError(str(error)) from None
        if self.shard not in SHARDS:
            raise SweepError(unknown_name("--shard", self.shard, SHARDS))
        if not self.settings:
            raise SweepError("a sweep needs at least one setting.")
        if self.shard != SEEDS and any(setting.get("features", "none") != "none" for setting in self.settings):
            raise SweepError("--shard rows is for the exact engine: settings with features fit on one device.")
        return self

    @property
    def num_stages(self) -> int:
        """`stages`, or its default."""
        # Under 200 slots a smaller capacity saves less time than compiling its stage costs.
        return max(1, min(STAGES, self.steps // 200)) if self.stages is None else self.stages

    @property
    def names(self) -> list[str]:
        """Names that any setting gives."""
        return list(dict.fromkeys(name for setting in self.settings for name in setting))

    @property
    def swept(self) -> list[str]:
        """Names that differ between settings."""
        return [name for name in self.names if len({setting.get(name) for setting in self.settings}) > 1]

    def as_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "settings": [dict(setting) for setting in self.settings]}


_REMEDIES = {
    "seeds": "It is the number of seeds of each setting.",
    "first_seed": "It is the number of the first seed.",
    "steps": "It is the number of environment steps of training.",
    "episodes": "It is the number of evaluation episodes.",
    "stages": "One stage is a fixed capacity.",
    "every": "It is the number of steps between two visits of the host.",
    "curve_episodes": "0 makes no learning curves.",
    "chunk": "It is the number of runs side by side.",
}


class Chunk(NamedTuple):
    """Runs side by side.

    Attributes:
      number: of the chunk in the sweep.
      group: number of its group.
      places: of the runs' settings in the group; the last run is repeated until the chunk has its size.
      seeds: of the runs.
      size: runs in the program, of which the first `len(seeds)` count.
    """

    number: int
    group: int
    places: tuple[int, ...]
    seeds: tuple[int, ...]
    size: int

    def padded(self, values: Sequence[int]) -> list[int]:
        return [*values, *[values[-1]] * (self.size - len(values))]


def make_chunks(sweep: Sweep, groups: Sequence[Group], sizes: Sequence[int]) -> list[Chunk]:
    """All runs of the sweep, group by group, setting by setting, seed by seed, in chunks of the groups' sizes."""
    chunks: list[Chunk] = []
    seeds = range(sweep.first_seed, sweep.first_seed + sweep.seeds)
    for number, (group, size) in enumerate(zip(groups, sizes, strict=True)):
        runs = [(place, seed) for place in range(len(group.settings)) for seed in seeds]
        for start in range(0, len(runs), size):
            places, own = zip(*runs[start : start + size], strict=True)
            chunks.append(Chunk(len(chunks), number, places, own, size))
    return chunks


def fingerprint(sweep: Sweep, sizes: Sequence[int]) -> str:
    """A word that differs between sweeps, for their checkpoints."""
    text = json.dumps([sweep.as_json(), list(sizes)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
