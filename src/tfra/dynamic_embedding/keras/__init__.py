"""Layers, optimizers and callbacks for Keras 3 on TensorFlow."""

from tfra.dynamic_embedding.keras import callbacks, layers, optimizers

__all__ = ["callbacks", "layers", "optimizers"]
