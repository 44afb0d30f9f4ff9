"""The figures of a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TableStats:
    """A table's size, its memory, and what happened to it since it was made.

    Args:
        size: Keys in the table.
        capacity: Keys it can hold before the index grows.
        load: `size / capacity`.
        index_bytes: Memory of the index.
        row_bytes: Memory of the rows, those of removed keys included until `shrink`.
        string_bytes: Memory of string keys and string values.
        lookups: Keys looked up: `hits + misses`.
        hits: Keys looked up that were there.
        misses: Keys looked up that were not.
        inserts: Keys that got a row.
        updates: Writes to rows that were there.
        removals: Keys that lost their row.
        ignored: Keys that `accum` was told to leave alone, and those that `assign` and
            `assign_scores` did not find.
        evictions: Keys that left a full table to make room for others.
        rejections: Writes that a full table dropped, their keys having too low a score.
    """

    size: int
    capacity: int
    load: float
    index_bytes: int
    row_bytes: int
    string_bytes: int
    lookups: int
    hits: int
    misses: int
    inserts: int
    updates: int
    removals: int
    ignored: int
    evictions: int
    rejections: int
