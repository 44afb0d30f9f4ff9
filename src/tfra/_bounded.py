"""Tables with a bound: scores of keys, and who is evicted."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfra import _native
from tfra._shared import arrays, limits

STRATEGIES = ("lru", "lfu", "epochlru", "epochlfu", "customized")


class ScoredRows(NamedTuple):
    """Rows with their scores, in no particular order."""

    keys: NDArray[Any]
    values: NDArray[Any]
    scores: NDArray[np.uint64]


class BoundedTable:
    """The part of `Table` that knows of its bound.

    Scores are uint64; where the table is full, the key with the lowest goes. Each write renews the
    scores of its keys, a lookup does not. Where a method takes `scores`, they are those of
    `"customized"`, or, for `"lfu"` and `"epochlfu"`, how often each key counts.
    """

    # Of the Table.
    _native: _native.NativeTable
    _dim: int
    _key_dtype: np.dtype[Any]
    _value_dtype: np.dtype[Any]
    _default: Any
    _max_capacity: int
    _evict_strategy: str

    @property
    def max_capacity(self) -> int | None:
        """The number of keys that the table never exceeds, or None."""
        return self._max_capacity or None

    @property
    def evict_strategy(self) -> str | None:
        """What the scores are, or None if the table has no bound."""
        return self._evict_strategy if self._max_capacity else None

    @property
    def epoch(self) -> int:
        """The epoch in the scores of the writes from now on; 0 where there are none.

        Setting a smaller one than before makes new scores lower than older ones.
        """
        return self._native.epoch()

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Sets `epoch`.

        Raises:
            TypeError: If it is not an integer.
            ValueError: If it is out of range, or the strategy has no epochs.
        """
        number = arrays.integer(epoch, "epoch", 0, limits.MAX_UINT32)
        if not self._max_capacity or not self._evict_strategy.startswith("epoch"):
            raise ValueError(
                "`epoch` needs a table with the strategy 'epochlru' or 'epochlfu'. Received: "
                f"{self.evict_strategy!r}"
            )
        self._native.set_epoch(number)

    def insert_and_evict(
        self, keys: Any, values: Any, *, scores: Any = None, return_rejected: bool = False
    ) -> Any:
        """Inserts or overwrites rows, and returns those that had to go.

        Example:
        >>> import tfra
        >>> table = tfra.Table(dim=1, max_capacity=2)
        >>> table.upsert([1, 2], [[1.0], [2.0]])
        >>> table.insert_and_evict([3], [[3.0]]).keys.tolist()
        [1]

        Args:
            keys: Keys of any shape.
            values: Rows, `keys.shape + (dim,)`.
            scores: Scores of the keys, or None; see `BoundedTable`.
            return_rejected: Whether to return also which keys did not get in, their scores being
                too low.

        Returns:
            `ScoredRows`; with `return_rejected` a pair of it and a bool array `keys.shape`.

        Raises:
            TypeError: If an array is of a wrong dtype.
            ValueError: If an array has a wrong shape, or the table has no bound.
        """
        self._require_bound("insert_and_evict")
        flat, shape = arrays.flat_keys(keys, self._key_dtype)
        rows = arrays.flat_values(values, self._value_dtype, (*shape, self._dim), "values")
        given = self._flat_scores(scores, shape)
        rejected = np.empty(shape, np.bool_)
        mask = arrays.raw_bytes(rejected) if return_rejected else None
        evicted = self._rows(*self._native.assign_and_evict(flat, rows, given, mask))
        return (evicted, rejected) if return_rejected else evicted

    def find_or_insert(
        self, keys: Any, default: Any = None, *, scores: Any = None, return_exists: bool = False
    ) -> Any:
        """Returns the rows of keys, and inserts those that are not there with their default.

        Counts as a write for scores. A key that is rejected gets its default all the same.

        Args:
            keys: Keys of any shape.
            default: As for `lookup`.
            scores: Scores of the keys, or None; see `BoundedTable`.
            return_exists: Whether to return also which keys were there.

        Returns:
            As `lookup`.

        Raises:
            TypeError: If an array is of a wrong dtype.
            ValueError: If an array has a wrong shape, or scores are given to a table without bound.
        """
        flat, shape = arrays.flat_keys(keys, self._key_dtype)
        full = (*shape, self._dim)
        kind, rows = self._default(default, full)
        given = self._flat_scores(scores, shape)
        exists = np.empty(shape, np.bool_)
        values: NDArray[Any] = np.empty(full, self._value_dtype)
        strings = self._value_dtype == arrays.STRING
        out = None if strings else arrays.raw_bytes(values)
        texts = self._native.find_or_insert(flat, kind, rows, out, arrays.raw_bytes(exists), given)
        if texts is not None:
            values[...] = arrays.object_array(texts, full)
        return (values, exists) if return_exists else values

    def assign(self, keys: Any, values: Any, *, scores: Any = None) -> None:
        """Overwrites the rows of keys that are there. Others are left alone: `stats().ignored`.

        Args:
            keys: Keys of any shape.
            values: Rows, `keys.shape + (dim,)`.
            scores: Scores of the keys, or None; see `BoundedTable`.

        Raises:
            TypeError: If an array is of a wrong dtype.
            ValueError: If an array has a wrong shape, or scores are given to a table without bound.
        """
        flat, shape = arrays.flat_keys(keys, self._key_dtype)
        rows = arrays.flat_values(values, self._value_dtype, (*shape, self._dim), "values")
        self._native.assign_existing(flat, rows, self._flat_scores(scores, shape))

    def assign_scores(self, keys: Any, scores: Any) -> None:
        """Gives keys that are there these scores, whatever the strategy. Others are left alone.

        Args:
            keys: Keys of any shape.
            scores: Integers, 0 or more, `keys.shape`.

        Raises:
            TypeError: If an array is of a wrong dtype.
            ValueError: If the shape of scores is wrong, or the table has no bound.
        """
        self._require_bound("assign_scores")
        flat, shape = arrays.flat_keys(keys, self._key_dtype)
        self._native.assign_scores(flat, _flat(scores, shape))

    def scores(self, keys: Any) -> NDArray[np.uint64]:
        """Returns the scores of keys in their shape, 0 for those that are not there.

        Raises:
            TypeError: If keys are of another dtype than the table's.
            ValueError: If the table has no bound.
        """
        self._require_bound("scores")
        flat, shape = arrays.flat_keys(keys, self._key_dtype)
        exists = np.empty(shape, np.bool_)
        return self._native.lookup_scores(flat, arrays.raw_bytes(exists)).reshape(shape)

    def export_with_scores(self) -> ScoredRows:
        """Returns the whole content with its scores, in no particular order.

        While other threads write, a key that leaves the table and returns may appear twice, so an
        export may have more rows than `max_capacity`. A key that is in the table all the time
        appears exactly once.

        Raises:
            ValueError: If the table has no bound.
        """
        self._require_bound("export_with_scores")
        return self._rows(*self._native.export_if_score(0, None))

    def size_if(self, *, score_at_least: int | None = None, score_below: int | None = None) -> int:
        """Counts keys by their score.

        Args:
            score_at_least: Only keys with this score or a higher one.
            score_below: Only keys with a lower score than this.

        Returns:
            The number of keys for which both hold.

        Raises:
            ValueError: If neither is given, one is out of range, or the table has no bound.
        """
        return self._native.count_if_score(*self._range(score_at_least, score_below))

    def erase_if(self, *, score_at_least: int | None = None, score_below: int | None = None) -> int:
        """Removes the keys that `size_if` counts, in one pass, and returns how many."""
        return self._native.remove_if_score(*self._range(score_at_least, score_below))

    def export_if(
        self, *, score_at_least: int | None = None, score_below: int | None = None
    ) -> ScoredRows:
        """Returns the keys that `size_if` counts, with their rows and scores."""
        return self._rows(*self._native.export_if_score(*self._range(score_at_least, score_below)))

    def _require_bound(self, method: str) -> None:
        if not self._max_capacity:
            raise ValueError(
                f"`{method}` needs a table with scores. Received: max_capacity=None. Make it with "
                "a bound: tfra.Table(dim, max_capacity=1_000_000)."
            )

    def _flat_scores(self, scores: Any, shape: arrays.Shape) -> NDArray[np.uint64] | None:
        """Scores for a write, as the engine takes them."""
        if scores is None:
            return None
        if self.evict_strategy not in ("customized", "lfu", "epochlfu"):
            raise ValueError(
                "`scores` need a table with the strategy 'customized', 'lfu' or 'epochlfu'. "
                f"Received: {self.evict_strategy!r}"
            )
        return _flat(scores, shape)

    def _range(self, at_least: Any, below: Any) -> tuple[int, int | None]:
        self._require_bound("selecting by score")
        if at_least is None and below is None:
            raise ValueError(
                "Expected `score_at_least`, `score_below` or both. Received: neither. To select "
                "all keys, say score_at_least=0."
            )
        most = limits.MAX_SCORE
        low = 0 if at_least is None else arrays.integer(at_least, "score_at_least", 0, most)
        return low, None if below is None else arrays.integer(below, "score_below", 0, most)

    def _rows(self, keys: Any, values: Any, slots: Any, scores: Any) -> ScoredRows:
        keys = arrays.exported_keys(keys, self._key_dtype)
        values = arrays.exported_values(values, self._value_dtype, self._dim)
        return ScoredRows(keys, values, scores)


