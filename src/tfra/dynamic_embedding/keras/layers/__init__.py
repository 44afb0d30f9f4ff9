"""Embedding layers without a fixed vocabulary."""

from tfra.dynamic_embedding.keras.layers import embedding
from tfra.dynamic_embedding.keras.layers._normalization import LayerNormalization
from tfra.dynamic_embedding.keras.layers.embedding import (
    BasicEmbedding,
    Embedding,
    FieldWiseEmbedding,
    SquashedEmbedding,
)

__all__ = [
    "BasicEmbedding",
    "Embedding",
    "FieldWiseEmbedding",
    "LayerNormalization",
    "SquashedEmbedding",
    "embedding",
]
