"""A store that fails: nothing is lost, and what is saved says which optimizer's slots it has."""

from __future__ import annotations

import json
import threading
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from dict_store import DictStore
from tf_support import content

import tfra

de = tfra.dynamic_embedding
Array = np.ndarray
TWO = ["/CPU:0"] * 2


class Remote(DictStore):
    """A dict of rows on a server that may be down."""

    down: str | None = None  # The method that fails.

    def _connect(self, method: str) -> None:
        if self.down == method:
            raise ConnectionError("the server is gone")

    def assign(self, keys: Array, rows: Array) -> None:
        self._connect("assign")
        super().assign(keys, rows)

    def export(self) -> Any:
        self._connect("export")
        return super().export()


class FailsOnce(Remote):
    """Its server is up again after one failure."""

    def _connect(self, method: str) -> None:
        try:
            super()._connect(method)
        except ConnectionError:
            self.down = None
            raise


def remote(store: type[Remote] = Remote, **options: Any) -> Any:
    variable = de.Variable(
        dim=2, name="v", initializer=-1.0, kv_creator=de.StoreCreator(store), **options
    )
    variable.upsert([1, 2, 3, 4], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    return variable


def in_engine(**options: Any) -> Any:
    return de.Variable(dim=2, name="v", initializer=-1.0, **options)


def step(variable: Any, optimizer: Any, keys: list[int]) -> None:
    with tf.GradientTape() as tape:
        ids = tf.constant(keys, tf.int64)
        rows, trainable = de.embedding_lookup(variable, ids, return_trainable=True)
    optimizer.apply([tape.gradient(rows, trainable)], [trainable])


def store_of(variable: Any, partition: int = -1) -> Any:
    return variable.tables[partition].store


def stored(variable: Any) -> list[Any]:
    """The rows with their slots, and the rule, of each store."""
    stores = [table.store for table in variable.tables]
    return [(dict(store._rows), store.spec.rule.kind) for store in stores]


def saved(variable: Any) -> dict[str, Any]:
    """All that is saved, in the order of the keys."""
    arrays = {name: tensor.numpy() for name, tensor in variable.content().items()}
    order = np.argsort(arrays["keys"])
    arrays |= {name: arrays[name][order] for name in ("keys", "values", "slots")}
    return arrays | {"rule": [json.loads(text)["rule"] for text in arrays["rule"]]}


def assert_same(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    for name, array in theirs.items():
        np.testing.assert_array_equal(mine[name], array, err_msg=name)


def other_content(**options: Any) -> Any:
    """What is saved of a Variable with other rows, trained by Adagrad."""
    other = in_engine(**options)
    step(other, keras.optimizers.Adagrad(), [4, 5, 6, 7])
    return other.content()


@pytest.mark.parametrize("devices", [None, TWO])
@pytest.mark.parametrize("partition", [0, -1])
@pytest.mark.parametrize("store", [Remote, FailsOnce])
def test_a_restore_that_fails_changes_nothing(
    store: type[Remote], partition: int, devices: Any
) -> None:
    variable, twin = remote(store, devices=devices), remote(devices=devices)
    mine, theirs = keras.optimizers.Adam(), keras.optimizers.Adam()
    for each, optimizer in ((variable, mine), (twin, theirs)):
        step(each, optimizer, [1, 2, 3])
    before = stored(variable)
    new = other_content()
    store_of(variable, partition).down = "assign"
    with pytest.raises((ConnectionError, RuntimeError), match="the server is gone"):
        variable.restore(new)
    store_of(variable, partition).down = None
    assert stored(variable) == before
    # Keys without a row still have their initial value.
    rows, exists = variable.lookup([5, 9], return_exists=True)
    assert rows.numpy().tolist() == [[-1.0, -1.0]] * 2
    assert not exists.numpy().any()
    # The optimizer goes on as if nothing had happened, and its slots can be read.
    assert len(variable.get_slot_variables(mine)[0].lookup([1])) == 1
    for each, optimizer in ((variable, mine), (twin, theirs)):
        step(each, optimizer, [1, 5])
    assert_same(saved(variable), saved(twin))
    variable.restore(new)
    restored = in_engine(devices=devices)
    restored.restore(new)
    assert_same(saved(variable), saved(restored))


def test_a_restore_that_fails_keeps_the_bound_optimizer() -> None:
    variable = remote()
    former, present = keras.optimizers.Adam(), keras.optimizers.Adam()
    for optimizer in (former, former, present):
        step(variable, optimizer, [1])
    new = other_content()
    store_of(variable).down = "assign"
    with pytest.raises(RuntimeError, match="the server is gone"):
        variable.restore(new)
    store_of(variable).down = None
    with pytest.raises(tf.errors.FailedPreconditionError, match="slots of one optimizer"):
        step(variable, former, [1])
    step(variable, present, [1])


def test_a_restore_that_fails_in_a_function_changes_nothing() -> None:
    variable = remote(FailsOnce, devices=TWO)
    before = stored(variable)
    new = other_content()
    restore = tf.function(lambda: [variable.restore(new), tf.constant(0)][1])
    for _ in range(2):
        store_of(variable).down = "assign"
        with pytest.raises(tf.errors.OpError, match="the server is gone"):
            restore()
        assert stored(variable) == before
        assert variable.lookup([5]).numpy().tolist() == [[-1.0, -1.0]]
    for _ in range(2):
        restore()
        restored = in_engine(devices=TWO)
        restored.restore(new)
        assert_same(saved(variable), saved(restored))
        variable.upsert([99], [[1.0, 1.0]])


def test_a_restore_that_fails_in_a_graph_changes_nothing(session: Any) -> None:
    variable = de.Variable(dim=2, name="v", initializer=-1.0, kv_creator=de.StoreCreator(FailsOnce))
    inserted = variable.upsert(tf.constant([1], tf.int64), [[1.0, 2.0]])
    new = {**variable.content(), "keys": tf.constant([5], tf.int64)}
    restore = variable.restore(new)
    found = variable.lookup(tf.constant([1, 5], tf.int64))
    session.run(tf.compat.v1.tables_initializer())
    session.run(inserted)
    store_of(variable).down = "assign"
    with pytest.raises(tf.errors.OpError, match="the server is gone"):
        session.run(restore)
    assert session.run(found).tolist() == [[1.0, 2.0], [-1.0, -1.0]]
    session.run(restore)
    assert session.run(found).tolist() == [[-1.0, -1.0], [1.0, 2.0]]


def test_a_checkpoint_that_cannot_be_read_into_a_store_changes_nothing(tmp_path: Any) -> None:
    other = in_engine()
    other.upsert([5], [[5.0, 5.0]])
    path = tf.train.Checkpoint(v=other).write(tmp_path / "c")
    variable = remote()
    before = stored(variable)
    store_of(variable).down = "export"
    with pytest.raises(ConnectionError):
        tf.train.Checkpoint(v=variable).read(path)
    store_of(variable).down = None
    assert stored(variable) == before
    tf.train.Checkpoint(v=variable).read(path)
    assert content(variable) == content(other)


@pytest.mark.parametrize("method", ["assign", "export"])
@pytest.mark.parametrize("store", [Remote, FailsOnce])
def test_a_first_step_that_fails_changes_nothing(store: type[Remote], method: str) -> None:
    variable, twin = remote(store), remote()
    optimizer = keras.optimizers.Adam()
    before = stored(variable)
    store_of(variable).down = method
    with pytest.raises((ConnectionError, RuntimeError), match="the server is gone"):
        step(variable, optimizer, [1])
    store_of(variable).down = None
    assert stored(variable) == before
    step(variable, optimizer, [1, 5])
    step(twin, keras.optimizers.Adam(), [1, 5])
    assert stored(variable) == stored(twin)


@pytest.mark.parametrize("method", ["assign", "export"])
def test_what_is_saved_after_a_failed_step_has_the_rule_of_its_slots(method: str) -> None:
    variable = remote()
    step(variable, keras.optimizers.Adam(), [1, 2])
    before = saved(variable)
    store_of(variable).down = method
    with pytest.raises((ConnectionError, RuntimeError), match="the server is gone"):
        step(variable, keras.optimizers.Ftrl(), [1])
    store_of(variable).down = None
    after = saved(variable)
    assert [rule["kind"] for rule in after["rule"]] == ["adam"]
    assert_same(after, before)
    for restored in (in_engine(), remote()):
        restored.restore(variable.content())
        assert_same(saved(restored), before)


@pytest.mark.parametrize("partition", [0, 1, 2])
@pytest.mark.parametrize("trained", [False, True])
def test_partitions_are_saved_although_a_step_reached_some_of_them_only(
    trained: bool, partition: int
) -> None:
    devices = ["/CPU:0"] * 3
    variable, twin = remote(devices=devices), remote(devices=devices)
    if trained:
        step(variable, keras.optimizers.Adam(), [1, 2, 3])
        step(twin, keras.optimizers.Adam(), [1, 2, 3])
    store_of(variable, partition).down = "export"
    with pytest.raises(ConnectionError):
        step(variable, keras.optimizers.Adagrad(learning_rate=0.0), [1, 2, 3])
    store_of(variable, partition).down = None
    mixed = saved(variable)
    if partition > 0:  # Otherwise the step reached no partition.
        step(twin, keras.optimizers.Adagrad(learning_rate=0.0), [])
        reached = mixed["slots"] != saved(twin)["slots"]  # Squares of the gradients.
        assert np.any(reached, 1).tolist() == [
            key in (1, 2, 3) and key % 3 < partition for key in mixed["keys"]
        ]
        assert [rule["kind"] for rule in mixed["rule"]] == ["adagrad"]
        np.testing.assert_array_equal(mixed["values"], saved(twin)["values"])
    else:
        assert_same(mixed, saved(twin))
    restored = in_engine()
    restored.restore(variable.content())
    assert_same(saved(restored), {name: mixed[name] for name in ("keys", "values", "slots")})


def in_table(spec: tfra.TableSpec, name: str) -> tfra.Store:
    return tfra.TableStore(tfra.Table.from_spec(spec))


@pytest.mark.parametrize("make", [DictStore, in_table])
def test_what_is_read_while_rows_get_other_slots_is_of_one_rule(make: Any) -> None:
    variable = de.Variable(dim=2, kv_creator=de.StoreCreator(make))
    keys = tf.range(3000, dtype=tf.int64)
    values = tf.ones([3000, 2])
    variable.upsert(keys, values)
    elements = {"none": 0, "adam": 4, "adagrad": 2, "sgd": 0}
    stop = threading.Event()
    errors: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                rows, exists = variable.lookup(keys, return_exists=True)
                assert exists.numpy().all()
                np.testing.assert_array_equal(rows, values)
                found = variable.content()
                [kind] = [json.loads(text)["rule"]["kind"] for text in found["rule"].numpy()]
                assert found["slots"].shape == (3000, elements[kind])
        except BaseException as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(8):
        for optimizer in (keras.optimizers.Adam(0.0), keras.optimizers.Adagrad(0.0)):
            step(variable, optimizer, [1])
    stop.set()
    reader.join()
    assert not errors, errors[0]
