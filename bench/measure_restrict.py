"""Measures `Variable.restrict`, ours or the peer's: both have the same interface.

Runs in the environment of the system it measures; `bench/compare_restrict.py` starts it. Every key
is written once, and a random half of them once more. Then `restrict` keeps half of all keys by
frequency, so the right result is known: exactly the keys that were seen twice.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

MODULES = {"tfra": "tfra", "peer": "tensorflow_recommenders_addons"}
BATCH = 65_536


def memory(field: str) -> int:
    """Returns a field of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"expected a line {field} in /proc/self/status")


def main() -> None:
    """Measures one restriction and prints one record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--system", choices=tuple(MODULES), required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--dim", type=int, default=32)
    arguments = parser.parse_args()
    de: Any = import_module(MODULES[arguments.system]).dynamic_embedding

    keys = np.random.default_rng(1).permutation(arguments.keys * 3)[: arguments.keys]
    keys = keys.astype(np.int64)
    before = memory("VmRSS")
    variable = de.get_variable(
        "restricted",
        dim=arguments.dim,
        initializer=0.0,
        init_size=arguments.keys,
        restrict_policy=de.FrequencyRestrictPolicy,
    )
    policy = variable.restrict_policy
    for begin in range(0, len(keys), BATCH):
        batch = tf.constant(keys[begin : begin + BATCH])
        variable.upsert(batch, tf.ones([len(batch), arguments.dim]))
        if arguments.system == "peer":
            policy.apply_update(batch)  # Our `upsert` already counts the write.
    kept = keys[::2]
    for begin in range(0, len(kept), BATCH):
        policy.apply_update(tf.constant(kept[begin : begin + BATCH]))
    table = memory("VmRSS") - before

    Path("/proc/self/clear_refs").write_text("5")  # Resets VmHWM, the peak of the memory.
    resident = memory("VmRSS")
    start = time.perf_counter()
    variable.restrict(len(kept))
    seconds = time.perf_counter() - start
    extra = max(0, memory("VmHWM") - resident)

    left = np.sort(variable.export()[0].numpy())
    if not np.array_equal(left, np.sort(kept)):
        raise SystemExit(f"expected {len(kept)} keys that were seen twice, received {len(left)}")
    print(json.dumps({"seconds": seconds, "table_bytes": table, "extra_bytes": extra}), flush=True)


if __name__ == "__main__":
    main()
