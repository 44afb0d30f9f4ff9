"""Where the rows of a table are kept: `Store`, and tables of the engine as one."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfra._shared import arrays
from tfra.spec import TableSpec
from tfra.table import Table

Keys = NDArray[Any]
Rows = NDArray[np.uint8]
Batch = tuple[Keys, Rows]


class Store(abc.ABC):
    """Rows by key, in memory, on disk or on another machine: what a backend has to offer.

    Keys are an array `[n]`, of int64 or of bytes objects, as `spec.key_dtype` says. Any number and
    any string is a key. Rows are bytes, a uint8 array `[n, spec.row_bytes]`: the value, and then
    the optimizer slots, whose meaning a store need not know. Callers give arrays of these dtypes
    and shapes, and a store need not check them. Arrays that a store is given or returns are not
    changed afterwards by either side.

    Any thread may call any method at any time. Each row is read and written as a whole. Subclasses
    may use `lock` for that: `update`, `change_spec` and `replace` hold it while they read and
    write. Methods that write must take it, or other threads' writes may get lost meanwhile.

    Six methods are to be written; the others are made of them, and may be overridden where a
    backend can do better. `tfra.dynamic_embedding.StoreCreator` trains a store with Keras.

    Args:
        spec: What is kept. Only keys, values and slots are a store's business.

    Attributes:
        lock: A reentrant lock, for subclasses.
    """

    __module__ = "tfra"

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        self.lock = threading.RLock()

    @property
    def spec(self) -> TableSpec:
        """What is kept, and how wide a row is."""
        return self._spec

    @abc.abstractmethod
    def lookup(self, keys: Keys) -> tuple[Rows, NDArray[np.bool_]]:
        """Returns the rows of keys, and which keys have one. Inserts nothing.

        Keys may repeat. The bytes of rows that are missing have no meaning.
        """

    @abc.abstractmethod
    def assign(self, keys: Keys, rows: Rows) -> None:
        """Inserts or overwrites rows. Of equal keys the last one stays."""

    @abc.abstractmethod
    def remove(self, keys: Keys) -> int:
        """Removes keys, and returns how many were there. Keys may repeat."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Removes all keys."""

    @abc.abstractmethod
    def size(self) -> int:
        """Returns the number of keys."""

    @abc.abstractmethod
    def export(self) -> Iterator[Batch]:
        """Yields all keys and their rows, in batches of any size and in any order.

        Other threads may write meanwhile: a key that is there all the time comes exactly once.
        """

    def import_rows(self, batches: Iterable[Batch]) -> None:
        """Assigns batches as `export` yields them. Keys that are not among them stay."""
        for keys, rows in batches:
            self.assign(keys, rows)

    def update(
        self, keys: Keys, function: Callable[[Keys, Rows, NDArray[np.bool_]], Batch]
    ) -> None:
        """Lets a function compute rows from the present ones, so that no update is lost.

        A store that other processes write to must override it, by a transaction or by compare and
        set: it may then call the function again, for the keys that others changed meanwhile.

        Args:
            keys: Distinct keys.
            function: Called with keys, their rows, and which of them exist. Returns the keys to
                assign, some or all of them, and their rows.
        """
        with self.lock:
            self.assign(*function(keys, *self.lookup(keys)))

    def change_spec(self, spec: TableSpec, convert: Callable[[Keys, Rows], Rows]) -> None:
        """Takes another spec of the same keys, when rows get the slots of another optimizer.

        All rows are converted, in memory, before `replace` changes any.

        Args:
            spec: The new spec.
            convert: Returns the rows of keys as the new spec has them.
        """
        with self.lock:
            converted = [(keys, convert(keys, rows)) for keys, rows in self.export()]
            self.replace(spec, converted)

    def replace(self, spec: TableSpec, batches: Iterable[Batch]) -> None:
        """Replaces all rows and takes their spec, for `change_spec` and to restore a checkpoint.

        Nothing is cleared: new rows overwrite old ones, and then the keys that have no new row are
        removed. If that fails, the old rows, which are in memory meanwhile, and the old spec are
        put back. So one failure changes nothing. But readers may see rows of both specs meanwhile,
        and so does a store whose process ends, or that fails again when the old rows are put back.

        A store that must exclude this overrides `replace`. It calls this method in a transaction,
        and sets `_spec` back if the transaction fails; or it writes the rows to a new place, and
        sets `_spec` when they are complete. So does a store that can't have rows of two widths.

        Args:
            spec: The new spec.
            batches: All rows, as `export` yields them.

        Raises:
            RuntimeError: If the old rows could not be put back. The message says what the store has
                now. In all other cases the error of the store itself is raised.
        """
        with self.lock:
            old_spec, old = self._spec, list(self.export())
            written: list[Keys] = []

            def noted() -> Iterator[Batch]:
                for keys, rows in batches:
                    written.append(keys)
                    yield keys, rows

            try:
                self._spec = spec
                self._overwrite(noted(), [keys for keys, _ in old])
            except BaseException as error:
                self._spec = old_spec
                try:
                    self._overwrite(old, written)
                except Exception as second:
                    raise RuntimeError(
                        f"`{type(self).__name__}.replace` failed ({error!r}), and putting the old "
                        f"rows back failed too ({second!r}). The store has its old spec. Each of "
                        "its keys has its old row or a new one: unless nothing was written, "
                        "`clear` the store and restore a checkpoint."
                    ) from error
                raise

    def _overwrite(self, batches: Iterable[Batch], others: Iterable[Keys]) -> None:
        """Writes these rows, and removes those of the other keys that are not among them."""
        kept: set[Any] = set()

        def noted() -> Iterator[Batch]:
            for keys, rows in batches:
                kept.update(keys.tolist())
                yield keys, rows

        self.import_rows(noted())
        for keys in others:
            gone = np.array([key not in kept for key in keys.tolist()], np.bool_)
            if gone.any():
                self.remove(keys[gone])


