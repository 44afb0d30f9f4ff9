"""A process that ends while daemon threads are inside of calls ends as any other does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# The main thread ends as soon as each thread is at work. What the threads do then is up to chance,
# so each program runs many times.
PROGRAM = """
import sys
import threading

import numpy as np

import tfra

kind, call = sys.argv[1:]
options = {
    "int": {},
    "string": {"key_dtype": "string", "value_dtype": "string", "optimizer": None},
    "bounded": {"max_capacity": 20_000},
    "tiered": {"fast_bytes": 100_000},
}
table = tfra.Table(8, **{"optimizer": "sgd", "metadata": True, **options[kind]})
numbers = np.arange(30_000)
keys = numbers
values = np.ones((len(keys), 8), np.float32)
if kind == "string":
    keys = np.array([b"%d" % number for number in numbers], object)
    values = np.full((len(keys), 8), b"text", object)
table.upsert(keys, values)
calls = {
    "lookup": lambda: table.lookup(keys),
    "small lookup": lambda: table.lookup(keys[:3]),
    "contains": lambda: table.contains(keys),
    "upsert": lambda: table.upsert(keys, values),
    "export": lambda: table.export(),
    "iterate": lambda: list(table.iterate(1000)),
    "restrict": lambda: (table.upsert(keys, values), table.restrict(10_000)),
    "shrink": lambda: (table.upsert(keys, values), table.clear(), table.shrink()),
    "tables": lambda: tfra.Table(8).upsert(numbers, np.ones((len(numbers), 8), np.float32)),
}

def work(started):
    while True:
        calls[call]()
        started.set()

for _ in range(3):
    started = threading.Event()
    threading.Thread(target=work, args=(started,), daemon=True).start()
    started.wait()
"""

RUNS = 20
CALLS = {
    "int": ["lookup", "small lookup", "contains", "upsert", "export", "iterate", "restrict"],
    "string": ["lookup", "upsert", "export"],
    "bounded": ["upsert"],
    "tiered": ["lookup", "upsert", "shrink"],
}
CASES = [(kind, call) for kind, calls in CALLS.items() for call in calls] + [("int", "tables")]


@pytest.mark.parametrize(("kind", "call"), CASES)
def test_threads_inside_of_calls_when_the_process_ends(kind: str, call: str) -> None:
    environment = {**os.environ, "TFRA_NUM_THREADS": "2"}
    for run in range(RUNS):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, kind, call],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), f"run {run}"
