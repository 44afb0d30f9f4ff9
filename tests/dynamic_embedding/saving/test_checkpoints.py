"""Saving and restoring: tf.train.Checkpoint, CheckpointManager and tf.compat.v1.train.Saver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_support
from programs import measure_program
from programs.common import DIM, MB, as_content, content, cpu_devices, de, ids, numbered_rows, rows
from tf_support import TfCase

v1 = tf.compat.v1

CASES = [TfCase("int64", value) for value in tf_support.VALUE_DTYPES]
CASES += [TfCase("string", value) for value in ("float32", "float16", "int64", "string")]
CASES += [TfCase("int32", "float32")]
REPARTITIONS = [(1, 3), (3, 2), (3, 1), (3, 3)]


def by_tens(keys: tf.Tensor, partitions: int) -> tf.Tensor:
    """A partitioner that is not the default."""
    return tf.cast(keys // 10 % partitions, tf.int32)


def make(partitions: int = 1, **options: Any) -> Any:
    return de.Variable(
        **{"dim": DIM, "name": "table", "devices": cpu_devices(partitions), **options}
    )


def filled(partitions: int = 1, **options: Any) -> Any:
    """A Variable that holds 0 to 99, each in a row of its own number."""
    variable = make(partitions, **options)
    variable.upsert(tf.range(100, dtype=tf.int64), numbered_rows(range(100)))
    return variable


FILLED = {key: float(key) for key in range(100)}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "saved")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_type_comes_back(case: TfCase, devices: list[str] | None, path: str) -> None:
    saved = case.variable(devices=devices, name="table")
    saved.upsert(case.keys(range(50)), case.values(50))
    saved.upsert(case.extreme_keys(), case.values(len(case.extreme_keys()), seed=1))
    tf.train.Checkpoint(table=saved).write(path)
    restored = case.variable(devices=devices, name="table")
    tf.train.Checkpoint(table=restored).read(path).assert_consumed()
    assert tf_support.content(restored) == tf_support.content(saved)
    assert int(restored.size()) >= 50


@pytest.mark.parametrize("kind", tf_support.KINDS)
def test_tables_come_back(kind: str, path: str) -> None:
    case = TfCase("string", "float64")
    saved, restored = case.table(kind, name="table"), case.table(kind, name="table")
    saved.insert(case.keys(range(50)), case.values(50))
    restored.insert(case.keys(range(40, 60)), case.values(20, seed=1))
    tf.train.Checkpoint(table=saved).write(path)
    tf.train.Checkpoint(table=restored).read(path).assert_consumed()
    assert tf_support.content(restored) == tf_support.content(saved)


def test_save_and_restore_with_other_objects(devices: list[str] | None, path: str) -> None:
    def model() -> tf.Module:
        module = tf.Module()
        module.layers = [make(devices=devices), {"second": make(devices=devices)}]
        module.dense = tf.Variable(1.0)
        return module

    saved, restored = model(), model()
    saved.layers[0].upsert(ids(1), rows(1, 1.0))
    saved.layers[1]["second"].upsert(ids(2), rows(1, 2.0))
    saved.dense.assign(3.0)
    saved_path = tf.train.Checkpoint(model=saved).save(path)
    tf.train.Checkpoint(model=restored).restore(saved_path).assert_consumed()
    assert content(restored.layers[0]) == {1: 1.0}
    assert content(restored.layers[1]["second"]) == {2: 2.0}
    assert float(restored.dense) == 3.0


def test_restoring_replaces_what_was_there(devices: list[str] | None, path: str) -> None:
    variable = filled(devices=devices)
    checkpoint = tf.train.Checkpoint(table=variable)
    checkpoint.write(path)
    variable.upsert(ids(5, 1000), rows(2, -1.0))
    variable.remove(ids(6, 7))
    checkpoint.read(path).assert_consumed()
    assert content(variable) == FILLED


def test_restoring_an_empty_table_empties(devices: list[str] | None, path: str) -> None:
    tf.train.Checkpoint(table=make(devices=devices)).write(path)
    variable = filled(devices=devices)
    tf.train.Checkpoint(table=variable).read(path).assert_consumed()
    assert content(variable) == {}
    variable.upsert(ids(1), rows(1, 1.0))
    assert content(variable) == {1: 1.0}


@pytest.mark.parametrize("before, after", REPARTITIONS)
def test_restoration_waits_for_the_variable(before: int, after: int, path: str) -> None:
    tf.train.Checkpoint(model=tf.train.Checkpoint(table=filled(before))).write(path)
    root = tf.train.Checkpoint()
    status = root.read(path)
    with pytest.raises(AssertionError):
        status.assert_consumed()
    root.model = tf.train.Checkpoint()
    root.model.table = make(after)
    status.assert_consumed()
    assert content(root.model.table) == FILLED


def test_a_variable_that_was_not_saved_is_noticed(path: str) -> None:
    tf.train.Checkpoint(table=filled()).write(path)
    other = filled()
    status = tf.train.Checkpoint(other=other).read(path)
    with pytest.raises(AssertionError):
        status.assert_existing_objects_matched()
    status.expect_partial()
    assert content(other) == FILLED


@pytest.mark.parametrize("before, after", REPARTITIONS)
@pytest.mark.parametrize("partitioner", [None, by_tens], ids=["default", "by tens"])
def test_another_number_of_partitions(before: int, after: int, partitioner: Any, path: str) -> None:
    options = {} if partitioner is None else {"partitioner": partitioner}
    tf.train.Checkpoint(table=filled(before, **options)).write(path)
    variable = make(after, **options)
    variable.upsert(ids(7, 1000, 1001, 1002), rows(4, -1.0))
    tf.train.Checkpoint(table=variable).read(path).assert_consumed()
    assert content(variable) == FILLED
    np.testing.assert_array_equal(variable.lookup(range(100)), numbered_rows(range(100)))
    if partitioner is None:
        partitioner = lambda keys, partitions: keys % partitions  # noqa: E731
    partition_of = partitioner(tf.range(100, dtype=tf.int64), after).numpy()
    assert len(variable.tables) == after
    for partition, table in enumerate(variable.tables):
        keys = np.flatnonzero(partition_of == partition).tolist()
        assert sorted(table.export()[0].numpy().tolist()) == keys
        assert int(variable.size(partition)) == len(keys)


@pytest.mark.parametrize("before, after", REPARTITIONS)
def test_string_keys_in_another_number_of_partitions(before: int, after: int, path: str) -> None:
    case = TfCase("string", "int64")
    saved = case.variable(devices=cpu_devices(before), name="table")
    saved.upsert(case.keys(range(100)), case.values(100))
    tf.train.Checkpoint(table=saved).write(path)
    restored = case.variable(devices=cpu_devices(after), name="table")
    tf.train.Checkpoint(table=restored).read(path).assert_consumed()
    found, exists = restored.lookup(case.keys(range(100)), return_exists=True)
    assert exists.numpy().all()
    np.testing.assert_array_equal(found, case.values(100))
    assert sum(int(restored.size(partition)) for partition in range(after)) == 100


def test_a_checkpoint_can_leave_a_variable_out(path: str) -> None:
    def both() -> tf.train.Checkpoint:
        return tf.train.Checkpoint(kept=make(), left_out=make(checkpoint=False, name="left_out"))

    saved, restored = both(), both()
    for variable in (saved.kept, saved.left_out):
        variable.upsert(ids(123), rows(1, 5.0))
    saved.write(path)
    restored.read(path).expect_partial()
    assert content(restored.kept) == {123: 5.0}
    assert content(restored.left_out) == {}
    tf.train.Checkpoint(left_out=saved.left_out).write(path + "_of_nothing")
    stored = [name for name, _ in tf.train.list_variables(path + "_of_nothing")]
    assert [name for name in stored if "left_out" in name] == []


def test_the_manager_keeps_the_latest(devices: list[str] | None, tmp_path: Path) -> None:
    variable, step = make(devices=devices), tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(table=variable, step=step)
    manager = tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=2)
    assert manager.restore_or_initialize() is None
    for number in range(1, 4):
        variable.upsert(ids(number), rows(1, number))
        step.assign_add(1)
        manager.save(number)
    assert len(manager.checkpoints) == 2
    variable.clear()
    checkpoint.restore(manager.checkpoints[0]).assert_consumed()
    assert content(variable) == {1: 1.0, 2: 2.0}
    assert manager.restore_or_initialize() == manager.latest_checkpoint
    assert content(variable) == {1: 1.0, 2: 2.0, 3: 3.0}
    assert int(step) == 3


def saver_program(partitions: int) -> tuple[Any, Any, v1.train.Saver]:
    """Two tables, one that is left out and a dense variable in the default graph."""
    with v1.variable_scope("scope", reuse=v1.AUTO_REUSE):
        tables = [
            de.get_variable("users", dim=DIM, devices=cpu_devices(partitions)),
            de.get_variable("items", dim=DIM, devices=cpu_devices(partitions)),
            de.get_variable("left_out", dim=DIM, checkpoint=False),
        ]
        dense = v1.get_variable("dense", [], initializer=v1.zeros_initializer())
    return tables, dense, v1.train.Saver()


@pytest.mark.parametrize("before, after", REPARTITIONS)
def test_the_saver_restores_in_a_new_graph(before: int, after: int, path: str) -> None:
    keys = tf.range(100, dtype=tf.int64).numpy()
    with tf.Graph().as_default(), v1.Session() as session:
        tables, dense, saver = saver_program(before)
        writes = [
            table.upsert(keys + number, numbered_rows(keys)) for number, table in enumerate(tables)
        ]
        session.run([*writes, dense.assign(4.0)])
        saved_path = saver.save(session, path)
    with tf.Graph().as_default(), v1.Session() as session:
        tables, dense, saver = saver_program(after)
        # A table that has rows already, and one that does not exist yet.
        session.run(tables[0].upsert(ids(7, 1000), rows(2, -1.0)))
        saver.restore(session, saved_path)
        found = [as_content(*session.run(table.export())) for table in tables]
        assert found == [FILLED, {key + 1: float(key) for key in range(100)}, {}]
        assert session.run(dense) == 4.0
        for partition in range(after):
            stored = session.run(tables[0].tables[partition].export())[0]
            assert sorted(stored) == [key for key in range(100) if key % after == partition]


@pytest.mark.parametrize("kind", tf_support.KINDS)
def test_the_saver_needs_no_other_variable(kind: str, path: str) -> None:
    for is_first in (True, False):
        with tf.Graph().as_default(), v1.Session() as session:
            table = getattr(de, kind)(tf.string, tf.int64, [0, 0], name="table")
            saver = v1.train.Saver()
            if is_first:
                session.run(table.insert(["a", "b"], tf.constant([[1, 2], [3, 4]], tf.int64)))
                saver.save(session, path)
            else:
                saver.restore(session, path)
                found = session.run(table.lookup(tf.constant(["b", "a", "c"])))
                assert found.tolist() == [[3, 4], [1, 2], [0, 0]]


def test_a_meta_graph_brings_its_table(path: str) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        variable = make()
        keys = v1.placeholder(tf.int64, [None], name="keys")
        tf.identity(variable.lookup(keys), name="found")
        session.run(variable.upsert(ids(1), rows(1, 5.0)))
        v1.train.Saver().save(session, path)
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.import_meta_graph(path + ".meta").restore(session, path)
        found = session.run("found:0", {"keys:0": [1, 2]})
    assert found.tolist() == [[5.0] * DIM, [0.0] * DIM]


def test_a_monitored_session_goes_on_where_it_was(tmp_path: Path) -> None:
    for last_step in (3, 5):
        with tf.Graph().as_default():
            variable = make(3)
            step = v1.train.get_or_create_global_step()
            with tf.control_dependencies([variable.upsert(step[None], rows(1, 2.0))]):
                train = v1.assign_add(step, 1)
            exported = variable.export()
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path),
                hooks=[v1.train.StopAtStepHook(last_step=last_step)],
                save_checkpoint_steps=1,
                save_summaries_steps=0,
                log_step_count_steps=0,
            ) as session:
                found = as_content(*session.run(exported))
                while not session.should_stop():
                    session.run(train)
    assert found == dict.fromkeys(range(3), 2.0)


@pytest.mark.parametrize("before, after", [(1, 1), (3, 2)])
def test_saving_and_restoring_take_one_copy(before: int, after: int, path: str) -> None:
    count = 2_000_000
    saved = measure_program("checkpoint_memory", "save", path, count, before)
    restored = measure_program("checkpoint_memory", "restore", path, count, after)
    replaced = measure_program("checkpoint_memory", "replace", path, count, after)
    in_place = measure_program("checkpoint_memory", "replace_in_place", path, count, after)
    assert saved["table"] > count * (8 + 16 * 4)
    copy = 1.15 * saved["table"] + 16 * MB
    assert saved["peak"] < copy
    assert restored["peak"] < restored["table"] + copy
    assert replaced["peak"] < 2 * copy  # The tensors of the checkpoint, and the new table.
    assert in_place["peak"] < copy
    assert max(restored["table"], replaced["table"], in_place["table"]) < copy


@pytest.mark.parametrize("partitions", [1, 3])
def test_an_asynchronous_checkpoint_is_of_one_moment(partitions: int, path: str) -> None:
    variable, count = make(partitions), tf.Variable(0)
    table = de.CuckooHashTable(tf.int64, tf.float32, [0.0] * DIM, name="alone")
    checkpoint = tf.train.Checkpoint(variable=variable, table=table, count=count)
    in_background = tf.train.CheckpointOptions(enable_async=True)
    for number in range(3):
        saved = checkpoint.save(path, in_background)
        keys = tf.range(100 * number, 100 * (number + 1), dtype=tf.int64)
        variable.upsert(keys, numbered_rows(keys))
        table.insert(keys, numbered_rows(keys))
        count.assign_add(1)
        checkpoint.sync()

        read, read_count = make(2), tf.Variable(-1)
        read_table = de.CuckooHashTable(tf.int64, tf.float32, [0.0] * DIM, name="alone")
        parts = {"variable": read, "table": read_table, "count": read_count}
        tf.train.Checkpoint(**parts).restore(saved).assert_existing_objects_matched()
        assert int(read_count) == number
        expected = {key: float(key) for key in range(100 * number)}
        assert content(read) == content(read_table) == expected


def test_rows_of_several_tables_are_restored_in_the_order_of_hashes() -> None:
    """Restored rows are in the order of an export, which must not look like an attack."""
    saved = de.get_variable("in_order", dim=2, devices=["/CPU:0"] * 3)
    keys = tf.range(200_000, dtype=tf.int64)
    saved.upsert(keys, tf.ones([200_000, 2]))
    content = saved.content()
    restored = de.get_variable("in_order_again", dim=2, devices=["/CPU:0"] * 2)
    restored.restore(content)
    assert int(restored.size()) == 200_000
    assert [table.stats().reseeds for table in restored.tables] == [0, 0]
