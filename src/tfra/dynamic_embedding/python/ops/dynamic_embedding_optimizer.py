"""`DynamicEmbeddingOptimizer`, under the name of its module in TFRA."""

from tfra.dynamic_embedding._tf1.optimizer import DynamicEmbeddingOptimizer

__all__ = ["DynamicEmbeddingOptimizer"]
