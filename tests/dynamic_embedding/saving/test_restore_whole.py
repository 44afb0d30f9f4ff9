"""Restores are all or nothing: one that fails leaves the tables as they were."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layers_support import layers
from programs.common import DIM, content, cpu_devices, de, numbered_rows

v1 = tf.compat.v1


def variable(first: int, n: int, partitions: int = 1, **options: Any) -> Any:
    """A Variable with keys from `first` on, each in a row of its own number."""
    made = de.Variable(**{"dim": DIM, "devices": cpu_devices(partitions), "name": "t", **options})
    made.upsert(tf.range(first, first + n, dtype=tf.int64), numbered_rows(range(first, first + n)))
    return made


def expected(first: int, n: int) -> dict[int, float]:
    return {key: float(key) for key in range(first, first + n)}


def run(code: str, *arguments: str) -> None:
    """Runs a program in a process of its own, which has to print "whole"."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr[-4000:]


# Tables that keep most rows in a file, on two devices. The first partition gets few keys.
TIERED = """
    import resource, sys
    import numpy as np
    import tensorflow as tf
    import tfra

    de = tfra.dynamic_embedding
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

    def make(name, devices):
        config = de.HkvHashTableConfig(
            init_capacity=0, max_hbm_for_values=50_000, tier_directory=sys.argv[1]
        )
        return de.Variable(
            dim=64, name=name, devices=devices, kv_creator=de.HkvHashTableCreator(config),
            partitioner=lambda keys, n: tf.cast(tf.not_equal(keys % 50, 0), tf.int32),
        )

    def fill(variable, n, number):
        for start in range(0, n, 1000):
            keys = tf.range(start, start + 1000, dtype=tf.int64)
            variable.upsert(keys, tf.fill([1000, 64], number))

    def check(variable, n, number):
        keys, rows = variable.export()
        assert sorted(keys.numpy()) == list(range(n)), (keys.shape, n)
        assert (rows.numpy() == number).all(), number
"""


@pytest.mark.parametrize("devices", ["/CPU:0 /CPU:0", "/CPU:0 /CPU:1"])
def test_a_full_disk_changes_no_partition(devices: str, tmp_path: Path) -> None:
    code = (
        TIERED
        + """
    devices = sys.argv[2].split()
    large, small = make("t", devices), make("t", devices)
    fill(large, 20_000, 1.0)
    fill(small, 2000, 2.0)
    path = tf.train.Checkpoint(table=large).write(sys.argv[1] + "/saved")
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, most[1]))
    for _ in range(2):
        try:
            tf.train.Checkpoint(table=small).read(path)
        except tf.errors.ResourceExhaustedError as error:
            assert sys.argv[1] in str(error), error
        else:
            raise AssertionError("expected an error")
        check(small, 2000, 2.0)
    small.upsert(tf.range(2000, 2100, dtype=tf.int64), tf.fill([100, 64], 2.0))
    check(small, 2100, 2.0)
    resource.setrlimit(resource.RLIMIT_FSIZE, most)
    tf.train.Checkpoint(table=small).read(path)
    check(small, 20_000, 1.0)
    print("whole")
    """
    )
    run(code, str(tmp_path), devices)


def test_a_full_disk_in_a_graph(tmp_path: Path) -> None:
    code = (
        TIERED
        + """
    devices = ["/CPU:0", "/CPU:1"]
    v1 = tf.compat.v1
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    with tf.Graph().as_default(), v1.Session() as session:
        variable = make("t", devices)
        number = v1.placeholder(tf.float32, [])
        keys = v1.placeholder(tf.int64, [None])
        upsert = variable.upsert(keys, tf.fill([tf.size(keys), 64], number))
        clear, export = variable.clear(), variable.export()
        saver = v1.train.Saver()
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        session.run(upsert, {keys: range(20_000), number: 1.0})
        path = saver.save(session, sys.argv[1] + "/saved")
        session.run(clear)
        session.run(upsert, {keys: range(2000), number: 2.0})
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, most[1]))
        for _ in range(2):
            try:
                saver.restore(session, path)
            except tf.errors.ResourceExhaustedError:
                found, rows = session.run(export)
                assert sorted(found) == list(range(2000))
                assert (rows == 2.0).all()
            else:
                raise AssertionError("expected an error")
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
        saver.restore(session, path)
        found, rows = session.run(export)
        assert sorted(found) == list(range(20_000))
        assert (rows == 1.0).all()
    print("whole")
    """
    )
    run(code, str(tmp_path))


