"""`Variable` and what goes with it, under the name of their module in TFRA."""

from tfra.dynamic_embedding._lookup.embedding_ops import embedding_lookup
from tfra.dynamic_embedding._tables.partitions import default_partition_fn
from tfra.dynamic_embedding._training.shadow import TrainableWrapper
from tfra.dynamic_embedding._variable.get_variable import get_variable
from tfra.dynamic_embedding._variable.variable import GraphKeys, Variable

__all__ = [
    "GraphKeys",
    "TrainableWrapper",
    "Variable",
    "default_partition_fn",
    "embedding_lookup",
    "get_variable",
]
