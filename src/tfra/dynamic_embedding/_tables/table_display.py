"""The text and the first rows by which tables of TensorFlow and Variables are displayed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfra._shared.display import Facts, join_batches, readable_bytes
from tfra._shared.stats import TableStats
from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._saving.content import FIRST_PART


def facts_of(shown: Any, tables: Sequence[Any], trained_by: str | None) -> Facts:
    """Returns the facts to display about a table or a Variable, in order.

    Sizes are left out in a graph, where asking for them would add ops, and for tables on other
    machines, where it would be slow.

    Args:
        shown: The table or the Variable.
        tables: The tables that hold its rows.
        trained_by: The name of the class of the optimizer that last updated the rows.
    """
    stats = _stats_now(tables)
    return {
        "name": repr(shown.name),
        "keys": None if stats is None else sum(each.size for each in stats),
        "dim": shown.dim,
        "key_dtype": shown.key_dtype.name,
        "value_dtype": shown.value_dtype.name,
        "bytes": None if stats is None else readable_bytes(sum(each.bytes for each in stats)),
        "file_bytes": _file_bytes(tables, stats),
        "optimizer": trained_by,
        "device": ",".join(dict.fromkeys(_short(t.resource_handle.device) for t in tables)),
        "tables": len(tables) if len(tables) > 1 else None,
    }


def first_rows_of(
    shown: Any, tables: Sequence[Any], n: int | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns the first `n` keys and rows of some tables; all if `n` is None.

    Raises:
        RuntimeError: In a graph, where there are no rows to read yet.
    """
    if not _can_be_read(tables):
        raise RuntimeError(
            f"`head` and `to_pandas` read rows at once, which needs eager execution. Received: "
            f"{shown.name!r} in a graph or a tf.function. There, use `export`, which returns "
            "tensors."
        )
    batches = (batch for table in tables for batch in _batches(table, n or 65_536))
    scalars = not tables[0].row_shape
    no_values = np.empty((0,) if scalars else (0, shown.dim), shown.value_dtype.as_numpy_dtype)
    no_keys = np.empty(0, shown.key_dtype.as_numpy_dtype)
    return join_batches(batches, n, (no_keys, no_values))


def _can_be_read(tables: Sequence[Any]) -> bool:
    """Whether ops on these tables run immediately."""
    if not tf.executing_eagerly():
        return False
    return not any(tf.is_symbolic_tensor(table.resource_handle) for table in tables)


def _batches(table: Any, rows: int) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yields the keys and values of a table, some rows at a time."""
    cursor: Any = FIRST_PART
    while not cursor[-1]:
        keys, values, next_cursor = table.export_part(cursor, rows)
        values = tf.reshape(values, [-1, *table.row_shape])
        yield keys.numpy(), values.numpy()
        cursor = next_cursor.numpy()


def _stats_now(tables: Sequence[Any]) -> list[TableStats] | None:
    """Returns the statistics of tables, or None in a graph or if a table is on another machine."""
    if not _can_be_read(tables):
        return None
    if any(not _is_here(table.resource_handle.device) for table in tables):
        return None
    try:
        return [table.stats() for table in tables]
    except tf.errors.OpError:  # The Session or context is gone. A repr must not fail.
        return None


def _file_bytes(tables: Sequence[Any], stats: list[TableStats] | None) -> str | None:
    """Returns the size of the row files, or None if no table has one."""
    if stats is None or all(getattr(t, "fast_bytes", None) is None for t in tables):
        return None
    return readable_bytes(sum(each.slow_bytes for each in stats))


def _is_here(device: str) -> bool:
    return tf.DeviceSpec.from_string(device).job in (None, "localhost")


def _short(device: str) -> str:
    """Returns a short name such as CPU:0; for a device on another machine, its full name."""
    spec = tf.DeviceSpec.from_string(device)
    if not _is_here(device):
        return device
    return f"{spec.device_type or 'CPU'}:{spec.device_index or 0}"