def test_no_memory_for_two_contents(tmp_path: Path) -> None:
    """The call says so before it starts, and names the other way."""
    code = """
    import resource, sys
    import numpy as np
    import tensorflow as tf
    import tfra

    de = tfra.dynamic_embedding
    variable = de.Variable(dim=64, name="t")
    keys = tf.range(400_000, dtype=tf.int64)  # About 110 MB of rows.
    variable.upsert(keys, tf.ones([400_000, 64]))
    checkpoint = tf.train.Checkpoint(table=variable)
    path = checkpoint.write(sys.argv[1] + "/saved")
    checkpoint.read(path)  # Starts the threads, whose stacks take addresses.
    variable.upsert(keys, tf.fill([400_000, 64], 2.0))

    def limit(more):
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + more, resource.RLIM_INFINITY))

    for more in range(100, 400, 20):
        limit(more << 20)
        try:
            checkpoint.read(path)
        except tf.errors.ResourceExhaustedError as error:
            message = str(error)
            assert float(tf.reduce_sum(variable.lookup(keys[:1000]))) == 2.0 * 64 * 1000
            if "restore_in_place" in message:
                break  # Otherwise there was no memory for the tensors of the checkpoint.
    assert "MiB of free memory" in message and "Nothing has changed" in message, message
    with de.restore_in_place():
        checkpoint.read(path)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    assert (variable.lookup(keys).numpy() == 1.0).all()
    variable.clear()
    checkpoint.read(path)
    assert (variable.lookup(keys).numpy() == 1.0).all()
    print("whole")
    """
    run(code, str(tmp_path))


@pytest.mark.parametrize("partitions", [1, 3])
def test_restoring_in_place(partitions: int, tmp_path: Path) -> None:
    saved, restored = variable(0, 100, partitions), variable(50, 100, partitions)
    path = tf.train.Checkpoint(table=saved).write(str(tmp_path / "saved"))
    with de.restore_in_place():
        tf.train.Checkpoint(table=restored).read(path).assert_consumed()
    assert content(restored) == expected(0, 100)
    with pytest.raises(KeyError), de.restore_in_place():
        raise KeyError
    tf.train.Checkpoint(table=restored).read(path).assert_consumed()
    assert content(restored) == expected(0, 100)


