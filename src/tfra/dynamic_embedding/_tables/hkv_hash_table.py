"""`HkvHashTable`: a bounded table."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

from tfra._shared import limits
from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.tf import ops, tf
from tfra.dynamic_embedding._saving.content import content_of, content_types
from tfra.dynamic_embedding._tables import table_file
from tfra.dynamic_embedding._tables.config import (
    HKV_INIT_CAPACITY,
    HKV_MAX_CAPACITY,
    HKV_MAX_HBM_FOR_VALUES,
    HkvEvictStrategy,
    HkvHashTableConfig,
    checked_config,
    refuse_saveables,
)
from tfra.dynamic_embedding._tables.hash_table import HashTable
from tfra.dynamic_embedding._tables.scores import Scores, int64_scalar, score_range, scores_tensor
from tfra.spec import TableSpec


class HkvHashTable(HashTable):
    """A bounded hash table, with the interface of NVIDIA's HierarchicalKV.

    The table never holds more than `max_capacity` keys. Every key has a score, which each write
    renews. A new key of a full table evicts the key with the lowest score; if its own score is even
    lower, the new key is rejected. Tables of up to 2048 keys evict exactly the lowest score; larger
    ones evict the lowest of about 60 candidates. See docs/hkv.md.

    Scores are int64, 0 or more. A lookup does not renew them. If a method takes `scores`, they are
    the scores for `CUSTOMIZED`; for `LFU` and `EPOCHLFU` they say how many writes each key counts
    as. If `scores` is None, `gen_scores_fn` computes them or, without this function, the strategy
    does.

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
        init_capacity: the number of keys to reserve memory for. The table grows beyond it.
        max_capacity: the number of keys that the table never exceeds.
        max_hbm_for_values: bytes of memory for rows, which are values with their optimizer slots.
            Rows that do not fit are in the row file, and move to memory when they are needed. 0 and
            the default, 1 GiB, keep all rows in memory; but with a `tier_directory`, 1 GiB is a
            budget like any other number. The memory is that of the host; on a host with an
            accelerator, this budget is the place to plug in the memory of the device.
        config: a HkvHashTableConfig, which replaces the single settings.
        device: the device of the table.
        evict_strategy: a HkvEvictStrategy, which decides what the scores are.
        step_per_epoch: for EPOCHLRU and EPOCHLFU, the number of steps after which the epoch
            increases by one. Each optimizer step, `insert`, `insert_and_evict` and `find_or_insert`
            is a step. If 0, only `set_epoch` changes the epoch.
        gen_scores_fn: called with the keys of every write, a tensor; returns int64 scores of their
            shape, 0 or more. CUSTOMIZED needs it. For LFU and EPOCHLFU it returns how many writes
            each key counts as. In a graph it is called when the graph is built.
        reserved_key_start_bit: accepted but not needed; every key is legal here.
        tier_directory: the directory of the row file; by default `$TMPDIR`, or `/tmp`. The file has
            no name there, and is freed with the table or when the process ends.
        shard_saveable_object_fn: must be None. Checkpoints save tables without it.

    Raises:
        TypeError: If an argument is of a wrong type, or a table of strings is to have a row file.
        NotImplementedError: If `shard_saveable_object_fn` is not None.
        ValueError: If checkpoint is True and no name was specified, a number is out of range,
            `max_capacity` is less than `init_capacity`, or `gen_scores_fn` does not fit the
            strategy.
        tf.errors.ResourceExhaustedError: By any call, if the table has a row file and the disk is
            full.
        tf.errors.InternalError: If the row file can't be made, read or written for another reason.
            A call that fails has changed nothing, except in rare cases: see docs/hkv.md.
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
        refuse_saveables(shard_saveable_object_fn)
        # Copy the config, since the caller may change it later. The copy is checked again.
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
        self._scores = Scores(self._config)
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

    @property
    def max_capacity(self) -> int:
        """The number of keys that the table never exceeds."""
        return self._config.max_capacity

    @property
    def evict_strategy(self) -> HkvEvictStrategy:
        """The strategy, which decides what the scores are."""
        return self._config.evict_strategy

    @property
    def fast_bytes(self) -> int | None:
        """Bytes of memory for rows, or None if all of them are in memory."""
        return self._config.fast_bytes

    def _spec(self, **more: Any) -> TableSpec:
        return super()._spec(
            max_capacity=self._config.max_capacity,
            evict_strategy=self._config.evict_strategy.name.lower(),
            steps_per_epoch=self._config.step_per_epoch,
            fast_bytes=self._config.fast_bytes,
            tier_directory=self._config.tier_directory,
            **more,
        )

    def scores_of_write(self, keys: tf.Tensor) -> list[tf.Tensor]:
        """Returns the argument `scores` of a writing op: a list of one tensor, or an empty list."""
        return self._scores.of_write(keys)

    def scores_of_new_keys(self, keys: tf.Tensor) -> list[tf.Tensor]:
        """Returns the scores that `gen_scores_fn` gives to new keys: one tensor, or none."""
        given = self.scores_of_write(keys)
        if self.evict_strategy != HkvEvictStrategy.EPOCHLFU:
            return given
        # The epoch is the high half of a score, and the count the low one.
        epoch = tf.bitwise.left_shift(self.epoch(), tf.constant(32, tf.int64))
        return [epoch + tf.minimum(counts, limits.MAX_UINT32) for counts in given]

    def _keys_and_rows(self, keys: Any, values: Any) -> tuple[tf.Tensor, tf.Tensor]:
        keys = arguments.keys_tensor(keys, self._key_dtype)
        values = arguments.values_tensor(values, self._value_dtype)
        arguments.check_rows(keys, values, self._row_shape, "values")
        return keys, values

    # --- Writing.

    def insert_and_evict(
        self,
        keys: Any,
        values: Any,
        scores: Any = None,
        return_rejected: bool = False,
        name: str | None = None,
    ) -> Any:
        """Inserts keys, and returns the rows that were evicted.

        Args:
            keys: Keys to insert. Can be a tensor of any shape. Must match the table's key type.
            values: See `insert`.
            scores: int64, of the shape of `keys`, or None; see the class.
            return_rejected: Whether to return also which keys were rejected because of their low
                scores.
            name: A name for the operation (optional).

        Returns:
            `(keys, values, scores)` of the evicted rows, of shapes `[n]`, `[n, dim]` (`[n]` in a
            table of scalars) and `[n]`. With `return_rejected`, followed by a bool tensor of the
            shape of `keys`.

        Raises:
            TypeError: when a tensor doesn't match the table data types.
            ValueError: when a shape is wrong.
        """
        keys, values = self._keys_and_rows(keys, values)
        given = self._scores.of_write(keys, scores)
        with self.ready():
            done = ops.tfra_insert_and_evict(
                self.resource_handle, keys, values, scores=given, name=name
            )
        evicted = self._exported(done.evicted_keys, done.evicted_values, done.evicted_scores)
        if not return_rejected:
            return evicted
        return (*evicted, tf.ensure_shape(done.rejected, keys.shape))

    def find_or_insert(
        self,
        keys: Any,
        dynamic_default_values: Any = None,
        return_exists: bool = False,
        scores: Any = None,
        name: str | None = None,
    ) -> Any:
        """Looks up keys, and inserts missing keys with their default values.

        The call renews scores like a write. A rejected key is not inserted, but its default value
        is returned.

        Args:
            keys: Keys of any shape. Must match the table's key type.
            dynamic_default_values: The values of missing keys: one row, or one row for each key,
                see `lookup`. If None (by default), the table's default value is used.
            return_exists: Whether to return also which keys existed before.
            scores: int64, of the shape of `keys`, or None; see the class.
            name: A name for the operation (optional).

        Returns:
            See `lookup`.

        Raises:
            TypeError: when a tensor doesn't match the table data types.
            ValueError: when a shape is wrong.
        """
        keys = arguments.keys_tensor(keys, self._key_dtype)
        initial = dynamic_default_values is None and self.has_random_rows
        if dynamic_default_values is None:
            rows = self.default_row()
        else:
            rows = arguments.default_rows(
                keys, dynamic_default_values, self._value_dtype, self._row_shape
            )
        given = self._scores.of_write(keys, scores)
        with self.ready():
            found = ops.tfra_find_or_insert(
                self.resource_handle, keys, rows, initial, scores=given, name=name
            )
        values = tf.ensure_shape(found.values, keys.shape.concatenate(self._row_shape))
        return (values, tf.ensure_shape(found.exists, keys.shape)) if return_exists else values

    def assign(self, keys: Any, values: Any, scores: Any = None, name: str | None = None) -> Any:
        """Overwrites the values of existing keys. Missing keys are not inserted.

        Args:
            keys: Keys of any shape. Must match the table's key type.
            values: See `insert`.
            scores: int64, of the shape of `keys`, or None; see the class.
            name: A name for the operation (optional).

        Returns:
            The created Operation.

        Raises:
            TypeError: when a tensor doesn't match the table data types.
            ValueError: when a shape is wrong.
        """
        keys, values = self._keys_and_rows(keys, values)
        given = self._scores.of_write(keys, scores)
        with self.ready():
            return ops.tfra_assign_existing(
                self.resource_handle, keys, values, scores=given, name=name
            )

    def assign_scores(self, keys: Any, scores: Any, name: str | None = None) -> Any:
        """Sets the scores of existing keys, for any strategy. Missing keys are not inserted.

        Args:
            keys: Keys of any shape. Must match the table's key type.
            scores: int64, 0 or more, of the shape of `keys`.
            name: A name for the operation (optional).

        Returns:
            The created Operation.

        Raises:
            TypeError: when a tensor is of another type.
            ValueError: when the shape of `scores` is wrong.
        """
        keys = arguments.keys_tensor(keys, self._key_dtype)
        scores = scores_tensor(scores, keys)
        with self.ready():
            return ops.tfra_assign_scores(self.resource_handle, keys, scores, name=name)

    def erase_if(
        self, score_at_least: Any = None, score_below: Any = None, name: str | None = None
    ) -> tf.Tensor:
        """Removes keys by their score, in one pass.

        Example:
        >>> de = tfra.dynamic_embedding
        >>> counting = de.HkvEvictStrategy.LFU
        >>> table = de.HkvHashTable(tf.int64, tf.float32, 0.0, evict_strategy=counting)
        >>> table.insert([1, 1, 2], [1.0, 1.0, 2.0])
        >>> int(table.erase_if(score_below=2))
        1

        Args:
            score_at_least: Removes only keys with this score or a higher one.
            score_below: Removes only keys with a lower score than this.
            name: A name for the operation (optional).

        Returns:
            The number of removed keys, a scalar.

        Raises:
            ValueError: If neither is given, or one is negative.
        """
        with self.ready():
            return ops.tfra_erase_if(
                self.resource_handle, *score_range(score_at_least, score_below), name=name
            )

    # --- Reading.

    def contains(self, keys: Any, name: str | None = None) -> tf.Tensor:
        """Returns which keys are in the table, a bool tensor of the shape of `keys`.

        Raises:
            TypeError: when `keys` do not match the table data types.
        """
        keys = arguments.keys_tensor(keys, self._key_dtype)
        with self.ready():
            return ops.tfra_contains(self.resource_handle, keys, name=name)

    def lookup_scores(self, keys: Any, name: str | None = None) -> tf.Tensor:
        """Returns the scores of keys, an int64 tensor of their shape; 0 for missing keys.

        Raises:
            TypeError: when `keys` do not match the table data types.
        """
        keys = arguments.keys_tensor(keys, self._key_dtype)
        with self.ready():
            return ops.tfra_lookup_scores(self.resource_handle, keys, name=name).scores

    def size_if(
        self, score_at_least: Any = None, score_below: Any = None, name: str | None = None
    ) -> tf.Tensor:
        """Counts the keys that `erase_if` would remove."""
        with self.ready():
            return ops.tfra_size_if(
                self.resource_handle, *score_range(score_at_least, score_below), name=name
            )

    def export_if(
        self, score_at_least: Any = None, score_below: Any = None, name: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the keys that `erase_if` would remove, with values and scores."""
        with self.ready():
            found = ops.tfra_export_if(
                self.resource_handle,
                *score_range(score_at_least, score_below),
                Tk=self._key_dtype,
                Tv=self._value_dtype,
                name=name,
            )
        return self._exported(found.keys, found.values, found.scores)

    def export_with_scores(
        self, split_size: Any = None, name: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns all keys, their values and their scores, in no particular order.

        While other threads write, a key that leaves the table and returns may appear twice, so an
        export may have more rows than `max_capacity`. A key that is in the table all the time
        appears exactly once.

        Args:
            split_size: Accepted but not needed: an export makes no copy besides the result.
            name: A name for the operation (optional).

        Raises:
            ValueError: If `split_size` is less than 1.
        """
        if split_size is not None:
            int64_scalar(split_size, "split_size", at_least=1)
        with self.ready():
            found = ops.tfra_export_scores(
                [self.resource_handle], Tk=self._key_dtype, Tv=self._value_dtype, name=name
            )
        return self._exported(found.keys, found.values, found.scores)

    def export_keys_and_scores(
        self, split_size: Any, name: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all keys and their scores.

        While other threads write, a key that leaves the table and returns may appear twice, so an
        export may have more rows than `max_capacity`. A key that is in the table all the time
        appears exactly once.

        Args:
            split_size: A table with a row file or with string keys is read in parts of about this
                many rows. Only the values of one part are in memory besides the result.
            name: A name for the operation (optional).

        Raises:
            ValueError: If `split_size` is less than 1.
        """
        split_size = int64_scalar(split_size, "split_size", at_least=1)
        with self.ready():
            found = ops.tfra_export_keys_and_scores(
                [self.resource_handle], split_size, Tk=self._key_dtype, name=name
            )
        return tf.ensure_shape(found.keys, [None]), tf.ensure_shape(found.scores, [None])

    def _exported(
        self, keys: tf.Tensor, values: tf.Tensor, scores: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        values = tf.ensure_shape(values, [None, self._dim])
        if not self._row_shape:
            values = tf.reshape(values, [-1])
        return tf.ensure_shape(keys, [None]), values, tf.ensure_shape(scores, [None])

    # --- The whole table.

    def reserve(self, keys: Any, name: str | None = None) -> Any:
        """Reserves memory for a total number of keys, at most `max_capacity`.

        Args:
            keys: The number of keys, 0 or more.
            name: A name for the operation (optional).

        Returns:
            The created Operation.

        Raises:
            ValueError: If the number is negative.
        """
        keys = int64_scalar(keys, "keys", at_most=limits.MAX_KEYS)
        with self.ready():
            return ops.tfra_reserve(self.resource_handle, keys, name=name)

    def prepare(
        self,
        keys: Any,
        name: str | None = None,
        shared_name: str | None = None,
        is_async: bool = False,
    ) -> Any:
        """Does nothing: rows need no preparation before they are looked up. TFRA has this method.

        Args:
            keys: Keys of any shape.
            name: A name for the operation (optional).
            shared_name: Not used.
            is_async: Not used.

        Returns:
            The created Operation.

        Raises:
            TypeError: when `keys` do not match the table data types.
        """
        arguments.keys_tensor(keys, self._key_dtype)
        return None if tf.executing_eagerly() else tf.no_op(name=name)

    def set_epoch(self, epoch: Any, name: str | None = None) -> Any:
        """Sets the epoch for the scores of later writes, and starts counting its steps.

        Args:
            epoch: An integer from 0 to 2**31 - 1. If it is smaller than before, new scores are
                lower than older ones.
            name: A name for the operation (optional).

        Returns:
            The created Operation.

        Raises:
            ValueError: If the strategy has no epochs, or the number is out of range.
        """
        epoch = self._scores.checked_epoch(epoch)
        with self.ready():
            return ops.tfra_set_epoch(self.resource_handle, epoch, name=name)

    def epoch(self, name: str | None = None) -> tf.Tensor:
        """Returns the current epoch, a scalar; 0 if the strategy has no epochs."""
        with self.ready():
            return ops.tfra_epoch(self.resource_handle, name=name)

    # --- Files.

    def save(self, directory: Any, file_name: str | None = None) -> Any:
        """Writes the table to a file, which it replaces if it exists.

        Rows, optimizer slots, scores and the epoch go to `<directory>/<file_name>.npz`, which NumPy
        can read; docs/hkv.md describes the format. The file appears when it is complete.

        Args:
            directory: The directory of the file. It is made if it does not exist.
            file_name: The name of the file; by default the name of the table.

        Returns:
            The created Operation, or None in eager mode.
        """
        owner = None if self.owner is None else self.owner()
        if owner is not None and owner.gradients_wait():
            warnings.warn(
                f"Gradients of {owner.name!r} wait for the end of `gradient_accumulation_steps`. "
                "The file of a table does not contain them: save after a step that applies them, "
                "or save the model.",
                stacklevel=2,
            )
        content = content_of([self])
        path = self._file(directory, file_name)
        if tf.executing_eagerly():
            table_file.write(path, content)
            return None

        def write(*tensors: tf.Tensor) -> None:
            table_file.write(path, dict(zip(content, tensors, strict=True)))

        return tf.py_function(write, list(content.values()), [])

    def load(self, directory: Any, file_name: str | None = None) -> Any:
        """Replaces the content of the table by what `save` wrote.

        Args:
            directory: The directory of the file.
            file_name: The name of the file; by default the name of the table.

        Returns:
            The created Operation, or None in eager mode.

        Raises:
            FileNotFoundError: If the file does not exist.
            ValueError: If the file is damaged, or holds keys or values of another type, or rows of
                another length.
        """
        path = self._file(directory, file_name)
        if tf.executing_eagerly():
            content = table_file.read(path, self._key_dtype, self._value_dtype, self._dim)
            try:
                return self.restore_rows(content)
            except (ValueError, tf.errors.InvalidArgumentError) as error:
                raise ValueError(f"{path}: {getattr(error, 'message', error)}") from error
        types = content_types(self._key_dtype, self._value_dtype)

        def read() -> list[tf.Tensor]:
            content = table_file.read(path, self._key_dtype, self._value_dtype, self._dim)
            return [content[name] for name in types]

        tensors = tf.py_function(read, [], list(types.values()))
        return self.restore_rows(dict(zip(types, tensors, strict=True)))

    def _file(self, directory: Any, file_name: str | None) -> Path:
        return table_file.path_of(directory, self.name if file_name is None else file_name)