def bound_spec(max_capacity: Any, capacity: int, evict_strategy: Any, remember: Any) -> Any:
    """What the engine is told of a bound.

    Raises:
        TypeError: If a number is not an integer.
        ValueError: If it is out of range, or there is no such strategy.
    """
    if evict_strategy not in STRATEGIES:
        raise ValueError(
            f"`evict_strategy` must be one of {', '.join(STRATEGIES)}. Received: {evict_strategy!r}"
        )
    number = 0
    if max_capacity is not None:
        number = arrays.integer(max_capacity, "max_capacity", 1, limits.MAX_KEYS)
        if number < capacity:
            raise ValueError(
                f"`max_capacity` must not be less than `capacity`, {capacity}. Received: {number}"
            )
    return {
        "max_capacity": number,
        "evict_strategy": evict_strategy,
        "remember_counts": bool(remember),
    }


def _flat(scores: Any, shape: arrays.Shape) -> NDArray[np.uint64]:
    """Scores of this shape: uint64, or other integers that are not negative."""
    arrays.refuse_mask(scores, "scores")
    array = np.asarray(scores)
    if array.size == 0 and not isinstance(scores, (np.ndarray, np.generic)):
        array = array.astype(np.uint64)  # An empty list has no dtype of its own.
    if array.dtype.kind not in "iu":
        raise TypeError(f"`scores` must be integers. Received: dtype {array.dtype}")
    arrays.require_shape(array.shape, shape, "scores")
    if array.dtype.kind == "i" and array.size > 0 and array.min() < 0:
        raise ValueError(f"`scores` must be 0 or more. Received: {array.min()}")
    return np.require(array, np.uint64, ["C", "A"]).reshape(-1)
