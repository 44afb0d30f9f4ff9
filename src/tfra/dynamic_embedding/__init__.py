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
from tfra.dynamic_embedding._config import (
    CuckooHashTableConfig,
    HkvEvictStrategy,
    HkvHashTableConfig,
)
from tfra.dynamic_embedding._creators import CuckooHashTableCreator, HkvHashTableCreator, KVCreator
from tfra.dynamic_embedding._embedding_ops import (
    embedding_lookup,
    embedding_lookup_sparse,
    embedding_lookup_unique,
    safe_embedding_lookup_sparse,
    trainable_wrapper_filter,
)
from tfra.dynamic_embedding._get_variable import get_variable
from tfra.dynamic_embedding._model_mode import (
    ModelMode,
    enable_inference_mode,
    enable_train_mode,
    get_model_mode,
)
from tfra.dynamic_embedding._optimizer import DynamicEmbeddingOptimizer
from tfra.dynamic_embedding._restrict_policies import (
    FrequencyRestrictPolicy,
    RestrictPolicy,
    TimestampRestrictPolicy,
)
from tfra.dynamic_embedding._shards import default_partition_fn
from tfra.dynamic_embedding._tables import CuckooHashTable, HkvHashTable
from tfra.dynamic_embedding._trainable import TrainableWrapper
from tfra.dynamic_embedding._variable import GraphKeys, Variable

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
    "safe_embedding_lookup_sparse",
    "shadow_ops",
    "tensorboard",
    "trainable_wrapper_filter",
]
