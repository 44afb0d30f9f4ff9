"""The rows of missing keys, which the initializer of a Variable makes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_support import KEY_DTYPES, VALUE_DTYPES, TfCase, assert_tensor, content, de, to_numpy

import tfra
from support import FLOATING_DTYPES, Array, numpy_dtype
from tfra.dynamic_embedding._tables.computed_rows import STRING_HASH_KEY

v1 = tf.compat.v1
initializers = tf.keras.initializers
DIM = 3
ROW = np.array([1.5, -2.0, 3.25], np.float32)
THREE = ["/CPU:0"] * 3

# Initializers that are not random, and the row that they make.
FIXED: dict[str, tuple[Any, Any]] = {
    "None": (None, 0),
    "int": (2, 2),
    "float": (-1.5, -1.5),
    "NumPy number": (np.float64(0.25), 0.25),
    "scalar array": (np.array(0.25), 0.25),
    "row": (ROW, ROW),
    "row of float64": (ROW.astype(np.float64), ROW),
    "keras Zeros": (initializers.Zeros(), 0),
    "keras Ones": (initializers.Ones(), 1),
    "keras Ones class": (initializers.Ones, 1),
    "keras Constant": (initializers.Constant(0.75), 0.75),
    "tf zeros": (tf.zeros_initializer(), 0),
    "tf zeros class": (tf.zeros_initializer, 0),
    "tf ones class": (tf.ones_initializer, 1),
    "tf constant": (tf.constant_initializer(-4.0), -4),
    "tf constant row": (tf.constant_initializer(ROW.tolist()), ROW),
    "v1 zeros": (v1.zeros_initializer(), 0),
    "v1 ones class": (v1.ones_initializer, 1),
    "v1 constant": (v1.constant_initializer(2.5), 2.5),
    "shape and dtype": (lambda shape, dtype: tf.fill(shape, tf.cast(6.5, dtype)), 6.5),
    "shape and dtype or not": (lambda shape, dtype=tf.float32: tf.ones(shape, dtype) * 3, 3),
    "tf.ones": (tf.ones, 1),
}

# Random initializers as a function of the seed: different keys get different rows.
RANDOM: dict[str, Callable[[int | None], Any]] = {
    "keras RandomNormal": lambda seed: initializers.RandomNormal(seed=seed),
    "keras RandomUniform": lambda seed: initializers.RandomUniform(seed=seed),
    "keras TruncatedNormal": lambda seed: initializers.TruncatedNormal(seed=seed),
    "keras GlorotUniform": lambda seed: initializers.GlorotUniform(seed=seed),
    "tf random_normal": lambda seed: tf.random_normal_initializer(seed=seed),
    "tf random_uniform": lambda seed: tf.random_uniform_initializer(seed=seed),
    "v1 random_normal": lambda seed: v1.random_normal_initializer(seed=seed),
    "v1 random_uniform": lambda seed: v1.random_uniform_initializer(-1, 1, seed=seed),
    "v1 truncated_normal": lambda seed: v1.truncated_normal_initializer(seed=seed),
}
RANDOM_CLASSES = {
    "keras": initializers.RandomNormal,
    "tf": tf.random_normal_initializer,
    "v1": v1.random_normal_initializer,
}

NORMAL = {"mean": 2.0, "stddev": 0.5}
UNIFORM = {"minval": -1.0, "maxval": 3.0}
NORMALS = (initializers.RandomNormal, tf.random_normal_initializer, v1.random_normal_initializer)
UNIFORMS = (
    initializers.RandomUniform,
    tf.random_uniform_initializer,
    v1.random_uniform_initializer,
)
TRUNCATED = (initializers.TruncatedNormal, v1.truncated_normal_initializer)


def rows_of(variable: Any, keys: Any) -> Array:
    return to_numpy(variable.lookup(keys))


@pytest.mark.parametrize(("initializer", "row"), FIXED.values(), ids=FIXED)
@pytest.mark.parametrize("value_dtype", ["float32", "float64"])
def test_fixed_rows(initializer: Any, row: Any, value_dtype: str, devices: Any) -> None:
    case = TfCase("int64", value_dtype)
    variable = case.variable(devices=devices, initializer=initializer)
    expected = np.broadcast_to(np.asarray(row, value_dtype), (2, 4, DIM))
    keys = np.arange(8).reshape(2, 4)
    assert_tensor(variable.lookup(keys), expected)
    assert_tensor(variable.lookup(keys[0, 0]), expected[0, 0])
    assert_tensor(variable.lookup(keys[:, :0]), expected[:, :0])
    variable.upsert(keys[0], case.values(4))
    assert_tensor(variable.lookup(keys), np.stack([case.values(4), expected[1]]))
    variable.remove(keys[0])
    assert_tensor(variable.lookup(keys), expected)
    assert content(variable) == {}


def test_a_function_may_take_the_shape_only(devices: Any) -> None:
    variable = de.Variable(dim=2, devices=devices, initializer=lambda shape: tf.ones(shape) * 5)
    assert_tensor(variable.lookup([[1, 2, 3]]), np.full((1, 3, 2), 5, np.float32))


@pytest.mark.parametrize("made", [0.25, [0.25, 0.25]], ids=["number", "row"])
def test_a_function_may_take_nothing(made: Any, devices: Any) -> None:
    variable = de.Variable(dim=2, devices=devices, initializer=lambda: made)
    assert_tensor(variable.lookup([[1, 2, 3]]), np.full((1, 3, 2), 0.25, np.float32))


@pytest.mark.parametrize("make", [np.array, tf.constant])
def test_a_row_may_come_as_a_batch_of_one(make: Any, devices: Any) -> None:
    variable = de.Variable(dim=3, devices=devices, initializer=make([[1.0, 2.0, 3.0]]))
    assert_tensor(variable.lookup([7, 8]), np.array([[1, 2, 3]] * 2, np.float32))
    with pytest.raises(ValueError, match="expected shape"):
        de.Variable(dim=3, initializer=make([[1.0, 2.0, 3.0]] * 2))


@pytest.mark.parametrize("value_dtype", VALUE_DTYPES)
@pytest.mark.parametrize("key_dtype", KEY_DTYPES)
def test_without_an_initializer_rows_are_zero(key_dtype: str, value_dtype: str) -> None:
    case = TfCase(key_dtype, value_dtype)
    assert_tensor(case.variable().lookup(case.keys(range(5))), case.zeros(5))


@pytest.mark.parametrize(
    ("value_dtype", "initializer", "row"),
    [
        ("float16", 1.5, [1.5] * 3), ("bfloat16", ROW, ROW), ("int8", -128, [-128] * 3),
        ("int32", np.array([1, 2, 3]), [1, 2, 3]), ("int64", 2**62 + 1, [2**62 + 1] * 3),
        ("int64", tf.constant_initializer(7), [7] * 3), ("int32", tf.ones_initializer(), [1] * 3),
        ("bool", True, [True] * 3), ("bool", np.array([True, False, True]), [True, False, True]),
        ("float64", 0.1, [0.1] * 3), ("float16", initializers.Constant(0.5), [0.5] * 3),
    ],
)  # fmt: skip
def test_fixed_rows_of_other_types(value_dtype: str, initializer: Any, row: Any) -> None:
    variable = TfCase("int64", value_dtype).variable(initializer=initializer)
    assert_tensor(variable.lookup([3]), np.array([row], numpy_dtype(value_dtype)))


@pytest.mark.parametrize("key_dtype", KEY_DTYPES)
@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
def test_a_key_has_its_own_random_row(
    make: Callable[[int | None], Any], key_dtype: str, devices: Any
) -> None:
    case = TfCase(key_dtype)
    variable = case.variable(devices=devices, initializer=make(None))
    keys = case.keys(range(-100, 200))
    rows = rows_of(variable, keys)
    assert len(np.unique(rows, axis=0)) == 300
    assert len(np.unique(rows)) > 850
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(300), 2))
    assert_tensor(variable.lookup(keys[order].reshape(4, 150)), rows[order].reshape(4, 150, DIM))
    for at in (0, 123, 299):
        assert_tensor(variable.lookup(keys[at]), rows[at])
    variable.upsert(keys[::2], case.values(150))
    assert_tensor(variable.lookup(keys[1::2]), rows[1::2])
    variable.clear()
    assert_tensor(variable.lookup(keys), rows)
    assert content(variable) == {}


@pytest.mark.parametrize("initializer", RANDOM_CLASSES.values(), ids=RANDOM_CLASSES)
def test_a_class_stands_for_its_instance_of_defaults(initializer: Any) -> None:
    variable = de.Variable(dim=DIM, initializer=initializer)
    rows = rows_of(variable, list(range(100)))
    assert len(np.unique(rows, axis=0)) == 100
    assert_tensor(variable.lookup(list(range(99, -1, -1))), rows[::-1])


@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
def test_random_rows_depend_on_the_seed_and_not_on_the_partitions(make: Any) -> None:
    keys = np.arange(-50, 50)
    one, three, other = (
        rows_of(de.Variable(dim=DIM, devices=devices, initializer=make(seed)), keys)
        for devices, seed in ((None, 7), (THREE, 7), (None, 8))
    )
    np.testing.assert_array_equal(one, three)
    assert (one != other).mean() > 0.9


@pytest.mark.parametrize("value_dtype", FLOATING_DTYPES)
def test_random_rows_of_each_floating_type(value_dtype: str) -> None:
    case = TfCase("int64", value_dtype, (4,))
    initializer = initializers.RandomNormal(mean=1.0, stddev=0.5)
    rows = rows_of(case.variable(initializer=initializer), case.keys(range(5000)))
    assert rows.dtype == numpy_dtype(value_dtype)
    assert rows.astype(np.float64).mean() == pytest.approx(1.0, abs=0.02)
    assert rows.astype(np.float64).std() == pytest.approx(0.5, abs=0.02)


def sample(initializer: Any) -> Array:
    """80,000 initial numbers."""
    variable = de.Variable(dim=4, initializer=initializer)
    rows = rows_of(variable, np.arange(20000))
    columns = np.corrcoef(rows.T) - np.eye(4)
    assert np.abs(columns).max() < 0.05, "the elements of a row depend on each other"
    assert abs(np.corrcoef(rows[1:, 0], rows[:-1, 0])[0, 1]) < 0.05, "rows depend on each other"
    return rows.astype(np.float64)


@pytest.mark.parametrize("kind", NORMALS, ids=["keras", "tf", "v1"])
def test_normal_rows(kind: Any) -> None:
    rows = sample(kind(**NORMAL))
    assert rows.mean() == pytest.approx(2.0, abs=0.01)
    assert rows.std() == pytest.approx(0.5, abs=0.01)
    within = [np.mean(np.abs(rows - 2) < 0.5 * n) for n in (1, 2, 3)]
    assert within == pytest.approx([0.6827, 0.9545, 0.9973], abs=0.01)
    assert np.abs(rows - 2).max() > 1.5


@pytest.mark.parametrize("kind", UNIFORMS, ids=["keras", "tf", "v1"])
def test_uniform_rows(kind: Any) -> None:
    rows = sample(kind(**UNIFORM))
    assert -1.0 <= rows.min() < -0.99
    assert 2.99 < rows.max() <= 3.0
    counts, _ = np.histogram(rows, bins=8, range=(-1, 3))
    assert counts / rows.size == pytest.approx([1 / 8] * 8, abs=0.01)


@pytest.mark.parametrize("kind", TRUNCATED, ids=["keras", "v1"])
def test_truncated_normal_rows(kind: Any) -> None:
    rows = sample(kind(**NORMAL))
    assert rows.mean() == pytest.approx(2.0, abs=0.01)
    # A normal distribution truncated at two deviations has 0.8796 of the deviation.
    assert rows.std() == pytest.approx(0.5 * 0.8796, abs=0.01)
    assert 0.97 < np.abs(rows - 2).max() <= 1.0


class Counting:
    """An initializer of the user's own: numbered rows, and how many it was asked for."""

    def __init__(self) -> None:
        self.rows = tf.Variable(0)

    def __call__(self, shape: Any, dtype: tf.DType) -> tf.Tensor:
        shape = tf.convert_to_tensor(shape)
        count = tf.reduce_prod(shape[:-1])
        self.rows.assign_add(tf.cast(count, tf.int32))
        return tf.zeros(shape, dtype) + tf.cast(tf.range(count), dtype)[:, None] + 100


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
def test_a_function_is_called_for_missing_keys_only(in_function: bool, devices: Any) -> None:
    initializer = Counting()
    variable = de.Variable(dim=2, devices=devices, initializer=initializer)
    lookup: Any = variable.lookup
    if in_function:
        signature = [tf.TensorSpec(None, tf.int64)]
        lookup = tf.function(functools.partial(variable.lookup), input_signature=signature)
    keys = tf.reshape(tf.range(12, dtype=tf.int64), [3, 4])
    stored = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    variable.upsert(keys[:2], stored[:2])
    np.testing.assert_array_equal(lookup(keys)[:2], stored[:2])
    assert int(initializer.rows) == 4
    missing = to_numpy(lookup(keys))[2]
    assert missing.min() == 100
    assert set(missing.ravel().tolist()) <= {100, 101, 102, 103}
    assert int(initializer.rows) == 8
    variable.upsert(keys[2], stored[2])
    np.testing.assert_array_equal(lookup(keys), stored)
    assert int(initializer.rows) == 8


