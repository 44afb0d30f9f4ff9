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


def with_adam(keys: Array, rows: Array) -> Array:
    """The rows of the spec "plain", with the slots of the spec "slots"."""
    values = split_rows(SPECS["plain"], rows)[0]
    return join_rows(values, np.full((len(keys), 6), 2, np.float32))


def test_all_rows_are_replaced_and_take_their_spec(make: Callable[[Any], tfra.Store]) -> None:
    spec = SPECS["slots"]
    store, other = make(SPECS["plain"]), make(spec)
    store.assign(np.arange(5000), rows_of(SPECS["plain"], np.arange(5000)))
    other.assign(np.arange(4000, 7000), rows_of(spec, np.arange(3000)))
    store.replace(spec, other.export())
    assert store.spec == spec
    assert store.size() == 3000
    assert content(store) == content(other)
    store.replace(SPECS["plain"], [])
    assert store.spec == SPECS["plain"]
    assert content(store) == {}


class Flaky(DictStore):
    """A dict of rows whose server goes away after some rows, and may come back later."""

    def __init__(self, spec: tfra.TableSpec, name: str = "") -> None:
        super().__init__(spec, name)
        self.rows_left: float = np.inf
        self.outages = 0

    def goes_away(self, after: int, calls: int) -> None:
        """Makes this number of calls fail, once so many rows have been written."""
        self.rows_left, self.outages = after, calls

    def assign(self, keys: Array, rows: Array) -> None:
        if self.outages and len(keys) > self.rows_left:
            done = int(self.rows_left)
            super().assign(keys[:done], rows[:done])
            self.rows_left, self.outages = 0, self.outages - 1
            raise ConnectionError("the server is gone")
        super().assign(keys, rows)
        self.rows_left -= len(keys) if self.outages else 0

    def remove(self, keys: Array) -> int:
        if self.outages and not self.rows_left:
            self.outages -= 1
            raise ConnectionError("the server is gone")
        return super().remove(keys)


def flaky() -> Flaky:
    store = Flaky(SPECS["plain"])
    store.assign(np.arange(2500), rows_of(SPECS["plain"], np.arange(2500)))
    return store


@pytest.mark.parametrize("after", [0, 1, 1000, 1500, 2499])
def test_a_change_of_the_spec_that_fails_changes_nothing(after: int) -> None:
    store = flaky()
    before = content(store)
    store.goes_away(after, calls=1)
    with pytest.raises(ConnectionError, match="the server is gone"):
        store.change_spec(SPECS["slots"], with_adam)
    assert store.spec == SPECS["plain"]
    assert content(store) == before
    store.change_spec(SPECS["slots"], with_adam)
    assert store.spec == SPECS["slots"]
    assert set(content(store)) == set(before)


@pytest.mark.parametrize("after", [0, 1, 1000, 1001, 2000])
def test_a_replacement_that_fails_changes_nothing(after: int) -> None:
    store, other = flaky(), DictStore(SPECS["slots"])
    other.assign(np.arange(2000, 4000), rows_of(SPECS["slots"], np.arange(2000)))
    before = content(store)
    store.goes_away(after, calls=1)
    with pytest.raises(ConnectionError, match="the server is gone"):
        store.replace(SPECS["slots"], other.export())
    assert store.spec == SPECS["plain"]
    assert content(store) == before
    store.replace(SPECS["slots"], other.export())
    assert content(store) == content(other)


def test_rows_that_cannot_be_converted_change_nothing(make: Callable[[Any], tfra.Store]) -> None:
    store = make(SPECS["plain"])
    store.assign(np.arange(70_000), rows_of(SPECS["plain"], np.arange(70_000)))
    calls = []

    def fails_later(keys: Array, rows: Array) -> Array:
        calls.append(len(keys))
        if len(calls) == 2:
            raise MemoryError
        return with_adam(keys, rows)

    def batches_that_end() -> Any:
        yield np.arange(10), rows_of(SPECS["slots"], np.arange(10))
        yield np.arange(80_000, 80_010), rows_of(SPECS["slots"], np.arange(10))
        raise KeyboardInterrupt

    before = content(store)
    with pytest.raises(MemoryError):
        store.change_spec(SPECS["slots"], fails_later)
    with pytest.raises(KeyboardInterrupt):
        store.replace(SPECS["slots"], batches_that_end())
    assert store.spec == SPECS["plain"]
    assert content(store) == before


def test_what_is_left_if_the_old_rows_cannot_be_put_back() -> None:
    store = flaky()
    before = content(store)
    store.goes_away(after=0, calls=2)
    message = (
        r"`Flaky\.replace` failed \(Conn.*\), and putting the old rows back failed too \(Conn.*"
        "old spec.*its old row or a new one: unless nothing was written, `clear` the store"
    )
    with pytest.raises(RuntimeError, match=message) as failed:
        store.change_spec(SPECS["slots"], with_adam)
    assert isinstance(failed.value.__cause__, ConnectionError)
    assert store.spec == SPECS["plain"]
    assert content(store) == before, "nothing was written here"
    # In the worst case there are rows of both specs, but no key is gone.
    store.goes_away(after=1200, calls=2)
    with pytest.raises(RuntimeError, match="putting the old rows back failed"):
        store.change_spec(SPECS["slots"], with_adam)
    assert store.spec == SPECS["plain"]
    assert store.size() == 2500
    store.clear()
    store.replace(SPECS["plain"], [(np.arange(3), rows_of(SPECS["plain"], np.arange(3)))])
    assert store.size() == 3


