"""The forms in which keys and values can be given, and the ways to name a table's types."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tfra
from support import (
    Case,
    assert_identical,
    make_keys,
    make_values,
    numpy_dtype,
    object_array,
    run_python,
)

INTEGER_DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")


def int_table() -> tfra.Table:
    table = tfra.Table(2)
    table.upsert(np.arange(10), np.arange(20, dtype=np.float32).reshape(10, 2))
    return table


@pytest.mark.parametrize("dtype", INTEGER_DTYPES)
def test_integer_keys_of_any_width_are_widened(dtype: str) -> None:
    limits = np.iinfo(dtype)
    keys = np.array([limits.min, limits.max, 5], dtype)
    table = tfra.Table(1)
    table.upsert(keys, np.array([[1], [2], [3]], np.float32))
    exported, _ = table.export()
    assert sorted(exported.tolist()) == sorted([limits.min, limits.max, 5])
    np.testing.assert_array_equal(table.lookup(keys), [[1], [2], [3]])
    assert table.remove(keys) == 3


@pytest.mark.parametrize(
    "keys", [[3, 7], (3, 7), np.array([3, 7]), [np.int64(3), np.int8(7)]], ids=repr
)
def test_sequences_of_integers_are_keys(keys: Any) -> None:
    np.testing.assert_array_equal(int_table().lookup(keys), [[6, 7], [14, 15]])


@pytest.mark.parametrize("key", [3, np.int64(3), np.uint8(3), np.array(3)], ids=repr)
def test_one_integer_is_a_key_of_no_dimensions(key: Any) -> None:
    table = int_table()
    np.testing.assert_array_equal(table.lookup(key), [6, 7])
    assert table.contains(key).shape == ()
    assert bool(table.contains(key)) is True
    assert key in table
    assert table.remove(key) == 1


def test_nested_lists_keep_their_shape() -> None:
    table = int_table()
    assert table.lookup([[1, 2, 3], [4, 5, 6]]).shape == (2, 3, 2)
    assert table.contains([[1], [99]]).tolist() == [[True], [False]]
    table.upsert([[20], [21]], [[[1.0, 2.0]], [[3.0, 4.0]]])
    np.testing.assert_array_equal(table.lookup([20, 21]), [[1, 2], [3, 4]])


@pytest.mark.parametrize("empty", [[], (), [[]], [[], []], np.empty(0), np.empty((0, 4), np.int32)])
def test_no_keys_are_fine(key_dtype: str, empty: Any) -> None:
    table = tfra.Table(2, key_dtype=key_dtype)
    if isinstance(empty, np.ndarray):
        empty = empty.astype(numpy_dtype(key_dtype))
    shape = np.shape(empty)
    assert table.lookup(empty).shape == (*shape, 2)
    assert table.contains(empty).shape == shape
    table.upsert(empty, np.empty((*shape, 2), np.float32))
    table.accum(empty, np.empty((*shape, 2), np.float32), np.empty(shape, bool))
    assert table.remove(empty) == 0
    assert len(table) == 0


STRING_FORMS = [
    pytest.param([b"a", "\u00e9"], id="bytes and str"),
    pytest.param(("a", "\u00e9"), id="tuple of str"),
    pytest.param(object_array([b"a", "\u00e9"], (2,)), id="object array"),
    pytest.param(np.array(["a", "\u00e9"]), id="str_ array"),
    pytest.param(np.array([b"a", b"\xc3\xa9"]), id="bytes_ array"),
]
if hasattr(getattr(np, "dtypes", None), "StringDType"):  # NumPy 2.
    STRING_FORMS.append(
        pytest.param(np.array(["a", "\u00e9"], np.dtypes.StringDType()), id="StringDType array")
    )


@pytest.mark.parametrize("keys", STRING_FORMS)
def test_every_form_of_string_is_the_same_key(keys: Any) -> None:
    table = tfra.Table(1, key_dtype="string")
    table.upsert(keys, [[1.0], [2.0]])
    exported, _ = table.export()
    assert exported.dtype == object
    assert sorted(exported.tolist()) == [b"a", b"\xc3\xa9"]
    np.testing.assert_array_equal(table.lookup([b"\xc3\xa9", b"a"]), [[2], [1]])
    assert "\u00e9" in table
    assert table.remove(keys) == 2


@pytest.mark.parametrize("values", STRING_FORMS)
def test_every_form_of_string_is_the_same_value(values: Any) -> None:
    table = tfra.Table(2, value_dtype="string")
    table.upsert(7, values)
    assert table.lookup(7).tolist() == [b"a", b"\xc3\xa9"]


def test_one_string_is_one_key_not_its_characters() -> None:
    table = tfra.Table(1, key_dtype="string")
    for key in ("abc", b"xyz", np.str_("np"), np.bytes_(b"nb")):
        table.upsert(key, [1.0])
        assert table.lookup(key).shape == (1,)
    assert sorted(table.export()[0].tolist()) == [b"abc", b"nb", b"np", b"xyz"]


def test_string_keys_keep_their_shape_and_their_nuls() -> None:
    table = tfra.Table(1, key_dtype="string")
    keys = object_array([b"", b"\0", b"a\0", b"\0a"], (2, 2))
    table.upsert(keys, np.arange(4, dtype=np.float32).reshape(2, 2, 1))
    assert len(table) == 4
    assert table.lookup([["", b"\0"], ["a\0", "\0a"]])[..., 0].tolist() == [[0, 1], [2, 3]]


def test_python_lists_and_numbers_become_values(case: Case) -> None:
    table = case.table()
    values = case.values((2, 3))
    table.upsert(case.keys([[0, 1, 2], [3, 4, 5]]).tolist(), values.tolist())
    assert_identical(table.lookup(case.keys([[0, 1, 2], [3, 4, 5]])), values)


def test_arrays_in_any_memory_order_are_read_right(case: Case) -> None:
    table = case.table()
    keys, values = case.keys(np.arange(24).reshape(4, 6)), case.values((4, 6))
    wide = np.empty((4, 6, 2 * case.dim), values.dtype)
    wide[..., ::2] = values
    for key_view, value_view in (
        (keys[::2, ::-1], values[::2, ::-1]),
        (keys.T, values.transpose(1, 0, 2)),
        (np.asfortranarray(keys), np.asfortranarray(values)),
        (keys, wide[..., ::2]),
    ):
        table.clear()
        table.upsert(key_view, value_view)
        assert_identical(table.lookup(np.ascontiguousarray(key_view)), np.array(value_view))
        assert_identical(table.lookup(key_view), np.array(value_view))
        assert_identical(table.lookup(case.keys(99), value_view[1, 1]), np.array(value_view[1, 1]))


def test_unaligned_and_read_only_arrays_are_read_right() -> None:
    table = tfra.Table(3)
    buffer = np.zeros(4 * 8 + 4 * 12 + 1, np.uint8)
    keys = buffer[1:33].view(np.int64)
    values = buffer[33:].view(np.float32).reshape(4, 3)
    keys[:], values[:] = [5, 6, 7, 8], np.arange(12).reshape(4, 3)
    buffer.setflags(write=False)
    keys.setflags(write=False)
    values.setflags(write=False)
    table.upsert(keys, values)
    table.accum(keys, values, np.ones(4, bool))
    np.testing.assert_array_equal(table.lookup(keys), 2 * values)
    np.testing.assert_array_equal(table.lookup([9], values[1]), values[1:2])


def test_other_byte_order_is_never_misread() -> None:
    table = int_table()
    swapped = np.array([3, 7], np.dtype(np.int64).newbyteorder())
    try:
        found = table.lookup(swapped)
    except TypeError:
        return
    np.testing.assert_array_equal(found, [[6, 7], [14, 15]])


@pytest.mark.parametrize("name", ["int64", np.int64, np.dtype("int64"), "string", bytes, str])
def test_key_types_have_several_names(name: Any) -> None:
    is_string = name in ("string", bytes, str)
    table = tfra.Table(1, key_dtype=name)
    assert table.key_dtype == np.dtype(object if is_string else np.int64)
    table.upsert(make_keys("string" if is_string else "int64", [1]), [[1.0]])
    assert len(table) == 1


VALUE_TYPE_NAMES = [
    ("float32", np.float32), ("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16),
    ("float64", np.float64), ("int8", np.int8), ("int32", np.int32), ("int64", np.int64),
    ("bool", np.bool_), ("bool", bool),
]  # fmt: skip


@pytest.mark.parametrize(("name", "scalar_type"), VALUE_TYPE_NAMES)
def test_value_types_have_several_names(
    name: str, scalar_type: Any, rng: np.random.Generator
) -> None:
    for value_dtype in (name, scalar_type, np.dtype(scalar_type)):
        table = tfra.Table(2, value_dtype=value_dtype)
        assert table.value_dtype == np.dtype(scalar_type)
        values = make_values(name, (3, 2), rng)
        table.upsert([1, 2, 3], values)
        assert_identical(table.lookup([1, 2, 3]), values)


def test_bfloat16_without_ml_dtypes_says_what_to_install() -> None:
    run_python("""
        import sys
        sys.modules["ml_dtypes"] = None  # What makes an import fail as if it were not installed.
        import tfra
        tfra.Table(2, value_dtype="float16")
        try:
            tfra.Table(2, value_dtype="bfloat16")
        except ImportError as error:
            assert "ml_dtypes" in str(error), error
        else:
            raise SystemExit("no ImportError")
    """)


def test_unaligned_arrays_are_taken_as_any_others() -> None:
    def unaligned(array: np.ndarray) -> np.ndarray:
        memory = np.empty(array.nbytes + 1, np.uint8)
        result = memory[1:].view(array.dtype).reshape(array.shape)
        result[...] = array
        assert not result.flags.aligned
        return result

    table = tfra.Table(3, optimizer=tfra.optimizers.SGD(1.0))
    keys, rows = unaligned(np.arange(4)), unaligned(np.ones((4, 3), np.float32))
    table.upsert(keys, rows)
    table.apply_gradients(keys, rows)
    np.testing.assert_array_equal(table.lookup(keys, default=unaligned(rows[0])), 0)
    with pytest.raises(ValueError, match="aligned"):
        table.lookup(keys, out=rows)


def test_unsigned_64_bit_keys_are_refused_in_any_byte_order() -> None:
    for dtype in ("<u8", ">u8"):
        with pytest.raises(TypeError, match="int64"):
            tfra.Table(1).contains(np.array([1], dtype))