@pytest.mark.parametrize("make", [initializers.RandomNormal, Counting])
def test_lookup_of_a_missing_key_inserts_nothing(make: Any, devices: Any) -> None:
    variable = de.Variable(dim=2, devices=devices, initializer=make())
    variable.lookup([1, 2, 3])
    assert not variable.lookup([1, 2, 3], return_exists=True)[1].numpy().any()
    assert int(variable.size()) == 0


def test_shapes_known_only_when_the_function_runs(devices: Any) -> None:
    variable = de.Variable(dim=2, devices=devices, initializer=initializers.RandomNormal())
    lookup = tf.function(variable.lookup, input_signature=[tf.TensorSpec(None, tf.int64)])
    rows = rows_of(variable, np.arange(6))
    for shape in ((6,), (2, 3), (1, 6, 1)):
        keys = tf.reshape(tf.range(6, dtype=tf.int64), shape)
        assert_tensor(lookup(keys), rows.reshape(*shape, 2))
    assert_tensor(lookup(tf.constant(4, tf.int64)), rows[4])


@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
def test_graphs_of_tensorflow_1(make: Any, session: v1.Session) -> None:
    variable = de.Variable(dim=2, initializer=make(None), devices=THREE)
    keys = v1.placeholder(tf.int64, [None])
    lookup, size = variable.lookup(keys), variable.size()
    rows = session.run(lookup, {keys: range(50)})
    assert len(np.unique(rows, axis=0)) == 50
    np.testing.assert_array_equal(session.run(lookup, {keys: range(49, -1, -1)}), rows[::-1])
    assert session.run(size) == 0


