"""Compares `Variable.restrict` with that of TFRA 0.8.1; measures the memory of admission.

    python bench/compare_restrict.py             # 5 million keys, and 100 million seen once
    python bench/compare_restrict.py --quick     # 200,000 keys, and 1 million seen once

The two systems take turns, each time in a new process, which checks that exactly the right keys are
left. The goals are 20 times the peer's speed, extra memory below 10 % of the table, and a Bloom
filter that takes as much memory as its options say. Missing a goal does not change the exit code.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np
from measure_restrict import memory
from peers import (
    BENCH,
    PEER_ENVIRONMENT,
    PEER_PYTHON,
    Record,
    add_output_arguments,
    say,
    set_up_peer,
    write_json,
)

import tfra

ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


def restrict(system: str, keys: int) -> Record:
    """Measures one run of one system, in its own process."""
    python, environment = sys.executable, ENVIRONMENT
    if system == "peer":
        python, environment = str(PEER_PYTHON), PEER_ENVIRONMENT
    command = [python, str(BENCH / "measure_restrict.py"), f"--system={system}", f"--keys={keys}"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, text=True, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"failed: {system}: {done.stderr.strip().splitlines()[-1:]}")
    record: Record = json.loads(done.stdout.strip().splitlines()[-1])
    share = record["extra_bytes"] / record["table_bytes"]
    say(f"  {system:<5} {record['seconds']:8.3f} s, {100 * share:6.1f} % of the table in addition")
    return record


def compare(keys: int, rounds: int) -> Record:
    """Runs the two systems in turns, prints the ratio of the best runs and returns the records."""
    say(f"restrict {keys:,} keys of dim 32 to half of them")
    missing = set_up_peer()
    systems = ["tfra"] if missing else ["peer", "tfra"]
    records = {system: [] for system in systems}  # type: dict[str, list[Record]]
    for _ in range(rounds):
        for system in systems:
            records[system].append(restrict(system, keys))
    best = {system: min(r["seconds"] for r in records[system]) for system in systems}
    worst = {
        system: max(r["extra_bytes"] / r["table_bytes"] for r in records[system])
        for system in systems
    }
    if missing:
        say(f"peer not measured: {missing}")
    else:
        say(f"restrict: {best['peer'] / best['tfra']:.1f} times the peer's speed (goal 20)")
    say(f"memory in addition: at most {100 * worst['tfra']:.1f} % of the table (goal below 10 %)")
    return {"keys": keys, "peer_not_measured": missing, "seconds": best, "extra": worst}


def admit(keys: int, batch: int = 1_000_000) -> Record:
    """Shows a Bloom filter distinct keys once; prints and returns the memory that they took."""
    rule = tfra.admission.CountingBloomFilter(2, capacity=keys, error_rate=0.01)
    say(f"admission: {keys:,} distinct keys seen once, {rule}")
    before = memory("VmRSS")
    table = tfra.Table(16, optimizer="sgd", admission=rule)
    gradients = np.zeros((batch, 16), np.float32)
    start = time.perf_counter()
    for begin in range(0, keys, batch):
        table.apply_gradients(np.arange(begin, begin + batch), gradients)
    seconds = time.perf_counter() - start
    taken = memory("VmRSS") - before - gradients.nbytes
    stats = table.stats()
    say(
        f"asked for {rule.memory_bytes / 1e6:,.1f} MB; the filter has "
        f"{stats.admission_bytes / 1e6:,.1f} MB, the process grew by {taken / 1e6:,.1f} MB with "
        f"{stats.size:,} keys let in early ({100 * stats.size / keys:.3f} %, "
        f"{(stats.index_bytes + stats.row_bytes) / 1e6:,.1f} MB); "
        f"{keys / seconds / 1e6:.1f} M keys/s"
    )
    if stats.refused + stats.size != keys or stats.admission_bytes != rule.memory_bytes:
        raise SystemExit(f"failed: expected every key to be refused or let in. Received: {stats}")
    return {
        "keys": keys,
        "asked_bytes": rule.memory_bytes,
        "filter_bytes": stats.admission_bytes,
        "let_in": stats.size,
    }


def main() -> None:
    """Runs both measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer keys")
    add_output_arguments(parser)
    arguments = parser.parse_args()
    restricted = compare(200_000 if arguments.quick else 5_000_000, rounds=3)
    admitted = admit(1_000_000 if arguments.quick else 100_000_000)
    document = {"records": [restricted, admitted]}
    path = write_json(document, "compare-restrict", arguments.results, arguments.json)
    say(f"results in {path}")


if __name__ == "__main__":
    main()
