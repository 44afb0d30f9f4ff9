"""Compares `dynamic_embedding.Variable` with that of TFRA 0.8.1, both measured in this run.

    python bench/compare_variable.py             # 2 and 10 million keys
    python bench/compare_variable.py --quick     # 200,000 keys, a first impression

The two systems take turns, each time in a new process. The processes of a system alternate between
eager calls and `tf.function`. The best round of each counts; the ratio of the medians is shown
beside it. Every looked-up row is checked and the checksums of all processes must agree. The exit
code is 0 only if they do; missing a goal does not change it.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from peers import (
    BENCH,
    MODES,
    PEER_ENVIRONMENT,
    PEER_PYTHON,
    Record,
    Summary,
    measure,
    plan_options,
    run_comparison,
    say,
)

ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
SCRIPT = str(BENCH / "measure_variable.py")


@dataclass(frozen=True)
class Line:
    """One line of the comparison."""

    title: str
    workload: str
    goal: float | None = None  # Our result divided by the other is at least this; memory: at most.
    unit: float = 1e6
    against: str = "peer"


LINES = (
    Line("lookup, constant initializer, M keys/s", "lookup", 5.0),
    Line("lookup, random initializer, M keys/s", "lookup_random", 10.0),
    Line("upsert existing keys, M keys/s", "upsert", 4.0),
    Line("insert new keys, M keys/s", "insert", 5.0),
    Line("export, M rows/s", "export", 2.0),
    Line("64 keys, a tf.function call, k calls/s", "lookup_64", unit=1e3),
    Line("64 keys, eagerly, k calls/s", "lookup_64_eager", unit=1e3),
    Line("64 keys, loop in a tf.function, k/s", "lookup_64_loop", 1.5, unit=1e3),
    Line("bytes per key", "memory", 1.0, unit=1.0),
    Line("lookup against tf.gather, M keys/s", "lookup", 1.0, against="tf.gather"),
    Line("64 keys against tf.gather, k calls/s", "lookup_64", unit=1e3, against="tf.gather"),
)


def show(line: Line, keys: int, ours: Summary | None, other: Summary | None) -> str:
    """Returns one line of the table."""

    def cell(summary: Summary | None) -> str:
        return f"{summary.best / line.unit:.2f}" if summary else "-"

    ratio = medians = goal = met = "-"
    at_most = line.workload == "memory"
    if line.goal:
        goal = f"{'<=' if at_most else '>='} {line.goal:g}x"
    if ours and other:
        number = ours.best / other.best
        ratio, medians = f"{number:.2f}x", f"{ours.median / other.median:.2f}x"
        if line.goal:
            met = "met" if (number <= line.goal if at_most else number >= line.goal) else "missed"
    return (
        f"{line.title:<40}{keys:>11,}{cell(other):>9}{cell(ours):>9}{ratio:>9}{medians:>9}"
        f"{goal:>9}{met:>8}"
    )


def table(summaries: dict[tuple[int, str, str], Summary]) -> list[str]:
    """Returns the lines of the comparison."""
    header = f"{'workload':<40}{'keys':>11}{'other':>9}{'tfra':>9}{'ratio':>9}{'medians':>9}"
    lines = [f"{header}{'goal':>9}"]
    for keys in sorted({place[0] for place in summaries}):
        for line in LINES:
            ours = summaries.get((keys, line.workload, "tfra"))
            other = summaries.get((keys, line.workload, line.against))
            if ours or other:
                lines.append(show(line, keys, ours, other))
    return lines


def measure_all(arguments: argparse.Namespace, with_peer: bool) -> list[Record]:
    """Measures every size; the two systems take turns."""
    records: list[Record] = []
    for keys in arguments.keys:
        for repeat in range(arguments.repeats):
            say(f"{keys:,} keys, {repeat + 1} of {arguments.repeats}")
            options = [f"--mode={MODES[repeat % len(MODES)]}", *plan_options(arguments, keys)]
            if with_peer:
                command = [str(PEER_PYTHON), SCRIPT, "--system=peer", *options]
                records += measure(command, PEER_ENVIRONMENT)
            if arguments.only != "peer":
                command = [arguments.python, SCRIPT, "--system=ours", *options]
                records += measure(command, ENVIRONMENT)
    return records


def main() -> int:
    """Runs the comparison; returns the exit code."""
    sizes = ([2_000_000, 10_000_000], [200_000])
    return run_comparison(
        "compare-variable", __doc__, "; other: peer or tf.gather", sizes, measure_all, table
    )


if __name__ == "__main__":
    sys.exit(main())
