"""What keeps a table in shape: which rows leave, and what is known of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfra import _native
from tfra._shared import arrays
from tfra._shared.stats import RowHistograms
from tfra._shared.upkeep import checked_min_norm, checked_norm_writes, checked_ttl


class TableUpkeep:
    """The part of `Table` that keeps it in shape."""

    # Of the Table.
    _native: _native.NativeTable
    _key_dtype: np.dtype[Any]
    _ttl: float | None
    _min_norm: float | None
    _metadata: bool

    def touch(self, keys: Any) -> None:
        """Notes that keys were seen now: one more write, which changes no value.

        Keys that are not there and are let in (see `admission`) get a row with their initial value.
        Of equal keys one counts.

        Raises:
            TypeError: If keys are of another dtype than the table's.
            ValueError: If the table has no metadata.
        """
        self._native.touch(arrays.flat_keys(keys, self._key_dtype)[0])

    def usage(self, keys: Any) -> NDArray[np.uint32]:
        """Returns the time of the last write and the number of writes of keys.

        Args:
            keys: Keys of any shape.

        Returns:
            A uint32 array `keys.shape + (2,)`, zeros for keys that are not there. Times are seconds
            since 1970 (see `clock`).

        Raises:
            TypeError: If keys are of another dtype than the table's.
            ValueError: If the table has no metadata.
        """
        flat, shape = arrays.flat_keys(keys, self._key_dtype)
        return self._native.lookup_metadata(flat).reshape(*shape, 2)

    def restrict(self, num_reserved: int, *, by: str = "time", trigger: int | None = None) -> int:
        """Keeps the best rows and evicts the others, with their slots.

        Takes a few passes over the rows and little memory. Other threads may go on: rows that they
        write meanwhile may stay in addition.

        Example:
        >>> import tfra
        >>> table = tfra.Table(dim=1, metadata=True)
        >>> table.upsert([1, 2, 2, 3], [[0.0]] * 4)
        >>> table.restrict(1, by="count")
        2
        >>> table.export()[0].tolist()
        [2]

        Args:
            num_reserved: How many keys stay.
            by: `"time"` keeps those last written, and of equal ones the most frequent; `"count"`
                those written most often, and of equal ones the newest. Between rows that are still
                equal the keys decide, not their order.
            trigger: Nothing happens unless there are more keys than this; `num_reserved` by
                default.

        Returns:
            The number of keys that were evicted.

        Raises:
            TypeError: If a number is not an integer.
            ValueError: If a number is negative, `by` is something else, or the table has no
                metadata.
        """
        keep = arrays.integer(num_reserved, "num_reserved", 0)
        least = keep if trigger is None else arrays.integer(trigger, "trigger", 0)
        if not self._metadata:
            raise ValueError("`restrict` needs a table with metadata. Received: one without")
        if by not in ("time", "count"):
            raise ValueError(f"`by` must be 'time' or 'count'. Received: {by!r}")
        return 0 if self._native.size() <= least else self._native.restrict(keep, by == "time")

    def expire(
        self, *, ttl: float | None = None, min_norm: float | None = None, norm_writes: int = 1
    ) -> int:
        """Removes rows that have expired, in one pass.

        Args:
            ttl: Rows that were not written for more than so many seconds have expired; and keys
                that wait to enter (see `admission`) are forgotten. The table's `ttl` by default.
            min_norm: Rows whose L2 norm is below this, although they were written `norm_writes`
                times, have expired. The table's `min_norm` by default.
            norm_writes: How often a row must have been written for its norm to count.

        Returns:
            The number of keys that were removed.

        Raises:
            TypeError: If norms are asked for and values are not floating.
            ValueError: If a number is negative, or the table has no metadata.
        """
        ttl = self._ttl if ttl is None else checked_ttl(ttl)
        min_norm = self._min_norm if min_norm is None else checked_min_norm(min_norm)
        writes = checked_norm_writes(norm_writes)
        before = 0 if ttl is None else max(0, self._native.clock() - int(ttl))
        return self._native.expire(before, min_norm or 0.0, writes)

    def histograms(self) -> RowHistograms:
        """Counts rows by age, by number of writes and by norm, in one pass."""
        return RowHistograms.from_counts(*self._native.histograms())

    def admission_state(self) -> dict[str, Any]:
        """Returns what is known of keys that have not entered, to be saved.

        Returns:
            A dict of arrays: `keys` `[n]` and `seen` `[n, 2]`, the keys that wait with the time and
            the number of times they were seen, and `filter`, bytes. See `restore_admission`.
        """
        keys, seen, state = self._native.admission_state()
        keys = arrays.exported_keys(keys, self._key_dtype)
        return {"keys": keys, "seen": seen.reshape(-1, 2), "filter": state}

    def restore_admission(self, state: dict[str, Any]) -> None:
        """Takes what `admission_state` returned, in place of what is known.

        Raises:
            TypeError: If an array is of a wrong dtype.
            ValueError: If the state is that of another admission rule, or lacks an array.
        """
        names = ("keys", "seen", "filter")
        if not isinstance(state, Mapping) or not all(name in state for name in names):
            received = sorted(state) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(f"`state` must be a dict of {names}. Received: {received}")
        flat, shape = arrays.flat_keys(state["keys"], self._key_dtype)
        seen = arrays.typed_array(state["seen"], (np.dtype(np.uint32),), (*shape, 2), "seen")
        size = (np.size(state["filter"]),)
        known = arrays.typed_array(state["filter"], (np.dtype(np.uint8),), size, "filter")
        self._native.restore_admission(flat, arrays.raw_bytes(seen), arrays.raw_bytes(known))

    def count_if(self, *, written_before: int | None = None, count_below: int | None = None) -> int:
        """Counts keys by their metadata.

        Args:
            written_before: Only keys whose last write was before this time (see `clock`).
            count_below: Only keys that were written fewer times than this.

        Returns:
            The number of keys for which both hold.

        Raises:
            ValueError: If the table has no metadata.
        """
        return self._native.count_if(*_bounds(written_before, count_below))

    def select(self, *, written_before: int | None = None, count_below: int | None = None) -> Any:
        """Returns the keys that `count_if` counts, as an array `[n]`."""
        keys = self._native.select_if(*_bounds(written_before, count_below))
        return arrays.exported_keys(keys, self._key_dtype)

    def remove_if(
        self, *, written_before: int | None = None, count_below: int | None = None
    ) -> int:
        """Removes the keys that `count_if` counts, in one pass, and returns how many."""
        return self._native.remove_if(*_bounds(written_before, count_below))


def _bounds(written_before: int | None, count_below: int | None) -> tuple[int | None, int | None]:
    return (
        None if written_before is None else arrays.integer(written_before, "written_before"),
        None if count_below is None else arrays.integer(count_below, "count_below"),
    )
