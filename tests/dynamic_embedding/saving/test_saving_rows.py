"""Saved layers: every type, any number of tables; loading replaces all that was there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import saving_support as saving
import tensorflow as tf
from layers_support import (
    DIM,
    KERAS_WARNS,
    ROWS,
    THREE,
    content,
    filled,
    layers,
    model_of,
)

from support import Array, numpy_dtype

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

KINDS = ("keras", "weights", "checkpoint")
TYPES = [
    ("int64", "float32"),
    ("int64", "bfloat16"),
    ("int64", "float64"),
    ("int32", "float32"),
    ("string", "float16"),
    ("string", "float32"),
]
IDS = np.array([[3, 17, 100], [0, 3, 101]])
TARGETS = np.array([[1.0], [-2.0]], np.float32)


@keras.saving.register_keras_serializable("layers_rows")
def by_remainder(ids: tf.Tensor) -> tf.Tensor:
    return ids % 3


@keras.saving.register_keras_serializable("layers_rows")
class TwoTowers(keras.Model):
    """A model of a user, with one layer for both towers."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shared = layers.SquashedEmbedding(DIM, name="shared")
        self.score = keras.layers.Dot(axes=1)

    def call(self, inputs: Any, training: bool | None = None) -> tf.Tensor:
        users, items = (self.shared(ids, training=training) for ids in inputs)
        return self.score([users, items])


def extreme_keys(key_dtype: str) -> Any:
    if key_dtype == "string":
        return saving.ODD_STRINGS
    limits = np.iinfo(key_dtype)
    return [0, -1, 1, limits.max, limits.min, limits.max - 1, limits.min + 1, 77]


def extreme_rows(value_dtype: str) -> Array:
    """Rows that a conversion easily changes: NaN, infinities, zeros and tiny numbers."""
    dtype = numpy_dtype(value_dtype)
    numbers = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1 / 3, -1e-7, 3e4] * DIM)
    with np.errstate(over="ignore", under="ignore"):
        return numbers.reshape(8, DIM).astype(dtype)


def model_with(layer: Any) -> keras.Model:
    dtype = layer.params.key_dtype.name
    inputs = keras.Input((3,), dtype=dtype)
    return keras.Model(inputs, layer(inputs))


def save_and_load(saved: keras.Model, model: keras.Model, kind: str, folder: Path) -> keras.Model:
    """What is loaded: a new model from a .keras file, or else `model` with what was saved."""
    path = str(folder / saving.FILES[kind])
    saving.save(saved, kind, path)
    if kind == "keras":
        return keras.models.load_model(path)
    if kind == "weights":
        model.load_weights(path)
    else:
        # A model that is not compiled has no place for the state of an optimizer.
        tf.train.Checkpoint(model=model).read(path).assert_existing_objects_matched()
    return model


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key_dtype, value_dtype", TYPES)
def test_every_type_comes_back(key_dtype: str, value_dtype: str, kind: str, tmp_path: Path) -> None:
    def make() -> Any:
        types = {"key_dtype": tf.as_dtype(key_dtype), "value_dtype": tf.as_dtype(value_dtype)}
        return layers.Embedding(DIM, name="users", **types)

    layer = make()
    layer.params.upsert(tf.constant(extreme_keys(key_dtype), key_dtype), extreme_rows(value_dtype))
    expected = content(layer)
    assert len(expected) == 8
    loaded = save_and_load(model_with(layer), model_with(make()), kind, tmp_path)
    params = loaded.layers[1].params
    assert (params.key_dtype.name, params.value_dtype.name) == (key_dtype, value_dtype)
    assert content(loaded.layers[1]) == expected
    assert content(layer) == expected


@pytest.mark.parametrize("kind", ["weights", "checkpoint"])
def test_loading_replaces_what_was_there(kind: str, tmp_path: Path) -> None:
    layer, other = filled(name="users"), layers.Embedding(DIM, name="users")
    other.params.upsert([5, 1000], ROWS[:2])
    save_and_load(model_with(layer), model_with(other), kind, tmp_path)
    assert content(other) == content(layer)


@pytest.mark.parametrize("kind", ["weights", "checkpoint"])
@pytest.mark.parametrize("before, after", [(1, 3), (3, 1), (3, 2)])
def test_any_number_of_tables(kind: str, before: int, after: int, tmp_path: Path) -> None:
    layer = filled(name="users", devices=["/CPU:0"] * before)
    other = layers.Embedding(DIM, name="users", devices=["/CPU:0"] * after)
    save_and_load(model_with(layer), model_with(other), kind, tmp_path)
    assert content(other) == content(layer)
    assert other.params.shard_num == after
    assert all(int(other.params.size(i)) > 0 for i in range(after))


