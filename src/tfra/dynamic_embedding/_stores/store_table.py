"""A table of TensorFlow whose rows are in a `tfra.Store`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfra._shared.stats import COUNTERS, RowHistograms
from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.tf import ops, tf
from tfra.dynamic_embedding._saving.content import Content
from tfra.dynamic_embedding._stores.store_content import read_stores, replace_stores
from tfra.dynamic_embedding._stores.store_rows import StoreRows
from tfra.dynamic_embedding._tables.hash_table import HashTable
from tfra.dynamic_embedding._tables.initializers import NewRows
from tfra.dynamic_embedding._tables.rules import BoundOptimizer, CustomRule, EngineRule
from tfra.dynamic_embedding._tables.table_training import TableTraining, pool_rows
from tfra.spec import TableSpec
from tfra.store import Store, TableStore
from tfra.table import Table


class StoreTable(HashTable):
    """A table whose rows are in a `tfra.Store`. `StoreCreator` makes it.

    The resource still has a table of the engine, which stays empty. It computes the initial rows,
    and knows the bound optimizer and its rule.

    Attributes:
        store: The store.
    """

    store: Store

    def __init__(
        self,
        make: Callable[[TableSpec, str], Store],
        key_dtype: Any,
        value_dtype: Any,
        default_value: Any,
        name: str,
        checkpoint: bool,
        device: str,
    ) -> None:
        _check_types(key_dtype, value_dtype)
        if isinstance(default_value, NewRows):
            _check_rows(default_value)
        self._make = make
        self._stored: StoreRows | None = None
        super().__init__(key_dtype, value_dtype, default_value, name, checkpoint, 0, device)

    def _create_resource(self) -> tf.Tensor:
        if self._stored is None:
            wanted = self._spec()
            store = self._make(wanted, self._name)
            _check_store(store, wanted)
            self._stored = StoreRows(store)
            self.store = store
        return super()._create_resource()

    def _spec(self, **more: Any) -> TableSpec:
        rule = {} if self._stored is None else {"rule": self._stored.spec.rule}
        return super()._spec(**rule, **more)

    def _export_to_saved_model_graph(self, object_map: Any, tensor_map: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"A SavedModel can't hold {self.name!r}, whose rows are in a store: "
            f"{type(self.store).__name__} is Python code. Load its checkpoint into a Variable "
            "without a StoreCreator, and export that."
        )

    @property
    def holder_of_rows(self) -> Any:
        """The store."""
        return self.store

    @property
    def training(self) -> TableTraining:
        """The part of the table that layers and optimizers use."""
        return _StoreTraining(self)

    @property
    def stored(self) -> StoreRows:
        """The rows of the store."""
        assert self._stored is not None
        return self._stored

    def call(
        self, function: Callable[..., Any], inputs: Sequence[Any], types: Sequence[tf.DType]
    ) -> list[tf.Tensor]:
        """Calls a function of arrays, in order with the other ops of this table.

        Args:
            function: Takes arrays, and returns a tuple of arrays.
            inputs: The arguments of the function, as tensors.
            types: The types of the results. There must be at least one.
        """
        return _call([self], function, inputs, types)

    def run(
        self, function: Callable[..., Any], inputs: Sequence[Any], name: str | None = None
    ) -> Any:
        """Calls a function that returns nothing, and returns the op that calls it."""

        def called(*arguments: Any) -> tuple[Any]:
            function(*arguments)
            return (np.int32(0),)

        [done] = self.call(called, inputs, [tf.int32])
        return None if tf.executing_eagerly() else tf.group(done, name=name)

    # --- The methods for which other tables have ops.

    def insert(self, keys: Any, values: Any, name: str | None = None) -> Any:
        """Associates `keys` with `values`. See `HashTable.insert`."""
        keys = arguments.keys_tensor(keys, self._key_dtype)
        values = arguments.values_tensor(values, self._value_dtype)
        arguments.check_rows(keys, values, self._row_shape, "values")
        return self.run(self.stored.assign, [_flat(keys), self._flat_rows(values)], name)

    def lookup(
        self,
        keys: Any,
        dynamic_default_values: Any = None,
        return_exists: bool = False,
        name: str | None = None,
    ) -> Any:
        """Looks up `keys`. See `HashTable.lookup`."""
        keys = arguments.keys_tensor(keys, self._key_dtype)
        defaults = super().lookup(keys, dynamic_default_values)
        values, exists = self.call(self.stored.lookup, [_flat(keys)], [self._value_dtype, tf.bool])
        exists = tf.ensure_shape(tf.reshape(exists, tf.shape(keys)), keys.shape)
        values = tf.reshape(values, tf.shape(defaults))
        has_row = exists if not self._row_shape else exists[..., tf.newaxis]
        values = tf.ensure_shape(tf.where(has_row, values, defaults), defaults.shape, name=name)
        return (values, exists) if return_exists else values

    def accum(
        self,
        keys: Any,
        values_or_deltas: Any,
        exists: Any,
        name: str | None = None,
        new_keys: str = "insert",
    ) -> Any:
        """Adds to values, and inserts missing keys. See `HashTable.accum`."""
        keys = arguments.keys_tensor(keys, self._key_dtype)
        deltas = arguments.values_tensor(values_or_deltas, self._value_dtype, "values_or_deltas")
        exists = arguments.values_tensor(exists, tf.bool, "exists")
        arguments.check_rows(keys, deltas, self._row_shape, "values_or_deltas")
        arguments.check_rows(keys, exists, [], "exists")
        inputs = [_flat(keys), self._flat_rows(deltas), _flat(exists)]
        return self.run(self.stored.accumulate, inputs, name)

    def remove(self, keys: Any, name: str | None = None) -> Any:
        """Removes `keys`. See `HashTable.remove`."""
        keys = arguments.keys_tensor(keys, self._key_dtype)
        return self.run(self.stored.remove, [_flat(keys)], name)

    def evict(self, keys: tf.Tensor) -> tf.Tensor:
        """Removes keys that a restriction chose, and returns how many of them existed."""
        rows = self.stored
        [count] = self.call(lambda keys: (np.int64(rows.remove(keys)),), [_flat(keys)], [tf.int64])
        return tf.ensure_shape(count, [])

    def clear(self, name: str | None = None) -> Any:
        """Removes all keys and values from the store."""
        return self.run(self.stored.clear, [], name)

    def size(self, name: str | None = None) -> tf.Tensor:
        """Returns the number of keys, a scalar tensor."""
        rows = self.stored
        [size] = self.call(lambda: (np.int64(rows.size()),), [], [tf.int64])
        return tf.ensure_shape(size, [], name=name)

    def stored_content(self, tables: Sequence[StoreTable]) -> Content | None:
        """Returns all rows of the stores of some tables, and the rule of their slots."""
        stores = [table.stored for table in tables]
        slot_dtype = arguments.compute_dtype(self._value_dtype)
        types = [self._key_dtype, self._value_dtype, slot_dtype, tf.string]
        keys, values, slots, spec = _call(tables, lambda: read_stores(stores), [], types)
        return {
            "keys": tf.ensure_shape(keys, [None]),
            "values": tf.ensure_shape(values, [None, self._dim]),
            "slots": tf.ensure_shape(slots, [None, None]),
            "metadata": tf.zeros([tf.size(keys), 0], tf.int32),
            "rule": tf.ensure_shape(spec, []),
        }

    def table_to_restore(self) -> HashTable:
        """Returns a new table of the engine, from which the store will take the rows."""
        new_rows = NewRows(self._initial, self._metadata, self._admission)
        types = (self._key_dtype, self._value_dtype)
        return HashTable(
            *types, new_rows, f"{self._name}-restored", False, 0, self._resource_device
        )

    def take_restored_rows(
        self, tables: Sequence[StoreTable], restored: Sequence[HashTable]
    ) -> Any:
        """Moves rows that were restored into tables of the engine to the stores of some tables."""
        stores = [table.stored for table in tables]

        def move(*handles: Any) -> tuple[Any]:
            contents = [Table.from_handle(int(handle)) for handle in handles]
            try:
                replace_stores(stores, [TableStore(content) for content in contents])
            finally:
                # In a graph, the tables stay until the graph goes.
                for content in contents:
                    content.clear()
                    content.shrink()
            return (np.int32(len(restored)),)  # The function of a graph keeps `restored` alive.

        handles = [ops.tfra_table_handle(table.resource_handle) for table in restored]
        [done] = _call(tables, move, handles, [tf.int32])
        return done

    def export_part(self, cursor: Any, max_rows: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns all rows as the first and last part. See `HashTable.export_part`."""
        content = self.stored_content([self])
        assert content is not None
        return content["keys"], content["values"], tf.constant([0, 0, 1], tf.int64)

    def counters(self) -> tf.Tensor:
        """Returns the numbers of `TableStats`: all are 0 but the size."""
        return tf.stack(
            [self.size() if name == "size" else tf.zeros([], tf.int64) for name in COUNTERS]
        )

    def keep_metadata(self) -> Any:
        """Raises ValueError: a store has no metadata."""
        raise ValueError(
            f"Keys of {self.name!r} have no metadata: expected a Variable of tables of the engine. "
            f"Received: one of a StoreCreator. {_WHAT_STORES_KEEP}"
        )

    def histograms(self) -> RowHistograms:
        """Raises NotImplementedError: a store has no histograms."""
        raise NotImplementedError(f"`histograms` needs a table of the engine. {_WHAT_STORES_KEEP}")

    def handle(self) -> int:
        """Raises NotImplementedError: only tables of the engine have handles."""
        raise NotImplementedError(
            f"`handle` needs a table of the engine. The rows of {self.name!r} are in its `store`."
        )

    def _flat_rows(self, values: tf.Tensor) -> tf.Tensor:
        return tf.reshape(values, [-1, self._dim])


