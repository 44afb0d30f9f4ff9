"""Inputs of a layer: ids of any shape and kind, ragged and sparse, with masks."""

from __future__ import annotations

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
    assert_close,
    content,
    dense_step,
    filled,
    layers,
    raises,
    sgd_step,
    table_rows,
    to_numpy,
)

from support import Array, Shape, assert_identical

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

SHAPES: list[Shape] = [(), (0,), (1,), (7,), (2, 3), (2, 0, 3), (2, 1, 2, 2)]
IDS = [[3, 17], [0, 3]]
EXTREME_IDS = [0, -1, 1, 2**63 - 1, -(2**63), 2**53 + 1, 2**53, 2**24 + 1, 2**24, 2**31, 2**32]
STRINGS = [b"", b"\0", b"\0\0", b"a", b"a\0", b"a\0b", b"\xff\xfe", b"x" * 300]

# What each combiner makes of the rows of one example, in NumPy and in TensorFlow.
POOLINGS: dict[str, tuple[Any, Any]] = {
    "sum": (np.sum, tf.reduce_sum),
    "mean": (np.mean, tf.reduce_mean),
    "sqrtn": (
        lambda x, axis: np.sum(x, axis) / np.sqrt(len(x)),
        lambda x, axis: tf.reduce_sum(x, axis) / np.sqrt(len(x)),
    ),
    "min": (np.min, tf.reduce_min),
    "max": (np.max, tf.reduce_max),
    "prod": (np.prod, tf.reduce_prod),
    "std": (np.std, tf.math.reduce_std),
}
LISTS = [[3, 1, 3], [5], [0, 19], [1, 5, 0, 7]]
WITH_EMPTY: list[list[list[int]]] = [[[], [3, 1], []], [[], []], [[2], [], [2, 2], []]]
KINDS = ("ragged", "sparse")


def make(kind: str, lists: Any, dtype: tf.DType = tf.int64) -> Any:
    """A ragged or sparse tensor of rows of ids."""
    ragged = tf.ragged.constant(lists, dtype=dtype, ragged_rank=1)
    return ragged if kind == "ragged" else ragged.to_sparse()


def pooled(combiner: str, lists: list[list[int]]) -> Array:
    """The result of a combiner on `ROWS`; zeros if there are no ids."""
    reduce = POOLINGS[combiner][0]
    return np.stack([reduce(ROWS[ids], 0) if ids else np.zeros(DIM, np.float32) for ids in lists])


def test_the_example_of_the_page() -> None:
    embedding = layers.Embedding(8)
    ids = tf.constant([[15, 2], [4, 92], [22, 4]], dtype=tf.int64)
    out = embedding(ids)
    assert (out.shape, out.dtype) == ((3, 2, 8), tf.float32)
    found = out.numpy().reshape(6, 8)
    assert_identical(found[2], found[5])  # Both are the row of 4.
    assert len(np.unique(found, axis=0)) == 5
    assert int(embedding.params.size()) == 0


