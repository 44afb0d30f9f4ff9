"""The table classes."""

from __future__ import annotations

import dataclasses
from typing import Any

from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._tables.config import (
    HKV_INIT_CAPACITY,
    HKV_MAX_CAPACITY,
    HKV_MAX_HBM_FOR_VALUES,
    CuckooHashTableConfig,
    HkvEvictStrategy,
    HkvHashTableConfig,
    checked_config,
)
from tfra.dynamic_embedding._tables.hash_table import HashTable
from tfra.dynamic_embedding._tables.scored_table import ScoredTable
from tfra.dynamic_embedding._tables.table_files import TableFiles


def _refuse_saveables(shard_saveable_object_fn: Any) -> None:
    if shard_saveable_object_fn is not None:
        raise NotImplementedError(
            "`shard_saveable_object_fn`: expected None, since checkpoints save tables without it, "
            f"received {shard_saveable_object_fn!r}"
        )


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
        shard_saveable_object_fn: None. Checkpoints save tables without it.

    Raises:
        ValueError: If checkpoint is True and no name was specified.
        NotImplementedError: If there is a `shard_saveable_object_fn`.
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
        _refuse_saveables(shard_saveable_object_fn)
        super().__init__(key_dtype, value_dtype, default_value, name, checkpoint, init_size, device)
        self._config = config


class HkvHashTable(ScoredTable, TableFiles, HashTable):
    """A hash table with a bound, and the interface of NVIDIA's HierarchicalKV.

    It never holds more than `max_capacity` keys. Every key has a score, which each write renews. A
    key that comes to a full table takes the place of the one with the lowest score; if its own is
    lower still, it is rejected. What evicts whom is exact in tables of up to 2048 keys; in larger
    ones the lowest of some 60 candidates goes. See docs/hkv.md.

    Example:
    >>> de = tfra.dynamic_embedding
    >>> table = de.HkvHashTable(tf.string, tf.int64, -1, init_capacity=2, max_capacity=2)
    >>> for key, value in (("a", 1), ("b", 2), ("c", 3)):
    ...     table.insert([key], tf.constant([value], tf.int64))
    >>> table.lookup(["a", "b", "c"]).numpy().tolist()
    [-1, 2, 3]

    Args:
        key_dtype: the type of the key tensors.
        value_dtype: the type of the value tensors.
        default_value: The value to use if a key is missing in the table.
        name: A name for the operation (optional).
        checkpoint: if True, the contents of the table are saved to and restored from checkpoints.
        init_capacity: room for so many keys from the beginning; more is made when they come.
        max_capacity: the number of keys that the table never exceeds.
        max_hbm_for_values: bytes of memory for rows, which are values with their optimizer slots.
            Rows that do not fit are in a file, and come to memory when they are needed. The
            default, 1 GiB, and 0 keep all rows in memory, unless there is a `tier_directory`: then
            1 GiB is a number like others. The memory is that of the host; on a host with an
            accelerator this same budget is where the memory of the device will plug in.
        config: a HkvHashTableConfig, which takes the place of the single settings.
        device: where the table is.
        evict_strategy: a HkvEvictStrategy: what the scores are.
        step_per_epoch: for EPOCHLRU and EPOCHLFU, the number of steps after which the epoch is one
            higher: each optimizer step, `insert`, `insert_and_evict` and `find_or_insert` is one.
            0: only `set_epoch` changes it.
        gen_scores_fn: called with the keys of every write, a tensor; returns int64 scores of their
            shape, 0 or more. For CUSTOMIZED, which needs it; for LFU and EPOCHLFU it says how often
            each key counts. In a graph it is called when the graph is made.
        reserved_key_start_bit: accepted; every key is legal here.
        tier_directory: where the file of rows is; by default in `$TMPDIR`, or `/tmp`. It has no
            name there, and goes with the table, or with the process.
        shard_saveable_object_fn: None. Checkpoints save tables without it.

    Raises:
        TypeError: If an argument is of a wrong type, or string values are to be in a file.
        NotImplementedError: If there is a `shard_saveable_object_fn`.
        ValueError: If checkpoint is True and no name was specified, a number is out of range,
            `max_capacity` is less than `init_capacity`, or `gen_scores_fn` and the strategy do not
            go together.
        tf.errors.ResourceExhaustedError: By any call of a table with a file, if the disk is full.
        tf.errors.InternalError: If the file can't be made, read or written for another reason.
            docs/hkv.md says what a call that fails has changed: nothing, but for rare cases.
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
        tier_directory: Any = None,
        shard_saveable_object_fn: None = None,
    ) -> None:
        _refuse_saveables(shard_saveable_object_fn)
        # A copy, which is checked once more: the caller may change theirs.
        self._config = dataclasses.replace(
            checked_config(config)
            or HkvHashTableConfig(
                init_capacity,
                max_capacity,
                max_hbm_for_values,
                evict_strategy,
                step_per_epoch,
                gen_scores_fn,
                reserved_key_start_bit,
                tier_directory,
            )
        )
        if self._config.fast_bytes is not None and arguments.value_dtype(value_dtype) == tf.string:
            raise TypeError(
                "`max_hbm_for_values`: expected the default for string values, which are in memory "
                f"only, received {self._config.max_hbm_for_values}"
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
