"""Wrong shapes raise what the same call of TensorFlow raises, and change nothing."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tf_support import de

KEYS = tf.constant([1, 2, 3], tf.int64)
SHAPES = ([6], [2, 3], [2, 2], [3, 1], [3])
IDS = tf.sparse.from_dense(KEYS[tf.newaxis])


def error_of(call: Callable[[], Any]) -> Exception:
    with pytest.raises((ValueError, tf.errors.OpError)) as caught:
        call()
    return caught.value


def check(expected: Callable[[], Any], call: Callable[[], Any], *said: str) -> None:
    """Checks that `call` raises an error that can be caught like that of TensorFlow's own call."""
    wanted, received = error_of(expected), error_of(call)
    kind = tf.errors.OpError if isinstance(wanted, tf.errors.OpError) else ValueError
    assert isinstance(received, kind)
    if kind is tf.errors.OpError:
        assert received.error_code == wanted.error_code  # type: ignore[attr-defined]
    for part in said:
        assert part in str(received)


def make(kind: str) -> Any:
    row = tf.constant([-1, -1], tf.int64)
    if kind == "TensorFlow":
        return tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, row)
    if kind == "Variable":
        return de.Variable(value_dtype=tf.int64, dim=2)
    return getattr(de, kind)(tf.int64, tf.int64, row)


def insert(table: Any, values: tf.Tensor) -> None:
    (table.upsert if isinstance(table, de.Variable) else table.insert)(KEYS, values)


@pytest.mark.parametrize("kind", ["CuckooHashTable", "HkvHashTable", "Variable"])
@pytest.mark.parametrize("way", ["eager", "function", "function of unknown shapes"])
def test_rows_of_a_wrong_shape(kind: str, way: str) -> None:
    expected, table = make("TensorFlow"), make(kind)

    def run(one: Any, values: tf.Tensor) -> None:
        if way == "eager":
            insert(one, values)
            return
        shape = None if "unknown" in way else values.shape
        traced = tf.function(insert, autograph=False)
        traced.get_concrete_function(one, tf.TensorSpec(shape, tf.int64))(values)

    for shape in SHAPES:
        values = tf.zeros(shape, tf.int64)
        said = () if "unknown" in way else ("Expected shape [3, 2]", f"Received: {shape}")
        check(lambda v=values: run(expected, v), lambda v=values: run(table, v), *said)
    assert int(table.size()) == 0


@pytest.mark.parametrize("kind", ["CuckooHashTable", "HkvHashTable"])
def test_default_rows_of_a_wrong_shape(kind: str) -> None:
    def lookup(name: str, shape: list[int]) -> Any:
        return make(name).lookup(KEYS, dynamic_default_values=tf.zeros(shape, tf.int64))

    for shape in ([3], [2, 2], [3, 3]):
        check(lambda s=shape: lookup("TensorFlow", s), lambda s=shape: lookup(kind, s), "Expected")
    of_tensorflow = tf.lookup.experimental.MutableHashTable
    for rows in ([[1, 2], [3, 4]], [[[1]]]):
        row = tf.constant(rows, tf.int64)
        check(
            lambda r=row: of_tensorflow(tf.int64, tf.int64, r),
            lambda r=row: getattr(de, kind)(tf.int64, tf.int64, r),
            "must be a scalar or a vector",
        )


@pytest.mark.parametrize("name", ["embedding_lookup_sparse", "safe_embedding_lookup_sparse"])
def test_weights_of_a_wrong_shape(name: str) -> None:
    table, static = de.Variable(dim=2), tf.zeros([9, 2])
    ragged = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
    for count in (2, 4):
        where = [[0, i] for i in range(count)]
        weights = tf.SparseTensor(where, tf.ones([count]), [1, 4])
        of_rows = tf.ragged.constant([[1.0], [2.0] * (count - 1)])
        for ids, given in ((IDS, weights), (ragged, of_rows)):
            check(
                lambda i=ids, w=given: getattr(tf.nn, name)(static, i, w),
                lambda i=ids, w=given: getattr(de, name)(table, i, w),
                "Expected shape [3] for `sp_weights.values`",
                f"Received: [{count}]",
            )


def test_the_error_survives_what_frameworks_do_with_it() -> None:
    variable = de.Variable(dim=2)
    error = error_of(lambda: variable.upsert([1], [[0.0]]))
    assert isinstance(error, ValueError)
    assert isinstance(error, tf.errors.InvalidArgumentError)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.message) == (type(error), str(error), error.message)

    class Writes(keras.layers.Layer):  # type: ignore[misc]
        def call(self, rows: tf.Tensor) -> tf.Tensor:
            variable.upsert(tf.constant([1], tf.int64), rows)
            return rows

    @tf.function
    def write(rows: tf.Tensor) -> None:
        variable.upsert(tf.constant([1], tf.int64), rows)

    rows = np.zeros([1, 3], np.float32)
    for call in (Writes(), write):  # Keras and AutoGraph make a new error with more to say.
        error = error_of(lambda c=call: c(tf.constant(rows)))
        assert isinstance(error, ValueError)
        assert "Expected shape [1, 2] for `values`" in str(error)
