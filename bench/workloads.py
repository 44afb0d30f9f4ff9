"""The workloads that every system is measured with: keys, values, checks and timing.

Needs only NumPy and the standard library, so that the same file runs in each system's own
environment. A system is an `Adapter`; `run` measures it and yields one record per workload.

Nothing is drawn from a random generator whose stream may change between NumPy versions: key `i`
is a fixed 64-bit mix of `i`, and a row is a fixed function of its key and of how often it was
written. Every row that a lookup returns is therefore compared exactly, and the checksums of two
systems must be equal.

Only the calls under test are timed. Preparing a batch, converting it to the system's own array
type, checking a result and freeing it happen between the calls.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import mmap
import statistics
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]
Record = dict[str, Any]

# A training example has as many ids and numbers as one of Criteo's logs.
FEATURES = 26
NUMBERS = 13
NEW_IDS = 0.2  # the share of ids that were never seen before


class WrongResult(Exception):
    """A lookup returned other rows than those that were written."""


class Table(Protocol):
    """One table of a system, over that system's own arrays."""

    def upsert(self, keys: Any, values: Any) -> Any:
        """Writes `values` (n, dim) under `keys` (n,)."""

    def lookup(self, keys: Any) -> Any:
        """Returns the rows (n, dim) of `keys` (n,) in a new array."""


class System(Protocol):
    """What each record says about its system."""

    system: str
    mode: str
    versions: dict[str, str]


class Adapter(System, Protocol):
    """A system under test."""

    def new_table(self) -> Table:
        """Returns an empty table of float32 rows under int64 keys."""

    def native(self, array: Array) -> Any:
        """Converts a NumPy array to the system's own array type; not timed."""

    def numpy(self, result: Any) -> Array:
        """Converts a lookup's result to NumPy; not timed."""


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        keys: Number of distinct keys in the table.
        dim: Length of a row.
        batch: Keys per call.
        rounds: Timed rounds of lookup and of upsert; the best one counts.
        round_batches: The most calls in a round.
        threads: Threads that the system may use.
    """

    keys: int
    dim: int = 32
    batch: int = 65_536
    rounds: int = 5
    round_batches: int = 64
    threads: int = 2


def _mix(x: Array) -> Array:
    """The finalizer of SplitMix64. It is a bijection: distinct inputs give distinct keys."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def keys_at(index: Array) -> Array:
    """Returns the keys with the numbers `index` (n,): distinct int64, spread uniformly."""
    return _mix((index.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)).view(
        np.int64
    )


def rows_of(keys: Array, version: Array, dim: int) -> Array:
    """Returns the float32 rows (n, dim) of `keys` (n,) after write number `version` (n,).

    Each element is an integer below 2**24, hence exact in float32.
    """
    seed = _mix(keys.view(np.uint64) + version.astype(np.uint64) * np.uint64(0xD1342543DE82EF95))
    column = np.arange(1, 2 * dim, 2, dtype=np.uint32)
    rows = (seed >> np.uint64(32)).astype(np.uint32)[:, None] * column
    rows >>= np.uint32(8)
    return rows.astype(np.float32)


