"""`CuckooHashTable`, under the name of its module in TFRA."""

from tfra.dynamic_embedding._tables.cuckoo_hash_table import CuckooHashTable

__all__ = ["CuckooHashTable"]
