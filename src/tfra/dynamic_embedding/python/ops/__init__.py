"""Modules of TFRA that its reference pages name."""

from tfra.dynamic_embedding.python.ops import dynamic_embedding_variable

__all__ = ["dynamic_embedding_variable"]
