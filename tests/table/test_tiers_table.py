"""tfra.Table with rows in a file: the same rows as in memory, and what is counted."""

from __future__ import annotations

import functools
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfra
from support import FLOATING_DTYPES, NUMERIC_DTYPES, full_state, make_keys, make_values

# Each of the 16 parts of a table has room for 4 rows at least, however small the budget is.
LEAST_ROWS = 64
FIGURES = (
    "size", "hits", "misses", "inserts", "updates", "removals", "ignored", "refused", "evictions",
    "rejections", "expirations", "waiting",
)  # fmt: skip
IO_FIGURES = (
    "fast_hits", "slow_hits", "io_reads", "io_writes", "bytes_read", "bytes_written", "fast_bytes",
    "slow_bytes",
)  # fmt: skip


def write(table: tfra.Table, count: int, batch: int = 100) -> None:
    """Writes keys in small batches: the rows of one call are in memory together."""
    for start in range(0, count, batch):
        keys = np.arange(start, min(start + batch, count))
        table.upsert(keys, np.ones((len(keys), table.dim), np.float32))


WRONG: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    "zero": (ValueError, {"fast_bytes": 0}),
    "negative": (ValueError, {"fast_bytes": -1}),
    "too large": (ValueError, {"fast_bytes": 2**63}),
    "a bool": (TypeError, {"fast_bytes": True}),
    "a float": (TypeError, {"fast_bytes": 1e9}),
    "a string": (TypeError, {"fast_bytes": "1GB"}),
    "string values": (TypeError, {"fast_bytes": 1000, "value_dtype": "string"}),
    "a number as directory": (TypeError, {"fast_bytes": 1000, "tier_directory": 3}),
    "bytes as directory": (TypeError, {"fast_bytes": 1000, "tier_directory": b"/tmp"}),
    "no name of a directory": (ValueError, {"fast_bytes": 1000, "tier_directory": ""}),
    "a directory only": (ValueError, {"tier_directory": "/tmp"}),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name: str) -> None:
    error, options = WRONG[name]
    with pytest.raises(error, match=r"fast_bytes|tier_directory") as caught:
        tfra.Table(2, **options)
    assert "received" in str(caught.value).lower()


