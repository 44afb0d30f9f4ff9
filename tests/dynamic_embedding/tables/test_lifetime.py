"""When tables are freed, and that calls leave nothing behind."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
from programs import measure_program
from programs.common import DIM, MB, content, cpu_devices, de, ids, rows

ROW_BYTES = 8 + 16 * 4  # A key and its row in programs/lifetime.py.

BIG = {
    "dropped_variable": 2_000_000,
    "dropped_partitions": 2_000_000,
    "dropped_table": 2_000_000,
    "captured_by_function": 2_000_000,
    "captured_by_dataset": 500_000,
    "closed_session": 2_000_000,
    "dropped_saved_model": 500_000,
}


@pytest.mark.parametrize("scenario, count", BIG.items())
def test_memory_comes_back(scenario: str, count: int) -> None:
    grown = measure_program("lifetime", scenario, count)
    assert grown["full"] > count * ROW_BYTES
    assert grown["dropped"] < 0.1 * count * ROW_BYTES
    assert grown.get("saved and dropped", 0) < 0.1 * count * ROW_BYTES


@pytest.mark.parametrize("scenario", ["many_variables", "many_sessions", "many_saved_models"])
def test_tables_made_again_and_again_take_the_memory_of_one(scenario: str) -> None:
    count = 1_500_000
    grown = measure_program("lifetime", scenario, count)
    assert grown["dropped"] < 0.1 * count * ROW_BYTES


@pytest.mark.parametrize(
    "kind, count", [("eager", 20_000), ("function", 4_000), ("session", 8_000), ("errors", 5_000)]
)
def test_small_calls_leak_nothing(kind: str, count: int) -> None:
    result = measure_program("leak_check", count, kind)
    assert result["calls"] == count
    bound = MB / 4 + 16 * count
    if kind == "function" and result["grown"] >= bound:
        # A call of a function leaks a kilobyte in TensorFlow 2.16, whatever is in it.
        bound += 1.1 * measure_program("leak_check", count, "control")["grown"]
    assert result["grown"] < bound


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_dropped_variable_is_collected(partitions: int) -> None:
    variable = de.Variable(dim=DIM, devices=cpu_devices(partitions), name="table")
    variable.upsert(ids(1), rows(1, 1.0))
    gone = weakref.ref(variable)
    del variable
    gc.collect()
    assert gone() is None


def test_a_variable_lives_on_without_its_siblings() -> None:
    first, second = (de.Variable(dim=DIM, name="table") for _ in range(2))
    first.upsert(ids(1), rows(1, 1.0))
    second.upsert(ids(2), rows(1, 2.0))
    del first
    gc.collect()
    assert content(second) == {2: 2.0}
    third = de.Variable(dim=DIM, name="table")
    assert content(third) == {}


def test_a_concrete_function_keeps_its_table() -> None:
    variable = de.Variable(dim=DIM, name="table")
    variable.upsert(ids(1), rows(1, 4.0))
    concrete = tf.function(variable.lookup).get_concrete_function(tf.TensorSpec([None], tf.int64))
    del variable
    gc.collect()
    np.testing.assert_array_equal(concrete(ids(1, 2)), [[4.0] * DIM, [0.0] * DIM])


def test_an_iterator_keeps_its_table() -> None:
    variable = de.Variable(dim=DIM, name="table")
    variable.upsert(ids(0, 1, 2), rows(3, 4.0))
    iterator = iter(tf.data.Dataset.range(3).map(variable.lookup))
    next(iterator)
    del variable
    gc.collect()
    assert [found.numpy().tolist() for found in iterator] == [[4.0] * DIM] * 2


def test_a_checkpoint_keeps_its_variable(tmp_path_factory: pytest.TempPathFactory) -> None:
    variable = de.Variable(dim=DIM, name="table")
    variable.upsert(ids(1), rows(1, 4.0))
    checkpoint = tf.train.Checkpoint(table=variable)
    del variable
    gc.collect()
    checkpoint.read(checkpoint.write(str(tmp_path_factory.mktemp("kept") / "table")))
    assert content(checkpoint.table) == {1: 4.0}
