"""What a store returns is checked where it enters: a wrong result is never a wrong row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from dict_store import DictStore

import tfra

de = tfra.dynamic_embedding
Array = np.ndarray
Change = Callable[[Any], Any]


class Broken(DictStore):
    """A dict of rows that returns something else, once a test says what."""

    def __init__(self, spec: tfra.TableSpec, name: str = "") -> None:
        super().__init__(spec, name)
        self.changes: dict[str, Change] = {}

    def _changed(self, method: str, result: Any) -> Any:
        return self.changes.get(method, lambda same: same)(result)

    def lookup(self, keys: Array) -> Any:
        return self._changed("lookup", super().lookup(keys))

    def remove(self, keys: Array) -> Any:
        return self._changed("remove", super().remove(keys))

    def size(self) -> Any:
        return self._changed("size", super().size())

    def export(self) -> Any:
        return self._changed("export", super().export())


def broken(method: str, change: Change, **options: Any) -> Any:
    """A Variable of two rows, in a store one of whose methods returns something else."""
    variable = de.Variable(
        dim=2, name="users", initializer=5.0, kv_creator=de.StoreCreator(Broken), **options
    )
    variable.upsert([10, 20], [[1.0, 2.0], [3.0, 4.0]])
    variable.tables[0].store.changes[method] = change
    return variable


def rows_changed(change: Change) -> Change:
    return lambda found: (change(found[0]), found[1])


def exists_changed(change: Change) -> Change:
    return lambda found: (found[0], change(found[1]))


def batches_changed(change: Change) -> Change:
    return lambda batches: (change(*batch) for batch in batches)


ROWS = r"`Broken\.lookup` must return rows that are a uint8 array of shape \(3, 8\)\. Received: "
EXISTS = (
    r"`Broken\.lookup` must return existences that are a bool array of shape \(3,\)\. Received: "
)
WRONG_LOOKUPS: dict[str, tuple[Change, type[Exception], str]] = {
    "nothing": (
        lambda found: None,
        TypeError,
        r"`Broken\.lookup` must return a pair of rows and existences\. Received: None",
    ),
    "rows alone": (
        lambda found: found[0],
        TypeError,
        r"a pair of rows and existences\. Received: a uint8 array of shape \(3, 8\)",
    ),
    "three": (lambda found: (*found, 0), TypeError, "a pair of rows and existences"),
    "too few": (rows_changed(lambda rows: rows[1:]), ValueError, ROWS + r".*\(2, 8\)"),
    "too many": (
        rows_changed(lambda rows: np.repeat(rows, 2, 0)),
        ValueError,
        ROWS + r".*\(6, 8\)",
    ),
    "narrow": (rows_changed(lambda rows: rows[:, :4]), ValueError, ROWS + r".*\(3, 4\)"),
    "wide": (rows_changed(lambda rows: np.tile(rows, 2)), ValueError, ROWS + r".*\(3, 16\)"),
    "floats": (
        rows_changed(lambda rows: rows.view(np.float32)),
        TypeError,
        ROWS + r"a float32 array of shape \(3, 2\)",
    ),
    "list of rows": (rows_changed(lambda rows: rows.tolist()), TypeError, ROWS + r"\[\["),
    "short mask": (exists_changed(lambda mask: mask[1:]), ValueError, EXISTS + r".*\(2,\)"),
    "counts": (
        exists_changed(lambda mask: mask * 2),
        TypeError,
        EXISTS + r"an int64 array of shape \(3,\)",
    ),
    "no mask": (exists_changed(lambda mask: None), TypeError, EXISTS + "None"),
}


@pytest.mark.parametrize("case", WRONG_LOOKUPS)
def test_a_wrong_lookup_is_an_error_and_changes_nothing(case: str) -> None:
    change, error, message = WRONG_LOOKUPS[case]
    variable = broken("lookup", change)
    store = variable.tables[0].store
    keys = tf.constant([10, 20, 30], tf.int64)
    with pytest.raises(error, match=message):
        variable.lookup(keys)
    with pytest.raises(error, match=message):
        variable.upsert(keys, tf.ones([3, 2]))
    store.changes.clear()
    assert variable.lookup(keys).numpy().tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 5.0]]
    assert store.size() == 2


@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
def test_a_mask_of_zeros_and_ones_is_a_mask(dtype: Any) -> None:
    variable = broken("lookup", exists_changed(lambda mask: mask.astype(dtype)))
    variable.upsert([20, 40], [[6.0, 7.0], [8.0, 9.0]])
    variable.accum([10], [[1.0, 2.0]], [[2.0, 2.0]], [True])
    rows, exists = variable.lookup([10, 30, 20, 40], return_exists=True)
    assert rows.numpy().tolist() == [[2.0, 2.0], [5.0, 5.0], [6.0, 7.0], [8.0, 9.0]]
    assert exists.numpy().tolist() == [True, False, True, True]
    # Keys that are not there are trained from their initial rows.
    keys = tf.constant([10, 11, 12], tf.int64)
    with tf.GradientTape() as tape:
        rows, trainable = de.embedding_lookup(variable, keys, return_trainable=True)
    tf.keras.optimizers.SGD(1.0).apply([tape.gradient(rows, trainable)], [trainable])
    assert variable.lookup(keys).numpy().tolist() == [[1.0, 1.0], [4.0, 4.0], [4.0, 4.0]]


def test_rows_in_another_memory_order_are_the_same_rows() -> None:
    variable = broken("lookup", rows_changed(np.asfortranarray))
    variable.upsert([20, 40], [[6.0, 7.0], [8.0, 9.0]])
    assert variable.lookup([10, 20, 40]).numpy().tolist() == [[1.0, 2.0], [6.0, 7.0], [8.0, 9.0]]


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (None, TypeError, r"must be an integer\. Received: None"),
        (-5, ValueError, r"must be 0 or more\. Received: -5"),
        (2.5, TypeError, r"must be an integer\. Received: 2\.5"),
    ],
)
def test_a_wrong_number_is_an_error(result: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=r"`Broken\.size\(\)` " + message):
        broken("size", lambda size: result).size()
    with pytest.raises(error, match=r"`Broken\.remove\(\)` " + message):
        broken("remove", lambda count: result).remove([10])


WRONG_EXPORTS: dict[str, tuple[Change, type[Exception], str]] = {
    "nothing": (
        lambda batches: None,
        TypeError,
        r"must return an iterator of batches\. Received: None",
    ),
    "no pairs": (
        batches_changed(lambda keys, rows: keys),
        TypeError,
        r"must return a pair of keys and rows\. Received: an int64 array of shape \(2,\)",
    ),
    "fewer rows than keys": (
        batches_changed(lambda keys, rows: (keys, rows[:1])),
        ValueError,
        r"rows that are a uint8 array of shape \(2, 8\)\. Received: a uint8 array of shape \(1, 8",
    ),
    "floats": (
        batches_changed(lambda keys, rows: (keys, rows.astype(np.float32))),
        TypeError,
        r"of shape \(2, 8\)\. Received: a float32 array",
    ),
    "floating keys": (
        batches_changed(lambda keys, rows: (keys.astype(np.float64), rows)),
        TypeError,
        r"keys that are an int64 array of shape \(n,\)\. Received: a float64 array of shape \(2,\)",
    ),
    "unsigned keys": (
        batches_changed(lambda keys, rows: (keys.astype(np.uint64), rows)),
        TypeError,
        r"keys that are an int64 array of shape \(n,\)\. Received: a uint64 array",
    ),
    "a matrix of keys": (
        batches_changed(lambda keys, rows: (keys[:, None], rows)),
        ValueError,
        r"of shape \(n,\)\. Received: an int64 array of shape \(2, 1\)",
    ),
}


@pytest.mark.parametrize("case", WRONG_EXPORTS)
def test_a_wrong_export_is_not_saved(case: str) -> None:
    change, error, message = WRONG_EXPORTS[case]
    variable = broken("export", change)
    for read in (variable.export, variable.content):
        with pytest.raises(error, match=r"`Broken\.export` .*" + message):
            read()
    # Nor do rows get the slots of an optimizer from it.
    with tf.GradientTape() as tape:
        keys = tf.constant([10], tf.int64)
        rows, trainable = de.embedding_lookup(variable, keys, return_trainable=True)
    with pytest.raises(error, match=r"`Broken\.export` .*" + message):
        tf.keras.optimizers.Adam().apply([tape.gradient(rows, trainable)], [trainable])
    store = variable.tables[0].store
    assert store.spec.slots == {}
    store.changes.clear()
    assert variable.lookup([10, 20]).numpy().tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_narrow_integers_are_keys() -> None:
    variable = broken("export", batches_changed(lambda keys, rows: (keys.astype(np.int32), rows)))
    assert sorted(variable.export()[0].numpy().tolist()) == [10, 20]


def test_string_keys_of_an_export_are_bytes() -> None:
    def texts(keys: Array, rows: Array) -> Any:
        decoded = np.empty(len(keys), object)
        decoded[:] = [key.decode() for key in keys.tolist()]
        return decoded, rows

    variable = de.Variable(key_dtype="string", dim=1, kv_creator=de.StoreCreator(Broken))
    variable.upsert(["a", "b\0"], [[1.0], [2.0]])
    changes = variable.tables[0].store.changes
    for wrong in (texts, lambda keys, rows: (keys.astype("S"), rows)):
        changes["export"] = batches_changed(wrong)
        with pytest.raises(TypeError, match=r"`Broken\.export` must return keys that are .*bytes"):
            variable.export()
    changes.clear()
    assert sorted(variable.export()[0].numpy().tolist()) == [b"a", b"b\0"]


class WrongUpdate(DictStore):
    """Overrides `update`, and gives the function rows of another width."""

    def update(self, keys: Array, function: Any) -> None:
        rows, exists = self.lookup(keys)
        self.assign(*function(keys, np.tile(rows, 2), exists))


def test_what_an_update_of_its_own_reads_is_checked() -> None:
    variable = de.Variable(dim=2, kv_creator=de.StoreCreator(WrongUpdate))
    message = r"`WrongUpdate\.update` must pass rows .* \(1, 8\)\. Received: .* \(1, 16\)"
    with pytest.raises(ValueError, match=message):
        variable.upsert([10], [[1.0, 2.0]])
    assert variable.tables[0].store.size() == 0


class Forgetful(DictStore):
    def change_spec(self, spec: tfra.TableSpec, convert: Any) -> None:
        """Changes nothing."""


def test_a_store_that_does_not_take_the_spec_is_refused() -> None:
    variable = de.Variable(dim=2, kv_creator=de.StoreCreator(Forgetful))
    with tf.GradientTape() as tape:
        keys = tf.constant([10], tf.int64)
        rows, trainable = de.embedding_lookup(variable, keys, return_trainable=True)
    message = r"`Forgetful\.change_spec` must set the spec .*kind='adam'.* Received: .*kind='none'"
    with pytest.raises(ValueError, match=message):
        tf.keras.optimizers.Adam().apply([tape.gradient(rows, trainable)], [trainable])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("initializer", tfra.initializers.Constant(9.0)),
        ("seed", 9),
        ("admission", tfra.admission.MinCount(2)),
        ("max_capacity", 2),
        ("metadata", True),
        ("fast_bytes", 1 << 20),
        ("dim", 3),
        ("key_dtype", "string"),
        ("value_dtype", "float16"),
    ],
)
def test_a_store_of_another_spec_is_refused(field: str, value: Any) -> None:
    def other(spec: tfra.TableSpec, name: str) -> tfra.Store:
        return DictStore(dataclasses.replace(spec, **{field: value}), name)

    initializer = tf.keras.initializers.RandomNormal(seed=3)
    with pytest.raises(ValueError, match=rf"`make`: expected .*'{field}': .*Received: .*'{field}'"):
        de.Variable(dim=2, initializer=initializer, kv_creator=de.StoreCreator(other))


@pytest.mark.parametrize("initializer", [0.1, [0.1, 0.7], tf.keras.initializers.RandomNormal()])
def test_a_store_may_have_another_rule_and_capacity(initializer: Any) -> None:
    def other(spec: tfra.TableSpec, name: str) -> tfra.Store:
        rule = tfra.optimizers.Adam().rule()
        spec = dataclasses.replace(spec, rule=rule, capacity=100)
        return tfra.TableStore(tfra.Table.from_spec(spec))

    variable = de.Variable(dim=2, initializer=initializer, kv_creator=de.StoreCreator(other))
    assert variable.tables[0].store.spec.slots == {"momentum": 2, "velocity": 2}


def test_one_store_for_two_partitions_is_refused() -> None:
    made: list[tfra.Store] = []

    def one(spec: tfra.TableSpec, name: str) -> tfra.Store:
        made.append(made[0] if made else DictStore(spec, name))
        return made[0]

    message = r"a store for each .*'users-1of2' and 'users-2of2'.* Received: .*same DictStore"
    with pytest.raises(ValueError, match=message):
        de.Variable(dim=2, name="users", devices=["/CPU:0"] * 2, kv_creator=de.StoreCreator(one))


class LeavesAndReturns(DictStore):
    """While it is exported, another thread removes a key and inserts it again."""

    def export(self) -> Any:
        batches = list(super().export())
        yield from batches
        if batches:
            keys, rows = batches[0]
            self.assign(keys[:1], rows[1:2])
            yield keys[:1], rows[1:2]


@pytest.mark.parametrize("key_dtype", ["int64", "string"])
def test_a_key_that_leaves_and_returns_is_saved_once(key_dtype: str, tmp_path: Any) -> None:
    keys = tf.constant([1, 2, 3] if key_dtype == "int64" else ["a", "b", "c"], key_dtype)
    variable = de.Variable(
        key_dtype=key_dtype, dim=1, name="v", kv_creator=de.StoreCreator(LeavesAndReturns)
    )
    variable.upsert(keys, [[1.0], [2.0], [3.0]])
    path = tf.train.Checkpoint(v=variable).write(tmp_path / "c")
    assert len(variable.export()[0]) == 3
    for creator in (None, de.StoreCreator(DictStore)):
        restored = de.Variable(key_dtype=key_dtype, dim=1, name="v", kv_creator=creator)
        tf.train.Checkpoint(v=restored).read(path)
        # The row that came last is the present one.
        assert restored.lookup(keys).numpy().tolist() == [[2.0], [2.0], [3.0]]
        assert int(restored.size()) == 3
