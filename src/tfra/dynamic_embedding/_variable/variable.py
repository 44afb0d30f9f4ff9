"""A variable whose rows are found by key, in one table or several."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tfra._shared import limits
from tfra._shared.upkeep import checked_min_norm, checked_ttl
from tfra.admission import Admission
from tfra.admission import get as get_admission
from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.tf import AutoTrackable, Saveable, in_plain_graph, load_as, tf
from tfra.dynamic_embedding._saving.content import content_of, export_tables
from tfra.dynamic_embedding._saving.loaded import LoadedVariable
from tfra.dynamic_embedding._tables.creators import CuckooHashTableCreator, KVCreator
from tfra.dynamic_embedding._tables.hash_table import HashTable
from tfra.dynamic_embedding._tables.initializers import (
    ComputedRows,
    ConstantRow,
    NewRows,
    constant_row,
    initial_rows,
)
from tfra.dynamic_embedding._tables.partitions import Shards, default_partition_fn
from tfra.dynamic_embedding._tables.shown_tables import ShownTables
from tfra.dynamic_embedding._training.trained_variable import TrainedVariable
from tfra.dynamic_embedding._upkeep.restrict_policies import make_policy, needs_usage
from tfra.dynamic_embedding._variable.variable_saving import VariableSaving
from tfra.dynamic_embedding._variable.variable_training import VariableTraining
from tfra.dynamic_embedding._variable.variable_upkeep import VariableUpkeep

DEFAULT_NAME = "DynamicEmbedding_Variable"
DEFAULT_DEVICE = "/CPU:0"  # Of the machine that a surrounding tf.device says, if there is one.
_unnamed = itertools.count()


class GraphKeys:
    """Names of the collections that a `Variable` made in a graph is in."""

    DYNAMIC_EMBEDDING_VARIABLES = "dynamic_embedding_variables"
    TRAINABLE_DYNAMIC_EMBEDDING_VARIABLES = "trainable_dynamic_embedding_variables"


class Variable(
    VariableTraining,
    VariableSaving,
    VariableUpkeep,
    ShownTables,
    TrainedVariable,
    AutoTrackable,  # type: ignore[misc]
):
    """A variable of rows that are found by key, with no fixed vocabulary.

    A key gets a row of its own when it is first written. Looking up a key that is not there gives
    its initial value and stores nothing. Random initial values are a function of the initializer's
    seed and the key: the same whatever the batch, the order or the number of tables.

    Example:
    >>> variable = tfra.dynamic_embedding.Variable(dim=2, initializer=-1.0)
    >>> variable.upsert([7], [[1.0, 2.0]])
    >>> variable.lookup([7, 8]).numpy().tolist()
    [[1.0, 2.0], [-1.0, -1.0]]

    Args:
        key_dtype: the type of the key tensors.
        value_dtype: the type of the value tensors.
        dim: the length of the value array for each key.
        devices: the list of devices holding the tables. One table will be created on each device.
        partitioner: partition function of keys, which gives the index of the table for each key:
            called with the keys and the number of tables.
        shared_name: Not used.
        name: A name for the variable.
        initializer: The value to use if a key is missing: a number, an array, an initializer of
            TensorFlow or Keras or its class, or a callable that is given a shape (and a dtype, if
            it takes one). The last kind is called for missing keys only, each time they are looked
            up. `None` stands for 0.
        trainable: whether optimizers update it.
        checkpoint: if True, the contents are saved to and restored from checkpoints.
        init_size: room for so many keys from the beginning, divided among the tables.
        kv_creator: a `KVCreator`, which makes the tables; `CuckooHashTable`s by default.
        restrict_policy: the rule of `restrict`: a subclass of `RestrictPolicy`, such as
            `TimestampRestrictPolicy` and `FrequencyRestrictPolicy`.
        bp_v2: whether optimizers update rows by adding to them instead of setting them.
        admission: which keys may enter when they are trained: one of `tfra.admission`, or None for
            all.
        ttl: seconds after which a row that was not updated has expired; see `expire`.
        min_norm: the L2 norm below which a row has expired; see `expire`.
        short_file_name: Not used.

    Raises:
        TypeError: If a type is not supported.
        ValueError: If a number is out of range, or the initial value does not fit a row.
    """

    def __init__(
        self,
        key_dtype: Any = tf.int64,
        value_dtype: Any = tf.float32,
        dim: int = 1,
        devices: str | Sequence[str] | None = None,
        partitioner: Callable[[tf.Tensor, int], tf.Tensor] = default_partition_fn,
        shared_name: str | None = None,
        name: str = DEFAULT_NAME,
        initializer: Any = None,
        trainable: bool = True,
        checkpoint: bool = True,
        init_size: int = 0,
        kv_creator: KVCreator | None = None,
        restrict_policy: Any = None,
        bp_v2: bool = False,
        admission: Admission | None = None,
        ttl: float | None = None,
        min_norm: float | None = None,
        short_file_name: bool = False,
    ) -> None:
        del short_file_name
        self._key_dtype = arguments.key_dtype(key_dtype)
        self._value_dtype = arguments.value_dtype(value_dtype)
        self._dim = arguments.integer(dim, "dim", 1, limits.MAX_DIM)
        if not isinstance(name, str) or not name:
            raise ValueError(f"`name` must be a string that is not empty. Received: {name!r}")
        if kv_creator is not None and not isinstance(kv_creator, KVCreator):
            raise TypeError(f"`kv_creator` must be a KVCreator. Received: {kv_creator!r}")
        if not callable(partitioner):
            raise TypeError(f"`partitioner` must be callable. Received: {partitioner!r}")
        self._name = self.requested_name = name
        self.devices = self._no_dependency(device_list(devices))
        self.partitioner = partitioner
        self.shared_name = shared_name
        self.initializer = self._no_dependency(initializer)
        self.trainable = bool(trainable)
        self.checkpoint = bool(checkpoint)
        self.init_size = arguments.integer(init_size, "init_size", 0, limits.MAX_KEYS)
        self.kv_creator = kv_creator or CuckooHashTableCreator()
        self.bp_v2 = bool(bp_v2)
        self.admission = get_admission(admission)
        self.ttl = checked_ttl(ttl)
        self.min_norm = checked_min_norm(min_norm)

        self._name_in_graph()
        initial = initial_rows(initializer, self._value_dtype, self._dim, self._seed_name())
        self._computed = None
        if isinstance(initial, ComputedRows):
            self._computed = initial
            zero = "" if self._value_dtype == tf.string else 0
            row = constant_row(zero, self._value_dtype, (self._dim,)).row
            initial = ConstantRow(row, external=True)
        # Whether rows carry the time of the last update and the number of updates.
        self.keeps_usage = needs_usage(restrict_policy) or ttl is not None or min_norm is not None
        new_rows = NewRows(initial, self.keeps_usage, self.admission)
        tables = []
        for i, device in enumerate(self.devices):
            table = self.kv_creator.create(
                key_dtype=self._key_dtype,
                value_dtype=self._value_dtype,
                default_value=new_rows,
                name=f"{self._name}-{i + 1}of{len(self.devices)}",
                checkpoint=False,
                init_size=self.init_size // len(self.devices),
                device=device,
            )
            table.owner = weakref.ref(self)
            tables.append(table)
        self._shards = self._no_dependency(Shards(tables, partitioner))
        self._restrict_policy = self._no_dependency(make_policy(restrict_policy, self))
        # What stands for it in training: by graph, and for None everywhere else. See `shadows.py`.
        self.stand_ins = self._no_dependency({})
        self.shadows = self._no_dependency(weakref.WeakValueDictionary())
        self.v1_optimizers = itertools.count()  # Numbers of those of tf.compat.v1 that train it.
        self._add_to_graph()

    def _seed_name(self) -> str:
        """What stands in for a seed: variables without a name of their own are counted."""
        if self._name != DEFAULT_NAME:
            return self._name
        return f"{DEFAULT_NAME} {next(_unnamed)}"

    def _name_in_graph(self) -> None:
        """In a graph, makes the name unique, and an op of that name.

        TensorFlow writes the names of collected objects to a meta graph, and looks for ops of these
        names when it reads one.
        """
        with tf.init_scope():
            if not in_plain_graph():
                return
            with tf.compat.v1.name_scope(None):  # The name is whole: no scope comes before it.
                self._name = tf.compat.v1.get_default_graph().unique_name(self._name)
                tf.no_op(name=f"{self._name}/")

    def _add_to_graph(self) -> None:
        with tf.init_scope():
            if not in_plain_graph():
                return
            collect = tf.compat.v1.add_to_collection
            collect(GraphKeys.DYNAMIC_EMBEDDING_VARIABLES, self)
            if self.trainable:
                collect(GraphKeys.TRAINABLE_DYNAMIC_EMBEDDING_VARIABLES, self)
            if self.checkpoint:
                content = content_of(self.tables)
                saveable = Saveable(self._name, content, self._shards.restore)
                collect(tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS, saveable)

    # --- Attributes.

    @property
    def name(self) -> str:
        """The name of the variable."""
        return self._name

    @property
    def key_dtype(self) -> tf.DType:
        """The type of the keys."""
        return self._key_dtype

    @property
    def value_dtype(self) -> tf.DType:
        """The type of the values."""
        return self._value_dtype

    @property
    def dim(self) -> int:
        """The length of a row."""
        return self._dim

    @property
    def tables(self) -> list[HashTable]:
        """The tables, one on each device."""
        return list(self._shards.tables)

    @property
    def shard_num(self) -> int:
        """The number of tables."""
        return len(self._shards.tables)

    @property
    def resource_handle(self) -> tf.Tensor:
        """Returns the resource handle associated with this Resource: of the first table."""
        return self._shards.tables[0].resource_handle

    @property
    def partition_fn(self) -> Callable[[tf.Tensor, int], tf.Tensor]:
        """The `partitioner`."""
        return self.partitioner

    @property
    def restrict_policy(self) -> Any:
        """The policy that `restrict` follows, or None."""
        return self._restrict_policy

    def _shown_tables(self) -> list[HashTable]:
        return self.tables

    def _trained_by(self) -> str | None:
        return self.trained_by

    # --- Methods.

    def upsert(self, keys: Any, values: Any, name: str | None = None) -> Any:
        """Insert or Update `keys` with `values`.

        If key exists already, value will be updated. Of equal keys the last one stays.

        Args:
            keys: Keys to insert. Can be a tensor of any shape. Must match the table's key type.
            values: Values to be associated with keys, of shape `keys.shape + [dim]`.
            name: A name for the operation (optional).

        Returns:
            The created Operation.

        Raises:
            TypeError: when `keys` or `values` doesn't match the table data types.
            ValueError: when the shape of `values` is wrong.
        """
        keys = arguments.keys_tensor(keys, self._key_dtype)
        values = arguments.values_tensor(values, self._value_dtype)
        if self.shard_num > 1:
            values = self._rows(keys, values, [self._dim], "values")
        else:
            arguments.check_rows(keys, values, [self._dim], "values")
        return self._shards.write("insert", keys, (values,), name)

    def accum(
        self, keys: Any, old_values: Any, new_values: Any, exists: Any, name: str | None = None
    ) -> Any:
        """Adds `new_values - old_values` to keys that are there, and inserts those that are not.

        A key that is there and whose `exists` is true gets the difference added; one that is
        missing and whose `exists` is false is inserted with its new value. The others are left
        alone.

        Args:
            keys: Keys to update. Can be a tensor of any shape. Must match the table's key type.
            old_values: What a lookup gave, of shape `keys.shape + [dim]`.
            new_values: What they are to be, of the same shape.
            exists: A bool tensor of the shape of `keys`, from the same lookup.
            name: A name for the operation (optional).

        Returns:
            The created Operation.

        Raises:
            TypeError: when `keys` or the values don't match the table data types.
            ValueError: when a shape is wrong.
        """
        if self._value_dtype == tf.string:
            raise TypeError("Strings can't be accumulated. Received: a variable of string values")
        keys = arguments.keys_tensor(keys, self._key_dtype)
        new_values = arguments.values_tensor(new_values, self._value_dtype, "new_values")
        new_values = self._rows(keys, new_values, [self._dim], "new_values")
        old_values = arguments.values_tensor(old_values, self._value_dtype, "old_values")
        old_values = self._rows(keys, old_values, [self._dim], "old_values")
        exists = arguments.values_tensor(exists, tf.bool, "exists")
        exists = self._rows(keys, exists, [], "exists")
        if self._value_dtype == tf.bool:
            deltas = new_values
        else:
            deltas = tf.where(exists[..., tf.newaxis], new_values - old_values, new_values)
        return self._shards.write("accum", keys, (deltas, exists), name)

    def lookup(self, keys: Any, return_exists: bool = False, name: str | None = None) -> Any:
        """Looks up `keys` in a Variable, outputs the corresponding values.

        The initial value is used for keys not present; they are not inserted.

        Args:
            keys: Keys to look up. Can be a tensor of any shape. Must match the table's key_dtype.
            return_exists: if True, returns an additional Tensor which tells which keys are there.
            name: A name for the operation (optional).

        Returns:
            A tensor of the values, of shape `keys.shape + [dim]`. With `return_exists`, a pair of
            that and a bool tensor of the shape of `keys`.

        Raises:
            TypeError: when `keys` do not match the table data types.
        """
        keys = arguments.keys_tensor(keys, self._key_dtype)
        if isinstance(return_exists, str):  # lookup(keys, name), as it once was.
            return_exists, name = False, return_exists
        if self._computed is None:
            return self._shards.read("lookup", keys, name, return_exists=return_exists)
        values, exists = self._shards.read("lookup", keys, name, return_exists=True)
        values = self._fill_missing(keys, values, exists)
        return (values, exists) if return_exists else values

    def _fill_missing(self, keys: tf.Tensor, values: tf.Tensor, exists: tf.Tensor) -> tf.Tensor:
        """Has the user's initializer make a row for each missing key, equal keys once."""
        assert self._computed is not None
        missing = tf.where(tf.logical_not(tf.reshape(exists, [-1])))
        unique, numbers = tf.unique(tf.gather_nd(tf.reshape(keys, [-1]), missing))
        rows = self._computed.of(unique)
        rows = tf.gather(tf.ensure_shape(rows, [None, self._dim]), numbers)
        flat = tf.reshape(values, [-1, self._dim])
        filled = tf.reshape(tf.tensor_scatter_nd_update(flat, missing, rows), tf.shape(values))
        return tf.ensure_shape(filled, values.shape)

    def remove(self, keys: Any, name: str | None = None) -> Any:
        """Removes `keys` and its associated values from the variable.

        If a key is not present in the table, it is silently ignored.

        Args:
            keys: Keys to remove. Can be a tensor of any shape. Must match the table's key type.
            name: A name for the operation (optional).

        Returns:
            The created Operation.

        Raises:
            TypeError: when `keys` do not match the table data types.
        """
        keys = arguments.keys_tensor(keys, self._key_dtype)
        return self._shards.write("remove", keys, (), name)

    def clear(self, name: str | None = None) -> Any:
        """Removes all keys and values.

        Args:
            name: A name for the operation (optional).

        Returns:
            The created Operation.
        """
        cleared = [table.clear() for table in self.tables]
        return None if tf.executing_eagerly() else tf.group(*cleared, name=name)

    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns tensors of all keys and values in the table.

        While other threads write, a key that leaves the table and returns may appear twice, so an
        export may have more rows than `max_capacity`. A key that is in the table all the time
        appears exactly once.

        Args:
            name: A name for the operation (optional).

        Returns:
            A pair of tensors with the first tensor containing all keys and the second tensors
            containing all values in the table.
        """
        return export_tables(self.tables, name=name)

    def size(self, index: int | None = None, name: str | None = None) -> tf.Tensor:
        """Compute the number of elements in the index-th table of this Variable.

        If index is none, the total size of the Variable wil be return.

        Args:
            index: The index of table (optional)
            name: A name for the operation (optional).

        Returns:
            A scalar tensor containing the number of elements in this Variable.

        Raises:
            TypeError: If the index is not an integer.
            ValueError: If there is no such table.
        """
        if index is None and self.shard_num > 1:
            return tf.add_n([table.size() for table in self.tables], name=name)
        index = 0 if index is None else index
        index = arguments.integer(index, "index", 0, self.shard_num - 1)
        return self.tables[index].size(name=name)

    @staticmethod
    def _rows(keys: tf.Tensor, values: tf.Tensor, row_shape: list[int], what: str) -> tf.Tensor:
        arguments.check_rows(keys, values, row_shape, what)
        return arguments.assert_rows(keys, values, row_shape, what)


load_as("Variable", Variable, LoadedVariable)


def device_list(devices: str | Sequence[str] | None) -> list[str]:
    """Returns the devices of the tables, from what a user may give as `devices`."""
    if devices is None:
        return [DEFAULT_DEVICE]
    given = [devices] if isinstance(devices, str) else devices
    if not isinstance(given, Iterable) or not all(isinstance(device, str) for device in given):
        raise TypeError(f"`devices`: expected names of devices, received {devices!r}")
    if not list(given):
        raise ValueError(f"`devices` must have at least one entry. Received: {devices}")
    return list(given)
