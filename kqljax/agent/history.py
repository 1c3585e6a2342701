"""Raw transitions in whole episodes: all of a short run, the newest and a sample of the older ones of a long run."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kqljax.agent.loops import Steps

SIZE = 4096
"""Transitions that are kept, at most."""
NEWEST = SIZE // 2
"""Of these, the newest, when older ones are left out; the rest are whole older episodes, every one with the same chance."""

_GIVEN = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
"""What `Steps` gives of a row."""


class History(NamedTuple):
    """Transitions that are kept. A new object for every change; what an older one holds stays as it is.

    Attributes:
      rows: name -> array, with room for more than `num_kept` rows: "obs" and "next_obs" `[N, l]`, "action", "reward",
        "terminated", "truncated", "episode", the number of the episode, and "is_first", whether it begins here, `[N]`.
      num_kept: rows that are kept.
      total: transitions that there ever were.
      episodes: episodes that there ever were.
      open: `[n]` number of the episode that each environment is in.
      is_fresh: `[n]` bool, that episode has no row yet.
    """

    rows: dict[str, np.ndarray]
    num_kept: int
    total: int
    episodes: int
    open: np.ndarray
    is_fresh: np.ndarray

    @classmethod
    def empty(cls, obs_dim: int) -> History:
        """Without a row."""
        shapes = {"obs": (obs_dim,), "next_obs": (obs_dim,)}
        kinds: dict[str, Any] = {"action": np.int32, "episode": np.int64}
        kinds |= dict.fromkeys(("terminated", "truncated", "is_first"), bool)
        names = (*_GIVEN, "episode", "is_first")
        rows = {name: np.zeros((0, *shapes.get(name, ())), kinds.get(name, np.float64)) for name in names}
        return cls(rows, 0, 0, 0, np.zeros(0, np.int64), np.zeros(0, bool))

    def begun(self, num_envs: int) -> History:
        """Every environment begins a new episode."""
        numbers = self.episodes + np.arange(num_envs)
        return self._replace(episodes=self.episodes + num_envs, open=numbers, is_fresh=np.ones(num_envs, bool))

    def added(self, steps: Steps) -> History:
        """With k transitions more, at most one of each environment."""
        more = len(steps.reward)
        kept = self if self.num_kept + more <= SIZE else self._thinned()
        size = kept.num_kept + more
        rows = kept.rows if size <= len(kept.rows["reward"]) else {
            name: _grown(column, kept.num_kept, 2 * size) for name, column in kept.rows.items()
        }  # fmt: skip
        new = {name: getattr(steps, name) for name in _GIVEN}
        new |= {"episode": kept.open[steps.env], "is_first": kept.is_fresh[steps.env]}
        for name, column in rows.items():
            # Beyond `num_kept` of every object that there is: nobody reads these rows yet.
            column[kept.num_kept : size] = new[name]
        is_over = steps.terminated | steps.truncated
        numbers, is_fresh = kept.open.copy(), kept.is_fresh.copy()
        numbers[steps.env[is_over]] = kept.episodes + np.arange(is_over.sum())
        is_fresh[steps.env] = is_over
        return History(rows, size, kept.total + more, kept.episodes + int(is_over.sum()), numbers, is_fresh)

    def _thinned(self) -> History:
        """The newest NEWEST rows and whole older episodes, to three quarters of SIZE in all.

        Each episode has a number drawn once; those with the lowest stay. So every older episode has the same chance, however
        often others were left out since. One that is not over yet, or only in the newest rows, is counted by its older rows:
        it stays whole or loses its beginning, and what has lost its beginning does not stay when it is old. Neither does one
        that is longer than the room for all of them.
        """
        episode, room = self.rows["episode"][: self.num_kept], 3 * SIZE // 4 - NEWEST
        older, sizes = np.unique(episode[:-NEWEST], return_counts=True)
        can_stay = np.isin(older, episode[self.rows["is_first"][: self.num_kept]]) & (sizes <= room)
        older, sizes = older[can_stay], sizes[can_stay]
        order = np.argsort([np.random.default_rng(number).random() for number in older])
        is_kept = np.isin(episode, older[order][np.cumsum(sizes[order]) <= room])
        is_kept[-NEWEST:] = True
        rows = {name: column[: self.num_kept][is_kept] for name, column in self.rows.items()}
        return self._replace(rows=rows, num_kept=int(is_kept.sum()))

    def as_dict(self) -> dict[str, Any]:
        """All there is, for a file: observations once where the successor is the next row's."""
        rows = {name: column[: self.num_kept] for name, column in self.rows.items()}
        follows = np.all(rows["next_obs"][:-1] == rows["obs"][1:], axis=1)
        rows["next_obs"] = rows["next_obs"][np.append(~follows, True)[: self.num_kept]]
        numbers = {"total": self.total, "episodes": self.episodes, "open": self.open, "is_fresh": self.is_fresh}
        return {"rows": rows, "follows": np.append(follows, False)[: self.num_kept], **numbers}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> History:
        """The inverse of `as_dict`."""
        rows, follows = dict(found["rows"]), found["follows"]
        next_obs = np.zeros_like(rows["obs"])
        next_obs[~follows] = rows["next_obs"]
        next_obs[follows] = rows["obs"][np.flatnonzero(follows) + 1]
        rows["next_obs"] = next_obs
        return cls(rows, len(rows["reward"]), found["total"], found["episodes"], found["open"], found["is_fresh"])

    def ordered(self) -> dict[str, np.ndarray]:
        """Name -> array of the rows that are kept, episode after episode, and "is_last" `[N]`, whether the episode is over.

        An episode that is still under way has no last row, unless a newer one of its environment has begun.
        """
        order = np.argsort(self.rows["episode"][: self.num_kept], kind="stable")
        found = {name: column[: self.num_kept][order] for name, column in self.rows.items()}
        number = found["episode"]
        ends = np.append(np.diff(number) != 0, True)[: self.num_kept]
        found["is_last"] = ends & (found["terminated"] | found["truncated"] | ~np.isin(number, self.open))
        return found


def _grown(column: np.ndarray, count: int, size: int) -> np.ndarray:
    return np.concatenate([column[:count], np.zeros((size - count, *column.shape[1:]), column.dtype)])
