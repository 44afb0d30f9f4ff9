"""The Embedding layer as a Keras layer: options, table, training, types, masks and modes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from layers_support import (
    COUNT,
    DIM,
    KERAS_WARNS,
    ROWS,
    THREE,
    assert_close,
    content,
    de,
    dense_step,
    filled,
    layers,
    model_of,
    raises,
    rows,
    sgd_step,
    table_rows,
    to_numpy,
)

from support import assert_identical

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

IDS = np.array([[3, 17, 100], [0, 3, 101]])
TARGETS = np.array([[1.0], [-2.0]], np.float32)
# The arguments that the reference page lists.
PROPERTIES = [
    "activity_regularizer", "compute_dtype", "dtype", "dtype_policy", "dynamic", "input",
    "input_spec", "losses", "metrics", "name", "name_scope", "non_trainable_weights", "output",
    "submodules", "supports_masking", "trainable", "trainable_weights", "variable_dtype", "weights",
]  # fmt: skip
METHODS = [
    "add_loss", "add_metric", "build", "compute_mask", "compute_output_shape", "count_params",
    "from_config", "get_config", "get_weights", "set_weights", "with_name_scope",
]  # fmt: skip
ARGUMENTS = {
    "embedding_size": inspect.Parameter.empty,
    "key_dtype": tf.int64,
    "value_dtype": tf.float32,
    "combiner": "sum",
    "initializer": None,
    "devices": None,
    "name": "DynamicEmbeddingLayer",
    "with_unique": True,
}


class Policy:
    """A policy that restricts nothing."""

    status = None

    def __init__(self, variable: Any) -> None:
        self.variable = variable

    def apply_update(self, keys: Any) -> None: ...

    def apply_restriction(self, num_reserved: int, **kwargs: Any) -> None: ...


def everything_last(keys: tf.Tensor, partitions: int) -> tf.Tensor:
    return tf.zeros_like(keys, tf.int32) + partitions - 1


def test_where_the_classes_are() -> None:
    assert layers.embedding.Embedding is layers.Embedding
    assert issubclass(layers.Embedding, layers.BasicEmbedding)
    for name in ("BasicEmbedding", "SquashedEmbedding", "FieldWiseEmbedding"):
        kind = getattr(layers, name)
        assert issubclass(kind, keras.layers.Layer)
        assert kind is getattr(layers.embedding, name)


def test_the_arguments_are_those_of_the_page() -> None:
    _, *parameters = inspect.signature(layers.Embedding.__init__).parameters.values()
    defaults = {p.name: p.default for p in parameters[: len(ARGUMENTS)]}
    assert list(defaults.items()) == list(ARGUMENTS.items())
    assert parameters[-1].kind is inspect.Parameter.VAR_KEYWORD


def test_members_that_keras_still_has() -> None:
    layer, plain = layers.Embedding(DIM), keras.layers.Embedding(3, DIM)
    inputs = keras.Input((2,), dtype="int64")
    layer(inputs), plain(inputs)
    expected = {name for name in PROPERTIES + METHODS if hasattr(plain, name)}
    assert {name for name in expected if not hasattr(layer, name)} == set()
    assert layer.input is inputs
    assert layer.output.shape == (None, 2, DIM)


def test_options_reach_the_table() -> None:
    creator = de.CuckooHashTableCreator()
    layer = layers.Embedding(
        DIM,
        tf.string,
        tf.float64,
        devices=THREE,
        trainable=False,
        bp_v2=True,
        restrict_policy=Policy,
        init_capacity=96,
        partitioner=everything_last,
        kv_creator=creator,
    )
    params = layer.params
    assert isinstance(params, de.Variable)
    assert (params.key_dtype, params.value_dtype, params.dim) == (tf.string, tf.float64, DIM)
    assert (params.shard_num, params.init_size, params.bp_v2) == (3, 96, True)
    assert params.trainable is False
    assert params.partitioner is everything_last
    assert params.kv_creator is creator
    assert isinstance(params.restrict_policy, Policy)
    params.upsert(["a", "b"], np.ones((2, DIM)))
    assert [int(params.size(i)) for i in range(3)] == [0, 0, 2]
    assert_identical(to_numpy(layer(tf.constant(["b"]))), np.ones((1, DIM)))


def test_every_keyword_is_taken() -> None:
    keywords = {"max_norm": None, "distribute_strategy": None, "restrict_policy": None}
    others = {"keep_distribution": False, "short_file_name": False, "activity_regularizer": None}
    layer = layers.Embedding(DIM, **keywords, **others, dtype="float32", bp_v2=False)
    assert layer([1]).shape == (1, DIM)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"embeding_size": 3}, "embeding_size"),
        ({"mask_zeros": True}, "mask_zeros"),
        ({"combiner": "median"}, "median"),
        ({"combiner": 3}, "3"),
        ({"key_dtype": tf.float32}, "float32"),
        ({"embedding_size": 0}, "0"),
        ({"embedding_size": -1}, "-1"),
        ({"embedding_size": "many"}, "many"),
        ({"max_norm": -1.0}, "-1"),
        ({"devices": []}, "devices"),
    ],
    ids=str,
)
def test_wrong_arguments(options: dict[str, Any], said: str) -> None:
    raises(lambda: layers.Embedding(**{"embedding_size": DIM, **options}).params, said)


@pytest.mark.parametrize("size", ["3", np.int32(3), 3.0])
def test_what_can_be_made_an_integer_is_a_size(size: Any) -> None:
    assert layers.Embedding(size)([1, 2]).shape == (2, 3)


def test_the_table_is_there_before_the_first_call() -> None:
    layer = layers.Embedding(DIM)
    params = layer.params
    layer(IDS)
    assert layer.params is params
    assert len(layer.weights) == 1


def test_layers_without_a_name_in_one_model() -> None:
    first, second = layers.Embedding(DIM), layers.Embedding(DIM)
    assert first.name != second.name
    inputs = keras.Input((3,), dtype="int64")
    output = keras.layers.Flatten()(first(inputs) - second(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(output))
    model.compile("sgd", "mse")
    first.params.upsert([3], ROWS[:1])
    model.train_on_batch(IDS, TARGETS)
    assert set(content(first)) == set(content(second)) == set(IDS.ravel().tolist())
    assert content(first) != content(second)


def test_a_given_name_is_kept() -> None:
    assert [layers.Embedding(DIM, name="users").name for _ in range(2)] == ["users"] * 2


def test_the_default_initializer_is_random_normal() -> None:
    found = layers.Embedding(8)(tf.range(10_000)).numpy()
    assert abs(found.mean()) < 0.001
    assert 0.049 < found.std() < 0.051  # The distribution of keras.initializers.RandomNormal.
    assert 0.66 < (abs(found) < 0.05).mean() < 0.70


@pytest.mark.parametrize("initializer", [0.5, keras.initializers.Constant(0.5), "ones"])
def test_an_initializer_makes_missing_rows(initializer: Any) -> None:
    expected = 1.0 if initializer == "ones" else 0.5
    layer = layers.Embedding(DIM, initializer=initializer)
    np.testing.assert_array_equal(layer(IDS), np.full((2, 3, DIM), expected))


@pytest.mark.parametrize("devices", [None, THREE])
def test_only_training_inserts(devices: Any) -> None:
    layer = layers.Embedding(DIM, devices=devices)
    model = model_of(layer)
    for training in (None, False, True):
        layer(IDS, training=training)
    model.predict(IDS, verbose=0)
    model.evaluate(IDS, TARGETS, verbose=0)
    model(IDS)
    assert int(layer.params.size()) == 0
    model.train_on_batch(IDS, TARGETS)
    trained = content(layer)
    assert set(trained) == set(IDS.ravel().tolist())
    model.predict(IDS + 1000, verbose=0)
    model.evaluate(IDS + 1000, TARGETS, verbose=0)
    assert content(layer) == trained


def test_one_variable_stands_for_the_table() -> None:
    layer = layers.Embedding(DIM)
    model = model_of(layer)
    assert len(layer.trainable_variables) == 1
    assert len(model.trainable_variables) == 3
    layer.trainable = False
    assert layer.trainable_variables == []
    assert len(model.trainable_variables) == 2
    layer.trainable = True
    assert len(layer.trainable_variables) == 1


@pytest.mark.parametrize("when", ["made", "later"])
def test_a_frozen_layer_is_left_alone(when: str) -> None:
    layer = filled(trainable=when == "later")
    if when == "later":
        layer.trainable = False
    model, before = model_of(layer), content(layer)
    kernel = model.layers[-1].get_weights()[0]
    model.fit(IDS, TARGETS, verbose=0)
    assert content(layer) == before
    assert not np.array_equal(model.layers[-1].get_weights()[0], kernel)


def test_a_frozen_layer_can_be_thawed() -> None:
    layer = filled(trainable=False)
    model, before = model_of(layer), content(layer)
    layer.trainable = True
    model.compile("sgd", "mse")
    model.train_on_batch(IDS, TARGETS)
    after = content(layer)
    assert set(after) == set(before) | {100, 101}
    assert {key for key in before if after[key] != before[key]} == {0, 3, 17}


class Averaged(layers.Embedding):
    """A layer of a user that returns another shape."""

    def call(self, ids: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        return tf.reduce_mean(super().call(ids, training=training), axis=1)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (input_shape[0], self.embedding_size)


def test_a_layer_that_inherits() -> None:
    layer = filled(Averaged)
    ids = IDS % COUNT
    assert_close(layer(ids), ROWS[ids].mean(1))
    assert layer(keras.Input((3,), dtype="int64")).shape == (None, DIM)
    model, before = model_of(layer), content(layer)
    model.train_on_batch(ids, TARGETS)
    changed = {key for key, row in content(layer).items() if row != before[key]}
    assert changed == set(ids.ravel().tolist())


def test_the_activity_regularizer_counts_as_for_keras_own_layer() -> None:
    regularizer = keras.regularizers.L2(0.5)
    layer = filled(activity_regularizer=regularizer)
    plain = keras.layers.Embedding(COUNT, DIM, activity_regularizer=regularizer)
    ids = IDS % COUNT
    layer(ids), plain(ids)
    plain.set_weights([ROWS])
    layer(ids), plain(ids)
    assert layer.losses
    np.testing.assert_allclose(layer.losses[-1], plain.losses[-1], rtol=1e-6)


@pytest.mark.parametrize("value_dtype", ["float16", "bfloat16", "float32", "float64"])
def test_rows_of_every_floating_type(value_dtype: str) -> None:
    layer, ids = filled(value_dtype=tf.as_dtype(value_dtype)), IDS % COUNT
    assert layer.params.value_dtype.name == value_dtype
    values = rows(value_dtype)
    assert_identical(to_numpy(layer(ids)), values[ids])
    sgd_step(layer, ids[0], np.ones((3, DIM)), learning_rate=0.25)
    values[ids[0]] -= values.dtype.type(0.25)
    assert_identical(table_rows(layer), values)


@pytest.fixture(params=["argument", "global"])
def mixed_policy(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Options of a layer, where it computes in float16."""
    before = keras.config.dtype_policy()
    if request.param == "argument":
        yield {"dtype": "mixed_float16"}
    else:
        keras.config.set_dtype_policy("mixed_float16")
        yield {}
        keras.config.set_dtype_policy(before)