@pytest.mark.parametrize("kept", [True, False])
def test_devices_of_a_whole_model(kept: bool, tmp_path: Path) -> None:
    layer = filled(devices=THREE, keep_distribution=kept)
    loaded = save_and_load(model_with(layer), None, "keras", tmp_path).layers[1]
    assert loaded.params.shard_num == (3 if kept else 1)
    assert content(loaded) == content(layer)


@pytest.mark.parametrize("key_dtype", [tf.int64, tf.string])
@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_layer_comes_back_empty(kind: str, key_dtype: tf.DType, tmp_path: Path) -> None:
    layer = layers.Embedding(DIM, name="users", key_dtype=key_dtype)
    other = filled(name="users", key_dtype=key_dtype)
    loaded = save_and_load(model_with(layer), model_with(other), kind, tmp_path).layers[1]
    assert content(loaded) == {}


@pytest.mark.filterwarnings("ignore:Skipping nested container")
def test_rows_of_another_length_are_not_loaded(tmp_path: Path) -> None:
    model = model_with(layers.Embedding(DIM + 1, name="users"))
    with pytest.raises(ValueError):
        save_and_load(model_with(filled(name="users")), model, "weights", tmp_path)
    assert content(model.layers[1]) == {}


def test_weights_of_a_trained_model_in_one_that_is_not_compiled(tmp_path: Path) -> None:
    variant = saving.VARIANTS["adam"]
    model, other = variant.model(), keras.models.clone_model(variant.model())
    variant.train(model, 0)
    save_and_load(model, other, "weights", tmp_path)
    assert saving.tables_of(other) == saving.tables_of(model)
    np.testing.assert_array_equal(variant.predict(other), variant.predict(model))


@pytest.mark.parametrize("kind", KINDS)
def test_layers_without_a_name_are_not_confused(kind: str, tmp_path: Path) -> None:
    def make() -> keras.Model:
        inputs = keras.Input((3,), dtype="int64")
        return keras.Model(inputs, [layers.Embedding(DIM)(inputs) for _ in range(3)])

    model = make()
    for number, layer in enumerate(model.layers[1:]):
        layer.params.upsert([number], ROWS[number : number + 1])
    loaded = save_and_load(model, make(), kind, tmp_path)
    keys = [set(content(layer)) for layer in loaded.layers[1:]]
    assert keys == [{0}, {1}, {2}]
    if kind == "keras":
        assert [layer.name for layer in loaded.layers] == [layer.name for layer in model.layers]


@pytest.mark.parametrize("options", [{}, {"nslots": 3, "slot_map_fn": by_remainder}])
def test_pooled_layers_of_a_whole_model(options: dict[str, Any], tmp_path: Path) -> None:
    kind = layers.FieldWiseEmbedding if options else layers.SquashedEmbedding
    model = model_of(filled(kind, combiner="mean", **options))
    model.train_on_batch(IDS, TARGETS)
    loaded = save_and_load(model, None, "keras", tmp_path)
    assert type(loaded.layers[1]) is kind
    assert content(loaded.layers[1]) == content(model.layers[1])
    np.testing.assert_array_equal(loaded.predict(IDS, verbose=0), model.predict(IDS, verbose=0))


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_a_users_own(kind: str, tmp_path: Path) -> None:
    inputs = [tf.constant(IDS), tf.constant(IDS[::-1] + 1)]
    model, other = TwoTowers(), TwoTowers()
    model.compile("adam", "mse")
    other(inputs)
    model.train_on_batch(inputs, TARGETS)
    assert len(content(model.shared)) == len({*IDS.ravel(), *(IDS.ravel() + 1)})
    loaded = save_and_load(model, other, kind, tmp_path)
    assert content(loaded.shared) == content(model.shared)
    np.testing.assert_array_equal(loaded(inputs), model(inputs))


def test_a_frozen_layer_is_saved(tmp_path: Path) -> None:
    model = model_of(filled(trainable=False))
    loaded = save_and_load(model, None, "keras", tmp_path).layers[1]
    assert loaded.trainable is False
    assert content(loaded) == content(model.layers[1])