def test_strings_can_have_an_initial_value() -> None:
    variable = de.Variable(value_dtype=tf.string, dim=2, initializer=np.array([b"x", b"y"], object))
    assert variable.lookup([1]).numpy().tolist() == [[b"x", b"y"]]


class ThroughKeras(initializers.RandomNormal):
    """An initializer that the engine does not have: it adds to the numbers of its base class."""

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        return 10.0 + super().__call__(shape, dtype)


class ByAnotherName(initializers.RandomNormal):
    """An initializer that does the same as its base class."""


# Random rows that the engine does not make, or of a class that it does not know; with their type.
COMPUTED: dict[str, tuple[Callable[[int | None], Any], str]] = {
    "subclass": (lambda seed: ByAnotherName(seed=seed), "float32"),
    "subclass that computes": (lambda seed: ThroughKeras(seed=seed), "float32"),
    "keras Orthogonal": (lambda seed: initializers.Orthogonal(seed=seed), "float32"),
    "keras RandomUniform, int32": (lambda s: initializers.RandomUniform(0, 9**9, seed=s), "int32"),
    "tf random_uniform, int64": (lambda s: tf.random_uniform_initializer(0, 9**9, s), "int64"),
}


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("key_dtype", ["int64", "string"])
def test_rows_computed_outside_the_engine_are_a_function_of_the_key(
    name: str, seed: int | None, key_dtype: str
) -> None:
    make, dtype = COMPUTED[name]
    case = TfCase(key_dtype, dtype, (DIM,))
    keys = case.keys([1, 2, 3, 4])
    variables = [
        case.variable(initializer=make(seed), devices=devices, name="computed")
        for devices in (None, THREE)
    ]
    alone = np.stack([to_numpy(variables[0].lookup(keys[i : i + 1]))[0] for i in range(4)])
    assert len({row.tobytes() for row in alone}) == 4
    for variable in variables:
        order = [3, 0, 2, 0, 1]
        assert to_numpy(variable.lookup(keys[order])).tolist() == alone[order].tolist()
        traced = tf.function(variable.lookup, input_signature=[tf.TensorSpec([None], key_dtype)])
        assert to_numpy(traced(keys[order])).tolist() == alone[order].tolist()