class AllOrNothing(Flaky):
    """Overrides `replace` as its documentation says, with a transaction."""

    def replace(self, spec: tfra.TableSpec, batches: Any) -> None:
        old_spec, copy = self.spec, dict(self._rows)
        try:
            super().replace(spec, batches)
        except BaseException:
            self._spec, self._rows = old_spec, copy
            raise


def test_a_store_with_transactions_is_as_it_was_whatever_happens() -> None:
    store = AllOrNothing(SPECS["plain"])
    store.assign(np.arange(2500), rows_of(SPECS["plain"], np.arange(2500)))
    before = content(store)
    store.goes_away(after=1200, calls=2)
    with pytest.raises(RuntimeError, match="putting the old rows back failed"):
        store.change_spec(SPECS["slots"], with_adam)
    assert store.spec == SPECS["plain"]
    assert content(store) == before


def during(action: Callable[[], Any], seconds: float = 0.2) -> threading.Thread:
    """Starts an action in a thread, and gives it time to run unless it has to wait."""
    thread = threading.Thread(target=action)
    thread.start()
    thread.join(seconds)
    return thread


@pytest.mark.parametrize("optimizer", [None, "adam"])
def test_an_update_keeps_out_other_writers_of_the_store(optimizer: str | None) -> None:
    store = tfra.TableStore(tfra.Table(dim=1, optimizer=optimizer))
    keys = np.arange(3)
    store.assign(keys, rows_of(store.spec, keys))
    other_rows = rows_of(store.spec, [1, 1, 1])
    others: list[threading.Thread] = []

    def write() -> None:
        store.assign(keys[:1], other_rows[:1])
        store.remove(keys[1:2])

    def add(keys: Array, rows: Array, exists: Array) -> tuple[Array, Array]:
        others.append(during(write))
        assert others[0].is_alive(), "a write must wait for the update"
        reader = during(lambda: (store.lookup(keys), store.size(), list(store.export())), 10)
        assert not reader.is_alive(), "a reader must not wait"
        return keys, rows ^ 1

    store.update(keys, add)
    others[0].join()
    rows, exists = store.lookup(keys)
    assert exists.tolist() == [True, False, True]
    np.testing.assert_array_equal(rows[[0, 2]], [other_rows[0], rows_of(store.spec, [2])[0] ^ 1])


def test_a_change_of_the_spec_keeps_out_other_writers_of_the_store() -> None:
    store = tfra.TableStore(tfra.Table.from_spec(SPECS["plain"]))
    keys = np.arange(3)
    store.assign(keys, rows_of(SPECS["plain"], keys))
    others: list[threading.Thread] = []

    def convert(keys: Array, rows: Array) -> Array:
        others.append(during(lambda: store.remove(np.array([0]))))
        return with_adam(keys, rows)

    store.change_spec(SPECS["slots"], convert)
    others[0].join()
    assert set(content(store)) == {1, 2}, "a key that was removed came back"

    def clear(keys: Array, rows: Array) -> Array:
        others.append(during(store.clear))
        return rows

    store.change_spec(SPECS["slots"], clear)
    others[1].join()
    assert content(store) == {}, "keys that were removed came back"


@pytest.mark.parametrize("optimizer", [None, "adam"])
def test_a_key_that_is_said_to_exist_has_its_own_row(optimizer: str | None) -> None:
    table = tfra.Table(dim=32, initializer="zeros", optimizer=optimizer)
    store = tfra.TableStore(table)
    keys = np.arange(20_000)
    rows = np.ones((len(keys), store.spec.row_bytes), np.uint8)
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            store.assign(keys, rows)
            table.remove(keys[::-1])

    writer = threading.Thread(target=come_and_go)
    writer.start()
    try:
        for _ in range(40):
            found, exists = store.lookup(keys)
            assert (found[exists] == 1).all()
    finally:
        stop.set()
        writer.join()


def test_rows_of_another_width_are_refused() -> None:
    store = tfra.TableStore(tfra.Table(dim=2))
    wider = tfra.TableStore(tfra.Table(dim=4))
    wider.assign(np.arange(3), rows_of(wider.spec, np.arange(3)))
    with pytest.raises(ValueError, match=r"`rows` must have shape \(3, 8\).*shape \(3, 16\)"):
        store.import_rows(wider.export())
    with pytest.raises(TypeError, match=r"`rows` must be of dtype uint8\. Received: .*float32"):
        store.assign(np.arange(3), np.zeros((3, 2), np.float32))
    assert store.size() == 0


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
