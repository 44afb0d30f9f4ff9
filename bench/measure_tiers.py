"""Measures one system: a table with an eighth of its rows in memory, one in memory, or RocksDB.

Runs in the environment of the system it measures; `bench/compare_tiers.py` starts it. All systems
get the same stream of ids, which follow a Zipf law. Each id has a row of the value and two Adam
slots. Rows that are looked up are compared with what was written. Some rows are printed after
training, so that the caller can compare them between systems.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from importlib import metadata
from typing import Protocol

import numpy as np
from workloads import (
    Array,
    Plan,
    Record,
    WrongResult,
    argument_parser,
    emit,
    keys_at,
    plans,
    rates_fields,
    record,
    resident_bytes,
    rows_of,
)

EXPONENT = 1.05
SHARE = 8  # All rows take this many times the memory budget.
SAMPLE = 64
WARM_ROUNDS = 6  # Untimed lookups, so that frequent rows move to memory before the measurement.
LEARNING_RATE, BETA_1, BETA_2, EPSILON = 0.001, 0.9, 0.999, 1e-7


class Store(Protocol):
    """A table of rows with their Adam slots."""

    system: str
    mode: str
    versions: dict[str, str]

    def insert(self, keys: Array, values: Array) -> None:
        """Writes rows whose slots are zeros."""

    def lookup(self, keys: Array) -> Array:
        """Returns the values of keys, of which some are equal."""

    def adam(self, keys: Array, gradients: Array) -> None:
        """Takes a step of Adam; gradients of equal keys are summed."""

    def figures(self) -> Record:
        """What is known of its memory."""

    def close(self) -> None:
        """Removes its files."""


class OurTable:
    """`tfra.Table` with a bound, with or without a budget."""

    mode = "numpy"

    def __init__(self, plan: Plan, fast_bytes: int | None) -> None:
        import tfra

        tfra.set_num_threads(plan.threads)
        self.system = "memory" if fast_bytes is None else "tfra"
        self.versions = {"tfra": tfra.__version__}
        rule = tfra.optimizers.Adam(LEARNING_RATE, BETA_1, BETA_2, EPSILON)
        self._table = tfra.Table(
            plan.dim, optimizer=rule, max_capacity=plan.keys, fast_bytes=fast_bytes
        )
        self.insert, self.lookup = self._table.upsert, self._table.lookup
        self.adam = self._table.apply_gradients

    def figures(self) -> Record:
        """What is known of its memory."""
        stats = self._table.stats()
        names = ("index_bytes", "fast_bytes", "slow_bytes", "fast_hit_rate", "bytes_read")
        return {name: getattr(stats, name) for name in (*names, "bytes_written")}

    def close(self) -> None:
        """Does nothing: the system frees the file, which has no name, with the table."""


class RocksDb:
    """RocksDB through rocksdict, with raw bytes; a call reads or writes a batch of keys.

    Each distinct key is requested once. Keys are sorted, because RocksDB stores them in order.
    There is no write-ahead log and no compression. The block cache is as large as our budget; its
    other buffers and indexes come on top.
    """

    system, mode = "rocksdict", "raw"

    def __init__(self, plan: Plan, cache_bytes: int) -> None:
        import rocksdict as r

        self.versions = {"rocksdict": metadata.version("rocksdict")}
        self._dim, self._step = plan.dim, 0
        self._folder = tempfile.mkdtemp(prefix="rocksdict-")
        blocks = r.BlockBasedOptions()
        blocks.set_block_cache(r.Cache(cache_bytes))
        blocks.set_bloom_filter(10, False)
        blocks.set_data_block_index_type(r.DataBlockIndexType.binary_and_hash())
        options = r.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(blocks)
        options.set_compression_type(r.DBCompressionType.none())
        options.increase_parallelism(plan.threads)
        self._rows = r.Rdict(self._folder, options)
        self._batch = r.WriteBatch
        self._unlogged = r.WriteOptions()
        self._unlogged.disable_wal = True

    def insert(self, keys: Array, values: Array) -> None:
        """Writes rows whose slots are zeros."""
        order = np.argsort(keys.view(np.uint64))
        slots = np.zeros((len(keys), 2 * self._dim), np.float32)
        self._write(keys[order], np.concatenate([values[order], slots], axis=1))

    def lookup(self, keys: Array) -> Array:
        """Returns the values of keys, of which some are equal."""
        some, places = np.unique(keys.view(np.uint64), return_inverse=True)
        return self._read(some)[:, : self._dim][places]

    def adam(self, keys: Array, gradients: Array) -> None:
        """Takes a step of Adam; gradients of equal keys are summed."""
        some, places = np.unique(keys.view(np.uint64), return_inverse=True)
        order = np.argsort(places, kind="stable")
        starts = np.searchsorted(places[order], np.arange(len(some)))
        gradient = np.add.reduceat(gradients[order], starts)
        rows = self._read(some).copy()
        value, momentum, velocity = np.split(rows, 3, axis=1)
        self._step += 1
        momentum += (gradient - momentum) * np.float32(1 - BETA_1)
        velocity += (np.square(gradient) - velocity) * np.float32(1 - BETA_2)
        rate = LEARNING_RATE * np.sqrt(1 - BETA_2**self._step) / (1 - BETA_1**self._step)
        value -= np.float32(rate) * momentum / (np.sqrt(velocity) + np.float32(EPSILON))
        self._write(some, rows)

    def _read(self, keys: Array) -> Array:
        found = self._rows.get(_names(keys))
        return np.frombuffer(b"".join(found), np.float32).reshape(len(keys), 3 * self._dim)

    def _write(self, keys: Array, rows: Array) -> None:
        batch, data, size = self._batch(raw_mode=True), rows.tobytes(), rows.shape[1] * 4
        for number, name in enumerate(_names(keys)):
            batch.put(name, data[number * size : (number + 1) * size])
        self._rows.write(batch, self._unlogged)

    def figures(self) -> Record:
        """Returns nothing: RocksDB has no comparable figures."""
        return {}

    def close(self) -> None:
        """Removes its files."""
        self._rows.close()
        shutil.rmtree(self._folder)


def _names(keys: Array) -> list[bytes]:
    """Returns keys as bytes, in the order of RocksDB."""
    data = keys.astype(">u8").tobytes()
    return [data[at : at + 8] for at in range(0, len(data), 8)]


class Zipf:
    """Batches of row numbers: the one of rank r has a probability proportional to r**-1.05.

    Uses rejection-inversion (Hörmann and Derflinger 1996), which needs no table of probabilities.

    Args:
        keys: How many rows there are.
        batch: How many numbers a batch has.

    Attributes:
        checksum: The checksum of everything that was drawn so far.
    """

    def __init__(self, keys: int, batch: int) -> None:
        # RandomState's stream is frozen, unlike that of default_rng.
        self._random = np.random.RandomState(0x21F)
        self._keys, self._batch = keys, batch
        self._first = self._integral(np.float64(1.5)) - 1
        self._last = self._integral(np.float64(keys + 0.5))
        self._sure = 2 - self._inverse(self._integral(np.float64(2.5)) - 2**-EXPONENT)
        self.checksum = 0

    def draw(self) -> Array:
        """Returns the next batch."""
        ranks = np.empty(0, np.int64)
        while len(ranks) < self._batch:
            draws = self._random.random_sample(self._batch - len(ranks))
            at = self._last + draws * (self._first - self._last)
            x = self._inverse(at)
            rank = np.clip(np.rint(x), 1, self._keys)
            taken = (rank - x <= self._sure) | (at >= self._integral(rank + 0.5) - rank**-EXPONENT)
            ranks = np.concatenate([ranks, rank[taken].astype(np.int64)])
        self.checksum = zlib.crc32(ranks.data, self.checksum)
        return ranks - 1

    @staticmethod
    def _integral(x: Array | np.float64) -> Array:
        return np.asarray((x ** (1 - EXPONENT) - 1) / (1 - EXPONENT))

    @staticmethod
    def _inverse(y: Array) -> Array:
        return np.asarray((1 + y * (1 - EXPONENT)) ** (1 / (1 - EXPONENT)))


def values_of(index: Array, dim: int) -> Array:
    """Returns the initial rows of the build."""
    keys = keys_at(index)
    return rows_of(keys, np.zeros(len(keys), np.uint8), dim) / np.float32(2**24)


def gradients_of(index: Array, dim: int, step: int) -> Array:
    """Returns small integers divided by 64, whose sums are exact in every order."""
    numbers = (index[:, np.newaxis] * 7 + np.arange(dim) * 3 + step) % 13 - 6
    return numbers.astype(np.float32) / 64


def run(store: Store, plan: Plan, fast_bytes: int, before: int) -> Iterator[Record]:
    """Builds, looks up and trains; yields a record for each."""
    seconds = 0.0
    for start in range(0, plan.keys, plan.batch):
        index = np.arange(start, min(start + plan.batch, plan.keys))
        keys, values = keys_at(index), values_of(index, plan.dim)
        started = time.perf_counter()
        store.insert(keys, values)
        seconds += time.perf_counter() - started
    yield record(store, plan, "build", 0, **rates_fields([plan.keys / seconds]))

    stream = Zipf(plan.keys, plan.batch)
    rates = []
    for number in range(WARM_ROUNDS + plan.rounds):
        seconds = 0.0
        for _ in range(plan.round_batches):
            index = stream.draw()
            keys = keys_at(index)
            started = time.perf_counter()
            rows = store.lookup(keys)
            seconds += time.perf_counter() - started
            if not np.array_equal(rows, values_of(index, plan.dim)):
                raise WrongResult("expected the rows that were written. Received: others")
            del rows
        if number >= WARM_ROUNDS:
            rates.append(plan.round_batches * plan.batch / seconds)
    yield record(store, plan, "lookup", stream.checksum, **rates_fields(rates))

    rates, step = [], 0
    for number in range(plan.rounds + 1):
        seconds = 0.0
        for _ in range(plan.round_batches):
            index = stream.draw()
            step += 1
            keys, gradients = keys_at(index), gradients_of(index, plan.dim, step)
            started = time.perf_counter()
            store.adam(keys, gradients)
            seconds += time.perf_counter() - started
        if number > 0:
            rates.append(plan.round_batches * plan.batch / seconds)
    del keys, gradients, index
    resident = resident_bytes() - before
    sample = np.unique(np.linspace(0, plan.keys - 1, SAMPLE).astype(np.int64) ** 2 // plan.keys)
    rows = store.lookup(keys_at(sample))
    if np.array_equal(rows[0], values_of(sample[:1], plan.dim)[0]):
        raise WrongResult("expected training to change the row of the most frequent key")
    yield record(
        store, plan, "adam", stream.checksum, sample=rows.ravel().tolist(), **rates_fields(rates)
    )
    figures = store.figures()
    if figures:
        per_key = figures["index_bytes"] / plan.keys
        memory = {"budget_bytes": fast_bytes, "resident_bytes": resident, "bytes_per_key": per_key}
        yield record(store, plan, "memory", 0, **memory, **figures)


def make(system: str, plan: Plan, fast_bytes: int) -> Store:
    """Returns an empty store."""
    if system == "rocksdict":
        return RocksDb(plan, fast_bytes)
    return OurTable(plan, fast_bytes if system == "tfra" else None)


def main() -> int:
    """Measures one system; returns the exit code."""
    parser = argument_parser(__doc__)
    parser.add_argument("--system", choices=("tfra", "memory", "rocksdict"), required=True)
    arguments = parser.parse_args()
    for plan in plans(arguments):
        fast_bytes = plan.keys * plan.dim * 4 * 3 // SHARE
        small = Plan(plan.batch, plan.dim, plan.batch, 1, 1, plan.threads)
        # The first calls allocate memory once, which is not measured.
        warm = make(arguments.system, small, fast_bytes)
        for _ in run(warm, small, fast_bytes, 0):
            pass
        warm.close()
        before = resident_bytes()
        store = make(arguments.system, plan, fast_bytes)
        try:
            emit(run(store, plan, fast_bytes, before))
        finally:
            store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
