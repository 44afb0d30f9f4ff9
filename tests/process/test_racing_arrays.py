"""Arrays that another thread writes to during a call, as a data loader does that reuses its buffer.

Such a call may take any of the values that were in the array. It must not break the table: each
key has one row, and the counters, the size and the content agree. A broken table crashes the
process, so each program runs in one of its own.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
import sys, threading
import numpy as np
import tfra

KEYS = 30_000
random = np.random.default_rng(0)
choices = random.permutation(np.arange(-60_000, 60_000, dtype=np.int64))
keys = choices[:KEYS].copy()
scores = np.ones(KEYS, np.uint64)
exists = np.zeros(KEYS, np.bool_)
values = np.ones((KEYS, 4), np.float32)
stop = threading.Event()


def disturb(seed):
    own = np.random.default_rng(seed)
    while not stop.is_set():
        start = int(own.integers(0, len(choices) - KEYS))
        keys[:] = choices[start : start + KEYS]
        exists[:] = own.integers(0, 2, KEYS).astype(bool)
        scores[:] = own.integers(0, 2**62, KEYS).astype(np.uint64)


def check(table, bound=None):
    stop.set()
    for thread in threads:
        thread.join()
    found = table.export()[0]
    assert len(np.unique(found)) == len(found) == len(table), (len(found), len(table))
    assert bound is None or len(table) <= bound, len(table)
    assert table.contains(found).all()
    stats = table.stats()
    assert stats.inserts - stats.removals - stats.evictions == len(table)
    table.remove(found)
    assert len(table) == 0 and len(table.export()[0]) == 0


threads = [threading.Thread(target=disturb, args=(seed,)) for seed in (1, 2)]
for thread in threads:
    thread.start()
"""

CALLS = {
    "upsert": """
        table = tfra.Table(4)
        for _ in range(150):
            table.upsert(keys, values)
        check(table)
    """,
    "remove": """
        table = tfra.Table(4)
        for _ in range(100):
            table.upsert(keys, values)
            table.remove(keys)
        check(table)
    """,
    "gradients": """
        table = tfra.Table(4, optimizer="adam")
        for _ in range(100):
            table.apply_gradients(keys, values)
        check(table)
    """,
    "accum": """
        table = tfra.Table(4)
        for _ in range(100):
            table.accum(keys, values, exists)
        check(table)
    """,
    "admission": """
        table = tfra.Table(4, optimizer="sgd", admission=tfra.admission.MinCount(3))
        for _ in range(60):
            table.apply_gradients(keys, values)
        check(table)
    """,
    "metadata": """
        table = tfra.Table(4, metadata=True)
        for _ in range(60):
            table.upsert(keys, values)
            table.touch(keys)
            table.usage(keys)
        check(table)
    """,
    "bounded": """
        table = tfra.Table(4, max_capacity=20_000)
        for _ in range(150):
            table.upsert(keys, values)
        check(table, 20_000)
    """,
    "scores": """
        table = tfra.Table(4, max_capacity=20_000, evict_strategy="customized")
        for _ in range(100):
            table.upsert(keys, values, scores=scores)
        check(table, 20_000)
    """,
    "counts": """
        table = tfra.Table(4, max_capacity=20_000, evict_strategy="lfu")
        for _ in range(60):
            table.upsert(keys, values, scores=scores)
            table.accum(keys, values, exists)
        check(table, 20_000)
    """,
    "tiers": """
        table = tfra.Table(4, fast_bytes=200_000)
        for _ in range(30):
            table.upsert(keys, values)
            table.lookup(keys)
        check(table)
    """,
    "lookup": """
        table = tfra.Table(4, initializer="uniform")
        table.upsert(choices, np.ones((len(choices), 4), np.float32))
        for _ in range(200):
            table.lookup(keys, return_exists=True)
            table.contains(keys)
        check(table)
    """,
}


@pytest.mark.parametrize("call", CALLS)
def test_keys_that_change_during_a_call_break_nothing(call: str) -> None:
    program = PROGRAM + textwrap.dedent(CALLS[call])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr[-3000:]}"