class _StoreTraining(TableTraining):
    """Training on a store: reads the rows of a batch, lets the engine change them, writes them."""

    def __init__(self, table: StoreTable) -> None:
        super().__init__(table)
        self._of_store = table

    def lookup_pooled(
        self,
        keys: tf.Tensor,
        row_splits: tf.Tensor,
        weights: tf.Tensor,
        combiner: str,
        max_norm: float,
    ) -> tf.Tensor:
        """Combines the rows of each bag of keys."""
        rows = self._of_store.lookup(keys)
        return pool_rows(rows, row_splits, weights, combiner, max_norm)

    def bind(self, optimizer: BoundOptimizer, step: Any, keeps: str) -> list[Any]:
        """Binds an optimizer that is about to take a step. See `TableTraining.bind`."""
        rows, name = self._of_store.stored, optimizer.unique_name
        with tf.control_dependencies(super().bind(optimizer, step, keeps)):
            bound = self._of_store.run(
                lambda step: rows.bind(name, int(step)), [tf.cast(step, tf.int64)]
            )
        return [] if bound is None else [bound]

    def apply_gradients(
        self,
        keys: tf.Tensor,
        gradients: tf.Tensor,
        *,
        rule: str,
        params: str,
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        new_keys: str = "admit",
    ) -> Any:
        """Takes one step of an update rule of the engine. Gradients of equal keys are summed."""
        rows = self._of_store.stored
        in_engine = super().apply_gradients(
            keys[:0],
            gradients[:0],
            rule=rule,
            params=params,
            learning_rate=learning_rate,
            step=step,
        )
        with tf.control_dependencies(_ops(in_engine)):
            return self._of_store.run(
                lambda keys, gradients, rate, number: rows.apply_gradients(
                    keys, gradients, rate, number, rule, params
                ),
                [keys, gradients, learning_rate, step],
            )

    def lookup_rows(self, keys: tf.Tensor, *, rule: CustomRule) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the values and slots of keys. Missing keys get initial ones."""
        return self._read(super().lookup_rows(keys[:0], rule=rule), keys, rule)

    def lookup_slots(
        self, keys: tf.Tensor, *, optimizer: BoundOptimizer, rule: CustomRule | EngineRule
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Like `lookup_rows`, but fails unless `optimizer` is bound to the table."""
        checked = super().lookup_slots(_flat(keys)[:0], optimizer=optimizer, rule=rule)
        return self._read(checked, keys, rule)

    def _read(
        self, checked: Any, keys: tf.Tensor, rule: CustomRule | EngineRule
    ) -> tuple[tf.Tensor, tf.Tensor]:
        rows, text = self._of_store.stored, rule.text()
        value_dtype = self._of_store.value_dtype
        types = [value_dtype, arguments.compute_dtype(value_dtype)]
        with tf.control_dependencies([] if tf.executing_eagerly() else list(checked)):
            found = self._of_store.call(
                lambda keys: rows.lookup_rows(keys, text), [_flat(keys)], types
            )
        widths = (self._of_store.dim, rule.slot_elements)
        values, slots = (
            tf.ensure_shape(
                tf.reshape(each, tf.concat([tf.shape(keys), [width]], axis=0)), [*keys.shape, width]
            )
            for each, width in zip(found, widths, strict=True)
        )
        return values, slots

    def write_rows(
        self,
        keys: tf.Tensor,
        values: tf.Tensor,
        slots: tf.Tensor,
        *,
        rule: CustomRule,
        add: bool,
        new_keys: str = "admit",
    ) -> Any:
        """Assigns values and slots, or adds to the stored ones if `add` is true."""
        rows, text = self._of_store.stored, rule.text()
        return self._of_store.run(
            lambda keys, values, slots: rows.write_rows(keys, values, slots, text, add),
            [keys, values, slots],
        )


