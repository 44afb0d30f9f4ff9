"""Lookups that combine rows, and sums of gradients: the ops against TensorFlow's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_support import KEY_DTYPES, TfCase, raises, to_numpy

from support import Array
from tfra.dynamic_embedding._platform.tf import ops

COMBINERS = ("sum", "mean", "sqrtn")
FLOATING_DTYPES = ("float16", "bfloat16", "float32", "float64")
KEYS = 50
INVALID = (ValueError, tf.errors.InvalidArgumentError)
NO_WEIGHTS = np.zeros(0, np.float32)

each_combiner = pytest.mark.parametrize("combiner", COMBINERS)
each_key_dtype = pytest.mark.parametrize("key_dtype", KEY_DTYPES)
each_value_dtype = pytest.mark.parametrize("value_dtype", FLOATING_DTYPES)
with_and_without_weights = pytest.mark.parametrize("weighted", [False, True], ids=["plain", "w"])


def compute_dtype(value_dtype: str) -> tf.DType:
    return tf.float64 if value_dtype == "float64" else tf.float32


class Bag:
    """Numbers of keys in segments of which the last has some, and their weights."""

    def __init__(self, segments: int = 40, longest: int = 6, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        lengths = random.integers(0, longest + 1, segments)
        lengths[-1] = longest  # TensorFlow takes the number of segments from the last key.
        self.lengths = lengths
        self.splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.numbers = random.integers(0, KEYS, self.splits[-1])
        self.weights = random.integers(-3, 6, self.splits[-1]).astype(np.float32) / 4

    def sparse(self, values: Array) -> tf.SparseTensor:
        rows = np.repeat(np.arange(len(self.lengths)), self.lengths)
        columns = np.arange(len(rows)) - self.splits[rows]
        shape = (len(self.lengths), max(self.lengths))
        return tf.SparseTensor(np.stack([rows, columns], 1), values, shape)

    def pooled(self, dense: Any, combiner: str, weighted: bool, max_norm: float | None) -> Any:
        """What TensorFlow makes of the rows of a matrix."""
        weights = self.sparse(self.weights) if weighted else None
        return tf.nn.embedding_lookup_sparse(
            dense, self.sparse(self.numbers), weights, combiner=combiner, max_norm=max_norm
        )

    def arguments(self, case: TfCase, weighted: bool) -> tuple[Any, ...]:
        """Keys, row_splits and weights."""
        return (
            tf.constant(case.keys(self.numbers)),
            self.splits,
            self.weights if weighted else NO_WEIGHTS,
        )


def filled(case: TfCase, keys: int = KEYS) -> tuple[Any, Array]:
    """A table with a row for each number below `keys`, and the rows of all numbers."""
    table = case.table("CuckooHashTable")
    rows = np.random.default_rng(1).normal(size=(KEYS, *case.row))
    rows = tf.cast(rows, case.value_dtype).numpy()
    table.insert(case.keys(range(keys)), rows[:keys])
    rows[keys:] = case.default()
    return table, rows


def lookup(
    case: TfCase, table: Any, bag: Bag, combiner: str, weighted: bool = False, **more: Any
) -> tf.Tensor:
    more = {"initial": True, "Ts": compute_dtype(case.value_dtype), **more}
    return ops.tfra_lookup_pooled(
        table.resource_handle,
        *bag.arguments(case, weighted),
        tf.zeros(case.row, case.value_dtype),
        combiner=combiner,
        **more,
    )


@with_and_without_weights
@each_combiner
@each_value_dtype
@each_key_dtype
@pytest.mark.parametrize("max_norm", [None, 1.5])
def test_pooled_lookup(
    key_dtype: str, value_dtype: str, combiner: str, weighted: bool, max_norm: float | None
) -> None:
    case = TfCase(key_dtype, value_dtype, (5,))
    table, rows = filled(case)
    bag = Bag()
    result = lookup(case, table, bag, combiner, weighted, max_norm=max_norm or 0.0)
    dense = rows.astype(compute_dtype(value_dtype).as_numpy_dtype)
    expected = bag.pooled(dense, combiner, weighted, max_norm)
    assert result.dtype == compute_dtype(value_dtype)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@each_combiner
@each_key_dtype
def test_missing_keys(key_dtype: str, combiner: str) -> None:
    case = TfCase(key_dtype, row=(4,))
    table, rows = filled(case, keys=30)
    bag = Bag()
    # The table's own value, or the one given.
    expected = bag.pooled(rows, combiner, False, None)
    np.testing.assert_allclose(lookup(case, table, bag, combiner), expected, rtol=1e-5, atol=1e-6)
    rows[30:] = 0
    expected = bag.pooled(rows, combiner, False, None)
    result = lookup(case, table, bag, combiner, initial=False)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    assert int(table.size()) == 30


@each_combiner
def test_large_results(combiner: str) -> None:
    case = TfCase(row=(64,))
    table, rows = filled(case)
    bag = Bag(segments=5000, longest=9)
    result = lookup(case, table, bag, combiner, weighted=True)
    expected = bag.pooled(rows, combiner, True, None)
    # TensorFlow's own sums differ in their last bits, and totals near zero show it.
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3)


@each_combiner
def test_no_keys(combiner: str) -> None:
    case = TfCase()
    table, _ = filled(case)
    for splits in ([0], [0, 0, 0]):
        bag = Bag()
        bag.numbers, bag.splits = np.zeros(0, np.int64), np.array(splits)
        result = lookup(case, table, bag, combiner)
        np.testing.assert_array_equal(result, np.zeros((len(splits) - 1, 3), np.float32))


def test_tables_of_scalars() -> None:
    case = TfCase(row=())
    table, rows = filled(case)
    bag = Bag()
    expected = bag.pooled(rows[:, None], "sum", False, None)[:, 0]
    np.testing.assert_allclose(lookup(case, table, bag, "sum"), expected, rtol=1e-5, atol=1e-6)


def test_shapes_that_are_known_while_tracing() -> None:
    case = TfCase()
    table, _ = filled(case)
    shapes = []

    def function(keys: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        values = ops.tfra_lookup_pooled(
            table.resource_handle, keys, splits, NO_WEIGHTS, tf.zeros([3]), Ts=tf.float32,
            combiner="sum", initial=True,
        )  # fmt: skip
        gradients = ops.tfra_pooled_gradient(keys, splits, NO_WEIGHTS, values, combiner="sum")
        sums = ops.tfra_sum_gradients(gradients[0], gradients[1], Ts=tf.float32)
        shapes.append([t.shape.as_list() for t in (values, *gradients, *sums)])
        return sums[1]

    for size, segments in ((None, None), (5, 4)):
        specs = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([size], tf.int64)]
        traced = tf.function(function, input_signature=specs)
        assert traced(tf.constant([1, 2, 1], tf.int64), [0, 1, 1, 2, 3]).shape == (2, 3)
        assert shapes[-1] == [[segments, 3], [None], [None, 3], [None], [None, 3]]


def test_which_ops_are_pure() -> None:
    graph = tf.Graph()
    with graph.as_default():
        keys = tf.constant([1])
        gradients = ops.tfra_pooled_gradient(keys, [0, 1], NO_WEIGHTS, [[1.0]], combiner="sum")
        sums = ops.tfra_sum_gradients(keys, [[1.0]], Ts=tf.float32)
    assert not gradients[0].op.op_def.is_stateful
    assert not sums[0].op.op_def.is_stateful


def assert_sums(result: Any, keys: Array, rows: Array, rtol: float = 1e-5) -> None:
    """Checks distinct keys in order of first occurrence, and sums of a row for each key."""
    unique = list(dict.fromkeys(keys.reshape(-1).tolist()))
    expected = np.zeros((len(unique), rows.shape[-1]))
    places = [unique.index(key) for key in keys.reshape(-1).tolist()]
    np.add.at(expected, places, rows.reshape(-1, rows.shape[-1]))
    assert to_numpy(result[0]).tolist() == unique
    np.testing.assert_allclose(result[1], expected, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (30,), (4, 5), (2, 0), (20000,)], ids=str)
@each_value_dtype
@each_key_dtype
def test_sums_of_gradients(key_dtype: str, value_dtype: str, shape: tuple[int, ...]) -> None:
    case = TfCase(key_dtype, value_dtype, (4,))
    random = np.random.default_rng(2)
    keys = case.keys(random.integers(0, KEYS, shape))
    # Small integers: every type adds them exactly.
    gradients = random.integers(-8, 9, (*shape, 4)).astype(np.float64)
    dtype = compute_dtype(value_dtype)
    result = ops.tfra_sum_gradients(
        tf.constant(keys, shape=shape), tf.cast(gradients, value_dtype), Ts=dtype
    )
    assert result[1].dtype == dtype
    assert_sums(result, np.asarray(keys), gradients, rtol=0)


def test_sums_of_large_gradients() -> None:
    keys = np.random.default_rng(3).permutation(np.repeat(np.arange(20000), 2))
    gradients = np.random.default_rng(4).normal(size=(40000, 16)).astype(np.float32)
    unique, sums = ops.tfra_sum_gradients(keys, gradients, Ts=tf.float32)
    expected_keys, places = tf.unique(keys)
    np.testing.assert_array_equal(unique, expected_keys)
    expected = tf.math.unsorted_segment_sum(gradients, places, 20000)
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-6)


@with_and_without_weights
@each_combiner
@each_key_dtype
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64], ids=repr)
def test_pooled_gradient(key_dtype: str, dtype: tf.DType, combiner: str, weighted: bool) -> None:
    case = TfCase(key_dtype, dtype.name, (3,))
    bag = Bag()
    dense = tf.constant(np.random.default_rng(5).normal(size=(KEYS, 3)), dtype)
    upstream = tf.constant(np.random.default_rng(6).normal(size=(40, 3)), dtype)
    with tf.GradientTape() as tape:
        tape.watch(dense)
        pooled = bag.pooled(dense, combiner, weighted, None)
    expected = tf.convert_to_tensor(tape.gradient(pooled, dense, upstream)).numpy()
    keys, splits, weights = bag.arguments(case, weighted)
    unique, sums = ops.tfra_pooled_gradient(keys, splits, weights, upstream, combiner=combiner)
    numbers = list(dict.fromkeys(bag.numbers.tolist()))
    assert to_numpy(unique).tolist() == case.keys(numbers).tolist()
    np.testing.assert_allclose(sums, expected[numbers], rtol=1e-4, atol=1e-5)


def pooled_with(**changes: Any) -> Any:
    """A call of TfraLookupPooled with some arguments wrong."""
    case = TfCase()
    table, _ = filled(case)
    arguments: dict[str, Any] = {
        "keys": tf.constant([1, 2], tf.int64),
        "row_splits": [0, 2],
        "weights": NO_WEIGHTS,
        "row": tf.zeros([3]),
        "Ts": tf.float32,
        "combiner": "sum",
        "initial": True,
        **changes,
    }
    return ops.tfra_lookup_pooled(table.resource_handle, **arguments)


WRONG: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "splits that start late": ({"row_splits": [1, 2]}, ["0"]),
    "splits that descend": ({"row_splits": [0, 2, 1, 2]}, ["ascending", "1after2"]),
    "splits that end early": ({"row_splits": [0, 1]}, ["2", "received1"]),
    "splits that end late": ({"row_splits": [0, 9]}, ["2", "received9"]),
    "no splits": ({"row_splits": np.zeros(0, np.int64)}, ["[0]"]),
    "weights": ({"weights": [1.0]}, [(2,), (1,)]),
    "weights of rank 2": ({"weights": [[1.0, 1.0]]}, [(2,), (1, 2)]),
    "keys of rank 2": ({"keys": tf.ones([1, 2], tf.int64)}, [(1, 2)]),
    "keys of a type": ({"keys": tf.constant(["a", "b"])}, ["int64", "string"]),
    "row": ({"row": tf.zeros([4])}, [(3,), (4,)]),
    "type of the row": ({"row": tf.zeros([3], tf.float64)}, ["float32", "float64"]),
    "type of the result": ({"Ts": tf.float64}, ["float32", "float64"]),
    "norm": ({"max_norm": -1.0}, ["max_norm", "-1"]),
}


@pytest.mark.parametrize(("changes", "said"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_of_a_pooled_lookup(changes: dict[str, Any], said: list[Any]) -> None:
    raises(INVALID, lambda: pooled_with(**changes), *said)


def test_splits_of_a_wrong_rank() -> None:
    with pytest.raises(INVALID, match="rank 1"):
        pooled_with(row_splits=[[0, 2]])


def test_an_unknown_combiner() -> None:
    with pytest.raises(INVALID, match="max"):
        pooled_with(combiner="max")


def test_values_that_are_not_floating() -> None:
    case = TfCase("int64", "int32")
    table = case.table("CuckooHashTable")
    call = lambda: lookup(case, table, Bag(), "sum", Ts=tf.float32)  # noqa: E731
    raises(INVALID, call, "floating", "int32")


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (3, 1, 4), (1, 3, 4)], ids=str)
def test_gradients_of_a_wrong_shape(shape: tuple[int, ...]) -> None:
    keys = tf.ones([3], tf.int64)
    if shape == (3,):
        keys = tf.ones([3, 1], tf.int64)
    raises(INVALID, lambda: ops.tfra_sum_gradients(keys, tf.ones(shape), Ts=tf.float32), shape)


def test_a_wrong_type_of_sums() -> None:
    gradients = tf.ones([1, 2], tf.float16)
    call = lambda: ops.tfra_sum_gradients([1], gradients, Ts=tf.float64)  # noqa: E731
    raises(INVALID, call, "float32", "float64")


@pytest.mark.parametrize("shape", [(1,), (2, 3), (1, 3, 1)], ids=str)
def test_pooled_gradients_of_a_wrong_shape(shape: tuple[int, ...]) -> None:
    def call() -> Any:
        return ops.tfra_pooled_gradient([1, 2], [0, 2], NO_WEIGHTS, tf.ones(shape), combiner="sum")

    raises(INVALID, call, "`gradients`", shape)
