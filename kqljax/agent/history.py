"""Raw transitions in whole episodes: all of a short run, the newest and a sample of the older ones of a long run."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kqljax.agent.loops import Steps

SIZE = 4096
"""Transitions that are kept, at most."""
NEWEST = SIZE // 2
"""Of these, the newest, when older ones are left out; the rest are whole older episodes, every one with the same chance."""

COLUMNS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")


class History(NamedTuple):
    """Transitions that are kept. A new object for every change; what an older one holds stays as it is.

    Attributes:
      rows: name -> array, with room for more than `count` rows: "obs" and "next_obs" `[N, l]`, "action", "reward",
        "terminated", "truncated" and "episode", the number of the episode, `[N]`.
      count: rows that are kept.
      total: transitions that there ever were.
      episodes: episodes that there ever were.
      open: `[n]` number of the episode that each environment is in.
    """

    rows: dict[str, np.ndarray]
    count: int
    total: int
    episodes: int
    open: np.ndarray

    @classmethod
    def empty(cls, obs_dim: int) -> History:
        shapes = {"obs": (obs_dim,), "next_obs": (obs_dim,)}
        kinds: dict[str, Any] = {"action": np.int32, "terminated": bool, "truncated": bool, "episode": np.int64}
        rows = {name: np.zeros((0, *shapes.get(name, ())), kinds.get(name, np.float64)) for name in (*COLUMNS, "episode")}
        return cls(rows, 0, 0, 0, np.zeros(0, np.int64))

    def begun(self, num_envs: int) -> History:
        """Every environment begins a new episode."""
        return self._replace(episodes=self.episodes + num_envs, open=self.episodes + np.arange(num_envs))

    def added(self, steps: Steps) -> History:
        """With k transitions more."""
        more = len(steps.reward)
        kept = self if self.count + more <= SIZE else self._thinned()
        size = kept.count + more
        rows = kept.rows if size <= len(kept.rows["reward"]) else {
            name: _grown(column, kept.count, 2 * size) for name, column in kept.rows.items()
        }  # fmt: skip
        new = {name: getattr(steps, name) for name in COLUMNS} | {"episode": kept.open[steps.env]}
        for name, column in rows.items():
            # Beyond `count` of every object that there is: nobody reads these rows yet.
            column[kept.count : size] = new[name]
        over = np.flatnonzero(steps.terminated | steps.truncated)
        now = kept.open.copy()
        now[steps.env[over]] = kept.episodes + np.arange(len(over))
        return History(rows, size, kept.total + more, kept.episodes + len(over), now)

    def _thinned(self) -> History:
        """The newest NEWEST rows and whole older episodes, to three quarters of SIZE in all.

        Each episode has a number drawn once; those with the lowest stay. So every older episode has the same chance, however
        often others were left out since.
        """
        episode = self.rows["episode"][: self.count]
        is_kept = np.zeros(self.count, bool)
        is_kept[-NEWEST:] = True
        older, sizes = np.unique(episode[:-NEWEST], return_counts=True)
        is_whole = ~np.isin(older, episode[-NEWEST:])
        older, sizes = older[is_whole], sizes[is_whole]
        order = np.argsort([np.random.default_rng(number).random() for number in older])
        fitting = np.cumsum(sizes[order]) <= 3 * SIZE // 4 - NEWEST
        is_kept |= np.isin(episode, older[order][fitting])
        rows = {name: column[: self.count][is_kept] for name, column in self.rows.items()}
        return self._replace(rows=rows, count=int(is_kept.sum()))

    def as_dict(self) -> dict[str, Any]:
        """All there is, for a file: observations once where the successor is the next row's."""
        rows = {name: column[: self.count] for name, column in self.rows.items()}
        follows = np.all(rows["next_obs"][:-1] == rows["obs"][1:], axis=1)
        rows["next_obs"] = rows["next_obs"][np.append(~follows, True)[: self.count]]
        numbers = {"total": self.total, "episodes": self.episodes, "open": self.open}
        return {"rows": rows, "follows": np.append(follows, False)[: self.count], **numbers}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> History:
        """The inverse of `as_dict`."""
        rows, follows = dict(found["rows"]), found["follows"]
        next_obs = np.zeros_like(rows["obs"])
        next_obs[~follows] = rows["next_obs"]
        next_obs[follows] = rows["obs"][np.flatnonzero(follows) + 1]
        rows["next_obs"] = next_obs
        return cls(rows, len(rows["reward"]), found["total"], found["episodes"], found["open"])

    def ordered(self) -> dict[str, np.ndarray]:
        """Name -> array of the rows that are kept, episode after episode, and "is_first", "is_last" `[N]`.

        An episode that is still under way has no last row, unless a newer one of its environment has begun.
        """
        episode = self.rows["episode"][: self.count]
        order = np.argsort(episode, kind="stable")
        found = {name: column[: self.count][order] for name, column in self.rows.items()}
        number = found["episode"]
        begins = np.append(True, np.diff(number) != 0)[: self.count]
        ends = np.append(np.diff(number) != 0, True)[-self.count :] if self.count else begins
        found["is_first"] = begins
        found["is_last"] = found["terminated"] | found["truncated"] | (ends & ~np.isin(number, self.open))
        return found


def _grown(column: np.ndarray, count: int, size: int) -> np.ndarray:
    return np.concatenate([column[:count], np.zeros((size - count, *column.shape[1:]), column.dtype)])