def test_mixed_precision_keeps_rows_of_float32(mixed_policy: dict[str, str]) -> None:
    layer, ids = filled(**mixed_policy), IDS[0] % COUNT
    assert layer.params.value_dtype == tf.float32
    assert (layer.compute_dtype, layer.variable_dtype) == ("float16", "float32")
    assert_identical(to_numpy(layer(ids)), ROWS[ids].astype(np.float16))
    layer.params.upsert(ids, np.ones((3, DIM)))
    sgd_step(layer, ids, np.ones((3, DIM)), learning_rate=2.0**-20)
    # In float16 this would be 1.
    assert_identical(table_rows(layer)[ids], np.full((3, DIM), 1 - 2.0**-20, np.float32))


def test_mixed_precision_pools_to_float16(mixed_policy: dict[str, str]) -> None:
    out = filled(**mixed_policy)(tf.ragged.constant([[1, 2], []], dtype=tf.int64))
    assert out.dtype == tf.float16
    assert_close(out, np.stack([ROWS[1] + ROWS[2], ROWS[0] * 0]), tolerance=1e-2)


def clipped(table: Any, limit: float) -> tf.Tensor:
    return tf.clip_by_norm(table, limit, axes=[1])


@pytest.mark.parametrize("limit", [0.5, 2.0, 100.0])
def test_rows_are_no_longer_than_max_norm(limit: float) -> None:
    layer, before = filled(max_norm=limit), content(filled())
    lengths = np.linalg.norm(ROWS, axis=1)
    assert ((lengths > limit).any(), (lengths < limit).any()) == (limit < 100, limit > 0.5)
    out = layer(tf.range(COUNT))
    assert_close(out, clipped(ROWS, limit).numpy())
    assert np.linalg.norm(out, axis=1).max() <= limit * 1.00001
    assert content(layer) == before


