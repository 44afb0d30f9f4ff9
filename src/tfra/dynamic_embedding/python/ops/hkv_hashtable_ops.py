"""`HkvHashTable`, under the name of its module in TFRA."""

from tfra.dynamic_embedding._tables.classes import HkvHashTable
from tfra.dynamic_embedding._tables.config import HkvEvictStrategy

__all__ = ["HkvEvictStrategy", "HkvHashTable"]
