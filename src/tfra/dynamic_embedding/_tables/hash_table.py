"""`HashTable`, the base of the table classes: a table of the engine as a TensorFlow resource."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Sequence
from typing import Any

from tfra._shared import arrays, limits
from tfra._shared.display import Facts, Shown
from tfra._shared.stats import COUNTERS, RowHistograms, TableStats
from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.tf import (
    ANONYMOUS,
    SAVE_FOR_CHECKPOINT,
    VARIABLE_VALUE_KEY,
    Saveable,
    in_plain_graph,
    load_as,
    ops,
    tf,
)
from tfra.dynamic_embedding._saving.content import (
    Content,
    Replacement,
    content_of,
    content_types,
    content_when_written,
    export_tables,
    keep_content,
    restore_tables,
)
from tfra.dynamic_embedding._saving.loaded import LoadedTable
from tfra.dynamic_embedding._tables.initializers import (
    ConstantRow,
    NewRows,
    RandomRows,
    constant_row,
)
from tfra.dynamic_embedding._tables.table_display import facts_of, first_rows_of
from tfra.dynamic_embedding._tables.table_training import TableTraining
from tfra.spec import TableSpec


class HashTable(Shown, tf.saved_model.experimental.TrackableResource):  # type: ignore[misc]
    """A mutable hash table of the engine, as a TensorFlow resource.

    The base of the table classes. A table made with a scalar default value holds scalars. A table
    made with a vector holds rows of the same length.

    Attributes:
        owner: None, or a function that returns the Variable of the table, or None if the Variable
            was freed.
        trained: Whether an optimizer has updated the table.
    """

    def __init_subclass__(cls) -> None:
        # A metaclass of TensorFlow handles calls of the class, and would hide its arguments.
        signature = inspect.signature(cls.__init__)
        cls.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])

    def __init__(
        self,
        key_dtype: Any,
        value_dtype: Any,
        default_value: Any,
        name: str,
        checkpoint: bool,
        capacity: int,
        device: str,
    ) -> None:
        if checkpoint and not name:
            raise ValueError(f"A table with checkpoint=True needs a `name`. Received: {name!r}")
        self._key_dtype = arguments.key_dtype(key_dtype)
        self._value_dtype = arguments.value_dtype(value_dtype)
        if not isinstance(default_value, NewRows):
            arrays.refuse_mask(default_value, "default_value")
            default_value = NewRows(constant_row(default_value, self._value_dtype, None))
        self._initial: ConstantRow | RandomRows = default_value.initial
        self._metadata = default_value.metadata
        self._admission = default_value.admission
        if isinstance(self._initial, ConstantRow):
            self._row_shape = list(self._initial.row.shape)
        else:
            self._row_shape = [self._initial.dim]
        self._dim = self._row_shape[0] if self._row_shape else 1
        if not 1 <= self._dim <= limits.MAX_DIM:
            raise ValueError(
                f"`default_value` must have between 1 and {limits.MAX_DIM} elements. Received: "
                f"{self._dim}"
            )
        self._capacity = arguments.integer(capacity, "init_size", 0, limits.MAX_KEYS)
        self._name = name or type(self).__name__
        self._checkpoint = bool(checkpoint)
        self._shared_name: str | None = None
        self._creator: Any = None
        self.owner: Any = None
        self.trained = False
        self._row: tf.Tensor | None = None
        with tf.init_scope():
            if in_plain_graph():
                with tf.compat.v1.name_scope(None):
                    self._name = tf.compat.v1.get_default_graph().unique_name(self._name)
                self._shared_name = self._name
            super().__init__(device=_host_of(device))
            _ = self.resource_handle  # Create the resource now and not at the first use.
            if in_plain_graph():
                self._initialize_in_graph()

    @property
    def key_dtype(self) -> tf.DType:
        """The table key dtype."""
        return self._key_dtype

    @property
    def value_dtype(self) -> tf.DType:
        """The table value dtype."""
        return self._value_dtype

    @property
    def name(self) -> str:
        """The name of the table."""
        return self._name

    @property
    def dim(self) -> int:
        """The length of a row; 1 for a table of scalars."""
        return self._dim

    @property
    def row_shape(self) -> list[int]:
        """The shape of a row: `[dim]`, or `[]` for a table of scalars."""
        return list(self._row_shape)

    @property
    def holder_of_rows(self) -> Any:
        """What holds the rows: this table, or a store. No two partitions may have the same one."""
        return self

    @property
    def training(self) -> TableTraining:
        """The part that layers and optimizers use. It is not stored: TensorFlow copies tables."""
        return TableTraining(self)

    def _facts(self) -> Facts:
        owner = None if self.owner is None else self.owner()
        return facts_of(self, [self], None if owner is None else owner.trained_by)

    def _first_rows(self, n: int | None) -> Any:
        return first_rows_of(self, [self], n)

    # --- The resource. TensorFlow calls these methods of TrackableResource to save and load.

    def _create_resource(self) -> tf.Tensor:
        name = self._shared_name
        if name is None:
            # A loaded SavedModel adds the same prefix to all names in functions, so each name must
            # be unique without it.
            name = ANONYMOUS if tf.executing_eagerly() else f"tfra_{uuid.uuid4().hex}"
        # In a graph, TensorFlow finds the objects of collections by the names of their ops.
        op_name = None if self._shared_name is None else f"{name}/"
        handle = tf.raw_ops.VarHandleOp(shared_name=name, dtype=tf.int64, shape=[1], name=op_name)
        if not in_plain_graph():
            self.create_at(handle)
        return handle

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def create_at(self, handle: tf.Tensor) -> Any:
        """Makes the table if it does not exist, and puts its lifetime handle into the resource."""
        lifetime_handle = ops.tfra_table_create(handle, spec=self._spec().to_json())
        return tf.raw_ops.AssignVariableOp(resource=handle, value=lifetime_handle)

    def _spec(self, **more: Any) -> TableSpec:
        """Returns the description of the table. Subclasses add fields."""
        return TableSpec(
            dim=self._dim,
            key_dtype=self._key_dtype.name,
            value_dtype=self._value_dtype.name,
            scalar=not self._row_shape,
            initializer=self._initial.initializer,
            seed=self._initial.seed,
            metadata=self._metadata,
            admission=self._admission,
            capacity=self._capacity,
            **more,
        )

    def handle(self) -> int:
        """Returns the number by which this process finds the table; see `tfra.Table.from_handle`.

        Raises:
            RuntimeError: In a graph.
        """
        require_eager("handle", None)
        return int(ops.tfra_table_handle(self.resource_handle))

    def scores_of_write(self, keys: tf.Tensor) -> list[tf.Tensor]:
        """Returns the argument `scores` of a writing op: a list of one tensor, or an empty list."""
        return []

    def scores_of_new_keys(self, keys: tf.Tensor) -> list[tf.Tensor]:
        """Returns the scores that a function of the user gives to new keys. See `SavedTable`."""
        return []

    def _export_to_saved_model_graph(self, object_map: Any, tensor_map: Any, **kwargs: Any) -> Any:
        if self in object_map:  # The Variable of the table has exported it.
            return [self.resource_handle]
        return super()._export_to_saved_model_graph(object_map, tensor_map, **kwargs)

    def _trackable_children(self, save_type: str = SAVE_FOR_CHECKPOINT, **kwargs: Any) -> Any:
        children = super()._trackable_children(save_type, **kwargs)
        owner = None if self.owner is None else self.owner()
        if save_type != SAVE_FOR_CHECKPOINT and owner is not None:
            # Keras saves the resources that it finds, but not the objects that own them.
            children["owner"] = owner
        return children

    def _initialize(self) -> Any:
        return self.create_at(self.resource_handle)

    def _destroy_resource(self) -> None:
        if self.trained and tf.executing_eagerly():
            # Overwrite the lifetime handle, which frees the table even if a graph still holds the
            # resource: TensorFlow never frees some graphs of training steps.
            no_handle = tf.zeros([0], tf.int64)
            tf.raw_ops.AssignVariableOp(resource=self.resource_handle, value=no_handle)
        tf.raw_ops.DestroyResourceOp(resource=self.resource_handle, ignore_lookup_error=True)

    def _initialize_in_graph(self) -> None:
        """In a graph, adds the op that creates the table. All other ops of it wait for that op."""
        with tf.device(self._resource_device):
            self._creator = self._initialize()
        keys = tf.compat.v1.GraphKeys
        tf.compat.v1.add_to_collection(keys.TABLE_INITIALIZERS, self._creator)
        if self._checkpoint:
            tf.compat.v1.add_to_collection(keys.SAVEABLE_OBJECTS, self._saveable())

    def _saveable(self, name: str = "") -> Saveable:
        """Returns what `tf.compat.v1.train.Saver` saves, under a name or that of the table."""
        return Saveable(name or self._name, content_of([self]), self.restore_rows)

    def _gather_saveables_for_checkpoint(self) -> dict[str, Any]:
        """Called by a Saver that is given the table. A Variable is saved with all its tables."""
        owner = None if self.owner is None else self.owner()
        if owner is not None:
            return dict(owner._gather_saveables_for_checkpoint())
        return {VARIABLE_VALUE_KEY: self._saveable}

    def creators(self) -> list[Any]:
        """Returns the ops that create the table. Other ops of the table must wait for them."""
        if self._creator is None or tf.executing_eagerly():
            return []
        if tf.inside_function():
            # Functions of tf.data do not wait for ops of the outer graph.
            return [self.create_at(self.resource_handle)]
        return [self._creator]

    def stored_content(self, tables: Sequence[Any]) -> Content | None:
        """Returns None, since the rows are in the engine. See `SavedTable`."""
        return None

    def table_to_restore(self) -> HashTable:
        """Returns this table, since the rows are in the engine. See `SavedTable`."""
        return self

    def take_restored_rows(self, tables: Sequence[Any], restored: Sequence[Any]) -> Any:
        """Does nothing, since the rows are in the engine. See `SavedTable`."""
        return None

    def ready(self) -> Any:
        """Returns a context whose ops run after the table was created."""
        return tf.control_dependencies(self.creators())

    # --- The methods of the reference page.

    def insert(self, keys: Any, values: Any, name: str | None = None) -> Any:
        """Associates `keys` with `values`. The last one of equal keys wins.

        Args:
            keys: Keys to insert. Can be a tensor of any shape. Must match the table's key type.
            values: Values to be associated with keys, of the shape of `keys`, followed by the
                length of a row unless the table holds scalars.
            name: A name for the operation (optional).

        Returns:
            The created Operation.

        Raises:
            TypeError: when `keys` or `values` doesn't match the table data types.
            ValueError: when the shape of `values` is wrong.
        """
        keys = arguments.keys_tensor(keys, self._key_dtype)
        values = arguments.values_tensor(values, self._value_dtype)
        arguments.check_rows(keys, values, self._row_shape, "values")
        with self.ready():
            return ops.tfra_insert(
                self.resource_handle, keys, values, scores=self.scores_of_write(keys), name=name
            )

    def lookup(
        self,
        keys: Any,
        dynamic_default_values: Any = None,
        return_exists: bool = False,
        name: str | None = None,
    ) -> Any:
        """Looks up `keys` in a table, outputs the corresponding values.

        The `default_value` is used for keys not present in the table.

        Args:
            keys: Keys to look up. Can be a tensor of any shape. Must match the table's key_dtype.
            dynamic_default_values: The values to use if a key is missing in the table: one row, or
                one row for each key, in the shape of `keys`. One row may also have the shape
                `[1, dim]`, and the rows for keys of a higher rank may be one matrix, if these
                shapes are known when a function is traced. If None (by default), the table's
                default value is used.
            return_exists: if True, returns an additional Tensor which tells which keys are in the
                table.
            name: A name for the operation (optional).

        Returns:
            A tensor of the values, in the shape of `keys`, followed by the length of a row unless
            the table holds scalars. With `return_exists`, a pair of this tensor and a bool tensor
            of the shape of `keys`.

        Raises:
            TypeError: when `keys` or the default values do not match the table data types.
        """
        keys = arguments.keys_tensor(keys, self._key_dtype)
        row, defaults = self.default_row(), []
        initial = self.has_random_rows
        if dynamic_default_values is not None:
            rows = arguments.default_rows(
                keys, dynamic_default_values, self._value_dtype, self._row_shape
            )
            if rows.shape.rank == len(self._row_shape) and keys.shape.rank != 0:
                row, initial = rows, False
            else:
                defaults = [rows]
        with self.ready():
            values, exists = ops.tfra_lookup(
                self.resource_handle, keys, row, defaults, initial, int(return_exists), name=name
            )
        return (values, exists[0]) if return_exists else values

    @property
    def has_random_rows(self) -> bool:
        """Whether the engine computes the initial rows, from the seed and the key."""
        return isinstance(self._initial, RandomRows)

    def default_row(self) -> tf.Tensor:
        """Returns the row for missing keys. If initial rows are random, only its shape is used."""
        if tf.executing_eagerly() and self._row is not None:
            return self._row
        if isinstance(self._initial, ConstantRow):
            row = tf.constant(self._initial.row, self._value_dtype, self._row_shape)
        else:
            row = tf.zeros(self._row_shape, self._value_dtype)
        if tf.executing_eagerly():
            self._row = row
        return row

    def __getitem__(self, keys: Any) -> tf.Tensor:
        """Looks up `keys` in a table, outputs the corresponding values."""
        return self.lookup(keys)

    # Without these, Python would iterate by calling __getitem__ with 0, 1, 2, ... forever.
    __iter__ = None
    __contains__ = None

    def accum(
        self,
        keys: Any,
        values_or_deltas: Any,
        exists: Any,
        name: str | None = None,
        new_keys: str = "insert",
    ) -> Any:
        """Adds to the values of existing keys, and inserts missing keys.

        If a key exists and its `exists` is true, the delta is added to its value. If a key is
        missing and its `exists` is false, it is inserted with the value. All other keys stay
        unchanged: they were inserted or removed after the lookup that returned `exists`.

        Args:
            keys: Keys to accumulate. Can be a tensor of any shape. Must match the table's key type.
            values_or_deltas: A tensor of the same shape as for `insert`.
            exists: A bool tensor of the shape of `keys`.
            name: A name for the operation (optional).
            new_keys: "insert" to insert all missing keys, "admit" for those that admission lets in.

        Returns:
            The created Operation.

        Raises:
            TypeError: when `keys` or `values_or_deltas` doesn't match the table data types, or the
                values are strings.
        """
        if self._value_dtype == tf.string:
            raise TypeError("Strings can't be accumulated. Received: a table of string values")
        keys = arguments.keys_tensor(keys, self._key_dtype)
        deltas = arguments.values_tensor(values_or_deltas, self._value_dtype, "values_or_deltas")
        exists = arguments.values_tensor(exists, tf.bool, "exists")
        arguments.check_rows(keys, deltas, self._row_shape, "values_or_deltas")
        arguments.check_rows(keys, exists, [], "exists")
        with self.ready():
            return ops.tfra_accumulate(
                self.resource_handle,
                keys,
                deltas,
                exists,
                scores=self.scores_of_write(keys),
                new_keys=new_keys,
                name=name,
            )

    def remove(self, keys: Any, name: str | None = None) -> Any:
        """Removes `keys` and their values from the table.

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
        with self.ready():
            return ops.tfra_remove(self.resource_handle, keys, name=name)

    def clear(self, name: str | None = None) -> Any:
        """Removes all keys and values from the table.

        Args:
            name: A name for the operation (optional).

        Returns:
            The created Operation.
        """
        with self.ready():
            return ops.tfra_clear(self.resource_handle, name=name)

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
        keys, values = export_tables([self], name=name)
        return keys, values if self._row_shape else tf.reshape(values, [-1])

    def size(self, name: str | None = None) -> tf.Tensor:
        """Returns the number of keys in this table.

        Args:
            name: A name for the operation (optional).

        Returns:
            A scalar tensor.
        """
        with self.ready():
            return ops.tfra_size(self.resource_handle, name=name)

    # --- Checkpoints. See `_saving/content.py` for what they hold.

    def _serialize_to_tensors(self) -> dict[str, Any]:
        if not self._checkpoint:
            return {}
        types = content_types(self.key_dtype, self.value_dtype)
        return content_when_written([self], lambda: content_of([self]), types)

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        keep_content(self, object_map, content_of([self]) if self._checkpoint else {})

    def _restore_from_tensors(self, restored_tensors: Content) -> Any:
        return self.restore_rows(restored_tensors) if self._checkpoint else tf.no_op()

    def restore_rows(self, content: Content) -> Any:
        """Replaces the content by what `content_of` returned, and returns the op that does so."""
        return restore_tables(Replacement([self], content))

    # --- Restriction, expiry and statistics.

    def stats(self) -> TableStats:
        """Returns the table's size, memory and counters.

        Raises:
            RuntimeError: In a graph. There, `counters` returns a tensor.
        """
        require_eager("stats", "stats_tensors")
        return TableStats.from_counters(self.counters().numpy())

    def counters(self) -> tf.Tensor:
        """Returns the numbers of `TableStats`, in the order of `tfra._shared.stats.COUNTERS`."""
        with self.ready():
            return tf.ensure_shape(ops.tfra_stats(self.resource_handle), [len(COUNTERS)])

    def histograms(self) -> RowHistograms:
        """Counts rows by age, by number of updates and by norm, in one pass.

        Raises:
            RuntimeError: In a graph.
        """
        require_eager("histograms", None)
        counts = ops.tfra_histograms(self.resource_handle)
        return RowHistograms.from_counts(*(tensor.numpy() for tensor in counts))

    def touch(self, keys: tf.Tensor, *, new_keys: str = "admit") -> Any:
        """Records that keys were seen, as an update does, but changes no value."""
        with self.ready():
            return ops.tfra_touch(self.resource_handle, keys, new_keys=new_keys)

    def keep_metadata(self) -> Any:
        """Gives keys metadata, unless they have some; see `Variable.keep_metadata`."""
        with self.ready(), tf.device(self._resource_device):
            kept = ops.tfra_keep_metadata(self.resource_handle)
        if self._creator is not None:
            self._creator = kept
            tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, kept)
        self._metadata = True
        return kept

    def lookup_metadata(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the time of the last write and the number of writes of keys, and which exist."""
        with self.ready():
            metadata = ops.tfra_lookup_metadata(self.resource_handle, keys)
        return metadata.time, metadata.count, metadata.exists

    def keep_best(self, keep: Any, ranking: str) -> tf.Tensor:
        """Evicts all but the `keep` best rows, and returns how many were evicted."""
        with self.ready():
            return ops.tfra_restrict(self.resource_handle, tf.cast(keep, tf.int64), ranking=ranking)

    def evict(self, keys: tf.Tensor) -> tf.Tensor:
        """Removes keys that a restriction chose, and returns how many of them existed."""
        with self.ready():
            return ops.tfra_evict(self.resource_handle, keys)

    def expire(self, ttl: float | None, min_norm: float | None, norm_writes: int) -> tf.Tensor:
        """Removes expired rows, and returns how many."""
        with self.ready():
            return ops.tfra_expire(
                self.resource_handle,
                # No row is older than 2**32 seconds, since times are uint32.
                ttl=tf.constant(-1 if ttl is None else int(min(ttl, 2**32)), tf.int64),
                min_norm=tf.constant(min_norm or 0.0, tf.float64),
                norm_writes=tf.constant(norm_writes, tf.int64),
            )

    def shrink(self) -> Any:
        """Frees the memory of removed keys: of their rows, in the index, and in the row file."""
        with self.ready():
            return ops.tfra_shrink(self.resource_handle)

    def set_clock(self, now: Any) -> Any:
        """Sets the time that writes record, instead of the current time."""
        if not tf.is_tensor(now):
            now = tf.constant(arrays.integer(now, "now", 0, limits.MAX_UINT32), tf.int64)
        if not now.dtype.is_integer:
            raise TypeError(f"`now` must be an integer, in seconds. Received: {now.dtype.name}")
        with self.ready():
            return ops.tfra_set_clock(self.resource_handle, tf.cast(now, tf.int64))

    def export_part(self, cursor: Any, max_rows: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns about `max_rows` keys, their rows, and the cursor of the next part.

        A cursor is three int64 numbers. The first cursor is `FIRST_PART`. The cursor after the last
        part ends with 1.
        """
        with self.ready():
            part = ops.tfra_export_batch(
                self.resource_handle,
                tf.cast(cursor, tf.int64),
                tf.constant(max_rows, tf.int64),
                Tk=self.key_dtype,
                Tv=self.value_dtype,
            )
        return part.keys, part.values, part.next_cursor


load_as("Table", HashTable, LoadedTable)


def require_eager(method: str, instead: str | None) -> None:
    """Raises RuntimeError unless ops run immediately."""
    if not tf.executing_eagerly():
        hint = f" Use `{instead}` there, which returns tensors." if instead else ""
        raise RuntimeError(f"`{method}` returns numbers, which needs eager execution.{hint}")


def _host_of(device: str) -> str:
    """Returns the CPU of the machine of a device: tables are in the memory of the host."""
    if not isinstance(device, str):
        raise TypeError(f"`device`: expected the name of a device, received {device!r}")
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type == "CPU":
        return device
    return spec.replace(device_type="CPU", device_index=0).to_string()