def test_orthogonal_rows_have_the_length_of_its_gain() -> None:
    variable = de.Variable(dim=8, initializer=initializers.Orthogonal(gain=3.0))
    norms = np.linalg.norm(to_numpy(variable.lookup(tf.range(20, dtype=tf.int64))), axis=1)
    np.testing.assert_allclose(norms, 3.0, rtol=1e-5)


# Functions that need a static shape, which is not known while a graph is built.
NEED_NUMBERS: dict[str, Callable[..., Any]] = {
    "NumPy": lambda shape: np.random.standard_normal(shape),
    "int() of the shape": lambda shape: tf.random.normal([int(size) for size in shape]),
    "v1 orthogonal": v1.orthogonal_initializer(),
}


@pytest.mark.parametrize("name", NEED_NUMBERS)
def test_functions_that_need_numbers_for_a_shape(name: str) -> None:
    initializer = NEED_NUMBERS[name]
    variable = de.Variable(dim=DIM, initializer=initializer)
    traced = tf.function(variable.lookup, input_signature=[tf.TensorSpec([None], tf.int64)])
    keys = tf.constant([5, 6, 5, 7], tf.int64)
    for lookup in (variable.lookup, traced):
        rows = to_numpy(lookup(keys))
        assert rows.shape == (4, DIM)
        assert rows[0].tolist() == rows[2].tolist()
        assert len({row.tobytes() for row in rows}) == 3
    with tf.Graph().as_default(), v1.Session() as session:
        variable = de.Variable(dim=DIM, initializer=initializer)
        rows = session.run(variable.lookup([5, 6, 5, 7]))
        assert len({row.tobytes() for row in rows}) == 3


