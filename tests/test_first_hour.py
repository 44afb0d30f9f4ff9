"""The mistakes of the first hour, one by one: each message says what to do, and doing it works.

A test makes the mistake as a newcomer would, compares what the message tells them to do, and then
does that.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfra
from support import run_python

de = tfra.dynamic_embedding
layers = de.keras.layers

# Keras itself asks TensorFlow's variables for arrays in a way that NumPy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

WAYS = ("Table", "Variable", "layer")


def made(way: str, strings: bool = False, dim: int = 2) -> Callable[[Any], Any]:
    """Something that looks keys up: a table, a Variable or a layer."""
    if way == "Table":
        return tfra.Table(dim, key_dtype="string" if strings else "int64").lookup
    key_dtype = tf.string if strings else tf.int64
    if way == "Variable":
        return de.Variable(dim=dim, key_dtype=key_dtype).lookup
    return layers.Embedding(dim, key_dtype=key_dtype)


def advice(call: Callable[[], Any], error: type[Exception]) -> str:
    """The message of a mistake, in one line and without colours."""
    with pytest.raises(error) as caught:
        call()
    return " ".join(str(caught.value).replace("\x1b[1m", "").replace("\x1b[0m", "").split())


def model_of(size: int, dtype: str = "int64") -> keras.Model:
    ids = keras.Input((1,), dtype=dtype)
    rows = layers.Embedding(size, name="users")(ids)
    return keras.Model(ids, keras.layers.Flatten()(rows))


# --- Ids of a wrong dtype.


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ids", [["ann", "bob"], np.array(["ann", "bob"])], ids=["list", "array"])
def test_strings_where_integers_are_expected(way: str, ids: Any) -> None:
    told = advice(lambda: made(way)(ids), TypeError)
    assert "key_dtype='string'" in told if way == "Table" else "key_dtype=tf.string" in told
    assert made(way, strings=True)(ids).shape == (2, 2)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ids", [[1, 2], np.array([1, 2])], ids=["list", "array"])
def test_integers_where_strings_are_expected(way: str, ids: Any) -> None:
    told = advice(lambda: made(way, strings=True)(ids), TypeError)
    assert "key_dtype='int64'" in told if way == "Table" else "key_dtype=tf.int64" in told
    assert made(way)(ids).shape == (2, 2)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ids", [[1.0, 2.0], np.array([1.0, 2.0])], ids=["list", "array"])
def test_float_ids(way: str, ids: Any) -> None:
    told = advice(lambda: made(way)(ids), TypeError)
    expected = {
        "Table": "keys.astype('int64')",
        "Variable": "tf.cast(keys, tf.int64)",
        "layer": "keras.Input(shape, dtype='int64')",
    }
    assert "int64" in told and "float" in told
    # Keras has not converted a list, so the message is that of a Variable.
    assert expected[way] in told or expected["Variable"] in told
    assert made(way)(np.asarray(ids).astype("int64")).shape == (2, 2)


def test_float_ids_of_tensorflow() -> None:
    ids = tf.constant([1.0, 2.0])
    assert "tf.cast(keys, tf.int64)" in advice(lambda: made("Variable")(ids), TypeError)
    assert made("Variable")(tf.cast(ids, tf.int64)).shape == (2, 2)


def test_ids_of_uint64() -> None:
    ids = np.array([1, 2**64 - 1], np.uint64)
    assert "keys.view('int64')" in advice(lambda: made("Table")(ids), TypeError)
    assert made("Table")(ids.view("int64")).shape == (2, 2)


def test_a_key_dtype_that_is_none() -> None:
    for make in (tfra.Table, lambda dim, key_dtype: de.Variable(key_dtype, dim=dim)):
        for wrong in ("float32", "ints"):
            told = advice(lambda make=make, wrong=wrong: make(2, key_dtype=wrong), TypeError)
            assert "int64" in told and "string" in told and wrong in told


# --- Forgetting int64.


def test_a_variable_of_int64_and_ids_of_int32() -> None:
    ids = tf.constant([1, 2])  # This is int32, though nothing says so.
    told = advice(lambda: made("Variable")(ids), TypeError)
    assert "expected int64, received int32" in told and "tf.cast(keys, tf.int64)" in told
    assert made("Variable")(tf.cast(ids, tf.int64)).shape == (2, 2)


@pytest.mark.parametrize("way", ["Table", "layer"])
def test_narrower_integers_are_fine_where_nothing_is_lost(way: str) -> None:
    assert made(way)(np.array([1, 2], np.int32)).shape == (2, 2)


def test_an_input_without_dtype() -> None:
    told = advice(lambda: model_of(2, dtype="float32"), TypeError)
    assert "keras.Input(shape, dtype='int64')" in told
    assert model_of(2, dtype="int64")(np.array([[1]])).shape == (1, 2)


def test_a_sequential_model_without_input() -> None:
    model = keras.Sequential([layers.Embedding(2), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    data = np.array([[1], [2]]), np.array([0.0, 1.0])
    told = advice(lambda: model.fit(*data, verbose=0), TypeError)
    assert "keras.Input(shape, dtype='int64')" in told and "Sequential" in told
    model = keras.Sequential([keras.Input((1,), dtype="int64"), *model.layers])
    model.compile("adam", "mse")
    model.fit(*data, verbose=0)


# --- Ids as Python lists, and nothing at all.


@pytest.mark.parametrize("way", WAYS)
def test_lists_are_fine(way: str) -> None:
    assert made(way)([1, 2, 3]).shape == (3, 2)
    assert made(way)([[1, 2], [3, 4]]).shape == (2, 2, 2)
    assert made(way, strings=True)(["ann"]).shape == (1, 2)


def test_lists_of_different_lengths() -> None:
    ragged = [[1], [2, 3]]
    assert "regular shape" in advice(lambda: made("Table")(ragged), ValueError)
    assert "tf.ragged.constant" in advice(lambda: made("Variable")(ragged), ValueError)
    assert "tf.ragged.constant" in advice(lambda: made("layer")(ragged), ValueError)
    pooled = layers.SquashedEmbedding(2, combiner="sum")
    assert pooled(tf.ragged.constant(ragged)).shape == (2, 2)


@pytest.mark.parametrize("way", WAYS)
def test_an_empty_batch_is_fine(way: str) -> None:
    assert made(way)([]).shape == (0, 2)
    assert made(way)(np.zeros((0, 3), np.int64)).shape == (0, 3, 2)


def test_an_empty_array_is_of_floats() -> None:
    nothing = np.array([])  # This is float64, though nothing says so.
    assert "keys.astype('int64')" in advice(lambda: made("Table")(nothing), TypeError)
    assert made("Table")(nothing.astype("int64")).shape == (0, 2)


def test_no_rows_for_no_keys() -> None:
    assert "(0, 2)" in advice(lambda: tfra.Table(2).upsert([], []), ValueError)
    assert "[0, 2]" in advice(lambda: de.Variable(dim=2).upsert([], []), ValueError)
    tfra.Table(2).upsert([], np.zeros((0, 2), np.float32))
    de.Variable(dim=2).upsert([], tf.zeros([0, 2]))


# --- Rows.


def test_values_of_float64() -> None:
    rows = np.ones((1, 2))  # This is float64, though nothing says so.
    assert "values.astype('float32')" in advice(lambda: tfra.Table(2).upsert([1], rows), TypeError)
    tfra.Table(2).upsert([1], rows.astype("float32"))
    told = advice(lambda: de.Variable(dim=2).upsert([1], tf.constant(rows)), TypeError)
    assert "tf.cast(values, tf.float32)" in told
    de.Variable(dim=2).upsert([1], tf.cast(rows, tf.float32))


def test_gradients_for_a_table_without_optimizer() -> None:
    gradients = np.ones((1, 2), np.float32)
    told = advice(lambda: tfra.Table(2).apply_gradients([1], gradients), ValueError)
    assert "tfra.Table(dim, optimizer='adam')" in told
    tfra.Table(2, optimizer="adam").apply_gradients([1], gradients)


# --- Another dim.


def test_another_dim_for_a_name_that_exists() -> None:
    first = de.get_variable("first hour", dim=4)
    told = advice(lambda: de.get_variable("first hour", dim=8), ValueError)
    assert "'first hour' exists with dim=4. Received: dim=8" in told
    assert "another name" in told and "tfra.dynamic_embedding.Variable" in told
    assert de.get_variable("first hour", dim=4) is first
    assert de.get_variable("another name", dim=8).dim == 8
    assert de.Variable(name="first hour", dim=8).dim == 8


@pytest.mark.parametrize("devices", [None, ["/CPU:0"] * 3], ids=["one table", "three tables"])
def test_a_checkpoint_of_another_dim(tmp_path: Path, devices: Any) -> None:
    saved = de.Variable(dim=4, name="saved", devices=devices)
    saved.upsert([1, 2], tf.ones([2, 4]))
    path = tf.train.Checkpoint(rows=saved).save(str(tmp_path / "checkpoint"))
    longer = de.Variable(dim=8, name="longer", devices=devices)
    longer.upsert([5], tf.ones([1, 8]))
    told = advice(lambda: tf.train.Checkpoint(rows=longer).restore(path), ValueError)
    assert "'longer' has rows of length 8. Received: a checkpoint with rows of length 4" in told
    assert "`dim`" in told
    assert longer.export()[0].numpy().tolist() == [5], "what was there is gone"
    right = de.Variable(dim=4, devices=devices)
    tf.train.Checkpoint(rows=right).restore(path)
    assert int(right.size()) == 2


def test_a_checkpoint_of_a_model_of_another_size(tmp_path: Path) -> None:
    path = tf.train.Checkpoint(model=model_of(4)).save(str(tmp_path / "checkpoint"))
    told = advice(lambda: tf.train.Checkpoint(model=model_of(8)).restore(path), ValueError)
    assert "rows of length 8" in told and "rows of length 4" in told and "embedding_size" in told
    tf.train.Checkpoint(model=model_of(4)).restore(path)


@pytest.mark.filterwarnings("ignore:Skipping nested container:UserWarning")
def test_weights_of_another_size(tmp_path: Path) -> None:
    path = str(tmp_path / "model.weights.h5")
    model_of(4).save_weights(path)
    told = advice(lambda: model_of(8).load_weights(path), ValueError)
    assert "'users' has rows of length 8. Received a file with rows of length 4." in told
    assert "Make the layer with the length that was saved." in told
    model_of(4).load_weights(path)


# --- Installation.

USE = "tfra.dynamic_embedding.keras.layers.Embedding(4)"


def error_of(program: str, **environment: str) -> str:
    """The error that a program in a process of its own ends with."""
    return run_python(
        f"""
