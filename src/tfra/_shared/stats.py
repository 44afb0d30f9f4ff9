"""The figures of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfra import _native

# The names of the engine's figures, in its order. TensorFlow's op returns them as one vector.
COUNTERS = _native.STATS


@dataclass(frozen=True)
class TableStats:
    """A table's size, its memory, and what happened to it since it was made.

    At any time `size == inserts - removals - evictions - expirations`.

    Args:
        size: Keys in the table.
        capacity: Keys it can hold before the index grows.
        index_bytes: Memory of the index.
        row_bytes: Memory of the rows, those of removed keys included until `shrink`. Rows in a file
            are not in it.
        string_bytes: Memory of string keys and string values.
        admission_bytes: Memory of what is known of keys that have not entered.
        hits: Keys looked up that were there.
        misses: Keys looked up that were not.
        inserts: Keys that got a row.
        updates: Writes to rows that were there.
        removals: Keys that were removed by hand.
        ignored: Keys that `accum` was told to leave alone, and those that `assign` and
            `assign_scores` did not find.
        refused: Gradients and other writes that were dropped, since their keys were not let in.
        evictions: Keys that had to leave to make room: for others in a full table, or by
            `restrict`.
        rejections: Writes that a full table dropped, their keys having too low a score.
        expirations: Keys that left because they had expired.
        restrict_runs: How often `restrict` ran.
        waiting: Keys that were seen and have not entered, where they are known.
        fast_hits: Keys of all calls whose rows were in memory. This and what follows is 0 for
            tables without a file; see docs/hkv.md.
        slow_hits: Keys of all calls whose rows had to be read from the file.
        io_reads: How often the file was read.
        io_writes: How often the file was written.
        bytes_read: Bytes read from the file.
        bytes_written: Bytes written to the file.
        fast_bytes: Memory of the rows: `row_bytes`.
        slow_bytes: The size of the file.
        reseeds: How often a stripe of the index was rebuilt with a random seed, because searches
            were too long: keys chosen to collide, or keys inserted in the order in which an export
            returns them.

    Attributes:
        load: `size / capacity`.
        lookups: Keys looked up: `hits + misses`.
        bytes: All memory: of the index, rows, strings and admission. The file is not in it.
        hit_rate: `hits / lookups`, or 0 before the first lookup.
        fast_hit_rate: `fast_hits / (fast_hits + slow_hits)`, or 0 before the first.
    """

    size: int
    capacity: int
    index_bytes: int
    row_bytes: int
    string_bytes: int
    admission_bytes: int
    hits: int
    misses: int
    inserts: int
    updates: int
    removals: int
    ignored: int
    refused: int
    evictions: int
    rejections: int
    expirations: int
    restrict_runs: int
    waiting: int
    fast_hits: int
    slow_hits: int
    io_reads: int
    io_writes: int
    bytes_read: int
    bytes_written: int
    fast_bytes: int
    slow_bytes: int
    reseeds: int
    load: float = field(init=False)
    lookups: int = field(init=False)
    bytes: int = field(init=False)
    hit_rate: float = field(init=False)
    fast_hit_rate: float = field(init=False)

    def __post_init__(self) -> None:
        for name, figure in derived_figures(vars(self), lambda a, b: a / b if b else 0.0).items():
            object.__setattr__(self, name, figure)

    @classmethod
    def figures(cls) -> tuple[str, ...]:
        """The names of all figures."""
        return tuple(each.name for each in fields(cls))

    def as_dict(self) -> dict[str, float]:
        """All figures by name."""
        return {name: getattr(self, name) for name in self.figures()}

    @classmethod
    def from_counters(cls, counters: Sequence[Any]) -> TableStats:
        """Makes it from numbers in the order of `COUNTERS`."""
        return cls(**{name: int(n) for name, n in zip(COUNTERS, counters, strict=True)})


def derived_figures(
    counters: Mapping[str, Any], ratio: Callable[[Any, Any], Any]
) -> dict[str, Any]:
    """Returns what follows from counters: numbers, or tensors.

    Args:
        counters: What `COUNTERS` names.
        ratio: Divides one by another; 0 if that is 0.
    """
    found = counters["fast_hits"] + counters["slow_hits"]
    lookups = counters["hits"] + counters["misses"]
    memory = ("index_bytes", "row_bytes", "string_bytes", "admission_bytes")
    return {
        "load": ratio(counters["size"], counters["capacity"]),
        "lookups": lookups,
        "bytes": sum(counters[name] for name in memory),
        "hit_rate": ratio(counters["hits"], lookups),
        "fast_hit_rate": ratio(counters["fast_hits"], found),
    }


@dataclass(frozen=True)
class Histogram:
    """How many rows have a value in each of some ranges.

    Args:
        edges: `[n + 1]` numbers: range `i` is from `edges[i]` up to, but not including,
            `edges[i + 1]`.
        counts: `[n]` ints.
    """

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram(self.edges, self.counts + other.counts)


@dataclass(frozen=True)
class RowHistograms:
    """What the rows of a table are like. Ranges double in width.

    Args:
        age: Seconds since the last write; of tables with metadata.
        frequency: The number of writes; of tables with metadata.
        norm: The L2 norm of the value; of floating values.
    """

    age: Histogram
    frequency: Histogram
    norm: Histogram

    def __add__(self, other: RowHistograms) -> RowHistograms:
        return RowHistograms(
            self.age + other.age, self.frequency + other.frequency, self.norm + other.norm
        )

    @classmethod
    def from_counts(cls, age: Any, writes: Any, norm: Any) -> RowHistograms:
        """Makes it from what the engine counts."""
        # Numbers of 0 to 32 binary digits.
        digits = np.concatenate([[0.0], 2.0 ** np.arange(33)])
        powers = np.concatenate([[0.0], 2.0 ** np.arange(-31, 32), [np.inf]])
        return cls(
            Histogram(digits, np.asarray(age, np.int64)),
            Histogram(digits, np.asarray(writes, np.int64)),
            Histogram(powers, np.asarray(norm, np.int64)),
        )
