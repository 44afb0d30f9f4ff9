"""The embedding layers, under the name of their module in TFRA."""

from tfra.dynamic_embedding.keras.layers._combined import (
    FieldWiseEmbedding,
    SquashedEmbedding,
    reduce_pooling,
)
from tfra.dynamic_embedding.keras.layers._embedding import BasicEmbedding, Embedding

__all__ = [
    "BasicEmbedding",
    "Embedding",
    "FieldWiseEmbedding",
    "SquashedEmbedding",
    "reduce_pooling",
]