@pytest.mark.parametrize("with_unique", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_output_has_a_row_for_each_id(shape: Shape, with_unique: bool) -> None:
    layer = filled(with_unique=with_unique)
    ids = np.random.default_rng(1).integers(0, COUNT, shape)
    assert_identical(to_numpy(layer(tf.constant(ids, tf.int64))), ROWS[ids])
    assert tuple(layer.compute_output_shape(shape)) == (*shape, DIM)


def test_one_layer_takes_ids_of_several_shapes() -> None:
    layer = filled()
    for shape in [(2, 3), (5,), (2, 2, 2), (4, 3)]:
        ids = np.random.default_rng(2).integers(0, COUNT, shape)
        assert_identical(to_numpy(layer(ids)), ROWS[ids])


@pytest.mark.parametrize("with_unique", [True, False])
def test_missing_ids_get_their_initial_row_each_time(with_unique: bool) -> None:
    layer = filled(with_unique=with_unique)
    ids = tf.constant([[100, 3], [101, 100]], tf.int64)
    out = to_numpy(layer(ids))
    assert_identical(out, to_numpy(layer.params.lookup(ids)))
    assert_identical(out[0, 0], out[1, 1])
    assert_identical(out[0, 1], ROWS[3])
    assert_identical(to_numpy(layer(ids)), out)
    assert not np.array_equal(out[0, 0], out[1, 0])
    assert int(layer.params.size()) == COUNT


@pytest.mark.parametrize("with_unique", [True, False])
def test_a_step_sums_the_gradients_of_equal_ids(with_unique: bool) -> None:
    layer, ids = filled(with_unique=with_unique), [[3, 1, 3], [3, 0, 19]]
    weights = np.random.default_rng(3).standard_normal((2, 3, DIM)).astype(np.float32)
    sgd_step(layer, tf.constant(ids, tf.int64), weights)
    assert_close(table_rows(layer), dense_step(lambda table: tf.gather(table, ids), weights))


@pytest.mark.parametrize(
    "ids",
    [
        IDS,
        tuple(map(tuple, IDS)),
        np.array(IDS, np.int64),
        np.array(IDS, np.int32),
        np.array(IDS, np.uint8),
        tf.constant(IDS, tf.int32),
        tf.constant(IDS, tf.int64),
    ],
    ids=["list", "tuple", "int64 array", "int32 array", "uint8 array", "int32", "int64"],
)
def test_ids_of_every_integer_kind(ids: Any) -> None:
    assert_identical(to_numpy(filled()(ids)), ROWS[np.array(IDS)])


def test_a_plain_list_of_ids_may_hold_large_ones() -> None:
    layer = layers.Embedding(DIM)
    layer.params.upsert([2**40, -5], ROWS[:2])
    assert_identical(to_numpy(layer([-5, 2**40])), ROWS[1::-1])


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize("as_array", [True, False])
def test_extreme_ids_are_not_confused(policy: str, as_array: bool) -> None:
    layer, ids = layers.Embedding(1, dtype=policy), np.array(EXTREME_IDS)
    numbers = np.arange(len(ids), dtype=np.float32)
    layer.params.upsert(ids, numbers[:, None])
    np.testing.assert_array_equal(layer(ids if as_array else tf.constant(ids))[:, 0], numbers)


def test_int32_keys() -> None:
    layer = layers.Embedding(DIM, key_dtype=tf.int32)
    layer.params.upsert(np.arange(COUNT, dtype=np.int32), ROWS)
    for ids in (IDS, np.array(IDS, np.int32), tf.constant(IDS, tf.int32)):
        assert_identical(to_numpy(layer(ids)), ROWS[np.array(IDS)])


@pytest.mark.parametrize(
    "ids",
    [
        [["3", "17"], ["0", "3"]],
        np.array([["3", "17"], ["0", "3"]], object),
        np.array([[b"3", b"17"], [b"0", b"3"]], object),
        tf.constant([["3", "17"], ["0", "3"]]),
    ],
    ids=["list", "str array", "bytes array", "tensor"],
)
def test_string_ids_of_every_kind(ids: Any) -> None:
    assert_identical(to_numpy(filled(key_dtype=tf.string)(ids)), ROWS[np.array(IDS)])


def test_strings_may_be_empty_and_hold_any_byte() -> None:
    layer, ids = layers.Embedding(DIM, key_dtype=tf.string), tf.constant(STRINGS)
    sgd_step(layer, ids, np.ones((len(STRINGS), DIM)))
    assert set(content(layer)) == set(STRINGS)
    layer.params.upsert(ids, ROWS[: len(STRINGS)])
    assert_identical(to_numpy(layer(ids)), ROWS[: len(STRINGS)])


@pytest.mark.parametrize("dtype", ["int32", "int64", "string"])
def test_ids_of_a_functional_model(dtype: str) -> None:
    key_dtype = tf.string if dtype == "string" else tf.int64
    inputs = keras.Input((2,), dtype=dtype)
    layer = filled(key_dtype=key_dtype)
    output = layer(inputs)
    assert output.shape == (None, 2, DIM)
    ids = tf.strings.as_string(IDS) if dtype == "string" else tf.constant(IDS, dtype)
    found = keras.Model(inputs, output).predict(ids, verbose=0)
    assert_identical(found, ROWS[np.array(IDS)])


def test_ids_of_unknown_shape_in_a_function() -> None:
    layer = filled()
    look = tf.function(lambda ids: layer(ids), [tf.TensorSpec([None, None], tf.int64)])
    for shape in [(2, 3), (0, 3), (1, 1)]:
        ids = np.random.default_rng(4).integers(0, COUNT, shape)
        assert_identical(to_numpy(look(tf.constant(ids))), ROWS[ids])


@pytest.mark.parametrize(
    "key_dtype, ids, received",
    [
        (tf.int64, [1.5, 2.0], "float"),
        (tf.int64, np.array([1.0, 2.0]), "float"),
        (tf.int64, tf.constant([1.0, 2.0]), "float32"),
        (tf.int64, tf.constant(["1", "2"]), "string"),
        (tf.int64, tf.ragged.constant([[1.0], [2.0]]), "float32"),
        (tf.int64, tf.sparse.from_dense([[1.0], [2.0]]), "float32"),
        (tf.string, tf.constant([1, 2]), "int32"),
        (tf.string, np.array([1, 2]), "int64"),
    ],
)
def test_ids_of_another_kind(key_dtype: tf.DType, ids: Any, received: str) -> None:
    layer = layers.Embedding(DIM, key_dtype=key_dtype)
    raises(lambda: layer(ids), "expected", key_dtype.name, "received", received)


def test_a_model_of_floating_ids_fails_when_it_is_made() -> None:
    inputs = keras.Input((2,), dtype="float32")
    raises(lambda: layers.Embedding(DIM)(inputs), "expected", "int64", "received", "float32")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("combiner", POOLINGS)
def test_pooling(kind: str, combiner: str) -> None:
    layer = filled(combiner=combiner)
    expected = pooled(combiner, LISTS)
    assert_close(layer(make(kind, LISTS)), expected)
    in_function = tf.function(lambda ids: layer(ids))
    assert_close(in_function(make(kind, LISTS)), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("lists", WITH_EMPTY, ids=str)
def test_nothing_is_pooled_to_zeros(kind: str, combiner: str, lists: Any) -> None:
    assert_close(filled(combiner=combiner)(make(kind, lists)), pooled(combiner, lists))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("combiner", POOLINGS)
def test_a_step_through_pooling(kind: str, combiner: str) -> None:
    layer, reduce = filled(combiner=combiner), POOLINGS[combiner][1]
    lists = [[3, 1, 2], [5, 1], [0, 19, 3]]  # Where the gradient of every combiner is defined.
    weights = np.random.default_rng(5).standard_normal((3, DIM)).astype(np.float32)
    sgd_step(layer, make(kind, lists), weights)
    expected = dense_step(
        lambda table: tf.stack([reduce(tf.gather(table, ids), axis=0) for ids in lists]), weights
    )
    assert_close(table_rows(layer), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_combiner_of_the_users(kind: str) -> None:
    layer = filled(combiner=lambda x, axis: 2.0 * tf.reduce_sum(x, axis=axis))
    assert_close(layer(make(kind, LISTS)), 2 * pooled("sum", LISTS))


@pytest.mark.parametrize("combiner", ["sum", "mean", "max"])
def test_dense_ids_are_not_pooled(combiner: str) -> None:
    assert_identical(to_numpy(filled(combiner=combiner)(IDS)), ROWS[np.array(IDS)])


@pytest.mark.parametrize("kind", KINDS)
def test_pooling_of_strings(kind: str) -> None:
    layer = filled(key_dtype=tf.string, combiner="mean")
    names = [[str(number) for number in ids] for ids in LISTS]
    assert_close(layer(make(kind, names, tf.string)), pooled("mean", LISTS))


@pytest.mark.parametrize("kind", KINDS)
def test_pooling_of_int32_ids(kind: str) -> None:
    assert_close(filled()(make(kind, LISTS, tf.int32)), pooled("sum", LISTS))


@pytest.mark.parametrize("kind", KINDS)
def test_pooling_in_a_functional_model(kind: str) -> None:
    inputs = keras.Input((None,), dtype="int64", **{kind: True})
    output = filled(combiner="mean")(inputs)
    assert output.shape == (None, DIM)
    lists = [*LISTS, []]
    dataset = tf.data.Dataset.from_tensor_slices(make(kind, lists)).batch(2)
    found = keras.Model(inputs, output).predict(dataset, verbose=0)
    assert_close(found, pooled("mean", lists))


class Padding(keras.layers.Layer):
    """Marks ids of 0 as padding."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        return ids

    def compute_mask(self, ids: tf.Tensor, mask: Any = None) -> tf.Tensor:
        return ids != 0


def test_masks_are_passed_on() -> None:
    layer = filled()
    ids, mask = tf.constant([[1, 0]], tf.int64), tf.constant([[True, False]])
    assert layer.supports_masking
    assert layer.compute_mask(ids) is None
    np.testing.assert_array_equal(layer.compute_mask(ids, mask), mask)


def test_later_layers_see_the_mask() -> None:
    inputs = keras.Input((3,), dtype="int64")
    output = keras.layers.GlobalAveragePooling1D()(filled()(Padding()(inputs)))
    found = keras.Model(inputs, output).predict(np.array([[1, 0, 0], [2, 3, 0]]), verbose=0)
    assert_close(found, np.stack([ROWS[1], (ROWS[2] + ROWS[3]) / 2]))


@pytest.mark.parametrize("kind", ["Embedding", "SquashedEmbedding", "FieldWiseEmbedding"])
@pytest.mark.parametrize(
    ("dtype", "key_dtype", "said"),
    [
        ("string", "int64", "make it with key_dtype=tf.string"),
        ("uint64", "int64", "tf.bitcast(keys, tf.int64)"),
        ("int64", "int32", "make it with key_dtype=tf.int64"),
        ("int64", "string", "make it with key_dtype=tf.int64"),
        ("bool", "int64", "tf.cast(keys, tf.int64)"),
    ],
)
def test_inputs_of_another_type_are_refused_when_the_model_is_made(
    dtype: str, key_dtype: str, said: str, kind: str
) -> None:
    options: dict[str, Any] = {"key_dtype": tf.as_dtype(key_dtype)}
    if kind == "FieldWiseEmbedding":
        options |= {"nslots": 2, "slot_map_fn": lambda ids: tf.zeros_like(ids)}
    layer = getattr(layers, kind)(DIM, **options)
    raises(lambda: layer(keras.Input((3,), dtype=dtype)), f"expected {key_dtype}", said)