@pytest.mark.parametrize("in_place", [False, True])
def test_the_way_of_a_saver_is_chosen_where_it_is_made(in_place: bool, tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph, v1.Session() as session:
        made = de.Variable(dim=1, name="t")
        upsert = made.upsert([7], [[1.0]])
        if in_place:
            with de.restore_in_place():
                saver = v1.train.Saver()
        else:
            saver = v1.train.Saver()
        session.run([v1.global_variables_initializer(), v1.tables_initializer(), upsert])
        path = saver.save(session, str(tmp_path / "saved"))
        session.run(made.clear())
        saver.restore(session, path)
        assert session.run(made.lookup([7])) == [[1.0]]
        commits = [op for op in graph.get_operations() if op.type == "TfraCommitRestore"]
        assert bool(commits) == (not in_place)


def test_calls_see_one_content_or_the_other(tmp_path: Path) -> None:
    """While a table is restored again and again, each lookup finds all of one content."""
    keys = tf.range(200, dtype=tf.int64)
    paths = []
    for number in (1.0, 2.0):
        saved = de.Variable(dim=DIM, name="t")
        saved.upsert(keys, tf.fill([200, DIM], number))
        paths.append(tf.train.Checkpoint(table=saved).write(str(tmp_path / str(number))))
    table = de.Variable(dim=DIM, name="t")
    table.upsert(keys, tf.ones([200, DIM]))
    mixed: list[Any] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            rows = table.lookup(keys).numpy()
            if len(np.unique(rows)) != 1 or rows[0, 0] == 0:
                mixed.append(rows)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for i in range(30):
            tf.train.Checkpoint(table=table).read(paths[i % 2])
    finally:
        stop.set()
        watcher.join()
    assert not mixed


def test_restores_of_several_threads_take_turns(tmp_path: Path) -> None:
    paths = [
        tf.train.Checkpoint(table=variable(first, 200)).write(str(tmp_path / str(first)))
        for first in (0, 1000)
    ]
    table = variable(5000, 10, partitions=3)
    failures: list[Exception] = []

    def restore(path: str) -> None:
        try:
            for _ in range(10):
                tf.train.Checkpoint(table=table).read(path)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=restore, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert content(table) in (expected(0, 200), expected(1000, 200))


def test_an_interrupted_restore_is_whole() -> None:
    """Ctrl-C right after each step of a restore into tables of several devices, with sums."""
    code = """
    import numpy as np
    import tensorflow as tf
    import tfra

    de = tfra.dynamic_embedding
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    ops = tfra.dynamic_embedding._platform.tf.ops
    keys = tf.range(100, dtype=tf.int64)

    def make(number):
        made = de.Variable(dim=2, name="t", devices=["/CPU:0", "/CPU:1"])
        made.upsert(keys, tf.fill([100, 2], number))
        made.gradient_sums.add(keys[:1], tf.fill([1, 2], number))
        return made

    contents = [make(number).content() for number in (1.0, 2.0)]
    table = make(1.0)
    right = {name: getattr(ops, name) for name in ("tfra_restore", "tfra_commit_restore")}
    calls, stop = 0, 0

    def interrupted(op):
        def call(*arguments, **attributes):
            global calls
            op(*arguments, **attributes)
            calls += 1
            if calls == stop:
                raise KeyboardInterrupt
        return call

    for name, op in right.items():
        setattr(ops, name, interrupted(op))
    seen = set()
    for stop in range(1, 20):
        stop, at = 0, stop
        table.restore(contents[0])
        calls, stop = 0, at
        try:
            table.restore(contents[1])
        except KeyboardInterrupt:
            kept = table.content()
            numbers = {*np.unique(kept["values"]), *np.unique(-kept["sums"])}
            assert len(numbers) == 1 and len(kept["keys"]) == 100, (at, numbers)
            seen |= numbers
        else:
            break
    assert seen == {1.0, 2.0}, seen
    print("whole")
    """
    run(code)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_restore_drops_what_a_failed_one_left(in_place: bool, tmp_path: Path) -> None:
    """In a graph, a restore may end when it has filled a new table: that one has a file, too."""
    config = de.HkvHashTableConfig(
        init_capacity=0, max_hbm_for_values=50_000, tier_directory=str(tmp_path)
    )

    def open_files() -> int:
        return sum(
            str(tmp_path) in os.readlink(file)
            for file in Path("/proc/self/fd").iterdir()
            if file.is_symlink()
        )

    with tf.Graph().as_default() as graph, v1.Session() as session:
        made = de.Variable(dim=4, name="t", kv_creator=de.HkvHashTableCreator(config))
        upsert = made.upsert([7], [[1.0] * 4])
        failing = v1.train.Saver()
        [fill] = [op for op in graph.get_operations() if op.type == "TfraRestore"]
        with de.restore_in_place() if in_place else contextlib.nullcontext():
            saver = v1.train.Saver()
        session.run([v1.global_variables_initializer(), v1.tables_initializer(), upsert])
        path = saver.save(session, str(tmp_path / "saved"))
        before = open_files()
        session.run(fill, {failing.saver_def.filename_tensor_name: path})
        assert open_files() == before + 1
        saver.restore(session, path)
        assert open_files() == before
        assert session.run(made.lookup([7])).tolist() == [[1.0] * 4]


def test_a_restore_in_a_function() -> None:
    """What comes after it finds the new content."""
    table, content_after = variable(0, 100), variable(50, 100, 3).content()

    @tf.function
    def restore() -> tf.Tensor:
        table.restore(content_after)
        return table.lookup(tf.constant([0, 149], tf.int64))

    for _ in range(20):
        assert restore()[:, 0].numpy().tolist() == [0.0, 149.0]
        table.clear()
        table.upsert([0], numbered_rows([5.0]))


def test_restores_are_counted(tmp_path: Path) -> None:
    path = tf.train.Checkpoint(table=variable(0, 100)).write(str(tmp_path / "saved"))
    table = variable(50, 70)
    before = table.stats()
    tf.train.Checkpoint(table=table).read(path)
    after = table.stats()
    assert after.removals == before.removals + 70
    assert after.inserts == before.inserts + 100
    assert after.inserts - after.removals == after.size == 100


def test_rows_and_sums_change_together(tmp_path: Path) -> None:
    """Sums that do not fit leave the rows, too."""
    table = variable(0, 10)
    table.gradient_sums.add(tf.constant([1], tf.int64), tf.ones([1, DIM]))
    kept = table.content()
    other = variable(100, 5).content()
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        table.restore({**other, "sum_keys": kept["sum_keys"], "sums": kept["sums"][:, 1:]})
    assert content(table) == expected(0, 10)
    assert table.gradient_sums.size() == 1
    table.restore({**other, "sum_keys": kept["sum_keys"][:0], "sums": kept["sums"][:0]})
    assert content(table) == expected(100, 5)
    assert table.gradient_sums.size() == 0


# --- set_weights of Keras.


def test_weights_that_do_not_fit_leave_the_layer() -> None:
    layer = layers.Embedding(2)
    layer.set_weights([[1, 2], [[1.0, 2.0], [3.0, 4.0]]])
    for weights in ([[5], [[1.0]]], [[5], [[1.0, 2.0], [3.0, 4.0]]], [["a"], [[1.0, 2.0]]]):
        with pytest.raises((ValueError, TypeError)):
            layer.set_weights(weights)
    keys, rows = layer.get_weights()
    assert dict(zip(keys.tolist(), rows.tolist(), strict=True)) == {1: [1.0, 2.0], 2: [3.0, 4.0]}


@pytest.mark.parametrize("strategy", ["LFU", "EPOCHLFU", "CUSTOMIZED"])
def test_weights_have_the_scores_that_a_write_gives(strategy: str) -> None:
    """Those of `gen_scores_fn`, which decide what is evicted next."""
    config = de.HkvHashTableConfig(
        max_capacity=1000,
        evict_strategy=de.HkvEvictStrategy[strategy],
        gen_scores_fn=lambda keys: 10 * keys,
    )
    scores = []
    for write in ("upsert", "set_weights"):
        layer = layers.Embedding(1, kv_creator=de.HkvHashTableCreator(config))
        layer.build((None, 1))
        [table] = layer.params.tables
        if strategy == "EPOCHLFU":
            table.set_epoch(3)
        keys, rows = np.array([5, 7]), np.ones((2, 1), np.float32)
        layer.params.upsert(keys, rows) if write == "upsert" else layer.set_weights([keys, rows])
        scores.append(table.lookup_scores([5, 7]).numpy().tolist())
    assert scores[0] == scores[1]
    assert scores[0][1] - scores[0][0] == 20


@pytest.mark.parametrize("dtype", ["int64", "string"])
def test_the_last_of_equal_weights_wins(dtype: str) -> None:
    layer = layers.Embedding(1, key_dtype=dtype)
    keys: Any = [3, 1, 3, 2, 1] if dtype == "int64" else ["c", "a", "c", "b", "a"]
    layer.set_weights([np.array(keys), np.arange(5.0, dtype=np.float32)[:, np.newaxis]])
    found, rows = layer.get_weights()
    last = dict(zip(found.tolist(), rows[:, 0].tolist(), strict=True))
    assert sorted(last.values()) == [2.0, 3.0, 4.0]
    layer.set_weights([found[:0], rows[:0]])
    assert int(layer.params.size()) == 0
