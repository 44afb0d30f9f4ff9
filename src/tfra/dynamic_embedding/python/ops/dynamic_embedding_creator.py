"""What makes tables, under the name of their module in TFRA."""

from tfra.dynamic_embedding._tables.config import (
    CuckooHashTableConfig,
    HkvEvictStrategy,
    HkvHashTableConfig,
)
from tfra.dynamic_embedding._tables.creators import (
    CuckooHashTableCreator,
    HkvHashTableCreator,
    KVCreator,
)

__all__ = [
    "CuckooHashTableConfig",
    "CuckooHashTableCreator",
    "HkvEvictStrategy",
    "HkvHashTableConfig",
    "HkvHashTableCreator",
    "KVCreator",
]
