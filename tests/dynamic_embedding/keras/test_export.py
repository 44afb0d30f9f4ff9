"""Models with tables are exported, and what is loaded answers with the same numbers."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from layers_support import DIM, KERAS_WARNS, de, layers
from programs import start_program

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

WIDTH = 3
IDS = {
    "int64": tf.constant([[1, 2, 2**53 + 1], [4, 5, 2]], tf.int64),
    "string": tf.constant([["a", "b", "long" * 9], ["c", "", "b"]]),
}


def field_of(keys: tf.Tensor) -> tf.Tensor:
    return tf.strings.to_hash_bucket_fast(tf.strings.as_string(keys), 2)


def string_field_of(keys: tf.Tensor) -> tf.Tensor:
    return tf.strings.to_hash_bucket_fast(keys, 2)


def embedding(kind: str, dtype: str) -> Any:
    options: dict[str, Any] = {"key_dtype": tf.as_dtype(dtype), "name": "rows"}
    if kind == "FieldWiseEmbedding":
        options |= {"nslots": 2}
        options |= {"slot_map_fn": string_field_of if dtype == "string" else field_of}
    return getattr(layers, kind)(DIM, **options)


class Subclassed(keras.Model):
    """A model of which Keras knows the shapes of the inputs, and not their types."""

    def __init__(self, rows: Any) -> None:
        super().__init__()
        self.rows, self.flat, self.dense = rows, keras.layers.Flatten(), keras.layers.Dense(1)

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        return self.dense(self.flat(self.rows(ids)))


def subclassed(rows: Any, dtype: str) -> keras.Model:
    return Subclassed(rows)


def functional(rows: Any, dtype: str) -> keras.Model:
    ids = keras.Input((WIDTH,), dtype=dtype)
    return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows(ids))))


def sequential(rows: Any, dtype: str) -> keras.Model:
    stack = [rows, keras.layers.Flatten(), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((WIDTH,), dtype=dtype), *stack])


def trained(make: Callable[..., keras.Model], kind: str, dtype: str) -> keras.Model:
    model = make(embedding(kind, dtype), dtype)
    model.compile("adam", "mse", run_eagerly=True)
    model.train_on_batch(IDS[dtype], np.ones((2, 1), np.float32))
    return model


def check_answers(folder: str, model: keras.Model, dtype: str, endpoint: str) -> None:
    """Fails unless what is loaded answers as the model does."""
    ids, expected = IDS[dtype], model(IDS[dtype])
    loaded = tf.saved_model.load(folder)
    signature = loaded.signatures["serving_default"]
    (argument,) = signature.structured_input_signature[1]
    layer = keras.layers.TFSMLayer(folder, call_endpoint=endpoint)
    for answer in (*signature(**{argument: ids}).values(), *tf.nest.flatten(layer(ids))):
        np.testing.assert_allclose(answer, expected, rtol=1e-6)
    if endpoint == "serve":
        np.testing.assert_allclose(loaded.serve(ids), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "make, kind, dtype",
    [
        (functional, "FieldWiseEmbedding", "string"),
        (sequential, "SquashedEmbedding", "int64"),
        (subclassed, "Embedding", "string"),
    ],
)
def test_export(make: Any, kind: str, dtype: str, tmp_path: Path) -> None:
    model = trained(make, kind, dtype)
    spec = tf.TensorSpec([None, WIDTH], dtype) if make is subclassed else None
    model.export(str(tmp_path), verbose=False, input_signature=spec and [spec])
    check_answers(str(tmp_path), model, dtype, "serve")


@pytest.mark.parametrize(
    "kind, dtype",
    [("Embedding", "int64"), ("SquashedEmbedding", "string"), ("FieldWiseEmbedding", "int64")],
)
def test_saved_model_with_signatures(kind: str, dtype: str, tmp_path: Path) -> None:
    model = trained(subclassed, kind, dtype)
    serve = tf.function(model).get_concrete_function(tf.TensorSpec([None, WIDTH], dtype))
    tf.saved_model.save(model, str(tmp_path), signatures=serve)
    check_answers(str(tmp_path), model, dtype, "serving_default")


def test_a_module_that_has_a_model(tmp_path: Path) -> None:
    module, spec = tf.Module(), tf.TensorSpec([None, WIDTH], tf.int64)
    module.model = trained(subclassed, "Embedding", "int64")
    module.serve = tf.function(lambda ids: {"answer": module.model(ids)}, input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    found = loaded.serve(IDS["int64"])["answer"]
    np.testing.assert_allclose(found, module.model(IDS["int64"]), rtol=1e-6)


class WithVariable(keras.Model):
    """A model without a layer of this package."""

    def __init__(self) -> None:
        super().__init__()
        self.variable = de.Variable(dim=DIM, initializer=keras.initializers.RandomNormal(seed=1))

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        return de.embedding_lookup(self.variable, ids)


SAVES = {
    "export": lambda model, path: model.export(path, verbose=False),
    "save": tf.saved_model.save,
}


class OfTheFirst(WithVariable):
    """It looks up ids of another shape than that of its input."""

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        return super().call(ids[:, 0])


@pytest.mark.parametrize(
    "make", [WithVariable, OfTheFirst, lambda: trained(subclassed, "Embedding", "int64")]
)
@pytest.mark.parametrize("save", SAVES)
def test_the_message_has_the_line_that_helps(make: Any, save: str, tmp_path: Path) -> None:
    model = make()
    model(IDS["int64"])
    with pytest.raises(TypeError, match="expected int64, received float32") as caught:
        SAVES[save](model, str(tmp_path))
    assert not list(tmp_path.iterdir())
    how = {"export": r"model\.export\(.*?\]\)", "save": r"tf\.saved_model\.save\(.*\)\)\)"}[save]
    (line,) = re.findall(how, str(caught.value))
    eval(line, {"tf": tf, "model": model, "path": str(tmp_path)})
    answer = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    (found,) = answer(IDS["int64"]).values()
    np.testing.assert_allclose(found, model(IDS["int64"]), rtol=1e-6)


class OfDict(keras.Model):
    """A model that takes a dict, as programs with many features have it."""

    def __init__(self) -> None:
        super().__init__()
        self.users = layers.SquashedEmbedding(DIM)
        self.movies = layers.SquashedEmbedding(DIM)

    def call(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        return self.users(features["user"]) * self.movies(features["movie"])


@pytest.mark.parametrize("save", SAVES)
def test_the_message_has_the_line_for_several_inputs(save: str, tmp_path: Path) -> None:
    model, ids = OfDict(), {"user": IDS["int64"], "movie": IDS["int64"][:, :1]}
    model(ids)
    with pytest.raises(TypeError, match="each with its own type") as caught:
        SAVES[save](model, str(tmp_path))
    how = {"export": r"model\.export\(.*?\}\]\)", "save": r"tf\.saved_model\.save\(.*\}\)\)"}[save]
    (line,) = re.findall(how, str(caught.value))
    eval(line, {"tf": tf, "model": model, "path": str(tmp_path)})
    loaded = tf.saved_model.load(str(tmp_path))
    (found,) = loaded.signatures["serving_default"](**ids).values()
    np.testing.assert_allclose(found, model(ids), rtol=1e-6)


def test_the_signature_that_keras_finds(tmp_path: Path) -> None:
    model = trained(functional, "Embedding", "int64")
    tf.saved_model.save(model, str(tmp_path))
    check_answers(str(tmp_path), model, "int64", "serving_default")


class Failing(Subclassed):
    def call(self, ids: tf.Tensor) -> tf.Tensor:
        if not tf.executing_eagerly() and ids.dtype.is_floating:
            raise RuntimeError("not a float")
        return super().call(ids)


def test_no_other_error_is_hidden(tmp_path: Path) -> None:
    model = Failing(embedding("Embedding", "int64"))
    model(IDS["int64"])
    serve = tf.function(model).get_concrete_function(tf.TensorSpec([None, WIDTH], tf.int64))
    with pytest.raises(RuntimeError, match="not a float"):
        tf.saved_model.save(model, str(tmp_path), signatures=serve)


def test_shadows_in_functions(tmp_path: Path) -> None:
    module = tf.Module()
    module.variable = de.Variable(dim=DIM, initializer=2.0)
    shadow = de.shadow_ops.ShadowVariable(module.variable)
    look = lambda ids: de.embedding_lookup(module.variable, ids) + shadow.lookup(ids)  # noqa: E731
    module.look = tf.function(look, input_signature=[tf.TensorSpec([None], tf.int64)])
    tf.saved_model.save(module, str(tmp_path / "1"))
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    tf.saved_model.save(loaded, str(tmp_path / "2"))
    again = tf.saved_model.load(str(tmp_path / "2"))
    np.testing.assert_array_equal(again.look(tf.constant([1, 2], tf.int64)), np.full((2, 4), 4.0))


@pytest.mark.parametrize("how", ["function", "method"])
def test_fields_from_a_lookup_table(how: str, tmp_path: Path) -> None:
    pairs = tf.lookup.KeyValueTensorInitializer([1, 2], [0, 1], tf.int64, tf.int64)
    table = tf.lookup.StaticHashTable(pairs, 1)
    fields = {"function": lambda keys: table.lookup(keys), "method": table.lookup}[how]
    model = functional(layers.FieldWiseEmbedding(DIM, 2, fields), "int64")
    model.export(str(tmp_path), verbose=False)
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_allclose(loaded.serve(IDS["int64"]), model(IDS["int64"]), rtol=1e-6)


WORDS = keras.layers.StringLookup(vocabulary=["a", "b"])


class Fields:
    """Fields in a variable of an object."""

    def __init__(self) -> None:
        self.fields = tf.Variable([0, 2, 1], dtype=tf.int64)

    def __call__(self, keys: tf.Tensor) -> tf.Tensor:
        return self.of(self.fields, keys)

    @staticmethod
    def of(fields: tf.Variable, keys: tf.Tensor) -> tf.Tensor:
        return tf.gather(fields, keys % 3)

    def method(self, keys: tf.Tensor) -> tf.Tensor:
        return self(keys)


MAPPED = Fields()


@pytest.mark.parametrize(
    ("dtype", "fields"),
    [
        ("string", lambda keys: WORDS(keys)),
        ("int64", lambda keys: tf.gather(MAPPED.fields, keys % 3)),
        ("int64", MAPPED),
        ("int64", MAPPED.method),
        ("int64", functools.partial(Fields.of, MAPPED.fields)),
    ],
    ids=["layer", "variable", "object", "method", "partial"],
)
def test_fields_from_layers_and_variables(dtype: str, fields: Any, tmp_path: Path) -> None:
    model = functional(layers.FieldWiseEmbedding(DIM, 3, fields, tf.as_dtype(dtype)), dtype)
    model.export(str(tmp_path), verbose=False)
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_allclose(loaded.serve(IDS[dtype]), model(IDS[dtype]), rtol=1e-6)


def test_loading_prints_nothing(tmp_path: Path) -> None:
    """Whatever TensorFlow prints of a checkpoint looks like lost rows."""
    model, spec = trained(functional, "Embedding", "int64"), tf.TensorSpec([None, WIDTH], tf.int64)
    module = tf.Module()
    module.variable, module.left_out = de.Variable(dim=DIM), de.Variable(dim=DIM, checkpoint=False)
    module.rows = trained(subclassed, "SquashedEmbedding", "int64").rows
    module.look = tf.function(
        lambda ids: {
            "variables": de.embedding_lookup(module.variable, ids) + module.left_out.lookup(ids),
            "layer": module.rows(ids),
        },
        input_signature=[spec],
    )
    folders = [str(tmp_path / name) for name in ("exported", "saved", "module")]
    model.export(folders[0], verbose=False)
    tf.saved_model.save(model, folders[1])
    tf.saved_model.save(module, folders[2], signatures=module.look)
    with start_program("load_quietly", *folders) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert errors.partition("START\n")[2] == ""
