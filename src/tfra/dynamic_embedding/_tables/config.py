"""The settings of the table classes."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfra._shared import limits
from tfra._shared.tiers import directory_name
from tfra.dynamic_embedding._platform import arguments

HKV_INIT_CAPACITY = 1024 * 1024
HKV_MAX_CAPACITY = 1024 * 1024
HKV_MAX_HBM_FOR_VALUES = 1024 * 1024 * 1024


class HkvEvictStrategy(enum.IntEnum):
    """What the score of a key is. A full table evicts the keys with the lowest scores first.

    LRU: the time of the last write, so that the least recently written key is evicted.
    LFU: the number of writes.
    EPOCHLRU and EPOCHLFU: the same in the low 32 bits; the high 32 bits are the epoch of the last
    write.
    CUSTOMIZED: scores that the caller computes.
    """

    LRU = 0
    LFU = 1
    EPOCHLRU = 2
    EPOCHLFU = 3
    CUSTOMIZED = 4


def checked_config(config: Any) -> HkvHashTableConfig | None:
    """Returns `config`, or raises TypeError."""
    if config is not None and not isinstance(config, HkvHashTableConfig):
        raise TypeError(f"`config`: expected a HkvHashTableConfig, received {config!r}")
    return config


@dataclass
class CuckooHashTableConfig:
    """Settings of a CuckooHashTable. There are none."""


@dataclass
class HkvHashTableConfig:
    """Settings of a `HkvHashTable`, which explains them.

    Raises:
        TypeError: If a number is not an integer, or `gen_scores_fn` can't be called.
        ValueError: If a number is out of range, or the settings do not go together.
    """

    init_capacity: int = HKV_INIT_CAPACITY
    max_capacity: int = HKV_MAX_CAPACITY
    max_hbm_for_values: int = HKV_MAX_HBM_FOR_VALUES
    evict_strategy: HkvEvictStrategy = HkvEvictStrategy.LRU
    step_per_epoch: int = 0
    gen_scores_fn: Callable[..., Any] | None = None
    reserved_key_start_bit: int = 0
    tier_directory: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        most = limits.MAX_KEYS
        self.init_capacity = arguments.integer(self.init_capacity, "init_capacity", 0, most)
        self.max_capacity = arguments.integer(self.max_capacity, "max_capacity", 1, most)
        for name in ("max_hbm_for_values", "step_per_epoch", "reserved_key_start_bit"):
            setattr(self, name, arguments.integer(getattr(self, name), name, at_least=0))
        # A caller who sets only a small max_capacity need not change the default too.
        if self.init_capacity == HKV_INIT_CAPACITY:
            self.init_capacity = min(self.init_capacity, self.max_capacity)
        if self.max_capacity < self.init_capacity:
            raise ValueError(
                f"`max_capacity`: expected at least `init_capacity`, {self.init_capacity}, "
                f"received {self.max_capacity}"
            )
        if not isinstance(self.evict_strategy, HkvEvictStrategy):
            raise TypeError(
                f"`evict_strategy`: expected a HkvEvictStrategy, received {self.evict_strategy!r}"
            )
        self._check_scores()
        self._check_tiers()

    @property
    def fast_bytes(self) -> int | None:
        """Bytes of memory for rows, or None if all of them are in memory."""
        unlimited = self.max_hbm_for_values in (0, HKV_MAX_HBM_FOR_VALUES)
        return None if unlimited and self.tier_directory is None else self.max_hbm_for_values

    def _check_tiers(self) -> None:
        # A plain string can be saved with a model; a Path can't.
        self.tier_directory = directory_name(self.tier_directory) or None
        if self.tier_directory is not None and self.max_hbm_for_values == 0:
            raise ValueError(
                "`max_hbm_for_values`: expected the bytes of memory for rows, since there is a "
                f"`tier_directory`, {self.tier_directory!r}, received 0"
            )

    def _check_scores(self) -> None:
        strategy, function = self.evict_strategy, self.gen_scores_fn
        if function is not None and not callable(function):
            raise TypeError(f"`gen_scores_fn`: expected a function, received {function!r}")
        if function is None and strategy == HkvEvictStrategy.CUSTOMIZED:
            raise ValueError(
                "`gen_scores_fn`: expected a function from keys to scores, which the strategy "
                "CUSTOMIZED needs, received None"
            )
        if function is not None and strategy in (HkvEvictStrategy.LRU, HkvEvictStrategy.EPOCHLRU):
            raise ValueError(
                f"`gen_scores_fn`: expected None, since {strategy.name} makes its own scores, "
                f"received {function!r}"
            )


def refuse_saveables(shard_saveable_object_fn: Any) -> None:
    """Raises NotImplementedError unless the argument is None."""
    if shard_saveable_object_fn is not None:
        raise NotImplementedError(
            "`shard_saveable_object_fn`: expected None, since checkpoints save tables without it, "
            f"received {shard_saveable_object_fn!r}"
        )
