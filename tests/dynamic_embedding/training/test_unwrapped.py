"""Optimizers that train tables only if they are wrapped say so, whatever they do first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from layers_support import KERAS_WARNS, layers
from training_support import de

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

v1 = tf.compat.v1
train = v1.train
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: train.GradientDescentOptimizer(0.1),
    "Momentum": lambda: train.MomentumOptimizer(0.1, 0.9),
    "Adam": lambda: train.AdamOptimizer(0.1),
    "Adagrad": lambda: train.AdagradOptimizer(0.1),
    "AdagradDA": lambda: train.AdagradDAOptimizer(0.1, tf.constant(1, tf.int64)),
    "Adadelta": lambda: train.AdadeltaOptimizer(0.1),
    "Ftrl": lambda: train.FtrlOptimizer(0.1),
    "ProximalAdagrad": lambda: train.ProximalAdagradOptimizer(0.1),
    "RMSProp": lambda: train.RMSPropOptimizer(0.1),
}
IDS = [[1, 2], [3, 2]]


def of_layer(ids: Any) -> tuple[tf.Tensor, Any, Any]:
    layer = layers.SquashedEmbedding(2)
    return layer(ids), layer.shadow, layer


def of_shadow(ids: Any) -> tuple[tf.Tensor, Any, Any]:
    shadow = de.shadow_ops.ShadowVariable(de.Variable(dim=2))
    return de.shadow_ops.embedding_lookup(shadow, ids), shadow, None


def of_lookup(ids: Any) -> tuple[tf.Tensor, Any, Any]:
    variable = de.Variable(dim=2)
    rows, shadow = de.embedding_lookup(variable, ids, return_trainable=True)
    return rows, shadow, variable


LOOKUPS = {"layer": of_layer, "shadow": of_shadow, "lookup": of_lookup}


def minimize_all(optimizer: Any, loss: tf.Tensor, _: Any) -> None:
    optimizer.minimize(loss)


def minimize_these(optimizer: Any, loss: tf.Tensor, shadow: Any) -> None:
    optimizer.minimize(loss, var_list=[shadow])


def apply(optimizer: Any, loss: tf.Tensor, shadow: Any) -> None:
    optimizer.apply_gradients([(v1.gradients(loss, shadow)[0], shadow)])


@pytest.mark.parametrize("step", [minimize_all, minimize_these, apply])
@pytest.mark.parametrize("look_up", LOOKUPS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_graph(name: str, look_up: str, step: Any) -> None:
    with tf.Graph().as_default():
        rows, shadow, _owner = LOOKUPS[look_up](v1.placeholder(tf.int64, [None, 2]))
        loss = tf.reduce_sum(rows**2)
        with pytest.raises(TypeError, match=r"is a table.*DynamicEmbeddingOptimizer\("):
            step(OPTIMIZERS[name](), loss, shadow)
        wrapped = de.DynamicEmbeddingOptimizer(OPTIMIZERS[name]())
        wrapped.minimize(loss, var_list=[shadow])


@pytest.mark.parametrize("look_up", LOOKUPS)
@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() - {"AdagradDA"}))
def test_eager_mode(name: str, look_up: str) -> None:
    with tf.GradientTape() as tape:
        rows, shadow, _owner = LOOKUPS[look_up](tf.constant(IDS, tf.int64))
        loss = tf.reduce_sum(rows**2)
    gradient = tape.gradient(loss, shadow)
    with pytest.raises(TypeError, match=r"is a table.*DynamicEmbeddingOptimizer\("):
        OPTIMIZERS[name]().apply_gradients([(gradient, shadow)])
    de.DynamicEmbeddingOptimizer(OPTIMIZERS[name]()).apply_gradients([(gradient, shadow)])
    assert int(shadow.params.size()) == 3


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() - {"AdagradDA"}))
def test_minimize_in_eager_mode(name: str) -> None:
    variable = de.Variable(dim=2, initializer=1.0)
    ids = tf.constant(IDS, tf.int64)
    _, trainable = de.embedding_lookup(variable, ids, return_trainable=True)

    def loss() -> tf.Tensor:
        return tf.reduce_sum(de.embedding_lookup(variable, ids) ** 2)

    with pytest.raises(TypeError, match=r"is a table.*DynamicEmbeddingOptimizer\("):
        OPTIMIZERS[name]().minimize(loss, var_list=[trainable])
    wrapped = de.DynamicEmbeddingOptimizer(OPTIMIZERS[name]())
    wrapped.minimize(loss, var_list=[trainable])
    assert int(variable.size()) == 3


def test_others_may_ask_what_optimizers_ask() -> None:
    shadow = de.shadow_ops.ShadowVariable(de.Variable(dim=2))
    assert (shadow.dtype, shadow.constraint) == ("float32", None)
    assert not hasattr(shadow.dtype, "base_dtype")
    assert f"{shadow}" == repr(shadow)
