"""Shadows of Variables: as weights of layers, their warnings, and optimizers of TF1."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_support import KERAS_WARNS

import tfra

v1 = tf.compat.v1
de = tfra.dynamic_embedding
layers = de.keras.layers
pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

X = np.arange(24).reshape(8, 3)
Y = np.linspace(-1, 1, 8, dtype=np.float32)[:, None]


def trained_model(key_dtype: str = "int64") -> Any:
    ids = keras.Input((3,), dtype=key_dtype)
    rows = layers.Embedding(4, key_dtype=key_dtype, name="rows")(ids)
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
    model.compile("adam", "mse")
    x = tf.constant(X.astype(str)) if key_dtype == "string" else X
    model.fit(x, Y, verbose=0)
    return model


COPIES: dict[str, Callable[[list[Any]], list[Any]]] = {
    "copy": lambda weights: [weight.copy() for weight in weights],
    "deepcopy": copy.deepcopy,
    "pickle": lambda weights: pickle.loads(pickle.dumps(weights)),
}


@pytest.mark.parametrize("key_dtype", ["int64", "string"])
@pytest.mark.parametrize("how", COPIES)
def test_copies_of_weights_have_the_rows(how: str, key_dtype: str) -> None:
    model = trained_model(key_dtype)
    weights = COPIES[how](model.get_weights())
    expected = model.get_layer("rows").params.lookup(weights[0].content["keys"])
    model.get_layer("rows").params.clear()
    model.set_weights(weights)
    restored = model.get_layer("rows").params
    assert int(restored.size()) == 24
    found = restored.lookup(weights[0].content["keys"])
    np.testing.assert_array_equal(found.numpy(), expected.numpy())


@pytest.mark.parametrize("lossy", [np.array, lambda weight: weight * 0.5, np.negative])
def test_weights_without_rows_are_refused(lossy: Callable[[Any], Any]) -> None:
    model = trained_model()
    weights = [lossy(weight) for weight in model.get_weights()]
    with pytest.raises(ValueError, match="The weights of 'rows-parameter' are a table: expected"):
        model.set_weights(weights)
    assert int(model.get_layer("rows").params.size()) == 24


@keras.saving.register_keras_serializable("test_stand_ins")
class OwnShadow(keras.layers.Layer):
    """A layer of a user that holds the shadow of its table."""

    def __init__(self, name: str = "own", **options: Any) -> None:
        super().__init__(name=name, **options)
        self.table = de.Variable(dim=2, name="own", initializer=0.5)
        self.shadow = de.shadow_ops.ShadowVariable(self.table, name="own")

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(de.shadow_ops.embedding_lookup(self.shadow, ids), -2)

    def compute_output_shape(self, shape: Any) -> Any:
        return (*shape[:-1], 2)


def test_files_of_keras_have_the_rows_of_a_users_own_layer(tmp_path: Path) -> None:
    ids = keras.Input((3,), dtype="int64")
    model = keras.Model(ids, keras.layers.Dense(1)(OwnShadow(name="own")(ids)))
    model.compile("adam", "mse")
    model.fit(X, Y, verbose=0)
    expected = model.predict(X, verbose=0)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")

    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert int(loaded.get_layer("own").table.size()) == 24
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), expected)

    model.get_layer("own").table.clear()
    assert not np.array_equal(model.predict(X, verbose=0), expected)
    model.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(model.predict(X, verbose=0), expected)


def complaints(action: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(w.message) for w in caught if "no optimizer step" in str(w.message)]


def test_fit_of_a_model_that_leaves_its_table_out_warns_once() -> None:
    table = de.Variable(dim=2, name="left_out")

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.head = keras.layers.Dense(1)

        def call(self, ids: tf.Tensor) -> tf.Tensor:
            return self.head(tf.reduce_sum(de.embedding_lookup(table, ids), 1))

    model = Model()
    model.compile("adam", "mse")
    said = complaints(lambda: model.fit(X, Y, epochs=2, verbose=0))
    assert len(said) == 1
    assert "'left_out' was looked up for training" in said[0]
    assert int(table.size()) == 0
    assert complaints(lambda: model.predict(X, verbose=0)) == []


def test_a_function_that_leaves_its_table_out_warns_when_that_is_used() -> None:
    layer, dense, optimizer = layers.Embedding(2), keras.layers.Dense(1), keras.optimizers.SGD()
    dense.build((None, 2))
    optimizer.build(dense.trainable_variables)

    @tf.function
    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(dense(layer(ids, training=True)))
        variables = dense.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    assert complaints(lambda: [step(tf.constant(X)) for _ in range(3)]) == []
    assert len(complaints(lambda: layer(tf.constant(X)))) == 1
    assert complaints(lambda: layer(tf.constant(X))) == []


def test_models_that_train_their_tables_hear_nothing() -> None:
    def train() -> None:
        model = trained_model()
        model.fit(X, Y, epochs=2, validation_data=(X, Y), verbose=0)
        model.predict(X, verbose=0)

    assert complaints(train) == []


def test_ragged_ids_give_ragged_rows() -> None:
    table = de.Variable(dim=2, initializer=1.0)
    ids = tf.ragged.constant([[1, 2], [], [3, 1]], dtype=tf.int64)
    shadow = de.shadow_ops.ShadowVariable(table)
    for rows in (
        de.embedding_lookup(table, ids),
        de.embedding_lookup_unique(table, ids),
        de.shadow_ops.embedding_lookup(shadow, ids),
        de.shadow_ops.embedding_lookup_unique(shadow, ids, 2),
    ):
        assert rows.shape.as_list() == [3, None, 2]
        assert rows.row_lengths().numpy().tolist() == [2, 0, 2]
    with tf.GradientTape() as tape:
        rows, trainable = de.embedding_lookup(table, ids, return_trainable=True)
        loss = tf.reduce_sum(rows.flat_values * [[1.0], [2.0], [3.0], [4.0]])
    keras.optimizers.SGD(1.0).apply([tape.gradient(loss, trainable)], [trainable])
    assert table.lookup([1, 2, 3]).numpy()[:, 0].tolist() == [-4.0, -1.0, -2.0]


def optimizer_of_tf1() -> Any:
    return de.DynamicEmbeddingOptimizer(v1.train.GradientDescentOptimizer(0.5))


def test_optimizers_of_tf1_in_eager_mode_and_in_functions() -> None:
    table = de.Variable(dim=2, initializer=1.0)
    shadow, optimizer = de.shadow_ops.ShadowVariable(table), optimizer_of_tf1()

    def loss() -> tf.Tensor:
        rows = de.shadow_ops.embedding_lookup(shadow, tf.constant([1, 2, 1], tf.int64))
        return tf.reduce_sum(rows)

    optimizer.minimize(loss, var_list=[shadow])
    assert table.lookup([1, 2, 3]).numpy()[:, 0].tolist() == [0.0, 0.5, 1.0]

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            value = loss()
        optimizer.apply_gradients([(tape.gradient(value, shadow), shadow)])

    step()
    assert table.lookup([1, 2, 3]).numpy()[:, 0].tolist() == [-1.0, 0.0, 1.0]


def test_adam_of_tf1_in_eager_mode() -> None:
    """The optimizer has variables besides its slots."""
    table = de.Variable(dim=2, initializer=1.0)
    shadow = de.shadow_ops.ShadowVariable(table)
    optimizer = de.DynamicEmbeddingOptimizer(v1.train.AdamOptimizer(0.1))
    ids = tf.constant([1], tf.int64)
    for step in (1, 2):
        optimizer.minimize(
            lambda: tf.reduce_sum(de.shadow_ops.embedding_lookup(shadow, ids)), var_list=[shadow]
        )
        np.testing.assert_allclose(table.lookup(ids), [[1 - 0.1 * step] * 2], rtol=1e-5)


def test_slots_of_tables_have_names_in_tf1() -> None:
    with tf.Graph().as_default():
        table = de.Variable(dim=2)
        rows, trainable = de.embedding_lookup(table, [1], return_trainable=True)
        optimizer = de.DynamicEmbeddingOptimizer(v1.train.AdamOptimizer(0.1))
        optimizer.minimize(tf.reduce_sum(rows), var_list=[trainable])
        assert optimizer.get_slot_names() == ["m", "v"]


def test_a_branch_in_a_graph_of_tf1_is_refused() -> None:
    with tf.Graph().as_default():
        table = de.Variable(dim=2)
        taken = v1.placeholder(tf.bool, [])
        ids = tf.constant([1], tf.int64)
        rows = tf.cond(taken, lambda: de.embedding_lookup(table, ids), lambda: tf.ones([1, 2]))
        with pytest.raises(NotImplementedError, match="Look the rows up before it"):
            optimizer_of_tf1().minimize(tf.reduce_sum(rows))


def test_subclasses_of_layers_may_return_other_shapes() -> None:
    class Total(layers.Embedding):
        def call(self, ids: tf.Tensor, training: bool | None = None) -> tf.Tensor:
            return tf.reduce_sum(super().call(ids, training), 1)

    ids = keras.Input((3,), dtype="int64")
    rows = Total(4)(ids)
    assert rows.shape == (None, 4)
    model = keras.Model(ids, keras.layers.Dense(1)(rows))
    model.compile("adam", "mse")
    model.fit(X, Y, verbose=0)
    assert int(model.layers[1].params.size()) == 24


@pytest.mark.parametrize("combiner", ["euclidean_norm", "max", "logsumexp", "prod"])
def test_combiners_of_dense_ids_are_those_of_tensorflow(combiner: str) -> None:
    layer = layers.SquashedEmbedding(2, combiner=combiner)
    ids = tf.constant([[1, 2, 3], [4, 5, 6]], tf.int64)
    rows = layer.params.lookup(ids)
    expected = getattr(tf.math, f"reduce_{combiner}")(rows, axis=1)
    np.testing.assert_allclose(layer(ids).numpy(), expected.numpy(), rtol=1e-6)
    np.testing.assert_allclose(layer(ids[0]).numpy(), expected[0].numpy(), rtol=1e-6)


def test_segments_are_summed_with_the_arguments_of_tf1() -> None:
    data, segments = tf.constant([[1.0], [2.0], [4.0]]), tf.constant([0, 0, 1])
    summed = de.math.sparse_segment_sum(data, tf.constant([0, 1, 2]), segments, "named")
    assert summed.numpy().tolist() == [[3.0], [4.0]]


def scaled(optimizer: Any) -> Any:
    return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=4.0)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "plain": lambda: keras.optimizers.SGD(0.5),
    "with a factor": lambda: keras.optimizers.SGD(0.5, loss_scale_factor=8.0),
    "scaled": lambda: scaled(keras.optimizers.SGD(0.5)),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("form", ["function", "function and tape", "tensor and tape", "two calls"])
def test_minimize_of_keras_2(form: str, kind: str) -> None:
    """Wrapped optimizers still have `minimize`; `var_list` may be a function."""
    table = de.Variable(dim=2, initializer=1.0)
    dense = keras.Variable(np.ones(2, np.float32))
    optimizer = de.DynamicEmbeddingOptimizer(OPTIMIZERS[kind]())
    trainables: list[Any] = [dense]

    def loss() -> tf.Tensor:
        rows, trainable = de.embedding_lookup(
            table, tf.constant([7], tf.int64), return_trainable=True
        )
        trainables[1:] = [trainable]
        return tf.reduce_sum(rows * dense)

    if form == "function":
        steps = optimizer.minimize(loss, lambda: trainables)
    elif form == "function and tape":
        steps = optimizer.minimize(loss, lambda: trainables, tape=tf.GradientTape())
    elif form == "two calls":
        pairs = optimizer.compute_gradients(loss, lambda: trainables)
        assert [variable for _, variable in pairs] == trainables
        optimizer.apply_gradients(pairs)
        steps = optimizer.iterations
    else:
        with tf.GradientTape() as tape:
            value = loss()
        steps = optimizer.minimize(value, trainables, tape=tape)
    assert int(steps) == 1
    assert table.lookup([7]).numpy().tolist() == [[0.5, 0.5]]
    assert dense.numpy().tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="needs its `tape`"):
        optimizer.minimize(tf.constant(1.0), trainables)


def test_a_minimize_of_ones_own_stays() -> None:
    class Own(keras.optimizers.SGD):
        def minimize(self, what: str) -> str:
            return what

    assert de.DynamicEmbeddingOptimizer(Own(0.5)).minimize("this") == "this"
