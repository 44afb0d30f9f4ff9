"""`CuckooHashTable`, under the name of its module in TFRA."""

from tfra.dynamic_embedding._tables.classes import CuckooHashTable

__all__ = ["CuckooHashTable"]
