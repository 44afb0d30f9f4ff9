"""Graphs, Sessions and optimizers of TensorFlow 1."""
