"""A program that saves a table over its own files again and again, until it is killed.

Usage: python -m stress.saver FOLDER. Prints the number of each version when it is saved.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfra

de = tfra.dynamic_embedding

DIM = 8
KEYS = 3000  # Of version 0. Each version has one more than the one before.


def new_table(folder: Path) -> Any:
    """Returns a table that writes one file."""
    tiers = folder / "tiers"
    tiers.mkdir(exist_ok=True)
    return de.HkvHashTable(
        tf.int64,
        tf.float32,
        [0.0] * DIM,
        init_capacity=16,
        max_capacity=100_000,
        max_hbm_for_values=50_000,
        tier_directory=str(tiers),
        name="saved",
    )


def new_checkpoint(folder: Path) -> tuple[Any, Any]:
    """Returns a Variable and the manager of its checkpoints."""
    variable = de.Variable(dim=DIM, devices=["/CPU:0"] * 2, name="saved_variable")
    checkpoint = tf.train.Checkpoint(rows=variable)
    manager = tf.train.CheckpointManager(checkpoint, str(folder / "checkpoints"), max_to_keep=2)
    return variable, manager


def rows_of(version: int) -> tuple[Any, Any]:
    """Returns the content of a version: all elements are its number."""
    count = KEYS + version
    return np.arange(count), np.full((count, DIM), version, np.float32)


def main() -> None:
    """Saves until the process is killed."""
    folder = Path(sys.argv[1])
    table, (variable, manager) = new_table(folder), new_checkpoint(folder)
    for version in itertools.count(1):
        keys, rows = rows_of(version)
        table.insert(keys, rows)
        variable.upsert(keys, rows)
        table.save(str(folder), "table")
        manager.save()
        print(version, flush=True)


if __name__ == "__main__":
    main()
