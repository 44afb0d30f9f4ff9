"""The table classes."""

from __future__ import annotations

from typing import Any

from tfra.dynamic_embedding._config import (
    HKV_INIT_CAPACITY,
    HKV_MAX_CAPACITY,
    HKV_MAX_HBM_FOR_VALUES,
    CuckooHashTableConfig,
    HkvEvictStrategy,
    HkvHashTableConfig,
)
from tfra.dynamic_embedding._hash_table import HashTable


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
        init_size: room for so many keys from the beginning.
        config: a CuckooHashTableConfig.
        device: where the table is.

    Raises:
        ValueError: If checkpoint is True and no name was specified.
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
    ) -> None:
        super().__init__(key_dtype, value_dtype, default_value, name, checkpoint, init_size, device)
        self._config = config


class HkvHashTable(HashTable):
    """A hash table with the interface of NVIDIA's HierarchicalKV.

    Example:
    >>> table = tfra.dynamic_embedding.HkvHashTable(tf.string, tf.int64, default_value=-1)
    >>> table.insert(["a", "b"], tf.constant([1, 2], tf.int64))
    >>> table.lookup(["b", "c"]).numpy().tolist()
    [2, -1]

    Args:
        key_dtype: the type of the key tensors.
        value_dtype: the type of the value tensors.
        default_value: The value to use if a key is missing in the table.
        name: A name for the operation (optional).
        checkpoint: if True, the contents of the table are saved to and restored from checkpoints.
        init_capacity: room for so many keys from the beginning.
        max_capacity: the number of keys that the table is planned for.
        max_hbm_for_values: the bytes of fast memory that its values are planned for.
        config: a HkvHashTableConfig, which takes the place of the single settings.
        device: where the table is.
        evict_strategy: which keys are to go first.
        step_per_epoch: steps after which an epoch of the strategy begins.
        gen_scores_fn: gives scores to keys, for HkvEvictStrategy.CUSTOMIZED.
        reserved_key_start_bit: accepted; every key is legal here.

    Raises:
        ValueError: If checkpoint is True and no name was specified.
    """

    def __init__(
        self,
        key_dtype: Any,
        value_dtype: Any,
        default_value: Any,
        name: str = "HkvHashTable",
        checkpoint: bool = True,
        init_capacity: int = HKV_INIT_CAPACITY,
        max_capacity: int = HKV_MAX_CAPACITY,
        max_hbm_for_values: int = HKV_MAX_HBM_FOR_VALUES,
        config: HkvHashTableConfig | None = None,
        device: str = "",
        evict_strategy: HkvEvictStrategy = HkvEvictStrategy.LRU,
        step_per_epoch: int = 0,
        gen_scores_fn: Any = None,
        reserved_key_start_bit: int = 0,
    ) -> None:
        self._config = config or HkvHashTableConfig(
            init_capacity,
            max_capacity,
            max_hbm_for_values,
            evict_strategy,
            step_per_epoch,
            gen_scores_fn,
            reserved_key_start_bit,
        )
        super().__init__(
            key_dtype,
            value_dtype,
            default_value,
            name,
            checkpoint,
            self._config.init_capacity,
            device,
        )
