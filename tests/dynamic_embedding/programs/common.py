"""What the tests and the programs share: small tables, and the memory of the process."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfra

de = tfra.dynamic_embedding

DIM = 4
MB = 2**20
BATCH = 65536


def ids(*numbers: int) -> tf.Tensor:
    return tf.constant(numbers, tf.int64)


def rows(count: int, number: Any, dim: int = DIM) -> tf.Tensor:
    """Rows that hold one number everywhere."""
    return tf.fill([count, dim], tf.cast(number, tf.float32))


def numbered_rows(numbers: Any, dim: int = DIM) -> tf.Tensor:
    """One row per number, that holds it everywhere."""
    return tf.repeat(tf.cast(numbers, tf.float32)[..., None], dim, -1)


def cpu_devices(partitions: int) -> list[str]:
    return ["/CPU:0"] * partitions


def as_content(keys: np.ndarray, values: np.ndarray) -> dict[Any, Any]:
    """Key -> the number that fills its row."""
    assert len(set(keys.tolist())) == len(keys), "a key was exported twice"
    assert (values == values[:, :1]).all(), "a row is torn"
    return dict(zip(keys.tolist(), values[:, 0].tolist(), strict=True))


def content(table: Any) -> dict[Any, Any]:
    """Everything in a table or variable whose rows hold one number everywhere."""
    keys, values = table.export()
    return as_content(keys.numpy(), values.numpy())


def memory(field: str = "VmRSS") -> int:
    """A field of the memory of this process, in bytes, after garbage collection."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) * 1024


def reset_peak_memory() -> None:
    """Makes VmHWM start again from the present memory."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")


def batches(count: int, size: int = BATCH) -> Any:
    """`count` different keys in a scrambled order, with the numbers of their rows."""
    for start in range(0, count, size):
        numbers = np.arange(start, min(start + size, count))
        # Odd multiples are a permutation of the 64-bit integers.
        yield numbers * 0x9E3779B97F4A7C1, (numbers % 1000).astype(np.float32)


def fill(variable: Any, count: int) -> None:
    """Upserts the keys of `batches`."""
    for keys, numbers in batches(count):
        variable.upsert(keys, np.repeat(numbers[:, None], variable.dim, 1))


def check(variable: Any, count: int) -> None:
    """Fails unless `variable` holds exactly what `fill` put into it."""
    assert int(variable.size()) == count
    for keys, numbers in batches(count):
        found = variable.lookup(keys).numpy()
        assert (found == numbers[:, None]).all()
