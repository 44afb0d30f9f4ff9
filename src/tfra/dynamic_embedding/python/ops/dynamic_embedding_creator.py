"""What makes tables, under the name of their module in TFRA."""

from tfra.dynamic_embedding._config import (
    CuckooHashTableConfig,
    HkvEvictStrategy,
    HkvHashTableConfig,
)
from tfra.dynamic_embedding._creators import CuckooHashTableCreator, HkvHashTableCreator, KVCreator

__all__ = [
    "CuckooHashTableConfig",
    "CuckooHashTableCreator",
    "HkvEvictStrategy",
    "HkvHashTableConfig",
    "HkvHashTableCreator",
    "KVCreator",
]
