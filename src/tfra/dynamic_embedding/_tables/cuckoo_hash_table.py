"""`CuckooHashTable`: a table that grows with its keys."""

from __future__ import annotations

from typing import Any

from tfra.dynamic_embedding._tables.config import CuckooHashTableConfig, refuse_saveables
from tfra.dynamic_embedding._tables.hash_table import HashTable


class CuckooHashTable(HashTable):
    """A hash table that grows with its keys.

    Example:
    >>> table = tfra.dynamic_embedding.CuckooHashTable(tf.int64, tf.float32, [0.0, 0.0])
    >>> table.insert([1, 2], [[1.0, 2.0], [3.0, 4.0]])
    >>> table.lookup([2, 5]).numpy().tolist()
    [[3.0, 4.0], [0.0, 0.0]]

    Args:
        key_dtype: the type of the key tensors.
        value_dtype: the type of the value tensors.
        default_value: The value to use if a key is missing in the table: a number, for a table of
            scalars, or a row.
        name: A name for the operation (optional).
        checkpoint: if True, the contents of the table are saved to and restored from checkpoints.
        init_size: the number of keys to reserve memory for.
        config: a CuckooHashTableConfig.
        device: the device of the table.
        shard_saveable_object_fn: must be None. Checkpoints save tables without it.

    Raises:
        ValueError: If checkpoint is True and no name was specified.
        NotImplementedError: If `shard_saveable_object_fn` is not None.
    """

    def __init__(
        self,
        key_dtype: Any,
        value_dtype: Any,
        default_value: Any,
        name: str = "CuckooHashTable",
        checkpoint: bool = True,
        init_size: int = 0,
        config: CuckooHashTableConfig | None = None,
        device: str = "",
        shard_saveable_object_fn: None = None,
    ) -> None:
        refuse_saveables(shard_saveable_object_fn)
        super().__init__(key_dtype, value_dtype, default_value, name, checkpoint, init_size, device)
        self._config = config