try:
    {program}
except Exception as error:
    print(type(error).__name__, error)
""",
        **environment,
    )


def test_no_tensorflow() -> None:
    told = error_of("import sys; sys.modules['tensorflow'] = None; import tfra; " + USE)
    assert told.startswith("ImportError") and "pip install 'tfra[tensorflow]'" in told


def test_the_numpy_table_works_without_tensorflow() -> None:
    block = "import sys; sys.modules['tensorflow'] = sys.modules['keras'] = None"
    assert run_python(f"{block}; import tfra; print(tfra.Table(2).lookup([1]))") == "[[0. 0.]]\n"


def test_no_keras() -> None:
    told = error_of("import sys; sys.modules['keras'] = None; import tfra; " + USE)
    assert told.startswith("ImportError") and "pip install 'tfra[tensorflow]'" in told


def test_a_backend_of_keras_that_is_not_installed() -> None:
    # Import is blocked, in case the package is installed.
    program = "import sys; sys.modules['jax'] = None; import tfra; "
    told = error_of(program + USE, KERAS_BACKEND="jax")
    assert told.startswith("ImportError") and "KERAS_BACKEND='jax'" in told
    assert "set KERAS_BACKEND to 'tensorflow'" in told


# A real other backend if one is installed: `make bench` installs torch.
TORCH = sorted(Path(__file__).resolve().parent.parent.glob(".venvs/torch-*/lib/*/site-packages"))


@pytest.mark.skipif(not TORCH, reason="no torch at hand: make bench installs one")
def test_keras_on_torch() -> None:
    program = f"import sys; sys.path.append({str(TORCH[0])!r}); import tfra; {USE}"
    told = error_of(program, KERAS_BACKEND="torch")
    assert told.startswith("RuntimeError") and "backend is 'torch'" in told
    assert "KERAS_BACKEND to 'tensorflow'" in told


def test_keras_on_another_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    for use in (
        lambda: layers.Embedding(2),
        lambda: de.DynamicEmbeddingOptimizer(keras.optimizers.SGD()),
        lambda: de.embedding_lookup(de.Variable(dim=2), [1]),
    ):
        told = advice(use, RuntimeError)
        assert "backend is 'jax'" in told and "KERAS_BACKEND to 'tensorflow'" in told
