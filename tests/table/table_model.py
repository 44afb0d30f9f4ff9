"""A model of a table with upkeep and admission, in plain Python, for tests with random calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import tfra
from support import Array, as_content

Usage = tuple[int, int]  # The time of the last write, and the number of writes.

# The figures that the model counts.
FIGURES = (
    "inserts",
    "updates",
    "removals",
    "ignored",
    "refused",
    "evictions",
    "expirations",
    "restrict_runs",
)


def rank(by: str) -> Callable[[Usage], Usage]:
    """What `restrict` sorts by: the largest stay."""
    return lambda usage: usage if by == "time" else (usage[1], usage[0])


def row_of(key: Any) -> Array:
    """An array of one key, of the key's type."""
    return np.array([key], dtype=object if isinstance(key, bytes) else np.int64)


class TableModel:
    """Rows and slots in a table without rules; times, counts and keys that wait in dicts.

    Keys are a list in every call, in the order of the batch.
    """

    def __init__(self, rows: tfra.Table, min_count: int) -> None:
        self.rows = rows
        self.min_count = min_count
        self.clock = 0
        self.usage: dict[Any, Usage] = {}
        self.waiting: dict[Any, Usage] = {}
        self.figures: Counter[str] = Counter()

    def _write(self, key: Any, seen: int = 1) -> None:
        there = key in self.usage
        self.figures["updates" if there else "inserts"] += 1
        self.usage[key] = (self.clock, self.usage[key][1] + 1 if there else seen)

    def _seen(self, key: Any) -> int | None:
        """How often a missing key was seen, if it may enter now."""
        seen = self.waiting.pop(key, (0, 0))[1] + 1
        if seen >= self.min_count:
            return seen
        self.waiting[key] = (self.clock, seen)
        self.figures["refused"] += 1
        return None

    def upsert(self, keys: list[Any], values: Array, usage: Array | None = None) -> None:
        for at, key in enumerate(keys):
            self.rows.upsert(row_of(key), values[at : at + 1])
            self.waiting.pop(key, None)
            self._write(key)
            if usage is not None:
                self.usage[key] = (int(usage[at, 0]), int(usage[at, 1]))

    def accum(self, keys: list[Any], deltas: Array, exists: Array) -> None:
        for at, key in enumerate(keys):
            if (key in self.usage) != bool(exists[at]):
                self.figures["ignored"] += 1
                continue
            self.rows.accum(row_of(key), deltas[at : at + 1], exists[at : at + 1])
            self.waiting.pop(key, None)
            self._write(key)

    def train(self, keys: list[Any], gradients: Array, batch: Array, step: int) -> None:
        for key in dict.fromkeys(keys):
            seen = None if key in self.usage else self._seen(key)
            if key in self.usage or seen is not None:
                self._write(key, seen or 1)
        entered = np.array([key in self.usage for key in keys], bool)
        self.rows.apply_gradients(batch[entered], gradients[entered], step=step)

    def touch(self, keys: list[Any]) -> None:
        for key in dict.fromkeys(keys):
            if key in self.usage:
                self._write(key)
                continue
            seen = self._seen(key)
            if seen is not None:
                self.rows.upsert(row_of(key), self.rows.lookup(row_of(key)))
                self._write(key, seen)

    def drop(self, keys: Iterable[Any], figure: str) -> int:
        gone = [key for key in dict.fromkeys(keys) if key in self.usage]
        for key in gone:
            del self.usage[key]
            self.rows.remove(row_of(key))
        self.figures[figure] += len(gone)
        return len(gone)

    def clear(self) -> None:
        self.drop(list(self.usage), "removals")
        self.waiting.clear()

    def norms(self) -> dict[Any, float]:
        keys, values = self.rows.export()
        found = np.linalg.norm(values.astype(np.float64), axis=1)
        return dict(zip(keys.tolist(), found.tolist(), strict=True))

    def expire(self, ttl: float | None, min_norm: float | None, norm_writes: int) -> int:
        expired = set()
        if ttl is not None:
            expired |= {k for k, (time, _) in self.usage.items() if self.clock - time > ttl}
            late = {k for k, (time, _) in self.waiting.items() if self.clock - time > ttl}
            self.waiting = {k: seen for k, seen in self.waiting.items() if k not in late}
        if min_norm is not None:
            norms = self.norms()
            expired |= {
                k for k, (_, n) in self.usage.items() if norms[k] < min_norm and n >= norm_writes
            }
        return self.drop(expired, "expirations")

    def content(self) -> dict[Any, Any]:
        """Each key's row and slots by their bits, and its usage."""
        return content(*self.rows.export(slots=True), self.usage)


def content(keys: Array, values: Array, slots: dict[str, Array], usage: Any) -> dict[Any, Any]:
    """The state of each key, for comparisons."""
    parts = [as_content(keys, part) for part in (values, *(slots[name] for name in sorted(slots)))]
    return {key: ([part[key] for part in parts], usage[key]) for key in keys.tolist()}


def table_content(table: tfra.Table) -> dict[Any, Any]:
    """The same of a table with metadata."""
    keys, values, slots, usage = table.export(slots=True, metadata=True)
    assert len(set(keys.tolist())) == len(keys) == len(table)
    pairs = [tuple(pair) for pair in usage.tolist()]
    return content(keys, values, slots, dict(zip(keys.tolist(), pairs, strict=True)))


def waiting_of(table: tfra.Table) -> dict[Any, Usage]:
    """The waiting keys."""
    state = table.admission_state()
    pairs = [tuple(pair) for pair in state["seen"].tolist()]
    return dict(zip(state["keys"].tolist(), pairs, strict=True))


def is_a_best(kept: set[Any], before: dict[Any, Usage], keep: int, by: str) -> bool:
    """Whether `kept` are the `keep` best of `before`; any of equally good keys may stay."""
    order = rank(by)
    best = sorted(before.values(), key=order, reverse=True)[:keep]
    return kept <= set(before) and sorted(order(before[k]) for k in kept) == sorted(
        order(usage) for usage in best
    )