def _call(
    tables: Sequence[StoreTable],
    function: Callable[..., Any],
    inputs: Sequence[Any],
    types: Sequence[tf.DType],
) -> list[tf.Tensor]:
    """Calls a function of arrays, in order with the other ops of some tables."""
    if tf.executing_eagerly():
        results = function(*[tensor.numpy() for tensor in inputs])
        pairs = zip(results, types, strict=True)
        return [tf.convert_to_tensor(result, dtype) for result, dtype in pairs]
    # In a function, TensorFlow orders ops by the resources that they use. numpy_function uses none,
    # so it is put between ops that use the tables.
    with tf.control_dependencies([op for table in tables for op in table.creators()]):
        before = [ops.tfra_table_handle(table.resource_handle) for table in tables]
        with tf.control_dependencies(before):
            results = tf.numpy_function(function, inputs, types)
        with tf.control_dependencies(results):
            after = [ops.tfra_table_handle(table.resource_handle) for table in tables]
        with tf.control_dependencies(after):
            return [tf.identity(result) for result in results]


_FIELDS_OF_THE_STORE = ("rule", "capacity")  # In which it may differ from the spec it is given.
_WHAT_STORES_KEEP = "A store keeps keys, values and slots, and nothing else."


def _check_types(key_dtype: Any, value_dtype: Any) -> None:
    if arguments.key_dtype(key_dtype) == tf.int32:
        raise TypeError("`key_dtype`: expected int64 or string for a store. Received: int32")
    if arguments.value_dtype(value_dtype) == tf.string:
        raise TypeError("`value_dtype`: expected numbers for a store. Received: string")


