"""When the memory of tables comes back: python lifetime.py SCENARIO ROWS

Prints the bytes that the process had grown by at each moment the scenario names.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from common import batches, check, cpu_devices, de, fill, memory

v1 = tf.compat.v1
DIM = 16


def make(name: str = "table", partitions: int = 1) -> de.Variable:
    return de.Variable(dim=DIM, name=name, devices=cpu_devices(partitions))


def dropped_variable(count: int, grown: Callable[[str], None], partitions: int = 1) -> None:
    variable = make(partitions=partitions)
    fill(variable, count)
    grown("full")
    del variable
    grown("dropped")


def dropped_partitions(count: int, grown: Callable[[str], None]) -> None:
    dropped_variable(count, grown, partitions=3)


def dropped_table(count: int, grown: Callable[[str], None]) -> None:
    table = de.CuckooHashTable(tf.int64, tf.float32, np.zeros(DIM, np.float32), name="cuckoo")
    for keys, numbers in batches(count):
        table.insert(keys, np.repeat(numbers[:, None], DIM, 1))
    grown("full")
    del table
    grown("dropped")


def captured_by_function(count: int, grown: Callable[[str], None]) -> None:
    variable = make()
    fill(variable, count)

    @tf.function
    def lookup(keys: tf.Tensor) -> tf.Tensor:
        return variable.lookup(keys)  # noqa: F821

    keys, numbers = next(batches(1000))
    keys = tf.constant(keys)
    lookup(keys)
    # This empties the closure too: what was traced holds the table by its handle alone.
    del variable
    grown("full")
    assert (lookup(keys).numpy() == numbers[:, None]).all()
    del lookup
    grown("dropped")


def captured_by_dataset(count: int, grown: Callable[[str], None]) -> None:
    variable = make()
    fill(variable, count)
    keys, numbers = next(batches(1000))
    dataset = tf.data.Dataset.from_tensor_slices(keys).batch(100).map(variable.lookup)
    del variable
    grown("full")
    found = np.concatenate([values.numpy() for values in dataset])
    assert (found == numbers[:, None]).all()
    del dataset
    grown("dropped")


def closed_session(count: int, grown: Callable[[str], None]) -> None:
    with tf.Graph().as_default():
        variable = make()
        keys = v1.placeholder(tf.int64, [None])
        values = v1.placeholder(tf.float32, [None, DIM])
        upsert, size = variable.upsert(keys, values), variable.size()
        session = v1.Session()
    for some, numbers in batches(count):
        session.run(upsert, {keys: some, values: np.repeat(numbers[:, None], DIM, 1)})
    assert session.run(size) == count
    grown("full")
    session.close()
    # The graph and the variable are still there, the Session's table is not.
    grown("dropped")
    with v1.Session(graph=keys.graph) as session:
        assert session.run(size) == 0


def dropped_saved_model(count: int, grown: Callable[[str], None]) -> None:
    module = tf.Module()
    module.table = make()
    fill(module.table, count)
    signature = [tf.TensorSpec([None], tf.int64)]
    module.lookup = tf.function(module.table.lookup, input_signature=signature)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        del module
        grown("saved and dropped")
        loaded = tf.saved_model.load(folder)
    keys, numbers = next(batches(1000))
    assert (loaded.lookup(keys).numpy() == numbers[:, None]).all()
    grown("full")
    del loaded
    grown("dropped")


def many_variables(count: int, grown: Callable[[str], None], times: int = 30) -> None:
    for _ in range(times):
        variable = make()
        fill(variable, count // times)
        check(variable, count // times)
    del variable
    grown("dropped")


def many_sessions(count: int, grown: Callable[[str], None], times: int = 30) -> None:
    for _ in range(times):
        with tf.Graph().as_default(), v1.Session() as session:
            variable = make()
            keys = v1.placeholder(tf.int64, [None])
            upsert, size = variable.upsert(keys, tf.ones([tf.size(keys), DIM])), variable.size()
            for some, _ in batches(count // times):
                session.run(upsert, {keys: some})
            assert session.run(size) == count // times
    del variable, session, keys, upsert, size
    grown("dropped")


def many_saved_models(count: int, grown: Callable[[str], None], times: int = 6) -> None:
    module = tf.Module()
    module.table = make()
    fill(module.table, count // times)
    signature = [tf.TensorSpec([None], tf.int64)]
    module.lookup = tf.function(module.table.lookup, input_signature=signature)
    keys, numbers = next(batches(1000))
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        tf.saved_model.save(module, first)
        del module
        for _ in range(times):
            loaded = tf.saved_model.load(first)
            lookup = loaded.lookup
            tf.saved_model.save(loaded, second)
            del loaded
            # A function of the model holds the table, the loaded object is not needed.
            gc.collect()
            assert (lookup(keys).numpy() == numbers[:, None]).all()
            del lookup
            loaded = tf.saved_model.load(first)
            del loaded  # Before it was used, and before anything was collected.
    grown("dropped")


def main() -> None:
    scenario, count = globals()[sys.argv[1]], int(sys.argv[2])
    # Threads, buffers and code are there before anything is measured.
    scenario(max(count // 20, 2000), lambda _: None)
    before, moments = memory(), {}

    def grown(moment: str) -> None:
        moments[moment] = memory() - before

    scenario(count, grown)
    print(json.dumps(moments))


if __name__ == "__main__":
    main()
