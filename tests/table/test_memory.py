"""The memory that a table reports, against the memory of the process."""

from __future__ import annotations

import dataclasses
import json
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

import tfra
from support import Case, make_keys, make_values, run_python

MB = 2**20

# Runs in a process of its own, where nothing else moves the memory.
PRELUDE = """
import gc, json, re
import numpy as np
import tfra

BATCH = 65536

def rss():
    gc.collect()
    return int(re.search(r"VmRSS:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

def batches(first, last):
    for start in range(first, last, BATCH):
        # Odd multiples are a permutation of the 64-bit integers, without order in sight.
        yield np.arange(start, min(start + BATCH, last)) * 0x9E3779B97F4A7C1

def fill(table, count):
    values = np.ones((BATCH, table.dim), table.value_dtype)
    for keys in batches(0, count):
        table.upsert(keys, values[: len(keys)])

# Threads, buffers and code are there before anything is measured.
for _ in range(2):
    fill(tfra.Table(32, optimizer="adam"), 4 * BATCH)
"""


def measure(code: str) -> Any:
    """What `code` printed as JSON, after the prelude."""
    # glibc keeps freed arrays of NumPy for reuse, more or less of them by chance, unless told.
    malloc = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    return json.loads(run_python(PRELUDE + textwrap.dedent(code), **malloc))


@pytest.mark.parametrize("millions", [1, 3])
@pytest.mark.parametrize("dim", [16, 32])
@pytest.mark.parametrize("optimizer", [None, "adam"])
def test_estimate_is_what_the_process_grows_by(
    millions: int, dim: int, optimizer: str | None
) -> None:
    keys = millions * 1_000_000
    grown, reported = measure(f"""
        table = tfra.Table({dim}, optimizer={optimizer!r})
        before = rss()
        fill(table, {keys})
        print(json.dumps([rss() - before, table.memory_usage()["total"]]))
    """)
    assert tfra.estimate_memory(keys, dim, optimizer=optimizer) == pytest.approx(grown, rel=0.1)
    assert reported == pytest.approx(grown, rel=0.1)


def test_estimate_of_string_keys_is_what_the_process_grows_by() -> None:
    grown, reported = measure("""
        table = tfra.Table(16, key_dtype="string")
        values = np.ones((BATCH, 16), np.float32)
        warm_up = [b"%024d" % n for n in range(BATCH)]
        table.upsert(warm_up, values)
        table.clear()
        table.shrink()
        before = rss()
        for start in range(0, 1_000_000, BATCH):
            keys = [b"%024d" % n for n in range(start, min(start + BATCH, 1_000_000))]
            table.upsert(keys, values[: len(keys)])
        del keys
        print(json.dumps([rss() - before, table.memory_usage()["total"]]))
    """)
    estimate = tfra.estimate_memory(1_000_000, 16, key_dtype="string", key_bytes=24)
    assert estimate == pytest.approx(grown, rel=0.1)
    assert reported == pytest.approx(grown, rel=0.1)


def test_estimate_counts_everything_a_row_carries() -> None:
    def estimate(*args: Any, **options: Any) -> int:
        return tfra.estimate_memory(1_000_000, *args, **options)

    plain = estimate(32)
    assert isinstance(plain, int)
    assert 128e6 < plain < 1.6 * 128e6
    assert estimate(32, "float16") < 0.7 * plain
    assert estimate(32, "float64") > 1.7 * plain
    assert estimate(32, "float32", "adam") > 2.5 * plain
    assert estimate(32, "float32", tfra.optimizers.SGD()) == plain
    assert plain < estimate(32, optimizer="rowwise_adagrad") < 1.1 * plain
    assert 4e6 < estimate(32, metadata=True) - plain < 20e6
    assert estimate(32, key_dtype="string", key_bytes=100) - plain > 100e6
    assert tfra.estimate_memory(2_000_000, 32) > 1.7 * plain
    assert 0 <= tfra.estimate_memory(0, 32) < MB


def test_shrink_gives_back_what_removed_keys_took() -> None:
    full, cleared, tenth, empty = measure("""
        table = tfra.Table(32)
        before = rss()
        fill(table, 2_000_000)
        full = rss() - before
        for keys in batches(200_000, 2_000_000):
            assert table.remove(keys) == len(keys)
        table.shrink()
        tenth = rss() - before
        assert len(table) == 200_000
        for keys in batches(0, 200_000):
            assert (table.lookup(keys) == 1).all()
        table.clear()
        cleared = rss() - before
        table.shrink()
        print(json.dumps([full, cleared, tenth, rss() - before]))
    """)
    assert full > 2_000_000 * 128
    assert tenth < 0.15 * full
    assert empty < 4 * MB
    assert cleared >= empty


def test_a_dropped_table_gives_its_memory_back() -> None:
    full, dropped = measure("""
        table = tfra.Table(32, optimizer="adam")
        before = rss()
        fill(table, 1_000_000)
        full = rss() - before
        del table
        print(json.dumps([full, rss() - before]))
    """)
    assert full > 1_000_000 * 384
    assert dropped < 4 * MB


