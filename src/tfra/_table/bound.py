"""The bound of a table: its maximum of keys, and the scores that decide which are evicted."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfra._shared import arrays, limits
from tfra.spec import TableSpec


class ScoredRows(NamedTuple):
    """Rows with their scores, in no particular order."""

    keys: NDArray[Any]
    values: NDArray[Any]
    scores: NDArray[np.uint64]


class Bound:
    """The bound of one table. A table without a bound has one with `max_capacity=None`.

    Args:
        spec: The description of the table.

    Attributes:
        max_capacity: The number of keys that the table never exceeds, or None.
        evict_strategy: What the scores are, or None if there is no bound.
    """

    def __init__(self, spec: TableSpec) -> None:
        self.max_capacity = spec.max_capacity
        self.evict_strategy = None if spec.max_capacity is None else spec.evict_strategy

    def require(self, method: str) -> None:
        """Raises ValueError if there is no bound: such a table has no scores."""
        if self.max_capacity is None:
            raise ValueError(
                f"`{method}` needs a table with scores. Received: max_capacity=None. Make it with "
                "a bound: tfra.Table(dim, max_capacity=1_000_000)."
            )

    def checked_epoch(self, epoch: Any) -> int:
        """Returns an epoch, or raises TypeError or ValueError."""
        number = arrays.integer(epoch, "epoch", 0, limits.MAX_UINT32)
        if self.evict_strategy not in ("epochlru", "epochlfu"):
            raise ValueError(
                "`epoch` needs a table with the strategy 'epochlru' or 'epochlfu'. Received: "
                f"{self.evict_strategy!r}"
            )
        return number

    def scores_of_write(self, scores: Any, shape: arrays.Shape) -> NDArray[np.uint64] | None:
        """Returns the scores of a write in the form that the engine takes."""
        if scores is None:
            return None
        if self.evict_strategy not in ("customized", "lfu", "epochlfu"):
            raise ValueError(
                "`scores` need a table with the strategy 'customized', 'lfu' or 'epochlfu'. "
                f"Received: {self.evict_strategy!r}"
            )
        return flat_scores(scores, shape)

    def score_range(self, at_least: Any, below: Any) -> tuple[int, int | None]:
        """Returns a range of scores in the form that the engine takes."""
        self.require("selecting by score")
        if at_least is None and below is None:
            raise ValueError(
                "Expected `score_at_least`, `score_below` or both. Received: neither. To select "
                "all keys, say score_at_least=0."
            )
        most = limits.MAX_SCORE
        low = 0 if at_least is None else arrays.integer(at_least, "score_at_least", 0, most)
        return low, None if below is None else arrays.integer(below, "score_below", 0, most)


def flat_scores(scores: Any, shape: arrays.Shape) -> NDArray[np.uint64]:
    """Returns scores as a flat uint64 array, and checks their shape, type and sign."""
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
