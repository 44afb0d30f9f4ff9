"""How tables and Variables of TensorFlow are displayed, in all modes of TensorFlow."""

from __future__ import annotations

import re
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tf_support import de

import tfra

# Keras itself asks TensorFlow's variables for arrays in a way that NumPy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def filled(devices: Any = None, **options: Any) -> Any:
    variable = de.Variable(dim=2, devices=devices, name="items", **options)
    variable.upsert(tf.range(10, dtype=tf.int64), tf.reshape(tf.range(20.0), [10, 2]))
    return variable


def test_the_line_says_what_a_variable_is(devices: Any) -> None:
    text = repr(filled(devices))
    assert text.startswith("<tfra.dynamic_embedding.Variable name='items' keys=10 dim=2 ")
    assert "key_dtype=int64 value_dtype=float32 bytes=" in text and "device=CPU:0" in text
    assert ("tables=3" in text) == (devices is not None)
    assert "optimizer" not in text


@pytest.mark.parametrize("kind", [de.CuckooHashTable, de.HkvHashTable])
def test_the_line_says_what_a_table_is(kind: Any) -> None:
    table = kind(tf.string, tf.int64, [0, 0], name="counts", device="/CPU:0")
    table.insert(["a"], tf.constant([[1, 2]], tf.int64))
    text = repr(table)
    assert text.startswith(f"<tfra.dynamic_embedding.{kind.__name__} name='counts' keys=1 dim=2 ")
    assert "<td style='text-align:left'>string</td>" in table._repr_html_()


def test_bytes_are_about_what_the_table_takes() -> None:
    rows = np.ones((50_000, 8), np.float32)
    table = tfra.Table(8)
    table.upsert(range(50_000), rows)
    variable = de.Variable(dim=8)
    variable.upsert(np.arange(50_000), rows)
    shown = re.search(r" bytes=([0-9.]+)MiB ", repr(variable))
    assert shown is not None
    assert float(shown[1]) * 2**20 == pytest.approx(table.memory_usage()["total"], rel=0.05)


def test_the_optimizer_is_shown_once_it_has_trained() -> None:
    ids = keras.Input((1,), dtype="int64")
    layer = de.keras.layers.Embedding(4, name="ids")
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(layer(ids))))
    model.compile(keras.optimizers.Adam(), "mse")
    assert "optimizer" not in repr(layer.params)
    model.fit(np.array([[1], [2]]), np.array([0.0, 1.0]), verbose=0)
    assert "keys=2" in repr(layer.params) and "optimizer=Adam" in repr(layer.params)
    assert "optimizer=Adam" in repr(layer.params.tables[0])


def test_an_optimizer_that_the_engine_does_not_know_is_shown() -> None:
    class Mine(keras.optimizers.SGD):
        pass

    variable = de.Variable(dim=2)
    with tf.GradientTape() as tape:
        rows, shadow = de.embedding_lookup(variable, [1, 2], return_trainable=True)
        loss = tf.reduce_sum(rows)
    Mine(0.1).apply_gradients([(tape.gradient(loss, shadow), shadow)])
    assert "keys=2" in repr(variable) and "optimizer=Mine" in repr(variable)


def test_in_a_function_nothing_is_added_to_the_graph(devices: Any) -> None:
    variable = filled(devices)
    shown = []

    @tf.function
    def step() -> tf.Tensor:
        before = len(tf.compat.v1.get_default_graph().get_operations())
        shown.extend([repr(variable), variable._repr_html_(), repr(variable.tables[0])])
        assert len(tf.compat.v1.get_default_graph().get_operations()) == before
        return tf.constant(1)

    step()
    assert "name='items' dim=2" in shown[0]
    assert not any("keys=" in text for text in shown)
    assert not step.get_concrete_function().captured_inputs


def test_in_a_graph_nothing_is_added_to_it(session: tf.compat.v1.Session) -> None:
    variable = de.Variable(dim=2, name="rows")
    before = len(session.graph.get_operations())
    text = repr(variable)
    assert len(session.graph.get_operations()) == before
    assert "name='rows' dim=2" in text and "keys=" not in text


def test_a_variable_of_a_graph_is_shown_outside_of_it() -> None:
    with tf.Graph().as_default():
        variable = de.Variable(dim=2, name="rows")
    assert "name='rows' dim=2" in repr(variable)
    with pytest.raises(RuntimeError, match="eager execution"):
        variable.head()


@pytest.mark.parametrize("n", [0, 3, 10, 50])
def test_head_has_as_many_rows_as_it_is_asked_for(n: int, devices: Any) -> None:
    keys, values = filled(devices).head(n)
    m = min(n, 10)
    assert isinstance(keys, np.ndarray) and isinstance(values, np.ndarray)
    assert (keys.dtype, values.dtype) == (np.int64, np.float32)
    assert (keys.shape, values.shape) == ((m,), (m, 2))
    np.testing.assert_array_equal(values, np.stack([2.0 * keys, 2.0 * keys + 1], axis=1))
    assert keys.base is None and values.base is None, "the rest of the export stays in memory"


def test_head_of_a_table_of_scalars() -> None:
    table = de.CuckooHashTable(tf.string, tf.int64, -1)
    assert [array.shape for array in table.head()] == [(0,), (0,)]
    table.insert(["a"], tf.constant([5], tf.int64))
    keys, values = table.head(3)
    assert keys.tolist() == [b"a"] and values.tolist() == [5]
    assert table.to_pandas().loc["a", 0] == 5


def test_pandas(devices: Any) -> None:
    frame = filled(devices).to_pandas()
    assert sorted(frame.index) == list(range(10)) and frame.loc[7].tolist() == [14.0, 15.0]
    assert len(filled(devices).to_pandas(4)) == 4


def test_rows_are_not_read_in_a_function() -> None:
    variable = filled()

    @tf.function
    def step() -> None:
        variable.head()

    with pytest.raises(RuntimeError, match=r"'items' in a graph or a tf.function.*`export`"):
        step()
