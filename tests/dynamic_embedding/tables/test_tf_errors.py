"""Wrong arguments: the error says what was expected and received, and nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_support import KINDS, TfCase, as_content, content, de, raises

SHAPE_ERRORS = (ValueError, tf.errors.InvalidArgumentError)
ACCUM_ERRORS = (TypeError, ValueError, NotImplementedError, tf.errors.OpError)
OBJECTS = ("Variable", "Variable of partitions", *KINDS)
F32 = np.float32


class Subject:
    """A Variable or a table, under the names of the methods of a Variable."""

    def __init__(self, kind: str, case: TfCase) -> None:
        self.case, self.is_variable = case, kind not in KINDS
        devices = ["/CPU:0"] * 3 if kind == "Variable of partitions" else None
        self.held = case.variable(devices=devices) if self.is_variable else case.table(kind)
        keys, values = case.keys(range(6)), case.values(6)
        self.upsert(keys, values)
        self.before = as_content(keys, values)
        self.lookup, self.remove = self.held.lookup, self.held.remove

    def upsert(self, keys: Any, values: Any) -> Any:
        return (self.held.upsert if self.is_variable else self.held.insert)(keys, values)

    def accum(self, keys: Any, values: Any, exists: Any) -> Any:
        if not self.is_variable:
            return self.held.accum(keys, values, exists)
        old = tf.zeros_like(values) if isinstance(values, tf.Tensor) else np.zeros_like(values)
        return self.held.accum(keys, old, values, exists)

    def assert_unchanged(self) -> None:
        assert content(self.held) == self.before


@pytest.fixture(params=OBJECTS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


METHODS: dict[str, Callable[[Subject, Any], Any]] = {
    "lookup": lambda subject, keys: subject.lookup(keys),
    "upsert": lambda subject, keys: subject.upsert(keys, subject.case.values(np.shape(keys))),
    "remove": lambda subject, keys: subject.remove(keys),
    "accum": lambda subject, keys: subject.accum(
        keys, subject.case.values(np.shape(keys)), np.ones(np.shape(keys), bool)
    ),
}


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Callable[[Subject, Any], Any]:
    return METHODS[request.param]


STRINGS = {"list": ["a", "b"], "str": "a", "array": np.array(["a"]), "tensor": tf.constant(["a"])}
INTEGERS = {"list": [1, 2], "int": 1, "array": np.array([1]), "tensor": tf.constant([1])}


@pytest.mark.parametrize("form", STRINGS)
@pytest.mark.parametrize("key_dtype", ["int32", "int64"])
def test_string_keys_of_a_table_of_integers(
    kind: str, method: Any, key_dtype: str, form: str
) -> None:
    subject = Subject(kind, TfCase(key_dtype))
    error = raises(TypeError, lambda: method(subject, STRINGS[form]), key_dtype)
    assert isinstance(error, ValueError)
    subject.assert_unchanged()


@pytest.mark.parametrize("form", INTEGERS)
def test_integer_keys_of_a_table_of_strings(kind: str, method: Any, form: str) -> None:
    subject = Subject(kind, TfCase("string"))
    error = raises(TypeError, lambda: method(subject, INTEGERS[form]), "string")
    assert isinstance(error, ValueError)
    subject.assert_unchanged()


def dtype_of(argument: Any) -> list[str]:
    """The name of the dtype of a tensor; nothing of others, which messages may show as given."""
    return [argument.dtype.name] if isinstance(argument, tf.Tensor) else []


WRONG_KEYS = {
    "int32": ("int64", tf.constant([1], tf.int32)),
    "int64": ("int32", tf.constant([1], tf.int64)),
    "uint64": ("int64", tf.constant([1], tf.uint64)),
    "float32": ("int64", tf.constant([1.0])),
    "bool": ("int64", tf.constant([True])),
    "array of floats": ("int64", np.array([1.5])),
    "floats": ("int64", [1.5]),
    "floats for strings": ("string", tf.constant([1.5])),
}


@pytest.mark.parametrize(("key_dtype", "keys"), WRONG_KEYS.values(), ids=WRONG_KEYS)
def test_keys_of_a_wrong_type(kind: str, method: Any, key_dtype: str, keys: Any) -> None:
    subject = Subject(kind, TfCase(key_dtype))
    error = raises(TypeError, lambda: method(subject, keys), key_dtype, *dtype_of(keys))
    assert isinstance(error, ValueError)
    subject.assert_unchanged()


@pytest.mark.parametrize("key_dtype", ["int64", "string"])
def test_keys_of_a_wrong_type_while_tracing(kind: str, key_dtype: str) -> None:
    subject = Subject(kind, TfCase(key_dtype))
    lookup = tf.function(lambda keys: subject.lookup(keys))
    with pytest.raises(TypeError):
        lookup(tf.constant([1.5]))
    subject.assert_unchanged()


WRONG_VALUES = {
    "float64": ("float32", tf.ones([2, 3], tf.float64)),
    "int32": ("float32", tf.ones([2, 3], tf.int32)),
    "float16": ("bfloat16", tf.ones([2, 3], tf.float16)),
    "strings": ("float32", tf.fill([2, 3], "a")),
    "list of strings": ("float32", [["a"] * 3] * 2),
    "numbers for strings": ("string", tf.ones([2, 3])),
    "floats for integers": ("int64", tf.ones([2, 3])),
    "list of floats for integers": ("int64", [[1.5] * 3] * 2),
    "array of floats for integers": ("int32", np.full((2, 3), 1.5)),
    "integers for bools": ("bool", tf.ones([2, 3], tf.int32)),
}


@pytest.mark.parametrize(("value_dtype", "values"), WRONG_VALUES.values(), ids=WRONG_VALUES)
def test_values_of_a_wrong_type(kind: str, value_dtype: str, values: Any) -> None:
    subject = Subject(kind, TfCase("int64", value_dtype))
    call = lambda: subject.upsert([1, 7], values)  # noqa: E731
    assert isinstance(raises(TypeError, call, value_dtype, *dtype_of(values)), ValueError)
    subject.assert_unchanged()
    if value_dtype not in ("bool", "string"):
        exists = [True, False]
        raises(TypeError, lambda: subject.accum([1, 7], values, exists), value_dtype)
        subject.assert_unchanged()


def of_unknown_shapes(call: Any) -> Any:
    """The call in a function that knows the shapes of keys and values when it runs."""

    @tf.function(input_signature=[tf.TensorSpec(None, tf.int64), tf.TensorSpec(None, tf.float32)])
    def function(keys: tf.Tensor, values: tf.Tensor) -> None:
        call(keys, values)

    return function


def shape_id(values: Any) -> str:
    return str(np.shape(values))


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, F32)


# Keys, values of a wrong shape for them.
WRONG_SHAPES: dict[str, tuple[Any, Any]] = {
    "width": ([1, 7], ones(2, 4)),
    "width of one": ([1, 7], ones(2, 1)),
    "too few": ([1, 7], ones(1, 3)),
    "too many": ([1, 7], ones(3, 3)),
    "one row": ([1, 7], ones(3)),
    "flat": ([1, 7], ones(6)),
    "transposed": ([1, 7], ones(3, 2)),
    "rank": ([1, 7], ones(2, 1, 3)),
    "keys of rank 2": ([[1, 7]], ones(2, 3)),
    "scalar key": (1, ones(1, 3)),
    "no keys": (np.zeros(0, np.int64), ones(1, 3)),
    "number": ([1, 7], F32(1)),
}


@pytest.mark.parametrize("form", ["array", "function"])
@pytest.mark.parametrize("method", ["upsert", "accum"])
@pytest.mark.parametrize(("keys", "values"), WRONG_SHAPES.values(), ids=WRONG_SHAPES)
def test_values_of_a_wrong_shape(kind: str, keys: Any, values: Any, method: str, form: str) -> None:
    subject = Subject(kind, TfCase())
    exists = np.ones(np.shape(keys), bool)
    call: Any = subject.upsert
    if method == "accum":
        call = lambda keys, values: subject.accum(keys, values, exists)  # noqa: E731
    if form == "function":
        call = of_unknown_shapes(call)
    raises(SHAPE_ERRORS, lambda: call(keys, values), (*np.shape(keys), 3), np.shape(values))
    subject.assert_unchanged()


@pytest.mark.parametrize("values", [ones(2, 1), ones(3), F32(1), ones(2, 2)], ids=shape_id)
@pytest.mark.parametrize("form", ["array", "function"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_of_a_wrong_shape_for_scalars(kind: str, form: str, values: Any) -> None:
    subject = Subject(kind, TfCase(row=()))
    call = of_unknown_shapes(subject.upsert) if form == "function" else subject.upsert
    raises(SHAPE_ERRORS, lambda: call([1, 7], values), (2,), np.shape(values))
    subject.assert_unchanged()


@pytest.mark.parametrize("exists", [[True], [True, False, True], [[True, True]], True], ids=repr)
def test_exists_of_a_wrong_shape(kind: str, exists: Any) -> None:
    subject = Subject(kind, TfCase())
    raises(SHAPE_ERRORS, lambda: subject.accum([1, 7], ones(2, 3), exists), (2,), np.shape(exists))
    subject.assert_unchanged()


@pytest.mark.parametrize("exists", [tf.constant([1, 0]), tf.constant(["a", "b"]), [1.5, 0.0]])
def test_exists_of_a_wrong_type(kind: str, exists: Any) -> None:
    subject = Subject(kind, TfCase())
    raises(TypeError, lambda: subject.accum([1, 7], ones(2, 3), exists), "bool")
    subject.assert_unchanged()


@pytest.mark.parametrize("kind", ["Variable", "Variable of partitions"])
def test_old_and_new_values_have_one_shape(kind: str) -> None:
    subject = Subject(kind, TfCase())
    for old, new in ((ones(2, 3), ones(1, 3)), (ones(3), ones(2, 3)), (ones(2, 1), ones(2, 3))):
        raises(
            SHAPE_ERRORS, lambda old=old, new=new: subject.held.accum([1, 7], old, new, [True] * 2)
        )
        subject.assert_unchanged()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("defaults", [ones(2, 4), ones(1, 2, 3), ones(3, 3)], ids=shape_id)
def test_defaults_of_one_call_of_a_wrong_shape(kind: str, defaults: Any) -> None:
    subject = Subject(kind, TfCase())
    raises(SHAPE_ERRORS, lambda: subject.lookup([1, 7], defaults), (2, 3), defaults.shape)


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_of_one_call_of_a_wrong_type(kind: str) -> None:
    subject = Subject(kind, TfCase())
    defaults = tf.ones([2, 3], tf.float64)
    raises(TypeError, lambda: subject.lookup([1, 7], defaults), "float32", "float64")


def test_strings_do_not_add_up(kind: str) -> None:
    subject = Subject(kind, TfCase("int64", "string"))
    with pytest.raises(ACCUM_ERRORS, match=r"(?i)string"):
        subject.accum([1, 7], subject.case.values(2), [True, False])
    subject.assert_unchanged()


def test_graphs_of_tensorflow_1(kind: str, session: tf.compat.v1.Session) -> None:
    case = TfCase()
    held = case.table(kind) if kind in KINDS else case.variable()
    upsert = held.insert if kind in KINDS else held.upsert
    keys = tf.compat.v1.placeholder(tf.int64)
    values = tf.compat.v1.placeholder(tf.float32)
    operation, size = upsert(keys, values), held.size()
    with pytest.raises(TypeError) as caught:
        held.lookup(tf.constant(["a"]))
    assert isinstance(caught.value, ValueError)
    feed = {keys: [1, 2], values: ones(2, 2)}
    raises(SHAPE_ERRORS, lambda: session.run(operation, feed), (2, 3), (2, 2))
    assert session.run(size) == 0
    session.run(operation, {keys: [1, 2], values: ones(2, 3)})
    assert session.run(size) == 2


WRONG_OPTIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "float keys": ({"key_dtype": tf.float32}, (TypeError, ValueError)),
    "bool keys": ({"key_dtype": tf.bool}, (TypeError, ValueError)),
    "complex values": ({"value_dtype": tf.complex64}, (TypeError, ValueError)),
    "dim 0": ({"dim": 0}, ValueError),
    "dim -1": ({"dim": -1}, ValueError),
    "initializer of another width": ({"dim": 3, "initializer": np.ones(2)}, ValueError),
    "string initializer": ({"dim": 3, "initializer": "zeroz"}, (TypeError, ValueError)),
}


@pytest.mark.parametrize(("options", "errors"), WRONG_OPTIONS.values(), ids=WRONG_OPTIONS)
def test_wrong_options_of_a_variable(options: dict[str, Any], errors: Any) -> None:
    with pytest.raises(errors):
        de.Variable(**options)


@pytest.mark.parametrize("index", [3, 100])
def test_there_is_no_table_of_that_index(index: int) -> None:
    variable = de.Variable(devices=["/CPU:0"] * 3)
    with pytest.raises((IndexError, ValueError)):
        variable.size(index)


@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize(
    ("dtype", "value", "received"),
    [
        (tf.int8, 300, "received values from 300 to 300"),
        (tf.int32, 2**40, "received values from 1099511627776 to 1099511627776"),
        (tf.int32, 1.5, "received float64"),
        (tf.float32, 1j, "received complex128"),
        (tf.bool, 1, "received int64"),
    ],
)
def test_values_that_would_become_others(
    dtype: tf.DType, value: Any, received: str, as_array: bool
) -> None:
    variable = de.Variable(value_dtype=dtype, dim=1)
    values = np.array([[value]]) if as_array else [[value]]
    with pytest.raises(TypeError, match=f"`values`: expected {dtype.name}.*{received}"):
        variable.upsert([1], values)
    assert int(variable.size()) == 0


def test_a_table_is_not_iterated() -> None:
    table = de.CuckooHashTable(tf.int64, tf.float32, 0.0)
    with pytest.raises(TypeError, match="not iterable"):
        list(table)
    with pytest.raises(TypeError, match="not a container"):
        _ = 5.0 in table


def test_arguments_of_a_wrong_kind() -> None:
    with pytest.raises(TypeError, match="`devices`: expected names of devices, received 3"):
        de.Variable(devices=3)
    with pytest.raises(TypeError, match="`config`: expected a HkvHashTableConfig, received 3"):
        de.HkvHashTable(tf.int64, tf.float32, 0.0, config=3)
    with pytest.raises(TypeError, match="`device`: expected the name of a device, received 3"):
        de.CuckooHashTable(tf.int64, tf.float32, 0.0, device=3)
    with pytest.raises(TypeError, match=r"`init_size` must be an integer. Received: 0\.5"):
        de.Variable(init_size=0.5)


def test_creators_take_no_saver() -> None:
    for creator in (de.CuckooHashTableCreator, de.HkvHashTableCreator):
        assert creator(config=None, saver=None).config is None
        with pytest.raises(NotImplementedError, match="`saver`: expected None, since tables are"):
            creator(saver="a saver")


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("keys", lambda v, keys, rows: v.lookup(keys)),
        ("keys", lambda v, keys, rows: v.upsert(keys, rows.data)),
        ("values", lambda v, keys, rows: v.upsert(keys.data, rows)),
        ("keys", lambda v, keys, rows: v.remove(keys)),
        ("old_values", lambda v, keys, rows: v.accum(keys.data, rows, rows.data, [True, True])),
        ("exists", lambda v, keys, rows: v.accum(keys.data, rows.data, rows.data, keys == keys)),
        ("keys", lambda v, keys, rows: v.tables[0].lookup(keys)),
        ("dynamic_default_values", lambda v, keys, rows: v.tables[0].lookup(keys.data, rows)),
        ("keys", lambda v, keys, rows: de.embedding_lookup(v, keys)),
        ("initializer", lambda v, keys, rows: de.Variable(dim=2, initializer=rows[0])),
        (
            "default_value",
            lambda v, keys, rows: de.CuckooHashTable(tf.int64, tf.float32, rows[0]),
        ),
    ],
)
def test_masked_arrays(name: str, call: Any) -> None:
    variable = de.Variable(dim=2)
    variable.upsert([1, 2], tf.ones([2, 2]))
    keys = np.ma.array([1, 7], mask=[False, True])
    rows = np.ma.array(np.full((2, 2), 5, np.float32), mask=[[False, True]] * 2)
    with pytest.raises(TypeError, match=rf"`{name}` must be an array without a mask.*filled"):
        call(variable, keys, rows)
    assert variable.lookup([1, 2]).numpy().tolist() == [[1.0, 1.0]] * 2
    assert int(variable.size()) == 2
