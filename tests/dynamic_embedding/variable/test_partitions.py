"""Variables of several tables: which table holds a key, and the order of results."""

from __future__ import annotations

import functools
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tf_support import (
    DEVICES,
    KEY_DTYPES,
    TfCase,
    as_content,
    assert_tensor,
    content,
    de,
    sequence,
    signature_of,
    to_numpy,
)

from support import Array, row_bytes

default_partition_fn = signature_of(de.Variable)["partitioner"]
THREE = ["/CPU:0"] * 3


def by_hundreds(keys: tf.Tensor, shard_num: int) -> tf.Tensor:
    return tf.cast(keys // 100 % shard_num, tf.int32)


def by_length(keys: tf.Tensor, shard_num: int) -> tf.Tensor:
    return tf.cast(tf.strings.length(keys) % shard_num, tf.int32)


def everything_last(keys: tf.Tensor, shard_num: int) -> tf.Tensor:
    return tf.zeros_like(keys, tf.int32) + shard_num - 1


def partition_of_each(keys: Array, variable: Any) -> dict[Any, int]:
    """Which table holds each of the keys."""
    held = [to_numpy(table.export()[0]).tolist() for table in variable.tables]
    partitions = {
        key: partition for partition, of_partition in enumerate(held) for key in of_partition
    }
    assert sum(map(len, held)) == len(partitions), "two tables hold the same key"
    assert set(partitions) == set(keys.ravel().tolist())
    return partitions


@pytest.mark.parametrize("key_dtype", ["int32", "int64"])
def test_the_default_partitioner_of_integers_takes_the_remainder(key_dtype: str) -> None:
    keys = TfCase(key_dtype).extreme_keys()
    for shard_num in (1, 2, 3, 7):
        partitions = default_partition_fn(tf.constant(keys), shard_num)
        assert_tensor(partitions, (keys % shard_num).astype(np.int32))


def test_the_default_partitioner_of_strings_is_stable_and_spreads() -> None:
    keys = tf.constant(TfCase("string").keys(range(3000)).reshape(3, 1000))
    partitions = default_partition_fn(keys, 3)
    assert (partitions.dtype, partitions.shape) == (tf.int32, (3, 1000))
    assert_tensor(default_partition_fn(tf.reverse(keys, [1]), 3), partitions.numpy()[:, ::-1])
    counts = np.bincount(partitions.numpy().ravel(), minlength=3)
    assert len(counts) == 3
    assert counts.min() > 800


@pytest.mark.parametrize("number", [1, 2, 5])
def test_one_table_for_each_device(number: int) -> None:
    variable = de.Variable(devices=["/CPU:0"] * number)
    assert variable.shard_num == len(variable.devices) == len(variable.tables) == number
    assert list(variable.devices) == ["/CPU:0"] * number
    assert len({id(table) for table in variable.tables}) == number
    assert variable.resource_handle is not None


@pytest.mark.parametrize("key_dtype", KEY_DTYPES)
def test_each_key_is_in_the_table_of_the_default_partitioner(key_dtype: str) -> None:
    case = TfCase(key_dtype)
    variable = case.variable(devices=THREE)
    keys, values = case.keys(range(-50, 50)), case.values(100)
    variable.upsert(keys, values)
    partitions = partition_of_each(keys, variable)
    expected = default_partition_fn(tf.constant(keys), 3).numpy().tolist()
    assert [partitions[key] for key in keys.tolist()] == expected
    assert set(expected) == {0, 1, 2}
    assert content(variable) == as_content(keys, values)


@pytest.mark.parametrize(
    ("key_dtype", "partitioner"),
    [
        ("int64", by_hundreds), ("int32", by_hundreds), ("string", by_length),
        ("int64", everything_last), ("string", everything_last),
    ],
)  # fmt: skip
def test_each_key_is_in_the_table_of_the_given_partitioner(
    key_dtype: str, partitioner: Any
) -> None:
    case = TfCase(key_dtype)
    variable = case.variable(devices=["/CPU:0"] * 4, partitioner=partitioner)
    keys, values = case.keys(np.arange(600).reshape(2, 300)), case.values((2, 300))
    variable.upsert(keys, values)
    partitions = partition_of_each(keys, variable)
    expected = partitioner(tf.constant(keys), 4).numpy()
    assert [partitions[key] for key in keys.ravel().tolist()] == expected.ravel().tolist()
    assert_tensor(variable.lookup(keys[:, ::-1]), values[:, ::-1])
    variable.remove(keys[0])
    assert content(variable) == as_content(keys[1], values[1])


def test_sizes_of_tables_and_their_sum() -> None:
    variable = de.Variable(devices=THREE)
    variable.upsert([0, 3, 6, 9, 1, 4], [[0.0]] * 6)
    sizes = [variable.size(index) for index in range(3)]
    assert [int(size) for size in sizes] == [4, 2, 0]
    assert all(size.shape == () for size in sizes)
    assert int(variable.size(index=1)) == int(variable.tables[1].size()) == 2
    assert variable.size().shape == ()
    assert int(variable.size()) == 6


@pytest.mark.parametrize("shard_num", [1, 2, 3, 16])
@pytest.mark.parametrize("key_dtype", KEY_DTYPES)
def test_rows_come_back_in_order(key_dtype: str, shard_num: int) -> None:
    case = TfCase(key_dtype, "string")
    variable = case.variable(devices=["/CPU:0"] * shard_num)
    values = case.values(200)
    variable.upsert(case.keys(range(200)), values)
    numbers = np.random.default_rng(3).integers(0, 400, (11, 5, 7))
    found, exists = variable.lookup(case.keys(numbers), return_exists=True)
    assert_tensor(found, np.concatenate([values, case.zeros(200)])[numbers])
    assert_tensor(exists, numbers < 200)


def test_export_is_one_table_after_another() -> None:
    variable = de.Variable(devices=THREE, dim=2)
    keys = np.arange(30)
    variable.upsert(keys, np.stack([keys, -keys], 1).astype(np.float32))
    parts = [table.export() for table in variable.tables]
    exported_keys, exported_values = variable.export()
    assert exported_keys.numpy().tolist() == [k for part in parts for k in part[0].numpy()]
    np.testing.assert_array_equal(exported_values[:, 0], exported_keys)
    np.testing.assert_array_equal(exported_values[:, 1], -exported_keys.numpy())


def test_tables_without_keys_in_a_batch_are_left_alone() -> None:
    case = TfCase()
    variable = case.variable(devices=THREE)
    keys, values = np.array([1, 4, 7]), case.values(3)
    variable.upsert(keys, values)
    assert [int(table.size()) for table in variable.tables] == [0, 3, 0]
    variable.accum([4], values[:1], values[1:2] + values[:1] * 2, [False])
    variable.remove([0, 2, 7])
    assert content(variable) == as_content(keys[:2], values[:2])
    variable.clear()
    assert [int(table.size()) for table in variable.tables] == [0, 0, 0]


class RecordingCreator(de.KVCreator):
    """A creator like one of a user, which remembers its arguments."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.requests: list[dict[str, Any]] = []

    def create(
        self, key_dtype=None, value_dtype=None, default_value=None, name=None, checkpoint=None,
        init_size=None, config=None, device=None, shard_saveable_object_fn=None,
    ) -> Any:  # fmt: skip
        assert shard_saveable_object_fn is None
        request = {
            "key_dtype": key_dtype, "value_dtype": value_dtype, "default_value": default_value,
            "name": name, "checkpoint": checkpoint, "init_size": init_size, "device": device,
        }  # fmt: skip
        self.requests.append(request)
        return de.CuckooHashTable(config=config, **request)


def test_a_creator_of_the_user_makes_the_tables() -> None:
    case = TfCase("string", "float64")
    creator = RecordingCreator()
    variable = case.variable(
        devices=THREE, kv_creator=creator, init_size=1000, checkpoint=False, initializer=2.5
    )
    assert variable.kv_creator is creator
    assert len(creator.requests) == 3
    assert len({request["name"] for request in creator.requests}) == 3
    for request in creator.requests:
        assert (request["key_dtype"], request["value_dtype"]) == (tf.string, tf.float64)
        assert (request["init_size"], request["checkpoint"]) == (333, False)
        assert request["device"] == "/CPU:0"
    keys, values = case.keys(range(20)), case.values(20)
    variable.upsert(keys[:10], values[:10])
    expected = np.concatenate([values[:10], np.full((10, 3), 2.5)])
    assert_tensor(variable.lookup(keys), expected)
    assert content(variable) == as_content(keys[:10], values[:10])


@pytest.mark.parametrize("key_dtype", KEY_DTYPES)
def test_hkv_tables_can_be_the_partitions(key_dtype: str) -> None:
    case = TfCase(key_dtype, "bfloat16")
    creator = de.HkvHashTableCreator(de.HkvHashTableConfig(init_capacity=64, max_capacity=4096))
    variable = case.variable(devices=THREE, kv_creator=creator)
    assert [type(table) for table in variable.tables] == [de.HkvHashTable] * 3
    keys, values = case.keys(range(300)), case.values(300)
    variable.upsert(keys, values)
    assert_tensor(variable.lookup(keys), values)
    assert content(variable) == as_content(keys, values)


class VariableMachine(RuleBasedStateMachine):
    """A Variable and the dict that says what it holds."""

    numbers = st.lists(st.integers(-2, 9), max_size=12)
    seeds = st.integers(0, 50)

    def __init__(self, key_dtype: str, devices: list[str] | None) -> None:
        super().__init__()
        self.case = TfCase(key_dtype)
        self.variable = self.case.variable(devices=devices, initializer=0.5)
        self.model: dict[Any, Array] = {}

    def rows(self, keys: Array, seed: int) -> Array:
        return sequence("float32", len(keys), 3, seed)

    @rule(numbers=numbers, seed=seeds)
    def upsert(self, numbers: list[int], seed: int) -> None:
        keys = self.case.keys(numbers)
        values = self.rows(keys, seed)
        self.variable.upsert(keys, values)
        self.model.update(zip(keys.tolist(), values, strict=True))

    @rule(numbers=numbers, seed=seeds, data=st.data())
    def accum(self, numbers: list[int], seed: int, data: st.DataObject) -> None:
        keys = self.case.keys(numbers)
        old, new = self.rows(keys, seed), self.rows(keys, seed + 5)
        bools = st.lists(st.booleans(), min_size=len(keys), max_size=len(keys))
        exists = np.array(data.draw(bools), bool)
        self.variable.accum(keys, old, new, exists)
        for key, before, after, expected in zip(keys.tolist(), old, new, exists, strict=True):
            if expected and key in self.model:
                self.model[key] = self.model[key] + after - before
            elif not expected:
                self.model.setdefault(key, after)

    @rule(numbers=numbers)
    def remove(self, numbers: list[int]) -> None:
        keys = self.case.keys(numbers)
        self.variable.remove(keys)
        for key in keys.tolist():
            self.model.pop(key, None)

    @rule()
    def clear(self) -> None:
        self.variable.clear()
        self.model.clear()

    @rule(numbers=numbers)
    def lookup(self, numbers: list[int]) -> None:
        keys = self.case.keys(numbers)
        found, exists = self.variable.lookup(keys, return_exists=True)
        initial = np.full(3, 0.5, np.float32)
        rows = [self.model.get(key, initial) for key in keys.tolist()]
        assert_tensor(found, np.array(rows, np.float32).reshape(len(keys), 3))
        assert exists.numpy().tolist() == [key in self.model for key in keys.tolist()]

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert content(self.variable) == {key: row_bytes(row) for key, row in self.model.items()}


@pytest.mark.parametrize("devices", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("key_dtype", ["int64", "string"])
def test_variable_does_what_a_dict_does(key_dtype: str, devices: list[str] | None) -> None:
    run_state_machine_as_test(
        functools.partial(VariableMachine, key_dtype, devices),
        settings=hypothesis.settings(max_examples=25, stateful_step_count=20),
    )
