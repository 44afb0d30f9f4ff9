"""An exact bounded table in plain Python: every key is a candidate for eviction."""

from __future__ import annotations

from typing import Any

Row = tuple[float, ...]


class BoundedModel:
    """Follows "Bounded tables" in engine/include/tfra/table.h, for upserts.

    Where several keys have the lowest score, any of them may be evicted. Tests use histories
    without such ties, or compare the scores only.
    """

    def __init__(self, max_capacity: int, strategy: str) -> None:
        self.max_capacity, self.strategy = max_capacity, strategy
        self.rows: dict[Any, Row] = {}
        self.scores: dict[Any, int] = {}
        self.clock = self.epoch = self.calls = 0
        self.evictions = self.rejections = 0

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.calls = epoch, 0

    def upsert(
        self, keys: list[Any], rows: list[Row], given: list[int] | None = None
    ) -> tuple[dict[Any, int], set[Any]]:
        """Returns the evicted keys with their scores, and the rejected keys."""
        self.calls += 1
        new: dict[Any, list[int]] = {}
        for i, key in enumerate(keys):
            if key in self.rows:
                self.rows[key] = rows[i]
                self.scores[key] = self._score(self.scores[key], [i], given)
            else:
                new.setdefault(key, []).append(i)
        evicted: dict[Any, int] = {}
        rejected = set()
        for key, places in new.items():
            score = self._score(0, places, given)
            if len(self.rows) == self.max_capacity:
                lowest = min(self.scores, key=self.scores.__getitem__)
                if score < self.scores[lowest]:
                    rejected.add(key)
                    self.rejections += len(places)
                    continue
                evicted[lowest] = self.scores.pop(lowest)
                del self.rows[lowest]
                self.evictions += 1
            self.rows[key], self.scores[key] = rows[places[-1]], score
        self.clock += len(keys)
        return evicted, rejected

    def _score(self, before: int, places: list[int], given: list[int] | None) -> int:
        counts = len(places) if given is None else sum(given[i] for i in places)
        match self.strategy:
            case "lru":
                return self.clock + 1 + places[-1]
            case "lfu":
                return before + counts
            case "epochlru":
                return (self.epoch << 32) + self.calls
            case "epochlfu":
                return (self.epoch << 32) + (before & 0xFFFFFFFF) + counts
        return before if given is None else given[places[-1]]
