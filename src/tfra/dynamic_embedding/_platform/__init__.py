"""TensorFlow and Keras as this package sees them."""
