"""A store of your own: the rows of a table in a dict.

A store keeps rows, which are bytes, by key. tfra does the rest: initial values, optimizers,
checkpoints. If a database, a file or a service takes the place of the dict, Keras
trains the rows that are stored there:

    layer = de.keras.layers.Embedding(16, kv_creator=de.StoreCreator(DictStore))
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import tfra


class DictStore(tfra.Store):
    """A store in a dict of this process, from keys to the bytes of their rows."""

    def __init__(self, spec: tfra.TableSpec, name: str = "") -> None:
        super().__init__(spec)
        self.name = name
        self._rows: dict[Any, bytes] = {}

    def lookup(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows of keys, and which keys have a row."""
        with self.lock:
            width = self.spec.row_bytes
            found = [self._rows.get(key) for key in keys.tolist()]
        rows = b"".join(bytes(width) if row is None else row for row in found)
        exists = np.array([row is not None for row in found], np.bool_)
        return np.frombuffer(rows, np.uint8).reshape(len(keys), width), exists

    def assign(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Inserts or overwrites rows."""
        with self.lock:
            self._rows.update(zip(keys.tolist(), map(bytes, rows), strict=True))

    def remove(self, keys: np.ndarray) -> int:
        """Removes keys, and returns how many were there."""
        with self.lock:
            return sum(self._rows.pop(key, None) is not None for key in keys.tolist())

    def clear(self) -> None:
        """Removes all keys."""
        with self.lock:
            self._rows.clear()

    def size(self) -> int:
        """Returns the number of keys."""
        return len(self._rows)

    def export(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields all keys and their rows, 1000 at a time."""
        with self.lock:
            keys = np.empty(
                len(self._rows), object if self.spec.key_dtype == "string" else np.int64
            )
            keys[:] = list(self._rows)
        for batch in np.split(keys, range(1000, len(keys), 1000)):
            rows, exists = self.lookup(batch)
            yield batch[exists], rows[exists]
