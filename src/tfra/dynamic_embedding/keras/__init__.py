"""Layers for Keras 3 on TensorFlow."""

from tfra.dynamic_embedding.keras import layers

__all__ = ["layers"]
