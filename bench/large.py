"""Builds, trains and exports a table that is much larger than its memory.

    python bench/large.py     # 50 million keys x 64 floats, 2 GB of memory for rows; minutes
    python bench/large.py --keys 1000000 --fast-bytes 40000000 --steps 20

Rows are float32 values with their Adam slots. Ids of the steps follow a Zipf law with the exponent
1.05. Rows of some keys are compared with what NumPy makes of the same gradients; the keys of the
export are compared with those that were written. The exit code is 0 only if all agree.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from measure_tiers import (
    BETA_1,
    BETA_2,
    EPSILON,
    LEARNING_RATE,
    Zipf,
    gradients_of,
    values_of,
)
from peers import add_output_arguments, say, write_json
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from workloads import Array, Record, keys_at, resident_bytes

import tfra

BATCH = 65_536
GIB = 2**30


class Reference:
    """The expected values of some rows after training."""

    def __init__(self, keys: int, dim: int) -> None:
        frequent, others = np.arange(200), np.linspace(200, keys - 1, 800).astype(np.int64)
        self.index = np.unique(np.concatenate([frequent, others]) % keys)
        self.value = values_of(self.index, dim).astype(np.float64)
        self.momentum, self.velocity = np.zeros_like(self.value), np.zeros_like(self.value)
        self.steps = np.zeros(len(self.index), np.int64)

    def step(self, index: Array, gradients: Array, number: int) -> None:
        """Takes a step of Adam on those rows that are in the batch."""
        place = np.searchsorted(self.index, index)
        place[place == len(self.index)] = 0
        mine = self.index[place] == index
        sums = np.zeros_like(self.value)
        np.add.at(sums, place[mine], gradients[mine])
        some = np.unique(place[mine])
        gradient = sums[some]
        self.steps[some] += 1
        self.momentum[some] += (gradient - self.momentum[some]) * (1 - BETA_1)
        self.velocity[some] += (gradient**2 - self.velocity[some]) * (1 - BETA_2)
        rate = LEARNING_RATE * np.sqrt(1 - BETA_2**number) / (1 - BETA_1**number)
        self.value[some] -= rate * self.momentum[some] / (np.sqrt(self.velocity[some]) + EPSILON)

    def check(self, table: tfra.Table) -> str:
        """Compares the rows with those of the table; returns a summary."""
        rows = table.lookup(keys_at(self.index))
        still = self.steps == 0
        if not np.array_equal(rows[still], self.value[still].astype(np.float32)):
            raise SystemExit(
                "failed: expected rows without a gradient as they were. Received: others"
            )
        if not np.allclose(rows, self.value, rtol=1e-3, atol=1e-5):
            worst = np.abs(rows - self.value).max()
            raise SystemExit(
                f"failed: expected the rows of NumPy. Received: others, by {worst:.2g}"
            )
        return f"{len(rows)} rows are NumPy's, {int((~still).sum())} of them trained"


class Report:
    """Shows the progress and collects the figures."""

    def __init__(self, table: tfra.Table, before: int) -> None:
        self.figures: Record = {}
        self._table, self._before = table, before
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self.progress = Progress(*columns, TimeRemainingColumn(), disable=not sys.stdout.isatty())

    def each(self, what: str, items: Any, total: int) -> Iterator[Any]:
        """Iterates over items and shows the progress."""
        with self.progress:
            yield from self.progress.track(items, total=total, description=what)

    def note(self, what: str, count: int, seconds: float) -> None:
        """Prints the speed of a phase and the memory in use."""
        stats = self._table.stats()
        resident = resident_bytes() - self._before
        share = resident / (self._table.fast_bytes + stats.index_bytes)  # type: ignore[operator]
        self.figures[what] = {
            "seconds": seconds,
            "per_second": count / seconds,
            "resident_bytes": resident,
            "resident_of_budget_and_index": share,
            "fast_hit_rate": stats.fast_hit_rate,
            "slow_bytes": stats.slow_bytes,
        }
        say(
            f"{what}: {count / seconds / 1e6:.3f} M keys/s, {seconds:.0f} s; resident "
            f"{resident / GIB:.2f} GiB, {share:.2f} of budget and index; file "
            f"{stats.slow_bytes / GIB:.1f} GiB; {100 * stats.fast_hit_rate:.1f} % of hits in memory"
        )


def require_room(directory: Path, bytes_needed: int) -> None:
    """Ends the program if the disk has too little space for the file."""
    free = shutil.disk_usage(directory).free
    if free < bytes_needed:
        raise SystemExit(
            f"failed: expected {bytes_needed / GIB:.1f} GiB of free disk for rows in {directory}. "
            f"Received: {free / GIB:.1f} GiB. Give another --directory, or fewer --keys."
        )


def build(table: tfra.Table, keys: int, report: Report) -> int:
    """Writes all rows; returns the exclusive or of all keys."""
    seconds, mixed = 0.0, 0
    starts = range(0, keys, BATCH)
    for start in report.each("build", starts, len(starts)):
        index = np.arange(start, min(start + BATCH, keys))
        batch, values = keys_at(index), values_of(index, table.dim)
        mixed ^= int(np.bitwise_xor.reduce(batch))
        started = time.perf_counter()
        table.upsert(batch, values)
        seconds += time.perf_counter() - started
    report.note("build", keys, seconds)
    return mixed


def train(
    table: tfra.Table, stream: Zipf, steps: int, reference: Reference, report: Report
) -> None:
    """Takes all steps of Adam."""
    seconds = 0.0
    for number in report.each("train", range(1, steps + 1), steps):
        index = stream.draw()
        batch, gradients = keys_at(index), gradients_of(index, table.dim, number)
        reference.step(index, gradients, number)
        started = time.perf_counter()
        table.apply_gradients(batch, gradients)
        seconds += time.perf_counter() - started
    report.note("train", steps * BATCH, seconds)


def export(table: tfra.Table, keys: int, mixed: int, report: Report) -> None:
    """Exports the table, a batch at a time, and checks its keys."""
    count, seconds = 0, 0.0
    batches = table.iterate(BATCH, slots=True)
    started = time.perf_counter()
    for batch, values, slots in report.each("export", batches, -(-keys // BATCH)):
        seconds += time.perf_counter() - started
        if not np.isfinite(values).all() or slots["velocity"].min() < 0:
            raise SystemExit("failed: expected finite rows and squares. Received: others")
        count += len(batch)
        mixed ^= int(np.bitwise_xor.reduce(batch))
        started = time.perf_counter()
    if count != keys or mixed != 0:
        raise SystemExit(f"failed: expected each of {keys:,} keys once. Received: {count:,} keys")
    report.note("export", keys, seconds)


def main() -> int:
    """Builds, trains, exports and checks a table; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=50_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--fast-bytes", type=int, default=2_000_000_000, help="memory for rows")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--directory", type=Path, default=Path(tempfile.gettempdir()), help="of the file"
    )
    add_output_arguments(parser)
    given = parser.parse_args()
    if given.keys < 1000 or given.steps < 1:
        parser.error(
            "expected --keys of 1000 or more and --steps of 1 or more. "
            f"Received: {given.keys} and {given.steps}"
        )
    row_bytes = 3 * 4 * given.dim
    rows = given.keys * row_bytes
    # A part of the file stays free, so that rows can be written in long runs.
    require_room(given.directory, int(1.4 * rows))
    say(
        f"{given.keys:,} keys x {given.dim} float32 with Adam: {rows / GIB:.1f} GiB of rows, "
        f"memory for {given.fast_bytes / GIB:.2f} GiB of them, {os.cpu_count()} CPUs"
    )
    stream, reference = Zipf(given.keys, BATCH), Reference(given.keys, given.dim)
    rule = tfra.optimizers.Adam(LEARNING_RATE, BETA_1, BETA_2, EPSILON)
    before = resident_bytes()
    table = tfra.Table(
        given.dim,
        optimizer=rule,
        max_capacity=given.keys,
        fast_bytes=given.fast_bytes,
        tier_directory=given.directory,
    )
    report = Report(table, before)
    mixed = build(table, given.keys, report)
    train(table, stream, given.steps, reference, report)
    say(reference.check(table))
    export(table, given.keys, mixed, report)
    index = table.stats().index_bytes / given.keys
    say(f"index: {index:.1f} bytes per key")
    document = {
        "keys": given.keys, "dim": given.dim, "fast_bytes": given.fast_bytes,
        "steps": given.steps, "index_bytes_per_key": index, "records": [report.figures],
    }  # fmt: skip
    path = write_json(document, "large", given.results, given.json)
    say(f"all agree; written to {os.path.relpath(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
