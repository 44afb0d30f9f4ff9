"""Keys, rows and tables that must not be lost, wrapped around or mixed up."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfra

de = tfra.dynamic_embedding
v1 = tf.compat.v1


def filled(keys: int = 9, **arguments: Any) -> Any:
    variable = de.Variable(**arguments)
    variable.upsert(tf.range(keys, dtype=tf.int64), tf.ones([keys, variable.dim]))
    return variable


def saved(variable: Any, folder: Path) -> str:
    return tf.train.Checkpoint(v=variable).write(str(folder / "saved"))


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_restore_that_fails_changes_nothing(partitions: int, tmp_path: Path) -> None:
    path = saved(filled(dim=4), tmp_path)
    other = filled(5, dim=8, devices=["/CPU:0"] * partitions)
    with pytest.raises(ValueError, match=r"rows of length 8\. Received: .* length 4"):
        tf.train.Checkpoint(v=other).read(path)
    assert int(other.size()) == 5


def test_a_restore_to_a_table_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    def by_three(keys: tf.Tensor, shard_num: int) -> tf.Tensor:
        return tf.cast(keys % 3, tf.int32)

    path = saved(filled(dim=2, devices=["/CPU:0"] * 3, partitioner=by_three), tmp_path)
    fewer = de.Variable(dim=2, devices=["/CPU:0"] * 2, partitioner=by_three)
    with pytest.raises(tf.errors.InvalidArgumentError, match="received 2"):
        tf.train.Checkpoint(v=fewer).read(path)


@pytest.mark.parametrize(
    "key_dtype, keys",
    [(tf.int32, np.array([2**32 + 5])), (tf.int64, np.array([2**63 + 5], np.uint64))],
    ids=["int32", "int64"],
)
def test_keys_do_not_wrap_around(key_dtype: tf.DType, keys: np.ndarray) -> None:
    variable = de.Variable(key_dtype=key_dtype)
    with pytest.raises(TypeError, match=r"expected.*received"):
        variable.upsert(keys, [[1.0]])
    assert int(variable.size()) == 0


@pytest.mark.parametrize("value", [np.array(300), np.float64(1.7)], ids=str)
def test_values_do_not_wrap_around(value: Any) -> None:
    table = de.CuckooHashTable(tf.int64, tf.int8, 0)
    with pytest.raises(TypeError, match=r"expected.*received"):
        table.insert(1, value)
    assert int(table.size()) == 0


@pytest.mark.parametrize(
    "dtype, value",
    [(tf.int8, 300), (tf.int32, 1.7), (tf.float32, None), (tf.string, -1), (tf.int64, "a")],
    ids=str,
)
def test_default_values_are_what_was_given(dtype: tf.DType, value: Any) -> None:
    with pytest.raises(TypeError, match=r"expected.*received"):
        de.CuckooHashTable(tf.int64, dtype, value)


def test_lists_of_tensors_are_keys_in_a_function() -> None:
    variable = filled(dim=1)

    @tf.function
    def lookup(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return variable.lookup([a, b])

    rows = lookup(tf.constant(3, tf.int64), tf.constant(99, tf.int64))
    assert rows.numpy().tolist() == [[1.0], [0.0]]


def test_one_default_row_of_unknown_rank() -> None:
    table = de.CuckooHashTable(tf.int64, tf.float32, [0.0, 0.0])

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def lookup(row: tf.Tensor) -> tf.Tensor:
        return table.lookup([1, 2, 3], dynamic_default_values=row)

    assert lookup([4.0, 5.0]).numpy().tolist() == [[4.0, 5.0]] * 3
    assert lookup([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]).numpy()[:, 0].tolist() == [1.0, 2.0, 3.0]


def test_variables_without_names_start_differently() -> None:
    initializer = tf.keras.initializers.RandomNormal()
    one, other = (de.Variable(dim=4, initializer=initializer) for _ in range(2))
    assert not np.array_equal(one.lookup([1]), other.lookup([1]))


def test_threads_get_one_variable() -> None:
    found: list[Any] = []
    barrier = threading.Barrier(8)

    def get() -> None:
        barrier.wait()
        found.append(de.get_variable("test_threads_get_one_variable", dim=2))

    threads = [threading.Thread(target=get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({id(variable) for variable in found}) == 1


@pytest.mark.parametrize("what", ["initializer", "kv_creator", "init_size"])
def test_a_name_keeps_its_parameters(what: str) -> None:
    others = {"initializer": 5.0, "kv_creator": de.HkvHashTableCreator(), "init_size": 100}
    name = f"test_a_name_keeps_its_parameters_{what}"
    first = de.get_variable(name, initializer=1.0)
    assert de.get_variable(name, initializer=1.0) is first
    with pytest.raises(ValueError, match=what):
        de.get_variable(name, **{"initializer": 1.0, what: others[what]})


def test_datasets_in_graphs_need_no_initializer() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        variable = de.Variable(dim=1, initializer=7.0)
        dataset = tf.data.Dataset.range(3).map(variable.lookup)
        iterator = v1.data.make_initializable_iterator(dataset)
        row = iterator.get_next()
        session.run(iterator.initializer)
        assert session.run(row).tolist() == [7.0]


def test_an_imported_graph_has_no_variables_to_get(tmp_path: Path) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        de.get_variable("imported", dim=2)
        v1.train.Saver().save(session, str(tmp_path / "saved"))
    with tf.Graph().as_default():
        v1.train.import_meta_graph(str(tmp_path / "saved.meta"))
        assert de.get_variable("other", dim=2).name == "other"


def test_a_table_that_could_not_be_made_leaves_nothing() -> None:
    def size_of(dim: int) -> tf.Tensor:
        return de.Variable(dim=dim, name="w").size()

    def live_tables() -> int:
        return int(tfra.dynamic_embedding._platform.tf.ops.tfra_table_count())

    before = live_tables()
    server = tf.distribute.Server.create_local_server()
    with tf.Graph().as_default(), v1.Session(server.target) as session:
        session.run(size_of(2))
    with tf.Graph().as_default(), v1.Session(server.target) as session:
        size = size_of(3)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"dim 3.*dim 2"):
            session.run(size)
    assert live_tables() == before + 1
    v1.Session.reset(server.target)
    assert live_tables() == before
