"""The lookup functions against those of TensorFlow on dense rows, and training with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_support import KERAS_WARNS, Array, Inertia, as_dense, de, initializer

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

DIM = 3
# The key of each row. Negative ids are valid too.
KEYS = np.array([-(2**60), -7, -1, 0, 1, 5, 2**40, 2**62])
ROWS = np.random.default_rng(3).standard_normal((len(KEYS), DIM)).astype(np.float32)
SHADOW = de.shadow_ops
TWO = ["/CPU:0", "/CPU:0"]


def filled(**options: Any) -> Any:
    """A Variable that holds `ROWS`."""
    variable = de.Variable(dim=DIM, **options)
    variable.upsert(KEYS, ROWS)
    return variable


@pytest.fixture(params=["variable", "two tables", "shadow"])
def params(request: pytest.FixtureRequest) -> Any:
    """The Variable or the shadow that the functions take."""
    if request.param == "shadow":
        return SHADOW.ShadowVariable(filled())
    return filled(devices=TWO if request.param == "two tables" else None)


def keyed(numbers: Any) -> Any:
    """The same ids with keys instead of row numbers."""
    if isinstance(numbers, tf.SparseTensor):
        return tf.SparseTensor(
            numbers.indices, tf.gather(KEYS, numbers.values), numbers.dense_shape
        )
    if isinstance(numbers, tf.RaggedTensor):
        return numbers.with_flat_values(tf.gather(KEYS, numbers.flat_values))
    return KEYS[numbers]


def ragged(rows: list[list[Any]], dtype: tf.DType = tf.int64) -> tf.RaggedTensor:
    return tf.ragged.constant(rows, dtype=dtype)


def assert_close(actual: Any, expected: Any) -> None:
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def signature(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: ... if p.default is p.empty else p.default for p in parameters}


def test_signatures() -> None:
    plain = {
        "params": ..., "ids": ..., "partition_strategy": None, "name": None,
        "validate_indices": None, "max_norm": None, "return_trainable": False,
    }  # fmt: skip
    assert list(signature(de.embedding_lookup).items()) == list(plain.items())
    assert list(signature(de.embedding_lookup_unique).items()) == list(plain.items())
    sparse = signature(de.embedding_lookup_sparse)
    assert isinstance(sparse.pop("name"), str | None)
    assert sparse == {
        "params": ..., "sp_ids": ..., "sp_weights": ..., "partition_strategy": None,
        "combiner": "mean", "max_norm": None, "return_trainable": False,
    }  # fmt: skip
    safe = signature(de.safe_embedding_lookup_sparse)
    assert isinstance(safe.pop("name"), str | None)
    assert safe == {
        "embedding_weights": ..., "sparse_ids": ..., "sparse_weights": None, "combiner": "mean",
        "default_id": None, "partition_strategy": None, "max_norm": None,
        "return_trainable": False,
    }  # fmt: skip
    given = {"name": "ShadowVariable", "max_norm": None, "trainable": True}
    assert signature(SHADOW.ShadowVariable.__init__).items() >= given.items()
    assert list(signature(SHADOW.embedding_lookup))[:2] == ["shadow", "ids"]
    unique = signature(SHADOW.embedding_lookup_unique)
    assert list(unique)[:4] == ["shadow", "ids", "embedding_size", "with_unique"]
    assert unique["with_unique"] is True


PLAIN = [de.embedding_lookup, de.embedding_lookup_unique]
SPARSE = [de.embedding_lookup_sparse, de.safe_embedding_lookup_sparse]


@pytest.mark.parametrize("look_up", PLAIN)
@pytest.mark.parametrize("max_norm", [None, 0.8])
def test_ids_of_any_shape(look_up: Any, params: Any, max_norm: float | None) -> None:
    for numbers in (3, [1, 1, 7], [], [[2, 0, 2], [1, 6, 5]], [[[4]]], [[], []]):
        numbers = np.array(numbers, np.int64)
        found = look_up(params, tf.constant(keyed(numbers)), max_norm=max_norm)
        assert_close(found, tf.nn.embedding_lookup(tf.constant(ROWS), numbers, max_norm=max_norm))


@pytest.mark.parametrize("look_up", PLAIN)
def test_missing_keys_have_their_initial_rows_and_are_not_inserted(look_up: Any) -> None:
    variable = de.Variable(dim=DIM, initializer=initializer())
    ids = np.array([[5, -5], [5, 6]])
    expected = variable.lookup(ids).numpy()
    assert np.abs(expected).min() > 0
    np.testing.assert_array_equal(look_up(variable, ids), expected)
    np.testing.assert_array_equal(look_up(variable, ids, return_trainable=True)[0], expected)
    assert int(variable.size()) == 0


def test_strings() -> None:
    variable = de.Variable(key_dtype=tf.string, dim=DIM)
    words = np.array([b"a", b"", b"c" * 100, b"d\0"])
    variable.upsert(words, ROWS[:4])
    for look_up in PLAIN:
        assert_close(look_up(variable, tf.constant(words[[2, 0, 2]])), tf.constant(ROWS[[2, 0, 2]]))
    numbers = ragged([[2, 0, 2], [1], [3, 0]])
    ids = numbers.with_flat_values(tf.gather(words, numbers.flat_values))
    expected = tf.nn.embedding_lookup_sparse(ROWS[:4], numbers.to_sparse(), None, combiner="sum")
    for given in (ids, ids.to_sparse()):
        found = de.embedding_lookup_sparse(variable, given, None, combiner="sum")
        assert_close(found, expected)


# Ids that are added up. The one without ids is in the middle: TensorFlow counts no rows after
# the last id.
NUMBERS = ragged([[0, 1, 0], [5], [], [2, 3, 4, 7, 3]])
WEIGHTS = ragged([[0.5, 2.0, 1.5], [3.0], [], [0.25, 1.0, 2.0, 0.5, 1.0]], tf.float32)


@pytest.mark.parametrize(
    ("weighted", "max_norm"), [(False, None), (True, None), (False, 0.8), (True, 0.8)]
)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("look_up", SPARSE)
def test_sums_and_means(
    params: Any, look_up: Any, combiner: str, weighted: bool, max_norm: float | None
) -> None:
    options = {"combiner": combiner, "max_norm": max_norm}
    weights = WEIGHTS if weighted else None
    sparse_ids, sparse_weights = NUMBERS.to_sparse(), WEIGHTS.to_sparse() if weighted else None
    expected = tf.nn.embedding_lookup_sparse(ROWS, sparse_ids, sparse_weights, **options)
    assert_close(look_up(params, keyed(NUMBERS), weights, **options), expected)
    assert_close(look_up(params, keyed(sparse_ids), sparse_weights, **options), expected)


def sparse(shape: list[int], indices: list[list[int]], values: Any) -> tf.SparseTensor:
    return tf.SparseTensor(np.array(indices).reshape(-1, len(shape)), values, shape)


INDICES = [[0, 0], [0, 1], [0, 3], [2, 0], [3, 0], [3, 1], [3, 2]]
CUBE = [[0, 0, 0], [0, 0, 1], [0, 2, 1], [1, 1, 0]]
SAFE_CASES: dict[str, tuple[tf.SparseTensor, tf.SparseTensor | None]] = {
    "empty rows": (sparse([6, 4], INDICES, [0, 1, 0, 5, 2, 3, 3]), None),
    "weights": (
        sparse([6, 4], INDICES, [0, 1, 0, 5, 2, 3, 3]),
        sparse([6, 4], INDICES, tf.constant([0.5, -1.0, 2.0, 0.0, 3.0, -0.5, 1.0])),
    ),
    "no ids": (sparse([3, 4], [], tf.zeros([0], tf.int64)), None),
    "three dimensions": (
        sparse([2, 3, 2], CUBE, [4, 6, 4, 1]),
        sparse([2, 3, 2], CUBE, tf.constant([1.0, 2.0, 3.0, 4.0])),
    ),
}  # fmt: skip


def as_int64(ids: tf.SparseTensor) -> tf.SparseTensor:
    return tf.SparseTensor(ids.indices, tf.cast(ids.values, tf.int64), ids.dense_shape)


@pytest.mark.parametrize("default", [None, 7])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("case", SAFE_CASES)
def test_empty_rows_and_weights_that_do_not_count(
    params: Any, case: str, combiner: str, default: int | None
) -> None:
    ids, weights = SAFE_CASES[case]
    ids = as_int64(ids)
    expected = tf.nn.safe_embedding_lookup_sparse(
        tf.constant(ROWS), ids, weights, combiner=combiner, default_id=default, max_norm=1.5
    )
    default_id = None if default is None else int(KEYS[default])
    found = de.safe_embedding_lookup_sparse(
        params, keyed(ids), weights, combiner, default_id, max_norm=1.5
    )
    assert_close(found, expected)


@pytest.mark.parametrize("default", [None, 7])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("case", SAFE_CASES)
def test_safe_lookups_take_ids_in_any_order(
    params: Any, case: str, combiner: str, default: int | None
) -> None:
    ids, weights = SAFE_CASES[case]
    ids = keyed(as_int64(ids))
    expected = de.safe_embedding_lookup_sparse(params, ids, weights, combiner, default)

    def turned(tensor: Any) -> Any:
        if tensor is None:
            return None
        return tf.SparseTensor(tensor.indices[::-1], tensor.values[::-1], tensor.dense_shape)

    found = de.safe_embedding_lookup_sparse(params, turned(ids), turned(weights), combiner, default)
    assert_close(found, expected)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_all_dimensions_of_sparse_ids_but_the_first_are_combined(combiner: str) -> None:
    ids, weights = SAFE_CASES["three dimensions"]
    expected = tf.nn.embedding_lookup_sparse(ROWS, as_int64(ids), weights, combiner=combiner)
    assert expected.shape == (2, DIM)
    variable = filled()

    def look_up(ids: tf.SparseTensor, weights: tf.SparseTensor) -> tf.Tensor:
        rows = de.embedding_lookup_sparse(variable, ids, weights, combiner=combiner)
        assert rows.shape.rank == 2
        assert rows.shape[1] == DIM
        return rows

    arguments = keyed(as_int64(ids)), weights
    assert_close(look_up(*arguments), expected)
    unknown = [tf.SparseTensorSpec(None, tf.int64), tf.SparseTensorSpec(None, tf.float32)]
    assert_close(tf.function(look_up, input_signature=unknown)(*arguments), expected)


@pytest.mark.parametrize("look_up", [de.embedding_lookup, de.embedding_lookup_unique])
def test_values_that_are_not_trained(look_up: Any) -> None:
    for dtype, values in (("int32", [[1, 2], [3, 4]]), ("string", [["a", "b"], ["c", "d"]])):
        variable = de.Variable(value_dtype=dtype, dim=2)
        variable.upsert([5, 6], tf.constant(values, dtype))
        expected = tf.gather(tf.constant(values, dtype), [[1, 0], [1, 1]]).numpy().tolist()
        assert look_up(variable, [[6, 5], [6, 6]]).numpy().tolist() == expected
        with pytest.raises(TypeError, match="floating"):
            look_up(variable, [5], return_trainable=True)


@pytest.mark.parametrize("look_up", [de.embedding_lookup, de.embedding_lookup_unique])
def test_params_may_be_a_list_of_one(look_up: Any) -> None:
    variable = filled()
    assert_close(look_up([variable], KEYS[:3]), look_up(variable, KEYS[:3]))
    with pytest.raises(TypeError, match="params"):
        look_up([variable, variable], KEYS[:3])


@pytest.mark.parametrize("key", [3, -3])
def test_gradients_do_not_become_dense_and_empty(key: int) -> None:
    variable = de.Variable(dim=2, initializer=1.0)
    with tf.GradientTape() as tape:
        rows, trainable = de.embedding_lookup(variable, [key], return_trainable=True)
    gradient = tape.gradient(rows, trainable)
    for change in (tf.convert_to_tensor, lambda g: tf.multiply(g, 0.5), tf.math.is_nan):
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="negative"):
            change(gradient)


@pytest.mark.parametrize("case", SAFE_CASES)
def test_lookups_in_a_function_know_their_width(params: Any, case: str) -> None:
    ids, weights = SAFE_CASES[case]
    ids = as_int64(ids)

    @tf.function
    def look_up(ids: tf.SparseTensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        pooled = de.safe_embedding_lookup_sparse(params, ids, weights)
        rows = de.embedding_lookup(params, values)
        assert (pooled.shape[-1], rows.shape[-1]) == (DIM, DIM)
        return pooled, rows

    pooled, rows = look_up(keyed(ids), keyed(ids).values)
    assert_close(pooled, tf.nn.safe_embedding_lookup_sparse(tf.constant(ROWS), ids, weights))
    assert_close(rows, tf.gather(ROWS, ids.values))


def test_safe_lookups_of_ragged_ids() -> None:
    numbers = ragged([[], [0, 1], [3], []])
    weights = ragged([[], [1.0, -1.0], [2.0], []], tf.float32)
    for given, dense in ((None, None), (weights, weights.to_sparse())):
        expected = tf.nn.safe_embedding_lookup_sparse(ROWS, numbers.to_sparse(), dense)
        assert_close(de.safe_embedding_lookup_sparse(filled(), keyed(numbers), given), expected)


@pytest.mark.parametrize("look_up", SPARSE)
def test_errors(look_up: Any) -> None:
    variable, ids = filled(), keyed(NUMBERS.to_sparse())
    with pytest.raises(TypeError):
        look_up(variable, tf.constant([[1, 2]], tf.int64), None)
    with pytest.raises(TypeError):
        look_up(variable, [1, 2], None)
    with pytest.raises(TypeError):
        look_up(variable, ids, tf.constant([1.0]))
    with pytest.raises(ValueError, match="max"):
        look_up(variable, ids, None, combiner="max")
    with pytest.raises((TypeError, ValueError)):
        look_up(ROWS, ids, None)


# Gradients and training.


def plainly(function: Any, ids: Any) -> Callable[..., Any]:
    return lambda params, **options: function(params, tf.constant(keyed(ids)), **options)


def summed(function: Any, ids: Any, weights: Any, combiner: str) -> Callable[..., Any]:
    return lambda params, **options: function(
        params, keyed(ids), weights, combiner=combiner, **options
    )


SAFE_IDS, SAFE_WEIGHTS = as_int64(SAFE_CASES["weights"][0]), SAFE_CASES["weights"][1]
GRID = np.array([[2, 0, 2], [1, 6, 5]])
# A lookup in a table, and the same in dense rows.
LOOKUPS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "embedding_lookup": (
        plainly(de.embedding_lookup, GRID), lambda rows: tf.nn.embedding_lookup(rows, GRID)
    ),
    "embedding_lookup_unique": (
        plainly(de.embedding_lookup_unique, GRID), lambda rows: tf.nn.embedding_lookup(rows, GRID)
    ),
    **{
        f"embedding_lookup_sparse {combiner}": (
            summed(de.embedding_lookup_sparse, NUMBERS, WEIGHTS, combiner),
            lambda rows, combiner=combiner: tf.nn.embedding_lookup_sparse(
                rows, NUMBERS.to_sparse(), WEIGHTS.to_sparse(), combiner=combiner
            ),
        )
        for combiner in ("sum", "mean", "sqrtn")
    },
    "embedding_lookup_sparse unweighted": (
        summed(de.embedding_lookup_sparse, NUMBERS.to_sparse(), None, "mean"),
        lambda rows: tf.nn.embedding_lookup_sparse(rows, NUMBERS.to_sparse(), None),
    ),
    **{
        f"safe_embedding_lookup_sparse {combiner}": (
            summed(de.safe_embedding_lookup_sparse, SAFE_IDS, SAFE_WEIGHTS, combiner),
            lambda rows, combiner=combiner: tf.nn.safe_embedding_lookup_sparse(
                rows, SAFE_IDS, SAFE_WEIGHTS, combiner=combiner
            ),
        )
        for combiner in ("sum", "mean")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKUPS)
def test_gradients_are_those_of_dense_rows(params: Any, name: str) -> None:
    look_up, dense_look_up = LOOKUPS[name]
    rows = tf.Variable(ROWS)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(dense_look_up(rows) ** 2)
    expected = tf.convert_to_tensor(tape.gradient(loss, rows)).numpy()
    with tf.GradientTape() as tape:
        found, trainable = look_up(params, return_trainable=True)
        loss = tf.reduce_sum(found**2)
    assert isinstance(trainable, SHADOW.ShadowVariable)
    assert isinstance(trainable, de.TrainableWrapper)
    gradient = tape.gradient(loss, trainable)
    np.testing.assert_allclose(as_dense(gradient, KEYS), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_weights_have_gradients(combiner: str) -> None:
    gradients = []
    for look_up, params, ids in (
        (de.embedding_lookup_sparse, filled(), keyed(NUMBERS.to_sparse())),
        (tf.nn.embedding_lookup_sparse, tf.constant(ROWS), NUMBERS.to_sparse()),
    ):
        weights = tf.Variable(WEIGHTS.flat_values)
        with tf.GradientTape() as tape:
            sp_weights = tf.SparseTensor(ids.indices, weights, ids.dense_shape)
            loss = tf.reduce_sum(look_up(params, ids, sp_weights, combiner=combiner) ** 2)
        gradients.append(tape.gradient(loss, weights))
    np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-5)


MAKE = {"SGD": lambda: keras.optimizers.SGD(0.1), "Adam": lambda: keras.optimizers.Adam(0.05),
        "own": lambda: Inertia(0.05)}  # fmt: skip


@pytest.mark.parametrize(
    ("optimizer", "wrapped"), [("SGD", False), ("Adam", False), ("Adam", True), ("own", False)]
)
@pytest.mark.parametrize(
    "name",
    [
        "embedding_lookup", "embedding_lookup_unique", "embedding_lookup_sparse mean",
        "safe_embedding_lookup_sparse mean",
    ],
)  # fmt: skip
def test_trainables_train(name: str, optimizer: str, wrapped: bool) -> None:
    variable, rows = filled(), tf.Variable(ROWS)
    look_up, dense_look_up = LOOKUPS[name]
    of_table, of_rows = MAKE[optimizer](), MAKE[optimizer]()
    of_table = de.DynamicEmbeddingOptimizer(of_table) if wrapped else of_table
    for _ in range(3):
        with tf.GradientTape() as tape:
            found, trainable = look_up(variable, return_trainable=True)
            loss = tf.reduce_sum(found**2)
        of_table.apply_gradients([(tape.gradient(loss, trainable), trainable)])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(dense_look_up(rows) ** 2)
        of_rows.apply_gradients([(tf.convert_to_tensor(tape.gradient(loss, rows)), rows)])
    # In dense training, rows of absent ids get zero gradients, which change no row here.
    assert np.abs(rows.numpy() - ROWS).max() > 0.05
    np.testing.assert_allclose(variable.lookup(KEYS), rows, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("default_id", [None, 70])
def test_only_ids_and_the_default_id_are_inserted(default_id: int | None) -> None:
    variable, optimizer = de.Variable(dim=DIM, initializer=1.0), keras.optimizers.SGD(0.5)
    ids = ragged([[], [20, 30, 40], []])
    weights = ragged([[], [1.0, 1.0, -1.0], []], tf.float32)
    with tf.GradientTape() as tape:
        found, trainable = de.safe_embedding_lookup_sparse(
            variable, ids, weights, default_id=default_id, return_trainable=True
        )
        loss = tf.reduce_sum(found)
    optimizer.apply_gradients([(tape.gradient(loss, trainable), trainable)])
    rows = dict(zip(*(part.numpy().tolist() for part in variable.export()), strict=True))
    expected = {20: [0.75] * DIM, 30: [0.75] * DIM}  # The mean of two.
    if default_id is not None:
        expected[default_id] = [0.0] * DIM  # Twice a row of its own.
    assert {key: row for key, row in rows.items() if key != 40} == expected
    assert rows.get(40, [1.0] * DIM) == [1.0] * DIM  # Its weight is not positive.


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_variable_has_the_same_trainable_again(name: str) -> None:
    variable, look_up = filled(), LOOKUPS[name][0]
    trainable = look_up(variable, return_trainable=True)[1]
    assert trainable.params is variable
    assert look_up(variable, return_trainable=True)[1] is trainable
    assert de.embedding_lookup(variable, KEYS, return_trainable=True)[1] is trainable
    assert look_up(filled(), return_trainable=True)[1] is not trainable
    shadow = SHADOW.ShadowVariable(variable)
    assert look_up(shadow, return_trainable=True)[1] is shadow


@pytest.mark.parametrize("way", ["embedding_lookup", "unique", "not unique"])
@pytest.mark.parametrize("optimizer", MAKE)
def test_shadows_train_in_functions(optimizer: str, way: str) -> None:
    variable, rows = filled(), tf.Variable(ROWS)
    shadow = SHADOW.ShadowVariable(variable, name="shadow")
    assert shadow.params is variable
    of_table, of_rows = MAKE[optimizer](), MAKE[optimizer]()

    @tf.function
    def step(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            if way == "embedding_lookup":
                found = SHADOW.embedding_lookup(shadow, ids)
            else:
                found = SHADOW.embedding_lookup_unique(shadow, ids, DIM, way == "unique")
            loss = tf.reduce_sum(found**2)
        of_table.apply_gradients([(tape.gradient(loss, shadow), shadow)])
        return found

    for numbers in ([[0, 1, 2, 3], [4, 5, 6, 7]], [[7, 7, 5, 6], [0, 1, 2, 3], [4, 0, 0, 1]]):
        numbers = np.array(numbers)
        expected = tf.gather(rows, numbers)
        assert_close(step(tf.constant(KEYS[numbers])), expected)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(tf.one_hot(numbers, len(KEYS)), rows) ** 2)
        of_rows.apply_gradients([(tape.gradient(loss, rows), rows)])
    assert np.abs(rows.numpy() - ROWS).max() > 0.05
    np.testing.assert_allclose(variable.lookup(KEYS), rows, rtol=1e-5, atol=1e-5)


def test_attributes_of_shadows() -> None:
    variable = filled()
    shadow = SHADOW.ShadowVariable(variable, name="seen", max_norm=0.5, trainable=False)
    assert isinstance(shadow, de.TrainableWrapper)
    assert "seen" in shadow.name
    assert not shadow.trainable
    assert SHADOW.ShadowVariable(variable).trainable
    found = SHADOW.embedding_lookup(shadow, tf.constant(KEYS))
    assert_close(found, tf.clip_by_norm(tf.constant(ROWS), 0.5, axes=[1]))


def test_trainables_can_be_told_from_other_variables() -> None:
    first = de.embedding_lookup(filled(), KEYS, return_trainable=True)[1]
    second, dense = SHADOW.ShadowVariable(filled()), tf.Variable(1.0)
    others, trainables = de.trainable_wrapper_filter([first, dense, second])
    assert [one is other for one, other in zip(trainables, [first, second], strict=True)] == [
        True
    ] * 2
    assert [one is dense for one in others] == [True]


def test_a_variable_and_its_shadow_look_up_themselves() -> None:
    variable = de.Variable(dim=2, initializer=3.0)
    for params in (variable, SHADOW.ShadowVariable(variable)):
        assert list(signature(params.embedding_lookup)) == ["ids", "name", "max_norm"]
        with tf.GradientTape() as tape:
            rows, trainable = params.embedding_lookup([[7], [8]], name="seen")
        assert isinstance(trainable, de.TrainableWrapper)
        assert tape.gradient(rows, trainable).indices.numpy().tolist() == [7, 8]
        assert rows.numpy().tolist() == [[[3.0, 3.0]], [[3.0, 3.0]]]
        clipped, _ = params.embedding_lookup([7], max_norm=1.0)
        np.testing.assert_allclose(np.linalg.norm(clipped), 1.0, rtol=1e-6)
    with pytest.raises(TypeError, match="`keys`: expected int64"):
        variable.embedding_lookup(["a"])
    with pytest.raises(TypeError, match="Only floating values"):
        de.Variable(value_dtype=tf.int64).embedding_lookup([1])


def test_math_and_data_flow_are_those_of_tensorflow() -> None:
    ids = NUMBERS.to_sparse()

    def same(ours: Any, theirs: Any) -> None:
        flat = [tf.nest.flatten(part, expand_composites=True) for part in (ours, theirs)]
        assert len(flat[0]) == len(flat[1])
        for actual, expected in zip(*flat, strict=True):
            np.testing.assert_array_equal(actual, expected)

    default = tf.constant(9, tf.int64)
    same(de.math.sparse_fill_empty_rows(ids, default), tf.sparse.fill_empty_rows(ids, default))
    same(de.math.sparse_reshape(ids, [2, -1]), tf.sparse.reshape(ids, [2, -1]))
    picked: tuple[Array, Array] = (np.array([0, 2, 5]), np.array([0, 0, 3]))
    for more in ({}, {"num_segments": 6}):
        expected = tf.sparse.segment_sum(ROWS, *picked, **more)
        same(de.math.sparse_segment_sum(ROWS, *picked, **more), expected)
    partitions = np.array([0, 2, 0, 1, 2, 2, 0, 0], np.int32)
    parts = de.data_flow.dynamic_partition(ROWS, partitions, 4)
    same(parts, tf.dynamic_partition(ROWS, partitions, 4))
    places = tf.dynamic_partition(tf.range(len(ROWS)), partitions, 4)
    same(de.data_flow.dynamic_stitch(places, parts), tf.dynamic_stitch(places, parts))
