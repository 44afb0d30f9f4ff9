"""`LayerNormalization` and `reduce_pooling`, which TFRA has beside the embedding layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from layers_support import KERAS_WARNS, layers, raises

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

ROWS = np.random.default_rng(1).standard_normal((3, 4, 6)).astype(np.float32)
RAGGED = tf.RaggedTensor.from_row_lengths(ROWS.reshape(12, 6), [5, 0, 7])


def test_layer_normalization_is_that_of_keras() -> None:
    layer, keras_layer = layers.LayerNormalization(), keras.layers.LayerNormalization()
    expected = keras_layer(ROWS)
    np.testing.assert_array_equal(layer(ROWS), expected)
    both = layers.LayerNormalization(axis=[1, 2])
    np.testing.assert_array_equal(both(ROWS), keras.layers.LayerNormalization(axis=[1, 2])(ROWS))

    @tf.function(input_signature=[tf.TensorSpec([None, None, 6])])
    def traced(rows: tf.Tensor) -> tf.Tensor:
        return layer(rows)

    np.testing.assert_allclose(traced(ROWS), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", ["eager", "function", "model"])
def test_layer_normalization_of_ragged_rows(way: str) -> None:
    layer: Any = layers.LayerNormalization()
    call: Any = layer
    if way == "function":
        signature = [tf.RaggedTensorSpec([None, None, 6], tf.float32, 1)]
        call = tf.function(lambda rows: layer(rows), input_signature=signature)
    elif way == "model":
        inputs = keras.Input((None, 6), ragged=True)
        call = keras.Model(inputs, layer(inputs))
    result = call(RAGGED)
    assert isinstance(result, tf.RaggedTensor)
    np.testing.assert_array_equal(result.row_lengths(), [5, 0, 7])
    np.testing.assert_allclose(result.flat_values, layer(ROWS.reshape(12, 6)), rtol=1e-5)


def test_layer_normalization_is_trained_and_saved(tmp_path: Path) -> None:
    inputs = keras.Input((4, 6))
    model = keras.Model(inputs, layers.LayerNormalization(epsilon=0.5)(inputs))
    model.compile("sgd", "mse", run_eagerly=True)
    model.train_on_batch(ROWS, np.ones_like(ROWS))
    model.save(tmp_path / "normalized.keras")
    loaded = keras.models.load_model(tmp_path / "normalized.keras")
    assert type(loaded.layers[1]) is layers.LayerNormalization
    np.testing.assert_array_equal(loaded(ROWS), model(ROWS))
    assert np.abs(model.layers[1].get_weights()[0] - 1.0).max() > 0


def test_ragged_rows_of_unknown_length_are_refused() -> None:
    layer = layers.LayerNormalization()
    layer.build((None, 6))
    lists = tf.ragged.constant([[1.0, 2.0], [3.0]])
    with pytest.raises(ValueError, match="along their last dimension"):
        layer.call(lists)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", "max", "std"])
@pytest.mark.parametrize("shape", [(3, 4, 6), (3, 2, 2, 6), (12, 6), (0, 4, 6)])
def test_reduce_pooling_combines_the_rows_of_each_example(
    shape: tuple[int, ...], combiner: str
) -> None:
    rows = ROWS[: shape[0]].reshape(shape)
    axes = 0 if len(shape) == 2 else tuple(range(1, len(shape) - 1))
    if combiner == "sqrtn":
        count = 12 if len(shape) == 2 else 4
        expected = rows.sum(axes) / np.sqrt(count)
    else:
        expected = getattr(np, combiner)(rows, axis=axes)
    result = layers.embedding.reduce_pooling(rows, combiner)
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_reduce_pooling_in_functions_and_with_wrong_arguments() -> None:
    pooling = layers.embedding.reduce_pooling
    for shape in ([None, None, 6], None):
        traced = tf.function(pooling, input_signature=[tf.TensorSpec(shape)])
        np.testing.assert_allclose(traced(ROWS), ROWS.sum(axis=1), rtol=1e-5)
    doubled = pooling(ROWS, lambda rows, axis: 2 * tf.reduce_sum(rows, axis=axis))
    np.testing.assert_allclose(doubled, 2 * ROWS.sum(axis=1), rtol=1e-5)
    raises(lambda: pooling(tf.ones([3])), "two dimensions", "received shape (3,)")
    raises(lambda: pooling(ROWS, "median"), "`combiner`", "median")
