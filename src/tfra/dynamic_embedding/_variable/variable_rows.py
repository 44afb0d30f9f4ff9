"""The part of a Variable that reads rows, including rows that a function of the user makes."""

from __future__ import annotations

from typing import Any

from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._tables.initializers import ComputedRows
from tfra.dynamic_embedding._tables.partitions import Partitions
from tfra.dynamic_embedding._tables.table_training import pool_rows


class VariableRows:
    """Lookups in the tables of a Variable.

    Usually the engine computes initial rows. If a function of the user makes them, this class calls
    it for missing keys.

    Args:
        partitions: The tables.
        computed: The function that makes initial rows, or None if the engine computes them.
        has_admission: Whether the tables have an admission rule.
    """

    def __init__(
        self, partitions: Partitions, computed: ComputedRows | None, has_admission: bool
    ) -> None:
        first = partitions.tables[0]
        self._partitions = partitions
        self._computed = computed
        self._has_admission = has_admission
        self._key_dtype = first.key_dtype
        self._dim = first.dim

    @property
    def are_computed(self) -> bool:
        """Whether a function of the user makes initial rows."""
        return self._computed is not None

    @property
    def enter_before_updates(self) -> bool:
        """Whether `store_new` must insert the admitted keys of an update before the update.

        That is so if admission decides about keys whose rows the user's function makes: the engine
        can't make these rows. Without admission, `lookup_to_train` has stored them already.
        """
        return self._computed is not None and self._has_admission

    def lookup(self, keys: tf.Tensor, return_exists: bool = False, name: str | None = None) -> Any:
        """Looks up rows; see `Variable.lookup`."""
        if self._computed is None:
            return self._partitions.read("lookup", keys, name, return_exists=return_exists)
        values, exists = self._partitions.read("lookup", keys, name, return_exists=True)
        values = self._fill_missing(self._computed, keys, values, exists)
        return (values, exists) if return_exists else values

    def lookup_to_train(self, keys: tf.Tensor) -> tf.Tensor:
        """Looks up rows that an optimizer will update.

        Rows that a function of the user makes are stored now, since the function may return other
        rows next time. With admission, nothing is stored here: see `enter_before_updates`. The
        engine computes the same initial row again when the update inserts it.
        """
        if self._computed is None or self._has_admission:
            return self.lookup(keys)
        values, stored = self._lookup_and_store(keys)
        with tf.control_dependencies([] if stored is None else [stored]):
            return tf.identity(values)

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
        if self._computed is None and len(self._partitions.tables) == 1:
            table = self._partitions.tables[0]
            return table.training.lookup_pooled(keys, row_splits, weights, combiner, max_norm)
        rows = self.lookup_to_train(keys) if training else self.lookup(keys)
        return pool_rows(rows, row_splits, weights, combiner, max_norm)

    def store_new(self, keys: tf.Tensor) -> Any:
        """Inserts missing keys that admission lets in, with their initial rows."""
        return self._lookup_and_store(keys)[1]

    def _lookup_and_store(self, keys: tf.Tensor) -> tuple[tf.Tensor, Any]:
        values, exists = self.lookup(keys, return_exists=True)
        return values, self._store_missing(keys, values, exists)

    def _fill_missing(
        self, computed: Any, keys: tf.Tensor, values: tf.Tensor, exists: tf.Tensor
    ) -> tf.Tensor:
        """Fills in the rows of missing keys with the user's function. Equal keys get equal rows."""
        missing = tf.where(tf.logical_not(tf.reshape(exists, [-1])))
        unique, numbers = tf.unique(tf.gather_nd(tf.reshape(keys, [-1]), missing))
        rows = computed.of(unique)
        rows = tf.gather(tf.ensure_shape(rows, [None, self._dim]), numbers)
        flat = tf.reshape(values, [-1, self._dim])
        filled = tf.reshape(tf.tensor_scatter_nd_update(flat, missing, rows), tf.shape(values))
        return tf.ensure_shape(filled, values.shape)

    def _store_missing(self, keys: tf.Tensor, values: tf.Tensor, exists: tf.Tensor) -> Any:
        """Inserts missing keys that admission lets in, each once."""
        missing = tf.where(tf.logical_not(tf.reshape(exists, [-1])))[:, 0]
        unique, numbers = tf.unique(tf.gather(tf.reshape(keys, [-1]), missing))
        first = tf.math.unsorted_segment_min(missing, numbers, tf.size(unique))
        rows = tf.gather(tf.reshape(values, [-1, self._dim]), first)
        unknown = tf.zeros(tf.shape(unique), tf.bool)
        return self._partitions.write("accum", unique, (rows, unknown), new_keys="admit")
