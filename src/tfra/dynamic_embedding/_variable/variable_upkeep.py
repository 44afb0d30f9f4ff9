"""What keeps a Variable in shape, and tells how it is."""

from __future__ import annotations

import functools
import operator
import warnings
from typing import Any

from tfra._shared.stats import COUNTERS, RowHistograms, TableStats, derived_figures
from tfra._shared.upkeep import checked_min_norm, checked_norm_writes, checked_ttl
from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._tables.partitions import Shards
from tfra.dynamic_embedding._tables.table_upkeep import require_eager


class VariableUpkeep:
    """The part of `Variable` that decides which rows leave, and tells how it is."""

    # Of the Variable.
    name: Any
    ttl: float | None
    min_norm: float | None
    _key_dtype: tf.DType
    _computed: Any
    store_new: Any
    _restrict_policy: Any
    _shards: Shards

    def restrict(self, num_reserved: int, **kwargs: Any) -> Any:
        """Restricts the number of keys, by the rule of `restrict_policy`.

        Keys that leave take their rows, optimizer slots and the status of the policy along. Other
        threads may go on training.

        Example:
        >>> de = tfra.dynamic_embedding
        >>> variable = de.Variable(dim=1, restrict_policy=de.FrequencyRestrictPolicy)
        >>> variable.upsert([1, 2, 2, 3], [[0.0]] * 4)
        >>> int(variable.restrict(1))
        2
        >>> variable.export()[0].numpy().tolist()
        [2]

        Args:
            num_reserved: int. Number of remaining features after restriction; divided among the
                tables, if there are several.
            **kwargs: keyword arguments passing to `restrict_policy.apply_restriction`.
                trigger: int. Nothing happens unless there are more keys than this; by default
                    `num_reserved`.

        Returns:
            An operation to restrict size of the variable itself: a tensor of the number of keys
            that left. Return None if the restrict policy is not set.

        Raises:
            TypeError: If a number is not an integer.
            ValueError: If a number is negative.
        """
        if self._restrict_policy is None:
            warnings.warn(
                f"{self.name} has no restrict_policy, so restrict() leaves it as it is. Give the "
                "Variable one when it is made.",
                stacklevel=2,
            )
            return None
        return self._restrict_policy.apply_restriction(num_reserved, **kwargs)

    def export_keys_and_scores(
        self, split_size: Any, name: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all keys and their scores, of a Variable of `HkvHashTable`s.

        Args:
            split_size: The tables are gone through in parts of about so many rows: the values of
                one part are all that is in memory beside the result.
            name: A name for the operation (optional).

        Raises:
            TypeError: If the tables have no scores.
            ValueError: If `split_size` is less than 1.
        """
        tables = self._shards.tables
        if not all(hasattr(table, "export_keys_and_scores") for table in tables):
            raise TypeError(
                f"`export_keys_and_scores` needs tables with scores, those of a "
                f"`kv_creator=HkvHashTableCreator()`. {self.name} has: {type(tables[0]).__name__}"
            )
        with tf.name_scope(name or "export_keys_and_scores"):
            parts = [table.export_keys_and_scores(split_size) for table in tables]
            keys, scores = (tf.concat(part, axis=0) for part in zip(*parts, strict=True))
        return keys, scores

    def expire(
        self, ttl: float | None = None, min_norm: float | None = None, norm_writes: int = 1
    ) -> tf.Tensor:
        """Removes rows that have expired, in one pass.

        Example:
        >>> variable = tfra.dynamic_embedding.Variable(dim=1, ttl=60)
        >>> variable.set_clock(1000)
        >>> variable.upsert([1], [[0.0]])
        >>> variable.set_clock(1061)
        >>> int(variable.expire())
        1

        Args:
            ttl: Rows that were not updated for more than so many seconds have expired; and keys
                that wait to enter (see `admission`) are forgotten. By default what the Variable was
                made with.
            min_norm: Rows whose L2 norm is below this, although they were updated `norm_writes`
                times, have expired. By default what the Variable was made with.
            norm_writes: How often a row must have been updated for its norm to count.

        Returns:
            A tensor: the number of keys that left.

        Raises:
            TypeError: If an argument is not a number.
            ValueError: If a number is negative.
            tf.errors.InvalidArgumentError: If rows carry no times, because the Variable was made
                with neither `ttl` nor `min_norm` nor a policy that needs them.
        """
        ttl = self.ttl if ttl is None else checked_ttl(ttl)
        min_norm = self.min_norm if min_norm is None else checked_min_norm(min_norm)
        writes = checked_norm_writes(norm_writes)
        return _sum([table.expire(ttl, min_norm, writes) for table in self._shards.tables])

    def touch(self, keys: Any) -> Any:
        """Notes that keys were seen now, as an update would, and changes no value.

        Keys that are not there and are let in (see `admission`) get a row with their initial value.
        Of equal keys one counts.

        Args:
            keys: Keys of any shape.

        Returns:
            The created Operation.

        Raises:
            TypeError: when `keys` do not match the table data types.
            tf.errors.InvalidArgumentError: If rows carry no times; see `expire`.
        """
        keys = arguments.keys_tensor(keys, self._key_dtype)
        if self._computed is None:
            return self._shards.write("touch", keys, ())
        stored = self.store_new(keys)
        with tf.control_dependencies([] if stored is None else [stored]):
            return self._shards.write("touch", keys, (), new_keys="drop")

    def usage(self, keys: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns when keys were last updated, and how often.

        Args:
            keys: Keys of any shape.

        Returns:
            Two int64 tensors of the shape of `keys`: seconds since 1970, and the number of updates;
            zeros for keys that are not there.

        Raises:
            TypeError: when `keys` do not match the table data types.
            tf.errors.InvalidArgumentError: If rows carry no times; see `expire`.
        """
        keys = arguments.keys_tensor(keys, self._key_dtype)
        time, count, _ = self.lookup_metadata(keys)
        return time, count

    def lookup_metadata(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the time of the last write and the number of writes of keys, and which exist."""
        return self._shards.read("lookup_metadata", keys)

    def stats(self) -> TableStats:
        """Returns the size, memory and counters of all tables together.

        Example:
        >>> variable = tfra.dynamic_embedding.Variable(dim=1)
        >>> variable.upsert([1, 2], [[0.0], [0.0]])
        >>> variable.stats().inserts
        2

        Raises:
            RuntimeError: In a graph; see `stats_tensors`.
        """
        require_eager("stats", "stats_tensors")
        return TableStats.from_counters(self._counters().numpy())

    def stats_tensors(self) -> dict[str, tf.Tensor]:
        """Returns the figures of `stats` by name, as tensors: in graphs too.

        Returns:
            A dict of scalars: float64 ones of `load` and the rates, int64 ones of the others.
        """
        figures = dict(zip(COUNTERS, tf.unstack(self._counters()), strict=True))
        return {**figures, **derived_figures(figures, _ratio)}

    def histograms(self) -> RowHistograms:
        """Counts rows by age, by number of updates and by norm, in one pass.

        Raises:
            RuntimeError: In a graph.
        """
        parts = [table.histograms() for table in self._shards.tables]
        return functools.reduce(operator.add, parts)

    def shrink(self) -> Any:
        """Gives memory back that keys have left, after `restrict`, `expire`, `remove` or `clear`.

        Otherwise it stays for new keys. Lookups go on meanwhile; writes wait.

        Example:
        >>> variable = tfra.dynamic_embedding.Variable(dim=64)
        >>> variable.upsert(list(range(10_000)), tf.zeros([10_000, 64]))
        >>> variable.clear()
        >>> variable.shrink()
        >>> variable.stats().row_bytes
        0

        Returns:
            The created Operation.
        """
        done = [table.shrink() for table in self._shards.tables]
        return None if tf.executing_eagerly() else tf.group(*done)

    def set_clock(self, now: int) -> Any:
        """Sets the time that updates leave in rows, in place of the time of day.

        For data that is older than today, and for tests.

        Args:
            now: Seconds, 0 to 2**32 - 1.

        Returns:
            The created Operation.

        Raises:
            TypeError: If it is not an integer.
            ValueError: If it is negative or too large. Of a tensor, the op finds that out:
                tf.errors.InvalidArgumentError.
        """
        done = [table.set_clock(now) for table in self._shards.tables]
        return None if tf.executing_eagerly() else tf.group(*done)

    def _counters(self) -> tf.Tensor:
        return _sum([table.counters() for table in self._shards.tables])


def _ratio(part: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
    return tf.math.divide_no_nan(tf.cast(part, tf.float64), tf.cast(whole, tf.float64))


def _sum(tensors: list[tf.Tensor]) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else tf.add_n(tensors)
