"""Raw transitions in whole episodes: of a long run the newest, and a sample of older ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kqljax.agent.loops import Steps
from kqljax.agent.scaling import Ranges

SIZE = 4096
"""Transitions that are kept, at most."""
NEWEST = SIZE // 2
"""Of these, the newest, when older ones are left out; the rest are whole older episodes."""


class History(NamedTuple):
    """Transitions that are kept. A new object for every change: what an older one holds stays.

    Attributes:
      rows: name -> array, with room for more than `num_kept` rows: "obs" and "next_obs" `[N, l]`,
        "action", "reward", "terminated", "truncated", "episode", the number of the episode, and
        "is_first", whether it begins here, `[N]`.
      num_kept: rows that are kept.
      total, episodes: transitions and episodes that there ever were.
      open: `[n]` number of the episode that each environment is in.
      sums, counts: `[n]` return and length of that episode so far.
      returns, lengths: of all episodes that ended.
    """

    rows: dict[str, np.ndarray]
    num_kept: int
    total: int
    episodes: int
    open: np.ndarray
    sums: np.ndarray
    counts: np.ndarray
    returns: tuple[float, ...] = ()
    lengths: tuple[int, ...] = ()

    @classmethod
    def empty(cls, obs_dim: int) -> History:
        """Without a row."""
        kinds: dict[str, Any] = {"reward": np.float64, "action": np.int32, "episode": np.int64}
        kinds |= dict.fromkeys(("terminated", "truncated", "is_first"), bool)
        rows = {name: np.zeros(0, kind) for name, kind in kinds.items()}
        rows |= {name: np.zeros((0, obs_dim)) for name in ("obs", "next_obs")}
        return cls(rows, 0, 0, 0, *np.zeros((3, 0), np.int64))

    def begun(self, num_envs: int) -> History:
        """Every environment begins a new episode."""
        fresh: dict[str, Any] = {"sums": np.zeros(num_envs), "counts": np.zeros(num_envs, np.int64)}
        numbers = self.episodes + np.arange(num_envs)
        return self._replace(episodes=self.episodes + num_envs, open=numbers, **fresh)

    def added(self, steps: Steps) -> History:
        """With k transitions more, at most one of each environment."""
        more, env = len(steps.reward), steps.env
        kept = self if self.num_kept + more <= SIZE else self._thinned()
        size = kept.num_kept + more
        new = steps._asdict() | {"episode": kept.open[env], "is_first": kept.counts[env] == 0}
        rows = dict(kept.rows)
        for name, column in kept.rows.items():
            if size > len(column):
                rows[name] = np.resize(column[: kept.num_kept], (2 * size, *column.shape[1:]))
            # Beyond `num_kept` of every object that there is: nobody reads these rows yet.
            rows[name][kept.num_kept : size] = new[name]
        numbers, sums, counts = kept.open.copy(), kept.sums.copy(), kept.counts.copy()
        sums[env] += steps.reward
        counts[env] += 1
        over = env[steps.terminated | steps.truncated]
        ended = tuple(sums[over].tolist()), tuple(counts[over].tolist())
        numbers[over] = kept.episodes + np.arange(len(over))
        sums[over], counts[over] = 0.0, 0
        return History(
            *(rows, size, kept.total + more, kept.episodes + len(over), numbers, sums, counts),
            returns=kept.returns + ended[0],
            lengths=kept.lengths + ended[1],
        )

    def _thinned(self) -> History:
        """The newest NEWEST rows and whole older episodes, to three quarters of SIZE in all.

        Each episode has a number drawn once; those with the lowest stay. So every older episode has
        the same chance, however often others were left out since. One that is not over yet, or only
        in the newest rows, is counted by its older rows: it stays whole or loses its beginning, and
        what has lost its beginning does not stay when it is old. Neither does one that is longer
        than the room for all of them.
        """
        rows = self.trimmed().rows
        episode, room = rows["episode"], 3 * SIZE // 4 - NEWEST
        older, sizes = np.unique(episode[:-NEWEST], return_counts=True)
        can_stay = np.isin(older, episode[rows["is_first"]]) & (sizes <= room)
        older, sizes = older[can_stay], sizes[can_stay]
        order = np.argsort([np.random.default_rng(number).random() for number in older])
        is_kept = np.isin(episode, older[order][np.cumsum(sizes[order]) <= room])
        is_kept[-NEWEST:] = True
        rows = {name: column[is_kept] for name, column in rows.items()}
        return self._replace(rows=rows, num_kept=int(is_kept.sum()))

    def trimmed(self) -> History:
        """Without room for more."""
        rows = {name: column[: self.num_kept] for name, column in self.rows.items()}
        return self._replace(rows=rows)

    def ordered(self) -> dict[str, np.ndarray]:
        """The rows that are kept, episode after episode, and "is_last" `[N]`.

        An episode that is still under way has no last row, unless its environment was reset since.
        """
        rows = self.trimmed().rows
        order = np.argsort(rows["episode"], kind="stable")
        found = {name: column[order] for name, column in rows.items()}
        number = found["episode"]
        ends = np.append(number[1:] != number[:-1], True)[: self.num_kept]
        is_over = found["terminated"] | found["truncated"] | ~np.isin(number, self.open)
        return found | {"is_last": ends & is_over}


class Memory(NamedTuple):
    """What was learned; replaced whole after a step, so that an interruption finds old or new.

    Attributes:
      history: raw transitions.
      ranges: bounds of observations and rewards.
      now: what the learner holds between two steps; None before the first.
    """

    history: History
    ranges: Ranges
    now: Any

    def added(self, steps: Steps) -> Memory:
        """With k transitions more, in ranges that cover them."""
        seen = np.concatenate([steps.next_obs, steps.now])
        ranges = self.ranges.covering(seen, steps.reward)
        return self._replace(history=self.history.added(steps), ranges=ranges)
