"""`Variable`: rows that are found by key, in one table or several."""

from __future__ import annotations

import copy
import functools
import itertools
import operator
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tfra._shared import limits
from tfra._shared.display import Facts, Shown
from tfra._shared.stats import COUNTERS, RowHistograms, TableStats, derived_figures
from tfra._shared.upkeep import checked_min_norm, checked_norm_writes, checked_ttl
from tfra.admission import Admission
from tfra.admission import get as get_admission
from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.tf import (
    SAVE_FOR_CHECKPOINT,
    VARIABLE_VALUE_KEY,
    AutoTrackable,
    Saveable,
    in_finalized_graph,
    in_plain_graph,
    load_as,
    tf,
)
from tfra.dynamic_embedding._saving.content import (
    Content,
    content_of,
    content_types,
    content_when_written,
    export_tables,
    keep_content,
    restore_tables,
)
from tfra.dynamic_embedding._saving.loaded import LoadedVariable
from tfra.dynamic_embedding._tables.creators import CuckooHashTableCreator, KVCreator
from tfra.dynamic_embedding._tables.hash_table import HashTable, require_eager
from tfra.dynamic_embedding._tables.initializers import (
    ComputedRows,
    ConstantRow,
    NewRows,
    constant_row,
    initial_rows,
)
from tfra.dynamic_embedding._tables.partitions import Partitions, default_partition_fn
from tfra.dynamic_embedding._tables.rules import BoundOptimizer, CustomRule, EngineRule
from tfra.dynamic_embedding._tables.table_display import facts_of, first_rows_of
from tfra.dynamic_embedding._training.gradient_sums import GradientSums
from tfra.dynamic_embedding._training.slot_variables import SlotVariable, slot_variables_of
from tfra.dynamic_embedding._training.trained_variable import TrainedVariable
from tfra.dynamic_embedding._upkeep.restrict_policies import make_policy, needs_metadata
from tfra.dynamic_embedding._variable.shadows import shadow_of
from tfra.dynamic_embedding._variable.variable_rows import VariableRows
from tfra.dynamic_embedding._variable.variable_sums import VariableSums
from tfra.dynamic_embedding._variable.variable_training import VariableTraining

DEFAULT_NAME = "DynamicEmbedding_Variable"
DEFAULT_DEVICE = "/CPU:0"  # A surrounding tf.device may add the machine.
_unnamed = itertools.count()


class GraphKeys:
    """Names of the graph collections to which a `Variable` adds itself."""

    DYNAMIC_EMBEDDING_VARIABLES = "dynamic_embedding_variables"
    TRAINABLE_DYNAMIC_EMBEDDING_VARIABLES = "trainable_dynamic_embedding_variables"


class _TrainableStore(dict[str, Any]):
    """The shadows of a Variable by name, for programs written for TFRA."""

    def __init__(self, variable: Variable) -> None:
        super().__init__(variable.shadows)
        self._variable = variable

    def __missing__(self, name: str) -> Any:
        return self._variable.get_trainable_by_name(name)


