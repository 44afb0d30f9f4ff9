"""Dynamic embeddings for TensorFlow: variables and tables without a fixed vocabulary.

Example:
>>> import tensorflow as tf
>>> import tfra
>>> words = tfra.dynamic_embedding.get_variable("words", key_dtype=tf.string, dim=4)
>>> words.lookup(["ada", "grace"]).shape.as_list()
[2, 4]
"""

from tfra.dynamic_embedding._config import (
    CuckooHashTableConfig,
    HkvEvictStrategy,
    HkvHashTableConfig,
)
from tfra.dynamic_embedding._creators import CuckooHashTableCreator, HkvHashTableCreator, KVCreator
from tfra.dynamic_embedding._get_variable import get_variable
from tfra.dynamic_embedding._shards import default_partition_fn
from tfra.dynamic_embedding._tables import CuckooHashTable, HkvHashTable
from tfra.dynamic_embedding._variable import GraphKeys, Variable

__all__ = [
    "CuckooHashTable",
    "CuckooHashTableConfig",
    "CuckooHashTableCreator",
    "GraphKeys",
    "HkvEvictStrategy",
    "HkvHashTable",
    "HkvHashTableConfig",
    "HkvHashTableCreator",
    "KVCreator",
    "Variable",
    "default_partition_fn",
    "get_variable",
]
