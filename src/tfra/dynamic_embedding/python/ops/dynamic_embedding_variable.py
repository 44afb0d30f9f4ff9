"""`Variable` and what goes with it, under the name of their module in TFRA."""

from tfra.dynamic_embedding._embedding_ops import embedding_lookup
from tfra.dynamic_embedding._get_variable import get_variable
from tfra.dynamic_embedding._shards import default_partition_fn
from tfra.dynamic_embedding._trainable import TrainableWrapper
from tfra.dynamic_embedding._variable import GraphKeys, Variable

__all__ = [
    "GraphKeys",
    "TrainableWrapper",
    "Variable",
    "default_partition_fn",
    "embedding_lookup",
    "get_variable",
]
