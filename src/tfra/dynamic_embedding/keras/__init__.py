"""Layers and optimizers for Keras 3 on TensorFlow."""

from tfra.dynamic_embedding.keras import layers, optimizers

__all__ = ["layers", "optimizers"]
