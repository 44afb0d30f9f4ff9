"""Several tables as one: keys go where the partitioner says, results come back in order."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._saving.content import Content, restore_tables
from tfra.dynamic_embedding._tables.hash_table import HashTable


def default_partition_fn(keys: Any, shard_num: int) -> tf.Tensor:
    """Says which of `shard_num` tables each key belongs to: the remainder of integers.

    Args:
        keys: A tensor of keys.
        shard_num: The number of tables.

    Returns:
        An int32 tensor of the shape of `keys`. Strings are hashed.
    """
    keys = tf.convert_to_tensor(keys)
    if keys.dtype == tf.string:
        return tf.cast(tf.strings.to_hash_bucket_fast(keys, shard_num), tf.int32)
    return tf.cast(keys % shard_num, tf.int32)


class Partitions:
    """The tables of a Variable."""

    def __init__(
        self,
        tables: Sequence[HashTable],
        partitioner: Callable[[tf.Tensor, int], tf.Tensor],
    ) -> None:
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
        """Calls a method of each table with its keys, their part of `rows`, and the options.

        The method may be one of a part of the table, such as "training.apply_gradients".
        """
        call = operator.attrgetter(method)
        if len(self.tables) == 1:
            if name is not None:
                options["name"] = name
            return call(self.tables[0])(keys, *rows, **options)
        flat, parts = self._flat(keys)
        rank = keys.shape.rank
        key_parts = tf.dynamic_partition(flat, parts, len(self.tables))
        row_parts = [
            tf.dynamic_partition(_flatten(row, keys, rank), parts, len(self.tables)) for row in rows
        ]
        written = [
            call(table)(key_parts[i], *[row[i] for row in row_parts], **options)
            for i, table in enumerate(self.tables)
        ]
        return None if tf.executing_eagerly() else tf.group(*written, name=name)

    def read(self, method: str, keys: tf.Tensor, name: str | None = None, **options: Any) -> Any:
        """Calls a method of each table with its keys; results come back in the order of `keys`."""
        call = operator.attrgetter(method)
        if len(self.tables) == 1:
            if name is not None:
                options["name"] = name
            return call(self.tables[0])(keys, **options)
        flat, parts = self._flat(keys)
        numbers = tf.dynamic_partition(tf.range(tf.size(flat)), parts, len(self.tables))
        key_parts = tf.dynamic_partition(flat, parts, len(self.tables))
        found = [call(table)(key_parts[i], **options) for i, table in enumerate(self.tables)]
        if not isinstance(found[0], tuple):
            return _stitch(numbers, found, keys, name)
        first, *others = (list(results) for results in zip(*found, strict=True))
        stitched = [_stitch(numbers, results, keys, None) for results in others]
        return _stitch(numbers, first, keys, name), *stitched

    def restore(self, content: Content) -> Any:
        """Replaces what is in the tables by the content of any number of tables."""
        if len(self.tables) == 1:
            return restore_tables(self.tables, content)
        _, parts = self._flat(content["keys"])
        _, waiting_parts = self._flat(content["waiting_keys"])
        return restore_tables(self.tables, content, parts, waiting_parts)

    def _flat(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        flat = tf.reshape(keys, [-1])
        parts = tf.convert_to_tensor(self._partitioner(flat, len(self.tables)))
        return flat, tf.reshape(tf.cast(parts, tf.int32), [-1])


def _flatten(row: tf.Tensor, keys: tf.Tensor, rank: int | None) -> tf.Tensor:
    """Makes one dimension of those of the keys."""
    if rank is None:
        tail = tf.shape(row)[tf.rank(keys) :]
        return tf.reshape(row, tf.concat([[-1], tail], axis=0))
    return tf.reshape(
        row, tf.concat([tf.reshape(tf.size(keys), [1]), tf.shape(row)[rank:]], axis=0)
    )


def _stitch(
    numbers: list[tf.Tensor], parts: list[tf.Tensor], keys: tf.Tensor, name: str | None
) -> tf.Tensor:
    """Puts what the tables gave into the order and shape of the keys."""
    row_shape = parts[0].shape.as_list()[1:]
    flat = tf.dynamic_stitch(numbers, parts)
    shape = tf.concat([tf.shape(keys), tf.constant(row_shape, tf.int32, [len(row_shape)])], axis=0)
    static = keys.shape.concatenate(row_shape)
    return tf.ensure_shape(tf.reshape(flat, shape), static, name=name)
