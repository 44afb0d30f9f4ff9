"""The scores of the keys of a bounded table, which decide which keys are evicted."""

from __future__ import annotations

from typing import Any

from tfra._shared import limits
from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._tables.config import HkvEvictStrategy, HkvHashTableConfig


class Scores:
    """Computes and checks the scores of a table.

    Args:
        config: The settings of the table.
    """

    def __init__(self, config: HkvHashTableConfig) -> None:
        self._config = config

    def of_write(self, keys: tf.Tensor, given: Any = None) -> list[tf.Tensor]:
        """Returns the argument `scores` of a writing op: a list of one tensor, or an empty list.

        Args:
            keys: The keys of the write.
            given: The scores that the caller gave, or None to call `gen_scores_fn`, if there is
                one.

        Raises:
            TypeError: If scores are not int64.
            ValueError: If scores are given and the strategy makes its own, or their shape is wrong.
        """
        if given is None:
            if self._config.gen_scores_fn is None:
                return []
            given = self._config.gen_scores_fn(keys)
        elif self._config.evict_strategy in (HkvEvictStrategy.LRU, HkvEvictStrategy.EPOCHLRU):
            raise ValueError(
                f"`scores`: expected None, since {self._config.evict_strategy.name} makes its own, "
                f"received {given!r}"
            )
        return [scores_tensor(given, keys)]

    def checked_epoch(self, epoch: Any) -> tf.Tensor:
        """Returns an epoch as an int64 tensor.

        Raises:
            ValueError: If the strategy has no epochs, or the number is out of range.
        """
        strategy = self._config.evict_strategy
        if strategy not in (HkvEvictStrategy.EPOCHLRU, HkvEvictStrategy.EPOCHLFU):
            raise ValueError(
                "`set_epoch` needs a table with the strategy EPOCHLRU or EPOCHLFU. Received: "
                f"{strategy.name}"
            )
        return int64_scalar(epoch, "epoch", at_most=limits.MAX_TF_EPOCH)


def scores_tensor(scores: Any, keys: tf.Tensor) -> tf.Tensor:
    """Returns scores as an int64 tensor in the shape of the keys. The op checks their range."""
    tensor = arguments.values_tensor(scores, tf.int64, "scores")
    arguments.check_shape(tensor, keys.shape, "scores", "the keys")
    return tensor


def score_range(at_least: Any, below: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns the arguments of ops that select keys by score."""
    if at_least is None and below is None:
        raise ValueError(
            "Expected `score_at_least`, `score_below` or both. Received: neither. To select all "
            "keys, say score_at_least=0."
        )
    low = int64_scalar(0 if at_least is None else at_least, "score_at_least")
    return low, [] if below is None else [int64_scalar(below, "score_below")]


def int64_scalar(
    number: Any, what: str, at_least: int = 0, at_most: int = limits.MAX_INT64
) -> tf.Tensor:
    """Returns a number as an int64 scalar. If it is a tensor, the op checks its range."""
    if not tf.is_tensor(number):
        return tf.constant(arguments.integer(number, what, at_least, at_most), tf.int64)
    if not number.dtype.is_integer or number.shape.rank not in (None, 0):
        raise TypeError(
            f"`{what}`: expected an integer, received a tensor of {number.dtype.name} and shape "
            f"{number.shape}"
        )
    return tf.cast(number, tf.int64)
