"""Errors of HkvHashTable for wrong arguments."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from hkv_support import Mode, Strategy, de, scores_of, table_of

CUSTOMIZED = Strategy.CUSTOMIZED
WRONG_SETTINGS: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (ValueError, "max_capacity", {"init_capacity": 10, "max_capacity": 9}),
    (ValueError, "max_capacity", {"max_capacity": 0, "init_capacity": 0}),
    (ValueError, "max_capacity", {"max_capacity": -5}),
    (ValueError, "init_capacity", {"init_capacity": -1}),
    (TypeError, "init_capacity", {"init_capacity": 1.5}),
    (TypeError, "max_capacity", {"max_capacity": "many"}),
    (ValueError, "max_hbm_for_values", {"max_hbm_for_values": -1}),
    (ValueError, "step_per_epoch", {"step_per_epoch": -1}),
    (TypeError, "step_per_epoch", {"step_per_epoch": None}),
    (ValueError, "reserved_key_start_bit", {"reserved_key_start_bit": -1}),
    (TypeError, "evict_strategy", {"evict_strategy": "LRU"}),
    (ValueError, "gen_scores_fn", {"evict_strategy": CUSTOMIZED}),
    (TypeError, "gen_scores_fn", {"evict_strategy": CUSTOMIZED, "gen_scores_fn": 3}),
    (ValueError, "gen_scores_fn", {"evict_strategy": Strategy.LRU, "gen_scores_fn": abs}),
]  # fmt: skip


@pytest.mark.parametrize(("error", "said", "options"), WRONG_SETTINGS)
def test_settings(error: type[Exception], said: str, options: dict[str, Any]) -> None:
    for make in (
        lambda: de.HkvHashTable(tf.int64, tf.float32, 0.0, **options),
        lambda: de.HkvHashTableConfig(**options),
    ):
        with pytest.raises(error, match=said) as caught:
            make()
        assert "received" in str(caught.value).lower()


def test_a_config_that_was_changed_is_checked_again() -> None:
    config = de.HkvHashTableConfig(init_capacity=4, max_capacity=8)
    config.max_capacity = 2
    with pytest.raises(ValueError, match="max_capacity"):
        de.HkvHashTable(tf.int64, tf.float32, 0.0, config=config)


WRONG_SCORES: list[tuple[type[Exception], str, Any]] = [
    (TypeError, "int64.*float32", lambda keys: tf.ones_like(keys, tf.float32)),
    (TypeError, "int64.*int32", lambda keys: tf.ones_like(keys, tf.int32)),
    (TypeError, "int64", lambda keys: None),
    (ValueError, "shape", lambda keys: tf.constant([1, 2, 3, 4, 5], tf.int64)),
    (ValueError, "shape", lambda keys: tf.constant(1, tf.int64)),
    (tf.errors.InvalidArgumentError, "0 or more", lambda keys: -tf.ones_like(keys, tf.int64)),
]


@pytest.mark.parametrize(("error", "said", "function"), WRONG_SCORES)
def test_scores_of_a_function(error: type[Exception], said: str, function: Any, mode: Mode) -> None:
    table = table_of(Strategy.CUSTOMIZED, gen_scores_fn=function)
    for write in (table.insert, table.assign, table.insert_and_evict):
        with pytest.raises(error, match=said):
            mode.run(lambda write=write: write([1, 2], [[1.0], [2.0]]))
    assert mode.run(table.size) == 0


def test_scores_whose_shape_is_known_when_they_come() -> None:
    table = table_of(Strategy.CUSTOMIZED, gen_scores_fn=lambda keys: tf.reshape(keys, [-1])[:1])

    @tf.function(input_signature=[tf.TensorSpec(None, tf.int64), tf.TensorSpec(None, tf.float32)])
    def insert(keys: tf.Tensor, values: tf.Tensor) -> None:
        table.insert(keys, values)

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`scores` of shape \[2\]"):
        insert([1, 2], [[1.0], [2.0]])
    assert int(table.size()) == 0


WRONG_CALLS: list[tuple[Any, str, Any]] = [
    (ValueError, "LRU makes its own", lambda t: t.insert_and_evict([1], [[1.0]], scores=[1])),
    (ValueError, "shape", lambda t: t.assign_scores([1, 2], [1])),
    (TypeError, "int64", lambda t: t.assign_scores([1], [0.5])),
    (TypeError, "int64", lambda t: t.assign_scores(["a"], [1])),
    (TypeError, "int64", lambda t: t.contains([0.5])),
    (TypeError, "int64", lambda t: t.find_or_insert(["a"])),
    (ValueError, "shape", lambda t: t.insert_and_evict([1, 2], [[1.0]])),
    (ValueError, "shape", lambda t: t.find_or_insert([1, 2], [[1.0], [2.0], [3.0]])),
    (TypeError, "float32", lambda t: t.assign([1], tf.constant([[1]]))),
    (ValueError, "neither", lambda t: t.size_if()),
    (ValueError, "neither", lambda t: t.erase_if()),
    (ValueError, "score_below", lambda t: t.export_if(score_below=-1)),
    (TypeError, "score_at_least", lambda t: t.size_if(score_at_least=0.5)),
    (TypeError, "score_at_least", lambda t: t.size_if(tf.constant([1, 2]))),
    (ValueError, "split_size", lambda t: t.export_keys_and_scores(0)),
    (ValueError, "split_size", lambda t: t.export_with_scores(0)),
    (ValueError, "keys", lambda t: t.reserve(-1)),
    (ValueError, "EPOCHLRU", lambda t: t.set_epoch(1)),
    (tf.errors.InvalidArgumentError, "0 or more", lambda t: t.assign_scores([1], [-1])),
    (tf.errors.InvalidArgumentError, "0 or more", lambda t: t.erase_if(tf.constant(-1))),
    (tf.errors.InvalidArgumentError, "1 or more",
     lambda t: t.export_keys_and_scores(tf.constant(0))),
]  # fmt: skip


@pytest.mark.parametrize(("error", "said", "call"), WRONG_CALLS)
def test_calls_that_change_nothing(error: Any, said: str, call: Any, mode: Mode) -> None:
    table = table_of()
    mode.run(lambda: table.insert([1], [[1.0]]))
    before = scores_of(table, mode)
    with pytest.raises(error, match=said) as caught:
        mode.run(lambda: call(table))
    assert "received" in str(caught.value).lower()
    assert scores_of(table, mode) == before


@pytest.mark.parametrize("epoch", [-1, 2**31])
def test_epochs_out_of_range(epoch: int, mode: Mode) -> None:
    table = table_of(Strategy.EPOCHLRU)
    with pytest.raises(ValueError, match="epoch"):
        table.set_epoch(epoch)
    with pytest.raises(tf.errors.InvalidArgumentError, match="epoch"):
        mode.run(lambda: table.set_epoch(tf.constant(epoch, tf.int64)))
    assert mode.run(table.epoch) == 0


def test_configs_of_another_kind() -> None:
    for config in ({"max_capacity": 5}, de.CuckooHashTableConfig()):
        with pytest.raises(TypeError, match="`config`: expected a HkvHashTableConfig, received"):
            de.HkvHashTable(tf.int64, tf.float32, 0.0, config=config)
        with pytest.raises(TypeError, match="`config`: expected a HkvHashTableConfig, received"):
            de.HkvHashTableCreator(config)


def test_max_capacity_alone_is_enough() -> None:
    assert de.HkvHashTableConfig(max_capacity=1000).init_capacity == 1000
    assert de.HkvHashTableConfig(max_capacity=2**21).init_capacity == 2**20


def test_counts_stay_at_the_largest_score(mode: Mode) -> None:
    table = table_of(Strategy.LFU)
    largest = 2**63 - 1
    mode.run(lambda: table.insert([1], [[1.0]]))
    mode.run(lambda: table.assign_scores([1], [largest]))
    mode.run(lambda: table.insert([1], [[1.0]]))
    scores = mode.run(lambda: table.lookup_scores([1]))
    assert scores.tolist() == [largest]
    _, _, exported = mode.run(table.export_with_scores)
    assert exported.tolist() == [largest]
    mode.run(lambda: table.assign_scores([1], exported))
