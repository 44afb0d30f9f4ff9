"""RowwiseAdagrad on tables and on dense variables, against NumPy."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfra

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
de = tfra.dynamic_embedding
RATE, INITIAL, EPSILON = 0.3, 0.2, 1e-6


def optimizer(**kwargs: Any) -> Any:
    numbers = {"initial_accumulator_value": INITIAL, "epsilon": EPSILON}
    return de.keras.optimizers.RowwiseAdagrad(RATE, **numbers, **kwargs)


def expected(rows: Any, gradients: list[Any]) -> Any:
    rows = rows.astype(np.float64)
    accumulator = np.full((len(rows), 1), INITIAL)
    for gradient in gradients:
        accumulator += np.mean(gradient**2, axis=1, keepdims=True)
        rows = rows - RATE * gradient / np.sqrt(accumulator + EPSILON)
    return rows


def gradients() -> list[Any]:
    return list(np.random.default_rng(3).standard_normal((4, 5, 3)).astype(np.float32))


def test_a_table() -> None:
    shadow = de.shadow_ops.ShadowVariable(de.Variable(dim=3, initializer=0.5))
    keys = tf.constant([7, 8, 9, 10, 11], tf.int64)
    adagrad = optimizer()
    for gradient in gradients():
        adagrad.apply([tf.IndexedSlices(tf.constant(gradient), keys)], [shadow])
    rows = shadow.params.lookup(keys)
    np.testing.assert_allclose(rows, expected(np.full((5, 3), 0.5), gradients()), rtol=1e-5)
    slots = shadow.params.content()["slots"]
    assert slots.shape.as_list() == [5, 1]  # One number for each row.


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 1), (5,)])
def test_a_dense_variable(shape: tuple[int, ...]) -> None:
    start = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    variable = keras.Variable(start)
    taken = [g[..., 0] if len(shape) == 1 else g.reshape(shape) for g in gradients()]
    adagrad = optimizer()
    for gradient in taken:
        adagrad.apply([tf.constant(gradient)], [variable])
    wanted = expected(start.reshape(5, -1), [g.reshape(5, -1) for g in taken])
    np.testing.assert_allclose(np.array(variable.value).reshape(5, -1), wanted, rtol=1e-5)


def test_its_config_comes_back() -> None:
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(optimizer(clipnorm=2.0))
    )
    assert type(again) is de.keras.optimizers.RowwiseAdagrad
    assert (again.initial_accumulator_value, again.epsilon, again.clipnorm) == (INITIAL, EPSILON, 2)