class TableStore(Store):
    """A table of the engine as a store: to copy rows between it and other stores.

    Methods that write wait for each other, so `update` and `change_spec` keep out other writers of
    this store, but not those of the table. Methods that read wait for nobody.

    Example:
    >>> import tfra
    >>> table, copy = tfra.Table(dim=2), tfra.Table(dim=2)
    >>> table.upsert([7], [[1.0, 2.0]])
    >>> tfra.TableStore(copy).import_rows(tfra.TableStore(table).export())
    >>> copy.lookup([7]).tolist()
    [[1.0, 2.0]]

    Args:
        table: The table, which stays in use.

    Raises:
        TypeError: If its values are strings.
    """

    __module__ = "tfra"

    def __init__(self, table: Table) -> None:
        super().__init__(table.spec)
        # Both in one attribute, since methods that read take no lock.
        self._table_and_spec = (table, self._spec)
        _ = self.spec.row_bytes  # Raises for strings.

    @property
    def table(self) -> Table:
        """The table; another one after `change_spec` and `replace`."""
        return self._table_and_spec[0]

    @property
    def spec(self) -> TableSpec:
        """What is kept, and how wide a row is."""
        return self._table_and_spec[1]

    def lookup(self, keys: Keys) -> tuple[Rows, NDArray[np.bool_]]:
        """Returns the rows of keys, and which keys have one. Missing rows are initial ones."""
        table = self.table
        rows, exists, changed = _read(table, keys)
        while changed.any():
            rows[changed], exists[changed], again = _read(table, keys[changed])
            changed[changed] = again
        return rows, exists

    def assign(self, keys: Keys, rows: Rows) -> None:
        """Inserts or overwrites rows. Of equal keys the last one stays.

        Raises:
            TypeError: If the rows are not bytes.
            ValueError: If the rows are not as wide as the spec says, or not one for each key.
        """
        with self.lock:
            shape = (len(keys), self.spec.row_bytes)
            rows = arrays.typed_array(rows, (np.dtype(np.uint8),), shape, "rows")
            values, slots = split_rows(self.spec, rows)
            self.table.upsert(keys, values, slots=slots)

    def remove(self, keys: Keys) -> int:
        """Removes keys, and returns how many were there."""
        with self.lock:
            return self.table.remove(keys)

    def clear(self) -> None:
        """Removes all keys."""
        with self.lock:
            self.table.clear()

    def size(self) -> int:
        """Returns the number of keys."""
        return len(self.table)

    def export(self) -> Iterator[Batch]:
        """Yields all keys and their rows, some at a time."""
        for keys, values, slots in self.table.iterate(slots=True):
            yield keys, join_rows(values, *slots.values())

    def change_spec(self, spec: TableSpec, convert: Callable[[Keys, Rows], Rows]) -> None:
        """Moves the rows to a new table, which takes the place of this one."""
        with self.lock:
            self.replace(spec, ((keys, convert(keys, rows)) for keys, rows in self.export()))

    def replace(self, spec: TableSpec, batches: Iterable[Batch]) -> None:
        """Writes the rows to a new table, which takes the place of this one when it has them all.

        An error changes nothing.
        """
        new = TableStore(Table.from_spec(spec))
        with self.lock:
            new.import_rows(batches)
            self._table_and_spec = (new.table, spec)


def _read(table: Table, keys: Keys) -> tuple[Rows, NDArray[np.bool_], NDArray[np.bool_]]:
    """Returns rows, which keys have one, and for which of these the row must be read again.

    Slots are read before it is known which keys exist. A key that came in between has initial slots
    here, but then its value is not the one that was read with them.
    """
    if not table.slot_names:
        values, exists = table.lookup(keys, return_exists=True)
        return join_rows(values), exists, np.zeros(len(keys), np.bool_)
    with_slots, slots = table.lookup_with_slots(keys)
    values, exists = table.lookup(keys, return_exists=True)
    changed = (with_slots.view(np.uint8) != values.view(np.uint8)).any(axis=1)
    return join_rows(with_slots, *slots.values()), exists, changed & exists


def join_rows(values: NDArray[Any], *slots: NDArray[Any]) -> Rows:
    """Returns rows `[value | slots]` of values `[n, dim]` and slots, each `[n, elements]`."""
    return np.concatenate([part.view(np.uint8) for part in (values, *slots)], axis=1)


def split_rows(spec: TableSpec, rows: Rows) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    """Returns the values `[n, dim]` of rows, and their slots by name, each `[n, elements]`."""
    value_dtype = arrays.value_dtype(spec.value_dtype)
    slot_dtype = arrays.compute_dtype(value_dtype)
    values = np.ascontiguousarray(rows[:, : spec.value_bytes]).view(value_dtype)
    slots, first = {}, spec.value_bytes
    for name, elements in spec.slots.items():
        end = first + elements * slot_dtype.itemsize
        slots[name] = np.ascontiguousarray(rows[:, first:end]).view(slot_dtype)
        first = end
    return values, slots