# Each line is done 20000 times.
SMALL_CALLS = {
    "int64": """
        table.upsert(keys, values)
        table.lookup(keys, 1.0, return_exists=True)
        table.lookup(keys, out=out)
        table.accum(keys, values, known)
        table.apply_gradients(keys, values, learning_rate=0.1)
        table.contains(7) and 7 in table
        table.export(slots=True)
        table.remove(keys[:2])
        table.stats(), table.memory_usage(), len(table), repr(table)
        list(table.iterate(2, slots=True))
        table.count_if(count_below=3), table.select(count_below=3)
    """,
    "string": """
        table.upsert(["a", b"b" * 40, "c" * 9], texts)
        table.lookup(["a", "zz"], ["d" * 30, "e"])
        table.export()
        table.remove(["a", b"b" * 40])
        list(table.iterate(1))
    """,
    "errors": """
        fails(TypeError, lambda: table.lookup([1.5]))
        fails(TypeError, lambda: table.upsert(keys, values.astype("f8")))
        fails(ValueError, lambda: table.upsert(keys, values[:2]))
        fails(ValueError, lambda: table.apply_gradients(keys, values, step=0))
        fails(ValueError, lambda: tfra.Table(0))
        fails(TypeError, lambda: strings.upsert(["a", 5], texts[:2]))
        fails(TypeError, lambda: strings.upsert(["a", "b"], [["x", "y"], ["z", 5]]))
    """,
    "tables": """
        made = tfra.Table(4, optimizer="adam", initializer=values[0])
        made.upsert(keys, values)
    """,
}


@pytest.mark.parametrize("name", SMALL_CALLS)
def test_small_calls_leak_nothing(name: str) -> None:
    setup = """
        table = tfra.Table(4, optimizer="adam", metadata=True)
        strings = tfra.Table(2, key_dtype="string", value_dtype="string")
        keys, values = np.arange(5), np.ones((5, 4), np.float32)
        out, known = np.empty((5, 4), np.float32), np.ones(5, bool)
        texts = [["x" * 50, "y"], ["", "z"], ["w" * 20, "v"]]

        def fails(error, call):
            try:
                call()
            except error:
                return
            raise AssertionError("no error")
    """
    if name == "string":
        setup += "    table = strings\n"
    body = textwrap.indent(textwrap.dedent(SMALL_CALLS[name]).strip(), "    ")
    code = textwrap.dedent(setup) + (
        f"\ndef calls():\n{body}\n\n"
        "for _ in range(3000):\n    calls()\n"
        "before = rss()\n"
        "for _ in range(20_000):\n    calls()\n"
        "print(json.dumps(rss() - before))\n"
    )
    assert measure(code) < 20_000 * 16


def test_calls_keep_no_references_to_their_arguments(case: Case) -> None:
    table = case.table()
    keys, values = case.keys(range(1000, 1020)), case.values(20)
    first_key, first_value = keys[0], values[0, 0]
    counted = (keys, values, first_key, first_value, table.value_dtype, table.key_dtype)

    def call() -> None:
        table.upsert(keys, values)
        table.lookup(keys, values[0])
        table.contains(keys)
        table.remove(keys[:3])

    call()
    before = [sys.getrefcount(item) for item in counted]
    for _ in range(50):
        call()
    assert [sys.getrefcount(item) for item in counted] == before


def test_stats_count_what_happened(key_dtype: str) -> None:
    table = tfra.Table(2, key_dtype=key_dtype)
    rows = np.ones((10, 2), np.float32)
    table.upsert(make_keys(key_dtype, range(10)), rows)
    table.upsert(make_keys(key_dtype, range(5, 15)), rows)
    table.lookup(make_keys(key_dtype, [[1, 1, 99], [2, 98, 3]]))
    table.remove(make_keys(key_dtype, [1, 2, 99]))
    table.accum(make_keys(key_dtype, [1, 3, 4]), rows[:3], np.array([True, True, False]))
    stats = table.stats()
    assert isinstance(stats, tfra.TableStats)
    assert stats.size == len(table) == 13
    assert (stats.lookups, stats.hits, stats.misses) == (6, 4, 2)
    assert (stats.inserts, stats.updates, stats.removals, stats.ignored) == (15, 6, 2, 2)
    assert stats.capacity >= stats.size
    assert stats.load == pytest.approx(stats.size / stats.capacity)
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.size = 0  # type: ignore[misc]


def test_clearing_counts_as_removals() -> None:
    table = tfra.Table(2)
    table.upsert(range(10), np.ones((10, 2), np.float32))
    table.clear()
    stats = table.stats()
    assert (stats.size, stats.inserts, stats.removals) == (0, 10, 10)


def test_memory_usage_is_the_sum_of_its_parts(
    key_dtype: str, value_dtype: str, rng: np.random.Generator
) -> None:
    table = tfra.Table(16, key_dtype=key_dtype, value_dtype=value_dtype)
    count = 5000
    table.upsert(make_keys(key_dtype, range(count)), make_values(value_dtype, (count, 16), rng))
    usage, stats = table.memory_usage(), table.stats()
    assert usage == {
        "index": stats.index_bytes,
        "rows": stats.row_bytes,
        "strings": stats.string_bytes,
        "admission": 0,
        "total": stats.index_bytes + stats.row_bytes + stats.string_bytes,
    }
    element = 8 if value_dtype == "string" else table.value_dtype.itemsize
    assert usage["rows"] >= count * 16 * element
    assert usage["index"] > 0
    # String keys have 31 bytes on average, string values 20.
    texts = 31 * (key_dtype == "string") + 16 * 19 * (value_dtype == "string")
    assert usage["strings"] >= count * texts * 0.9
    assert (usage["strings"] > 0) == (texts > 0)
