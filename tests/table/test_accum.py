"""`accum`: adds to existing rows and inserts missing ones, if `exists` is right."""

from __future__ import annotations

import numpy as np
import pytest

import tfra
from support import (
    Array,
    Content,
    as_content,
    assert_identical,
    content,
    make_keys,
    make_values,
    numpy_dtype,
    row_bytes,
)


def add(row: Array, delta: Array) -> Array:
    """One addition as the table does it: bool is "or", integers wrap, floats round once."""
    return row | delta if row.dtype == bool else row + delta


def accum_one_by_one(
    rows: dict[object, Array], keys: Array, deltas: Array, exists: Array
) -> tuple[Content, int]:
    """The content after `accum`, from its definition, and how many keys it ignored."""
    ignored = 0
    for key, delta, expected in zip(keys.tolist(), deltas, exists.tolist(), strict=True):
        if (key in rows) != expected:
            ignored += 1
        else:
            rows[key] = add(rows[key], delta) if expected else delta
    return {key: row_bytes(row) for key, row in rows.items()}, ignored


@pytest.mark.parametrize("dim", [1, 3, 32])
def test_accum_acts_as_if_keys_came_one_by_one(
    key_dtype: str, numeric_dtype: str, dim: int, rng: np.random.Generator
) -> None:
    table = tfra.Table(dim, key_dtype=key_dtype, value_dtype=numeric_dtype)
    keys = make_keys(key_dtype, range(20))
    values = make_values(numeric_dtype, (20, dim), rng)
    table.upsert(keys, values)
    rows: dict[object, Array] = dict(zip(keys.tolist(), values, strict=True))
    total_ignored = 0
    for _ in range(5):
        batch = make_keys(key_dtype, rng.integers(0, 40, 300))
        deltas = make_values(numeric_dtype, (300, dim), rng)
        exists = rng.integers(0, 2, 300).astype(bool)
        expected, ignored = accum_one_by_one(rows, batch, deltas, exists)
        table.accum(batch, deltas, exists)
        total_ignored += ignored
        assert content(table) == expected
        assert table.stats().ignored == total_ignored > 0


def test_accum_in_each_of_its_four_cases(key_dtype: str, numeric_dtype: str) -> None:
    table = tfra.Table(2, key_dtype=key_dtype, value_dtype=numeric_dtype)
    dtype = numpy_dtype(numeric_dtype)
    here, missing = make_keys(key_dtype, [1]), make_keys(key_dtype, [2])
    one, two = np.array([[1, 0]], dtype), np.array([[2, 0]], dtype)
    table.upsert(here, one)
    table.accum(here, two, np.array([False]))
    table.accum(missing, two, np.array([True]))
    assert content(table) == as_content(here, one)
    table.accum(here, two, np.array([True]))
    table.accum(missing, two, np.array([False]))
    assert_identical(table.lookup(here), add(one, two))
    assert_identical(table.lookup(missing), two)
    assert table.stats().ignored == 2


def test_an_inserted_delta_replaces_the_initial_value() -> None:
    table = tfra.Table(2, initializer="ones")
    table.accum([5], [[0.25, 0.5]], [False])
    np.testing.assert_array_equal(table.lookup([5]), [[0.25, 0.5]])


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3)], ids=str)
def test_accum_takes_keys_of_any_shape(key_dtype: str, shape: tuple[int, ...]) -> None:
    table = tfra.Table(3, key_dtype=key_dtype)
    keys = make_keys(key_dtype, np.arange(int(np.prod(shape))).reshape(shape))
    deltas = np.ones((*shape, 3), np.float32)
    table.accum(keys, deltas, np.zeros(shape, bool))
    table.accum(keys, deltas, np.ones(shape, bool))
    assert len(table) == keys.size
    assert_identical(table.lookup(keys), deltas * np.float32(2))


@pytest.mark.parametrize("numeric", ["int8", "int32", "int64"])
def test_integers_wrap(numeric: str) -> None:
    limits = np.iinfo(numeric)
    table = tfra.Table(2, value_dtype=numeric)
    table.upsert([1], np.array([[limits.max, limits.min]], numeric))
    table.accum([1], np.array([[1, -1]], numeric), [True])
    assert_identical(table.lookup([1]), np.array([[limits.min, limits.max]], numeric))


def test_accum_keeps_the_optimizer_slots() -> None:
    table = tfra.Table(2, optimizer="adam")
    table.apply_gradients([1], [[1.0, 2.0]])
    _, values, slots = table.export(slots=True)
    table.accum([1], np.ones((1, 2), np.float32), [True])
    _, new_values, new_slots = table.export(slots=True)
    assert_identical(new_values, values + np.float32(1))
    for name in slots:
        assert_identical(new_slots[name], slots[name])


def test_strings_cannot_be_added(key_dtype: str) -> None:
    table = tfra.Table(1, key_dtype=key_dtype, value_dtype="string")
    key = make_keys(key_dtype, [1])
    with pytest.raises(TypeError, match="string"):
        table.accum(key, [[b"x"]], [False])
    assert len(table) == 0