def test_a_function_gets_the_dtype_under_any_name() -> None:
    variable = de.Variable(dim=DIM, value_dtype=tf.int32, initializer=lambda s, d: tf.ones(s, d))
    assert variable.lookup([1]).numpy().tolist() == [[1] * DIM]


WHOLE = [
    3.0,
    np.array([3.0, 3.0]),
    tf.constant([3.0, 3.0]),
    tf.keras.initializers.Constant(3.0),
    tf.constant_initializer(3.0),
    lambda shape: tf.fill(shape, 3.0),
    lambda shape: np.full(shape, 3.0),
]


@pytest.mark.parametrize("value_dtype", ["int8", "int32", "int64"])
@pytest.mark.parametrize("initializer", WHOLE, ids=range(len(WHOLE)))
@pytest.mark.parametrize("in_function", [False, True])
def test_whole_floats_are_cast(initializer: Any, value_dtype: str, in_function: bool) -> None:
    variable = de.Variable(value_dtype=value_dtype, dim=2, initializer=initializer)
    look_up = tf.function(variable.lookup) if in_function else variable.lookup
    rows = look_up(tf.constant([5, 6], tf.int64))
    assert rows.dtype.name == value_dtype
    assert rows.numpy().tolist() == [[3, 3], [3, 3]]


