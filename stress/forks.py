"""Children that are forked while other threads may be inside of calls."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from typing import Any

import numpy as np
import numpy.random  # Loaded late otherwise, and a fork meanwhile would leave its lock locked.

from stress.defect import Defect, expect
from stress.rows import make_rows, whole_rows
from stress.worker import Shared

HANGS_AFTER = 120  # Seconds.


def fork_and_check(shared: Shared, busy: bool) -> None:
    """Forks a child that uses its copy of the table, and waits for it.

    Args:
        shared: What the threads share.
        busy: Whether other threads are in calls. The counters of the child then lack what these
            calls would have added at their end.
    """
    # Python 3.12 warns of every fork of a process with threads, and this is what is tried.
    warnings.simplefilter("ignore", DeprecationWarning)
    child = os.fork()
    if child == 0:
        _end_in_child(shared, busy)
    status = os.waitpid(child, 0)[1]
    if status != 0:
        raise Defect(f"a forked child failed with status {status}")


def _end_in_child(shared: Shared, busy: bool) -> None:
    code = 1
    try:
        shared.faults.end()
        signal.alarm(HANGS_AFTER)  # faulthandler would wait for its thread, which is not here.
        _use(shared, busy)
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)


def _use(shared: Shared, busy: bool) -> None:
    """Reads the copy of the table, empties it and writes to it."""
    plan, table = shared.plan, shared.table
    try:
        keys, rows = table.export()
        shared.places(keys)
        expect(len(set(keys.tolist())) == len(keys), "child: a key was exported twice")
        if plan.initializer != "uniform":
            expect(whole_rows(rows).all(), "child: a torn row")
        expect(table.contains(keys).all(), "child: a key of the export is not there")
        expect(len(keys) == len(table), f"child: {len(keys)} keys, size {len(table)}")
        table.lookup(shared.keys)
        table.remove(keys[: len(keys) // 2])
    except OSError as error:
        expect(plan.fast_bytes is not None and "forked" in str(error), f"child: {error!r}")
    if not busy:
        _check_size(table)
    table.clear()
    expect(len(table) == 0, "child: keys after clear")
    some = shared.keys[:20]
    rows = make_rows(plan.value_dtype, plan.dim, np.arange(20) % 7)
    table.upsert(some, rows)
    found, exists = table.lookup(some, return_exists=True)
    expect((found[exists] == rows[exists]).all(), "child: wrong rows")
    expect(exists.all() or plan.evicts, "child: keys that were just written are not there")
    if not busy:
        _check_size(table)


def _check_size(table: Any) -> None:
    stats = table.stats()
    left = stats.removals + stats.evictions + stats.expirations
    expect(stats.inserts - left == stats.size, f"child: counters and size differ: {stats}")
