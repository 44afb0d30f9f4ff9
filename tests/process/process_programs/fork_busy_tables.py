"""Forks again and again while threads are inside of calls, and uses the table in each child.

Usage: fork_busy_tables.py KIND FORKS. A child that hangs prints where it does.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.random  # Loaded late otherwise, and a fork meanwhile would leave its lock locked.

import tfra

# Python 3.12 warns of every fork of a process with threads, and this is what is tested.
warnings.simplefilter("ignore", DeprecationWarning)

DIM = 4
KEYS = 40_000
BATCH = 4_000
HANGS_AFTER = 120  # Seconds: the machines that run the tests are slow.

TABLES: dict[str, Callable[[], tfra.Table]] = {
    "int": lambda: tfra.Table(DIM, optimizer="adagrad", metadata=True),
    "string": lambda: tfra.Table(DIM, key_dtype="string", optimizer="adagrad", metadata=True),
    "bounded": lambda: tfra.Table(
        DIM, optimizer="adagrad", metadata=True, max_capacity=KEYS // 2, evict_strategy="lfu"
    ),
    "admission": lambda: tfra.Table(
        DIM, optimizer="adagrad", metadata=True, admission=tfra.admission.MinCount(2)
    ),
    "tiered": lambda: tfra.Table(DIM, optimizer="adagrad", metadata=True, fast_bytes=200_000),
    "tiered-string": lambda: tfra.Table(
        DIM, key_dtype="string", optimizer="adagrad", metadata=True, fast_bytes=200_000
    ),
}


def equal_rows(keys: Any, number: float) -> Any:
    """Rows that can be seen to be whole: all elements of a row are equal."""
    return np.full((len(keys), DIM), number, np.float32)


def all_calls(table: tfra.Table, rng: np.random.Generator) -> list[Callable[[], Any]]:
    """Every kind of call, with random keys."""
    numbers = rng.integers(0, KEYS, BATCH)
    texts = table.key_dtype == np.dtype(object)
    keys: Any = np.array([b"key %d" % n for n in numbers.tolist()], object) if texts else numbers
    rows = equal_rows(keys, rng.integers(1, 100))
    calls = [
        lambda: table.upsert(keys, rows),
        lambda: table.apply_gradients(keys, rows),
        lambda: table.lookup(keys),
        lambda: table.contains(keys),
        lambda: table.accum(keys, rows, np.ones(len(keys), np.bool_)),
        lambda: table.remove(keys[:100]),
        lambda: table.export(slots=True),
        lambda: list(table.iterate(1000)),
        lambda: table.touch(keys),
        lambda: table.usage(keys),
        lambda: table.histograms(),
        lambda: table.select(count_below=2),
        lambda: table.restrict(KEYS // 4),
        lambda: table.reserve(KEYS),
        lambda: table.shrink(),
        lambda: table.admission_state(),
        lambda: str(table),
        lambda: table.stats(),
        lambda: tfra.Table(2).upsert([1, 2], np.ones((2, 2), np.float32)),
    ]
    if table.max_capacity is not None:
        calls += [
            lambda: table.insert_and_evict(keys, rows),
            lambda: table.find_or_insert(keys),
            lambda: table.export_with_scores(),
            lambda: table.erase_if(score_below=2),
        ]
    return [*calls, table.clear]


def use(table: tfra.Table, stop: threading.Event, seed: int) -> None:
    rng = np.random.default_rng(seed)
    while not stop.is_set():
        calls = all_calls(table, rng)
        # What empties the table comes seldom, so that there is something in it at most times.
        chosen = rng.integers(0, len(calls) if rng.random() < 0.1 else 8)
        calls[chosen]()


def refused(table: tfra.Table, call: Callable[[], Any]) -> bool:
    """Runs a call, and returns whether it needed the file of the parent."""
    try:
        call()
    except OSError as error:
        assert table.fast_bytes is not None, error
        assert "forked" in str(error), error
        return True
    return False


def check_rows(table: tfra.Table) -> None:
    keys, values = table.export()
    assert len(set(keys.tolist())) == len(keys) == len(table), (len(keys), len(table))
    assert (values == values[:, :1]).all()


def in_child(table: tfra.Table) -> None:
    """What a child does with its copy of the table."""
    refused(table, lambda: check_rows(table))
    for call in all_calls(table, np.random.default_rng(0)):
        refused(table, call)
    assert len(table) == 0
    key = b"new" if table.key_dtype == np.dtype(object) else 5
    for number in (1.0, 2.0, 3.0):
        table.upsert([key], equal_rows([key], number))
        table.apply_gradients([key], equal_rows([key], 0))
    assert table.lookup([key]).tolist() == [[3.0] * DIM]
    check_rows(table)


def fork_once(table: tfra.Table) -> int:
    child = os.fork()
    if child != 0:
        return os.waitpid(child, 0)[1]
    code = 1
    try:
        faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
        in_child(table)
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)


def main() -> None:
    kind, forks = sys.argv[1], int(sys.argv[2])
    table = TABLES[kind]()
    stop = threading.Event()
    threads = [threading.Thread(target=use, args=(table, stop, seed)) for seed in range(4)]
    for thread in threads:
        thread.start()
    bad = 0
    for _ in range(forks):
        bad += fork_once(table) != 0
        if bad > 0:
            break
    stop.set()
    for thread in threads:
        thread.join()
    check_rows(table)
    sys.exit(f"{bad} children failed" if bad else 0)


if __name__ == "__main__":
    main()
