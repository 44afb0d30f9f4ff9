"""Reads and changes the rows of a store, with NumPy arrays."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfra import _native
from tfra._shared import arrays
from tfra._shared.rule import Rule
from tfra.dynamic_embedding._stores.checked_store import CheckedStore
from tfra.spec import TableSpec
from tfra.store import Batch, Keys, Rows, Store, TableStore, join_rows, split_rows
from tfra.table import Table

Array = NDArray[Any]

_BATCH = 65_536  # Rows, as in exports of the engine.


@dataclass(frozen=True)
class StoreContent:
    """All rows of a store.

    Attributes:
        spec: The spec that the rows have.
        keys: The keys, each once.
        rows: The rows of the keys.
        is_stale: Whether the slots are those of an optimizer that another one has replaced: the
            next step starts them anew.
    """

    spec: TableSpec
    keys: Keys
    rows: Rows
    is_stale: bool

    def columns(self, like: StoreContent) -> tuple[Keys, Array, Array]:
        """Returns keys, values, and slots side by side: those of the rule of another content."""
        rows, anew = self.rows, self.is_stale and not like.is_stale
        if anew or self.spec.rule != like.spec.rule:
            rows = _converted(self.keys, rows, self.spec, like.spec, anew)
        return self.keys, *_values_and_slots(like.spec, rows)

    def batches(self) -> Iterator[Batch]:
        """Yields the rows in batches, as a store takes them."""
        for first in range(0, len(self.keys), _BATCH):
            part = slice(first, first + _BATCH)
            yield self.keys[part], self.rows[part]


class StoreRows:
    """The rows of a store, with the operations of a table of the engine.

    An operation puts the rows of its batch into a small table of the engine, runs there, and writes
    the result back to the store. So the results are the same as with a table of the engine.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        self._store = CheckedStore(store)
        self._bound: str | None = None  # The optimizer whose slots the rows have.
        self._slots_start_anew = False

    @property
    def spec(self) -> TableSpec:
        """The spec of the store; its rule is that of the bound optimizer."""
        return self._store.spec

    def lookup(self, keys: Keys) -> tuple[Array, Array]:
        """Returns the values of keys, and which keys exist. The values of others are undefined."""
        rows, exists = self._store.lookup(keys)
        spec = self.spec  # Another thread may change the rule now, but not the values.
        values = np.ascontiguousarray(rows[:, : spec.value_bytes])
        return values.view(arrays.value_dtype(spec.value_dtype)), exists

    def assign(self, keys: Keys, values: Array) -> None:
        """Inserts or overwrites values. Rows keep their slots; new rows get initial slots."""
        self._change(keys, lambda table, mine: table.upsert(keys[mine], values[mine]))

    def accumulate(self, keys: Keys, deltas: Array, exists: Array) -> None:
        """Adds to existing values, or inserts keys; see `tfra.Table.accum`."""
        self._change(keys, lambda table, mine: table.accum(keys[mine], deltas[mine], exists[mine]))

    def remove(self, keys: Keys) -> int:
        """Removes keys, and returns how many of them existed."""
        return self._store.remove(keys)

    def clear(self) -> None:
        """Removes all keys."""
        self._store.clear()

    def size(self) -> int:
        """Returns the number of keys."""
        return self._store.size()

    def content(self) -> StoreContent:
        """Returns all keys and their rows, each once."""
        is_stale = self._slots_start_anew
        spec, batches = self._store.content()
        key_dtype = arrays.key_dtype(spec.key_dtype)
        none = (np.empty(0, key_dtype), np.empty((0, spec.row_bytes), np.uint8))
        keys, rows = (np.concatenate(column) for column in zip(none, *batches, strict=True))
        # A key that left and returned meanwhile comes again: its last row is the present one.
        _, from_last = np.unique(keys[::-1], return_index=True)
        if len(from_last) < len(keys):
            last = np.sort(len(keys) - 1 - from_last)
            keys, rows = keys[last], rows[last]
        return StoreContent(spec, keys, rows, is_stale)

    def replace(self, rule: Rule, batches: Iterable[Batch]) -> None:
        """Replaces all rows by others, which have the slots of a rule."""
        with self._store.lock:
            self._store.replace(self._with_rule(rule), batches)

    def unbind(self) -> None:
        """Unbinds the optimizer and keeps the slots, after a restore."""
        with self._store.lock:
            self._bound, self._slots_start_anew = None, False

    # --- Training.

    def bind(self, optimizer: str, step: int) -> None:
        """Binds an optimizer that the engine's `TrainedTable` has accepted.

        Args:
            optimizer: A name that no other optimizer has.
            step: The number of the step, from 1; 0 if the optimizer does not count steps.
        """
        with self._store.lock:
            if optimizer == self._bound:
                return
            goes_on = step > 1 or (step == 0 and self._bound is None)
            self._bound = optimizer
            self._slots_start_anew = not goes_on and bool(self.spec.slots)

    def apply_gradients(
        self, keys: Keys, gradients: Array, learning_rate: float, step: int, rule: str, params: str
    ) -> None:
        """Takes one step of an update rule of the engine."""
        self._use_rule(rule)
        numbers = {**json.loads(params), "learning_rate": float(learning_rate)}
        update = _native.UpdateParams(json.dumps(numbers))

        def take_step(table: Table, mine: Array) -> None:
            flat, _ = arrays.flat_keys(keys[mine], table.key_dtype)
            raw = arrays.raw_bytes(gradients[mine])
            native = _native.NativeTable.from_handle(table.handle, rule)
            native.apply_gradients(flat, raw, gradients.dtype.name, update, int(step), None)

        self._change(keys, take_step)

    def lookup_rows(self, keys: Keys, rule: str) -> tuple[Array, Array]:
        """Returns the values and slots of keys. Missing keys get initial ones."""
        self._use_rule(rule)
        rows, exists = self._store.lookup(keys)
        initial, _ = self._in_engine().lookup(keys)
        return _values_and_slots(self.spec, np.where(exists[:, None], rows, initial))

    def write_rows(self, keys: Keys, values: Array, slots: Array, rule: str, add: bool) -> None:
        """Assigns values and slots of distinct keys, or adds to the stored ones if `add`."""
        self._use_rule(rule)
        if not add:
            self._store.assign(keys, join_rows(values, slots))
            return

        def add_rows(table: Table, mine: Array) -> None:
            store = TableStore(table)
            old_values, old_slots = _values_and_slots(store.spec, store.lookup(keys[mine])[0])
            store.assign(keys[mine], join_rows(old_values + values[mine], old_slots + slots[mine]))

        self._change(keys, add_rows)

    def _use_rule(self, text: str) -> None:
        """Converts all rows to the slots of a rule, if they have others."""
        rule = Rule.from_config(json.loads(text))
        with self._store.lock:
            old, anew = self.spec, self._slots_start_anew
            if rule == old.rule and not anew:
                return
            new = self._with_rule(rule)
            self._store.change_spec(new, lambda keys, rows: _converted(keys, rows, old, new, anew))
            self._slots_start_anew = False

    def _with_rule(self, rule: Rule) -> TableSpec:
        return dataclasses.replace(self.spec, rule=rule)

    def _change(self, keys: Keys, operation: Callable[[Table, Array], Any]) -> None:
        """Runs an operation on a small table with the rows of these keys, and stores the result.

        Args:
            keys: Keys, which may repeat.
            operation: Called with a small table and a mask of `keys`, which is true for the keys
                to change in this call. `Store.update` may call again, for keys that others changed
                meanwhile.
        """
        distinct = np.unique(keys)

        def changed(some: Keys, rows: Rows, exists: Array) -> tuple[Keys, Rows]:
            engine = self._in_engine()
            engine.assign(some[exists], rows[exists])
            mine = np.ones(len(keys), np.bool_)
            if len(some) < len(distinct):
                wanted = set(some.tolist())
                mine[:] = [key in wanted for key in keys.tolist()]
            operation(engine.table, mine)
            rows, exists = engine.lookup(some)
            return some[exists], rows[exists]

        self._store.update(distinct, changed)

    def _in_engine(self) -> TableStore:
        """Returns an empty table of the engine."""
        return TableStore(Table.from_spec(dataclasses.replace(self.spec, capacity=0)))


def _values_and_slots(spec: TableSpec, rows: Rows) -> tuple[Array, Array]:
    """Returns the values of rows, and their slots side by side."""
    values, slots = split_rows(spec, rows)
    none = np.empty((len(rows), 0), arrays.compute_dtype(values.dtype))
    return values, np.concatenate([none, *slots.values()], axis=1)


def _converted(keys: Keys, rows: Rows, old: TableSpec, new: TableSpec, anew: bool) -> Rows:
    """Converts rows to a new spec. Slots of equal name and length stay unless `anew` is true."""
    table = Table.from_spec(dataclasses.replace(new, capacity=0))
    values, old_slots = split_rows(old, rows)
    table.upsert(keys, values)
    values, slots = table.lookup_with_slots(keys)
    if not anew:
        slots |= {
            name: slot for name, slot in old_slots.items() if new.slots.get(name) == slot.shape[1]
        }
    return join_rows(values, *(slots[name] for name in new.slots))
