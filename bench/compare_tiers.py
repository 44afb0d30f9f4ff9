"""Compares a table with an eighth of its rows in memory, one with all rows in memory, and RocksDB.

    python bench/compare_tiers.py             # 2 million keys
    python bench/compare_tiers.py --quick     # 200,000 keys, a first impression

Rows are 32 floats with their Adam slots; ids follow a Zipf law with the exponent 1.05. Three
systems take turns, each time in a new process: `tfra.Table(max_capacity, fast_bytes)` with memory
for an eighth of the rows, the same table with all rows in memory, and RocksDB (rocksdict) with a
block cache of the same size. Rows that are looked up are checked, and rows after training are
compared between the three. The exit code is 0 only if they agree; missing a goal does not
change it.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import numpy as np
from peers import (
    BENCH,
    ROCKSDICT_ENVIRONMENT,
    ROCKSDICT_PYTHON,
    Failed,
    Record,
    Summary,
    measure,
    plan_options,
    run_comparison,
    say,
    set_up_rocksdict,
)

SCRIPT = str(BENCH / "measure_tiers.py")
MEMORY_GOAL = 1.15


@dataclass(frozen=True)
class Line:
    """One line of the comparison."""

    title: str
    workload: str
    against: str
    goal: float | None = None


LINES = (
    Line("lookup, of all in memory", "lookup", "memory", 0.35),
    Line("apply Adam, of all in memory", "adam", "memory", 0.35),
    Line("lookup, of RocksDB", "lookup", "rocksdict", 5.0),
    Line("apply Adam, of RocksDB", "adam", "rocksdict", 5.0),
    Line("build, of all in memory", "build", "memory"),
    Line("build, of RocksDB", "build", "rocksdict"),
)


def table(summaries: dict[tuple[int, str, str], Summary]) -> list[str]:
    """Returns the lines of the comparison."""
    lines = []
    for keys in sorted({place[0] for place in summaries}):
        lines.append(
            f"{f'{keys:,} keys, M keys/s':<32}{'other':>9}{'tfra':>9}{'ratio':>9}{'medians':>9}"
            f"{'goal':>9}"
        )
        for line in LINES:
            ours, other = (
                summaries.get((keys, line.workload, system)) for system in ("tfra", line.against)
            )
            if ours is None or other is None:
                continue
            goal = met = ""
            if line.goal is not None:
                goal = f">= {line.goal:g}x"
                met = "met" if ours.best >= line.goal * other.best else "missed"
            lines.append(
                f"{line.title:<32}{other.best / 1e6:>9.3f}{ours.best / 1e6:>9.3f}"
                f"{ours.best / other.best:>8.2f}x{ours.median / other.median:>8.2f}x{goal:>9} {met}"
            )
        index = (
            summaries[keys, "memory", "tfra"].best if (keys, "memory", "tfra") in summaries else 0
        )
        lines.append(f"index: {index:.1f} bytes per key")
    return lines


def memory_ratio(record: Record) -> float:
    """Returns the growth of the process divided by budget plus index."""
    return float(record["resident_bytes"] / (record["budget_bytes"] + record["index_bytes"]))


def check_samples(records: list[Record]) -> None:
    """Raises unless rows agree after training; both tables of tfra must agree bit by bit."""
    trained = [r for r in records if r["workload"] == "adam"]
    for keys in {r["keys"] for r in trained}:
        samples = [(r["system"], np.array(r["sample"])) for r in trained if r["keys"] == keys]
        ours = [sample for system, sample in samples if system != "rocksdict"]
        if any(not np.array_equal(sample, ours[0]) for sample in ours):
            raise Failed("expected the same rows with a file and without. Received: others")
        for system, sample in samples:
            if not np.allclose(sample, samples[0][1], rtol=1e-3, atol=1e-4):
                raise Failed(f"expected the rows of {samples[0][0]}. Received: others of {system}")


def measure_all(arguments: argparse.Namespace, with_peer: bool) -> list[Record]:
    """Measures every size; the systems take turns."""
    systems = []
    if with_peer:
        systems.append(("rocksdict", str(ROCKSDICT_PYTHON), ROCKSDICT_ENVIRONMENT))
    if arguments.only != "peer":
        systems += [(name, arguments.python, {}) for name in ("memory", "tfra")]
    records: list[Record] = []
    for keys in arguments.keys:
        for repeat in range(arguments.repeats):
            say(f"{keys:,} keys, {repeat + 1} of {arguments.repeats}")
            for name, python, environment in systems:
                command = [python, SCRIPT, f"--system={name}", *plan_options(arguments, keys)]
                records += measure(command, environment)
    check_samples(records)
    for record in records:
        record.pop("sample", None)  # Compared already; the results leave it out.
        if record["workload"] == "memory" and record["system"] == "tfra":
            say(
                f"{record['keys']:,} keys: {record['resident_bytes'] / 2**20:.0f} MiB resident, "
                f"{memory_ratio(record):.2f} of budget and index (goal at most {MEMORY_GOAL}); "
                f"{record['slow_bytes'] / 2**20:.0f} MiB in the file; "
                f"{100 * record['fast_hit_rate']:.1f} % of hits in memory"
            )
    return records


def main() -> int:
    """Runs the comparison; returns the exit code."""
    sizes = ([2_000_000], [200_000])
    defaults = {"repeats": 2, "rounds": 3, "round_batches": 16}
    return run_comparison(
        "compare-tiers", __doc__, "", sizes, measure_all, table, defaults, set_up_rocksdict
    )


if __name__ == "__main__":
    sys.exit(main())
