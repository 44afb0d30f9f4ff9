"""What is in a table: its rows, in batches or as a whole, and figures about them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tfra import _native, optimizers
from tfra._shared import arrays
from tfra._shared.display import Facts, Shown, join_batches, readable_bytes
from tfra._shared.stats import TableStats


class TableContent(Shown):
    """The part of `Table` that shows what is in it."""

    # Of the Table.
    _native: _native.NativeTable
    _dim: int
    _key_dtype: np.dtype[Any]
    _value_dtype: np.dtype[Any]
    _optimizer: optimizers.Optimizer | None
    _slots: dict[str, int]
    _slot_dtype: np.dtype[Any]
    _metadata: bool
    _fast_bytes: int

    def export(self, *, slots: bool = False, metadata: bool = False) -> Any:
        """Returns the whole content, in no particular order.

        While other threads write, a key that leaves the table and returns may appear twice, so an
        export may have more rows than `max_capacity`. A key that is in the table all the time
        appears exactly once.

        Args:
            slots: Whether to return also the optimizer slots.
            metadata: Whether to return also the time of the last write and the number of writes.

        Returns:
            `(keys, values)` of shapes `[n]` and `[n, dim]`; with `slots` then a dict from name to
            array; with `metadata` then a uint32 array `[n, 2]` (`[n, 0]` if rows carry none).
        """
        return self._exported(self._native.export_all(), slots, metadata)

    def iterate(
        self, batch_size: int = 65_536, *, slots: bool = False, metadata: bool = False
    ) -> Iterator[Any]:
        """Yields the content in batches, as `export` returns it.

        Only one batch is in memory at a time, and other threads may write meanwhile: a key that is
        in the table all the time comes exactly once. A key that leaves the table and returns may
        come twice, so that there may be more rows than `max_capacity`.

        Args:
            batch_size: About how many keys a batch has.
            slots: Whether to yield also the optimizer slots.
            metadata: Whether to yield also the metadata.

        Yields:
            Batches that are not empty.

        Raises:
            ValueError: If `batch_size` is less than 1.
        """
        return self._batches(arrays.integer(batch_size, "batch_size", 1), slots, metadata)

    def _batches(self, batch_size: int, slots: bool, metadata: bool) -> Iterator[Any]:
        position, seed, done = 0, 0, False
        while not done:
            rows, position, seed, done = self._native.export(batch_size, position, seed)
            batch = self._exported(rows, slots, metadata)
            if len(batch[0]) > 0:
                yield batch

    def _exported(self, rows: tuple[Any, ...], slots: bool, metadata: bool) -> tuple[Any, ...]:
        keys, values, packed, usage = rows
        keys = arrays.exported_keys(keys, self._key_dtype)
        values = arrays.exported_values(values, self._value_dtype, self._dim)
        batch: list[Any] = [keys, values]
        if slots:
            batch.append(arrays.unpack_slots(packed, self._slots, self._slot_dtype))
        if metadata:
            batch.append(usage.reshape(len(keys), 2 if self._metadata else 0))
        return tuple(batch)

    def stats(self) -> TableStats:
        """Returns the table's size, memory and counters."""
        return TableStats(**self._native.stats())

    def memory_usage(self) -> dict[str, int]:
        """Returns the bytes of `index`, `rows`, `strings` and `admission`, and their `total`.

        Rows in a file take no memory: `stats().slow_bytes`.
        """
        stats = self.stats()
        parts = {
            "index": stats.index_bytes,
            "rows": stats.row_bytes,
            "strings": stats.string_bytes,
            "admission": stats.admission_bytes,
        }
        return {**parts, "total": sum(parts.values())}

    def _facts(self) -> Facts:
        stats = self.stats()
        return {
            "keys": stats.size,
            "dim": self._dim,
            "key_dtype": arrays.type_name(self._key_dtype),
            "value_dtype": arrays.type_name(self._value_dtype),
            "bytes": readable_bytes(stats.bytes),
            "file_bytes": readable_bytes(stats.slow_bytes) if self._fast_bytes else None,
            "optimizer": type(self._optimizer).__name__ if self._optimizer else None,
            "device": "CPU",
        }

    def _first_rows(self, n: int | None) -> Any:
        empty = np.empty(0, self._key_dtype), np.empty((0, self._dim), self._value_dtype)
        return join_batches(self.iterate(n or 65_536), n, empty)