@pytest.mark.parametrize("value_dtype", ["int8", "bool"])
@pytest.mark.parametrize("number", [0.5, 300.0, float("nan")])
def test_other_floats_are_refused(number: float, value_dtype: str) -> None:
    for initializer in (number, np.full(2, number), tf.constant_initializer(number)):
        with pytest.raises(TypeError, match=f"expected {value_dtype}"):
            de.Variable(value_dtype=value_dtype, dim=2, initializer=initializer)
    made = [lambda shape: tf.fill(shape, number), lambda shape: np.full(shape, number)]
    for function in made:
        variable = de.Variable(value_dtype=value_dtype, dim=2, initializer=function)
        for look_up in (variable.lookup, tf.function(variable.lookup)):
            with pytest.raises((TypeError, tf.errors.InvalidArgumentError), match="expected"):
                look_up(tf.constant([5], tf.int64))


def test_limits_of_random_integers_are_whole() -> None:
    uniform = tf.keras.initializers.RandomUniform
    for limits in ((-0.05, 0.05), (0.5, 9.5), (3, 3), (0, 2**40)):
        with pytest.raises(ValueError, match="whole numbers as limits"):
            de.Variable(value_dtype=tf.int32, initializer=uniform(*limits))
    variable = de.Variable(value_dtype=tf.int32, initializer=uniform(0.0, 2.0, seed=1))
    assert set(variable.lookup(np.arange(64)).numpy().ravel()) == {0, 1}


def test_random_floats_are_no_initial_values_of_integers() -> None:
    with pytest.raises(TypeError, match="expected one that makes values of type int32, received"):
        de.Variable(value_dtype=tf.int32, initializer=initializers.RandomNormal())


def test_the_bits_of_a_string_key_can_be_computed_by_core_ops() -> None:
    """As a served model does that has no ops of ours: it needs the initial rows of strings too."""
    strings = [b"", b"a", b"user_12", b"user_123", b"\xff\x00\x80", b"x" * 1000]
    strings += [f"user/{i}".encode() for i in range(1000)]
    keys = tf.constant(strings)
    key = list(STRING_HASH_KEY)
    # The op gives remainders of 63 bits. Two of them tell all 64 bits: 2**62 is 1 modulo 2**62 - 1,
    # so the second remainder is larger than the first by the two highest bits.
    low = tf.strings.to_hash_bucket_strong(keys, 2**62, key)
    other = tf.strings.to_hash_bucket_strong(keys, 2**62 - 1, key)
    high = tf.math.floormod(other - low, 2**62 - 1)
    bits = tf.bitwise.bitwise_or(low, tf.bitwise.left_shift(high, tf.constant(62, tf.int64)))
    assert int(tf.reduce_max(high)) == 3

    options: Any = {"dim": 4, "initializer": "normal", "seed": 5}
    by_string = tfra.Table(key_dtype="string", **options).lookup(np.array(strings, object))
    by_bits = tfra.Table(**options).lookup(bits.numpy())
    np.testing.assert_array_equal(by_string, by_bits)


def test_crafted_strings_have_rows_of_their_own() -> None:
    """Strings that had one hash of 64 bits, and so one row, in the first version of the hash."""
    first = 0xA4093822299F31D1.to_bytes(8, "little")
    strings = [first + i.to_bytes(8, "little") for i in range(100)]
    rows = tfra.Table(4, key_dtype="string", initializer="normal").lookup(np.array(strings, object))
    assert len(np.unique(rows, axis=0)) == 100
    glorot = initializers.GlorotNormal(seed=1)
    made = de.Variable(key_dtype=tf.string, dim=4, initializer=glorot)
    assert len(np.unique(made.lookup(tf.constant(strings)), axis=0)) == 100
