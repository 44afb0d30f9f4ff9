"""What a table with a bound does beyond others: scores and eviction."""

from __future__ import annotations

from typing import Any

from tfra._shared import limits
from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.tf import ops, tf
from tfra.dynamic_embedding._tables.config import HkvEvictStrategy, HkvHashTableConfig
from tfra.dynamic_embedding._tables.initializers import RandomRows
from tfra.spec import TableSpec

_EPOCHS = (HkvEvictStrategy.EPOCHLRU, HkvEvictStrategy.EPOCHLFU)


class ScoredTable:
    """The part of `HkvHashTable` that knows of scores.

    Scores are int64, from 0 on; where the table is full, the key with the lowest goes. Each write
    renews the scores of its keys, a lookup does not. Where a method takes `scores`, they are those
    of `CUSTOMIZED`, or, for `LFU` and `EPOCHLFU`, how often each key counts; None stands for what
    `gen_scores_fn` says of the keys or, without one, for what the strategy makes of the write.
    """

    # Of the table.
    resource_handle: tf.Tensor
    _key_dtype: tf.DType
    _value_dtype: tf.DType
    _row_shape: list[int]
    _dim: int
    _initial: Any
    _ready: Any
    _default_row: Any
    _config: HkvHashTableConfig

    @property
    def max_capacity(self) -> int:
        """The number of keys that the table never exceeds."""
        return self._config.max_capacity

    @property
    def evict_strategy(self) -> HkvEvictStrategy:
        """What the scores are."""
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

    def _scores(self, keys: tf.Tensor, given: Any = None) -> list[tf.Tensor]:
        if given is None:
            if self._config.gen_scores_fn is None:
                return []
            given = self._config.gen_scores_fn(keys)
        elif self._config.evict_strategy in (HkvEvictStrategy.LRU, HkvEvictStrategy.EPOCHLRU):
            raise ValueError(
                f"`scores`: expected None, since {self._config.evict_strategy.name} makes its own, "
                f"received {given!r}"
            )
        return [_scores_tensor(given, keys)]

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
        """Inserts, and returns the rows that had to go.

        Args:
            keys: Keys to insert. Can be a tensor of any shape. Must match the table's key type.
            values: As for `insert`.
            scores: int64, of the shape of `keys`, or None; see the class.
            return_rejected: Whether to return also which keys did not get in, their scores being
                too low.
            name: A name for the operation (optional).

        Returns:
            `(keys, values, scores)` of those that were evicted, of shapes `[n]`, `[n, dim]` (`[n]`
            in a table of scalars) and `[n]`. With `return_rejected` then a bool tensor of the shape
            of `keys`.

        Raises:
            TypeError: when a tensor doesn't match the table data types.
            ValueError: when a shape is wrong.
        """
        keys, values = self._keys_and_rows(keys, values)
        given = self._scores(keys, scores)
        with self._ready():
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
        """Looks up, and inserts the keys that are not there with their default.

        Counts as a write for scores. A key that is rejected gets its default all the same.

        Args:
            keys: Keys of any shape. Must match the table's key type.
            dynamic_default_values: What missing keys get: one row, or a row for each key, as for
                `lookup`. If None (by default), the table's default value is used.
            return_exists: Whether to return also which keys were there.
            scores: int64, of the shape of `keys`, or None; see the class.
            name: A name for the operation (optional).

        Returns:
            As `lookup`.

        Raises:
            TypeError: when a tensor doesn't match the table data types.
            ValueError: when a shape is wrong.
        """
        keys = arguments.keys_tensor(keys, self._key_dtype)
        initial = dynamic_default_values is None and isinstance(self._initial, RandomRows)
        if dynamic_default_values is None:
            rows = self._default_row()
        else:
            rows = arguments.default_rows(
                keys, dynamic_default_values, self._value_dtype, self._row_shape
            )
        given = self._scores(keys, scores)
        with self._ready():
            found = ops.tfra_find_or_insert(
                self.resource_handle, keys, rows, initial, scores=given, name=name
            )
        values = tf.ensure_shape(found.values, keys.shape.concatenate(self._row_shape))
        return (values, tf.ensure_shape(found.exists, keys.shape)) if return_exists else values

    def assign(self, keys: Any, values: Any, scores: Any = None, name: str | None = None) -> Any:
        """Overwrites the values of keys that are there, and leaves others alone.

        Args:
            keys: Keys of any shape. Must match the table's key type.
            values: As for `insert`.
            scores: int64, of the shape of `keys`, or None; see the class.
            name: A name for the operation (optional).

        Returns:
            The created Operation.

        Raises:
            TypeError: when a tensor doesn't match the table data types.
            ValueError: when a shape is wrong.
        """
        keys, values = self._keys_and_rows(keys, values)
        given = self._scores(keys, scores)
        with self._ready():
            return ops.tfra_assign_existing(
                self.resource_handle, keys, values, scores=given, name=name
            )

    def assign_scores(self, keys: Any, scores: Any, name: str | None = None) -> Any:
        """Gives keys that are there these scores, whatever the strategy, and leaves others alone.

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
        scores = _scores_tensor(scores, keys)
        with self._ready():
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
            score_at_least: Only keys with this score or a higher one.
            score_below: Only keys with a lower score than this.
            name: A name for the operation (optional).

        Returns:
            The number of keys that were removed, a scalar.

        Raises:
            ValueError: If neither is given, or one is negative.
        """
        with self._ready():
            return ops.tfra_erase_if(
                self.resource_handle, *_score_range(score_at_least, score_below), name=name
            )

    # --- Reading.

    def contains(self, keys: Any, name: str | None = None) -> tf.Tensor:
        """Returns which keys are in the table: a bool tensor of their shape.

        Raises:
            TypeError: when `keys` do not match the table data types.
        """
        keys = arguments.keys_tensor(keys, self._key_dtype)
        with self._ready():
            return ops.tfra_contains(self.resource_handle, keys, name=name)

    def lookup_scores(self, keys: Any, name: str | None = None) -> tf.Tensor:
        """Returns the scores of keys, 0 for those that are not there: int64, of their shape.

        Raises:
            TypeError: when `keys` do not match the table data types.
        """
        keys = arguments.keys_tensor(keys, self._key_dtype)
        with self._ready():
            return ops.tfra_lookup_scores(self.resource_handle, keys, name=name).scores

    def size_if(
        self, score_at_least: Any = None, score_below: Any = None, name: str | None = None
    ) -> tf.Tensor:
        """Counts the keys that `erase_if` would remove."""
        with self._ready():
            return ops.tfra_size_if(
                self.resource_handle, *_score_range(score_at_least, score_below), name=name
            )

    def export_if(
        self, score_at_least: Any = None, score_below: Any = None, name: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the keys that `erase_if` would remove, with values and scores."""
        with self._ready():
            found = ops.tfra_export_if(
                self.resource_handle,
                *_score_range(score_at_least, score_below),
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
            split_size: Accepted: the result is the only copy of the table there is, in any case.
            name: A name for the operation (optional).

        Raises:
            ValueError: If `split_size` is less than 1.
        """
        if split_size is not None:
            _count(split_size, "split_size", at_least=1)
        with self._ready():
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
            split_size: A table that is not all in memory, or has string keys, is gone through in
                parts of about so many rows, whose values are then in memory beside the result.
            name: A name for the operation (optional).

        Raises:
            ValueError: If `split_size` is less than 1.
        """
        split_size = _count(split_size, "split_size", at_least=1)
        with self._ready():
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
        """Makes room for so many keys in all, or for `max_capacity` if that is less.

        Args:
            keys: An integer, 0 or more.
            name: A name for the operation (optional).

        Returns:
            The created Operation.

        Raises:
            ValueError: If the number is negative.
        """
        keys = _count(keys, "keys", at_most=limits.MAX_KEYS)
        with self._ready():
            return ops.tfra_reserve(self.resource_handle, keys, name=name)

    def set_epoch(self, epoch: Any, name: str | None = None) -> Any:
        """Sets the epoch in the scores of the writes from now on, and starts counting its steps.

        Args:
            epoch: An integer from 0 to 2**31 - 1. A smaller one than before makes new scores lower
                than older ones.
            name: A name for the operation (optional).

        Returns:
            The created Operation.

        Raises:
            ValueError: If the strategy has no epochs, or the number is out of range.
        """
        if self._config.evict_strategy not in _EPOCHS:
            raise ValueError(
                "`set_epoch` needs a table with the strategy EPOCHLRU or EPOCHLFU. Received: "
                f"{self._config.evict_strategy.name}"
            )
        epoch = _count(epoch, "epoch", at_most=limits.MAX_TF_EPOCH)
        with self._ready():
            return ops.tfra_set_epoch(self.resource_handle, epoch, name=name)

    def epoch(self, name: str | None = None) -> tf.Tensor:
        """Returns the present epoch, a scalar; 0 where the strategy has none."""
        with self._ready():
            return ops.tfra_epoch(self.resource_handle, name=name)


def _scores_tensor(scores: Any, keys: tf.Tensor) -> tf.Tensor:
    """Scores of keys, of which the op checks that they are not negative."""
    tensor = arguments.values_tensor(scores, tf.int64, "scores")
    if not tensor.shape.is_compatible_with(keys.shape):
        raise ValueError(
            f"`scores`: expected the shape of the keys, {keys.shape}, received {tensor.shape}"
        )
    return tensor


def _score_range(at_least: Any, below: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """What ops that select by score are told."""
    if at_least is None and below is None:
        raise ValueError(
            "Expected `score_at_least`, `score_below` or both. Received: neither. To select all "
            "keys, say score_at_least=0."
        )
    low = _count(0 if at_least is None else at_least, "score_at_least")
    return low, [] if below is None else [_count(below, "score_below")]


def _count(number: Any, what: str, at_least: int = 0, at_most: int = limits.MAX_INT64) -> tf.Tensor:
    """An int64 scalar. Of a tensor, the op checks the range."""
    if not tf.is_tensor(number):
        return tf.constant(arguments.integer(number, what, at_least, at_most), tf.int64)
    if not number.dtype.is_integer or number.shape.rank not in (None, 0):
        raise TypeError(
            f"`{what}`: expected an integer, received a tensor of {number.dtype.name} and shape "
            f"{number.shape}"
        )
    return tf.cast(number, tf.int64)
