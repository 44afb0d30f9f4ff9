"""Shadows of variables, and the optimizers of Keras that train tables."""