class Session:
    """The expected state of one measured table, and the timing of calls."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.version = np.zeros(plan.keys, dtype=np.uint8)
        # RandomState's stream is frozen, unlike that of default_rng.
        self._order = np.random.RandomState(0x5EED).permutation(plan.keys)

    def in_order(self) -> Iterator[Array]:
        """Yields every index once, in batches, in the order of insertion."""
        for start in range(0, self.plan.keys, self.plan.batch):
            yield np.arange(start, min(start + self.plan.batch, self.plan.keys))

    def shuffled(self, number: int) -> Iterator[Array]:
        """Yields the batches of round `number`: random rows, each at most once in a round."""
        size = self.plan.batch
        calls = min(self.plan.round_batches, -(-self.plan.keys // size))
        count = min(calls * size, self.plan.keys)
        for start in range(0, count, size):
            place = np.arange(start, min(start + size, count)) + number * count
            yield self._order[place % self.plan.keys]

    def expected(self, index: Array) -> Array:
        """Returns the rows that the table must hold for `index`."""
        return rows_of(keys_at(index), self.version[index], self.plan.dim)

    def check(self, rows: Array, index: Array, checksum: int) -> int:
        """Compares a lookup's result with what was written and extends `checksum` by it."""
        want = self.expected(index)
        if rows.shape != want.shape or rows.dtype != want.dtype:
            raise WrongResult(
                f"expected {want.dtype} {want.shape}. Received: {rows.dtype} {rows.shape}"
            )
        if not np.array_equal(rows, want):
            wrong = rows != want
            row, column = np.argwhere(wrong)[0]
            raise WrongResult(
                f"{wrong.any(axis=1).sum()} of {index.size} rows are wrong; "
                f"key {keys_at(index)[row]}, element {column}: expected {want[row, column]}. "
                f"Received: {rows[row, column]}"
            )
        return zlib.crc32(np.ascontiguousarray(rows).data, checksum)

    def time_lookups(
        self,
        lookup: Callable[[Any], Any],
        prepare: Callable[[Array], Any],
        to_numpy: Callable[[Any], Array],
    ) -> tuple[list[float], int]:
        """Times rounds of `lookup(prepare(index))`; returns keys per second and the checksum."""
        rates, checksum = [], 0
        for number in range(self.plan.rounds):
            seconds, done = 0.0, 0
            for index in self.shuffled(number):
                query = prepare(index)
                start = time.perf_counter()
                result = lookup(query)
                seconds += time.perf_counter() - start
                done += index.size
                checksum = self.check(to_numpy(result), index, checksum)
                del result
            rates.append(done / seconds)
        return rates, checksum

    def time_upserts(
        self,
        table: Table,
        adapter: Adapter,
        batches: Iterator[Array],
        version: int,
        *,
        new: bool = False,
    ) -> float:
        """Times writing `version` of the rows in `batches`; returns keys per second.

        Args:
            table: The table.
            adapter: Its system.
            batches: Row numbers.
            version: How often the rows are written, this time included.
            new: Whether their keys are not in the table yet.
        """
        seconds, done = 0.0, 0
        for index in batches:
            self.version[index] = version
            keys, values = adapter.native(keys_at(index)), adapter.native(self.expected(index))
            if new:
                # Enough for the new rows, and for all rows: some systems move them when they grow.
                provide_memory((done + 3 * index.size) * (4 * self.plan.dim + 32))
            start = time.perf_counter()
            table.upsert(keys, values)
            seconds += time.perf_counter() - start
            done += index.size
        return done / seconds

    def checksum_table(self, table: Table, adapter: Adapter) -> int:
        """Checks every row of the table and returns the checksum of all."""
        checksum = 0
        for index in self.in_order():
            rows = adapter.numpy(table.lookup(adapter.native(keys_at(index))))
            checksum = self.check(rows, index, checksum)
        return checksum


@dataclass(frozen=True)
class Examples:
    """A batch of training examples."""

    ids: Array  # (n, FEATURES), int64
    numbers: Array  # (n, NUMBERS), float32
    labels: Array  # (n, 1), float32


