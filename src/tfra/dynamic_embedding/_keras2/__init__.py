"""Optimizers of Keras 2."""
