"""When an optimizer of Keras is adopted, that is, gets the class that trains tables."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfra

de = tfra.dynamic_embedding


def make_shadow() -> Any:
    return de.shadow_ops.ShadowVariable(de.Variable(dim=2, initializer=1.0))


def make_dense() -> Any:
    return keras.Variable(np.ones(2, np.float32))


def step(optimizer: Any, dense: Any, shadow: Any) -> None:
    """Takes one step, which changes the row of key 7 and the dense variable alike."""
    with tf.GradientTape() as tape:
        rows = de.shadow_ops.embedding_lookup(shadow, tf.constant([7], tf.int64))
        loss = optimizer.scale_loss(tf.reduce_sum(rows * tf.convert_to_tensor(dense)))
    variables = [dense, shadow]
    optimizer.apply(tape.gradient(loss, variables), variables)


def is_adopted(optimizer: Any, cls: type) -> bool:
    assert isinstance(optimizer, cls)
    return type(optimizer) is not cls


class Reads(keras.optimizers.SGD):
    """Reads the `value` of a shadow in its steps, which are on other variables."""

    def __init__(self, shadow: Any) -> None:
        super().__init__(0.5)
        self.read = lambda: shadow.value
        self.reads = 0

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        assert self.read().shape == (0, 2)
        self.reads += 1
        super().update_step(gradient, variable, learning_rate)


@pytest.mark.parametrize("build", ["first", "in apply"])
def test_reading_value_in_a_step_adopts_nobody(build: str) -> None:
    dense = make_dense()
    optimizer = Reads(make_shadow())
    if build == "first":
        optimizer.build([dense])
    for _ in range(2):
        optimizer.apply([tf.ones(2)], [dense])
    assert optimizer.reads == 2
    assert not is_adopted(optimizer, Reads)
    assert dense.numpy().tolist() == [0.0, 0.0]


def test_reading_value_outside_of_optimizers_adopts_nobody() -> None:
    shadow, optimizer = make_shadow(), keras.optimizers.Adam()
    assert shadow.value.shape == (0, 2)
    optimizer.build([shadow])
    assert shadow.value.shape == (0, 2)
    assert not is_adopted(optimizer, keras.optimizers.Adam)


@pytest.mark.parametrize("first", ["keras.Variable", "tf.Variable"])
@pytest.mark.parametrize("build", ["first", "in apply"])
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_a_step_on_a_shadow_adopts(name: str, build: str, first: str) -> None:
    if first == "tf.Variable" and build == "first" and keras.__version__.startswith("3.9."):
        pytest.skip("this Keras does not ask the shadow before the step")
    shadow, dense = make_shadow(), make_dense()
    if first == "tf.Variable":
        dense = tf.Variable(dense)
    cls = getattr(keras.optimizers, name)
    optimizer, other = cls(0.25), cls(0.25)
    if build == "first":
        optimizer.build([dense, shadow])
    step(optimizer, dense, shadow)
    assert is_adopted(optimizer, cls)
    assert not is_adopted(other, cls)
    np.testing.assert_allclose(shadow.params.lookup([7])[0], dense.numpy(), rtol=1e-5)
    assert dense.numpy()[0] < 1.0


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_a_loss_scale_optimizer_is_adopted_when_apply_builds_it(name: str) -> None:
    shadow, dense = make_shadow(), make_dense()
    cls = getattr(keras.optimizers, name)
    optimizer = keras.optimizers.LossScaleOptimizer(cls(0.25), initial_scale=4.0)
    step(optimizer, dense, shadow)
    assert is_adopted(optimizer, keras.optimizers.LossScaleOptimizer)
    assert is_adopted(optimizer.inner_optimizer, cls)
    np.testing.assert_allclose(shadow.params.lookup([7])[0], dense.numpy(), rtol=1e-5)
    assert dense.numpy()[0] < 1.0


def test_a_loss_scale_optimizer_that_the_user_builds_has_to_be_adopted_by_name() -> None:
    shadow, dense = make_shadow(), make_dense()
    inner = keras.optimizers.SGD(0.25)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0)
    optimizer.build([dense, shadow])
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="-1"):
        step(optimizer, dense, shadow)
    step(de.DynamicEmbeddingOptimizer(optimizer), dense, shadow)
    assert shadow.params.lookup([7]).numpy().tolist() == [[0.75, 0.75]]
    assert dense.numpy().tolist() == [0.75, 0.75]
