"""Calls that are interrupted by Ctrl-C while they run.

Usage: interrupted_calls.py CALL. Ends with 0 if the call did what docs/faq.md says.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tfra

# A shell ignores SIGINT for programs that it starts in the background, and so would Python.
signal.signal(signal.SIGINT, signal.default_int_handler)

TRIES = 5  # The signal may come late on a busy machine.


def interrupted(call: Callable[[], Any], when: Callable[[], Any]) -> None:
    """Runs `call`, with a SIGINT as soon as `when` returns."""

    def send() -> None:
        when()
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=send, daemon=True)
    try:
        sender.start()
        call()
        sender.join()
        time.sleep(1)  # It ended before the signal came.
        print("no signal", file=sys.stderr)
    except KeyboardInterrupt:
        pass
    sender.join()


def ends_early(call: Callable[[], Any]) -> bool:
    """Whether an interrupted call takes less time than one that is not."""
    start = time.perf_counter()
    call()
    whole = time.perf_counter() - start
    took = []
    for _ in range(TRIES):
        start = time.perf_counter()
        interrupted(call, lambda: time.sleep(whole / 10))
        took.append(time.perf_counter() - start)
        if took[-1] < whole * 0.8:
            return True
    print(f"interrupted after {whole / 10} of {whole} seconds, ended after {took}", file=sys.stderr)
    return False


def filled(count: int, dim: int = 8, **options: Any) -> tfra.Table:
    table = tfra.Table(dim, metadata=True, **options)
    for start in range(0, count, 1_000_000):
        keys: Any = np.arange(start, min(count, start + 1_000_000))
        rows: Any = np.ones((len(keys), dim), np.float32)
        if table.key_dtype == np.dtype(object):
            keys = np.array([b"%d" % key for key in keys.tolist()], object)
        table.upsert(keys, rows)
    return table


def lookup() -> bool:
    table = tfra.Table(1)
    table.upsert([0], [[1.0]])
    keys = np.zeros(200_000_000, np.int64)  # Read only, so that they take no memory.
    for _ in range(TRIES):
        out = np.zeros((len(keys), 1), np.float32)

        def begun(out: Any = out) -> None:
            while out[0, 0] == 0:
                time.sleep(0.001)

        interrupted(lambda out=out: table.lookup(keys, out=out), begun)
        if out[-1, 0] == 0:
            return True
    return False


def contains() -> bool:
    table = filled(1000)
    keys = np.zeros(200_000_000, np.int64)
    return ends_early(lambda: table.contains(keys))


def usage() -> bool:
    table = filled(1000)
    keys = np.zeros(30_000_000, np.int64)
    return ends_early(lambda: table.usage(keys))


def export() -> bool:
    table = filled(10_000_000, dim=2)
    return ends_early(lambda: table.export())


def export_strings() -> bool:
    table = filled(1_500_000, key_dtype="string")
    return ends_early(lambda: table.export())


def iterate() -> bool:
    table = filled(6_000_000)
    return ends_early(lambda: sum(len(keys) for keys, _ in table.iterate()))


def upsert() -> bool:
    table = filled(10)
    keys = np.arange(6_000_000)
    rows = np.full((len(keys), 8), 2, np.float32)
    interrupted(lambda: table.upsert(keys, rows), lambda: wait_for(lambda: len(table) > 10))
    return len(table) == len(keys) and bool((table.lookup(keys) == 2).all())


def apply_gradients() -> bool:
    table = filled(0, optimizer="sgd")
    keys = np.arange(6_000_000)
    gradients = np.ones((len(keys), 8), np.float32)
    # The step is begun only once the first rows are there.
    interrupted(
        lambda: table.apply_gradients(keys, gradients, learning_rate=1.0),
        lambda: wait_for(lambda: len(table) > 0),
    )
    return table.step == 1 and bool((table.lookup(keys) == -1).all())


def restrict() -> bool:
    table = filled(6_000_000)
    interrupted(lambda: table.restrict(1_000_000), lambda: wait_for(lambda: len(table) < 6_000_000))
    return len(table) == 1_000_000 == len(table.export()[0])


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.0005)


if __name__ == "__main__":
    sys.exit(0 if globals()[sys.argv[1]]() else f"{sys.argv[1]} did otherwise")
