"""What every table does, whatever the types of its keys and values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support import (
    ALL_CASES,
    Array,
    Case,
    as_content,
    assert_identical,
    content,
    numpy_dtype,
    object_array,
    row_bytes,
)

# More keys than any test here has: whatever holds for other tables holds for bounded ones.
BOUNDED = [replace(case, max_capacity=20_000) for case in ALL_CASES if case.dim == 3]
# Room for some 64 rows: all others are in a file.
TIERED = [
    replace(case, max_capacity=bound, fast_bytes=1)
    for case in ALL_CASES
    if case.dim == 3 and case.value_dtype != "string"
    for bound in (None, 20_000)
]

SHAPES = [(), (0,), (1,), (7,), (2, 3), (2, 0, 3), (2, 1, 2, 2)]

EXTREME_KEYS = {
    "int64": [0, -1, 1, 2**63 - 1, -(2**63), 2**63 - 2, -(2**63) + 1, 2**32, -(2**32), 2**31],
    "string": [
        b"", b"\0", b"\0\0", b"a", b"a\0", b"a\0b", b"\xff" * 7, b"\xff" * 8, b"12345678901234",
        b"123456789012345", b"1234567890123456", bytes(range(256)), b"x" * 2**20,
        b"x" * (2**20 - 1),
    ],
}  # fmt: skip


@pytest.fixture(params=[*ALL_CASES, *BOUNDED, *TIERED], ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    """Tables of all types, without a bound and with one, in memory and with a file."""
    return request.param


def numbered(shape: tuple[int, ...], start: int = 0) -> Array:
    return np.arange(start, start + int(np.prod(shape))).reshape(shape)


def test_a_new_table_is_empty_and_tells_its_types(case: Case) -> None:
    table = case.table(seed=7)
    assert len(table) == 0
    assert (table.dim, table.seed, table.metadata, table.step) == (case.dim, 7, False, 0)
    assert (table.optimizer, table.slot_names) == (None, ())
    assert table.key_dtype == numpy_dtype(case.key_dtype)
    assert table.value_dtype == numpy_dtype(case.value_dtype)
    keys, values, slots = table.export(slots=True)
    assert_identical(keys, np.empty(0, table.key_dtype))
    assert_identical(values, np.empty((0, case.dim), table.value_dtype))
    assert slots == {}
    for _, rows in table.iterate():
        assert len(rows) == 0


def test_repr_shows_width_types_and_size(case: Case) -> None:
    table = case.table()
    table.upsert(case.keys(range(4321)), case.values(4321))
    text = repr(table)
    for part in (str(case.dim), case.key_dtype, case.value_dtype, "4321"):
        assert part in text


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_come_back_in_the_shape_of_the_keys(case: Case, shape: tuple[int, ...]) -> None:
    table = case.table()
    keys, values = case.keys(numbered(shape)), case.values(shape)
    table.upsert(keys, values)
    assert len(table) == keys.size
    found, exists = table.lookup(keys, return_exists=True)
    assert_identical(found, values)
    assert_identical(exists, np.ones(shape, bool))
    assert_identical(table.contains(keys), np.ones(shape, bool))
    missing, exists = table.lookup(case.keys(numbered(shape, 1000)), return_exists=True)
    assert_identical(missing, case.zeros(shape))
    assert_identical(exists, np.zeros(shape, bool))
    assert table.remove(keys) == keys.size
    assert len(table) == 0


def test_lookup_of_a_missing_key_inserts_nothing(case: Case) -> None:
    table = case.table()
    keys = case.keys(range(100))
    assert_identical(table.lookup(keys), case.zeros(100))
    assert not table.contains(keys).any()
    assert (len(table), content(table)) == (0, {})


def test_lookup_tells_found_from_missing_among_mixed_and_repeated_keys(case: Case) -> None:
    table = case.table()
    values = case.values(50)
    table.upsert(case.keys(range(50)), values)
    numbers = np.random.default_rng(1).integers(0, 100, (9, 30))
    found, exists = table.lookup(case.keys(numbers), return_exists=True)
    assert_identical(exists, numbers < 50)
    assert_identical(found, np.concatenate([values, case.zeros(50)])[numbers])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_defaults_replace_the_initial_value_of_missing_keys_only(
    case: Case, shape: tuple[int, ...]
) -> None:
    table = case.table()
    numbers = numbered(shape)
    keys, values = case.keys(numbers), case.values(shape)
    is_stored = numbers % 2 == 0
    table.upsert(case.keys(numbers[is_stored]), values[is_stored])
    row, rows = case.values((), seed=1), case.values(shape, seed=2)
    element = row.ravel().tolist()[0]
    whole = np.empty(case.dim, table.value_dtype)
    whole[:] = element
    for default, expected in ((row, row), (rows, rows), (element, whole), (row.tolist(), row)):
        found, exists = table.lookup(keys, default, return_exists=True)
        assert_identical(found, np.where(is_stored[..., None], values, expected))
        assert_identical(exists, is_stored)
    assert len(table) == is_stored.sum()


def test_a_default_string_keeps_its_nuls() -> None:
    table = Case("int64", "string", 2).table()
    for default in (b"a\0", "a\0", [b"a\0", b"a\0"], object_array([b"a\0"] * 2, (2,))):
        assert table.lookup(1, default).tolist() == [b"a\0", b"a\0"]


def test_lookup_writes_into_out(case: Case) -> None:
    table = case.table()
    values = case.values((4, 5))
    table.upsert(case.keys(numbered((4, 5))), values)
    out = case.values((4, 5), seed=3)
    assert table.lookup(case.keys(numbered((4, 5))), out=out) is out
    assert_identical(out, values)
    found, exists = table.lookup(
        case.keys(numbered((4, 5), 10)), case.values((), seed=4), return_exists=True, out=out
    )
    assert found is out
    assert_identical(exists, numbered((4, 5), 10) < 20)
    assert_identical(out[:2], values[2:])
    assert_identical(out[2:], np.broadcast_to(case.values((), seed=4), (2, 5, case.dim)))


def test_in_takes_one_key(case: Case) -> None:
    table = case.table()
    table.upsert(case.keys([3]), case.values(1))
    three, four = case.keys([3, 4]).tolist()
    assert (three in table) is True
    assert (four in table) is False


def test_upsert_overwrites_and_of_duplicates_the_last_stays(case: Case) -> None:
    table = case.table()
    for seed in range(3):
        numbers = np.random.default_rng(seed).integers(0, 40, 500)
        table.upsert(case.keys(numbers), case.values(500, seed))
        expected = as_content(case.keys(numbers), case.values(500, seed))
        assert len(expected) == 40
        assert content(table) == expected
    assert len(table) == 40


def test_remove_counts_what_was_there(case: Case) -> None:
    table = case.table()
    values = case.values(30)
    table.upsert(case.keys(range(30)), values)
    assert table.remove(case.keys([5, 5, 7, 100, 5])) == 2
    assert table.remove(case.keys([5, 7, 100])) == 0
    assert table.remove(case.keys([])) == 0
    kept = [n for n in range(30) if n not in (5, 7)]
    assert content(table) == as_content(case.keys(kept), values[kept])
    assert_identical(table.lookup(case.keys([5, 6])), np.stack([case.zeros(()), values[6]]))


def test_clear_empties_and_the_table_goes_on(case: Case) -> None:
    table = case.table()
    table.upsert(case.keys(range(200)), case.values(200))
    table.clear()
    assert (len(table), content(table)) == (0, {})
    assert_identical(table.lookup(case.keys(range(200))), case.zeros(200))
    table.upsert(case.keys([1]), case.values(1, seed=5))
    assert content(table) == as_content(case.keys([1]), case.values(1, seed=5))


@pytest.mark.parametrize("batch_size", [1, 7, 100, 10**6])
def test_iterate_gives_every_row_once_in_batches(case: Case, batch_size: int) -> None:
    table = case.table()
    keys, values = case.keys(range(300)), case.values(300)
    table.upsert(keys, values)
    seen = []
    for batch_keys, batch_values, slots in table.iterate(batch_size, slots=True):
        assert batch_keys.dtype == table.key_dtype
        assert batch_values.shape == (len(batch_keys), case.dim)
        assert slots == {}
        # Rows of one bucket of the index stay together, so a batch may be a little larger.
        assert len(batch_keys) <= batch_size + 64
        seen.extend(zip(batch_keys.tolist(), map(row_bytes, batch_values), strict=True))
    assert len(seen) == 300
    assert dict(seen) == as_content(keys, values)


def test_exported_arrays_belong_to_the_caller(case: Case) -> None:
    table = case.table()
    table.upsert(case.keys(range(20)), case.values(20))
    before = content(table)
    exported_keys, exported_values = table.export()
    found = table.lookup(case.keys(range(20)))
    for array in (exported_values, found):
        array[:] = case.values(20, seed=9)
    exported_keys[:] = case.keys(range(500, 520))
    assert content(table) == before


def test_inputs_are_neither_changed_nor_kept(case: Case) -> None:
    table = case.table()
    keys, values = case.keys(range(20)), case.values(20)
    given_keys, given_values = keys.copy(), values.copy()
    table.upsert(given_keys, given_values)
    assert_identical(given_keys, keys)
    assert_identical(given_values, values)
    given_keys[:] = case.keys(range(100, 120))
    given_values[:] = case.values(20, seed=9)
    assert content(table) == as_content(keys, values)


def test_extreme_keys_are_keys_like_others(case: Case) -> None:
    table = case.table()
    extreme = EXTREME_KEYS[case.key_dtype]
    keys = object_array(extreme, (len(extreme),)).astype(numpy_dtype(case.key_dtype))
    values = case.values(len(keys))
    assert not table.contains(keys).any()
    for at, key in enumerate(extreme):
        table.upsert(key, values[at])
        assert key in table
        assert len(table) == at + 1
    assert_identical(table.lookup(keys), values)
    assert content(table) == as_content(keys, values)
    for at, key in enumerate(extreme):
        assert table.remove(key) == 1
        assert key not in table
        assert table.contains(keys).tolist() == [False] * (at + 1) + [True] * (len(keys) - at - 1)


def test_growth_removal_and_shrinking_keep_the_other_rows(case: Case) -> None:
    table = case.table()
    total = 6000
    values = case.values(total)
    for start in range(0, total, 500):
        table.upsert(case.keys(range(start, start + 500)), values[start : start + 500])
        assert_identical(table.lookup(case.keys(range(0, start, 7))), values[0:start:7])
    removed = np.arange(total) % 3 != 0
    assert table.remove(case.keys(np.flatnonzero(removed))) == removed.sum()
    table.shrink()
    table.reserve(3 * total)
    found, exists = table.lookup(case.keys(range(total)), return_exists=True)
    assert_identical(exists, ~removed)
    assert_identical(found, np.where(removed[:, None], case.zeros(total), values))
    table.upsert(case.keys(range(total)), case.values(total, seed=1))
    assert content(table) == as_content(case.keys(range(total)), case.values(total, seed=1))


def test_capacity_makes_room_ahead(case: Case) -> None:
    table = case.table(capacity=5000)
    capacity = table.stats().capacity
    assert capacity >= 5000
    table.upsert(case.keys(range(5000)), case.values(5000))
    assert table.stats().capacity == capacity
    assert content(table) == as_content(case.keys(range(5000)), case.values(5000))