class Stream:
    """Examples like those of Criteo's logs: skewed ids, and a fifth of them never seen before.

    Each feature has its own ids. The ids of its vocabulary follow Zipf's law: the id of rank r has
    a probability proportional to 1 / r. The other ids are new and occur once. The label
    depends on all numbers and ids of an example, so that a model can learn from both.

    Args:
        keys: Number of distinct ids in all vocabularies; rounded up to whole batches.
        examples: Examples per batch.

    Attributes:
        count: Number of distinct ids in the vocabularies and in the batches drawn so far.
        checksum: The checksum of everything that was yielded or drawn so far.
    """

    def __init__(self, keys: int, examples: int) -> None:
        batches = -(-keys // (FEATURES * examples))
        self._examples = examples
        self._vocabulary = batches * examples
        self._random = np.random.RandomState(0xC417E0)
        # Divisions and running sums give the same results in every version of NumPy.
        share = np.cumsum(1.0 / np.arange(1, self._vocabulary + 1))
        self._share = share / share[-1]
        self.count = self._vocabulary * FEATURES
        self.checksum = 0

    def known(self) -> Iterator[Examples]:
        """Yields every id of the vocabularies once, in random order."""
        ranks = [self._random.permutation(self._vocabulary) for _ in range(FEATURES)]
        order = np.stack(ranks, axis=1)
        for start in range(0, self._vocabulary, self._examples):
            yield self._with_labels(order[start : start + self._examples])

    def draw(self) -> Examples:
        """Returns the next batch."""
        shape = self._examples, FEATURES
        number = np.searchsorted(self._share, self._random.random_sample(shape))
        number = np.minimum(number, self._vocabulary - 1)
        new = self._random.random_sample(shape) < NEW_IDS
        # New ids are larger than any rank, and differ between all features and batches.
        count = self.count + int(np.count_nonzero(new))
        number[new] = np.arange(self.count, count)
        self.count = count
        return self._with_labels(number)

    def _with_labels(self, number: Array) -> Examples:
        """Makes examples from the number of each id within its feature (n, FEATURES)."""
        ids = keys_at(number * FEATURES + np.arange(FEATURES))
        numbers = self._random.randint(-128, 128, size=(len(ids), NUMBERS))
        effects = (ids >> 8) % 256 - 128
        labels = numbers.sum(axis=1, keepdims=True) + effects.sum(axis=1, keepdims=True) > 0
        for array in (ids, numbers, labels):
            self.checksum = zlib.crc32(np.ascontiguousarray(array).data, self.checksum)
        return Examples(ids, (numbers / 128).astype(np.float32), labels.astype(np.float32))


def provide_memory(size: int) -> None:
    """Makes the kernel hold this many bytes of free memory that can be used at once.

    Some hypervisors take free memory away. Getting it back takes much longer than the work of the
    kernel and of a table. So this is called for every system before it needs new memory.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, size, flags=flags) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        np.frombuffer(memory, dtype=np.uint8)[:: mmap.PAGESIZE] = 1


def resident_bytes() -> int:
    """Returns this process's resident memory, without the free memory that its allocator keeps."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("expected VmRSS in /proc/self/status")


def record(system: System, plan: Plan, workload: str, checksum: int, **fields: Any) -> Record:
    """Returns the record of one workload, which is printed as JSON."""
    return {
        "system": system.system,
        "mode": system.mode,
        "versions": system.versions,
        "workload": workload,
        "keys": plan.keys,
        "dim": plan.dim,
        "batch": plan.batch,
        "threads": plan.threads,
        "checksum": f"{checksum:08x}",
        **fields,
    }


def rates_fields(rates: list[float], what: str = "keys") -> Record:
    """Returns the fields of a timed workload: the best round, the median, and all of them."""
    return {
        f"{what}_per_second": max(rates),
        f"median_{what}_per_second": statistics.median(rates),
        "rounds": rates,
    }


def build(adapter: Adapter, session: Session) -> tuple[Table, list[Record]]:
    """Makes a table of all keys; returns it and the records of insert and memory."""
    plan = session.plan
    # A small table gets one call of each kind and stays alive. So the costs of first calls
    # (threads, tracing, pools of buffers) are neither timed nor counted as the table's memory.
    warm = adapter.new_table()
    # Two batches at once: callers may make one while they still hold the one before.
    session.time_upserts(warm, adapter, itertools.islice(session.in_order(), 2), version=0)
    index = next(session.in_order())
    session.check(adapter.numpy(warm.lookup(adapter.native(keys_at(index)))), index, 0)

    before = resident_bytes()
    table = adapter.new_table()
    rate = session.time_upserts(table, adapter, session.in_order(), version=0, new=True)
    grown = resident_bytes() - before
    checksum = session.checksum_table(table, adapter)
    return table, [
        record(adapter, plan, "insert", checksum, **rates_fields([rate])),
        record(adapter, plan, "memory", checksum, bytes_per_key=grown / plan.keys),
    ]


def lookups(adapter: Adapter, session: Session, call: Callable[[Any], Any], name: str) -> Record:
    """Measures lookups of existing keys, in random order, by `call`."""
    rates, checksum = session.time_lookups(
        call, lambda index: adapter.native(keys_at(index)), adapter.numpy
    )
    return record(adapter, session.plan, name, checksum, **rates_fields(rates))


def upserts(adapter: Adapter, session: Session, table: Table) -> Record:
    """Measures writing existing keys in random order."""
    rates = [
        session.time_upserts(table, adapter, session.shuffled(number), version=number + 1)
        for number in range(session.plan.rounds)
    ]
    checksum = session.checksum_table(table, adapter)
    return record(adapter, session.plan, "upsert", checksum, **rates_fields(rates))


def run(adapter: Adapter, session: Session) -> Iterator[Record]:
    """Measures insert, memory, lookup and upsert, in this order, on one table."""
    table, records = build(adapter, session)
    yield from records
    yield lookups(adapter, session, table.lookup, "lookup")
    lookup_out = getattr(table, "lookup_out", None)
    if lookup_out is not None:
        yield lookups(adapter, session, lookup_out, "lookup_out")
    yield upserts(adapter, session, table)


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the arguments that every measuring script takes: a `Plan`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--dim", type=int, default=Plan.dim)
    parser.add_argument("--batch", type=int, default=Plan.batch)
    parser.add_argument("--rounds", type=int, default=Plan.rounds)
    parser.add_argument("--round-batches", type=int, default=Plan.round_batches)
    parser.add_argument("--threads", type=int, default=Plan.threads)
    return parser


def plans(arguments: argparse.Namespace) -> list[Plan]:
    """Returns one plan for each number of keys asked for."""
    return [
        Plan(
            keys=keys,
            dim=arguments.dim,
            batch=arguments.batch,
            rounds=arguments.rounds,
            round_batches=arguments.round_batches,
            threads=arguments.threads,
        )
        for keys in arguments.keys
    ]


def emit(records: Iterator[Record]) -> None:
    """Prints each record as one line of JSON as soon as it is measured."""
    for item in records:
        print(json.dumps(item), flush=True)
