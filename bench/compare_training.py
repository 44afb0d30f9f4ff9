"""Compares training with TFRA 0.8.1, static Keras, PyTorch and FBGEMM, all measured in this run.

    python bench/compare_training.py             # about 2 million keys, rows of 16 and 32
    python bench/compare_training.py --quick     # 200,000 keys, a first impression

The systems take turns, each time in a new process. The best round of each counts; the ratio of the
medians is shown beside it. All systems get the same ids: 26 features, skewed by Zipf's law, a fifth
of them never seen before. The first updates of each system are compared with NumPy's, its keys are
counted, and losses must fall. The exit code is 0 only if all checks pass; missing a goal does not
change it.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from peers import (
    BENCH,
    PEER_ENVIRONMENT,
    PEER_PYTHON,
    TORCH_ENVIRONMENT,
    TORCH_PYTHON,
    Record,
    Summary,
    measure,
    plan_options,
    run_comparison,
    say,
    set_up_torch,
)

DIMS = (16, 32)
ENVIRONMENT = {
    "KERAS_BACKEND": "tensorflow",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
}
SCRIPT = str(BENCH / "measure_training.py")


@dataclass(frozen=True)
class Line:
    """One line of the comparison."""

    title: str
    ours: tuple[str, str]  # workload, system
    other: tuple[str, str]
    goal: float | None = None  # Our rate divided by the other is at least this.
    at_most: bool = False  # Whether the ratio is one of times; the goal is then an upper limit.
    unit: float = 1e6


LINES = (
    Line("fit, Adam, against TFRA, k examples/s", ("fit", "tfra"), ("fit", "peer"), 4.0, unit=1e3),
    Line("fit, against static Keras with SGD", ("fit", "tfra"), ("fit", "static"), 1.0, unit=1e3),
    Line("fit, against static tf.gather, SGD", ("fit", "tfra"), ("fit", "gather"), unit=1e3),
    Line("Adam on rows, against TFRA, M ids/s", ("adam", "tfra"), ("adam", "peer"), 8.0),
    Line("Adam on rows, against SparseAdam", ("adam", "tfra"), ("adam", "torch"), 3.0),
    Line(
        "row-wise Adagrad, layer, against FBGEMM",
        ("rowwise_adagrad", "tfra"),
        ("rowwise_adagrad", "fbgemm"),
        2.0,
    ),
    Line(
        "row-wise Adagrad, Table, against FBGEMM",
        ("rowwise_adagrad", "table"),
        ("rowwise_adagrad", "fbgemm"),
        2.0,
    ),
    Line("26 layers against one, time", ("adam_layers", "tfra"), ("adam", "tfra"), 1.3, True),
)


def show(line: Line, dim: int, ours: Summary | None, other: Summary | None) -> str:
    """Returns one line of the table."""

    def cell(summary: Summary | None) -> str:
        return f"{summary.best / line.unit:.2f}" if summary else "-"

    ratio = medians = met = "-"
    goal = f"{'<=' if line.at_most else '>='} {line.goal:g}x" if line.goal else "-"
    if ours and other:
        top, bottom = (other, ours) if line.at_most else (ours, other)
        number = top.best / bottom.best
        ratio, medians = f"{number:.2f}x", f"{top.median / bottom.median:.2f}x"
        if line.goal:
            met = "met" if (number <= line.goal) == line.at_most else "missed"
    return (
        f"{line.title:<40}{dim:>5}{cell(other):>9}{cell(ours):>9}{ratio:>9}{medians:>9}"
        f"{goal:>9}{met:>8}"
    )


def table(summaries: dict[tuple[int, str, str], Summary]) -> list[str]:
    """Returns the lines of the comparison."""
    lines = []
    for keys in sorted({place[0] for place in summaries}):
        header = f"{f'{keys:,} keys and new ones':<40}{'dim':>5}{'other':>9}{'tfra':>9}"
        lines.append(f"{header}{'ratio':>9}{'medians':>9}{'goal':>9}")
        for line in LINES:
            for dim in DIMS:
                ours, other = (
                    summaries.get((keys, f"{workload}_{dim}", system))
                    for workload, system in (line.ours, line.other)
                )
                if ours or other:
                    lines.append(show(line, dim, ours, other))
    return lines


def measure_all(arguments: argparse.Namespace, with_peer: bool) -> list[Record]:
    """Measures every size; the systems take turns."""
    systems = []
    if with_peer:
        systems.append(("peer", str(PEER_PYTHON), PEER_ENVIRONMENT))
    if arguments.only != "peer":
        systems.append(("ours", arguments.python, ENVIRONMENT))
    if arguments.only != "tfra":
        not_measured = set_up_torch()
        if not_measured is None:
            systems.append(("torch", str(TORCH_PYTHON), TORCH_ENVIRONMENT))
        else:
            say(f"torch not measured: {not_measured}")
    records: list[Record] = []
    for keys in arguments.keys:
        for repeat in range(arguments.repeats):
            for dim in DIMS:
                say(f"{keys:,} keys, rows of {dim}, {repeat + 1} of {arguments.repeats}")
                for name, python, environment in systems:
                    command = [python, SCRIPT, f"--system={name}", f"--dim={dim}"]
                    command += plan_options(arguments, keys)
                    records += measure(command, environment)
    return records


def main() -> int:
    """Runs the comparison; returns the exit code."""
    sizes = ([2_000_000], [200_000])
    defaults = {"repeats": 2, "round_batches": 8}
    return run_comparison("compare-training", __doc__, "", sizes, measure_all, table, defaults)


if __name__ == "__main__":
    sys.exit(main())
