"""Optimizers that Keras does not have. All of Keras' own train tables too."""

from tfra.dynamic_embedding._training.rowwise_adagrad import RowwiseAdagrad

__all__ = ["RowwiseAdagrad"]
