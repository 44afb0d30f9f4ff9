"""The settings of the table classes."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

HKV_INIT_CAPACITY = 1024 * 1024
HKV_MAX_CAPACITY = 1024 * 1024
HKV_MAX_HBM_FOR_VALUES = 1024 * 1024 * 1024


class HkvEvictStrategy(enum.IntEnum):
    """Which keys of a full table go first: those with the lowest score.

    LRU: least recently used; LFU: least frequently used; EPOCHLRU and EPOCHLFU: the same, but those
    of earlier epochs before; CUSTOMIZED: by scores of the caller's.
    """

    LRU = 0
    LFU = 1
    EPOCHLRU = 2
    EPOCHLFU = 3
    CUSTOMIZED = 4


@dataclass
class CuckooHashTableConfig:
    """Settings of a CuckooHashTable. There are none."""


@dataclass
class HkvHashTableConfig:
    """Settings of a HkvHashTable; see there."""

    init_capacity: int = HKV_INIT_CAPACITY
    max_capacity: int = HKV_MAX_CAPACITY
    max_hbm_for_values: int = HKV_MAX_HBM_FOR_VALUES
    evict_strategy: HkvEvictStrategy = HkvEvictStrategy.LRU
    step_per_epoch: int = 0
    gen_scores_fn: Callable[..., Any] | None = None
    reserved_key_start_bit: int = 0