def test_max_norm_counts_before_pooling() -> None:
    expected = clipped(ROWS, 1.0).numpy()
    out = filled(max_norm=1.0)(tf.ragged.constant([[1, 2, 3], [4]], dtype=tf.int64))
    assert_close(out, np.stack([expected[1:4].sum(0), expected[4]]))


def test_a_step_through_max_norm() -> None:
    layer = filled(max_norm=2.0)
    weights = np.random.default_rng(6).standard_normal((COUNT, DIM)).astype(np.float32)
    sgd_step(layer, tf.range(COUNT), weights)
    assert_close(table_rows(layer), dense_step(lambda table: clipped(table, 2.0), weights))


@pytest.fixture
def inference_mode() -> Iterator[None]:
    de.enable_inference_mode()
    yield
    de.enable_train_mode()


def test_modes() -> None:
    assert de.get_model_mode() == de.ModelMode.TRAIN == "train"
    de.enable_inference_mode()
    try:
        assert de.get_model_mode() == de.ModelMode.INFERENCE == "inference"
        assert de.ModelMode.CURRENT_SETTING == "inference"
    finally:
        de.enable_train_mode()
    assert de.get_model_mode() == "train"


def test_inference_mode_records_no_gradients(inference_mode: None) -> None:
    layer = filled()
    with tf.GradientTape() as tape:
        out = layer(IDS, training=True)
        loss = tf.reduce_sum(out)
    assert_identical(to_numpy(out)[0, :2], ROWS[[3, 17]])
    assert all(gradient is None for gradient in tape.gradient(loss, layer.trainable_variables))


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_inference_mode_trains_no_table(inference_mode: None) -> None:
    layer = filled()
    model, before = model_of(layer), content(layer)
    model.train_on_batch(IDS, TARGETS)
    assert content(layer) == before


def test_train_mode_trains_again() -> None:
    de.enable_inference_mode()
    de.enable_train_mode()
    layer = filled()
    before = content(layer)
    model_of(layer).train_on_batch(IDS, TARGETS)
    assert set(content(layer)) == set(before) | {100, 101}
