"""What people write for `keras.layers.Embedding` works here, or a message says what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from layers_support import DIM, KERAS_WARNS, de, layers, raises

import tfra

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

IDS = np.array([[3, 0, 2], [1, 2, 0], [3, 3, 3]])
TARGETS = np.array([[1.0], [-2.0], [0.5]], np.float32)
ROWS = np.random.default_rng(2).standard_normal((4, DIM)).astype(np.float32)
WIDE = np.array([[1, 2**63 + 5]], np.uint64)


# --- Arguments.


def test_the_number_of_ids_is_not_an_argument() -> None:
    for kind in (layers.Embedding, layers.SquashedEmbedding):
        name = kind.__name__
        raises(lambda kind=kind: kind(100, 8), "`key_dtype`", "received 8", f"write {name}(8)")
    made = layers.Embedding
    raises(lambda: made(input_dim=100, output_dim=8), "`input_dim`", "write Embedding(8)")
    raises(lambda: made(output_dim=8), "`output_dim`", "write Embedding(8)")
    raises(lambda: made(8, embeddings_initializer="ones"), "write initializer='ones'")
    raises(lambda: made(8, embeddings_constraint="max_norm"), "write max_norm=")
    raises(lambda: made(8, input_length=3), "keras.Input((3,)")


def test_a_subclass_may_have_the_arguments_of_keras() -> None:
    class Mine(layers.Embedding):  # type: ignore[misc]
        def __init__(self, input_dim: int, output_dim: int, **kwargs: Any) -> None:
            super().__init__(output_dim, **kwargs)
            self.input_dim = input_dim

    assert Mine(input_dim=7, output_dim=DIM)(IDS).shape == (3, 3, DIM)
    raises(lambda: Mine(7, DIM, embeddings_initializer="ones"), "write initializer='ones'")


@pytest.mark.parametrize("make", [layers.Embedding, lambda _, dtype: de.Variable(dtype)])
def test_a_number_is_no_type(make: Any) -> None:
    raises(lambda: make(3, 9), "`key_dtype`: expected", "received 9")


# --- Ids of uint64.


def test_uint64_ids_are_taken_as_they_are() -> None:
    said = ("expected int64", "received", "tf.bitcast(keys, tf.int64)", "view('int64')")
    layer, variable = layers.Embedding(DIM), de.Variable(dim=DIM)
    for ids in (WIDE, tf.constant(WIDE)):
        raises(lambda ids=ids: layer(ids), *said)
        raises(lambda ids=ids: variable.lookup(ids), *said)
    raises(lambda: variable.lookup([2**64 - 1]), *said)
    raises(lambda: tfra.Table(dim=1).lookup(WIDE), "int64", "view('int64')")
    raises(lambda: layers.Embedding(DIM, key_dtype=tf.uint64), "key_dtype=tf.int64", "tf.bitcast")
    layer.params.upsert(WIDE.view("int64"), np.ones([1, 2, DIM]))
    assert layer(tf.bitcast(tf.constant(WIDE), tf.int64)).numpy().min() == 1.0


def test_casts_that_lose_nothing_are_advised_only_where_they_do_not() -> None:
    variable, narrow = de.Variable(), de.Variable(tf.int32)
    raises(lambda: variable.lookup(tf.constant([1], tf.uint32)), "tf.cast(keys, tf.int64)")
    wide = tf.constant([2**40], tf.int64)
    raises(lambda: narrow.lookup(wide), "make it with key_dtype=tf.int64", "if all of them fit")
    with pytest.raises(TypeError) as caught:
        variable.lookup([-(2**70)])
    assert "uint64" not in str(caught.value)


# --- Strings.


def test_strings_of_numpy() -> None:
    """`fit` of Keras refuses arrays of strings before it calls a layer."""
    words = np.array([["ann", "bo"], ["bo", "cy"]])
    inputs = keras.Input((2,), dtype="string", name="ids")
    model = keras.Model(inputs, layers.SquashedEmbedding(1, key_dtype=tf.string)(inputs))
    model.compile("sgd", "mse", run_eagerly=True)
    for array in (words, words.astype(object), words.astype("S3")):
        for call in (
            lambda array=array: model.fit(array, TARGETS[:2], verbose=0),
            lambda array=array: model.fit({"ids": array}, TARGETS[:2], verbose=0),
            lambda array=array: model.evaluate(array, TARGETS[:2], verbose=0),
            lambda array=array: model.predict(array, verbose=0),
        ):
            with pytest.raises(ValueError, match=r"Invalid dtype.* Write tf.constant\(array\)"):
                call()
    model.fit(tf.constant(words), TARGETS[:2], verbose=0)
    model.train_on_batch(words, TARGETS[:2])
    assert set(model.layers[1].params.export()[0].numpy()) == {b"ann", b"bo", b"cy"}
    assert model(words).shape == (2, 1)


# --- HDF5 files, which Keras reads back only if each weight has the shape that it had.


def test_a_model_is_not_saved_to_a_file_that_can_not_be_loaded(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((3,), dtype="int64"), layers.SquashedEmbedding(DIM)])
    with pytest.raises(ValueError, match=r"HDF5 files.*model\.save\(\"model\.keras\"\)"):
        model.save(tmp_path / "model.h5")
    model.save_weights(tmp_path / "model.weights.h5")  # This is another format.


# --- mask_zero.


def filled(kind: Any = layers.Embedding, **options: Any) -> Any:
    layer = kind(DIM, **options)
    ids = tf.range(4, dtype=tf.int64)
    string = layer.params.key_dtype == tf.string
    layer.params.upsert(tf.constant(["", "a", "b", "c"]) if string else ids, ROWS)
    return layer


def test_zeros_are_masked_as_in_keras() -> None:
    static = keras.layers.Embedding(4, DIM, mask_zero=True)
    static.build()
    static.set_weights([ROWS])
    results = []
    for embedding in (static, filled(mask_zero=True)):
        inputs = keras.Input((3,), dtype="int64")
        rnn = keras.layers.LSTM(
            2,
            kernel_initializer=keras.initializers.GlorotUniform(seed=1),
            recurrent_initializer=keras.initializers.GlorotUniform(seed=2),
        )
        pooled = keras.layers.GlobalAveragePooling1D()(embedding(inputs))
        model = keras.Model(inputs, [rnn(embedding(inputs)), pooled])
        results.append(model.predict_on_batch(IDS))
    for expected, actual in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    layer = layers.Embedding(DIM, mask_zero=True)
    np.testing.assert_array_equal(layer.compute_mask(tf.constant(IDS)), IDS != 0)
    before = IDS != 3
    np.testing.assert_array_equal(layer.compute_mask(IDS, before), (IDS != 0) & before)
    assert layers.Embedding(DIM).compute_mask(tf.constant(IDS)) is None
    words = layers.Embedding(DIM, key_dtype=tf.string, mask_zero=True)
    assert words(tf.constant([["", "a"]]))._keras_mask.numpy().tolist() == [[False, True]]


@pytest.mark.parametrize("dtype", ["int64", "string"])
def test_a_functional_model_keeps_the_mask(dtype: str, tmp_path: Path) -> None:
    layer = filled(mask_zero=True, key_dtype=tf.as_dtype(dtype))
    inputs = keras.Input((3,), dtype=dtype)
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(layer(inputs)))
    model.save(tmp_path / "masked.keras")
    loaded = keras.models.load_model(tmp_path / "masked.keras")
    ids: Any = np.array([[3, 0, 2]])
    if dtype == "string":
        ids = tf.constant([["c", "", "b"]])
    for one in (model, loaded):
        np.testing.assert_allclose(one(ids), [(ROWS[3] + ROWS[2]) / 2], rtol=1e-6)


def remainder(ids: tf.Tensor) -> tf.Tensor:
    return ids % 2


@pytest.mark.parametrize("form", ["dense", "ragged", "sparse"])
@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn", "max"])
def test_zeros_are_left_out_where_rows_are_combined(combiner: str, form: str) -> None:
    dense = tf.constant([[3, 0, 1], [0, 0, 0], [0, 2, 2]], tf.int64)
    ids: Any = dense
    if form == "ragged":
        ids = tf.RaggedTensor.from_tensor(dense)
    elif form == "sparse":
        where = tf.constant(np.argwhere(np.ones([3, 3])))
        ids = tf.SparseTensor(where, tf.reshape(dense, [-1]), [3, 3])
    without = tf.ragged.constant([[3, 1], [], [2, 2]], dtype=tf.int64)
    squashed = filled(layers.SquashedEmbedding, combiner=combiner, mask_zero=True)
    expected = filled(combiner=combiner)(without)
    np.testing.assert_allclose(squashed(ids), expected, rtol=1e-6)
    if form != "dense":
        pooled = filled(combiner=combiner, mask_zero=True)
        np.testing.assert_allclose(pooled(ids), expected, rtol=1e-6)
    options = {"nslots": 2, "slot_map_fn": remainder, "combiner": combiner}
    fields = filled(layers.FieldWiseEmbedding, mask_zero=True, **options)
    plain = filled(layers.FieldWiseEmbedding, **options)
    np.testing.assert_allclose(fields(ids), plain(without), rtol=1e-6)


def test_padding_is_not_trained_where_rows_are_combined() -> None:
    layer = layers.SquashedEmbedding(1, key_dtype=tf.string, mask_zero=True, initializer="ones")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([["a", ""], ["", ""]])))
    variables = layer.trainable_variables
    keras.optimizers.SGD(1.0).apply(tape.gradient(loss, variables), variables)
    assert layer.params.export()[0].numpy().tolist() == [b"a"]


# --- embeddings_regularizer.


@pytest.mark.parametrize("kind", [layers.Embedding, layers.SquashedEmbedding])
def test_a_regularizer_trains_the_rows_of_the_batch_as_in_keras(kind: Any) -> None:
    losses, results = [], []
    static = keras.layers.Embedding(4, DIM, embeddings_regularizer=keras.regularizers.L2(0.5))
    static.build()
    static.set_weights([ROWS])
    for embedding in (static, filled(kind, embeddings_regularizer=keras.regularizers.L2(0.5))):
        inputs = keras.Input((3,), dtype="int64")
        rows = embedding(inputs)
        pooled = rows if len(rows.shape) == 2 else keras.ops.sum(rows, axis=1)
        model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(pooled))
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
        losses.append([float(model.train_on_batch(IDS, TARGETS)) for _ in range(2)])
        losses[-1].append(float(model.test_on_batch(IDS, TARGETS)))
        results.append(embedding)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    [table] = results[0].get_weights()
    np.testing.assert_allclose(results[1].params.lookup(range(4)), table, rtol=1e-4, atol=1e-6)


def test_a_regularizer_sees_each_row_once_and_no_other() -> None:
    layer = filled(embeddings_regularizer="l2", mask_zero=True)
    layer([[1, 1, 2]])
    [loss] = layer.losses
    np.testing.assert_allclose(loss, 0.01 * np.sum(ROWS[1:3] ** 2), rtol=1e-6)
    layer(tf.ragged.constant([[0, 3], [3]], dtype=tf.int64))
    [loss] = layer.losses
    np.testing.assert_allclose(loss, 0.01 * np.sum(ROWS[3] ** 2), rtol=1e-6)
    layer.trainable = False
    layer([[1]])
    assert layer.losses == []


def test_both_come_back_from_a_config() -> None:
    layer = layers.Embedding(
        DIM, mask_zero=True, embeddings_regularizer=keras.regularizers.L1L2(0.5, 0.25)
    )
    serialize = keras.saving.serialize_keras_object
    copy = keras.saving.deserialize_keras_object(serialize(layer))
    assert serialize(copy) == serialize(layer)
    assert (copy.mask_zero, float(copy.embeddings_regularizer.l2)) == (True, 0.25)
    assert (
        layers.Embedding(DIM)
        .get_config()
        .keys()
        .isdisjoint({"mask_zero", "embeddings_regularizer"})
    )
