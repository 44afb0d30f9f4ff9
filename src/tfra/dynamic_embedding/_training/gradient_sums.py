"""Sums of the gradients that `gradient_accumulation_steps` accumulates between updates of rows."""

from __future__ import annotations

from typing import Any

from tfra import optimizers
from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._saving.content import Content, Replacement, content_of_rows
from tfra.dynamic_embedding._tables.creators import CuckooHashTableCreator
from tfra.dynamic_embedding._tables.rules import BoundOptimizer, params_text, rule_text

# The update rule of the table of sums: row -= gradient. So the table holds negative sums.
_SUBTRACT = optimizers.SGD(learning_rate=1.0)


class GradientSums:
    """The sum of the accumulated gradients of each key, in a table of the engine.

    Args:
        key_dtype: The type of the keys.
        value_dtype: The type of the values. Sums are at least float32.
        dim: The length of a row.
        name: A name for the table of sums.
    """

    def __init__(self, key_dtype: tf.DType, value_dtype: tf.DType, dim: int, name: str) -> None:
        with tf.init_scope():
            self._table = CuckooHashTableCreator().create(
                key_dtype=key_dtype,
                value_dtype=arguments.compute_dtype(value_dtype),
                default_value=[0.0] * dim,
                name=name,
                checkpoint=False,
            )
        self._table.trained = True

    @property
    def dtype(self) -> tf.DType:
        """The type of the sums."""
        return self._table.value_dtype

    def size(self) -> tf.Tensor:
        """Returns the number of keys that have a sum."""
        return self._table.size()

    def bind(self, optimizer: BoundOptimizer, step: tf.Tensor) -> list[Any]:
        """Binds an optimizer, whose first step clears older sums. See `TableTraining.bind`."""
        return self._table.training.bind(optimizer, step, "rows")

    def add(self, keys: tf.Tensor, gradients: tf.Tensor) -> None:
        """Adds gradients to the sums of their keys. Keys may repeat."""
        self._table.training.apply_gradients(
            keys,
            tf.cast(gradients, self.dtype),
            rule=rule_text(_SUBTRACT),
            params=params_text(_SUBTRACT),
            learning_rate=tf.constant(1.0, tf.float64),
            step=tf.constant(1, tf.int64),
        )

    def take(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all keys and their sums, and clears the sums."""
        keys, negative = self._table.export()
        with tf.control_dependencies([keys]):
            self._table.clear()
        # The order of an export depends on the history of the table, and the last bits of a norm
        # over all rows depend on their order. Sorting makes such norms reproducible.
        numbers = keys
        if keys.dtype == tf.string:
            numbers = tf.strings.to_hash_bucket_fast(keys, tf.int64.max)
        order = tf.argsort(numbers)
        return tf.gather(keys, order), -tf.gather(negative, order)

    def content(self) -> Content:
        """Returns what a checkpoint saves, as tensors by name."""
        keys, negative = self._table.export()
        return {"sum_keys": keys, "sums": negative}

    def replacement(self, content: Content) -> Replacement:
        """Returns what replaces all sums by those that `content` returned."""
        rows = content_of_rows(self._table, content["sum_keys"], content["sums"])
        return Replacement([self._table], rows)


def sum_types(key_dtype: tf.DType, value_dtype: tf.DType) -> dict[str, tf.DType]:
    """Returns the dtypes of what `GradientSums.content` returns."""
    return {"sum_keys": key_dtype, "sums": arguments.compute_dtype(value_dtype)}


def no_sums(key_dtype: tf.DType, value_dtype: tf.DType, dim: int) -> Content:
    """Returns what `GradientSums.content` returns if there are no sums."""
    keys = tf.constant([], key_dtype)
    sums = tf.zeros([0, dim], arguments.compute_dtype(value_dtype))
    # The graph of a SavedModel must work for any number of sums, so the shapes are left open.
    free = tf.compat.v1.placeholder_with_default
    return {"sum_keys": free(keys, [None]), "sums": free(sums, [None, dim])}
