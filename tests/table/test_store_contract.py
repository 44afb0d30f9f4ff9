"""What every store promises, for the tables of the engine and for a dict."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dict_store import DictStore
from hypothesis import given
from hypothesis import strategies as st

import tfra
from support import make_keys
from tfra import optimizers
from tfra.store import join_rows, split_rows

Array = np.ndarray

MAKERS: dict[str, Callable[[tfra.TableSpec], tfra.Store]] = {
    "engine": lambda spec: tfra.TableStore(tfra.Table.from_spec(spec)),
    "dict": DictStore,
}
ADAM = optimizers.Adam().rule()
SPECS = {
    "plain": tfra.TableSpec(dim=3),
    "strings": tfra.TableSpec(dim=2, key_dtype="string"),
    "slots": tfra.TableSpec(dim=3, rule=ADAM, initializer=tfra.initializers.Normal(), seed=7),
    "scalar_slots": tfra.TableSpec(dim=4, rule=optimizers.RowwiseAdagrad().rule()),
    "string_slots": tfra.TableSpec(dim=2, key_dtype="string", rule=ADAM),
    "bfloat16": tfra.TableSpec(dim=5, value_dtype="bfloat16", rule=ADAM),
    "bool": tfra.TableSpec(dim=3, value_dtype="bool"),
    "int8": tfra.TableSpec(dim=1, value_dtype="int8"),
    "tiers": tfra.TableSpec(dim=64, rule=ADAM, fast_bytes=4096),
}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[[tfra.TableSpec], tfra.Store]:
    return MAKERS[request.param]


@pytest.fixture(params=SPECS)
def spec(request: pytest.FixtureRequest) -> tfra.TableSpec:
    return SPECS[request.param]


@pytest.fixture
def store(make: Callable[[tfra.TableSpec], tfra.Store], spec: tfra.TableSpec) -> tfra.Store:
    return make(spec)


def keys_of(spec: tfra.TableSpec, numbers: Any) -> Array:
    return make_keys(spec.key_dtype, numbers)


def rows_of(spec: tfra.TableSpec, numbers: Any) -> Array:
    """A row for each number, of bytes that any value type may have."""
    numbers = np.asarray(numbers, np.int64).reshape(-1, 1)
    return ((numbers + np.arange(spec.row_bytes)) % 2).astype(np.uint8)


def content(store: tfra.Store) -> dict[Any, bytes]:
    found: dict[Any, bytes] = {}
    for keys, rows in store.export():
        assert rows.dtype == np.uint8
        assert rows.shape == (len(keys), store.spec.row_bytes)
        assert not set(found) & set(keys.tolist())
        found |= zip(keys.tolist(), map(bytes, rows), strict=True)
    return found


NUMBERS = st.lists(st.integers(0, 12), max_size=8)
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(("assign", "lookup", "remove", "update", "import", "clear")), NUMBERS
    ),
    max_size=12,
)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("kind", ("plain", "string_slots", "tiers"))
@given(operations=OPERATIONS)
def test_a_store_is_a_dict_of_rows(
    name: str, kind: str, operations: list[tuple[str, list[int]]]
) -> None:
    spec = SPECS[kind]
    store, model = MAKERS[name](spec), {}
    for turn, (operation, numbers) in enumerate(operations):
        keys = keys_of(spec, numbers)
        rows = rows_of(spec, np.array(numbers, np.int64) + turn)
        if operation == "assign":
            store.assign(keys, rows)
            model |= zip(keys.tolist(), map(bytes, rows), strict=True)
        elif operation == "lookup":
            found, exists = store.lookup(keys)
            assert found.dtype == np.uint8 and found.shape == (len(keys), spec.row_bytes)
            assert exists.dtype == np.bool_
            assert exists.tolist() == [key in model for key in keys.tolist()]
            for key, row in zip(keys[exists].tolist(), found[exists], strict=True):
                assert bytes(row) == model[key]
        elif operation == "remove":
            there = [key for key in set(keys.tolist()) if model.pop(key, None) is not None]
            assert store.remove(keys) == len(there)
        elif operation == "update":
            _flip(store, keys_of(spec, sorted(set(numbers))), model)
        elif operation == "import":
            store.import_rows(iter([(keys[:2], rows[:2]), (keys[2:], rows[2:])]))
            model |= zip(keys.tolist(), map(bytes, rows), strict=True)
        else:
            store.clear()
            model.clear()
        assert store.size() == len(model)
    assert content(store) == model


def _flip(store: tfra.Store, keys: Array, model: dict[Any, bytes]) -> None:
    """Inverts the lowest bits of rows that are there, and leaves other keys alone."""

    def flipped(given: Array, rows: Array, exists: Array) -> tuple[Array, Array]:
        return given[exists], rows[exists] ^ 1

    store.update(keys, flipped)
    for key in keys.tolist():
        if key in model:
            model[key] = bytes(byte ^ 1 for byte in model[key])


def test_no_keys(store: tfra.Store) -> None:
    none = keys_of(store.spec, [])
    rows, exists = store.lookup(none)
    assert rows.shape == (0, store.spec.row_bytes) and exists.shape == (0,)
    store.assign(none, rows)
    store.import_rows([])
    store.update(none, lambda keys, rows, exists: (keys, rows))
    assert store.remove(none) == 0
    assert store.size() == 0
    assert content(store) == {}


def test_equal_keys(store: tfra.Store) -> None:
    spec = store.spec
    keys = keys_of(spec, [1, 2, 1])
    store.assign(keys, rows_of(spec, [0, 0, 1]))
    rows, exists = store.lookup(keys)
    assert exists.all()
    np.testing.assert_array_equal(rows, rows_of(spec, [1, 0, 1]))
    assert store.size() == 2
    assert store.remove(keys) == 2


def test_any_key_is_a_key(make: Callable[[tfra.TableSpec], tfra.Store]) -> None:
    limits = np.iinfo(np.int64)
    numbers = np.array([limits.min, limits.max, 0, -1, 1], np.int64)
    texts = np.empty(4, object)
    texts[:] = [b"", b"\0", b"\0\0", b"\xff" * 1000]
    for keys, kind in ((numbers, "plain"), (texts, "strings")):
        store = make(SPECS[kind])
        rows = rows_of(store.spec, np.arange(len(keys)))
        store.assign(keys, rows)
        np.testing.assert_array_equal(store.lookup(keys)[0], rows)
        assert set(content(store)) == set(keys.tolist())


def test_an_import_keeps_other_rows_and_replaces_equal_ones(store: tfra.Store) -> None:
    spec = store.spec
    store.assign(keys_of(spec, [1, 2]), rows_of(spec, [0, 0]))
    store.import_rows([(keys_of(spec, [2, 3]), rows_of(spec, [1, 1]))])
    rows, exists = store.lookup(keys_of(spec, [1, 2, 3]))
    assert exists.all()
    np.testing.assert_array_equal(rows, rows_of(spec, [0, 1, 1]))


def test_many_rows_are_copied_from_store_to_store(
    make: Callable[[tfra.TableSpec], tfra.Store], spec: tfra.TableSpec
) -> None:
    numbers = np.arange(3000)
    first = make(spec)
    first.assign(keys_of(spec, numbers), rows_of(spec, numbers))
    for other in (each(spec) for each in MAKERS.values()):
        other.import_rows(first.export())
        assert content(other) == content(first)


def test_updates_of_several_threads_are_not_lost(make: Callable[[Any], tfra.Store]) -> None:
    spec = tfra.TableSpec(dim=1, value_dtype="int64")
    store = make(spec)
    keys = np.arange(5)

    def count(keys: Array, rows: Array, exists: Array) -> tuple[Array, Array]:
        values = np.where(exists[:, None], split_rows(spec, rows)[0], 0)
        return keys, join_rows(values + 1)

    def work() -> None:
        for _ in range(50):
            store.update(keys, count)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(split_rows(spec, store.lookup(keys)[0])[0], [[200]] * 5)


def test_rows_get_other_slots(make: Callable[[tfra.TableSpec], tfra.Store]) -> None:
    store = make(SPECS["plain"])
    keys, values = np.arange(2500), np.arange(7500, dtype=np.float32).reshape(2500, 3)
    store.assign(keys, join_rows(values))
    with_slots = SPECS["slots"]

    def convert(keys: Array, rows: Array) -> Array:
        return join_rows(split_rows(SPECS["plain"], rows)[0], np.full((len(keys), 6), 2, "f"))

    store.change_spec(with_slots, convert)
    assert store.spec == with_slots
    assert store.size() == 2500
    found, slots = split_rows(with_slots, store.lookup(keys)[0])
    np.testing.assert_array_equal(found, values)
    assert all((slot == 2).all() for slot in slots.values())


def test_the_width_of_a_row_is_that_of_the_spec() -> None:
    widths = {name: (spec.value_bytes, spec.row_bytes) for name, spec in SPECS.items()}
    assert widths == {
        "plain": (12, 12),
        "strings": (8, 8),
        "slots": (12, 36),
        "scalar_slots": (16, 20),
        "string_slots": (8, 24),
        "bfloat16": (10, 50),
        "bool": (3, 3),
        "int8": (1, 1),
        "tiers": (256, 768),
    }
    assert SPECS["slots"].slots == {"momentum": 3, "velocity": 3}


def test_values_without_a_size_are_refused() -> None:
    with pytest.raises(TypeError, match=r"fixed size\. Received: string"):
        tfra.TableStore(tfra.Table(dim=1, value_dtype="string"))


def test_rows_of_a_trained_table_have_its_slots() -> None:
    table = tfra.Table(dim=2, optimizer=optimizers.Adagrad(initial_accumulator_value=0.5))
    table.apply_gradients([7], np.ones((1, 2), np.float32))
    store = tfra.TableStore(table)
    assert store.table is table
    values, slots = split_rows(store.spec, store.lookup(np.array([7]))[0])
    np.testing.assert_array_equal(values, table.lookup([7]))
    np.testing.assert_array_equal(slots["accumulator"], [[1.5, 1.5]])
    values, slots = table.lookup_with_slots([[7], [8]])
    assert values.shape == (2, 1, 2)
    assert {name: slot.tolist() for name, slot in slots.items()} == {
        "accumulator": [[[1.5, 1.5]], [[0.5, 0.5]]]
    }
    with pytest.raises(TypeError, match="a table of strings"):
        tfra.Table(dim=1, value_dtype="string").lookup_with_slots([1])


def test_a_table_is_made_from_its_spec(spec: tfra.TableSpec) -> None:
    assert tfra.Table.from_spec(spec).spec == spec


def test_a_spec_that_no_table_can_have_is_refused() -> None:
    with pytest.raises(TypeError, match="int64 or string keys"):
        tfra.Table.from_spec(tfra.TableSpec(dim=1, key_dtype="int32"))
    with pytest.raises(ValueError, match="dim"):
        tfra.Table.from_spec(tfra.TableSpec(dim=0))
    with pytest.raises(ValueError, match="whose slots the table has"):
        tfra.Table.from_spec(SPECS["slots"], optimizer="adagrad")


def test_a_dict_is_a_store_in_sixty_lines() -> None:
    assert len(inspect.getsource(DictStore).splitlines()) <= 60