def _check_rows(new_rows: NewRows) -> None:
    if new_rows.metadata:
        raise ValueError(
            "`kv_creator`: expected one of tables with metadata, which `restrict_policy`, `ttl` "
            f"and `min_norm` need. Received: a StoreCreator. {_WHAT_STORES_KEEP}"
        )
    if new_rows.admission is not None:
        raise ValueError(
            "`kv_creator`: expected one of tables of the engine, which `admission` needs. "
            f"Received: a StoreCreator. {_WHAT_STORES_KEEP}"
        )


def _check_store(store: Any, wanted: TableSpec) -> None:
    if not isinstance(store, Store):
        raise TypeError(
            f"`make`: expected a function that returns a tfra.Store. Received: {store!r}"
        )
    # Printed and parsed, so that numbers are rounded to the value type in both.
    specs = [TableSpec.from_json(spec.to_json()) for spec in (wanted, store.spec)]
    names = [field.name for field in dataclasses.fields(TableSpec)]
    fields = [name for name in names if name not in _FIELDS_OF_THE_STORE]
    differ = [name for name in fields if getattr(specs[0], name) != getattr(specs[1], name)]
    if differ:
        expected, received = ({name: getattr(spec, name) for name in differ} for spec in specs)
        raise ValueError(f"`make`: expected a store of {expected}. Received: one of {received}")


def _flat(tensor: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tensor, [-1])


def _ops(op: Any) -> list[Any]:
    return [] if op is None else [op]
