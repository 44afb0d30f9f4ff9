"""`ShadowVariable` and its lookups, under the name of their module in TFRA."""

from tfra.dynamic_embedding.shadow_ops import (
    ShadowVariable,
    embedding_lookup,
    embedding_lookup_unique,
)

__all__ = ["ShadowVariable", "embedding_lookup", "embedding_lookup_unique"]
