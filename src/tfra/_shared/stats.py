"""The statistics of a table: its figures and histograms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfra import _native

# The names of the engine's figures, in its order. The op of TensorFlow returns them as one vector.
COUNTERS = _native.STATS


@dataclass(frozen=True)
class TableStats:
    """The size and memory of a table, and counters of events since it was made.

    At any time `size == inserts - removals - evictions - expirations`.

    Args:
        size: Keys in the table.
        capacity: Keys that the table can hold before the index grows.
        index_bytes: Memory of the index.
        row_bytes: Memory of the rows, including those of removed keys until `shrink`. Rows in the
            row file are not counted.
        string_bytes: Memory of string keys and string values.
        admission_bytes: Memory of the admission rule: waiting keys or a Bloom filter.
        hits: Keys that lookups found.
        misses: Keys that lookups did not find.
        inserts: Keys that got a row.
        updates: Writes to existing rows.
        removals: Keys that were removed by `remove`, `clear` and similar calls.
        ignored: Keys that `accum` left unchanged because of their `exists`, and keys that `assign`
            and `assign_scores` did not find.
        refused: Gradients and other writes that were dropped, because admission did not let their
            keys in.
        evictions: Keys that were evicted: by new keys of a full table, or by `restrict`.
        rejections: Writes that a full table dropped, because the scores of their keys were too low.
        expirations: Keys that `expire` removed.
        restrict_runs: The number of calls of `restrict`.
        waiting: Waiting keys: seen, but not let in. 0 if the admission rule does not store them.
        fast_hits: Keys of all calls whose rows were in memory. This and the figures below are 0 for
            tables without a row file; see docs/hkv.md.
        slow_hits: Keys of all calls whose rows had to be read from the row file.
        io_reads: The number of reads of the row file.
        io_writes: The number of writes to the row file.
        bytes_read: Bytes read from the row file.
        bytes_written: Bytes written to the row file.
        fast_bytes: Memory of the rows, equal to `row_bytes`.
        slow_bytes: The size of the row file.
        reseeds: How often a stripe of the index was rebuilt with a random seed, because searches
            were too long: keys chosen to collide, or keys inserted in the order in which an export
            returns them.

    Attributes:
        load: `size / capacity`.
        lookups: Keys looked up: `hits + misses`.
        bytes: All memory: of the index, rows, strings and admission, without the row file.
        hit_rate: `hits / lookups`, or 0 before the first lookup.
        fast_hit_rate: `fast_hits / (fast_hits + slow_hits)`, or 0 if both are 0.
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
        """Returns the names of all figures."""
        return tuple(each.name for each in fields(cls))

    def as_dict(self) -> dict[str, float]:
        """Returns all figures by name."""
        return {name: getattr(self, name) for name in self.figures()}

    @classmethod
    def from_counters(cls, counters: Sequence[Any]) -> TableStats:
        """Makes the statistics from numbers in the order of `COUNTERS`."""
        return cls(**{name: int(n) for name, n in zip(COUNTERS, counters, strict=True)})


def derived_figures(
    counters: Mapping[str, Any], ratio: Callable[[Any, Any], Any]
) -> dict[str, Any]:
    """Returns the figures that are computed from counters.

    Args:
        counters: The figures of `COUNTERS` by name, as numbers or tensors.
        ratio: Divides one number by another; returns 0 if the divisor is 0.
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
    """The number of rows in each range of a quantity.

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
    """Histograms of the rows of a table. The ranges double in width.

    Args:
        age: Seconds since the last write, for tables with metadata.
        frequency: The number of writes, for tables with metadata.
        norm: The L2 norm of the value, for floating values.
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
        """Makes the histograms from the counts of the engine."""
        # Ages and counts are grouped by their number of binary digits, 0 to 32.
        digits = np.concatenate([[0.0], 2.0 ** np.arange(33)])
        powers = np.concatenate([[0.0], 2.0 ** np.arange(-31, 32), [np.inf]])
        return cls(
            Histogram(digits, np.asarray(age, np.int64)),
            Histogram(digits, np.asarray(writes, np.int64)),
            Histogram(powers, np.asarray(norm, np.int64)),
        )
