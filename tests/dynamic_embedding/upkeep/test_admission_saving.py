"""Waiting keys are saved and restored, in all formats and with any number of tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from upkeep_support import (
    DIM,
    KERAS_WARNS,
    THREE,
    CountingBloomFilter,
    MinCount,
    Probability,
    de,
    key_set,
    keys_for,
    layers,
    load,
    model_of,
    save,
    targets,
)

pytestmark = pytest.mark.filterwarnings(KERAS_WARNS)

TWO = ["/CPU:0"] * 2
RULES = {
    "exact": MinCount(4),
    "filter": CountingBloomFilter(4, capacity=2000, error_rate=1e-6),
    "chance": Probability(0.2, seed=3),
}


def build(rule: str, devices: Any, key_dtype: str = "int64", value_dtype: str = "float32") -> Any:
    layer = layers.Embedding(
        DIM, tf.as_dtype(key_dtype), tf.as_dtype(value_dtype), devices=devices, name="ids",
        admission=RULES[rule], initializer=keras.initializers.RandomNormal(seed=3),
    )  # fmt: skip
    return model_of(layer, 3)


def params_of(model: Any) -> Any:
    return model.get_layer("ids").params


def train(model: Any, steps: range) -> None:
    for number in steps:
        ids = np.random.default_rng(number).integers(0, 60, (8, 3))
        model.train_on_batch(keys_for(params_of(model), ids), targets(8, number))


@pytest.mark.parametrize(
    ("rule", "how", "types", "before", "after"),
    [
        ("exact", "keras", ("int64", "float32"), THREE, None),
        ("exact", "weights", ("string", "float16"), None, TWO),
        ("exact", "checkpoint", ("string", "float32"), THREE, TWO),
        ("exact", "checkpoint", ("int32", "float32"), None, None),
        ("filter", "keras", ("string", "float16"), None, None),
        ("filter", "weights", ("int64", "float32"), THREE, None),
        ("filter", "checkpoint", ("int64", "float32"), None, THREE),
        ("chance", "keras", ("int64", "float32"), None, None),
        ("chance", "weights", ("string", "float32"), None, None),
        ("chance", "checkpoint", ("int64", "float32"), THREE, THREE),
    ],
)
def test_keys_enter_when_they_would_have_entered(
    tmp_path: Path, rule: str, how: str, types: tuple[str, str], before: Any, after: Any
) -> None:
    model = build(rule, before, *types)
    train(model, range(5))
    save(model, how, tmp_path)
    first = key_set(params_of(model))
    loaded = load(how, tmp_path, lambda: build(rule, after, *types))
    assert params_of(loaded).admission == RULES[rule]
    assert key_set(params_of(loaded)) == first
    assert params_of(loaded).stats().waiting == params_of(model).stats().waiting
    for number in range(5, 11):
        for one in (model, loaded):
            train(one, range(number, number + 1))
        assert key_set(params_of(loaded)) == key_set(params_of(model))
    assert len(first) < len(key_set(params_of(model)))


@pytest.mark.parametrize(("before", "after"), [(None, None), (None, THREE), (THREE, THREE)])
def test_a_filter_is_as_good_after_a_restart(tmp_path: Path, before: Any, after: Any) -> None:
    rule = CountingBloomFilter(2, capacity=5000, error_rate=0.01)
    used, loaded = (
        de.Variable(dim=DIM, devices=devices, admission=rule, ttl=10) for devices in (before, after)
    )
    used.touch(np.arange(5000 * used.shard_num))
    path = tf.train.Checkpoint(variable=used).write(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(variable=loaded).read(path)
    entered = int(loaded.size())
    loaded.touch(np.arange(10**6, 10**6 + 2000))
    assert int(loaded.size()) - entered <= 2 * rule.error_rate * 2000


def test_restoring_forgets_what_was_known(tmp_path: Path) -> None:
    for rule in ("exact", "filter"):
        empty, used = (build(rule, None) for _ in range(2))
        train(empty, range(1))
        save(empty, "checkpoint", tmp_path)
        train(used, range(20, 24))
        tf.train.Checkpoint(model=used).read(str(tmp_path / "checkpoint"))
        assert params_of(used).stats().waiting == params_of(empty).stats().waiting
        content, expected = params_of(used).content(), params_of(empty).content()
        for name in ("waiting_keys", "waiting_filter"):
            np.testing.assert_array_equal(np.sort(content[name]), np.sort(expected[name]))


def test_weights_in_memory_take_it_along() -> None:
    """Restores weights like `EarlyStopping(restore_best_weights=True)`."""
    model = build("exact", None)
    train(model, range(3))
    weights = model.get_weights()
    waiting = params_of(model).stats().waiting
    train(model, range(3, 9))
    model.set_weights(weights)
    assert params_of(model).stats().waiting == waiting > 0


class Served(tf.Module):
    """What is saved and loaded again with its functions."""

    def __init__(self, rule: Any, devices: Any) -> None:
        super().__init__()
        self.table = de.Variable(dim=DIM, devices=devices, admission=rule, ttl=10)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def see(self, keys: tf.Tensor) -> None:
        self.table.touch(keys)

    @tf.function(input_signature=[])
    def keys(self) -> tf.Tensor:
        return self.table.export()[0]


@pytest.mark.parametrize("rule", ["exact", "filter"])
def test_a_saved_model(tmp_path: Path, rule: str, devices: list[str] | None) -> None:
    module = Served(RULES[rule], devices)
    for ids in ([1, 2, 3], [1, 2], [1], [1]):
        module.see(tf.constant(ids, tf.int64))
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded.keys().numpy().tolist() == [1]
    sizes = []
    for _ in range(3):
        loaded.see(tf.constant([2, 3], tf.int64))
        sizes.append(set(loaded.keys().numpy().tolist()))
    assert sizes == [{1}, {1, 2}, {1, 2, 3}]
    assert key_set(module.table) == {1}


@pytest.mark.parametrize("rule", [MinCount(4), CountingBloomFilter(4, capacity=9000)])
def test_a_checkpoint_of_another_rule_changes_nothing(
    tmp_path: Path, rule: Any, devices: list[str] | None
) -> None:
    saved = de.Variable(dim=DIM, devices=devices, admission=RULES["filter"], name="saved")
    saved.upsert([1, 2], tf.ones([2, DIM]))
    path = tf.train.Checkpoint(variable=saved).write(str(tmp_path / "file"))
    other = de.Variable(dim=DIM, devices=devices, admission=rule, name="other")
    other.upsert([7], tf.ones([1, DIM]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected .* received"):
        tf.train.Checkpoint(variable=other).read(path).assert_consumed()
    assert key_set(other) == {7}