def test_directories_that_can_not_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for directory in (tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(OSError, match="can be written to") as caught:
            tfra.Table(2, fast_bytes=1000, tier_directory=directory)
        assert str(directory) in str(caught.value)


def test_what_a_table_tells_of_its_levels(tmp_path: Path) -> None:
    plain, tiered = tfra.Table(2), tfra.Table(2, fast_bytes=5000, tier_directory=tmp_path)
    assert (plain.fast_bytes, tiered.fast_bytes) == (None, 5000)
    assert "file_bytes" not in repr(plain)
    for table in (plain, tiered):
        write(table, 10_000)
    stats = tiered.stats()
    assert f"file_bytes={stats.slow_bytes / 1024:.1f}KiB" in repr(tiered)
    assert "file bytes" in tiered._repr_html_()
    used = tiered.memory_usage()
    assert used["rows"] == stats.fast_bytes == stats.row_bytes < plain.memory_usage()["rows"]
    assert used["total"] == stats.bytes
    assert list(tmp_path.iterdir()) == []  # The file has no name.


def test_estimates_of_memory() -> None:
    whole, part = (tfra.estimate_memory(10**6, 64, fast_bytes=fast) for fast in (None, 10**7))
    assert whole - part == pytest.approx(10**6 * 256 - 10**7, rel=0.01)
    with pytest.raises(ValueError, match="fast_bytes"):
        tfra.estimate_memory(10, 2, fast_bytes=0)


# --- The same calls on a table in memory and on one with a file.


class Twins:
    """Two tables, of which one has a file, that must not differ in anything one can see."""

    def __init__(self, key_dtype: str, value_dtype: str, **options: Any) -> None:
        self.key_dtype, self.value_dtype = key_dtype, value_dtype
        make = functools.partial(
            tfra.Table, 3, key_dtype=key_dtype, value_dtype=value_dtype, **options
        )
        self.tables = (make(), make(fast_bytes=1))
        self.rng = np.random.default_rng(0)
        for table in self.tables:
            table.clock = 100

    def both(self, method: str, *arguments: Any, **options: Any) -> None:
        results = [getattr(table, method)(*arguments, **options) for table in self.tables]
        if method == "set_epoch":
            return
        for left, right in zip(*map(_parts, results), strict=True):
            np.testing.assert_array_equal(left, right)

    def keys(self, n: int, most: int) -> Any:
        return make_keys(self.key_dtype, self.rng.integers(0, most, n))

    def rows(self, n: int) -> Any:
        return make_values(self.value_dtype, (n, 3), self.rng)

    def step(self, most: int) -> None:
        """One call of each kind."""
        n = int(self.rng.integers(1, 300))
        keys = functools.partial(self.keys, n, most)
        self.both("upsert", keys(), self.rows(n))
        self.both("lookup", keys(), return_exists=True)
        self.both("contains", keys())
        known = self.rng.integers(0, 2, n).astype(bool)
        self.both("accum", keys(), self.rows(n), known)
        self.both("find_or_insert", keys(), self.rows(n), return_exists=True)
        self.both("assign", keys(), self.rows(n))
        self.both("remove", keys()[: n // 4])
        if self.value_dtype in FLOATING_DTYPES:
            self.both("apply_gradients", keys(), self.rows(n))

    def check(self) -> None:
        left, right = (full_state(table) for table in self.tables)
        assert left == right
        stats, other = (table.stats() for table in self.tables)
        assert [getattr(stats, f) for f in FIGURES] == [getattr(other, f) for f in FIGURES]
        assert all(getattr(stats, figure) == 0 for figure in IO_FIGURES)
        assert other.slow_bytes > 0
        assert other.slow_hits > 0


def _parts(result: Any) -> list[Any]:
    if isinstance(result, tuple):
        return [part for each in result for part in _parts(each)]
    return [np.asarray(result)]


@pytest.mark.parametrize("key_dtype", ["int64", "string"])
@pytest.mark.parametrize("value_dtype", NUMERIC_DTYPES)
def test_random_histories(key_dtype: str, value_dtype: str) -> None:
    floating = value_dtype in FLOATING_DTYPES
    twins = Twins(key_dtype, value_dtype, optimizer="adam" if floating else None)
    for _ in range(12):
        twins.step(most=900)
    twins.check()
    for method in ("shrink", "clear"):
        twins.both(method)
        twins.step(most=900)
    assert full_state(twins.tables[0]) == full_state(twins.tables[1])


@pytest.mark.parametrize("strategy", ["lru", "lfu", "epochlru", "epochlfu"])
@pytest.mark.parametrize("key_dtype", ["int64", "string"])
def test_random_histories_of_full_tables(key_dtype: str, strategy: str) -> None:
    twins = Twins(
        key_dtype, "float32", max_capacity=300, evict_strategy=strategy, optimizer="adagrad"
    )
    for epoch in range(12):
        if strategy.startswith("epoch"):
            twins.both("set_epoch", epoch)
        twins.step(most=1000)
        n = 200
        twins.both("insert_and_evict", twins.keys(n, 1000), twins.rows(n), return_rejected=True)
        twins.both("scores", twins.keys(n, 1000))
    twins.check()
    assert twins.tables[1].stats().evictions > 500
    middle = int(np.median(twins.tables[0].export_with_scores().scores))
    twins.both("size_if", score_at_least=middle)
    twins.both("erase_if", score_below=middle)
    twins.check()


def test_rows_that_leave_by_their_metadata() -> None:
    twins = Twins("int64", "float32", metadata=True, optimizer="sgd")
    for now in range(100, 110):
        for table in twins.tables:
            table.clock = now
        twins.step(most=900)
        twins.both("touch", twins.keys(50, 900))
        twins.both("usage", twins.keys(50, 900))
    twins.both("count_if", written_before=105)
    twins.both("remove_if", written_before=103)
    twins.both("restrict", 500)
    twins.both("expire", ttl=4)
    twins.check()
    left, right = (table.histograms() for table in twins.tables)
    np.testing.assert_array_equal(left.frequency.counts, right.frequency.counts)
    np.testing.assert_array_equal(left.norm.counts, right.norm.counts)


def test_keys_that_wait_to_enter() -> None:
    twins = Twins("int64", "float32", admission=tfra.admission.MinCount(2), optimizer="sgd")
    for _ in range(10):
        twins.step(most=2000)
    twins.check()


# --- What is counted.


def test_hits_of_both_levels() -> None:
    table = tfra.Table(2, fast_bytes=1)
    write(table, 1000)
    before = table.stats()
    table.lookup(np.arange(1000))
    table.lookup(np.arange(1000, 2000))  # A missing key counts in neither tier.
    stats = table.stats()
    assert stats.hits - before.hits == 1000
    fast, slow = stats.fast_hits - before.fast_hits, stats.slow_hits - before.slow_hits
    assert fast + slow == 1000
    assert slow >= 1000 - LEAST_ROWS - 100
    assert stats.bytes_read > before.bytes_read
    assert stats.io_reads > before.io_reads
    assert stats.fast_hit_rate == stats.fast_hits / (stats.fast_hits + stats.slow_hits)


def test_rows_that_are_used_stay_in_memory() -> None:
    table = tfra.Table(64, fast_bytes=2000 * 256)
    write(table, 20_000)
    rng = np.random.default_rng(0)
    for _ in range(60):  # Nine of ten ids are of the same 500.
        often = rng.integers(0, 500, 900)
        table.lookup(np.concatenate([often, rng.integers(0, 20_000, 100)]))
    before = table.stats()
    table.lookup(np.arange(500))
    stats = table.stats()
    assert stats.slow_hits - before.slow_hits < 50


def test_a_budget_for_all_rows_reads_nothing() -> None:
    table = tfra.Table(8, fast_bytes=10**8, optimizer="adam")
    for _ in range(3):
        table.apply_gradients(np.arange(20_000), np.ones((20_000, 8), np.float32))
    table.lookup(np.arange(20_000))
    stats = table.stats()
    assert (stats.slow_hits, stats.io_reads, stats.io_writes) == (0, 0, 0)
    assert stats.fast_hit_rate == 1.0


def test_rows_in_memory_keep_to_the_budget() -> None:
    for fast_bytes in (10_000, 100_000, 1_000_000):
        table = tfra.Table(16, fast_bytes=fast_bytes, optimizer="adagrad")
        for start in range(0, 20_000, 100):
            keys = np.arange(start, start + 100)
            table.apply_gradients(keys, np.ones((100, 16), np.float32))
        row = 2 * 16 * 4
        budget = fast_bytes + 1024 * row  # Memory is taken for some rows at a time.
        assert table.stats().fast_bytes <= 1.15 * budget
        assert table.stats().slow_bytes >= 20_000 * row - 1.15 * budget


def test_shrinking_gives_the_memory_of_large_calls_back() -> None:
    table = tfra.Table(16, fast_bytes=200_000)
    table.upsert(np.arange(50_000), np.ones((50_000, 16), np.float32))
    assert table.stats().fast_bytes >= 50_000 * 64  # The rows of one call are in memory together.
    table.shrink()
    assert table.stats().fast_bytes <= 300_000
    assert table.stats().slow_bytes >= 50_000 * 64 - 300_000
    assert (table.lookup(np.arange(50_000)) == 1).all()


# --- Threads.


def test_sums_are_exact_when_many_threads_add() -> None:
    table = tfra.Table(4, fast_bytes=1)
    keys, rounds, threads = np.arange(800), 12, 4
    table.upsert(keys, np.zeros((800, 4), np.float32))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def add(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(rounds):
            some = rng.permutation(keys)
            table.accum(some, np.ones((800, 4), np.float32), np.ones(800, bool))
            rows = table.lookup(some[:100])
            assert (rows == rows[:, :1]).all()  # No row is a mix of two writes.

    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(add, range(threads)))
    finally:
        sys.setswitchinterval(before)
    assert (table.lookup(keys) == rounds * threads).all()


def test_rows_survive_threads_that_come_and_go() -> None:
    table = tfra.Table(2, fast_bytes=1, max_capacity=100_000)
    kept = np.arange(1000)
    table.upsert(kept, np.stack([kept, -kept], axis=1).astype(np.float32))

    def churn(number: int) -> None:
        own = 10_000 * (number + 1) + np.arange(700)
        for value in range(10):
            table.upsert(own, np.full((700, 2), value, np.float32))
            assert (table.lookup(own) == value).all()
            assert table.remove(own) == 700

    def read(_: int) -> None:
        for _ in range(25):
            rows, exists = table.lookup(kept, return_exists=True)
            assert exists.all()
            np.testing.assert_array_equal(rows[:, 0], kept)
            np.testing.assert_array_equal(rows[:, 1], -kept)

    def export(_: int) -> None:
        for _ in range(8):
            found = [key for keys, _ in table.iterate(300) for key in keys.tolist()]
            assert len(found) == len(set(found))
            assert set(kept.tolist()) <= set(found)

    with ThreadPoolExecutor(4) as pool:
        work = [(churn, 0), (churn, 1), (read, 0), (export, 0)]
        for done in [pool.submit(call, number) for call, number in work]:
            done.result(timeout=120)
    assert len(table) == 1000
