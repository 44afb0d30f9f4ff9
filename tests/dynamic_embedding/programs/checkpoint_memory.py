"""What saving and restoring takes: checkpoint_memory.py ACTION PATH ROWS PARTITIONS

Prints the bytes of the table and the most that the process grew by, from before the table was
filled (action "restore"), or from when it was full ("save"; "replace" and "replace_in_place", which
restore into a full table).
"""

from __future__ import annotations

import json
import sys
import tempfile

import tensorflow as tf
from common import check, cpu_devices, de, fill, memory, reset_peak_memory

DIM = 16


def make(partitions: int) -> tuple[de.Variable, tf.train.Checkpoint]:
    variable = de.Variable(dim=DIM, devices=cpu_devices(partitions), name="table")
    return variable, tf.train.Checkpoint(table=variable)


def warm_up(partitions: int) -> None:
    """Threads, buffers and code are there before anything is measured."""
    with tempfile.TemporaryDirectory() as folder:
        variable, checkpoint = make(partitions)
        fill(variable, 10_000)
        checkpoint.read(checkpoint.write(f"{folder}/warm_up")).assert_consumed()


def main() -> None:
    action, path, count, partitions = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    warm_up(partitions)
    empty = memory()
    variable, checkpoint = make(partitions)
    if action != "restore":
        fill(variable, count)
    before = full = memory()
    reset_peak_memory()
    if action == "save":
        checkpoint.write(path)
    elif action == "replace_in_place":
        with de.restore_in_place():
            checkpoint.read(path).assert_consumed()
    else:
        checkpoint.read(path).assert_consumed()
    peak = memory("VmHWM") - before
    if action != "save":
        full = memory()
        check(variable, count)
    print(json.dumps({"table": full - empty, "peak": peak}))


if __name__ == "__main__":
    main()
