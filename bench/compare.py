"""Compares `tfra.Table` with TensorFlow Recommenders Addons 0.8.1, both measured in this run.

    python bench/compare.py                          # 1 and 10 million keys, some minutes
    python bench/compare.py --keys 1000000 --quick   # a first impression

The two systems take turns, each time in a new process. The best round of each counts; the ratio
of the medians is shown beside it. Every looked-up row is checked and the checksums of all
processes must agree. The exit code is 0 only if they do.
"""

from __future__ import annotations

import argparse
import sys

from peers import (
    BENCH,
    MODES,
    PEER,
    PEER_ENVIRONMENT,
    PEER_PYTHON,
    Record,
    Summary,
    measure,
    plan_options,
    run_comparison,
    say,
)


def table(summaries: dict[tuple[int, str, str], Summary]) -> list[str]:
    """Returns the lines of the comparison."""
    titles = {
        "insert": "insert, M keys/s",
        "lookup": "lookup, M keys/s",
        "lookup_out": "lookup into out=, M keys/s",
        "upsert": "upsert, M keys/s",
        "memory": "bytes per key",
    }

    def cell(summary: Summary | None, scale: float) -> str:
        return f"{summary.best / scale:.2f}" if summary else "-"

    header = f"{'workload':<28}{'keys':>13}{'peer':>10}{'tfra':>10}{'ratio':>9}{'medians':>10}"
    lines = [f"{header}{'np.take':>10}"]
    for keys in sorted({place[0] for place in summaries}):
        for workload, title in titles.items():
            ours = summaries.get((keys, workload, "tfra"))
            # The peer cannot look up into a given array, so its ordinary lookup is the comparison.
            peer = summaries.get((keys, workload.removesuffix("_out"), "peer"))
            gather = summaries.get((keys, workload, "numpy"))
            if ours is None and (peer is None or workload == "lookup_out"):
                continue
            ratio = f"{ours.best / peer.best:.2f}x" if ours and peer else "-"
            medians = f"{ours.median / peer.median:.2f}x" if ours and peer else "-"
            scale = 1.0 if workload == "memory" else 1e6
            lines.append(
                f"{title:<28}{keys:>13,}{cell(peer, scale):>10}{cell(ours, scale):>10}"
                f"{ratio:>9}{medians:>10}{cell(gather, scale):>10}"
            )
    return lines


def measure_all(arguments: argparse.Namespace, with_peer: bool) -> list[Record]:
    """Measures every size; the two systems take turns."""
    records: list[Record] = []
    for keys in arguments.keys:
        options = plan_options(arguments, keys)
        for repeat in range(arguments.repeats):
            say(f"{keys:,} keys, {repeat + 1} of {arguments.repeats}")
            if with_peer:
                mode = MODES[repeat % len(MODES)]
                command = [str(PEER_PYTHON), str(PEER / "measure.py"), f"--mode={mode}"]
                records += measure(command + options, PEER_ENVIRONMENT)
            if arguments.only != "peer":
                command = [arguments.python, str(BENCH / "measure_tfra.py")]
                records += measure(command + options, {})
    return records


def main() -> int:
    """Runs the comparison; returns the exit code."""
    sizes = ([1_000_000, 10_000_000], [1_000_000])
    return run_comparison("compare", __doc__, "", sizes, measure_all, table)


if __name__ == "__main__":
    sys.exit(main())
