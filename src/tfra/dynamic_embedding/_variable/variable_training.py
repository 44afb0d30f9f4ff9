"""What layers and optimizers ask of a Variable."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.tf import in_plain_graph, in_saved_model, ops, tf
from tfra.dynamic_embedding._saving.content import Content
from tfra.dynamic_embedding._tables.partitions import Shards
from tfra.dynamic_embedding._tables.rules import Claimant, CustomRule, EngineRule
from tfra.dynamic_embedding._training.gradient_sums import GradientSums, no_sums, sum_types
from tfra.dynamic_embedding._training.slot_variables import SlotVariable, slot_variables_of
from tfra.dynamic_embedding._variable.shadows import stand_in_of


class _TrainableStore(dict[str, Any]):
    """The trainables of a Variable by name, for programs written for TFRA."""

    def __init__(self, variable: VariableTraining) -> None:
        super().__init__(variable.shadows)
        self._variable = variable

    def __missing__(self, name: str) -> Any:
        return self._variable.get_trainable_by_name(name)


class VariableTraining:
    """The part of `Variable` that training uses."""

    # Of the Variable.
    name: Any
    lookup: Any
    shard_num: Any
    _key_dtype: tf.DType
    _value_dtype: tf.DType
    _dim: int
    _computed: Any
    _shards: Shards
    _fill_missing: Any
    _restrict_policy: Any
    admission: Any
    # By name: those that stand for it and were made by the user.
    shadows: Any

    # The class of the optimizer that was last seen to train it.
    trained_by: str | None = None
    # Made when an optimizer first accumulates gradients, or restored.
    _sums: GradientSums | None = None

    def lookup_pooled(
        self,
        keys: tf.Tensor,
        row_splits: tf.Tensor,
        weights: tf.Tensor,
        combiner: str,
        training: bool = False,
        max_norm: float = 0.0,
    ) -> tf.Tensor:
        """Combines the rows of each of several runs of keys; see `Bags`. 0 is no norm."""
        if self._computed is None and self.shard_num == 1:
            table = self._shards.tables[0]
            return table.lookup_pooled(keys, row_splits, weights, combiner, max_norm)
        rows = self.lookup_to_train(keys) if training else self.lookup(keys)
        if max_norm:
            rows = tf.clip_by_norm(rows, max_norm, axes=[-1])
        dtype = arguments.compute_dtype(self._value_dtype)
        pooled = ops.tfra_pool_rows(rows, row_splits, weights, Ts=dtype, combiner=combiner)
        return tf.ensure_shape(pooled, [None, self._dim])

    def lookup_to_train(self, keys: tf.Tensor) -> tf.Tensor:
        """Looks up rows that an optimizer will update.

        Rows that a function of the user's makes are stored, since it may make others next time. All
        other initial values are the same when the update comes to insert them.
        """
        if self._computed is None or self.admission is not None:
            return self.lookup(keys)
        keys = arguments.keys_tensor(keys, self._key_dtype)
        values, exists = self._shards.read("lookup", keys, return_exists=True)
        values = self._fill_missing(keys, values, exists)
        stored = self._store_missing(keys, values, exists)
        with tf.control_dependencies([] if stored is None else [stored]):
            return tf.identity(values)

    def store_new(self, keys: tf.Tensor) -> Any:
        """Inserts keys that are let in, with rows that the user's function makes."""
        values, exists = self._shards.read("lookup", keys, return_exists=True)
        return self._store_missing(keys, self._fill_missing(keys, values, exists), exists)

    def _store_missing(self, keys: tf.Tensor, values: tf.Tensor, exists: tf.Tensor) -> Any:
        """Inserts keys that are not there and are let in; equal ones are seen once."""
        missing = tf.where(tf.logical_not(tf.reshape(exists, [-1])))[:, 0]
        unique, numbers = tf.unique(tf.gather(tf.reshape(keys, [-1]), missing))
        first = tf.math.unsorted_segment_min(missing, numbers, tf.size(unique))
        rows = tf.gather(tf.reshape(values, [-1, self._dim]), first)
        unknown = tf.zeros(tf.shape(unique), tf.bool)
        return self._shards.write("accum", unique, (rows, unknown), new_keys="admit")

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
            optimizer: An optimizer of Keras 3 or of `tf.compat.v1.train`.

        Returns:
            A list of `SlotVariable`; empty if the optimizer has not taken a step on this variable,
            also if its slots were restored from a file.

        Raises:
            TypeError: If it is not an optimizer.
        """
        return slot_variables_of(self, optimizer)  # type: ignore[arg-type]

    @property
    def trainable_store(self) -> dict[str, Any]:
        """What `get_trainable_by_name` returns, by name."""
        return _TrainableStore(self)

    def get_trainable_by_name(self, name: str) -> Any:
        """Returns what stands for this variable where gradients are taken and applied.

        Args:
            name: The name of a `ShadowVariable` that was made of this variable, or of a lookup:
                what was given to `embedding_lookup`, or anything else, since all lookups of a
                variable have one trainable.

        Returns:
            A `TrainableWrapper`.

        Raises:
            TypeError: If the name is not a string, or values can't be trained.
        """
        if not isinstance(name, str):
            raise TypeError(f"`name`: expected a string, received {name!r}")
        if name in self.shadows:
            return self.shadows[name]
        return stand_in_of(self)

    def lookup_slots(
        self, keys: tf.Tensor, optimizer: Claimant, rule: CustomRule | EngineRule
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows and all slots of some keys, initial ones where they are missing.

        Raises:
            tf.errors.FailedPreconditionError: If rows do not have the slots of this optimizer.
        """
        return self._shards.read("lookup_slots", keys, optimizer=optimizer, rule=rule)

    def claim(self, optimizer: Claimant, step: Any, keeps: str) -> list[Any]:
        """Says that an optimizer is about to take a step; see `HashTable.claim`."""
        claims = [table.claim(optimizer, step, keeps) for table in self._shards.tables]
        return [op for ops_of_table in claims for op in ops_of_table]

    @property
    def gradient_sums(self) -> GradientSums:
        """The gradients that wait for a step of an optimizer that accumulates them."""
        if self._sums is None:
            name = f"{self.name}-gradient_sums"
            self._sums = GradientSums(self._key_dtype, self._value_dtype, self._dim, name)
        return self._sums

    def gradients_wait(self) -> bool:
        """Whether there are such gradients; False in a graph, where it is not known."""
        return self._sums is not None and tf.executing_eagerly() and bool(self._sums.size())

    def _content_of_sums(self) -> Content:
        if not self._value_dtype.is_floating:
            return {}
        if self._sums is None or in_saved_model():  # A SavedModel is not trained.
            return no_sums(self._key_dtype, self._value_dtype, self._dim)
        return self._sums.content()

    def _types_of_sums(self) -> dict[str, tf.DType]:
        if not self._value_dtype.is_floating:
            return {}
        return sum_types(self._key_dtype, self._value_dtype)

    def _restore_sums(self, content: Content) -> list[Any]:
        if not self._value_dtype.is_floating or in_saved_model() or in_plain_graph():
            return []
        if "sum_keys" not in content:  # Files of before have none.
            content = no_sums(self._key_dtype, self._value_dtype, self._dim)
        if self._sums is None and content["sum_keys"].shape == [0]:
            return []
        return self.gradient_sums.restore(content)

    def apply_gradients(self, keys: tf.Tensor, gradients: tf.Tensor, **options: Any) -> Any:
        """Takes one step of an update rule of the engine; see `HashTable.apply_gradients`."""
        with self._update_of(keys) as new_keys:
            applied = self._shards.write(
                "apply_gradients", keys, (gradients,), new_keys=new_keys, **options
            )
        return self._tell_policy(keys, applied)

    @contextlib.contextmanager
    def _update_of(self, keys: tf.Tensor) -> Iterator[str]:
        """A context for the ops of an update; gives what they do with keys that are not there."""
        self._note_training()
        if self._computed is None or self.admission is None:
            yield "admit"
            return
        # The engine could let keys in, but only the user's function makes their rows.
        stored = self.store_new(keys)
        with tf.control_dependencies([] if stored is None else [stored]):
            yield "drop"

    def _note_training(self) -> None:
        for table in self._shards.tables:
            table.trained = True

    def _tell_policy(self, keys: tf.Tensor, update: Any) -> Any:
        """Has a policy that keeps a status of its own note the keys of an update."""
        policy = self._restrict_policy
        if policy is None or getattr(policy, "kept_by_engine", False):
            return update
        noted = policy.apply_update(keys)
        done = [op for op in (update, noted) if op is not None]
        return None if tf.executing_eagerly() else tf.group(*done)

    def update_rows(
        self,
        keys: tf.Tensor,
        update: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
        rule: CustomRule,
        add: bool,
    ) -> Any:
        """Has a function compute new rows and slots from old ones.

        Args:
            keys: A vector of distinct keys.
            update: Called with rows (n, dim), not narrower than float32, and their slots.
            rule: What the slots are.
            add: Whether to add the difference, so that nothing is lost if others write these rows
                meanwhile, instead of assigning the result.
        """
        with self._update_of(keys) as new_keys:
            values, slots = self._shards.read("lookup_rows", keys, rule=rule)
            values.set_shape([None, self._dim])
            rows = tf.cast(values, slots.dtype)
            new_rows, new_slots = update(rows, slots)
            if add:
                new_rows, new_slots = new_rows - rows, new_slots - slots
            new_rows = tf.cast(new_rows, self._value_dtype)
            written = self._shards.write(
                "write_rows", keys, (new_rows, new_slots), rule=rule, add=add, new_keys=new_keys
            )
        return self._tell_policy(keys, written)
