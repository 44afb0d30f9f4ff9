"""HkvHashTable: its bound, its strategies and its methods, in all ways that TensorFlow runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hkv_support import (
    TYPES,
    Mode,
    Strategy,
    by_key,
    de,
    key_set,
    keys,
    rows,
    scores_of,
    table_of,
    typed_table,
)

from hkv_model import BoundedModel


@pytest.mark.parametrize("types", TYPES, ids=str)
def test_tables_of_every_type_keep_to_their_bound(types: Any, mode: Mode) -> None:
    key_dtype, value_dtype, dim = types
    table = typed_table(*types, max_capacity=10)
    values = rows(value_dtype, 30, dim)
    for start in range(0, 30, 5):
        some = keys(key_dtype, range(start, start + 5))
        mode.run(lambda some=some, start=start: table.insert(some, values[start : start + 5]))
    found, exported, scores = mode.run(table.export_with_scores)
    assert key_set(found) == key_set(keys(key_dtype, range(20, 30)))
    assert exported.shape == ((10,) if dim is None else (10, dim))
    assert mode.run(table.size) == 10
    looked_up = mode.run(lambda: table.lookup(keys(key_dtype, range(20, 30))))
    expected = values[20:]
    if value_dtype == "string":
        looked_up = np.vectorize(bytes.decode, otypes=[object])(looked_up)
    assert looked_up.tolist() == expected.tolist()
    assert sorted(scores.tolist()) == list(range(21, 31))


def test_lfu_keeps_what_comes_often(mode: Mode) -> None:
    table = table_of(Strategy.LFU, 2)
    mode.run(lambda: table.insert([1, 1, 1, 2, 2], [[0.0]] * 5))
    mode.run(lambda: table.insert([3], [[0.0]]))
    assert scores_of(table, mode) == {1: 3, 2: 2}
    mode.run(lambda: table.insert([3, 3], [[0.0]] * 2))  # Its former count is remembered.
    assert scores_of(table, mode) == {1: 3, 3: 3}


def test_lfu_counts_as_its_function_says(mode: Mode) -> None:
    table = table_of(Strategy.LFU, 5, gen_scores_fn=lambda k: tf.fill(tf.shape(k), np.int64(10)))
    mode.run(lambda: table.insert([1, 1, 2], [[0.0]] * 3))
    assert scores_of(table, mode) == {1: 20, 2: 10}


def test_customized_scores_come_from_the_function(mode: Mode) -> None:
    table = table_of(Strategy.CUSTOMIZED, 3)
    mode.run(lambda: table.insert([5, 1, 7, 3], [[5.0], [1.0], [7.0], [3.0]]))
    assert scores_of(table, mode) == {3: 3, 5: 5, 7: 7}
    mode.run(lambda: table.insert([2, 6], [[2.0], [6.0]]))
    assert scores_of(table, mode) == {5: 5, 6: 6, 7: 7}
    mode.run(lambda: table.accum([8], [[8.0]], [False]))
    assert scores_of(table, mode) == {6: 6, 7: 7, 8: 8}


@pytest.mark.parametrize("strategy", [Strategy.EPOCHLRU, Strategy.EPOCHLFU])
def test_steps_make_epochs(strategy: Any, mode: Mode) -> None:
    table = table_of(strategy, 100, step_per_epoch=3)
    for step in range(8):
        assert mode.run(table.epoch) == step // 3
        if step % 2:
            mode.run(lambda step=step: table.insert([step], [[0.0]]))
        else:
            mode.run(lambda step=step: table.find_or_insert([step]))
    epochs = {key: score >> 32 for key, score in scores_of(table, mode).items()}
    assert epochs == {step: step // 3 for step in range(8)}
    mode.run(lambda: table.set_epoch(9))
    mode.run(lambda: table.insert([0], [[0.0]]))
    assert scores_of(table, mode)[0] >> 32 == 9
    mode.run(lambda: table.insert([0], [[0.0]]))
    assert mode.run(table.epoch) == 9  # set_epoch resets the count of steps.
    mode.run(lambda: table.insert([0], [[0.0]]))
    assert mode.run(table.epoch) == 10


def test_without_steps_an_epoch_stays(mode: Mode) -> None:
    table = table_of(Strategy.EPOCHLFU)
    for _ in range(5):
        mode.run(lambda: table.insert([1], [[0.0]]))
    assert mode.run(table.epoch) == 0
    assert scores_of(table, mode) == {1: 5}


@pytest.mark.parametrize("types", TYPES, ids=str)
def test_insert_and_evict_returns_who_had_to_go(types: Any, mode: Mode) -> None:
    key_dtype, value_dtype, dim = types
    table = typed_table(*types, max_capacity=3)
    values = rows(value_dtype, 5, dim)
    first = keys(key_dtype, range(3))
    gone = mode.run(lambda: table.insert_and_evict(first, values[:3]))
    assert [len(part) for part in gone] == [0, 0, 0]
    then = keys(key_dtype, [3, 4])
    gone, rejected = mode.run(
        lambda: (lambda *e: (e[:3], e[3]))(
            *table.insert_and_evict(then, values[3:], return_rejected=True)
        )
    )
    assert key_set(gone[0]) == key_set(first[:2])
    assert gone[1].shape == values[:2].shape
    order = np.argsort(gone[2])
    expected = values[:2].tolist()
    received = gone[1][order].tolist()
    if value_dtype == "string":
        received = tf.nest.map_structure(bytes.decode, received)
    assert received == expected
    assert gone[2][order].tolist() == [1, 2]
    assert rejected.tolist() == [False, False]


def test_insert_and_evict_tells_who_is_rejected(mode: Mode) -> None:
    table = table_of(Strategy.CUSTOMIZED, 2)
    mode.run(lambda: table.insert([10, 20], [[1.0], [2.0]]))
    gone = mode.run(
        lambda: table.insert_and_evict([[5, 15]], [[[5.0], [15.0]]], return_rejected=True)
    )
    assert [part.tolist() for part in gone] == [[10], [[1.0]], [10], [[True, False]]]
    gone = mode.run(lambda: table.insert_and_evict([5], [[5.0]], scores=[99]))
    assert [part.tolist() for part in gone] == [[15], [[15.0]], [15]]


@pytest.mark.parametrize("types", TYPES, ids=str)
def test_find_or_insert(types: Any, mode: Mode) -> None:
    key_dtype, value_dtype, dim = types
    table = typed_table(*types, max_capacity=10)
    values = rows(value_dtype, 4, dim).reshape(2, 2, *([] if dim is None else [dim]))
    some = keys(key_dtype, [[0, 1], [2, 3]])
    mode.run(lambda: table.insert(some[0], values[0]))
    other = rows(value_dtype, 4, dim, seed=1).reshape(values.shape)
    found, exists = mode.run(lambda: table.find_or_insert(some, other, return_exists=True))
    expected = np.concatenate([values[:1], other[1:]])
    if value_dtype == "string":
        found = np.vectorize(bytes.decode, otypes=[object])(found)
    assert found.tolist() == expected.tolist()
    assert exists.tolist() == [[True, True], [False, False]]
    assert mode.run(table.size) == 4
    default = mode.run(lambda: table.find_or_insert(keys(key_dtype, [9])))
    assert default.tolist() == mode.run(lambda: table.lookup(keys(key_dtype, [8]))).tolist()
    row = other[0, 0]
    assert mode.run(lambda: table.find_or_insert(keys(key_dtype, [7]), row)).shape[0] == 1
    assert mode.run(table.size) == 6


def test_assign_writes_to_what_is_there(mode: Mode) -> None:
    table = table_of(Strategy.CUSTOMIZED, 5)
    mode.run(lambda: table.insert([1, 2], [[1.0], [2.0]]))
    mode.run(lambda: table.assign([2, 3], [[20.0], [30.0]], scores=[50, 60]))
    assert scores_of(table, mode) == {1: 1, 2: 50}
    assert mode.run(lambda: table.lookup([1, 2, 3])).tolist() == [[1.0], [20.0], [0.0]]


def test_assign_scores_contains_and_lookup_scores(mode: Mode) -> None:
    table = table_of(max_capacity=5)
    mode.run(lambda: table.insert([1, 2], [[1.0], [2.0]]))
    mode.run(lambda: table.assign_scores([1, 9], [2**62, 7]))
    assert mode.run(lambda: table.lookup_scores([[1, 2, 9]])).tolist() == [[2**62, 2, 0]]
    assert mode.run(lambda: table.contains([[1], [9]])).tolist() == [[True], [False]]


def test_selecting_by_score(mode: Mode) -> None:
    table = table_of(Strategy.CUSTOMIZED, 50, dim=None)
    mode.run(lambda: table.insert(tf.range(40, dtype=tf.int64), tf.range(40.0)))
    assert mode.run(lambda: table.size_if(score_below=10)) == 10
    assert mode.run(lambda: table.size_if(score_at_least=10)) == 30
    assert mode.run(lambda: table.size_if(8, tf.constant(10, tf.int64))) == 2
    found, values, scores = mode.run(lambda: table.export_if(score_at_least=35))
    assert values.shape == (5,)
    assert sorted(found.tolist()) == sorted(values.tolist()) == sorted(scores.tolist())
    assert set(found.tolist()) == set(range(35, 40))
    assert mode.run(lambda: table.erase_if(score_below=30)) == 30
    assert set(scores_of(table, mode)) == set(range(30, 40))


@pytest.mark.parametrize("split_size", [1, 7, 10**6])
def test_keys_and_scores_in_parts(split_size: int, mode: Mode) -> None:
    table = table_of(Strategy.CUSTOMIZED, 300)
    mode.run(lambda: table.insert(tf.range(200, dtype=tf.int64), tf.zeros([200, 1])))
    found, scores = mode.run(lambda: table.export_keys_and_scores(split_size))
    assert found.tolist() == scores.tolist()
    assert sorted(found.tolist()) == list(range(200))
    found, values, scores = mode.run(lambda: table.export_with_scores(split_size))
    assert found.tolist() == scores.tolist()
    assert sorted(found.tolist()) == list(range(200))
    assert values.shape == (200, 1)


@pytest.mark.parametrize("partitions", [1, 3])
def test_keys_and_scores_of_a_variable(partitions: int, mode: Mode) -> None:
    config = de.HkvHashTableConfig(
        evict_strategy=Strategy.CUSTOMIZED, gen_scores_fn=lambda keys: keys + 7
    )
    creator = de.HkvHashTableCreator(config=config)
    variable = de.Variable(dim=2, devices=["/CPU:0"] * partitions, kv_creator=creator)
    mode.run(lambda: variable.upsert(tf.range(200, dtype=tf.int64), tf.zeros([200, 2])))
    found, scores = mode.run(lambda: variable.export_keys_and_scores(50))
    assert sorted(found.tolist()) == list(range(200))
    assert (found + 7).tolist() == scores.tolist()


def test_a_variable_without_scores_says_so() -> None:
    with pytest.raises(TypeError, match=r"HkvHashTableCreator.*CuckooHashTable"):
        de.Variable().export_keys_and_scores(1)


def test_reserve_leaves_the_bound(mode: Mode) -> None:
    table = table_of(max_capacity=5)
    mode.run(lambda: table.reserve(10**9))
    mode.run(lambda: table.insert(tf.range(20, dtype=tf.int64), tf.zeros([20, 1])))
    assert mode.run(table.size) == 5


# Without LFU, which remembers counts of evicted keys approximately: see test_bounded_table.py.
@pytest.mark.parametrize("strategy", [Strategy.LRU, Strategy.EPOCHLRU, Strategy.CUSTOMIZED])
@pytest.mark.parametrize("capacity", [1, 8, 100])
def test_random_histories_against_an_exact_reference(strategy: Any, capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    scores = {key: int(score) for key, score in enumerate(rng.permutation(3 * capacity + 2))}
    table = table_of(
        strategy,
        capacity,
        gen_scores_fn=(lambda k: tf.gather(tf.constant(list(scores.values()), tf.int64), k))
        if strategy == Strategy.CUSTOMIZED
        else None,
    )
    model = BoundedModel(capacity, strategy.name.lower())
    for _ in range(60):
        some = rng.integers(0, 3 * capacity + 2, int(rng.integers(1, 30)))
        values = rng.standard_normal((len(some), 1)).astype(np.float32)
        table.insert(some, values)
        given = [scores[key] for key in some] if strategy == Strategy.CUSTOMIZED else None
        model.upsert(some.tolist(), [tuple(row) for row in values.tolist()], given)
        found, kept, received = (part.numpy() for part in table.export_with_scores())
        assert sorted(received.tolist()) == sorted(model.scores.values())
        content = dict(zip(found.tolist(), map(tuple, kept.tolist()), strict=True))
        if strategy != Strategy.EPOCHLRU:  # All keys of a call have one score there.
            assert content == model.rows
        model.rows = content
        model.scores = dict(zip(found.tolist(), received.tolist(), strict=True))
    assert model.evictions + model.rejections > 10


def test_a_uniform_stream_fills_the_table() -> None:
    table = table_of(max_capacity=5000)
    for part in np.array_split(np.random.default_rng(0).permutation(50_000), 20):
        table.insert(part, np.zeros((len(part), 1), np.float32))
        assert int(table.size()) <= 5000
    assert int(table.size()) >= 0.99 * 5000


def test_prepare_changes_nothing() -> None:
    table = de.HkvHashTable(tf.int64, tf.float32, 0.0)
    table.prepare([[1, 2]], is_async=True)
    assert int(table.size()) == 0
    with pytest.raises(TypeError, match="`keys`: expected int64"):
        table.prepare([0.5])
    with tf.Graph().as_default():
        prepared = de.HkvHashTable(tf.int64, tf.float32, 0.0).prepare([1], name="prepared")
        assert (prepared.type, prepared.name) == ("NoOp", "prepared")


def test_shapes_are_known_beforehand() -> None:
    table = table_of(dim=3)

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.int64)])
    def find(some: tf.Tensor) -> Any:
        values, exists = table.find_or_insert(some, return_exists=True)
        assert values.shape.as_list() == [None, 2, 3]
        assert exists.shape.as_list() == [None, 2]
        assert table.contains(some).shape.as_list() == [None, 2]
        evicted = table.insert_and_evict(some, values, return_rejected=True)
        shapes = [part.shape.as_list() for part in evicted]
        assert shapes == [[None], [None, 3], [None], [None, 2]]
        return values

    assert find([[1, 2]]).shape == (1, 2, 3)


@pytest.mark.parametrize("devices", [None, ["/CPU:0"] * 3], ids=["one", "three"])
def test_the_bound_of_a_variable_is_per_table(devices: Any) -> None:
    config = de.HkvHashTableConfig(
        init_capacity=4, max_capacity=8, evict_strategy=Strategy.CUSTOMIZED, gen_scores_fn=by_key
    )
    variable = de.get_variable(
        f"bounded_{len(devices or [1])}", dim=2, devices=devices,
        kv_creator=de.HkvHashTableCreator(config),
    )  # fmt: skip
    variable.upsert(tf.range(100, dtype=tf.int64), tf.zeros([100, 2]))
    for i in range(variable.shard_num):
        assert int(variable.size(i)) == 8
    best = range(100 - 8 * variable.shard_num, 100)
    assert set(variable.export()[0].numpy().tolist()) == set(best)


def test_random_initial_rows_are_inserted_by_find_or_insert() -> None:
    creator = de.HkvHashTableCreator(de.HkvHashTableConfig(init_capacity=4, max_capacity=8))
    variable = de.Variable(
        dim=4, initializer=tf.keras.initializers.RandomNormal(seed=1), kv_creator=creator
    )
    expected = variable.lookup([1, 2]).numpy().tolist()
    table = variable.tables[0]
    assert table.find_or_insert([1, 2]).numpy().tolist() == expected
    assert int(table.size()) == 2
    assert len({tuple(row) for row in expected}) == 2
