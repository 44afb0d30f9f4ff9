"""Modules of TFRA, for programs that import from them."""

from tfra.dynamic_embedding.python.ops import (
    cuckoo_hashtable_ops,
    data_flow_ops,
    dynamic_embedding_creator,
    dynamic_embedding_ops,
    dynamic_embedding_optimizer,
    dynamic_embedding_variable,
    embedding_weights,
    hkv_hashtable_ops,
    math_ops,
    restrict_policies,
    shadow_embedding_ops,
)

__all__ = [
    "cuckoo_hashtable_ops",
    "data_flow_ops",
    "dynamic_embedding_creator",
    "dynamic_embedding_ops",
    "dynamic_embedding_optimizer",
    "dynamic_embedding_variable",
    "embedding_weights",
    "hkv_hashtable_ops",
    "math_ops",
    "restrict_policies",
    "shadow_embedding_ops",
]
