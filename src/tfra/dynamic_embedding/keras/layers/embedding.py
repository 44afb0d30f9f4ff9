"""The embedding layers, under the name of their module in TFRA."""

from tfra.dynamic_embedding.keras.layers._combined import FieldWiseEmbedding, SquashedEmbedding
from tfra.dynamic_embedding.keras.layers._embedding import BasicEmbedding, Embedding

__all__ = ["BasicEmbedding", "Embedding", "FieldWiseEmbedding", "SquashedEmbedding"]