class Variable(Shown, TrainedVariable, AutoTrackable):  # type: ignore[misc]
    """A variable of rows that are found by key, with no fixed vocabulary.

    A key gets a row of its own when it is first written. Looking up a missing key returns its
    initial value and stores nothing. Random initial values are a function of the initializer's
    seed and the key: they do not depend on the batch, the order or the number of tables.

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
        partitioner: a function that returns the index of the table of each key. It is called with
            the keys and the number of tables.
        shared_name: Not used.
        name: A name for the variable.
        initializer: The value to use if a key is missing: a number, an array, an initializer of
            TensorFlow or Keras or its class, or a callable that takes a shape (and, if it can, a
            dtype). A callable is called for missing keys only, each time they are looked up.
            `None` means 0.
        trainable: whether optimizers update the rows.
        checkpoint: if True, the contents are saved to and restored from checkpoints.
        init_size: the number of keys to reserve memory for, divided among the tables.
        kv_creator: a `KVCreator`, which makes the tables; `CuckooHashTable`s by default.
        restrict_policy: the policy of `restrict`: a subclass of `RestrictPolicy`, such as
            `TimestampRestrictPolicy` or `FrequencyRestrictPolicy`.
        bp_v2: whether optimizers update rows by adding to them instead of assigning them.
        admission: the rule for which keys training may insert, of `tfra.admission`; None for all.
        ttl: seconds without an update after which a row expires; see `expire`.
        min_norm: rows with a smaller L2 norm expire; see `expire`.
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
        self.trained_by = None

        self._name_in_graph()
        self.seed_name = self._new_seed_name()
        initial = initial_rows(initializer, self._value_dtype, self._dim, self.seed_name)
        self._computed = None
        if isinstance(initial, ComputedRows):
            self._computed = initial
            zero = "" if self._value_dtype == tf.string else 0
            row = constant_row(zero, self._value_dtype, (self._dim,)).row
            initial = ConstantRow(row, external=True)
        # Whether keys have the time of the last write and the number of writes.
        self.keeps_metadata = (
            needs_metadata(restrict_policy) or ttl is not None or min_norm is not None
        )
        new_rows = NewRows(initial, self.keeps_metadata, self.admission)
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
        sums = VariableSums(self._key_dtype, self._value_dtype, self._dim, self._name)
        self._sums = self._no_dependency(sums)
        self._use(Partitions(tables, partitioner), None)
        self._use(self._partitions, make_policy(restrict_policy, self))
        # The shadows in each graph of TF1 style. The shadow for everything else has the key None.
        self.shadow_of_graph = self._no_dependency({})
        self.shadows = self._no_dependency(weakref.WeakValueDictionary())
        self.v1_optimizers = itertools.count()
        self._size_ops = self._no_dependency({})  # By the index of a table; None for all.
        self._add_to_graph()

    def _use(self, partitions: Partitions, policy: Any) -> None:
        """Makes the parts of the Variable that work on these tables."""
        rows = VariableRows(partitions, self._computed, self.admission is not None)
        self._partitions = self._no_dependency(partitions)
        self._rows = self._no_dependency(rows)
        self._restrict_policy = self._no_dependency(policy)
        self._training = self._no_dependency(VariableTraining(partitions, rows, policy))

    def _new_seed_name(self) -> str:
        """Returns the name of which a missing seed is made. Default names get a number."""
        if self._name != DEFAULT_NAME:
            return self._name
        return f"{DEFAULT_NAME} {next(_unnamed)}"

    def _name_in_graph(self) -> None:
        """In a graph, makes the name unique, and adds an op of that name.

        TensorFlow writes the names of the objects in collections to a meta graph, and looks for ops
        of these names when it reads the meta graph.
        """
        with tf.init_scope():
            if not in_plain_graph():
                return
            with tf.compat.v1.name_scope(None):  # The name already contains its scope.
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
                collect(tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS, self._saveable())
            self._size_ops.update({None: self.size()})
            self._size_ops.update({i: self.size(i) for i in range(self.shard_num)})

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
        return list(self._partitions.tables)

    @property
    def shard_num(self) -> int:
        """The number of tables."""
        return len(self._partitions.tables)

    @property
    def resource_handle(self) -> tf.Tensor:
        """The resource handle of the first table."""
        return self._partitions.tables[0].resource_handle

    @property
    def partition_fn(self) -> Callable[[tf.Tensor, int], tf.Tensor]:
        """The `partitioner`."""
        return self.partitioner

    @property
    def restrict_policy(self) -> Any:
        """The policy that `restrict` follows, or None."""
        return self._restrict_policy

    def _facts(self) -> Facts:
        return facts_of(self, self.tables, self.trained_by)

    def _first_rows(self, n: int | None) -> Any:
        return first_rows_of(self, self.tables, n)

    # --- Methods.

    def upsert(self, keys: Any, values: Any, name: str | None = None) -> Any:
        """Insert or Update `keys` with `values`.

        If a key exists already, its value is updated. The last one of equal keys wins.

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
            values = self._checked_rows(keys, values, [self._dim], "values")
        else:
            arguments.check_rows(keys, values, [self._dim], "values")
        return self._partitions.write("insert", keys, (values,), name)

    def accum(
        self, keys: Any, old_values: Any, new_values: Any, exists: Any, name: str | None = None
    ) -> Any:
        """Adds `new_values - old_values` to existing keys, and inserts missing keys.

        If a key exists and its `exists` is true, the difference is added to its value. If a key is
        missing and its `exists` is false, it is inserted with its new value. All other keys stay
        unchanged.

        Args:
            keys: Keys to update. Can be a tensor of any shape. Must match the table's key type.
            old_values: The values that a lookup returned, of shape `keys.shape + [dim]`.
            new_values: The new values, of the same shape.
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
        new_values = self._checked_rows(keys, new_values, [self._dim], "new_values")
        old_values = arguments.values_tensor(old_values, self._value_dtype, "old_values")
        old_values = self._checked_rows(keys, old_values, [self._dim], "old_values")
        exists = arguments.values_tensor(exists, tf.bool, "exists")
        exists = self._checked_rows(keys, exists, [], "exists")
        if self._value_dtype == tf.bool:
            deltas = new_values
        else:
            deltas = tf.where(exists[..., tf.newaxis], new_values - old_values, new_values)
        return self._partitions.write("accum", keys, (deltas, exists), name)

    def lookup(self, keys: Any, return_exists: bool = False, name: str | None = None) -> Any:
        """Looks up `keys` in a Variable, outputs the corresponding values.

        The initial value is used for keys not present; they are not inserted.

        Args:
            keys: Keys to look up. Can be a tensor of any shape. Must match the table's key_dtype.
            return_exists: if True, returns an additional Tensor which tells which keys exist.
            name: A name for the operation (optional).

        Returns:
            A tensor of the values, of shape `keys.shape + [dim]`. With `return_exists`, a pair of
            this tensor and a bool tensor of the shape of `keys`.

        Raises:
            TypeError: when `keys` do not match the table data types.
        """
        keys = arguments.keys_tensor(keys, self._key_dtype)
        if isinstance(return_exists, str):  # Earlier versions of TFRA had lookup(keys, name).
            return_exists, name = False, return_exists
        return self._rows.lookup(keys, return_exists, name)

    def embedding_lookup(
        self, ids: Any, name: str | None = None, max_norm: float | None = None
    ) -> tuple[tf.Tensor, Any]:
        """Looks up rows that gradients flow from: `embedding_lookup` with `return_trainable`.

        Example:
        >>> variable = tfra.dynamic_embedding.Variable(dim=2, initializer=1.0)
        >>> with tf.GradientTape() as tape:
        ...     rows, trainable = variable.embedding_lookup([7, 8])
        >>> tape.gradient(rows, trainable).indices.numpy().tolist()
        [7, 8]

        Args:
            ids: Keys. Can be a tensor of any shape. Must match the table's key_dtype.
            name: Not used.
            max_norm: If not None, longer rows are clipped to this L2 norm.

        Returns:
            A pair of a tensor of shape `ids.shape + [dim]`, and the shadow, a `TrainableWrapper`.

        Raises:
            TypeError: when `ids` do not match the table's key_dtype, or the values can't be
                trained.
        """
        return shadow_of(self).embedding_lookup(ids, name, max_norm)

    def remove(self, keys: Any, name: str | None = None) -> Any:
        """Removes `keys` and their values from the variable.

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
        return self._partitions.write("remove", keys, (), name)

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
        """Returns the number of keys in the index-th table of this Variable.

        If `index` is None, returns the total size of the Variable. If the graph is finalized, as in
        a `tf.compat.v1.train.MonitoredTrainingSession`, returns a tensor that it already has.

        Args:
            index: The index of a table (optional).
            name: A name for the operation (optional).

        Returns:
            A scalar tensor.

        Raises:
            TypeError: If the index is not an integer.
            ValueError: If there is no table of that index.
        """
        if index is not None:
            index = arguments.integer(index, "index", 0, self.shard_num - 1)
        if index in self._size_ops and in_finalized_graph():
            return self._size_ops[index]
        if index is None and self.shard_num > 1:
            return tf.add_n([table.size() for table in self.tables], name=name)
        return self.tables[index or 0].size(name=name)

    # --- The interface for shadows and optimizers: see `TrainedVariable`.

    def get_slot_variables(self, optimizer: Any) -> list[SlotVariable]:
        """Returns the slots that an optimizer keeps in the rows.

        Example:
        >>> variable = tfra.dynamic_embedding.Variable(dim=2, initializer=1.0)
        >>> optimizer = tf.keras.optimizers.Adagrad(0.5, initial_accumulator_value=1.0)
        >>> with tf.GradientTape() as tape:
        ...     rows, trainable = tfra.dynamic_embedding.embedding_lookup(
        ...         variable, [7], return_trainable=True
        ...     )
        >>> optimizer.apply([tape.gradient(rows, trainable)], [trainable])
        >>> [accumulator] = variable.get_slot_variables(optimizer)
        >>> accumulator.lookup([7]).numpy().tolist()
        [[2.0, 2.0]]

        Args:
            optimizer: An optimizer of Keras or of `tf.compat.v1.train`.

        Returns:
            A list of `SlotVariable`. It is empty until the optimizer takes a step on this variable,
            even if its slots were restored from a file.

        Raises:
            TypeError: If `optimizer` is not an optimizer.
        """
        return slot_variables_of(self, optimizer)

    @property
    def trainable_store(self) -> dict[str, Any]:
        """The shadows that `get_trainable_by_name` returns, by name."""
        return _TrainableStore(self)

    def get_trainable_by_name(self, name: str) -> Any:
        """Returns the shadow of this variable, for gradient tapes and optimizers.

        Args:
            name: The name of a `ShadowVariable` that was made of this variable. Any other name
                returns the one shadow that all lookups of this variable share.

        Returns:
            A `TrainableWrapper`.

        Raises:
            TypeError: If the name is not a string, or the values can't be trained.
        """
        if not isinstance(name, str):
            raise TypeError(f"`name`: expected a string, received {name!r}")
        if name in self.shadows:
            return self.shadows[name]
        return shadow_of(self)

    def lookup_slots(
        self, keys: tf.Tensor, optimizer: BoundOptimizer, rule: CustomRule | EngineRule
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the values and slots of keys. Missing keys get initial ones.

        Raises:
            tf.errors.FailedPreconditionError: If `optimizer` is not the bound optimizer.
        """
        return self._partitions.read("training.lookup_slots", keys, optimizer=optimizer, rule=rule)

    def bind(self, optimizer: BoundOptimizer, step: Any, keeps: str) -> list[Any]:
        """Binds an optimizer that is about to take a step; see `TableTraining.bind`."""
        bindings = [
            table.training.bind(optimizer, step, keeps) for table in self._partitions.tables
        ]
        return [op for ops_of_table in bindings for op in ops_of_table]

    @property
    def gradient_sums(self) -> GradientSums:
        """The sums of gradients, for an optimizer that accumulates them."""
        return self._sums.get()

    def gradients_wait(self) -> bool:
        """Whether there are accumulated gradients; False in a graph, where it is not known."""
        return self._sums.wait()

    def lookup_to_train(self, keys: tf.Tensor) -> tf.Tensor:
        """Looks up rows that an optimizer will update; see `VariableRows`."""
        return self._rows.lookup_to_train(arguments.keys_tensor(keys, self._key_dtype))

    def lookup_pooled(
        self,
        keys: tf.Tensor,
        row_splits: tf.Tensor,
        weights: tf.Tensor,
        combiner: str,
        training: bool = False,
        max_norm: float = 0.0,
    ) -> tf.Tensor:
        """Combines the rows of each bag; see `Bags`. A `max_norm` of 0 means no clipping."""
        return self._rows.lookup_pooled(keys, row_splits, weights, combiner, training, max_norm)

    def apply_gradients(self, keys: tf.Tensor, gradients: tf.Tensor, **options: Any) -> Any:
        """Takes one step of an update rule of the engine; see `TableTraining.apply_gradients`."""
        return self._training.apply_gradients(keys, gradients, **options)

    def store_new(self, keys: tf.Tensor) -> Any:
        """Inserts missing keys that admission lets in, with their initial rows."""
        return self._training.store_new(keys)

    def update_rows(
        self,
        keys: tf.Tensor,
        update: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
        rule: CustomRule,
        add: bool,
    ) -> Any:
        """Replaces rows and slots by what a function computes from them.

        Args:
            keys: A vector of distinct keys.
            update: Called with the rows (n, dim), in at least float32, and their slots. Returns the
                new rows and slots.
            rule: The rule that describes the slots.
            add: Whether to add the difference instead of assigning the result, so that concurrent
                writes to these rows are not lost.
        """
        return self._training.update_rows(keys, update, rule, add)

    # --- Checkpoints: all tables are saved together, and restored into any number of tables.

    def content(self) -> Content:
        """Returns all that is saved of the variable, as tensors by name."""
        return {**content_of(self.tables), **self._sums.content()}

    def restore(self, content: Content) -> Any:
        """Replaces the content of the variable by what `content` returned.

        All or nothing: if it fails, the variable is as it was; see `restore_in_place`.
        """
        rows = self._partitions.replacement(content)
        return restore_tables(rows, *self._sums.replacements(content))

    def _trackable_children(self, save_type: str = SAVE_FOR_CHECKPOINT, **kwargs: Any) -> Any:
        tables = {f"table_{i}": table for i, table in enumerate(self.tables)}
        if save_type == SAVE_FOR_CHECKPOINT:
            # The table itself saves nothing. But Keras looks for resources among these children
            # before it makes a SavedModel. One child, so that checkpoints have the same objects for
            # any number of tables.
            return {"table_0": tables["table_0"]}
        # Functions that look rows up by a shadow read its variable.
        shadows = {f"shadow_{i}": each for i, each in enumerate(self.shadows.values())}
        return {**tables, **shadows}

    def _export_to_saved_model_graph(self, object_map: Any, tensor_map: Any, **kwargs: Any) -> Any:
        for table in self.tables:
            table._export_to_saved_model_graph(object_map, tensor_map, **kwargs)
        exported = copy.copy(self)
        tables = [object_map[table] for table in self.tables]
        # The parts of the copy must work on the copies of the tables.
        exported._use(Partitions(tables, self.partitioner), self._restrict_policy)
        object_map[self] = exported
        return []

    def _serialize_to_tensors(self) -> dict[str, Any]:
        if not self.checkpoint:
            return {}
        types = {**content_types(self._key_dtype, self._value_dtype), **self._sums.types()}
        return content_when_written(self.tables, self.content, types)

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        keep_content(self, object_map, self.content() if self.checkpoint else {})

    def _saveable(self, name: str = "") -> Saveable:
        """Returns what `tf.compat.v1.train.Saver` saves, under a name or that of the Variable."""
        if in_plain_graph():
            return Saveable(name or self._name, content_of(self.tables), self.restore)
        return Saveable(name or self._name, self.content(), self.restore)

    def _gather_saveables_for_checkpoint(self) -> dict[str, Any]:
        """Called by a Saver that is given the Variable or one of its tables."""
        return {VARIABLE_VALUE_KEY: self._saveable}

    def _restore_from_tensors(self, restored_tensors: Content) -> Any:
        return self.restore(restored_tensors) if self.checkpoint else tf.no_op()

    # --- Restriction, expiry and statistics.

    def restrict(self, num_reserved: int, **kwargs: Any) -> Any:
        """Restricts the number of keys, by the `restrict_policy`.

        Removed keys lose their rows, optimizer slots and metadata. Other threads may continue to
        train.

        Example:
        >>> de = tfra.dynamic_embedding
        >>> variable = de.Variable(dim=1, restrict_policy=de.FrequencyRestrictPolicy)
        >>> variable.upsert([1, 2, 2, 3], [[0.0]] * 4)
        >>> int(variable.restrict(1))
        2
        >>> variable.export()[0].numpy().tolist()
        [2]

        Args:
            num_reserved: int. The number of keys to keep, divided among the tables.
            **kwargs: keyword arguments for `restrict_policy.apply_restriction`.
                trigger: int. Nothing is removed unless there are more keys than this. Defaults to
                    `num_reserved`.

        Returns:
            A tensor: the number of removed keys. None if the Variable has no `restrict_policy`.

        Raises:
            TypeError: If a number is not an integer.
            ValueError: If a number is negative.
        """
        if self._restrict_policy is None:
            warnings.warn(
                f"{self.name} has no restrict_policy, so restrict() removes nothing. Make the "
                "Variable with a restrict_policy.",
                stacklevel=2,
            )
            return None
        return self._restrict_policy.apply_restriction(num_reserved, **kwargs)

    def export_keys_and_scores(
        self, split_size: Any, name: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all keys and their scores, if the tables are `HkvHashTable`s.

        Args:
            split_size: The tables are read in parts of about this many rows. Only the values of one
                part are in memory besides the result.
            name: A name for the operation (optional).

        Raises:
            TypeError: If the tables have no scores.
            ValueError: If `split_size` is less than 1.
        """
        tables = self._partitions.tables
        if not all(hasattr(table, "export_keys_and_scores") for table in tables):
            raise TypeError(
                f"`export_keys_and_scores` needs tables with scores, those of a "
                f"`kv_creator=HkvHashTableCreator()`. {self.name} has: {type(tables[0]).__name__}"
            )
        with tf.name_scope(name or "export_keys_and_scores"):
            parts = [table.export_keys_and_scores(split_size) for table in tables]
            keys, scores = (tf.concat(part, axis=0) for part in zip(*parts, strict=True))
        return keys, scores

    def expire(
        self, ttl: float | None = None, min_norm: float | None = None, norm_writes: int = 1
    ) -> tf.Tensor:
        """Removes expired rows, in one pass.

        Example:
        >>> variable = tfra.dynamic_embedding.Variable(dim=1, ttl=60)
        >>> variable.set_clock(1000)
        >>> variable.upsert([1], [[0.0]])
        >>> variable.set_clock(1061)
        >>> int(variable.expire())
        1

        Args:
            ttl: Rows that were not updated for more than this many seconds expire. Waiting keys
                (see `admission`) that were not seen for so long are forgotten. Defaults to the
                `ttl` of the Variable.
            min_norm: Rows whose L2 norm is below this expire. Defaults to the `min_norm` of the
                Variable.
            norm_writes: Only rows with at least this many updates expire by `min_norm`.

        Returns:
            A tensor: the number of removed keys.

        Raises:
            TypeError: If an argument is not a number.
            ValueError: If a number is negative.
            tf.errors.InvalidArgumentError: If keys have no metadata, because the Variable was made
                with neither `ttl` nor `min_norm` nor a policy that needs them.
        """
        ttl = self.ttl if ttl is None else checked_ttl(ttl)
        min_norm = self.min_norm if min_norm is None else checked_min_norm(min_norm)
        writes = checked_norm_writes(norm_writes)
        return _sum([table.expire(ttl, min_norm, writes) for table in self._partitions.tables])

    def touch(self, keys: Any) -> Any:
        """Records that keys were seen now, as an update does, but changes no value.

        Missing keys that admission lets in get their initial row. Equal keys count once.

        Args:
            keys: Keys of any shape.

        Returns:
            The created Operation.

        Raises:
            TypeError: when `keys` do not match the table data types.
            tf.errors.InvalidArgumentError: If keys have no metadata; see `expire`.
        """
        keys = arguments.keys_tensor(keys, self._key_dtype)
        if not self._rows.are_computed:
            return self._partitions.write("touch", keys, ())
        stored = self._rows.store_new(keys)
        with tf.control_dependencies([] if stored is None else [stored]):
            return self._partitions.write("touch", keys, (), new_keys="drop")

    def usage(self, keys: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the time of the last update and the number of updates of keys.

        Args:
            keys: Keys of any shape.

        Returns:
            Two int64 tensors of the shape of `keys`: seconds since 1970, and the number of updates.
            Both are 0 for missing keys.

        Raises:
            TypeError: when `keys` do not match the table data types.
            tf.errors.InvalidArgumentError: If keys have no metadata; see `expire`.
        """
        keys = arguments.keys_tensor(keys, self._key_dtype)
        time, count, _ = self.lookup_metadata(keys)
        return time, count

    def keep_metadata(self) -> Any:
        """Keeps the time of the last write and the number of writes of each key, from now on.

        Keys that are there count as written once, now. A Variable with a `restrict_policy` of the
        engine, `ttl` or `min_norm` keeps these metadata from the start. Making a
        `TimestampRestrictPolicy` or `FrequencyRestrictPolicy` of any other Variable calls this
        method. The tables are copied once: meanwhile, other calls wait.

        Example:
        >>> de = tfra.dynamic_embedding
        >>> variable = de.Variable(dim=1)
        >>> variable.upsert([1, 2], [[0.0], [0.0]])
        >>> variable.keep_metadata()
        >>> variable.upsert([2], [[0.0]])
        >>> variable.lookup_metadata(tf.constant([1, 2], tf.int64))[1].numpy().tolist()
        [1, 2]

        Returns:
            The created Operation, or None in eager mode. In a graph, the initializer of tables
            runs it, and all operations of the tables that are made from now on wait for it.

        Raises:
            ValueError: If the rows are in a `tfra.Store`, which keeps no metadata.
        """
        with tf.init_scope():
            kept = [table.keep_metadata() for table in self.tables]
            self.keeps_metadata = True
            return None if tf.executing_eagerly() else tf.group(*kept)

    def lookup_metadata(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the time of the last write and the number of writes of keys, and which exist."""
        return self._partitions.read("lookup_metadata", keys)

    def stats(self) -> TableStats:
        """Returns the size, memory and counters of all tables together.

        Example:
        >>> variable = tfra.dynamic_embedding.Variable(dim=1)
        >>> variable.upsert([1, 2], [[0.0], [0.0]])
        >>> variable.stats().inserts
        2

        Raises:
            RuntimeError: In a graph; see `stats_tensors`.
        """
        require_eager("stats", "stats_tensors")
        return TableStats.from_counters(self._counters().numpy())

    def stats_tensors(self) -> dict[str, tf.Tensor]:
        """Returns the figures of `stats` by name as tensors, also in graphs.

        Returns:
            A dict of scalars: float64 for `load` and the rates, int64 for all others.
        """
        figures = dict(zip(COUNTERS, tf.unstack(self._counters()), strict=True))
        return {**figures, **derived_figures(figures, _ratio)}

    def histograms(self) -> RowHistograms:
        """Counts rows by age, by number of updates and by norm, in one pass.

        Raises:
            RuntimeError: In a graph.
        """
        parts = [table.histograms() for table in self._partitions.tables]
        return functools.reduce(operator.add, parts)

    def shrink(self) -> Any:
        """Frees the memory of removed keys, after `restrict`, `expire`, `remove` or `clear`.

        Without it, the memory is kept for new keys. Meanwhile lookups continue and writes wait.

        Example:
        >>> variable = tfra.dynamic_embedding.Variable(dim=64)
        >>> variable.upsert(list(range(10_000)), tf.zeros([10_000, 64]))
        >>> variable.clear()
        >>> variable.shrink()
        >>> variable.stats().row_bytes
        0

        Returns:
            The created Operation.
        """
        done = [table.shrink() for table in self._partitions.tables]
        return None if tf.executing_eagerly() else tf.group(*done)

    def set_clock(self, now: int) -> Any:
        """Sets the time that updates record, instead of the current time.

        It is for older data, and for tests.

        Args:
            now: Seconds, 0 to 2**32 - 1.

        Returns:
            The created Operation.

        Raises:
            TypeError: If `now` is not an integer.
            ValueError: If `now` is negative or too large. If it is a tensor, the op raises
                tf.errors.InvalidArgumentError instead.
        """
        done = [table.set_clock(now) for table in self._partitions.tables]
        return None if tf.executing_eagerly() else tf.group(*done)

    def _counters(self) -> tf.Tensor:
        return _sum([table.counters() for table in self._partitions.tables])

    @staticmethod
    def _checked_rows(
        keys: tf.Tensor, values: tf.Tensor, row_shape: list[int], what: str
    ) -> tf.Tensor:
        arguments.check_rows(keys, values, row_shape, what)
        return arguments.assert_rows(keys, values, row_shape, what)


load_as("Variable", Variable, LoadedVariable)


def device_list(devices: str | Sequence[str] | None) -> list[str]:
    """Returns the devices of the tables, from the argument `devices`."""
    if devices is None:
        return [DEFAULT_DEVICE]
    given = [devices] if isinstance(devices, str) else devices
    if not isinstance(given, Iterable) or not all(isinstance(device, str) for device in given):
        raise TypeError(f"`devices`: expected names of devices, received {devices!r}")
    if not list(given):
        raise ValueError(f"`devices` must have at least one entry. Received: {devices}")
    return list(given)


def _ratio(part: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
    return tf.math.divide_no_nan(tf.cast(part, tf.float64), tf.cast(whole, tf.float64))


def _sum(tensors: list[tf.Tensor]) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else tf.add_n(tensors)
