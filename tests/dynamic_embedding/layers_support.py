"""What the tests of the layers share: filled layers, single steps of training, and comparisons."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import pytest
import tensorflow as tf

import support
import tfra
from support import Array, Content, numpy_dtype

de = tfra.dynamic_embedding
layers = de.keras.layers

# Keras itself asks TensorFlow's variables for arrays in a way that NumPy 2 warns of.
KERAS_WARNS = "ignore:__array__ implementation:DeprecationWarning"

DIM = 4
COUNT = 20
THREE = ["/CPU:0"] * 3


def rows(value_dtype: str = "float32", count: int = COUNT, dim: int = DIM) -> Array:
    """One row for each of the ids 0 to count - 1; no two of them are alike."""
    numbers = np.random.default_rng(7).standard_normal((count, dim))
    return numbers.astype(numpy_dtype(value_dtype))


ROWS = rows()


def filled(kind: Any = None, **options: Any) -> Any:
    """A layer that holds `ROWS` under the ids 0 to 19."""
    layer = (kind or layers.Embedding)(DIM, **options)
    values = rows(layer.params.value_dtype.name)
    keys = tf.range(COUNT, dtype=tf.int64)
    if layer.params.key_dtype == tf.string:
        keys = tf.strings.as_string(keys)
    layer.params.upsert(keys, values)
    return layer


def to_numpy(tensor: Any) -> Array:
    """The array of a tensor; fails if it is not a tensor."""
    assert isinstance(tensor, tf.Tensor)
    return np.array(tensor.numpy(), numpy_dtype(tensor.dtype.name))


def table_rows(layer: Any, count: int = COUNT) -> Array:
    """The current rows of the ids 0 to count - 1."""
    return to_numpy(layer.params.lookup(tf.range(count, dtype=tf.int64)))


def content(layer: Any) -> Content:
    """Everything in the layer's table: key -> the bytes of its row."""
    keys, values = (to_numpy(tensor) for tensor in layer.params.export())
    exported = support.as_content(keys, values)
    assert len(exported) == len(keys) == int(layer.params.size()), "a key was exported twice"
    return exported


def sgd_step(layer: Any, inputs: Any, weights: Any, learning_rate: float = 0.5) -> None:
    """One step of gradient descent of the sum of the weighted outputs."""
    with tf.GradientTape() as tape:
        output = layer(inputs, training=True)
        loss = tf.reduce_sum(output * tf.cast(weights, output.dtype))
    variables = layer.trainable_variables
    optimizer = keras.optimizers.SGD(learning_rate)
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def dense_step(
    function: Callable[[tf.Tensor], tf.Tensor], weights: Any, learning_rate: float = 0.5
) -> Array:
    """The result of the same step on `ROWS`, with an output that is a function of all rows."""
    table = tf.Variable(ROWS)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(function(tf.convert_to_tensor(table)) * weights)
    gradient = tf.convert_to_tensor(tape.gradient(loss, table))
    return ROWS - learning_rate * gradient.numpy()


def assert_close(actual: Any, expected: Array, tolerance: float = 1e-5) -> None:
    """Same shape, and nearly the same numbers."""
    assert tuple(actual.shape) == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def model_of(*stack: Any, ids: int = 3, dtype: str = "int64") -> keras.Model:
    """A compiled model of rows of `ids` ids, with one output."""
    inputs = output = keras.Input((ids,), dtype=dtype)
    for layer in (*stack, keras.layers.Flatten(), keras.layers.Dense(1)):
        output = layer(output)
    model = keras.Model(inputs, output)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def raises(call: Callable[[], Any], *said: str) -> None:
    """Checks that `call` fails, with a message that contains all of `said`."""
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    message = str(caught.value).lower()
    for part in said:
        assert part.lower() in message, f"{part} not in: {caught.value}"
