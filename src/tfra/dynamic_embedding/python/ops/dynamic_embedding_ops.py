"""The lookup functions and model modes, under the name of their module in TFRA."""

from tfra.dynamic_embedding._lookup.embedding_ops import (
    embedding_lookup,
    embedding_lookup_sparse,
    embedding_lookup_unique,
    safe_embedding_lookup_sparse,
    trainable_wrapper_filter,
)
from tfra.dynamic_embedding._training.model_mode import (
    ModelMode,
    enable_inference_mode,
    enable_train_mode,
    get_model_mode,
)
from tfra.dynamic_embedding._training.shadow import TrainableWrapper

__all__ = [
    "ModelMode",
    "TrainableWrapper",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "embedding_lookup_unique",
    "enable_inference_mode",
    "enable_train_mode",
    "get_model_mode",
    "safe_embedding_lookup_sparse",
    "trainable_wrapper_filter",
]
