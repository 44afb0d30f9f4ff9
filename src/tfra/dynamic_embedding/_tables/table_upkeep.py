"""What keeps a table in shape, and tells how it is."""

from __future__ import annotations

from typing import Any

from tfra._shared import arrays, limits
from tfra._shared.stats import COUNTERS, RowHistograms, TableStats
from tfra.dynamic_embedding._platform.tf import ops, tf


class TableUpkeep:
    """The part of `HashTable` that restricts it and tells how it is."""

    # Of the table.
    resource_handle: tf.Tensor
    key_dtype: Any
    value_dtype: Any
    _ready: Any

    def stats(self) -> TableStats:
        """Returns the table's size, memory and counters.

        Raises:
            RuntimeError: In a graph, where `counters` gives them as a tensor.
        """
        require_eager("stats", "stats_tensors")
        return TableStats.from_counters(self.counters().numpy())

    def counters(self) -> tf.Tensor:
        """Returns the numbers of `TableStats`, in the order of `tfra._shared.stats.COUNTERS`."""
        with self._ready():
            return tf.ensure_shape(ops.tfra_stats(self.resource_handle), [len(COUNTERS)])

    def histograms(self) -> RowHistograms:
        """Counts rows by age, by number of updates and by norm, in one pass.

        Raises:
            RuntimeError: In a graph.
        """
        require_eager("histograms", None)
        counts = ops.tfra_histograms(self.resource_handle)
        return RowHistograms.from_counts(*(tensor.numpy() for tensor in counts))

    def touch(self, keys: tf.Tensor, *, new_keys: str = "admit") -> Any:
        """Notes that keys were seen."""
        with self._ready():
            return ops.tfra_touch(self.resource_handle, keys, new_keys=new_keys)

    def lookup_metadata(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the time of the last write and the number of writes of keys, and which exist."""
        with self._ready():
            usage = ops.tfra_lookup_metadata(self.resource_handle, keys)
        return usage.time, usage.count, usage.exists

    def keep_best(self, keep: Any, ranking: str) -> tf.Tensor:
        """Evicts all rows but the best, and returns how many."""
        with self._ready():
            return ops.tfra_restrict(self.resource_handle, tf.cast(keep, tf.int64), ranking=ranking)

    def evict(self, keys: tf.Tensor) -> tf.Tensor:
        """Removes keys that a restriction chose, and returns how many were there."""
        with self._ready():
            return ops.tfra_evict(self.resource_handle, keys)

    def expire(self, ttl: float | None, min_norm: float | None, norm_writes: int) -> tf.Tensor:
        """Removes rows that have expired, and returns how many."""
        with self._ready():
            return ops.tfra_expire(
                self.resource_handle,
                # Nothing is older than the times that rows can have.
                ttl=tf.constant(-1 if ttl is None else int(min(ttl, 2**32)), tf.int64),
                min_norm=tf.constant(min_norm or 0.0, tf.float64),
                norm_writes=tf.constant(norm_writes, tf.int64),
            )

    def shrink(self) -> Any:
        """Gives memory back that keys have left: of rows, of the index, and of the file."""
        with self._ready():
            return ops.tfra_shrink(self.resource_handle)

    def set_clock(self, now: Any) -> Any:
        """Sets the time that writes leave in rows, in place of the time of day."""
        if not tf.is_tensor(now):
            now = tf.constant(arrays.integer(now, "now", 0, limits.MAX_UINT32), tf.int64)
        if not now.dtype.is_integer:
            raise TypeError(f"`now` must be an integer, in seconds. Received: {now.dtype.name}")
        with self._ready():
            return ops.tfra_set_clock(self.resource_handle, tf.cast(now, tf.int64))

    def export_part(self, cursor: Any, max_rows: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns about `max_rows` keys, their rows, and the cursor of the next part.

        A cursor is three int64 numbers. The first one is `FIRST_PART`; after the last part, the
        last of its numbers is 1.
        """
        with self._ready():
            part = ops.tfra_export_batch(
                self.resource_handle,
                tf.cast(cursor, tf.int64),
                tf.constant(max_rows, tf.int64),
                Tk=self.key_dtype,
                Tv=self.value_dtype,
            )
        return part.keys, part.values, part.next_cursor


def require_eager(method: str, instead: str | None) -> None:
    """Raises RuntimeError where ops do not run at once."""
    if not tf.executing_eagerly():
        hint = f" Use `{instead}` there, which returns tensors." if instead else ""
        raise RuntimeError(f"`{method}` returns numbers, which a graph does not have yet.{hint}")
