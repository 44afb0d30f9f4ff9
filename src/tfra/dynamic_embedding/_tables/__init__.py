"""Hash tables of the engine as resources of TensorFlow."""
