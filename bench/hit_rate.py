"""Measures the share of looked-up rows that are found in memory, for several memory budgets.

    python bench/hit_rate.py                                      # half a million keys
    python bench/hit_rate.py --json bench/results/hit_rate.json   # then `make docs` draws it

Ids follow a Zipf law with the exponent 1.05. Beside each rate is the best possible one: that of
a memory that always holds the most frequent rows.
"""

from __future__ import annotations

import argparse
import os
from fractions import Fraction

import numpy as np
from measure_tiers import EXPONENT, Zipf, values_of
from peers import Record, add_output_arguments, say, write_json
from workloads import keys_at

import tfra

SHARES = [Fraction(1, 2**n) for n in range(5, -1, -1)]
DIM, BATCH = 16, 4096


def measure(keys: int, share: Fraction, batches: int) -> Record:
    """Returns the record of one memory budget. The first half of the ids is not counted."""
    # Each row in memory takes a few bytes in addition to the row.
    table = tfra.Table(DIM, max_capacity=keys, fast_bytes=int(keys * share) * (4 * DIM + 8))
    for start in range(0, keys, BATCH):
        index = np.arange(start, min(start + BATCH, keys))
        table.upsert(keys_at(index), values_of(index, DIM))
    stream = Zipf(keys, BATCH)
    counted = []
    for _ in range(2):
        before = table.stats()
        for _ in range(batches):
            index = stream.draw()
            if not np.array_equal(table.lookup(keys_at(index)), values_of(index, DIM)):
                raise SystemExit("failed: expected the rows that were written. Received: others")
        after = table.stats()
        fast, slow = after.fast_hits - before.fast_hits, after.slow_hits - before.slow_hits
        counted.append(fast / (fast + slow))
    weights = np.arange(1, keys + 1) ** -EXPONENT
    best = weights[: int(keys * share)].sum() / weights.sum()
    return {"share": str(share), "fast_hit_rate": counted[1], "best_possible": float(best)}


def main() -> None:
    """Measures all budgets; prints and writes the rates."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=500_000)
    parser.add_argument("--batches", type=int, default=500, help=f"of {BATCH} ids")
    add_output_arguments(parser)
    given = parser.parse_args()
    records = []
    for share in SHARES:
        records.append(measure(given.keys, share, given.batches))
        rate, best = records[-1]["fast_hit_rate"], records[-1]["best_possible"]
        say(
            f"memory for {share!s:>4} of the rows: {100 * rate:5.1f} %, at best {100 * best:5.1f} %"
        )
    document = {"keys": given.keys, "dim": DIM, "batches": given.batches, "records": records}
    path = write_json(document, "hit-rate", given.results, given.json)
    say(f"written to {os.path.relpath(path)}")


if __name__ == "__main__":
    main()
