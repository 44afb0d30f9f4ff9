"""`HkvHashTable`, under the name of its module in TFRA."""

from tfra.dynamic_embedding._tables.config import HkvEvictStrategy
from tfra.dynamic_embedding._tables.hkv_hash_table import HkvHashTable

__all__ = ["HkvEvictStrategy", "HkvHashTable"]
