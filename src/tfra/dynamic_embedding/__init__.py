"""Dynamic embeddings for TensorFlow: variables and tables without a fixed vocabulary.

Example:
>>> import tensorflow as tf
>>> import tfra
>>> words = tfra.dynamic_embedding.get_variable("words", key_dtype=tf.string, dim=4)
>>> words.lookup(["ada", "grace"]).shape.as_list()
[2, 4]
"""

from tfra.dynamic_embedding import data_flow, keras, math, shadow_ops, tensorboard
from tfra.dynamic_embedding import python as python
from tfra.dynamic_embedding._lookup.embedding_ops import (
    embedding_lookup,
    embedding_lookup_sparse,
    embedding_lookup_unique,
    safe_embedding_lookup_sparse,
    trainable_wrapper_filter,
)
from tfra.dynamic_embedding._saving.content import restore_in_place
from tfra.dynamic_embedding._stores.store_creator import StoreCreator
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
from tfra.dynamic_embedding._tables.cuckoo_hash_table import CuckooHashTable
from tfra.dynamic_embedding._tables.hkv_hash_table import HkvHashTable
from tfra.dynamic_embedding._tables.partitions import default_partition_fn
from tfra.dynamic_embedding._tf1.optimizer import DynamicEmbeddingOptimizer
from tfra.dynamic_embedding._training.model_mode import (
    ModelMode,
    enable_inference_mode,
    enable_train_mode,
    get_model_mode,
)
from tfra.dynamic_embedding._training.shadow import TrainableWrapper
from tfra.dynamic_embedding._upkeep.restrict_policies import (
    FrequencyRestrictPolicy,
    RestrictPolicy,
    TimestampRestrictPolicy,
)
from tfra.dynamic_embedding._variable.get_variable import get_variable
from tfra.dynamic_embedding._variable.variable import GraphKeys, Variable

__all__ = [
    "CuckooHashTable",
    "CuckooHashTableConfig",
    "CuckooHashTableCreator",
    "DynamicEmbeddingOptimizer",
    "FrequencyRestrictPolicy",
    "GraphKeys",
    "HkvEvictStrategy",
    "HkvHashTable",
    "HkvHashTableConfig",
    "HkvHashTableCreator",
    "KVCreator",
    "ModelMode",
    "RestrictPolicy",
    "StoreCreator",
    "TimestampRestrictPolicy",
    "TrainableWrapper",
    "Variable",
    "data_flow",
    "default_partition_fn",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "embedding_lookup_unique",
    "enable_inference_mode",
    "enable_train_mode",
    "get_model_mode",
    "get_variable",
    "keras",
    "math",
    "restore_in_place",
    "safe_embedding_lookup_sparse",
    "shadow_ops",
    "tensorboard",
    "trainable_wrapper_filter",
]
