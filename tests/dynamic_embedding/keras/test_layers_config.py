"""Layers as configurations: get_config, from_config, clones, and what summaries say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from layers_support import (
    DIM,
    KERAS_WARNS,
    ROWS,
    THREE,
    content,
    de,
    filled,
    layers,
    model_of,
    to_numpy,
)

from support import assert_identical

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

KINDS = ("Embedding", "BasicEmbedding", "SquashedEmbedding", "FieldWiseEmbedding")
IDS = np.array([[3, 17, 100], [0, 3, 101]])
TARGETS = np.array([[1.0], [-2.0]], np.float32)


@keras.saving.register_keras_serializable("layers_config")
def by_remainder(ids: tf.Tensor) -> tf.Tensor:
    return ids % 3


@keras.saving.register_keras_serializable("layers_config")
def doubled_sum(values: tf.Tensor, axis: int) -> tf.Tensor:
    return 2 * tf.reduce_sum(values, axis=axis)


@keras.saving.register_keras_serializable("layers_config")
def everything_last(keys: tf.Tensor, partitions: int) -> tf.Tensor:
    return tf.zeros_like(keys, tf.int32) + partitions - 1


def make(kind: str, **options: Any) -> Any:
    if kind == "FieldWiseEmbedding":
        options = {"nslots": 3, "slot_map_fn": by_remainder, **options}
    return getattr(layers, kind)(DIM, **options)


def through_json(layer: Any) -> Any:
    """Saves a layer to a file, and returns the loaded one."""
    text = json.dumps(keras.saving.serialize_keras_object(layer))
    return keras.saving.deserialize_keras_object(json.loads(text))


@pytest.mark.parametrize("way", ["config", "json"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_option_comes_back(kind: str, way: str) -> None:
    layer = make(
        kind,
        key_dtype=tf.string if kind != "FieldWiseEmbedding" else tf.int32,
        value_dtype=tf.float16,
        combiner="mean",
        initializer=keras.initializers.RandomUniform(-1.0, 2.0, seed=7),
        devices=THREE,
        name="users",
        with_unique=False,
        trainable=False,
        bp_v2=True,
        init_capacity=96,
        max_norm=1.0,
        keep_distribution=True,
        activity_regularizer=keras.regularizers.L2(0.5),
    )
    config = layer.get_config()
    copy = type(layer).from_config(config) if way == "config" else through_json(layer)
    assert type(copy) is type(layer)
    assert copy is not layer
    serialize = keras.saving.serialize_keras_object
    assert serialize(copy) == serialize(layer)
    said = {"embedding_size": DIM, "combiner": "mean", "with_unique": False, "max_norm": 1.0}
    said |= {"name": "users", "trainable": False, "bp_v2": True, "init_capacity": 96}
    assert {name: config[name] for name in said} == said
    assert (copy.name, copy.trainable, copy.activity_regularizer.l2) == ("users", False, 0.5)
    params, expected = copy.params, layer.params
    for name in ("key_dtype", "value_dtype", "dim", "shard_num", "init_size", "bp_v2"):
        assert getattr(params, name) == getattr(expected, name), name
    assert (params.shard_num, params.init_size) == (3, 96)
    ids = tf.constant(["a", "b"]) if params.key_dtype == tf.string else tf.constant([1, 2])
    assert_identical(to_numpy(params.lookup(ids)), to_numpy(expected.lookup(ids)))
    assert (to_numpy(params.lookup(ids)) > 0.06).any(), "not the initializer that was given"
    assert np.linalg.norm(to_numpy(copy(ids[:, None])).astype(float), axis=-1).max() < 1.01


@pytest.mark.parametrize(
    "initializer",
    [
        None,
        0.25,
        "ones",
        keras.initializers.Constant(0.5),
        keras.initializers.RandomNormal(stddev=3.0),
        keras.initializers.TruncatedNormal(1.0, 0.5, seed=3),
        keras.initializers.GlorotUniform(seed=4),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_initializer_comes_back(initializer: Any) -> None:
    layer = layers.Embedding(DIM, initializer=initializer)
    copy = through_json(layer)
    assert_identical(to_numpy(copy(IDS)), to_numpy(layer(IDS)))


@pytest.mark.parametrize("kept", [True, False])
def test_devices_come_back_if_they_are_to_be_kept(kept: bool) -> None:
    layer = layers.Embedding(DIM, devices=THREE, keep_distribution=kept)
    assert layer.params.shard_num == 3
    assert through_json(layer).params.shard_num == (3 if kept else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_functions_come_back(kind: str) -> None:
    layer = make(
        kind,
        combiner=doubled_sum,
        devices=THREE,
        partitioner=everything_last,
        keep_distribution=True,
        initializer=1.0,
    )
    copy = through_json(layer)
    ids = tf.ragged.constant([[3, 6], [1]], dtype=tf.int64)
    if kind in ("SquashedEmbedding", "FieldWiseEmbedding"):
        ids = tf.constant([[3, 6], [1, 2]], tf.int64)
    out = to_numpy(copy(ids))
    assert out.max() == 4.0
    assert_identical(out, to_numpy(layer(ids)))
    assert copy.params.partitioner is everything_last


def test_the_kind_of_table_comes_back() -> None:
    config = de.HkvHashTableConfig(init_capacity=1024, max_capacity=2048)
    layer = layers.Embedding(DIM, kv_creator=de.HkvHashTableCreator(config))
    creator = through_json(layer).params.kv_creator
    assert type(creator) is de.HkvHashTableCreator
    assert (creator.config.init_capacity, creator.config.max_capacity) == (1024, 2048)


@pytest.mark.parametrize("kind", KINDS)
def test_a_clone_has_a_table_of_its_own(kind: str) -> None:
    layer = make(kind, combiner="mean")
    model = model_of(layer)
    model.train_on_batch(IDS, TARGETS)
    before = content(layer)
    clone = keras.models.clone_model(model)
    copy = clone.layers[1]
    assert type(copy) is type(layer)
    assert int(copy.params.size()) == 0
    clone.compile("sgd", "mse")
    clone.train_on_batch(IDS + 1, TARGETS)
    assert set(content(copy)) == set((IDS + 1).ravel().tolist())
    assert content(layer) == before


def parameters_in_summary(model: keras.Model, name: str) -> str:
    lines: list[str] = []
    model.summary(print_fn=lambda text, **_: lines.extend(text.splitlines()))
    found = [line for line in lines if f" {name} (" in line]
    assert len(found) == 1, "\n".join(lines)
    return found[0].split("│")[3].strip()


def test_the_summary_counts_the_keys_there_are() -> None:
    layer = layers.Embedding(DIM, name="users", devices=THREE)
    model = model_of(layer)
    assert (layer.count_params(), parameters_in_summary(model, "users")) == (0, "0")
    layer.params.upsert(tf.range(298, dtype=tf.int64), np.ones((298, DIM)))
    model.train_on_batch(np.array([[1, 1, 1000], [2, 1, 1001]]), TARGETS)
    assert layer.count_params() == 300 * DIM
    assert parameters_in_summary(model, "users") == "1,200"


def test_parameters_are_not_counted_before_there_are_any() -> None:
    with pytest.raises(ValueError):
        layers.Embedding(DIM).count_params()


@pytest.mark.parametrize("devices", [None, THREE])
@pytest.mark.parametrize("key_dtype", [tf.int64, tf.string])
def test_weights_are_keys_and_values(key_dtype: tf.DType, devices: Any) -> None:
    layer = filled(key_dtype=key_dtype, devices=devices)
    keys, values = layer.get_weights()
    assert isinstance(keys, np.ndarray)
    assert isinstance(values, np.ndarray)
    assert (keys.shape, values.shape, values.dtype) == ((20,), (20, DIM), np.float32)
    assert {int(key): row.tobytes() for key, row in zip(keys, values, strict=True)} == {
        number: row.tobytes() for number, row in enumerate(ROWS)
    }
    other = layers.Embedding(DIM, key_dtype=key_dtype)
    other.params.upsert(["999"] if key_dtype == tf.string else [999], ROWS[:1])
    other.set_weights([keys, values])
    assert content(other) == content(layer)
    other.set_weights([keys[:3], values[:3]])
    assert int(other.params.size()) == 3
    assert_identical(to_numpy(other(tf.constant(keys[:3]))), values[:3])


@pytest.mark.parametrize(
    "weights",
    [
        [],
        [np.arange(3)],
        [np.arange(3), ROWS[:3], ROWS[:3]],
        [np.arange(3), ROWS[:2]],
        [np.arange(3), ROWS[:3, :2]],
        [np.arange(3)[:, None], ROWS[:3]],
    ],
    ids=["nothing", "keys", "too many", "too few rows", "short rows", "matrix of keys"],
)
def test_wrong_weights_change_nothing(weights: list[Any]) -> None:
    layer = filled()
    before = content(layer)
    with pytest.raises(ValueError):
        layer.set_weights(weights)
    assert content(layer) == before


def test_names_of_arguments_that_tfra_took() -> None:
    layer = layers.FieldWiseEmbedding(2, 2, slot_map_fn=lambda ids: ids % 2, combiner="sqrt_n")
    assert layer.combiner == "sqrtn"
    layer = layers.Embedding(2, init_capacity=1e3, checkpoint=False)
    assert layer.params.init_size == 1000
    assert layer.params.checkpoint is False
    again = layers.Embedding.from_config(layer.get_config())
    assert again.params.checkpoint is False


def test_rows_that_checkpoints_leave_out_are_in_files_of_keras(tmp_path: Path) -> None:
    def model() -> keras.Model:
        inputs = keras.Input((1,), dtype="int64")
        rows = layers.Embedding(DIM, checkpoint=False, name="left_out")(inputs)
        return keras.Model(inputs, keras.layers.Dense(1)(rows))

    trained, by_keras, by_tensorflow = model(), model(), model()
    trained.compile("sgd", "mse")
    trained.train_on_batch(np.array([[1], [2]]), np.ones((2, 1, 1)))
    assert int(trained.layers[1].params.size()) == 2
    trained.save_weights(tmp_path / "model.weights.h5")
    by_keras.load_weights(tmp_path / "model.weights.h5")
    assert int(by_keras.layers[1].params.size()) == 2
    path = tf.train.Checkpoint(model=trained).write(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(model=by_tensorflow).read(path).expect_partial()
    assert int(by_tensorflow.layers[1].params.size()) == 0
