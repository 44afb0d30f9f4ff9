"""One table of several layers, or of layers and lookup functions: training, files, configs."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import saving_support as saving
import tensorflow as tf
from layers_support import DIM, KERAS_WARNS, content, de, layers, raises

import support
import tfra
from support import Content

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

IDS = np.array([[3, 17, 19], [0, 3, 11], [5, 2, 3], [8, 9, 3]])
ITEMS = IDS[::-1] + 1
TARGETS = np.array([[1.0], [-2.0], [0.5], [3.0]], np.float32)


@keras.saving.register_keras_serializable("layers_shared")
def by_length(ids: tf.Tensor) -> tf.Tensor:
    return tf.strings.length(ids) % 3


def new_variable(**options: Any) -> Any:
    start = keras.initializers.RandomNormal(seed=5)
    return de.Variable(dim=DIM, **{"name": "films", "initializer": start, **options})


def seen_and_candidate(params: Any, **options: Any) -> tuple[Any, Any]:
    """Two layers of different classes on one table."""
    seen = layers.SquashedEmbedding(DIM, params=params, combiner="mean", name="seen")
    return seen, layers.Embedding(DIM, params=params, name="candidate", **options)


def given_a_variable() -> tuple[Any, Any]:
    return seen_and_candidate(new_variable())


def given_the_table_of_the_first() -> tuple[Any, Any]:
    start = keras.initializers.RandomNormal(seed=5)
    seen = layers.SquashedEmbedding(DIM, combiner="mean", name="seen", initializer=start)
    return seen, layers.Embedding(DIM, params=seen.params, name="candidate")


def given_the_table_of_the_second() -> tuple[Any, Any]:
    start = keras.initializers.RandomNormal(seed=5)
    candidate = layers.Embedding(DIM, name="candidate", initializer=start)
    seen = layers.SquashedEmbedding(DIM, params=candidate.params, combiner="mean", name="seen")
    return seen, candidate


MAKERS = [given_a_variable, given_the_table_of_the_first, given_the_table_of_the_second]
Maker = Callable[[], tuple[Any, Any]]


def flat_model(pair: tuple[Any, Any]) -> keras.Model:
    """A model that calls both layers."""
    ids, items = (keras.Input((3,), dtype="int64") for _ in range(2))
    joined = keras.layers.Concatenate()([pair[0](ids), keras.layers.Flatten()(pair[1](items))])
    dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
    return keras.Model([ids, items], dense(joined))


def towers(pair: tuple[Any, Any]) -> keras.Model:
    """The same model, made of two models."""
    ids, items = (keras.Input((3,), dtype="int64") for _ in range(2))
    first = keras.Model(ids, pair[0](ids), name="first")
    second = keras.Model(items, keras.layers.Flatten()(pair[1](items)), name="second")
    ids, items = (keras.Input((3,), dtype="int64") for _ in range(2))
    joined = keras.layers.Concatenate()([first(ids), second(items)])
    dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
    return keras.Model([ids, items], dense(joined))


def train(model: keras.Model, steps: int = 3) -> keras.Model:
    if not model.compiled:
        model.compile(keras.optimizers.Adagrad(0.5), "mse", run_eagerly=True)
    for _ in range(steps):
        model.train_on_batch([IDS, ITEMS], TARGETS)
    return model


def params_of(model: keras.Model) -> list[Any]:
    """The Variables of the two layers of a model."""
    found = {layer.name: layer for layer in model._flatten_layers()}
    return [found[name].params for name in ("seen", "candidate")]


@pytest.mark.parametrize("make", MAKERS)
def test_one_step_trains_the_rows_with_the_gradients_of_all(make: Maker) -> None:
    pair = make()
    model = flat_model(pair)
    params = pair[0].params
    assert pair[1].params is params
    assert sum(v.path.endswith("shadow") for v in model.trainable_variables) == 1

    table = keras.Variable(params.lookup(np.arange(30)))
    kernel, bias = (keras.Variable(weight) for weight in model.layers[-1].get_weights())
    variables = [table, kernel, bias]
    optimizer = keras.optimizers.Adagrad(0.5)
    for _ in range(3):
        with tf.GradientTape() as tape:
            rows = tf.convert_to_tensor(table)
            mean = tf.reduce_mean(tf.gather(rows, IDS), axis=1)
            flat = tf.reshape(tf.gather(rows, ITEMS), [len(ITEMS), -1])
            output = tf.concat([mean, flat], axis=1) @ kernel + bias
            loss = tf.reduce_mean((output - TARGETS) ** 2)
        gradients = tape.gradient(loss, [v.value for v in variables])
        optimizer.apply([tf.convert_to_tensor(g) for g in gradients], variables)

    train(model)
    used = np.unique([IDS, ITEMS])
    assert int(params.size()) == len(used)
    np.testing.assert_allclose(params.lookup(used), table.numpy()[used], rtol=1e-4, atol=1e-5)
    [accumulator] = params.get_slot_variables(model.optimizer)
    assert int(accumulator.size()) == len(used)


def content_of(params: Any) -> Content:
    keys, values = params.export()
    return support.as_content(keys.numpy(), values.numpy())


def stored_tables(kind: str, path: str) -> int:
    """How many times a file has the keys of a table."""
    if kind == "checkpoint":
        return sum("/keys" in name for name, _ in tf.train.list_variables(path))
    if kind == "keras":
        with zipfile.ZipFile(path) as archive:
            path = archive.extract("model.weights.h5", str(Path(path).parent))
    names: list[str] = []
    with h5py.File(path) as file:
        file.visit(names.append)
    return sum(name.endswith("/keys") for name in names)


CASES = [
    *((make, flat_model, kind) for make in MAKERS for kind in ("keras", "weights", "checkpoint")),
    *((make, towers, kind) for make in MAKERS for kind in ("keras", "weights")),
]


@pytest.mark.parametrize("make, model_of, kind", CASES)
def test_saved_once_and_loaded_as_one(
    make: Maker, model_of: Any, kind: str, tmp_path: Path
) -> None:
    model = train(model_of(make()))
    path = str(tmp_path / saving.FILES[kind])
    saving.save(model, kind, path)
    assert stored_tables(kind, path) == 1

    if kind == "keras":
        loaded = keras.models.load_model(path)
        loaded.run_eagerly = True
    else:
        loaded = train(model_of(make()), steps=0)
        loaded.optimizer.build(loaded.trainable_variables)
        if kind == "weights":
            loaded.load_weights(path)
        else:
            tf.train.Checkpoint(model=loaded).read(path).assert_existing_objects_matched()
    [old, _], [params, second] = params_of(model), params_of(loaded)
    assert params is second
    assert params is not old
    assert params.name == old.name
    assert len(loaded.variables) == len(model.variables)

    # Initial rows are the same, too; and so are slots: training goes on as in the first model.
    unseen = [IDS + 1000, ITEMS]
    for _ in range(2):
        expected = model.predict_on_batch(unseen)
        np.testing.assert_array_equal(loaded.predict_on_batch(unseen), expected)
        train(model)
        train(loaded)
    assert content_of(params) == content_of(old)

    if kind == "keras":  # What was loaded can be saved and loaded.
        loaded.save(path)
        assert stored_tables(kind, path) == 1
        again, second = params_of(keras.models.load_model(path))
        assert again is second
        assert content_of(again) == content_of(params)


def test_files_of_one_layer_do_not_depend_on_others_that_share(tmp_path: Path) -> None:
    """A file of the layer that made the table is the same, whoever else uses the table."""
    path = str(tmp_path / "alone.weights.h5")
    alone, other = (layers.Embedding(DIM, name="alone") for _ in range(2))
    models = [keras.Sequential([keras.Input((3,), dtype="int64"), it]) for it in (alone, other)]
    alone.params.upsert([1], [[1.0] * DIM])
    models[0].save_weights(path)
    sharing = layers.Embedding(DIM, params=alone.params)
    alone.params.clear()
    models[0].load_weights(path)
    assert int(alone.params.size()) == 1
    models[0].save_weights(path)
    models[1].load_weights(path)
    assert content(other) == content(alone) == content(sharing)

    # And a layer that shares is saved alone, too, by the layer that is not in the model.
    ids = keras.Input((3,), dtype="int64")
    part = keras.Model(ids, sharing(ids))
    part.save(str(tmp_path / "part.keras"))
    loaded = keras.models.load_model(str(tmp_path / "part.keras")).layers[1]
    assert loaded.params is not alone.params
    assert content(loaded) == content(alone)


@pytest.mark.filterwarnings("ignore:Skipping nested container")
def test_files_of_separate_tables_are_not_loaded_into_one(tmp_path: Path) -> None:
    separate = [layers.SquashedEmbedding(DIM, name="seen"), layers.Embedding(DIM, name="candidate")]
    path = str(tmp_path / "two.weights.h5")
    model = flat_model((separate[0], separate[1]))
    for number, layer in enumerate(separate):
        layer.params.upsert([number], [[1.0] * DIM])
    model.save_weights(path)
    shared = flat_model(given_a_variable())
    raises(lambda: shared.load_weights(path), "shares the table 'films'", "table of its own")

    shared.save_weights(path)
    raises(lambda: model.load_weights(path), "can't be loaded", "`keys`")
    assert [int(layer.params.size()) for layer in separate] == [1, 1]


class Scored(keras.Model):
    """A model with a layer, and a lookup function on the table of that layer."""

    def __init__(self, params: Any = None) -> None:
        super().__init__()
        options = {"initializer": "ones"} if params is None else {"params": params}
        self.users = layers.Embedding(DIM, name="users", **options)

    def call(self, inputs: Any) -> tf.Tensor:
        ids, items = inputs
        found = de.embedding_lookup(self.users.params, items)
        return tf.reduce_sum(self.users(ids), axis=[1, 2]) + 2 * tf.reduce_sum(found, axis=[1, 2])


@pytest.mark.parametrize("given", [True, False])
def test_a_layer_and_a_lookup_function(given: bool) -> None:
    params = new_variable(initializer=1.0) if given else None
    model = Scored(params)
    model.compile(keras.optimizers.SGD(1.0), loss=lambda y, output: output)
    ids = [tf.constant([[1, 2]], tf.int64), tf.constant([[2, 3]], tf.int64)]
    model.fit(ids, TARGETS[:1], verbose=0)
    rows = model.users.params.lookup([1, 2, 3]).numpy()
    assert rows[:, 0].tolist() == [0.0, -2.0, -1.0]  # Gradients 1, 1 + 2 and 2.
    assert len(model.trainable_variables) == 1


def test_a_saved_model_has_one_table(tmp_path: Path) -> None:
    pair = given_the_table_of_the_first()
    pair[0].params.upsert([3], [[5.0] * DIM])
    module = tf.Module()
    module.layers = list(pair)
    signature = [tf.TensorSpec([None, 3], tf.int64)] * 2

    @tf.function(input_signature=signature)
    def serve(ids: tf.Tensor, items: tf.Tensor) -> tf.Tensor:
        found = de.embedding_lookup(pair[0].params, items)
        return pair[0](ids) + tf.reduce_sum(pair[1](items) + found, axis=1)

    module.serve = serve
    tf.saved_model.save(module, str(tmp_path))
    served = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(served.serve(IDS, ITEMS), serve(IDS, ITEMS))
    saved = tf.train.list_variables(str(tmp_path / "variables" / "variables"))
    assert sum(name.endswith("/keys") for name, _ in saved) == 1


def test_a_step_of_ones_own_with_the_variables_of_each_layer() -> None:
    seen, candidate = seen_and_candidate(new_variable(initializer=1.0))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(seen([[1, 2]])) + tf.reduce_sum(candidate([[2, 3]]))
    variables = [*seen.trainable_variables, *candidate.trainable_variables]
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    assert seen.params.lookup([1, 2, 3]).numpy()[:, 0].tolist() == [0.5, -0.5, 0.0]


def test_each_layer_clips_for_itself() -> None:
    params = de.Variable(dim=1, initializer=4.0)
    short, full = (layers.Embedding(1, params=params, max_norm=n) for n in (2.0, None))
    assert (short([7]).numpy().item(), full([7]).numpy().item()) == (2.0, 4.0)
    ragged = tf.ragged.constant([[7, 8]], dtype=tf.int64)
    assert (short(ragged).numpy().item(), full(ragged).numpy().item()) == (4.0, 8.0)


@pytest.mark.parametrize("when", ["made", "later"])
def test_a_frozen_layer_freezes_the_table(when: str) -> None:
    seen, candidate = seen_and_candidate(new_variable(), trainable=when != "made")
    model = flat_model((seen, candidate))
    if when == "later":
        candidate.trainable = False
    assert [len(layer.trainable_variables) for layer in (seen, candidate)] == [0, 0]
    train(model)
    assert int(seen.params.size()) == 0
    candidate.trainable = True
    model.compile(keras.optimizers.Adagrad(0.5), "mse", run_eagerly=True)
    train(model)
    assert int(seen.params.size()) > 0


def test_a_config_does_not_tell_who_else_shares() -> None:
    """Outside of `load_model`, the user says with which Variable; nothing is copied silently."""
    model = flat_model(given_a_variable())
    for copied in (
        lambda: keras.models.clone_model(model),
        lambda: keras.Model.from_config(model.get_config()),
        lambda: keras.models.model_from_json(model.to_json()),
        lambda: layers.SquashedEmbedding.from_config(model.get_layer("seen").get_config()),
    ):
        raises(copied, "shares the table 'films'", "custom_object_scope({'films':")
        films = new_variable()
        with keras.saving.custom_object_scope({"films": films}):
            copy = copied()
        found = params_of(copy) if isinstance(copy, keras.Model) else [copy.params]
        assert all(params is films for params in found)
    config = model.get_layer("seen").get_config()
    json.dumps(config)
    assert layers.SquashedEmbedding.from_config({**config, "params": films}).params is films


def test_a_layer_that_made_its_table_makes_another_one_from_its_config() -> None:
    layer = layers.Embedding(DIM, name="users", initializer=0.5, ttl=7)
    before = layer.get_config()
    layers.Embedding(DIM, params=layer.params)
    copy = layers.Embedding.from_config(layer.get_config())
    assert copy.params is not layer.params
    assert copy.params.ttl == 7
    assert copy.get_config() == before


def test_a_copy_on_the_same_table_changes_no_file(tmp_path: Path) -> None:
    layer = layers.Embedding(DIM, name="users")
    layer.params.upsert([1], [[1.0] * DIM])
    layers.Embedding(DIM, params=layer.params)
    with keras.saving.custom_object_scope({layer.params.name: layer.params}):
        copy = layers.Embedding.from_config(layer.get_config())
    assert copy.params is layer.params
    path = tmp_path / "users.weights.h5"
    keras.Sequential([keras.Input((3,), dtype="int64"), layer]).save_weights(path)
    alone = layers.Embedding(DIM, name="users")
    keras.Sequential([keras.Input((3,), dtype="int64"), alone]).load_weights(path)
    assert content(alone) == content(layer)

    other = {layer.params.name: de.Variable(dim=DIM + 1)}
    with keras.saving.custom_object_scope(other):
        raises(lambda: layers.Embedding.from_config(layer.get_config()), "`embedding_size`")


def test_all_that_describes_the_table_is_in_a_file(tmp_path: Path) -> None:
    params = de.Variable(
        key_dtype=tf.string,
        value_dtype=tf.float16,
        dim=3,
        initializer=tf.random_uniform_initializer(1.0, 2.0),
        devices=["/CPU:0"] * 2,
        init_size=64,
        kv_creator=de.CuckooHashTableCreator(),
        restrict_policy=de.FrequencyRestrictPolicy,
        bp_v2=True,
        admission=tfra.admission.MinCount(2),
        ttl=60,
        min_norm=0.5,
    )
    layer = layers.Embedding(3, params=params, keep_distribution=True)
    other = layers.FieldWiseEmbedding(3, 3, by_length, params=params)
    assert (layer.key_dtype, layer.value_dtype) == (tf.string, tf.float16)
    ids = keras.Input((2,), dtype="string")
    model = keras.Model(ids, [layer(ids), other(ids)])
    model.save(str(tmp_path / "all.keras"))
    loaded = keras.models.load_model(str(tmp_path / "all.keras")).layers[1].params
    same = ("key_dtype", "value_dtype", "dim", "devices", "init_size", "bp_v2", "admission", "ttl")
    for name in (*same, "min_norm", "trainable", "checkpoint"):
        assert getattr(loaded, name) == getattr(params, name), name
    assert type(loaded.restrict_policy) is de.FrequencyRestrictPolicy
    np.testing.assert_array_equal(loaded.lookup(["a", "b"]), params.lookup(["a", "b"]))


def test_arguments_that_contradict_the_table_are_refused() -> None:
    params = de.Variable(dim=DIM, key_dtype=tf.string, name="words")
    made = layers.Embedding
    raises(lambda: made(DIM, params=made(DIM)), "`params`", "expected", "Variable", "received")
    raises(lambda: made(DIM + 1, params=params), "`embedding_size`: expected 4", "'words'", "5")
    raises(lambda: made(DIM, tf.int32, params=params), "`key_dtype`: expected", "string", "int32")
    raises(lambda: made(DIM, value_dtype=tf.float64, params=params), "`value_dtype`", "float64")
    for name, value in {"initializer": "ones", "devices": ["/CPU:0"], "ttl": 60}.items():
        raises(lambda: made(DIM, params=params, **{name: value}), f"`{name}`", "`params`")  # noqa: B023
    numbers = de.Variable(dim=DIM, value_dtype=tf.int64)
    raises(lambda: made(DIM, params=numbers), "floating", "int64")
