"""Several tables used as one: a partitioner assigns each key to one of these partitions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._saving.content import Content, Replacement
from tfra.dynamic_embedding._tables.hash_table import HashTable


def default_partition_fn(keys: Any, shard_num: int) -> tf.Tensor:
    """Returns the index of the table of each key: `key % shard_num`. Strings are hashed.

    Args:
        keys: A tensor of keys.
        shard_num: The number of tables.

    Returns:
        An int32 tensor of the shape of `keys`.
    """
    keys = tf.convert_to_tensor(keys)
    if keys.dtype == tf.string:
        return tf.cast(tf.strings.to_hash_bucket_fast(keys, shard_num), tf.int32)
    return tf.cast(keys % shard_num, tf.int32)


class Partitions:
    """The tables of a Variable, one for each partition.

    A call splits the keys over the tables, and joins the results in the order of the keys.

    Args:
        tables: One table for each partition.
        partitioner: Returns the index of the table of each key. It is called with the keys and the
            number of tables.

    Raises:
        ValueError: If two tables have the same rows.
    """

    def __init__(
        self,
        tables: Sequence[HashTable],
        partitioner: Callable[[tf.Tensor, int], tf.Tensor],
    ) -> None:
        _require_own_rows(tables)
        self.tables = tuple(tables)
        self._partitioner = partitioner

    def write(
        self,
        method: str,
        keys: tf.Tensor,
        rows: tuple[Any, ...],
        name: str | None = None,
        **options: Any,
    ) -> Any:
        """Calls a method of each table with its keys, their rows, and the options.

        The name of the method may have a dot, such as "training.apply_gradients".
        """
        call = operator.attrgetter(method)
        if len(self.tables) == 1:
            if name is not None:
                options["name"] = name
            return call(self.tables[0])(keys, *rows, **options)
        flat, indices = self._flat(keys)
        rank = keys.shape.rank
        keys_of = tf.dynamic_partition(flat, indices, len(self.tables))
        rows_of = [
            tf.dynamic_partition(_flatten(row, keys, rank), indices, len(self.tables))
            for row in rows
        ]
        written = [
            call(table)(keys_of[i], *[row[i] for row in rows_of], **options)
            for i, table in enumerate(self.tables)
        ]
        return None if tf.executing_eagerly() else tf.group(*written, name=name)

    def read(self, method: str, keys: tf.Tensor, name: str | None = None, **options: Any) -> Any:
        """Calls a method of each table with its keys, and joins results in the order of `keys`."""
        call = operator.attrgetter(method)
        if len(self.tables) == 1:
            if name is not None:
                options["name"] = name
            return call(self.tables[0])(keys, **options)
        flat, indices = self._flat(keys)
        positions = tf.dynamic_partition(tf.range(tf.size(flat)), indices, len(self.tables))
        keys_of = tf.dynamic_partition(flat, indices, len(self.tables))
        found = [call(table)(keys_of[i], **options) for i, table in enumerate(self.tables)]
        if not isinstance(found[0], tuple):
            return _stitch(positions, found, keys, name)
        first, *others = (list(results) for results in zip(*found, strict=True))
        stitched = [_stitch(positions, results, keys, None) for results in others]
        return _stitch(positions, first, keys, name), *stitched

    def replacement(self, content: Content) -> Replacement:
        """Returns what replaces the content of the tables by that of any number of tables."""
        if len(self.tables) == 1:
            return Replacement(self.tables, content)
        _, indices = self._flat(content["keys"])
        _, waiting_indices = self._flat(content["waiting_keys"])
        return Replacement(self.tables, content, indices, waiting_indices)

    def _flat(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the keys as a vector, and the index of the table of each key."""
        flat = tf.reshape(keys, [-1])
        indices = tf.convert_to_tensor(self._partitioner(flat, len(self.tables)))
        return flat, tf.reshape(tf.cast(indices, tf.int32), [-1])


def _require_own_rows(tables: Sequence[HashTable]) -> None:
    first_of: dict[int, HashTable] = {}
    for table in tables:
        first = first_of.setdefault(id(table.holder_of_rows), table)
        if first is not table:
            raise ValueError(
                f"`kv_creator`: expected a store for each of {first.name!r} and {table.name!r}, or "
                f"a table. Received: the same {type(table.holder_of_rows).__name__} for both"
            )


def _flatten(row: tf.Tensor, keys: tf.Tensor, rank: int | None) -> tf.Tensor:
    """Joins the dimensions of the keys into one."""
    if rank is None:
        tail = tf.shape(row)[tf.rank(keys) :]
        return tf.reshape(row, tf.concat([[-1], tail], axis=0))
    return tf.reshape(
        row, tf.concat([tf.reshape(tf.size(keys), [1]), tf.shape(row)[rank:]], axis=0)
    )


def _stitch(
    positions: list[tf.Tensor], results: list[tf.Tensor], keys: tf.Tensor, name: str | None
) -> tf.Tensor:
    """Puts the results of the tables into the order and shape of the keys."""
    row_shape = results[0].shape.as_list()[1:]
    flat = tf.dynamic_stitch(positions, results)
    shape = tf.concat([tf.shape(keys), tf.constant(row_shape, tf.int32, [len(row_shape)])], axis=0)
    static = keys.shape.concatenate(row_shape)
    return tf.ensure_shape(tf.reshape(flat, shape), static, name=name)
